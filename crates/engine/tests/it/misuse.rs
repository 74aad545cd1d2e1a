//! Unusual calls: from inside a callback, by reserved numbers or names, and with values that the
//! format cannot store.

use extant_engine::{Errno, Follow, Fs, Node, NodeKind, OpenFlags, OpenOptions, XattrMode};
use extant_testkit::debugfs;
use extant_testkit::image::{FeatureSet, Image};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

fn open(image: &Image) -> Fs {
    Fs::open(image.path(), &OpenOptions::new()).expect("a good image opens")
}

fn make(fs: &Fs, dir: &Node, name: &str, what: NodeKind<'_>) -> extant_engine::Result<Node> {
    fs.create(dir, name.as_bytes(), 0o644, what)
}

#[test]
fn a_listing_may_remove_its_entries() {
    for (set, plus) in
        [("default", false), ("default", true), ("ext2", false), ("inline_data", true)]
    {
        let image = FeatureSet::named(set).make();
        let fs = open(&image);
        let dir = make(&fs, &fs.root().expect("root"), "dir", NodeKind::Dir).expect("mkdir");
        let names = if set == "inline_data" { 4 } else { 700 };
        (0..names).for_each(|n| {
            drop(make(&fs, &dir, &format!("name {n}"), NodeKind::File).expect("create"))
        });
        let mut removed = 0;
        let mut remove = |name: &[u8]| {
            if name != b"." && name != b".." {
                fs.unlink(&dir, name).expect("unlink");
                removed += 1;
            }
            true
        };
        if plus {
            fs.read_dir_plus(&dir, 0, |e, _| remove(e.name))
        } else {
            fs.read_dir_from(&dir, 0, |e| remove(e.name))
        }
        .expect("list");
        assert_eq!((removed, fs.read_dir(&dir).expect("list").len()), (names, 0), "{set}");
        drop(dir);
        fs.unmount().expect("unmount");
        image.assert_clean();
    }
}

#[test]
fn a_listing_gives_each_name_once_and_goes_on_at_each_cookie() {
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let dir = make(&fs, &fs.root().expect("root"), "dir", NodeKind::Dir).expect("mkdir");
    (0..500)
        .for_each(|n| drop(make(&fs, &dir, &format!("name {n}"), NodeKind::File).expect("create")));
    let all = fs.read_dir(&dir).expect("list");
    let names: BTreeSet<_> = all.iter().map(|e| e.name.clone()).collect();
    assert_eq!((all.len(), names.len()), (500, 500));
    for (nth, entry) in all.iter().enumerate().step_by(37) {
        let mut rest = Vec::new();
        fs.read_dir_from(&dir, entry.next, |e| {
            rest.push(e.name.to_vec());
            true
        })
        .expect("list");
        assert!(rest.iter().eq(all[nth + 1..].iter().map(|e| &e.name)), "behind entry {nth}");
    }
    drop(dir);
    fs.unmount().expect("unmount");
}

#[test]
fn a_walk_over_extents_may_write_to_the_file() {
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let node = make(&fs, &fs.root().expect("root"), "file", NodeKind::File).expect("create");
    let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect("open");
    for n in 0..600 {
        file.write_at(n * 8192, &[1; 4096]).expect("write");
    }
    file.sync().expect("sync");
    let (mut seen, mut last) = (0, false);
    file.extents(0, u64::MAX, |extent| {
        assert_eq!(extent.logical, seen * 8192, "extent {seen}");
        file.write_at(extent.logical, &[2; 10]).expect("write");
        seen += 1;
        last = extent.flags.last;
        true
    })
    .expect("extents");
    assert_eq!((seen, last), (600, true));
    drop((file, node));
    fs.unmount().expect("unmount");
    image.assert_clean();
}

#[test]
fn numbers_of_the_file_systems_own_are_stale() {
    let quota =
        Image::mke2fs(32 << 20, &["-t", "ext4", "-b", "4096", "-O", "quota,project,orphan_file"]);
    for image in
        [FeatureSet::named("default").make(), FeatureSet::named("orphan_file").make(), quota]
    {
        let fs = open(&image);
        let sb = fs.superblock();
        let own = (1..11)
            .chain([sb.orphan_file_inum().0, sb.prj_quota_inum().0])
            .filter(|&ino| ino > 2 || ino == 1);
        for ino in own {
            let refused = fs.node(ino.into()).expect_err("an inode of the file system's own");
            assert!(refused.is(Errno::Stale), "inode {ino}: {refused}");
        }
        assert_eq!(fs.node(2).expect("the root").ino(), 2);
        assert!(!fs.is_read_only());
        fs.unmount().expect("unmount");
        image.assert_clean();
    }
}

/// The inode of an attribute's value belongs to the attribute, as the journal's inode belongs to
/// the journal.
#[test]
fn numbers_of_values_are_stale() {
    let image = Image::mke2fs(32 << 20, &["-t", "ext4", "-b", "4096", "-O", "ea_inode"]);
    let fs = open(&image);
    let node = make(&fs, &fs.root().expect("root"), "file", NodeKind::File).expect("create");
    fs.set_xattr(&node, b"user.large", &[1; 10_000], XattrMode::Any)
        .expect("a value in an inode of its own");
    let file = node.ino();
    drop(node);
    fs.unmount().expect("unmount");
    let fs = open(&image);
    // The value's inode is one of those behind the file's.
    for ino in file + 1..file + 20 {
        let refused = fs.node(ino).expect_err("a free number, or the value's");
        assert!(refused.is(Errno::Stale), "inode {ino}: {refused}");
    }
    assert!(!fs.is_read_only());
    fs.unmount().expect("unmount");
    image.assert_clean();
}

