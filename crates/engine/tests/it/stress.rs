//! Many threads, shared directories, every operation at random. Nothing may panic, hang or corrupt
//! the image. e2fsck checks it, and a remount shows the same tree as before.
//!
//! `EXTANT_STRESS_SEED`, `EXTANT_STRESS_SET` and `EXTANT_STRESS_OPERATIONS` repeat and prolong a
//! run; the ignored test runs one seed after the other.

use extant_engine::{
    Caller, Errno, Error, Falloc, File, FileType, Follow, Fs, Node, NodeKind, OpenFlags,
    OpenOptions, RenameFlags, Result, SetAttr, TimeSet, Timestamp, XattrMode,
};
use extant_hostile::deep::{self, Layout};
use extant_testkit::rng::Rng;
use extant_testkit::{FeatureSet, Image};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

/// Number of threads; `EXTANT_STRESS_THREADS` overrides it.
const THREADS: u64 = 6;

/// Feature sets that differ in maps, directories, attributes and journals.
const SETS: [&str; 10] = [
    "default",
    "1k",
    "orphan_file",
    "ext2_1k",
    "ext3_1k",
    "bigalloc_1k",
    "inline_data",
    "ea_inode",
    "no_journal",
    "large_dir",
];

/// Maps and indexes of several levels in one of them, others for each seed.
fn layout(set: &str, seed: u64) -> Option<Layout> {
    let layouts = [
        Layout::sparse(1),
        Layout { levels: 2, ..Layout::sparse(3) },
        Layout::full(2),
        Layout::full(3),
    ];
    (set == "large_dir").then(|| layouts[seed as usize % layouts.len()])
}

/// The errors that races with other threads, or a small file system, may cause.
const EXPECTED: [Errno; 14] = [
    Errno::NoEnt,
    Errno::Exist,
    Errno::NotEmpty,
    Errno::IsDir,
    Errno::NotDir,
    Errno::Inval,
    Errno::NoSpc,
    Errno::Stale,
    Errno::NoData,
    Errno::Nxio,
    Errno::FBig,
    Errno::Perm,
    Errno::OpNotSupp,
    Errno::Busy,
];

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// The feature sets, or the one of `EXTANT_STRESS_SET`.
fn chosen() -> Vec<String> {
    std::env::var("EXTANT_STRESS_SET")
        .map_or_else(|_| SETS.map(String::from).to_vec(), |set| vec![set])
}

/// One thread's part.
struct Worker<'a> {
    fs: &'a Fs,
    rng: Rng,
    open: Vec<File>,
    done: u64,
}

