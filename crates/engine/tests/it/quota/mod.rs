//! Quotas: after every operation the quota files agree with the count of e2fsck; limits hold.

mod damaged;
mod failures;
mod projects;
mod values;

use extant_engine::{
    Caller, Clock, Errno, Falloc, File, Fs, Node, NodeKind, OpenFlags, OpenOptions, QuotaKind,
    QuotaLimits, RenameFlags, Result, SetAttr, SpaceRights, Timestamp, XattrMode,
};
use extant_testkit::e2fsck;
use extant_testkit::image::Image;
use extant_testkit::rng::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const IMMUTABLE: u32 = 0x10;
const PROJINHERIT: u32 = 0x2000_0000;

const KINDS: [(&str, &[&str]); 8] = [
    ("4k", &["-t", "ext4", "-b", "4096", "-O", "quota,project,orphan_file"]),
    ("1k", &["-t", "ext4", "-b", "1024", "-O", "quota,project"]),
    ("bigalloc", &["-t", "ext4", "-b", "1024", "-O", "quota,project,bigalloc", "-C", "8192"]),
    ("inline", &["-t", "ext4", "-b", "2048", "-O", "quota,project,inline_data,orphan_file"]),
    ("ea_inode", &["-t", "ext4", "-b", "1024", "-O", "quota,ea_inode"]),
    ("pointers", &["-t", "ext3", "-b", "1024", "-O", "quota"]),
    ("no journal", &["-t", "ext4", "-b", "1024", "-O", "quota,project,^has_journal"]),
    ("users only", &["-t", "ext4", "-b", "4096", "-O", "quota", "-E", "quotatype=usrquota"]),
];

fn open(image: &Image) -> Fs {
    Fs::open(image.path(), &OpenOptions::new()).expect("the image opens")
}

fn small() -> Image {
    Image::mke2fs(32 << 20, KINDS[0].1)
}

fn create(fs: &Fs, uid: u32, dir: &Node, name: &str) -> Result<Node> {
    fs.create_as(
        &Caller { uid, gid: uid + 100, ..Caller::default() },
        (dir, name.as_bytes()),
        0o644,
        NodeKind::File,
    )
}

fn writer(fs: &Fs, node: &Node, direct: bool) -> File {
    fs.open_file(node, OpenFlags { write: true, direct, ..Default::default() }).expect("a writer")
}

fn is_quota<T: std::fmt::Debug>(result: Result<T>) {
    let error = result.expect_err("beyond the limit");
    assert!(error.is(Errno::DQuot), "{error}");
    assert_eq!(error.errno(), 122);
}

fn block_limits(hard: u64, soft: u64) -> QuotaLimits {
    QuotaLimits { block_hard: hard, block_soft: soft, ..QuotaLimits::default() }
}

/// A random mix of whatever changes usage or owners.
struct Mix<'a> {
    fs: &'a Fs,
    rng: Rng,
    dirs: Vec<Node>,
    names: Vec<(Node, String)>,
    held: Vec<File>,
    made: u64,
}

