//! Edge cases of operations: reused inode numbers, failures halfway, power cuts between two steps,
//! wrong counts.

use extant_blocks::{BlockDevice, Fault, FaultDevice, Op};
use extant_engine::{
    Errno, Error, Falloc, File, Follow, Fs, Node, NodeKind, OpenFlags, OpenOptions, RenameFlags,
    Result, SetAttr, XattrMode,
};
use extant_testkit::Memory;
use extant_testkit::image::{FeatureSet, Image};
use extant_testkit::{debugfs, e2fsck};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn open(image: &Image) -> Fs {
    open_with(image, &OpenOptions::new())
}

fn open_with(image: &Image, options: &OpenOptions) -> Fs {
    Fs::open(image.path(), options).unwrap()
}

fn create(fs: &Fs, dir: &Node, name: &str) -> Result<Node> {
    fs.create(dir, name.as_bytes(), 0o644, NodeKind::File)
}

fn open_file(fs: &Fs, node: &Node) -> File {
    fs.open_file(node, OpenFlags { write: true, ..Default::default() }).unwrap()
}

fn read_all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.len() as usize];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Writes until there is no space.
fn fill(fs: &Fs, dir: &Node, name: &str) {
    let file = open_file(fs, &create(fs, dir, name).unwrap());
    let (data, mut at) = (vec![7; 100_000], 0);
    loop {
        match file.write_at(at, &data) {
            Ok(n) => at += n as u64,
            Err(e) => {
                assert!(e.is(Errno::NoSpc), "{e}");
                return;
            }
        }
    }
}

#[test]
fn a_freed_inode_cannot_be_changed() {
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let root = fs.root().unwrap();
    let old = create(&fs, &root, "old").unwrap();
    fs.sync().unwrap();
    fs.unlink(&root, b"old").unwrap();
    // A freed number rests until the transaction has frozen.
    fs.sync().unwrap();
    let new = create(&fs, &root, "new").unwrap();
    assert_eq!(new.ino(), old.ino(), "the number is used again");
    fs.sync().unwrap();
    let mode = SetAttr { mode: Some(0o777), ..Default::default() };
    let stale = |result: Result<()>| {
        assert!(result.as_ref().is_err_and(|e| e.is(Errno::Stale)), "{result:?}")
    };
    stale(fs.set_attr(&old, &mode).map(drop));
    stale(fs.set_xattr(&old, b"user.a", &[1; 3000], XattrMode::Any));
    stale(fs.set_flags(&old, 0));
    stale(fs.set_attr(&old, &SetAttr { size: Some(1 << 20), ..Default::default() }).map(drop));
    stale(fs.write_direct(&old, 0, &[1; 5000], false).map(drop));
    stale(fs.allocate(&old, Falloc::Allocate, 0, 5000));
    drop(old);
    fs.sync().unwrap();
    fs.unmount().unwrap();
    image.assert_clean();
    let fs = open(&image);
    assert_eq!(fs.resolve("/new", Follow::No).unwrap().attr().mode & 0o777, 0o644);
}

/// The link count is one, but there are two names.
#[test]
fn a_name_whose_inode_became_another_is_looked_up_again() {
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let root = fs.root().unwrap();
    let node = create(&fs, &root, "a").unwrap();
    fs.link(&node, &root, b"b").unwrap();
    fs.unmount().unwrap();
    image.leave_unjudged("a name more than it counts");
    debugfs::write(image.path(), "sif a links_count 1");

    let fs = open(&image);
    let root = fs.root().unwrap();
    let number = fs.lookup(&root, b"a").unwrap().ino();
    fs.lookup(&root, b"b").unwrap();
    fs.unlink(&root, b"a").unwrap();
    assert!(fs.lookup(&root, b"b").is_err());
    assert!(fs.resolve("/b", Follow::Yes).is_err());
    fs.sync().unwrap();
    assert_eq!(create(&fs, &root, "c").unwrap().ino(), number);
    // Any result is right, if they return.
    let _ = fs.rename((&root, b"b"), (&root, b"d"), RenameFlags::empty());
    let _ = fs.unlink(&root, b"b");
    let _ = fs.unmount();
}