/// A number is in use before its slot is written. A caller that guesses numbers, such as a client
/// of NFS, finds no damage then.
#[test]
fn numbers_with_an_empty_slot_are_stale() {
    let image = FeatureSet::named("default").make();
    image.leave_unjudged("a slot is empty");
    let fs = open(&image);
    let root = fs.root().expect("root");
    let ino = make(&fs, &root, "file", NodeKind::File).expect("create").ino();
    drop(root);
    fs.unmount().expect("unmount");
    let place = debugfs::read(image.path(), &format!("imap <{ino}>"));
    let numbers = place.split_once("located at block ").expect("a place").1;
    let (block, offset) = numbers.split_once(", offset 0x").expect("block and offset");
    let offset = u64::from_str_radix(offset.trim(), 16).expect("hexadecimal");
    let block_size = u64::from(open(&image).superblock().block_size());
    let slot = block.parse::<u64>().expect("decimal") * block_size + offset;
    let file = File::options().write(true).open(image.path()).expect("the image");
    file.write_all_at(&[0; 256], slot).expect("write");
    let fs = open(&image);
    let refused = fs.node(ino).expect_err("an empty slot");
    assert!(refused.is(Errno::Stale), "{refused}");
    fs.unmount().expect("unmount");
}

#[test]
fn attributes_with_nul_in_their_names_are_refused() {
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let node = make(&fs, &fs.root().expect("root"), "file", NodeKind::File).expect("create");
    for name in [&b"user.a\0b"[..], b"user.\0", b"trusted.a\0"] {
        let refused = fs
            .set_xattr(&node, name, b"1", XattrMode::Any)
            .expect_err("a name that lists cannot hold");
        assert!(refused.is(Errno::Inval), "{refused}");
    }
    assert_eq!(fs.list_xattrs(&node).expect("list"), Vec::<Vec<u8>>::new());
    drop(node);
    fs.unmount().expect("unmount");
    image.assert_clean();
}

#[test]
fn a_path_is_a_path() {
    let image = FeatureSet::named("default").make();
    let dir = image.path().parent().expect("a directory");
    for name in ["user@0", "disk@p1", "disk@4096"] {
        let path = dir.join(name);
        std::fs::copy(image.path(), &path).expect("copy");
        let fs = Fs::open(&path, &OpenOptions::new()).expect(name);
        make(&fs, &fs.root().expect("root"), "mark", NodeKind::File).expect("create");
        fs.unmount().expect("unmount");
        let fs = Fs::open(&path, &OpenOptions::new().read_only(true)).expect(name);
        fs.resolve("/mark", Follow::No).expect("this image was opened");
        fs.unmount().expect("unmount");
        std::fs::remove_file(path).expect("remove");
    }
}

#[test]
fn device_numbers_without_room_are_refused() {
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let root = fs.root().expect("root");
    for rdev in [(4104, 0), (4096, 1), (0, 1 << 20), (u32::MAX, u32::MAX)] {
        for kind in [NodeKind::BlockDevice(rdev.0, rdev.1), NodeKind::CharDevice(rdev.0, rdev.1)] {
            let refused = make(&fs, &root, "no", kind).expect_err("no room for it");
            assert!(refused.is(Errno::Inval), "{rdev:?}: {refused}");
        }
    }
    for (nth, rdev) in [(4095, (1 << 20) - 1), (255, 256), (0, 0), (8, 1)].into_iter().enumerate() {
        let node =
            make(&fs, &root, &format!("device {nth}"), NodeKind::BlockDevice(rdev.0, rdev.1))
                .expect("mknod");
        assert_eq!(node.attr().rdev, rdev);
    }
    drop(root);
    fs.unmount().expect("unmount");
    image.assert_clean();
}

#[test]
fn a_symlink_to_a_name_with_nul_is_refused() {
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let root = fs.root().expect("root");
    let long = [&[b'a'; 200][..], b"\0b"].concat();
    for target in [&b"a\0b"[..], b"\0", b"a\0", &long] {
        let refused =
            make(&fs, &root, "link", NodeKind::Symlink(target)).expect_err("no such name can be");
        assert!(refused.is(Errno::Inval), "{refused}");
    }
    drop(root);
    fs.unmount().expect("unmount");
    image.assert_clean();
}

#[test]
fn a_file_opened_to_be_read_may_be_truncated() {
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let node = make(&fs, &fs.root().expect("root"), "file", NodeKind::File).expect("create");
    let writer =
        fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect("open");
    writer.write_at(0, &[1; 10_000]).expect("write");
    let reader =
        fs.open_file(&node, OpenFlags { truncate: true, ..Default::default() }).expect("open");
    assert_eq!((node.attr().size, reader.len()), (0, 0));
    assert!(reader.write_at(0, b"no").expect_err("it is open to be read").is(Errno::BadF));
    drop((writer, reader, node));
    fs.unmount().expect("unmount");
    image.assert_clean();
}

#[test]
fn a_file_that_is_let_go_is_freed_by_itself() {
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let root = fs.root().expect("root");
    let before = fs.usage().inodes_free;
    for _ in 0..3 {
        let node = make(&fs, &root, "file", NodeKind::File).expect("create");
        let file =
            fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect("open");
        fs.unlink(&root, b"file").expect("unlink");
        drop((file, node));
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while fs.usage().inodes_free != before {
            assert!(std::time::Instant::now() < end, "the reaper sleeps");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    drop(root);
    fs.unmount().expect("unmount");
    image.assert_clean();
}
