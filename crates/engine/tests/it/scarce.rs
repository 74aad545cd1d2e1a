//! Space runs out at each allocation of each operation: the file system is full except for `n`
//! blocks, with `n` one higher each time, until the operation succeeds. A failed operation has
//! changed nothing, accepted data are kept, and all counts are right.

use crate::crash::{
    BIGALLOC, Copy, EXT2, EXT3, EXT4, INLINE, PageDevice, Pages, QUOTA, Setup, seen, setup,
};
use extant_engine::{
    Caller, Errno, Falloc, File, Follow, Fs, Node, NodeKind, OpenFlags, OpenOptions, RenameFlags,
    Result, SetAttr, XattrMode,
};
use extant_testkit::tree::Manifest;
use extant_testkit::{Scratch, e2fsck};
use std::sync::Arc;

/// Files of one block each, whose removal makes space.
const SPARE: u32 = 150;

/// Few inodes, so that they end before the blocks.
const FEW_INODES: Setup = setup(
    "few inodes",
    &["-t", "ext4", "-b", "1024", "-N", "48", "-O", "orphan_file,ea_inode", "-J", "size=1"],
);

/// As many, counted by their owners.
const FEW_INODES_COUNTED: Setup = Setup {
    kernel: false,
    ..setup(
        "few inodes and quotas",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-N",
            "48",
            "-O",
            "quota,project,orphan_file,ea_inode",
            "-J",
            "size=1",
        ],
    )
};

/// Does the n-th part of an operation; `None` behind the last.
type Steps = fn(&Fs, u32) -> Option<Result<()>>;

/// An operation, with whether each of its parts is atomic.
struct Operation {
    name: &'static str,
    whole: bool,
    steps: Steps,
}

const fn whole(name: &'static str, steps: Steps) -> Operation {
    Operation { name, whole: true, steps }
}

/// Operations that may be done in part.
const fn in_part(name: &'static str, steps: Steps) -> Operation {
    Operation { name, whole: false, steps }
}

const OPERATIONS: [Operation; 16] = [
    whole("create", |fs, n| {
        (n < 6).then(|| fs.create(&at(fs, "/d/names")?, &long(n), 0o644, NodeKind::File).map(drop))
    }),
    whole("mkdir", |fs, n| {
        (n < 3).then(|| fs.create(&at(fs, "/d/names")?, &long(n), 0o755, NodeKind::Dir).map(drop))
    }),
    whole("symlink", |fs, n| {
        (n < 2).then(|| {
            fs.create(&at(fs, "/d")?, &long(n), 0o777, NodeKind::Symlink(&[b't'; 300])).map(drop)
        })
    }),
    whole("link", |fs, n| {
        (n < 6).then(|| fs.link(&at(fs, "/d/f")?, &at(fs, "/d/names")?, &long(n)))
    }),
    whole("rename", |fs, n| {
        let from = format!("r{n}");
        (n < 6).then(|| {
            fs.rename(
                (&at(fs, "/d")?, from.as_bytes()),
                (&at(fs, "/d/names")?, &long(n)),
                RenameFlags::empty(),
            )
        })
    }),
    whole("a name for a file without one", |fs, n| (n < 6).then(|| named_late(fs, n))),
    whole("attributes", |fs, n| {
        let path = ["/d/f", "/d/g", "/d/tiny"].get(n as usize)?;
        Some(at(fs, path).and_then(|node| {
            fs.set_xattr(&node, b"user.long", &vec![n as u8; 700], XattrMode::Any)
        }))
    }),
    whole("a long attribute", |fs, n| {
        (n < 1).then(|| fs.set_xattr(&at(fs, "/d/f")?, b"user.longer", &[3; 3000], XattrMode::Any))
    }),
    whole("another owner", |fs, n| {
        let owner =
            SetAttr { uid: Some(70_000 + n * 3000), gid: Some(90_000 + n), ..Default::default() };
        (n < 4).then(|| fs.set_attr(&at(fs, "/d/g")?, &owner).map(drop))
    }),
    whole("rename that leaves a whiteout", |fs, n| {
        let from = format!("r{n}");
        (n < 6).then(|| {
            fs.rename(
                (&at(fs, "/d")?, from.as_bytes()),
                (&at(fs, "/d/names")?, &long(n)),
                RenameFlags::WHITEOUT,
            )
        })
    }),
    in_part("write", |fs, n| {
        (n < 4)
            .then(|| open(fs, "/d/f")?.write_at(3000 + u64::from(n) * 7000, &[8; 5000]).map(drop))
    }),
    in_part("write past the pages", |fs, n| {
        (n < 3).then(|| {
            fs.write_direct(&at(fs, "/d/g")?, u64::from(n) * 16_384, &[9; 8192], false).map(drop)
        })
    }),
    in_part("write here and there", |fs, n| {
        (n < 5).then(|| {
            open(fs, "/d/pieces")?.write_at(400_000 + u64::from(n) * 50_000, &[7; 900]).map(drop)
        })
    }),
    in_part("content that leaves the inode", |fs, n| {
        (n < 2).then(|| open(fs, "/d/tiny")?.write_at(u64::from(n) * 3000, &[6; 3000]).map(drop))
    }),
    in_part("allocate", |fs, n| {
        (n < 2).then(|| {
            open(fs, "/d/f")?.allocate(Falloc::KeepSize, 100_000 + u64::from(n) * 50_000, 9000)
        })
    }),
    in_part("holes", |fs, n| {
        let how = [Falloc::Punch, Falloc::ZeroKeepSize, Falloc::Insert].get(n as usize)?;
        Some(
            open(fs, "/d/whole")
                .and_then(|file| file.allocate(*how, 8192 + u64::from(n) * 8192, 4096)),
        )
    }),
];