#[test]
fn names_do_not_lead_to_the_inodes_of_the_file_system() {
    let image = FeatureSet::named("default").make();
    image.leave_unjudged("a name leads to the log");
    debugfs::write(image.path(), "link <8> journal");
    let fs = open(&image);
    let found = fs.lookup(&fs.root().unwrap(), b"journal");
    assert!(matches!(found, Err(Error::Corrupt(_))), "{found:?}");
    let _ = fs.unmount();
}

#[test]
fn a_whiteout_does_not_outlive_its_rename() {
    let image = FeatureSet::named("1k").make_sized(8 << 20);
    let fs = open(&image);
    let root = fs.root().unwrap();
    create(&fs, &root, "moved").unwrap();
    let dir = fs.create(&root, b"dir", 0o755, NodeKind::Dir).unwrap();
    fill(&fs, &root, "ballast");
    let long = |i: u32| format!("{i:0>200}");
    let mut count = 0;
    // Directories and their blocks draw on a margin that data leave.
    while fs.create(&root, format!("d{count}").as_bytes(), 0o755, NodeKind::Dir).is_ok() {
        count += 1;
    }
    let full = (0..100).find_map(|i| create(&fs, &dir, &long(i)).err()).unwrap();
    assert!(full.is(Errno::NoSpc), "{full}");
    let moved = fs
        .rename((&root, b"moved"), (&dir, long(200).as_bytes()), RenameFlags::WHITEOUT)
        .unwrap_err();
    assert!(moved.is(Errno::NoSpc), "{moved}");
    assert!(fs.lookup(&root, b"moved").is_ok());
    fs.unmount().unwrap();
    image.assert_clean();
}

#[test]
fn an_empty_file_is_there_after_fdatasync() {
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let node = create(&fs, &fs.root().unwrap(), "file").unwrap();
    open_file(&fs, &node).sync_data().unwrap();
    fs.crash();
    assert!(open(&image).resolve("/file", Follow::No).is_ok());
}

#[test]
fn truncated_bytes_do_not_come_back() {
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let root = fs.root().unwrap();
    let other = create(&fs, &root, "other").unwrap();
    let file = open_file(&fs, &create(&fs, &root, "file").unwrap());
    file.write_at(0, &[0xAA; 4096]).unwrap();
    file.sync().unwrap();
    file.set_len(100).unwrap();
    file.set_len(4096).unwrap();
    // The transaction is committed; the file's pages are not written.
    fs.set_attr(&other, &SetAttr { mode: Some(0o600), ..Default::default() }).unwrap();
    fs.sync_node(&other, false).unwrap();
    fs.crash();
    drop(file);
    let fs = open(&image);
    let file = open_file(&fs, &fs.resolve("/file", Follow::No).unwrap());
    let bytes = read_all(&file);
    assert!(bytes[..100].iter().all(|b| *b == 0xAA));
    assert!(bytes[100..].iter().all(|b| *b == 0), "old content is back");
}

#[test]
fn a_full_file_system_costs_no_logged_content() {
    let image = FeatureSet::named("inline_data").make_sized(8 << 20);
    let fs = open_with(&image, &OpenOptions::new().log_data(true));
    let root = fs.root().unwrap();
    let file = open_file(&fs, &create(&fs, &root, "small").unwrap());
    file.write_at(0, &[5; 50]).unwrap();
    fill(&fs, &root, "ballast");
    let full = file.write_at(50, &[6; 3000]).unwrap_err();
    assert!(full.is(Errno::NoSpc), "{full}");
    assert_eq!(read_all(&file), [5; 50]);
    drop(file);
    fs.unmount().unwrap();
    image.assert_clean();
    let fs = open(&image);
    assert_eq!(read_all(&open_file(&fs, &fs.resolve("/small", Follow::No).unwrap())), [5; 50]);
}

