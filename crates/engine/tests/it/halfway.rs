//! Operations that fail halfway, on devices and images of any kind: changes become durable as a
//! whole or not at all, and existing content stays.

use extant_blocks::{Fault, FaultDevice, Op};
use extant_engine::{
    Caller, Clock, Errno, Error, Falloc, File, Follow, Fs, Node, NodeKind, OpenFlags, OpenOptions,
    RenameFlags, SetAttr, Timestamp, XattrMode,
};
use extant_hostile::deep::{self, Layout};
use extant_testkit::Memory;
use extant_testkit::image::{FeatureSet, Image};
use extant_testkit::kernel::Mount;
use extant_testkit::{debugfs, dumpe2fs, e2fsck};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

/// Nothing is written unasked.
fn options() -> OpenOptions {
    OpenOptions::new().memory(64 << 20).commit_interval(Duration::from_secs(1000))
}

fn make(fs: &Fs, dir: &Node, name: &str, what: NodeKind<'_>) -> Node {
    fs.create(dir, name.as_bytes(), 0o755, what).expect(name)
}

fn open_file(fs: &Fs, node: &Node) -> File {
    fs.open_file(node, OpenFlags { write: true, ..Default::default() }).expect("a file")
}

fn read_all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.len() as usize];
    assert_eq!(file.read_at(0, &mut bytes).expect("readable"), bytes.len());
    bytes
}

fn image_of(bytes: &[u8]) -> Image {
    let image = Image::blank(0);
    std::fs::write(image.path(), bytes).expect("an image");
    image
}

fn faulty(bytes: &[u8]) -> Arc<FaultDevice<Memory>> {
    Arc::new(FaultDevice::new(Memory::from_bytes(bytes)))
}

fn dir_of(fs: &Fs, n: u32) -> Node {
    fs.resolve(format!("/dir{n}"), Follow::No).unwrap()
}

/// The old name is in memory, but its block is not, and cannot be read.
#[test]
fn a_rename_that_fails_half_way_changes_nothing() {
    const DIRS: u32 = 600;
    let image = FeatureSet::named("64k").make();
    let fs = Fs::open(image.path(), &options()).unwrap();
    for i in 0..DIRS {
        let dir = make(&fs, &fs.root().unwrap(), &format!("dir{i}"), NodeKind::Dir);
        make(&fs, &dir, "x", NodeKind::File);
    }
    fs.unmount().unwrap();
    let block: u64 = debugfs::read(image.path(), "blocks dir0").trim().parse().unwrap();

    let device = Arc::new(FaultDevice::new(options().device(image.path()).unwrap()));
    let fs = Fs::open_device(device.clone(), &options()).unwrap();
    // The names stay in memory; there are more blocks than the cache holds.
    (0..DIRS).for_each(|i| drop(fs.resolve(format!("/dir{i}/x"), Follow::No).unwrap()));
    let dir = dir_of(&fs, 0);
    device.inject(Fault::new(Op::Read, 0).from_then_on().within(block << 16..(block + 1) << 16));
    let failed =
        fs.rename((&dir, b"x"), (&fs.root().unwrap(), b"y"), RenameFlags::empty()).unwrap_err();
    assert_eq!(failed.errno(), 5, "{failed}");
    let end = dir_of(&fs, 1);
    let other = RenameFlags::EXCHANGE;
    let failed = fs.rename((&dir, b"x"), (&end, b"x"), other).unwrap_err();
    assert_eq!(failed.errno(), 5, "{failed}");
    assert!(!fs.is_read_only(), "both calls failed before their first change");
    device.heal();
    drop((dir, end));
    fs.unmount().unwrap();
    drop(device);
    let fs = Fs::open(image.path(), &options()).unwrap();
    assert!(fs.resolve("/dir0/x", Follow::No).is_ok());
    assert!(fs.resolve("/y", Follow::No).is_err());
    fs.unmount().unwrap();
    image.assert_clean();
}