/// Operations that allocate an inode.
const TAKES_INODE: [usize; 5] = [0, 1, 2, 5, 9];

/// The reserve for root is no reserve here, so that content and the rest compete for the same
/// blocks.
fn options(setup: Setup) -> OpenOptions {
    setup.options().use_reserve(true)
}

fn at(fs: &Fs, path: &str) -> Result<Node> {
    fs.resolve(path, Follow::No)
}

fn open(fs: &Fs, path: &str) -> Result<File> {
    fs.open_file(&at(fs, path)?, OpenFlags { write: true, ..Default::default() })
}

/// A name of which four fill a block of 1 KiB.
fn long(n: u32) -> Vec<u8> {
    format!("{n}{}", "x".repeat(200)).into_bytes()
}

fn named_late(fs: &Fs, n: u32) -> Result<()> {
    let dir = at(fs, "/d/names")?;
    let node = fs.create_nameless(&Caller::default(), &dir, 0o600)?;
    let linked = fs.link(&node, &dir, &long(n));
    fs.release(&node, 1);
    linked
}

fn file(fs: &Fs, path: &str, pieces: &[(u64, usize)]) -> Result<()> {
    let (dir, name) = fs.resolve_parent(path.as_bytes())?;
    let node = fs.create(&dir, name, 0o644, NodeKind::File)?;
    let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() })?;
    pieces.iter().try_for_each(|(offset, len)| file.write_at(*offset, &vec![5; *len]).map(drop))
}

fn is_full(result: &Result<()>) -> bool {
    result.as_ref().is_err_and(|e| e.is(Errno::NoSpc))
}

/// Creates the files that the operations use.
fn prepare(fs: &Fs) -> Result<()> {
    let root = fs.root()?;
    let dir = fs.create(&root, b"d", 0o755, NodeKind::Dir)?;
    for name in ["names", "hogs", "spare"] {
        fs.create(&dir, name.as_bytes(), 0o755, NodeKind::Dir)?;
    }
    file(fs, "/d/f", &[(0, 2500)])?;
    file(fs, "/d/g", &[(0, 10)])?;
    file(fs, "/d/tiny", &[(0, 20)])?;
    // A map that fills the inode.
    file(fs, "/d/pieces", &[(0, 900), (50_000, 900), (100_000, 900), (150_000, 900)])?;
    file(fs, "/d/whole", &[(0, 60_000)])?;
    (0..6).try_for_each(|n| file(fs, &format!("/d/r{n}"), &[]))
}