fn faulty(image: &Image) -> (Arc<FaultDevice<Memory>>, Fs) {
    let device = Arc::new(FaultDevice::new(Memory::from_bytes(&image.bytes())));
    let fs = Fs::open_device(
        device.clone(),
        &OpenOptions::new().commit_interval(Duration::from_millis(20)),
    )
    .unwrap();
    (device, fs)
}

#[test]
fn unmount_reports_lost_changes() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let (device, fs) = faulty(&image);
    device.inject(Fault::new(Op::Write, 0).from_then_on());
    create(&fs, &fs.root().unwrap(), "lost").unwrap();
    assert!(fs.sync().is_err());
    device.heal();
    assert!(fs.unmount().is_err());
    let fs = Fs::open_device(device, &OpenOptions::new()).unwrap();
    assert!(fs.resolve("/lost", Follow::No).is_err());
    assert!(fs.superblock().state().contains(extant_engine::format::State::ERROR));
}

#[test]
fn unmount_reports_data_lost_by_writeback() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let (device, fs) = faulty(&image);
    let node = create(&fs, &fs.root().unwrap(), "f").unwrap();
    let file = open_file(&fs, &node);
    file.write_at(0, &[1; 4096]).unwrap();
    file.sync().unwrap();
    let mut place = 0;
    file.extents(0, 4096, |e| {
        place = e.physical;
        true
    })
    .unwrap();
    device.inject(Fault::new(Op::Write, 0).from_then_on().within(place..place + 4096));
    file.write_at(0, &[2; 4096]).unwrap();
    drop(file);
    let begin = Instant::now();
    // With the other files, and alone: the device must fail until both have been tried.
    while device.failed() < 2 && begin.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(5));
    }
    device.heal();
    assert_eq!(fs.unmount().unwrap_err().errno(), 5);
    let image = Image::blank(16 << 20);
    std::fs::write(image.path(), device.inner().to_vec()).unwrap();
    image.assert_clean();
}

#[test]
fn an_error_is_still_known_after_a_replay() {
    let image = Image::mke2fs(16 << 20, &["-t", "ext4", "-b", "4096", "-e", "remount-ro"]);
    let fs = open(&image);
    let dir = fs.create(&fs.root().unwrap(), b"dir", 0o755, NodeKind::Dir).unwrap();
    create(&fs, &dir, "name").unwrap();
    drop(dir);
    fs.unmount().unwrap();
    let block: u64 = debugfs::read(image.path(), "blocks dir").trim().parse().unwrap();
    let mut bytes = image.bytes();
    bytes[block as usize * 4096 + 30] ^= 0xFF;
    std::fs::write(image.path(), &bytes).unwrap();
    image.leave_unjudged("a directory is damaged");

    let fs = open(&image);
    let other = create(&fs, &fs.root().unwrap(), "other").unwrap();
    fs.sync_node(&other, false).unwrap();
    assert!(fs.resolve("/dir/name", Follow::No).is_err());
    assert!(fs.is_read_only());
    assert!(fs.unmount().is_err());
    let fs = open(&image);
    assert!(fs.recovery().journal.is_some());
    assert!(fs.superblock().state().contains(extant_engine::format::State::ERROR));
    assert!(fs.resolve("/other", Follow::No).is_ok());
    let _ = fs.unmount();
    assert!(!e2fsck::check(image.path()).is_clean());
}