/// Returns a tree in which each operation of [`use_everything`] has its own directories, so that it
/// reads its own blocks. With a layout, some directories and files have indexes and maps of several
/// levels.
fn prepared(layout: Option<Layout>) -> Vec<u8> {
    let set = FeatureSet::named(if layout.is_some() { "large_dir" } else { "1k" });
    let image = set.make_sized(16 << 20);
    if let Some(layout) = layout {
        std::fs::write(image.path(), layout.plant(&image.bytes())).unwrap();
    }
    let fs = Fs::open(image.path(), &options()).unwrap();
    let root = fs.root().unwrap();
    for i in 0..20 {
        let dir = match i {
            DEEP_DIR if layout.is_some() => move_planted(&fs, "dir", &root, &format!("d{i}")),
            _ => make(&fs, &root, &format!("d{i}"), NodeKind::Dir),
        };
        for name in ["a", "b", "c"] {
            let node = match DEEP_FILES
                .iter()
                .position(|deep| *deep == (i, name))
                .filter(|_| layout.is_some())
            {
                Some(n) => move_planted(&fs, &format!("file{n}"), &dir, name),
                None => make(&fs, &dir, name, NodeKind::File),
            };
            open_file(&fs, &node).write_at(0, &vec![i; 3000]).unwrap();
            fs.set_xattr(&node, b"user.long", &[i; 700], XattrMode::Any).unwrap();
        }
        make(&fs, &dir, "sub", NodeKind::Dir);
    }
    fs.unmount().unwrap();
    image.bytes()
}

/// Files of [`use_everything`] that are removed, replaced, cut and written to.
const DEEP_FILES: [(u8, &str); 5] = [(0, "a"), (4, "b"), (8, "a"), (15, "a"), (16, "a")];

/// The directory that gets new names.
const DEEP_DIR: u8 = 11;

/// Moves the file that [`Layout::plant`] made to another place.
fn move_planted(fs: &Fs, from: &str, dir: &Node, name: &str) -> Node {
    let deep = fs.resolve(format!("/{}", deep::DIR), Follow::No).unwrap();
    fs.rename((&deep, from.as_bytes()), (dir, name.as_bytes()), RenameFlags::empty()).unwrap();
    fs.lookup(dir, name.as_bytes()).unwrap()
}

/// Makes each kind of change once, and ignores the results.
fn use_everything(fs: &Fs) {
    let dir = |i: u32| fs.resolve(format!("/d{i}"), Follow::No);
    let at = |i: u32, name: &str| fs.resolve(format!("/d{i}/{name}"), Follow::No);
    let rename = |i: u32, from: &str, to: u32, name: &str, flags| {
        fs.rename((&dir(i)?, from.as_bytes()), (&dir(to)?, name.as_bytes()), flags)
    };
    let create =
        |i: u32, name: &str, what: NodeKind<'_>| fs.create(&dir(i)?, name.as_bytes(), 0o755, what);
    let _ = dir(0).and_then(|dir| fs.unlink(&dir, b"a"));
    let _ = rename(1, "a", 2, "new", RenameFlags::empty());
    let _ = rename(3, "a", 4, "b", RenameFlags::empty());
    let _ = rename(5, "sub", 6, "moved", RenameFlags::empty());
    let _ = rename(7, "sub", 8, "a", RenameFlags::EXCHANGE);
    let _ = rename(9, "a", 10, "white", RenameFlags::WHITEOUT);
    let _ = create(11, "dir", NodeKind::Dir);
    let _ = create(11, "link", NodeKind::Symlink(&[b't'; 300]));
    let _ = create(11, "file", NodeKind::File)
        .and_then(|node| fs.set_xattr(&node, b"user.x", &[1; 600], XattrMode::Any));
    let _ = at(12, "a").and_then(|node| fs.link(&node, &dir(13)?, b"linked"));
    let _ = dir(14).and_then(|dir| fs.rmdir(&dir, b"sub"));
    let _ = at(15, "a")
        .and_then(|node| fs.set_attr(&node, &SetAttr { size: Some(10), ..Default::default() }));
    let _ = at(15, "b").and_then(|node| fs.remove_xattr(&node, b"user.long"));
    let _ =
        at(15, "c").and_then(|node| fs.set_xattr(&node, b"user.long", &[9; 650], XattrMode::Any));
    let write = OpenFlags { write: true, ..Default::default() };
    let _ = at(16, "a")
        .and_then(|node| fs.open_file(&node, write))
        .and_then(|file| file.write_at(2000, &[7; 5000]));
    let _ = dir(17)
        .and_then(|dir| fs.create_nameless(&Caller::default(), &dir, 0o600))
        .map(|node| fs.release(&node, 1));
    let _ = fs.sync();
}