impl Mix<'_> {
    fn some(&mut self) -> Option<(Node, String, Node)> {
        let (dir, name) =
            self.names.get(self.rng.below(self.names.len().max(1) as u64) as usize)?.clone();
        let node = self.fs.lookup(&dir, name.as_bytes()).expect(&name);
        Some((dir, name, node))
    }

    fn make(&mut self) {
        let dir = self.rng.pick(&self.dirs).clone();
        self.made += 1;
        let name = format!("n{}{}", self.made, "x".repeat(self.rng.below(60) as usize));
        let who = Caller {
            uid: self.rng.below(5) as u32 * 70_000,
            gid: self.rng.below(3) as u32,
            ..Caller::default()
        };
        let kind = self.rng.below(6);
        let long = vec![b'l'; 70 + self.rng.below(300) as usize];
        let what = match kind {
            0 => NodeKind::Dir,
            1 => NodeKind::Symlink(&long),
            _ => NodeKind::File,
        };
        let node = self.fs.create_as(&who, (&dir, name.as_bytes()), 0o755, what).expect(&name);
        if kind == 0 && self.dirs.len() < 6 {
            self.dirs.push(node);
        } else if kind != 0 {
            self.names.push((dir, name));
        } else {
            self.fs.rmdir(&dir, name.as_bytes()).expect(&name);
        }
    }

    fn write(&mut self) {
        let Some((_, name, node)) = self.some() else { return };
        if node.file_type() != extant_engine::FileType::Regular {
            return;
        }
        let file = writer(self.fs, &node, self.rng.below(3) == 0);
        let (at, len) = (self.rng.below(200_000), self.rng.between(1, 40_000) as usize);
        let done = match self.rng.below(8) {
            0..=3 => file.write_at(at, &self.rng.bytes(len)).map(drop),
            4 => file.set_len(at),
            5 => file.allocate(Falloc::KeepSize, at, len as u64),
            6 => file.allocate(Falloc::Punch, at, len as u64),
            _ => file.sync(),
        };
        match done {
            Err(e) if e.is(Errno::OpNotSupp) => {}
            other => other.expect(&name),
        }
        if self.rng.below(20) == 0 {
            self.held.push(file);
        }
    }

    fn own(&mut self) {
        let Some((_, name, node)) = self.some() else { return };
        match self.rng.below(3) {
            0 => drop(self.fs.set_project(&node, self.rng.below(4) as u32 * 1000)),
            _ => {
                let uid = Some(self.rng.below(7) as u32 * 70_000);
                let set =
                    SetAttr { uid, gid: Some(self.rng.below(4) as u32), ..SetAttr::default() };
                self.fs.set_attr(&node, &set).expect(&name);
            }
        }
    }

    fn attribute(&mut self) {
        let Some((_, _, node)) = self.some() else { return };
        let name = format!("trusted.a{}", self.rng.below(3));
        let value = vec![7; self.rng.below(6000) as usize];
        // Whether it fits depends on the features.
        match self.rng.below(3) {
            0 => drop(self.fs.remove_xattr(&node, name.as_bytes())),
            _ => drop(self.fs.set_xattr(&node, name.as_bytes(), &value, XattrMode::Any)),
        }
    }

    fn name(&mut self) {
        let Some((dir, name, _)) = self.some() else { return };
        let at =
            self.names.iter().position(|(d, n)| d.ino() == dir.ino() && *n == name).expect("known");
        match self.rng.below(2) {
            0 => self.fs.unlink(&dir, name.as_bytes()).expect(&name),
            _ => {
                let to = self.rng.pick(&self.dirs).clone();
                if self
                    .fs
                    .rename((&dir, name.as_bytes()), (&to, name.as_bytes()), RenameFlags::empty())
                    .is_ok()
                {
                    self.names.push((to, name));
                } else {
                    return;
                }
            }
        }
        self.names.remove(at);
    }

    fn steps(&mut self, count: usize) {
        for _ in 0..count {
            match self.rng.below(10) {
                0..=2 => self.make(),
                3..=5 => self.write(),
                6 => self.own(),
                7 => self.attribute(),
                8 => self.name(),
                _ if self.rng.below(8) == 0 => self.fs.sync().expect("sync"),
                _ if self.rng.below(4) == 0 => self.held.clear(),
                _ => {}
            }
        }
    }
}

fn mix<'a>(fs: &'a Fs, seed: u64) -> Mix<'a> {
    let root = fs.root().expect("root");
    let heir =
        fs.create(&root, format!("heir{seed}").as_bytes(), 0o755, NodeKind::Dir).expect("heir");
    if fs.set_project(&heir, 77).is_ok() {
        fs.set_flags(&heir, fs_flags(&heir) | PROJINHERIT).expect("inherit");
    }
    Mix {
        fs,
        rng: Rng::new(seed),
        dirs: vec![root, heir],
        names: Vec::new(),
        held: Vec::new(),
        made: seed * 1000,
    }
}

fn fs_flags(node: &Node) -> u32 {
    node.attr().flags
}

/// Returns the sums of the inodes by owner, which must equal the usage that the engine reports.
fn sums(fs: &Fs) -> BTreeMap<(QuotaKind, u32), (u64, u64)> {
    let mut sums = BTreeMap::new();
    let mut todo = vec![fs.root().expect("root")];
    while let Some(dir) = todo.pop() {
        let children = fs.read_dir(&dir).expect("readdir");
        todo.extend(
            children
                .iter()
                .filter(|e| e.ftype == extant_engine::FileType::Directory)
                .map(|e| fs.lookup(&dir, &e.name).expect("lookup")),
        );
        let others = children.iter().filter(|e| e.ftype != extant_engine::FileType::Directory);
        let nodes: Vec<Node> = others
            .map(|e| fs.lookup(&dir, &e.name).expect("lookup"))
            .chain(std::iter::once(dir.clone()))
            .collect();
        for node in nodes {
            let attr = node.attr();
            let ids = [attr.uid, attr.gid, fs.project(&node).expect("project")];
            for (kind, id) in QuotaKind::ALL.into_iter().zip(ids) {
                let sum: &mut (u64, u64) = sums.entry((kind, id)).or_default();
                sum.0 += attr.blocks * 512;
                sum.1 += 1;
            }
        }
    }
    sums
}