/// The options take precedence over the superblock.
#[test]
fn options_override_the_error_policy_of_the_superblock() {
    use extant_engine::format::ErrorPolicy::{Continue, Panic, RemountReadOnly};
    let found = [("continue", None, false), ("remount-ro", None, true), ("panic", None, true)];
    let told = [
        ("remount-ro", Some(Continue), false),
        ("continue", Some(RemountReadOnly), true),
        ("continue", Some(Panic), true),
    ];
    for (superblock, policy, ends) in found.into_iter().chain(told) {
        let image = Image::mke2fs(16 << 20, &["-t", "ext4", "-b", "4096", "-e", superblock]);
        image.leave_unjudged("a directory's map is damaged");
        debugfs::write(image.path(), "set_inode_field <11> block[5] 0xFFFFFF");
        let options = policy.map_or(OpenOptions::new(), |policy| OpenOptions::new().errors(policy));
        let fs = Fs::open(image.path(), &options).unwrap();
        let root = fs.root().unwrap();
        create(&fs, &root, "running").unwrap();
        assert!(
            fs.resolve("/lost+found/name", Follow::No).is_err_and(|e| e.errno() == 117),
            "{superblock}, {policy:?}"
        );
        let made = create(&fs, &root, "file").map(|_| ());
        assert_eq!(made.is_err_and(|e| e.is(Errno::RoFs)), ends, "{superblock}, {policy:?}");
        drop(root);
        let _ = fs.unmount();
        // As in the kernel, the transaction that was running is not committed any more.
        let fs = Fs::open(image.path(), &OpenOptions::new().read_only(true)).unwrap();
        assert_eq!(fs.resolve("/running", Follow::No).is_err(), ends, "{superblock}, {policy:?}");
        assert!(
            fs.superblock().state().contains(extant_engine::format::State::ERROR),
            "{superblock}, {policy:?}"
        );
    }
}

/// Another host takes the file system: from then on nothing is written, not even the release of the
/// MMP block.
#[test]
fn nothing_is_written_after_another_host_takes_the_image() {
    let image = Image::mke2fs(16 << 20, &["-t", "ext4", "-b", "4096", "-O", "mmp,^metadata_csum"]);
    let block = extant_testkit::dumpe2fs::header(image.path()).number("MMP block number");
    let device = Arc::new(Memory::from_bytes(&image.bytes()));
    let options = OpenOptions::new().commit_interval(Duration::from_secs(1000));
    let fs = Fs::open_device(device.clone(), &options).unwrap();
    fs.sync().unwrap();
    // The sequence follows the magic number.
    device.write_all_at(&0x1234_u32.to_le_bytes(), block * 4096 + 4).unwrap();
    device.leave_unjudged("another host has it");
    let taken = device.to_vec();
    let _ = create(&fs, &fs.root().unwrap(), "never");
    let closed = fs.unmount();
    assert!(closed.as_ref().is_err_and(|e| e.is(Errno::Busy)), "{closed:?}");
    assert!(device.to_vec() == taken, "something was written to another host's file system");
}

/// A renewal that fails is no other host's.
#[test]
fn a_failed_renewal_costs_no_claim() {
    let options = ["-t", "ext4", "-b", "4096", "-O", "mmp", "-E", "mmp_update_interval=1"];
    let image = Image::mke2fs(16 << 20, &options);
    let block = extant_testkit::dumpe2fs::header(image.path()).number("MMP block number") * 4096;
    let device = Arc::new(FaultDevice::new(Memory::from_bytes(&image.bytes())));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
    device.inject(Fault::new(Op::Write, 0).within(block..block + 4096));
    let until = |is_so: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < end, "nothing is renewed");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let sequence = || {
        let mut bytes = [0; 4];
        device.inner().read_exact_at(&mut bytes, block + 4).unwrap();
        bytes
    };
    until(&|| device.failed() == 1);
    let before = sequence();
    until(&|| sequence() != before);
    create(&fs, &fs.root().unwrap(), "later").unwrap();
    fs.unmount().unwrap();
}