impl Worker<'_> {
    fn run(mut self, operations: u64) {
        for _ in 0..operations {
            match self.step() {
                Ok(()) => self.done += 1,
                Err(Error::Posix(e)) if EXPECTED.contains(&e) => {}
                Err(e) => panic!("{e}"),
            }
        }
        assert!(
            self.done > operations / 10,
            "nearly nothing succeeded: {} of {operations}",
            self.done
        );
    }

    /// A directory: the top, or up to three below it.
    fn dir(&mut self) -> Result<Node> {
        let mut at = self.fs.resolve("/top", Follow::Yes)?;
        for _ in 0..self.rng.below(4) {
            match self.fs.lookup(&at, &self.dir_name()) {
                Ok(next) if next.attr().ftype == FileType::Directory => at = next,
                Ok(_) => {}
                Err(e) if e.is(Errno::NoEnt) || e.is(Errno::Stale) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(at)
    }

    fn dir_name(&mut self) -> Vec<u8> {
        format!("d{}", self.rng.below(4)).into_bytes()
    }

    fn name(&mut self) -> Vec<u8> {
        match self.rng.below(10) {
            0 => self.dir_name(),
            1 => format!("{}{}", "long".repeat(40), self.rng.below(20)).into_bytes(),
            _ => format!("f{}", self.rng.below(60)).into_bytes(),
        }
    }

    fn node(&mut self) -> Result<Node> {
        let dir = self.dir()?;
        let name = self.name();
        self.fs.lookup(&dir, &name)
    }

    fn step(&mut self) -> Result<()> {
        match self.rng.below(20) {
            0..=3 => self.create(),
            4 | 5 => self.remove(),
            6 | 7 => self.rename(),
            8 => self.link(),
            9 => self.list(),
            10 | 11 => self.attributes(),
            12 => self.xattrs(),
            13 => self.open(),
            14 | 15 => self.write(),
            16 => self.read(),
            17 => self.allocate(),
            18 => self.close_or_sync(),
            _ => self.nameless(),
        }
    }

    fn create(&mut self) -> Result<()> {
        let (dir, mode) = (self.dir()?, 0o600 + self.rng.below(64) as u16);
        let name = self.name();
        let target = vec![b't'; 1 + self.rng.below(300) as usize];
        let what = match self.rng.below(8) {
            0 => NodeKind::Symlink(&target),
            1 => NodeKind::Fifo,
            2 | 3 => {
                let name = self.dir_name();
                return self.fs.create(&dir, &name, mode, NodeKind::Dir).map(drop);
            }
            _ => NodeKind::File,
        };
        let node = self.fs.create(&dir, &name, mode, what)?;
        match node.attr().ftype {
            FileType::Regular => self.keep(&node),
            _ => Ok(()),
        }
    }

    fn keep(&mut self, node: &Node) -> Result<()> {
        let flags = OpenFlags {
            write: true,
            append: self.rng.one_in(8),
            direct: self.rng.one_in(3),
            truncate: self.rng.one_in(10),
        };
        let file = self.fs.open_file(node, flags)?;
        if self.open.len() > 5 {
            let at = self.rng.below(self.open.len() as u64) as usize;
            self.open.swap_remove(at);
        }
        self.open.push(file);
        Ok(())
    }

    fn open(&mut self) -> Result<()> {
        let node = self.node()?;
        match node.attr().ftype {
            FileType::Regular => self.keep(&node),
            FileType::Symlink => self.fs.read_link(&node).map(drop),
            _ => Ok(()),
        }
    }

    fn file(&mut self) -> Option<&File> {
        let at = self.rng.below(self.open.len() as u64) as usize;
        self.open.get(at)
    }

    fn remove(&mut self) -> Result<()> {
        let dir = self.dir()?;
        if self.rng.one_in(4) {
            let name = self.dir_name();
            self.fs.rmdir(&dir, &name)
        } else {
            let name = self.name();
            self.fs.unlink(&dir, &name)
        }
    }

    fn rename(&mut self) -> Result<()> {
        let (from, to) = (self.dir()?, self.dir()?);
        let (name, new) = if self.rng.one_in(3) {
            (self.dir_name(), self.dir_name())
        } else {
            (self.name(), self.name())
        };
        let flags = match self.rng.below(8) {
            0 => RenameFlags::NOREPLACE,
            1 => RenameFlags::EXCHANGE,
            2 => RenameFlags::WHITEOUT,
            _ => RenameFlags::empty(),
        };
        self.fs.rename((&from, &name), (&to, &new), flags)
    }

    fn link(&mut self) -> Result<()> {
        let node = self.node()?;
        let (dir, name) = (self.dir()?, self.name());
        self.fs.link(&node, &dir, &name)
    }

    fn list(&mut self) -> Result<()> {
        let dir = self.dir()?;
        let mut left = self.rng.below(200);
        let cookie = if self.rng.one_in(2) { 0 } else { self.rng.next_u64() >> 1 };
        self.fs.read_dir_plus(&dir, cookie, |entry, node| {
            // A directory may be freed as soon as it is not locked: then `.` has no inode, nor has
            // `..` if the parent was removed after it.
            let is_dot = matches!(entry.name, b"." | b"..");
            if !(is_dot && node.is_none()) {
                assert_eq!(Some(u64::from(entry.ino.0)), node.map(Node::ino));
            }
            left = left.saturating_sub(1);
            left > 0
        })
    }

    fn attributes(&mut self) -> Result<()> {
        let node = self.node()?;
        let size = self.rng.one_in(3).then(|| self.rng.below(150_000));
        let time = TimeSet::At(Timestamp {
            sec: self.rng.below(1 << 33) as i64,
            nsec: self.rng.below(1_000_000_000) as u32,
        });
        let set = SetAttr {
            mode: self.rng.one_in(2).then_some(0o640),
            uid: self.rng.one_in(2).then(|| self.rng.below(1 << 20) as u32),
            size: size.filter(|_| node.attr().ftype == FileType::Regular),
            mtime: self.rng.one_in(2).then_some(time),
            ..SetAttr::default()
        };
        self.fs.set_attr(&node, &set).map(drop)
    }

    fn xattrs(&mut self) -> Result<()> {
        let node = self.node()?;
        let name = format!("trusted.a{}", self.rng.below(4));
        match self.rng.below(4) {
            0 => self.fs.remove_xattr(&node, name.as_bytes()),
            1 => self.fs.list_xattrs(&node).map(drop),
            _ => {
                // Equal values are shared between inodes.
                let len = *self.rng.pick(&[3, 40, 500, 900]);
                self.fs.set_xattr(&node, name.as_bytes(), &vec![b'v'; len], XattrMode::Any)
            }
        }
    }

    fn write(&mut self) -> Result<()> {
        let (at, len) = (self.rng.below(200_000), self.rng.below(20_000) as usize);
        let data = vec![self.rng.next_u64() as u8; len];
        let cut = self.rng.one_in(6);
        match self.file() {
            Some(file) if cut => file.set_len(at),
            Some(file) => file.write_at(at, &data).map(drop),
            None => Ok(()),
        }
    }

    fn read(&mut self) -> Result<()> {
        let (at, mut data) = (self.rng.below(200_000), vec![0; self.rng.below(50_000) as usize]);
        let Some(file) = self.file() else { return Ok(()) };
        file.read_at(at, &mut data)?;
        file.extents(0, u64::MAX, |_| true)?;
        let found = file.seek_hole(at)?;
        assert!(found >= at);
        Ok(())
    }

    fn allocate(&mut self) -> Result<()> {
        let how = *self.rng.pick(Falloc::ALL);
        let shifts = matches!(how, Falloc::Collapse | Falloc::Insert);
        let unit = if shifts { 16_384 } else { 1 };
        let (at, len) = (
            self.rng.below(200_000) / unit * unit,
            (1 + self.rng.below(60_000)).next_multiple_of(unit),
        );
        self.file().map_or(Ok(()), |file| file.allocate(how, at, len))
    }

    fn close_or_sync(&mut self) -> Result<()> {
        match self.rng.below(12) {
            0 => self.fs.sync(),
            1 => self.file().map_or(Ok(()), File::sync),
            2 => self.file().map_or(Ok(()), File::sync_data),
            3 => {
                let dir = self.dir()?;
                self.fs.sync_node(&dir, false)
            }
            _ => {
                self.open.pop();
                Ok(())
            }
        }
    }

    fn nameless(&mut self) -> Result<()> {
        let dir = self.dir()?;
        let node = self.fs.create_nameless(&Caller::default(), &dir, 0o600)?;
        let filled = self.keep(&node).and_then(|()| self.write());
        let linked = if self.rng.one_in(2) {
            let name = self.name();
            self.fs.link(&node, &dir, &name)
        } else {
            Ok(())
        };
        self.fs.release(&node, 1);
        filled.and(linked)
    }
}

/// Everything that can be seen of a tree, by path.
fn snapshot(fs: &Fs) -> BTreeMap<Vec<u8>, String> {
    let mut all = BTreeMap::new();
    let top = fs.resolve("/top", Follow::No).expect("top");
    walk(fs, &top, b"/top", &mut all);
    all
}

fn walk(fs: &Fs, dir: &Node, path: &[u8], all: &mut BTreeMap<Vec<u8>, String>) {
    for entry in fs.read_dir(dir).expect("readdir") {
        let node = fs.lookup(dir, &entry.name).expect("lookup");
        let path = [path, b"/", &entry.name].concat();
        all.insert(path.clone(), describe(fs, &node));
        if entry.ftype == FileType::Directory {
            walk(fs, &node, &path, all);
        }
    }
}

fn describe(fs: &Fs, node: &Node) -> String {
    let a = node.attr();
    let mut content = DefaultHasher::new();
    match a.ftype {
        FileType::Regular => content.write(&read(fs, node)),
        FileType::Symlink => content.write(&fs.read_link(node).expect("readlink")),
        _ => {}
    }
    let mut names = fs.list_xattrs(node).expect("listxattr");
    names.sort();
    for name in names {
        content.write(&name);
        content.write(&fs.get_xattr(node, &name).expect("getxattr"));
    }
    let content = content.finish();
    let (ino, generation, mode, nlink, uid, size, blocks, mtime) =
        (a.ino, a.generation, a.mode, a.nlink, a.uid, a.size, a.blocks, a.mtime);
    format!("{ino}/{generation} {mode:o} {nlink} {uid} {size} in {blocks} at {mtime:?} {content:x}")
}

fn read(fs: &Fs, node: &Node) -> Vec<u8> {
    let file = fs.open_file(node, OpenFlags::default()).expect("open");
    let mut data = vec![0; file.len() as usize];
    let len = file.read_at(0, &mut data).expect("read");
    assert_eq!(len, data.len());
    data
}

fn open(image: &Image, shards: usize) -> Fs {
    Fs::open(image.path(), &OpenOptions::new().shards(shards)).expect("the image opens")
}

fn free(fs: &Fs) -> (u64, u64) {
    let usage = fs.usage();
    (usage.free, usage.inodes_free)
}

fn remove_tree(fs: &Fs, dir: &Node) {
    for entry in fs.read_dir(dir).expect("readdir") {
        if entry.ftype == FileType::Directory {
            let child = fs.lookup(dir, &entry.name).expect("lookup");
            remove_tree(fs, &child);
            fs.rmdir(dir, &entry.name).expect("rmdir");
        } else {
            fs.unlink(dir, &entry.name).expect("unlink");
        }
    }
}

/// Moves the planted files to names that the workers use.
fn place_planted(fs: &Fs, root: &Node) {
    let Ok(from) = fs.lookup(root, deep::DIR.as_bytes()) else { return };
    let top = fs.lookup(root, b"top").expect("top");
    let rename = |old: String, new: String| {
        fs.rename((&from, old.as_bytes()), (&top, new.as_bytes()), RenameFlags::empty())
            .expect("rename");
    };
    (0..deep::FILES).for_each(|n| rename(format!("file{n}"), format!("f{n}")));
    rename("dir".into(), "d0".into());
    fs.rmdir(root, deep::DIR.as_bytes()).expect("rmdir");
}

/// Leaves a twentieth of a file system free.
fn fill(fs: &Fs) {
    let root = fs.root().expect("root");
    let node = fs.create(&root, b"ballast", 0o600, NodeKind::File).expect("create");
    let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect("open");
    let usage = fs.usage();
    let len = usage.available.saturating_sub(usage.blocks / 20) * u64::from(fs.block_size());
    // Maps take their part; and maps of pointers cannot be filled this way.
    if file.allocate(Falloc::KeepSize, 0, len / 100 * 99).is_err() {
        let whole = vec![1; 1 << 20];
        (0..len >> 20).for_each(|n| drop(file.write_at(n << 20, &whole)));
    }
}

/// Runs one seed on a file system whose threads share structures in `shards` parts, 0 for as many
/// as processors.
fn stress(set: &str, seed: u64, operations: u64, shards: usize) {
    // Every third time the space ends, soon or at once.
    let scarce = seed.is_multiple_of(3);
    let image = FeatureSet::named(set).make_sized(if scarce && seed.is_multiple_of(2) {
        12 << 20
    } else {
        40 << 20
    });
    let mut fs = open(&image, shards);
    let before = free(&fs);
    if let Some(layout) = layout(set, seed) {
        fs.unmount().expect("unmount");
        std::fs::write(image.path(), layout.plant(&image.bytes())).expect("an image");
        fs = open(&image, shards);
    }
    let root = fs.root().expect("root");
    fs.create(&root, b"top", 0o755, NodeKind::Dir).expect("mkdir");
    place_planted(&fs, &root);
    if scarce && !seed.is_multiple_of(2) {
        fill(&fs);
    }
    let threads = from_env("EXTANT_STRESS_THREADS", THREADS);
    std::thread::scope(|s| {
        for t in 0..threads {
            let worker =
                Worker { fs: &fs, rng: Rng::new(seed * threads + t), open: Vec::new(), done: 0 };
            s.spawn(move || worker.run(operations));
        }
    });
    fs.sync().expect("sync");
    let there = snapshot(&fs);
    fs.unmount().expect("unmount");
    image.assert_clean();
    let fs = open(&image, shards);
    let again = snapshot(&fs);
    for (path, what) in &there {
        assert_eq!(
            again.get(path),
            Some(what),
            "{set}, seed {seed}: {:?} after a remount",
            path.escape_ascii().to_string()
        );
    }
    assert_eq!(again.len(), there.len(), "{set}, seed {seed}");
    let root = fs.root().expect("root");
    remove_tree(&fs, &root_entry(&fs, &root));
    let _ = fs.unlink(&root, b"ballast");
    fs.rmdir(&root, b"top").expect("rmdir");
    fs.unmount().expect("unmount");
    image.assert_clean();
    let fs = open(&image, shards);
    assert_eq!(free(&fs), before, "{set}, seed {seed}: all was removed, and not all is free");
    fs.unmount().expect("unmount");
}

fn root_entry(fs: &Fs, root: &Node) -> Node {
    fs.lookup(root, b"top").expect("top")
}

#[test]
fn threads_do_everything_at_once() {
    let seed = from_env("EXTANT_STRESS_SEED", 1);
    for set in chosen() {
        for seed in [seed, seed + 2] {
            stress(&set, seed, from_env("EXTANT_STRESS_OPERATIONS", 400), 0);
        }
    }
}

/// All threads use the same part of each structure, or each thread a part of its own, as with 128
/// processors.
#[test]
fn threads_share_everything_or_nothing() {
    for (set, shards) in [("default", 1), ("default", 128), ("orphan_file", 1), ("1k", 128)] {
        stress(set, 1, from_env("EXTANT_STRESS_OPERATIONS", 400), shards);
    }
}

#[test]
fn the_number_of_shards_is_a_power_of_two_up_to_128() {
    let image = FeatureSet::named("default").make();
    let shards = |asked| {
        let fs = open(&image, asked);
        let shards = fs.stats().shards;
        fs.unmount().expect("unmount");
        shards
    };
    assert_eq!([1, 2, 5, 128, 129, usize::MAX].map(shards), [1, 2, 8, 128, 128, 128]);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(shards(0), processors.next_power_of_two().min(128));
}

#[test]
#[ignore = "runs until it is stopped, or EXTANT_STRESS_ROUNDS is reached"]
fn soak() {
    let first = from_env("EXTANT_STRESS_SEED", 100);
    for seed in first..first + from_env("EXTANT_STRESS_ROUNDS", u64::MAX / 2) {
        for set in chosen() {
            eprintln!("stress: {set}, seed {seed}");
            // A part of each structure for all threads, for each thread, or for each processor.
            let shards = [0, 1, 128][seed as usize % 3];
            stress(&set, seed, from_env("EXTANT_STRESS_OPERATIONS", 2000), shards);
        }
    }
}