fn run(name: &str, args: &[&str], rounds: u64) {
    let image = Image::mke2fs(48 << 20, args);
    for round in 0..rounds {
        let fs = open(&image);
        let mut work = mix(&fs, round + 1);
        work.steps(400);
        if round % 2 == 0 {
            work.held.clear();
            drop(work);
            fs.unmount().expect("unmount");
        } else {
            // With files that are open and have no name: orphans.
            fs.sync().expect("sync");
            let copy = image.copy();
            drop(work);
            fs.crash();
            e2fsck::recover(copy.path()).assert_clean();
            open(&image).unmount().expect("unmount after recovery");
        }
        match e2fsck::check(image.path()) {
            e2fsck::Verdict::Clean => {}
            e2fsck::Verdict::Complaints(lines) => panic!("{name}, round {round}: {lines:#?}"),
        }
    }
}

macro_rules! counted {
    ($($test:ident = $kind:literal;)*) => {
        $(#[test]
        fn $test() {
            let (name, args) = KINDS.iter().find(|(name, _)| *name == $kind).expect("a kind");
            let rounds = if args.contains(&"quota,project,^has_journal") { 1 } else { 2 };
            run(name, args, rounds);
        })*
    };
}

counted! {
    counted_with_large_blocks = "4k";
    counted_with_small_blocks = "1k";
    counted_with_clusters = "bigalloc";
    counted_with_inline_data = "inline";
    counted_with_values_in_inodes = "ea_inode";
    counted_with_pointers = "pointers";
    counted_without_a_journal = "no journal";
    counted_by_user_only = "users only";
}

/// mke2fs ends the files within their first block, which has room for more records.
#[test]
fn records_behind_the_end_of_a_file_extend_it() {
    for size in ["16384", "65536"] {
        let image = Image::mke2fs(256 << 20, &["-t", "ext4", "-b", size, "-O", "quota,project"]);
        let fs = open(&image);
        let root = fs.root().expect("root");
        for uid in 1..4 {
            create(&fs, uid * 70_000, &root, &format!("f{uid}")).expect("create");
        }
        drop(root);
        fs.unmount().expect("unmount");
        e2fsck::check(image.path()).assert_clean();
    }
}

#[test]
fn reported_usage_equals_the_sum_of_the_inodes() {
    let image = small();
    let fs = open(&image);
    let mut work = mix(&fs, 5);
    work.steps(500);
    work.held.clear();
    drop(work);
    fs.sync().expect("sync");
    let sums = sums(&fs);
    for kind in QuotaKind::ALL {
        for record in fs.quotas(kind).expect("quotas") {
            let expected = sums.get(&(kind, record.id)).copied().unwrap_or_default();
            assert_eq!((record.space, record.inodes), expected, "{kind:?} {}", record.id);
        }
    }
    assert!(
        sums.keys().all(|(kind, id)| fs
            .quotas(*kind)
            .expect("quotas")
            .iter()
            .any(|record| record.id == *id))
    );
    fs.unmount().expect("unmount");
    image.assert_clean();
}

#[test]
fn images_of_our_own_have_quotas() {
    for (features, extended) in [
        ("quota,project", "root_owner=1000:100"),
        ("quota", "quotatype=grpquota"),
        ("quota,^extent,^64bit,^orphan_file", "quotatype=usrquota:grpquota"),
    ] {
        for block_size in [1024, 4096] {
            let image = Image::blank(32 << 20);
            let mut options =
                extant_engine::mkfs::Options { block_size: Some(block_size), ..Default::default() };
            options.apply_features(features).expect(features);
            options.apply_extended(extended).expect(extended);
            let device = OpenOptions::new().device(image.path()).expect("device");
            extant_engine::mkfs::make(&*device, &options).expect("mkfs");
            drop(device);
            image.assert_clean();
            let fs = open(&image);
            mix(&fs, 1).steps(150);
            fs.unmount().expect("unmount");
            image.assert_clean();
        }
    }
}