#[test]
fn any_read_may_fail() {
    each_read_fails(&prepared(None), 1);
}

#[test]
fn any_read_of_deep_maps_and_indexes_may_fail() {
    each_read_fails(&prepared(Some(Layout { levels: 2, ..Layout::sparse(3) })), 3);
}

/// Fails one read of `step` in turn.
fn each_read_fails(base: &[u8], step: u64) {
    let mut nth = 0;
    loop {
        let device = faulty(base);
        let fs = Fs::open_device(device.clone(), &options()).unwrap();
        device.inject(Fault::new(Op::Read, nth));
        use_everything(&fs);
        let met = device.failed() > 0;
        device.heal();
        let closed = fs.unmount();
        assert!(met || closed.is_ok(), "{closed:?}");
        Fs::open_device(device.clone(), &options()).and_then(Fs::unmount).unwrap();
        let image = image_of(&device.inner().to_vec());
        assert!(
            e2fsck::check(image.path()).is_clean(),
            "read {nth}: {:?}",
            e2fsck::check(image.path())
        );
        if !met {
            break;
        }
        nth += step;
    }
    assert!(nth > 20, "{nth} reads");
}

#[test]
fn groups_that_share_a_bitmap_are_refused() {
    let image =
        Image::mke2fs(24 << 20, &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^uninit_bg"]);
    let groups = dumpe2fs::dump(image.path()).groups;
    image.leave_unjudged("two groups have one bitmap");
    debugfs::write(image.path(), &format!("set_bg 1 block_bitmap {}", groups[0].block_bitmap));
    let refused = Fs::open(image.path(), &options()).unwrap_err();
    assert!(matches!(refused, Error::Corrupt(_)), "{refused}");
}

/// Fills a file system with data.
fn fill(fs: &Fs) {
    let ballast = open_file(fs, &make(fs, &fs.root().unwrap(), "ballast", NodeKind::File));
    for size in [1 << 20, 1 << 16, 1 << 10] {
        let mut at = ballast.len();
        while ballast.write_at(at, &vec![7; size]).is_ok_and(|n| n == size) {
            at += size as u64;
        }
    }
    ballast.sync().unwrap();
}

/// A file whose map fills the inode: any further extent takes a block.
fn with_four_extents(fs: &Fs, name: &str) -> File {
    let file = open_file(fs, &make(fs, &fs.root().unwrap(), name, NodeKind::File));
    file.write_at(0, &[1; 8192]).unwrap();
    [100_000, 200_000, 300_000]
        .into_iter()
        .for_each(|at| assert_eq!(file.write_at(at, &[1; 100]).unwrap(), 100));
    file
}

#[test]
fn a_hole_without_space_keeps_written_data() {
    let image = Image::mke2fs(8 << 20, &["-t", "ext4", "-b", "1024", "-m", "0"]);
    let fs = Fs::open(image.path(), &options()).unwrap();
    let files: Vec<File> = (0..200).map(|i| with_four_extents(&fs, &format!("file{i}"))).collect();
    fs.sync().unwrap();
    fill(&fs);
    // Maps draw on a margin that data leave.
    let no_room = |how, file: &File, byte| {
        file.write_at(0, &[byte; 8192]).unwrap();
        match file.allocate(how, 2048, 2048) {
            Ok(()) => false,
            Err(e) => e.is(Errno::NoSpc) || panic!("{e}"),
        }
    };
    let full = files
        .iter()
        .position(|file| no_room(Falloc::ZeroKeepSize, file, 2))
        .expect("the margin has an end");
    assert!(
        read_all(&files[full])[..8192] == [2; 8192],
        "data in front of a range of zeroes are gone"
    );
    assert!(no_room(Falloc::Punch, &files[full], 3));
    assert!(read_all(&files[full])[..8192] == [3; 8192], "data in front of a hole are gone");
    drop(files);
    fs.unmount().unwrap();
    image.assert_clean();
    let fs = Fs::open(image.path(), &options()).unwrap();
    let file = open_file(&fs, &fs.resolve(format!("/file{full}"), Follow::No).unwrap());
    assert!(read_all(&file)[..8192] == [3; 8192]);
}

/// The descriptor of the second group is damaged. Opening finds that after it has marked the
/// superblock.
#[test]
fn opening_that_fails_leaves_the_image_as_it_was() {
    for features in ["has_journal", "^has_journal"] {
        let image = Image::mke2fs(16 << 20, &["-t", "ext4", "-b", "1024", "-O", features]);
        let file = std::fs::File::options().write(true).open(image.path()).unwrap();
        file.write_all_at(&[0x55; 8], 2048 + 64).unwrap();
        image.leave_unjudged("a descriptor is damaged");
        let before = image.bytes();
        let failed = Fs::open(image.path(), &options()).map(drop);
        assert!(matches!(failed, Err(Error::Corrupt(_))), "{failed:?}");
        assert!(image.bytes() == before, "{features}: the image has changed");
    }
}

/// An orphan's blocks cannot be freed: the file system stays writable, and the orphan's record is
/// there after it is closed.
#[test]
fn an_orphan_that_cannot_be_freed_is_recorded_when_the_file_system_is_closed() {
    let image = FeatureSet::named("no_csum").make_sized(16 << 20);
    let fs = Fs::open(image.path(), &options()).unwrap();
    let root = fs.root().unwrap();
    for name in ["first", "second"] {
        let node = make(&fs, &root, name, NodeKind::File);
        let file = open_file(&fs, &node);
        file.write_at(0, &[1; 9000]).unwrap();
    }
    fs.unmount().unwrap();
    // The orphan's first extent leads out of the image.
    let ino = debugfs::stat(image.path(), "second").ino;
    image.leave_unjudged("an orphan that cannot be freed stays");
    debugfs::write(image.path(), "sif second block[5] 0x7fffffff");
    debugfs::write(image.path(), "sif second links_count 0");
    debugfs::write(image.path(), &format!("ssv last_orphan {ino}"));
    let fs = Fs::open(image.path(), &options()).unwrap();
    assert_eq!((fs.recovery().orphans.kept, fs.recovery().orphans.freed), (1, 0));
    make(&fs, &fs.root().unwrap(), "third", NodeKind::File);
    fs.unmount().unwrap();
    let header = dumpe2fs::header(image.path());
    assert!(!header.features().contains("needs_recovery"), "{:?}", header.features());
    assert_eq!(header.value("Filesystem state"), "clean with errors");
    assert_eq!(header.number("First orphan inode"), u64::from(ino));
}

#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp { sec: 1_800_000_000, nsec: 0 }
    }
}