/// Returns a file system that is full except for the reserve of writeback, with files of one block.
fn full(setup: Setup) -> Pages {
    let device = Arc::new(PageDevice::new(setup.pages()));
    let fs = Fs::open_device(device.clone(), &options(setup)).expect("opens");
    prepare(&fs).expect(setup.name);
    (0..SPARE)
        .for_each(|n| file(&fs, &format!("/d/spare/{n}"), &[(0, 300)]).expect("a small file"));
    fs.sync().expect("sync");
    file(&fs, "/d/ballast", &[]).expect("a file");
    let ballast = open(&fs, "/d/ballast").expect("opens");
    for len in [1 << 16, 1 << 10] {
        while ballast.write_at(ballast.len(), &vec![4; len]).is_ok_and(|written| written == len) {}
    }
    ballast.sync().expect("accepted data are kept");
    drop(ballast);
    let hogs = at(&fs, "/d/hogs").expect("hogs");
    let full = (0..)
        .map(|n| fs.create(&hogs, format!("{n}").as_bytes(), 0o755, NodeKind::Dir).map(drop))
        .find(Result::is_err);
    assert!(is_full(&full.expect("an end")), "{}", setup.name);
    drop(hogs);
    fs.unmount().expect("unmount");
    device.pages()
}

/// Runs an operation with `room` free blocks. Returns the number of its parts that lacked space.
fn lacks(base: &Pages, setup: Setup, operation: &Operation, room: u32, copy: &mut Copy) -> u32 {
    let what = format!("{} on {} with room for {room}", operation.name, setup.name);
    let device = Arc::new(PageDevice::new(base.clone()));
    let fs = Fs::open_device(device.clone(), &options(setup)).expect(&what);
    let spare = at(&fs, "/d/spare").expect(&what);
    (0..room).for_each(|n| fs.unlink(&spare, format!("{n}").as_bytes()).expect(&what));
    drop(spare);
    fs.sync().expect(&what);
    let (mut undone, mut n) = (0, 0);
    let mut before = operation.whole.then(|| look(&fs, &what));
    while let Some(result) = (operation.steps)(&fs, n) {
        n += 1;
        let after = operation.whole.then(|| look(&fs, &what));
        match result {
            Ok(()) => {}
            Err(e) if e.is(Errno::OpNotSupp) => return 0,
            Err(e) => {
                assert!(e.is(Errno::NoSpc), "{what}: {e}");
                undone += 1;
                if let (Some(before), Some(after)) = (&before, &after) {
                    assert!(before.diff(after).is_empty(), "{what}: {:?}", before.diff(after));
                }
            }
        }
        before = after;
    }
    let held = before.unwrap_or_else(|| look(&fs, &what));
    fs.sync().unwrap_or_else(|e| panic!("{what}: accepted data are lost: {e}"));
    assert_kept((fs, &device, setup), &held, copy, undone, &what);
    undone
}

fn look(fs: &Fs, what: &str) -> Manifest {
    seen(fs, false).unwrap_or_else(|e| panic!("{what}: {e}"))
}

/// Verifies that existing files stay, the image is sound, and the free space equals the reported
/// one.
fn assert_kept(
    (fs, device, setup): (Fs, &PageDevice, Setup),
    held: &Manifest,
    copy: &mut Copy,
    undone: u32,
    what: &str,
) {
    let usage = fs.usage();
    fs.unmount().expect(what);
    let verdict = e2fsck::check(copy.put(&device.pages()));
    assert!(verdict.is_clean(), "{what}: {verdict:?}");
    let after = Arc::new(PageDevice::new(device.pages()));
    let fs = Fs::open_device(after, &setup.options().read_only(true)).expect(what);
    let found = fs.usage();
    // The reaper frees files that were created and not named, at the latest at unmount.
    let unnamed = found.inodes_free.checked_sub(usage.inodes_free);
    assert!(
        unnamed.is_some_and(|count| count <= undone.into()),
        "{what}: {usage:?}, then {found:?}"
    );
    assert!(
        found.free == usage.free || undone > 0 && found.free > usage.free,
        "{what}: {usage:?}, then {found:?}"
    );
    let found = look(&fs, what);
    assert!(held.diff(&found).is_empty(), "{what}: {:?}", held.diff(&found));
}