#[test]
fn many_owners_make_the_file_grow() {
    for args in [KINDS[0].1, KINDS[1].1] {
        let image = Image::mke2fs(64 << 20, args);
        let fs = open(&image);
        let root = fs.root().expect("root");
        let ids: Vec<u32> = (0..400).map(|n: u32| n.wrapping_mul(0x9E37_79B1)).collect();
        for id in &ids {
            fs.create_as(
                &Caller { uid: *id, gid: 1, ..Caller::default() },
                (&root, format!("{id}").as_bytes()),
                0o600,
                NodeKind::File,
            )
            .expect("create");
        }
        fs.unmount().expect("unmount");
        image.assert_clean();
        let fs = open(&image);
        let found = fs.quotas(QuotaKind::User).expect("quotas");
        let wanted: std::collections::BTreeSet<u32> = ids.iter().copied().collect();
        assert_eq!(
            found.iter().map(|record| record.id).collect::<std::collections::BTreeSet<_>>(),
            wanted
        );
        assert!(found.iter().all(|record| record.inodes == if record.id == 0 { 3 } else { 1 }));
        let root = fs.root().expect("root");
        ids.iter().for_each(|id| fs.unlink(&root, format!("{id}").as_bytes()).expect("unlink"));
        fs.unmount().expect("unmount");
        image.assert_clean();
    }
}

#[test]
fn space_is_limited_however_it_is_taken() {
    let image = small();
    let fs = open(&image);
    let root = fs.root().expect("root");
    fs.set_quota(QuotaKind::User, 5, block_limits(1024, 0)).expect("limits");
    let node = create(&fs, 5, &root, "pages").expect("create");
    let mut file = writer(&fs, &node, false);
    // None of it is booked yet: reservations count.
    assert_eq!(file.write_at(0, &vec![1; 900 << 10]).expect("below"), 900 << 10);
    let done = file.write_at(900 << 10, &vec![1; 900 << 10]).expect("part of it");
    assert!(done <= 124 << 10, "{done}");
    is_quota(file.write_at(2 << 20, &vec![1; 512 << 10]));
    file.sync().expect("accepted data are written");
    let used = fs.quota(QuotaKind::User, 5).expect("quota").space;
    assert!(used > 900 << 10 && used <= 1024 << 10, "{used}");
    is_quota(fs.set_xattr(&node, b"user.large", &[1; 3000], XattrMode::Any));
    assert!(fs.get_xattr(&node, b"user.large").expect_err("not set").is(Errno::NoData));
    // Overwriting costs nothing.
    assert_eq!(file.write_at(0, &vec![2; 500 << 10]).expect("overwrite"), 500 << 10);
    file.set_len(0).expect("truncate");
    let direct = writer(&fs, &node, true);
    assert_eq!(direct.write_at(0, &vec![3; 512 << 10]).expect("direct"), 512 << 10);
    is_quota(direct.write_at(512 << 10, &vec![3; 600 << 10]));
    is_quota(file.allocate(Falloc::KeepSize, 0, 4 << 20));
    let used = fs.quota(QuotaKind::User, 5).expect("quota").space;
    assert!(used <= 1024 << 10, "{used}");
    file.set_rights(SpaceRights { ignore_limits: true, use_reserve: false });
    file.write_at(2 << 20, &vec![1; 2 << 20]).expect("without limits");
    file.sync().expect("sync");
    assert!(fs.quota(QuotaKind::User, 5).expect("quota").space > 2 << 20);
    drop((file, direct));
    fs.unlink(&root, b"pages").expect("unlink");
    fs.sync().expect("sync");
    assert_eq!(fs.quota(QuotaKind::User, 5).expect("quota").space, 0);
    fs.unmount().expect("unmount");
    image.assert_clean();
}

#[test]
fn inodes_are_limited() {
    let image = small();
    let fs = open(&image);
    let root = fs.root().expect("root");
    fs.set_quota(QuotaKind::Group, 107, QuotaLimits { inode_hard: 3, ..Default::default() })
        .expect("limits");
    for n in 0..3 {
        create(&fs, 7, &root, &format!("{n}")).expect("within the limit");
    }
    is_quota(create(&fs, 7, &root, "more"));
    assert!(fs.lookup(&root, b"more").expect_err("not made").is(Errno::NoEnt));
    // A stranger's file cannot be given to the group either.
    let other = create(&fs, 8, &root, "other").expect("another group");
    is_quota(fs.set_attr(&other, &SetAttr { gid: Some(107), ..SetAttr::default() }));
    assert_eq!(other.attr().gid, 108);
    fs.unlink(&root, b"0").expect("unlink");
    fs.set_attr(&other, &SetAttr { gid: Some(107), ..SetAttr::default() }).expect("there is room");
    fs.unmount().expect("unmount");
    image.assert_clean();
    let fs = open(&image);
    let record = fs.quota(QuotaKind::Group, 107).expect("quota");
    assert_eq!((record.inodes, record.limits.inode_hard), (3, 3));
    is_quota(create(&fs, 7, &fs.root().expect("root"), "more"));
    fs.unmount().expect("unmount");
}