#[test]
fn a_hole_takes_its_blocks_from_the_count() {
    for set in ["default", "1k", "bigalloc", "ext3_1k", "ext2"] {
        let image = FeatureSet::named(set).make();
        let fs = open(&image);
        let file = open_file(&fs, &create(&fs, &fs.root().unwrap(), "file").unwrap());
        let blocks = || file.node().attr().blocks;
        for synced in [false, true] {
            file.write_at(0, &[3; 1 << 20]).unwrap();
            if synced {
                file.sync().unwrap();
            }
            let before = blocks();
            assert!(before >= 2048, "{set}: {before}");
            file.allocate(Falloc::Punch, 128 << 10, 512 << 10).unwrap();
            // With the hole go those blocks of pointers that nothing but the hole needed.
            assert!(
                (1024..1040).contains(&(before - blocks())),
                "{set}, synced: {synced}: {before} to {}",
                blocks()
            );
            assert_eq!(&read_all(&file)[128 << 10..640 << 10], vec![0; 512 << 10]);
            file.set_len(0).unwrap();
            assert_eq!(blocks(), 0, "{set}");
        }
        drop(file);
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

#[test]
fn a_directory_without_room_for_a_link_is_found_before_anything_moves() {
    let image = Image::mke2fs(16 << 20, &["-t", "ext4", "-b", "1024", "-O", "^dir_nlink"]);
    let fs = open(&image);
    let root = fs.root().unwrap();
    for name in ["full", "dir"] {
        fs.create(&root, name.as_bytes(), 0o755, NodeKind::Dir).unwrap();
    }
    fs.unmount().unwrap();
    debugfs::write(image.path(), "sif full links_count 65000");
    let fs = open(&image);
    let (root, full) = (fs.root().unwrap(), fs.resolve("/full", Follow::No).unwrap());
    let links = |node: &Node| node.attr().nlink;
    let before = links(&root);
    let is_full = |result: Result<()>| {
        assert!(result.as_ref().is_err_and(|e| e.is(Errno::Mlink)), "{result:?}")
    };
    is_full(fs.rename((&root, b"dir"), (&full, b"moved"), RenameFlags::empty()));
    is_full(fs.create(&full, b"new", 0o755, NodeKind::Dir).map(drop));
    assert_eq!((links(&root), links(&full)), (before, 65000));
    assert!(
        fs.resolve("/dir", Follow::No).is_ok() && fs.resolve("/full/moved", Follow::No).is_err()
    );
    // A file needs no link there.
    create(&fs, &root, "file").unwrap();
    fs.rename((&root, b"file"), (&full, b"file"), RenameFlags::empty()).unwrap();
    fs.unmount().unwrap();
    debugfs::write(image.path(), "sif full links_count 2");
    image.assert_clean();
}

/// Each block of a file whose content was logged is revoked when it is freed, and the records take
/// blocks of the log.
#[test]
fn freeing_logged_content_stays_within_its_credits() {
    let image = FeatureSet::named("1k").make();
    let fs = open_with(&image, &OpenOptions::new().log_data(true));
    let root = fs.root().unwrap();
    let file = open_file(&fs, &create(&fs, &root, "file").unwrap());
    file.write_at(0, &vec![1; 12 << 20]).unwrap();
    file.sync().unwrap();
    file.allocate(Falloc::Punch, 1 << 20, 3 << 20).unwrap();
    file.set_len(1000).unwrap();
    drop(file);
    fs.unlink(&root, b"file").unwrap();
    fs.sync().unwrap();
    let stats = fs.stats().journal;
    assert!(stats.revokes >= 12 << 10, "{stats:?}");
    assert_eq!(stats.overdrawn, 0, "{stats:?}");
    fs.unmount().unwrap();
    image.assert_clean();
}

/// As with the kernel's ext4, for every caller.
#[test]
fn flags_of_an_immutable_inode_change_only_when_it_becomes_mutable() {
    const IMMUTABLE: u32 = 0x10;
    const NODUMP: u32 = 0x40;
    let image = FeatureSet::named("default").make_sized(8 << 20);
    let fs = open(&image);
    let file = create(&fs, &fs.root().unwrap(), "f").unwrap();
    let plain = file.attr().flags;
    let refused = |flags| {
        let error = fs.set_flags(&file, flags).unwrap_err();
        assert!(error.is(Errno::Perm), "{error}");
    };
    fs.set_flags(&file, plain | IMMUTABLE | NODUMP).unwrap();
    refused(plain | IMMUTABLE);
    refused(plain | IMMUTABLE | NODUMP | 0x20);
    fs.set_flags(&file, plain | IMMUTABLE | NODUMP).expect("nothing changes");
    assert_eq!(file.attr().flags, plain | IMMUTABLE | NODUMP);
    fs.set_flags(&file, plain).unwrap();
    assert_eq!(file.attr().flags, plain);
    drop(file);
    fs.unmount().unwrap();
}