/// Runs an operation with one more free block each time, until nothing lacks space. Skips some
/// numbers where many more blocks change nothing. Returns the number of failures, or `None` if the
/// last run still lacked space.
fn each_lack(mut lacks: impl FnMut(u32) -> u32) -> Option<u32> {
    const FAR: u32 = 9;
    let (mut room, mut times) = (0, 0);
    while room < SPARE {
        match lacks(room) {
            0 => return Some(times),
            undone if room + FAR < SPARE && lacks(room + FAR) == undone => room += FAR - 2,
            _ => room += 1,
        }
        times += 1;
    }
    None
}

#[test]
fn space_runs_out_at_each_allocation() {
    let scratch = Scratch::new();
    let mut copy = Copy::new(scratch.join("after"));
    let mut failures = 0;
    for setup in [EXT4, EXT3, BIGALLOC, INLINE, QUOTA, EXT2] {
        let base = full(setup);
        // A long attribute needs an attribute inode, which some file systems cannot store.
        let possible =
            |operation: &&Operation| setup == INLINE || operation.name != "a long attribute";
        for operation in OPERATIONS.iter().filter(possible) {
            let lacking = each_lack(|room| lacks(&base, setup, operation, room, &mut copy));
            let lacking = lacking.unwrap_or_else(|| {
                panic!("{} on {}: there is never enough", operation.name, setup.name)
            });
            failures += lacking;
        }
    }
    println!("{failures} times too little");
    assert!(failures > 100, "{failures} times too little");
}

#[test]
fn inodes_run_out_at_each_operation() {
    let scratch = Scratch::new();
    let mut copy = Copy::new(scratch.join("after"));
    [FEW_INODES, FEW_INODES_COUNTED].into_iter().for_each(|setup| inodes_run_out(setup, &mut copy));
}

fn inodes_run_out(setup: Setup, copy: &mut Copy) {
    let device = Arc::new(PageDevice::new(setup.pages()));
    let fs = Fs::open_device(device.clone(), &options(setup)).unwrap();
    prepare(&fs).unwrap();
    let last = (0..).find(|n| is_full(&file(&fs, &format!("/d/spare/{n}"), &[]))).unwrap();
    assert_eq!((fs.usage().inodes_free, last > 6), (0, true));
    fs.unmount().unwrap();
    let base = device.pages();
    for operation in TAKES_INODE.map(|nr| &OPERATIONS[nr]) {
        let lacking =
            (0..last).take_while(|room| lacks(&base, setup, operation, *room, copy) > 0).count();
        let name = (operation.name, setup.name);
        assert!((1..last as usize).contains(&lacking), "{name:?}: {lacking} times too few inodes");
    }
}

/// Every kind of change on the smallest log, with few and with many groups: none needs more credits
/// than the log grants.
#[test]
fn the_smallest_log_has_room_for_each_operation() {
    const KINDS: [(&str, &str); 3] = [("ext3", ""), ("ext4", ""), ("ext4", ",bigalloc")];
    for (kind, features) in KINDS {
        for (groups, per_group) in [(8u64, 2048u64), (128, 256), (128, 8192), (2048, 256)] {
            // Groups of clusters cannot be as small.
            let per_group =
                if features.is_empty() || per_group > 4096 { per_group } else { per_group * 16 };
            let what = format!("{kind}{features}, {groups} groups");
            let features = format!("^resize_inode{features}");
            let size = per_group.to_string();
            let per = if features.contains("bigalloc") { "-G" } else { "-g" };
            let per_value = if features.contains("bigalloc") { "16" } else { size.as_str() };
            let args = [
                "-t", kind, "-b", "1024", "-O", &features, per, per_value, "-J", "size=1", "-N",
                "4096",
            ];
            let image = extant_testkit::image::Image::mke2fs((groups * per_group) << 10, &args);
            let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
            change_everything(&fs, &what);
            fs.unmount().unwrap();
            image.assert_clean();
            Fs::open(image.path(), &OpenOptions::new()).unwrap().unmount().unwrap();
        }
    }
}