#[derive(Debug)]
struct Hand(AtomicI64);

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        Timestamp { sec: self.0.load(Ordering::Relaxed), nsec: 0 }
    }
}

#[test]
fn soft_limits_hold_after_their_grace() {
    let image = small();
    let clock = Arc::new(Hand(AtomicI64::new(1_900_000_000)));
    let fs = Fs::open(image.path(), &OpenOptions::new().clock(clock.clone())).expect("open");
    let root = fs.root().expect("root");
    fs.set_quota(QuotaKind::User, 9, block_limits(0, 64)).expect("limits");
    fs.set_quota_grace(QuotaKind::User, (1000, 2000)).expect("grace");
    let node = create(&fs, 9, &root, "f").expect("create");
    let file = writer(&fs, &node, false);
    file.write_at(0, &vec![1; 128 << 10]).expect("grace begins");
    clock.0.fetch_add(999, Ordering::Relaxed);
    file.write_at(128 << 10, &[1; 4096]).expect("grace lasts");
    clock.0.fetch_add(1, Ordering::Relaxed);
    is_quota(file.write_at(256 << 10, &[1; 4096]));
    file.set_len(4096).expect("truncate");
    file.write_at(0, &[1; 8192]).expect("below the limit");
    drop(file);
    fs.unmount().expect("unmount");
    let fs = open(&image);
    assert_eq!(fs.quota_grace(QuotaKind::User).expect("grace"), (1000, 2000));
    assert_eq!(fs.quota_grace(QuotaKind::Group).expect("grace"), (604_800, 604_800));
    fs.unmount().expect("unmount");
    image.assert_clean();
}

/// The end of the grace periods is in the file, for space and for inodes.
#[test]
fn grace_periods_survive_a_remount() {
    const BEGIN: i64 = 1_700_000_000;
    let image = small();
    let clock = Arc::new(Hand(AtomicI64::new(BEGIN)));
    let at = |second: i64| clock.0.store(BEGIN + second, Ordering::Relaxed);
    let open = || Fs::open(image.path(), &OpenOptions::new().clock(clock.clone())).expect("open");
    let fs = open();
    fs.set_quota_grace(QuotaKind::User, (1000, 2000)).expect("grace");
    let soft = QuotaLimits { block_soft: 64, inode_soft: 1, ..QuotaLimits::default() };
    fs.set_quota(QuotaKind::User, 9, soft).expect("limits");
    let root = fs.root().expect("root");
    let node = create(&fs, 9, &root, "f").expect("create");
    writer(&fs, &node, true).write_at(0, &vec![1; 128 << 10]).expect("grace begins");
    at(100);
    create(&fs, 9, &root, "g").expect("grace of inodes begins");
    drop((node, root));
    fs.unmount().expect("unmount");
    image.assert_clean();
    at(500);
    let fs = open();
    let root = fs.root().expect("root");
    let record = fs.quota(QuotaKind::User, 9).expect("quota");
    assert_eq!((record.block_time, record.inode_time), (BEGIN as u64 + 1000, BEGIN as u64 + 2100));
    let file = writer(&fs, &fs.lookup(&root, b"f").expect("f"), true);
    at(999);
    file.write_at(128 << 10, &[1; 4096]).expect("grace lasts");
    at(1000);
    is_quota(file.write_at(256 << 10, &[1; 4096]));
    at(2099);
    create(&fs, 9, &root, "h").expect("that of inodes lasts longer");
    at(2100);
    is_quota(create(&fs, 9, &root, "i"));
    drop((file, root));
    fs.unmount().expect("unmount");
    image.assert_clean();
}