#[test]
fn fsync_flushes_overwrites_from_before_an_error() {
    let image = Image::mke2fs(16 << 20, &["-t", "ext4", "-b", "4096", "-e", "remount-ro"]);
    // The clock stands still, so that a write changes nothing but content. Its time is in the
    // future.
    image.leave_unjudged("it was written to in a time to come");
    let options = options().clock(Arc::new(Still));
    let fs = Fs::open(image.path(), &options).unwrap();
    let dir = make(&fs, &fs.root().unwrap(), "dir", NodeKind::Dir);
    make(&fs, &dir, "name", NodeKind::File);
    let file = open_file(&fs, &make(&fs, &fs.root().unwrap(), "file", NodeKind::File));
    file.write_at(0, &[1; 4096]).unwrap();
    drop((dir, file));
    fs.unmount().unwrap();
    let block: usize = debugfs::read(image.path(), "blocks dir").trim().parse().unwrap();
    let mut bytes = image.bytes();
    bytes[block * 4096 + 30] ^= 0xFF;

    let device = faulty(&bytes);
    device.inner().leave_unjudged("a directory is damaged");
    let fs = Fs::open_device(device.clone(), &options).unwrap();
    let node = fs.resolve("/file", Follow::No).unwrap();
    fs.sync_node(&node, false).unwrap();
    fs.write_direct(&node, 0, &[2; 4096], false).unwrap();
    let flushes = device.count(Op::Flush);
    assert!(fs.resolve("/dir/name", Follow::No).is_err());
    assert!(fs.is_read_only());
    fs.sync_node(&node, true).unwrap();
    assert!(device.count(Op::Flush) > flushes, "overwritten data are not durable");
    // And once more, with a device that does not flush any more.
    let fs = reopened(&bytes, &options);
    let (device, fs, node) = fs;
    device.inner().leave_unjudged("a directory is damaged");
    fs.write_direct(&node, 0, &[2; 4096], false).unwrap();
    device.inject(Fault::new(Op::Flush, 0).from_then_on());
    assert!(fs.resolve("/dir/name", Follow::No).is_err());
    assert_eq!(fs.sync_node(&node, true).unwrap_err().errno(), 5);
}