fn change_everything(fs: &Fs, what: &str) {
    let root = fs.root().unwrap();
    let node = fs.create(&root, b"file", 0o644, NodeKind::File).unwrap();
    let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).unwrap();
    // Five pieces far from each other, one of them long.
    for (at, len) in
        [(0, 9000), (100 << 20, 5000), (200 << 20, 5000), (300 << 20, 3 << 20), (400 << 20, 5000)]
    {
        assert_eq!(file.write_at(at, &vec![7; len]).unwrap(), len, "{what}");
        file.sync().unwrap_or_else(|e| panic!("{what}, a write at {at}: {e}"));
    }
    fs.write_direct(&node, 500 << 20, &vec![7; 1 << 20], false)
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    for (how, at, len) in [
        (Falloc::Punch, 200 << 20, 100 << 20),
        (Falloc::KeepSize, 150 << 20, 2 << 20),
        (Falloc::Zero, 300 << 20, 1 << 20),
        (Falloc::Collapse, 16 << 10, 16 << 10),
        (Falloc::Insert, 32 << 10, 16 << 10),
    ] {
        match file.allocate(how, at, len) {
            Err(e) if e.is(Errno::OpNotSupp) => {}
            done => done.unwrap_or_else(|e| panic!("{what}, {how:?}: {e}")),
        }
    }
    for size in [(300 << 20) + 5000, 4000] {
        file.set_len(size).unwrap_or_else(|e| panic!("{what}, cut to {size}: {e}"));
    }
    file.write_at(70 << 20, &[7; 9000]).unwrap();
    drop(file);
    let dir = fs.create(&root, b"dir", 0o755, NodeKind::Dir).unwrap();
    for n in 0..200 {
        let name = format!("{}{n}", "name".repeat(40));
        fs.link(&node, &dir, name.as_bytes()).unwrap_or_else(|e| panic!("{what}, link {n}: {e}"));
    }
    for n in 0..200 {
        let name = format!("{}{n}", "name".repeat(40));
        fs.unlink(&dir, name.as_bytes()).unwrap_or_else(|e| panic!("{what}, unlink {n}: {e}"));
    }
    fs.create(&root, b"link", 0o777, NodeKind::Symlink(&[b't'; 300])).unwrap();
    fs.set_xattr(&node, b"user.x", &[1; 600], XattrMode::Any).unwrap();
    fs.rename((&root, b"file"), (&dir, b"moved"), RenameFlags::empty()).unwrap();
    fs.set_attr(&node, &SetAttr { uid: Some(5), ..Default::default() }).unwrap();
    fs.unlink(&dir, b"moved").unwrap_or_else(|e| panic!("{what}, removal: {e}"));
    drop(node);
    fs.rmdir(&root, b"dir").unwrap_or_else(|e| panic!("{what}, rmdir: {e}"));
    fs.sync().unwrap_or_else(|e| panic!("{what}: {e}"));
}