/// A reservation for data of a file that are not written yet moves to the new owner of the file.
#[test]
fn reservations_move_to_the_new_owner() {
    let image = small();
    let fs = open(&image);
    let root = fs.root().expect("root");
    for (uid, hard) in [(5, 1024), (6, 1024), (7, 512)] {
        fs.set_quota(QuotaKind::User, uid, block_limits(hard, 0)).expect("limits");
    }
    let write = |uid: u32, name: &str| {
        let node = create(&fs, uid, &root, name).expect(name);
        let file = writer(&fs, &node, false);
        (file.write_at(0, &vec![1; 900 << 10]).expect(name), node, file)
    };
    let give = |node: &Node, uid: u32| {
        fs.set_attr(node, &SetAttr { uid: Some(uid), ..SetAttr::default() })
    };
    let (done, node, first) = write(5, "a");
    assert_eq!(done, 900 << 10);
    is_quota(give(&node, 7));
    give(&node, 6).expect("there is room");
    let (done, _, second) = write(5, "b");
    assert_eq!(done, 900 << 10, "the old owner has the whole limit again");
    let (done, _, third) = write(6, "c");
    assert!(done <= 124 << 10, "the new owner has so much less: {done}");
    [&first, &second, &third].iter().for_each(|file| file.sync().expect("sync"));
    for (uid, most) in [(5, 904 << 10), (6, 1024 << 10)] {
        let used = fs.quota(QuotaKind::User, uid).expect("quota").space;
        assert!(used >= 900 << 10 && used <= most, "{uid}: {used}");
    }
    drop((node, root, first, second, third));
    fs.unmount().expect("unmount");
    image.assert_clean();
}

#[test]
fn limits_are_exact_among_many_threads() {
    let image = small();
    let fs = open(&image);
    let root = fs.root().expect("root");
    fs.set_quota(
        QuotaKind::User,
        3,
        QuotaLimits { block_hard: 2048, inode_hard: 40, ..Default::default() },
    )
    .expect("limits");
    let made: u64 = std::thread::scope(|scope| {
        let work = |t: u64| {
            let (fs, root) = (&fs, &root);
            move || {
                let mut made = 0;
                for n in 0..30 {
                    let Ok(node) = create(fs, 3, root, &format!("{t}-{n}")) else { continue };
                    made += 1;
                    let _ = writer(fs, &node, n % 2 == 0).write_at(0, &vec![1; 100_000]);
                }
                made
            }
        };
        let threads: Vec<_> = (0..4).map(|t| scope.spawn(work(t))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
    });
    fs.sync().expect("sync");
    let record = fs.quota(QuotaKind::User, 3).expect("quota");
    assert_eq!((record.inodes, made), (40, 40));
    assert!(record.space <= 2048 << 10, "{}", record.space);
    fs.unmount().expect("unmount");
    image.assert_clean();
}

/// Quota files and the orphan file have no names, and lookups of their numbers fail, reserved or
/// not.
#[test]
fn hidden_files_are_hidden() {
    let image = small();
    let fs = open(&image);
    let sb = fs.superblock();
    let hidden = [3, 4, sb.prj_quota_inum().0, sb.orphan_file_inum().0].map(u64::from);
    assert!(hidden[2..].iter().all(|ino| *ino > 11), "{hidden:?}");
    for ino in hidden {
        assert!(fs.node(ino).is_err(), "{ino}");
    }
    let mut todo = vec![fs.root().expect("root")];
    while let Some(dir) = todo.pop() {
        for entry in fs.read_dir(&dir).expect("readdir") {
            assert!(!hidden.contains(&entry.ino), "{entry:?}");
            if entry.ftype == extant_engine::FileType::Directory
                && entry.name != b"."
                && entry.name != b".."
            {
                todo.push(fs.lookup(&dir, &entry.name).expect("lookup"));
            }
        }
    }
    fs.unmount().expect("unmount");
}

/// A released file without a name does not count against its owner's next write.
#[test]
fn a_released_orphan_is_not_charged() {
    let image = small();
    let fs = open(&image);
    let root = fs.root().expect("root");
    create(&fs, 5, &root, "first").expect("create");
    fs.set_quota(QuotaKind::User, 5, block_limits(4096, 0)).expect("limits");
    for round in 0..30 {
        let node = create(&fs, 5, &root, "f").expect("create");
        let file = writer(&fs, &node, round % 2 == 0);
        file.write_at(0, &vec![1; 3 << 20]).unwrap_or_else(|e| panic!("round {round}: {e}"));
        // Some of it was never more than promised.
        if round % 3 > 0 {
            file.sync().expect("sync");
        }
        fs.unlink(&root, b"f").expect("unlink");
    }
    drop(root);
    fs.unmount().expect("unmount");
    image.assert_clean();
}