fn reopened(bytes: &[u8], options: &OpenOptions) -> (Arc<FaultDevice<Memory>>, Fs, Node) {
    let device = faulty(bytes);
    let fs = Fs::open_device(device.clone(), options).unwrap();
    let node = fs.resolve("/file", Follow::No).unwrap();
    (device, fs, node)
}

#[test]
fn a_log_without_recovery_flag_is_emptied_as_by_the_kernel() {
    for set in ["default", "ext3_1k"] {
        let image = FeatureSet::named(set).make();
        let fs = Fs::open(image.path(), &options()).unwrap();
        let node = make(&fs, &fs.root().unwrap(), "logged", NodeKind::File);
        fs.sync_node(&node, false).unwrap();
        fs.crash();
        debugfs::write(image.path(), "feature -needs_recovery");
        let by_kernel = image.copy();
        Mount::new(by_kernel.path(), "rw").unmount();
        let before = image.bytes();
        let fs = Fs::open(image.path(), &options().read_only(true)).unwrap();
        assert!(fs.resolve("/logged", Follow::No).is_err(), "{set}: a reader sees the home blocks");
        fs.unmount().unwrap();
        assert!(image.bytes() == before, "{set}: a reader changes nothing");

        let fs = Fs::open(image.path(), &options()).unwrap();
        assert!(fs.recovery().log_emptied && fs.recovery().journal.is_none(), "{set}");
        let after = make(&fs, &fs.root().unwrap(), "after", NodeKind::File);
        fs.sync_node(&after, false).unwrap();
        fs.crash();
        for image in [&image, &by_kernel] {
            let fs = Fs::open(image.path(), &options()).unwrap();
            assert!(!fs.recovery().log_emptied);
            assert!(fs.resolve("/logged", Follow::No).is_err(), "{set}: an old log came back");
            fs.unmount().unwrap();
            e2fsck::check(image.path()).assert_clean();
        }
        let fs = Fs::open(image.path(), &options().read_only(true)).unwrap();
        assert!(fs.resolve("/after", Follow::No).is_ok());
    }
}

#[test]
fn a_listing_names_inodes_that_cannot_be_had() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let fs = Fs::open(image.path(), &options()).unwrap();
    for name in ["one", "two", "three"] {
        make(&fs, &fs.root().unwrap(), name, NodeKind::File);
    }
    fs.unmount().unwrap();
    image.leave_unjudged("a name leads nowhere");
    debugfs::write(image.path(), "clri two");
    let fs = Fs::open(image.path(), &options().read_only(true)).unwrap();
    let (mut names, mut without) = (Vec::new(), Vec::new());
    let listed = fs.read_dir_plus(&fs.root().unwrap(), 0, |entry, node| {
        let list = if node.is_some() { &mut names } else { &mut without };
        list.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    });
    listed.unwrap();
    names.sort();
    assert_eq!(names, [".", "..", "lost+found", "one", "three"]);
    assert_eq!(without, ["two"]);
}