/// Changes of much at a time on the smallest log: of the way of a long file's content, and of the
/// owners of many files.
#[test]
fn the_smallest_log_has_room_for_long_runs_and_many_owners() {
    for (groups, per_group) in [(8u64, "8192"), (128, "8192"), (2048, "256")] {
        let what = format!("{groups} groups");
        let args = [
            &[
                "-t", "ext4", "-b", "1024", "-g", per_group, "-G", "128", "-J", "size=1", "-N",
                "4096",
            ][..],
            &["-O", "^resize_inode,quota,project", "-E", "quotatype=usrquota"],
        ];
        let bytes = (groups * per_group.parse::<u64>().unwrap()) << 10;
        let image = extant_testkit::image::Image::mke2fs(bytes, &args.concat());
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let root = fs.root().unwrap();
        let node = fs.create(&root, b"long", 0o644, NodeKind::File).unwrap();
        let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).unwrap();
        for at in 0..40 {
            assert_eq!(file.write_at(at << 20, &[7; 1 << 20]).unwrap(), 1 << 20, "{what}");
        }
        file.sync().unwrap_or_else(|e| panic!("{what}: {e}"));
        for flags in [0x4000, 0] {
            fs.set_flags(&node, flags).unwrap_or_else(|e| panic!("{what}, flags {flags:x}: {e}"));
        }
        for owner in 0..500 {
            let who = Caller { uid: 1000 + owner * 100_000, ..Caller::default() };
            // Between the blocks of the quota file lie others.
            let name = format!("owned{owner}");
            let owned = fs.create_as(&who, (&root, name.as_bytes()), 0o644, NodeKind::Dir);
            owned.unwrap_or_else(|e| panic!("{what}, owner {owner}: {e}"));
        }
        drop((file, node));
        fs.unlink(&root, b"long").unwrap_or_else(|e| panic!("{what}: {e}"));
        drop(root);
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

/// Threads remove files and write others on a nearly full disk. There is enough space for all at
/// any time, once freed space is durable.
#[test]
fn freed_space_reaches_every_thread() {
    const THREADS: u64 = 6;
    const ROUNDS: u64 = 12;
    for (set, percent) in [("default", 88), ("ext3_1k", 85)] {
        let image = extant_testkit::FeatureSet::named(set).make_sized(32 << 20);
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let usage = fs.usage();
        let share = usage.available * u64::from(fs.block_size()) / 100 * percent / THREADS;
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let fs = &fs;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let what = format!("{set}, thread {thread}, round {round}");
                        write_and_remove(
                            fs,
                            &format!("f{thread}"),
                            share,
                            (thread + round) % 2 == 0,
                            &what,
                        );
                    }
                });
            }
        });
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

fn write_and_remove(fs: &Fs, name: &str, len: u64, direct: bool, what: &str) {
    let root = fs.root().unwrap();
    let node = fs
        .create(&root, name.as_bytes(), 0o644, NodeKind::File)
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    let file =
        fs.open_file(&node, OpenFlags { write: true, direct, ..Default::default() }).unwrap();
    let piece = vec![3; 100_000];
    let mut at = 0;
    while at < len {
        let part = &piece[..piece.len().min((len - at) as usize)];
        let written =
            file.write_at(at, part).unwrap_or_else(|e| panic!("{what}, {at} of {len} bytes: {e}"));
        assert!(written > 0, "{what}");
        at += written as u64;
    }
    drop((file, node));
    fs.unlink(&root, name.as_bytes()).unwrap_or_else(|e| panic!("{what}: {e}"));
}

/// As with blocks, so with the numbers of inodes.
#[test]
fn freed_numbers_reach_every_thread() {
    const THREADS: u64 = 6;
    const ROUNDS: usize = 40;
    let args = ["-t", "ext4", "-b", "1024", "-N", "64", "-J", "size=1"];
    let image = extant_testkit::image::Image::mke2fs(8 << 20, &args);
    let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
    let share = fs.usage().inodes_free / THREADS;
    assert!(share > 2);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let fs = &fs;
            scope.spawn(move || {
                let root = fs.root().unwrap();
                let name = |n: u64| format!("f{thread}-{n}").into_bytes();
                for round in 0..ROUNDS {
                    for n in 0..share {
                        let made = fs.create(&root, &name(n), 0o644, NodeKind::File);
                        made.unwrap_or_else(|e| {
                            panic!("thread {thread}, round {round}, {n} of {share}: {e}")
                        });
                    }
                    (0..share).for_each(|n| fs.unlink(&root, &name(n)).unwrap());
                }
            });
        }
    });
    fs.unmount().unwrap();
    image.assert_clean();
}
