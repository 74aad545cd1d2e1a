//! Attribute values in inodes of their own: their owners are freed, damage to a value costs that
//! value only, and values of the form without reference counts are freed with their owner.

use extant_blocks::{Fault, FaultDevice, Op};
use extant_engine::{
    Errno, Falloc, Follow, Fs, Node, NodeKind, OpenFlags, OpenOptions, SetAttr, XattrMode,
};
use extant_format::inode::InodeFlags;
use extant_format::superblock::ErrorPolicy;
use extant_format::types::Timestamp;
use extant_hostile::atlas::Atlas;
use extant_testkit::image::Image;
use extant_testkit::kernel::Mount;
use extant_testkit::{Memory, e2fsck};
use std::sync::Arc;

const BIG: &[u8] = b"trusted.big";
const MIDDLE: &[u8] = b"trusted.middle";

/// Block numbers of two bytes exist in each of these images: their text as a number is that of a
/// block in use.
const KINDS: [&[&str]; 4] = [
    &["-t", "ext4", "-b", "1024", "-O", "ea_inode,orphan_file"],
    &["-t", "ext4", "-b", "1024", "-O", "ea_inode,^orphan_file"],
    &["-t", "ext4", "-b", "1024", "-O", "ea_inode,bigalloc,orphan_file", "-C", "16384"],
    &["-t", "ext4", "-b", "1024", "-O", "ea_inode,^extents,^64bit,orphan_file"],
];

/// All lengths of targets that lie in the inode, and some that do not.
fn lengths() -> impl Iterator<Item = usize> {
    (1..=59).chain([60, 100, 300])
}

fn target(len: usize) -> Vec<u8> {
    b"abcdefghijklmnopqrstuvwxyz".iter().copied().cycle().take(len).collect()
}

fn open(image: &Image) -> Fs {
    Fs::open(image.path(), &OpenOptions::new().memory(64 << 20)).expect("the image opens")
}

fn write(fs: &Fs, node: &Node, bytes: &[u8]) {
    let file = fs.open_file(node, OpenFlags { write: true, ..Default::default() }).expect("a file");
    assert_eq!(file.write_at(0, bytes).expect("write"), bytes.len());
}

fn content(fs: &Fs, path: &str) -> Vec<u8> {
    let node = fs.resolve(path, Follow::No).expect(path);
    let file = fs.open_file(&node, OpenFlags::default()).expect(path);
    let mut bytes = vec![0; file.len() as usize];
    assert_eq!(file.read_at(0, &mut bytes).expect(path), bytes.len());
    bytes
}

/// Symlinks of all lengths in `/links`, each with a value in an inode of its own, every other one
/// with an attribute block.
fn make_links(fs: &Fs, dir: &Node) {
    for len in lengths() {
        let link = fs
            .create(dir, format!("{len}").as_bytes(), 0o777, NodeKind::Symlink(&target(len)))
            .expect("symlink");
        fs.set_xattr(&link, BIG, &vec![len as u8; 8000], XattrMode::Create).expect("a large value");
        if len % 2 == 0 {
            fs.set_xattr(&link, MIDDLE, &[len as u8; 500], XattrMode::Create)
                .expect("a value in the block");
        }
    }
}

/// An image most of whose blocks belong to a file, with symlinks of all lengths; the number of free
/// blocks without them.
fn with_links(args: &[&str]) -> (Image, Fs, Vec<u8>, u64) {
    let image = Image::mke2fs(64 << 20, args);
    let fs = open(&image);
    let root = fs.root().expect("root");
    let bytes: Vec<u8> = (0..40 << 20).map(|n: usize| (n >> 10) as u8).collect();
    write(&fs, &fs.create(&root, b"other", 0o644, NodeKind::File).expect("create"), &bytes);
    let dir = fs.create(&root, b"links", 0o755, NodeKind::Dir).expect("mkdir");
    for len in lengths() {
        // The directory has its size from now on.
        fs.create(&dir, format!("{len}").as_bytes(), 0o644, NodeKind::File).expect("create");
    }
    for len in lengths() {
        fs.unlink(&dir, format!("{len}").as_bytes()).expect("unlink");
    }
    fs.sync().expect("sync");
    let free = fs.usage().free;
    make_links(&fs, &dir);
    (image, fs, bytes, free)
}

#[test]
fn a_short_symlink_is_freed_without_the_blocks_that_its_target_spells() {
    for args in KINDS {
        let (image, fs, bytes, free) = with_links(args);
        let dir = fs.resolve("/links", Follow::No).expect("links");
        for len in lengths() {
            let link = fs.lookup(&dir, format!("{len}").as_bytes()).expect("a link");
            assert_eq!(fs.read_link(&link).expect("readable"), target(len));
            drop(link);
            fs.unlink(&dir, format!("{len}").as_bytes()).expect("unlink");
        }
        drop(dir);
        fs.sync().expect("sync");
        assert_eq!(fs.usage().free, free, "{args:?}");
        fs.unmount().expect("unmount");
        image.assert_clean();
        let fs = open(&image);
        assert!(content(&fs, "/other") == bytes);
        fs.unmount().expect("unmount");
    }
}

#[test]
fn short_symlinks_with_values_in_inodes_are_recovered_as_orphans() {
    for args in KINDS {
        let (image, fs, bytes, free) = with_links(args);
        let dir = fs.resolve("/links", Follow::No).expect("links");
        let held: Vec<Node> = lengths()
            .map(|len| {
                let link = fs.lookup(&dir, format!("{len}").as_bytes()).expect("a link");
                link.hold(1).expect("hold");
                fs.unlink(&dir, format!("{len}").as_bytes()).expect("unlink");
                link
            })
            .collect();
        fs.sync().expect("sync");
        fs.crash();
        let count = held.len() as u64;
        drop((held, dir));
        let fs = open(&image);
        assert_eq!(
            (fs.recovery().orphans.freed, fs.recovery().orphans.invalid),
            (count, 0),
            "{args:?}"
        );
        fs.sync().expect("sync");
        assert_eq!(fs.usage().free, free, "{args:?}");
        assert!(content(&fs, "/other") == bytes);
        fs.unmount().expect("unmount");
        image.assert_clean();
    }
}

#[test]
fn the_kernel_reads_and_removes_short_symlinks_with_values_in_inodes() {
    for args in KINDS {
        let (image, fs, _, _) = with_links(args);
        fs.unmount().expect("unmount");
        // Not checked before the links are removed: without an attribute block e2fsck takes the
        // text of a target that has a value in an attribute inode for a map, on images of the
        // kernel, too.
        let mount = Mount::new(image.path(), "");
        for len in lengths() {
            let path = mount.join(format!("links/{len}"));
            assert_eq!(
                std::fs::read_link(&path).expect("readlink").into_os_string().into_encoded_bytes(),
                target(len)
            );
            std::fs::remove_file(&path).expect("remove");
        }
        mount.unmount();
        image.assert_clean();
    }
}

/// An image in which `/owner` and `/other` have large values, and the numbers of `owner` and of the
/// inode of its value.
fn with_values() -> (Vec<u8>, u32, u32) {
    let image =
        Image::mke2fs(64 << 20, &["-t", "ext4", "-b", "4096", "-O", "ea_inode,orphan_file"]);
    let fs = open(&image);
    let root = fs.root().expect("root");
    let make = |name: &str, len: usize| {
        let node = fs.create(&root, name.as_bytes(), 0o644, NodeKind::File).expect("create");
        write(&fs, &node, &vec![7; 9000]);
        fs.set_xattr(&node, BIG, &vec![1; len], XattrMode::Create).expect("a large value");
        fs.set_xattr(&node, b"user.small", b"small", XattrMode::Create).expect("a small value");
        node.ino() as u32
    };
    let owner = make("owner", 20_000);
    make("other", 30_000);
    drop(root);
    fs.unmount().expect("unmount");
    image.assert_clean();
    let bytes = image.bytes();
    let atlas = Atlas::of(&bytes);
    let is_value = |ino: &u32| {
        let inode = atlas.read_inode(&bytes, *ino);
        inode.flags.contains(InodeFlags::EA_INODE) && inode.size == 20_000
    };
    let value = atlas.inodes.iter().copied().find(is_value).expect("the value's inode");
    (bytes, owner, value)
}

/// Ways in which a value's inode can be wrong.
const DAMAGES: [&str; 6] = ["checksum", "flag", "count", "map", "size", "bitmap"];

fn damage(bytes: &mut [u8], value: u32, how: &str) {
    let atlas = Atlas::of(bytes);
    match how {
        "checksum" => {
            let at = atlas.slot(value).bytes.start;
            bytes[at + 0x50] ^= 1;
        }
        "flag" => {
            atlas.change_inode(bytes, value, |inode| inode.flags.remove(InodeFlags::EA_INODE))
        }
        "count" => atlas.change_inode(bytes, value, |inode| inode.set_ea_refcount(0)),
        "map" => atlas.change_inode(bytes, value, |inode| inode.i_block[0] ^= 0xFF),
        "size" => atlas.change_inode(bytes, value, |inode| inode.size = 1 << 40),
        _ => {
            // Marks the value's blocks as free in the bitmap.
            let first = atlas.read_inode(bytes, value).i_block;
            let nr = u64::from(u32::from_le_bytes([first[20], first[21], first[22], first[23]]));
            let group = ((nr - u64::from(atlas.geo.first_data_block))
                / u64::from(atlas.geo.blocks_per_group)) as usize;
            let piece = atlas
                .of_kind(extant_hostile::atlas::Kind::BlockBitmap)
                .nth(group)
                .expect("a bitmap")
                .clone();
            let bit = (nr - u64::from(atlas.geo.first_data_block))
                % u64::from(atlas.geo.blocks_per_group);
            bytes[piece.bytes.start + bit as usize / 8] &= !(1 << (bit % 8));
            atlas.seal(bytes, &piece);
        }
    }
}

/// Each change of an owner that drops its value.
const CHANGES: [&str; 4] = ["small", "large", "remove", "unlink"];

fn change(fs: &Fs, how: &str) -> extant_engine::Result<()> {
    let owner = fs.resolve("/owner", Follow::No)?;
    match how {
        "small" => fs.set_xattr(&owner, BIG, b"new", XattrMode::Any),
        "large" => fs.set_xattr(&owner, BIG, &[2; 10_000], XattrMode::Any),
        "remove" => fs.remove_xattr(&owner, BIG),
        _ => {
            drop(owner);
            fs.unlink(&fs.root()?, b"owner")
        }
    }
}

fn check_change(fs: &Fs, how: &str) {
    let value = |fs: &Fs| fs.get_xattr(&fs.resolve("/owner", Follow::No).expect("owner"), BIG);
    match how {
        "small" => assert_eq!(value(fs).expect("new"), b"new"),
        "large" => assert_eq!(value(fs).expect("new"), vec![2; 10_000]),
        "remove" => assert!(value(fs).expect_err("removed").is(Errno::NoData)),
        _ => assert!(fs.resolve("/owner", Follow::No).expect_err("unlinked").is(Errno::NoEnt)),
    }
    let other = fs.resolve("/other", Follow::No).expect("other");
    assert_eq!(fs.get_xattr(&other, BIG).expect("other"), vec![1; 30_000]);
    assert!(fs.resolve("/new", Follow::No).is_ok());
}

/// Repairs an image with e2fsck, which must find it fine then.
fn repaired(bytes: &[u8]) -> Image {
    let image = Image::holding(bytes);
    e2fsck::repair(image.path());
    e2fsck::check_by_all(image.path(), &[]).assert_clean();
    image.leave_unjudged(
        "e2fsck may have given the inode of a value a name, which no file system lets users open",
    );
    image
}

#[test]
fn changes_that_drop_a_damaged_value_leave_its_inode() {
    let (good, _, value) = with_values();
    for how in DAMAGES {
        // A bitmap that contradicts its group's counts keeps the only group from giving space for
        // another large value.
        for with in CHANGES.into_iter().filter(|with| (how, *with) != ("bitmap", "large")) {
            let mut bytes = good.clone();
            damage(&mut bytes, value, how);
            let device = Arc::new(Memory::from_bytes(&bytes));
            device.leave_unjudged("a value is damaged");
            let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open");
            change(&fs, with).unwrap_or_else(|e| panic!("{how}, {with}: {e}"));
            fs.sync().unwrap_or_else(|e| panic!("{how}, {with}: {e}"));
            assert!(!fs.is_read_only(), "{how}, {with}");
            fs.create(&fs.root().expect("root"), b"new", 0o644, NodeKind::File)
                .expect("changes go on");
            fs.unmount().unwrap_or_else(|e| panic!("{how}, {with}: {e}"));
            let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open again");
            assert_eq!(
                fs.recovery().orphans,
                extant_engine::OrphanReport::default(),
                "{how}, {with}: no half of it is left"
            );
            check_change(&fs, with);
            fs.unmount().expect("unmount");
            let image = repaired(&device.to_vec());
            let fs = open(&image);
            check_change(&fs, with);
            fs.unmount().expect("unmount");
        }
    }
}

#[test]
fn damage_of_a_value_obeys_the_error_policy_and_keeps_the_change_whole() {
    let (good, _, value) = with_values();
    for with in CHANGES {
        let mut bytes = good.clone();
        damage(&mut bytes, value, "count");
        let device = Arc::new(Memory::from_bytes(&bytes));
        device.leave_unjudged("a value is damaged");
        let options = OpenOptions::new().errors(ErrorPolicy::RemountReadOnly);
        let fs = Fs::open_device(device.clone(), &options).expect("open");
        fs.create(&fs.root().expect("root"), b"new", 0o644, NodeKind::File).expect("create");
        fs.sync().expect("sync");
        let changed = change(&fs, with);
        assert!(fs.is_read_only(), "{with}: {changed:?}");
        assert!(fs.unmount().is_err(), "closing tells that changes were stopped");
        let image = repaired(&device.to_vec());
        let fs = open(&image);
        assert!(fs.resolve("/new", Follow::No).is_ok());
        fs.unmount().expect("unmount");
    }
}

/// An image with the files `first` and `second`. The entries of both name the value of `first`,
/// which has one reference; its inode.
fn with_a_value_named_twice() -> (Vec<u8>, u64) {
    let image =
        Image::mke2fs(64 << 20, &["-t", "ext4", "-b", "4096", "-O", "ea_inode,orphan_file"]);
    let fs = open(&image);
    let root = fs.root().expect("root");
    let [first, second] = [b"first".as_slice(), b"second"].map(|name| {
        let node = fs.create(&root, name, 0o644, NodeKind::File).expect("create");
        fs.set_xattr(&node, BIG, &[1; 20_000], XattrMode::Create).expect("a large value");
        node.ino() as u32
    });
    drop(root);
    fs.unmount().expect("unmount");
    image.assert_clean();
    let mut bytes = image.bytes();
    let atlas = Atlas::of(&bytes);
    let number = |bytes: &[u8], owner: u32| {
        let start = atlas.slot(owner).bytes.start + 128;
        let extra = u16::from_le_bytes([bytes[start], bytes[start + 1]]);
        // Behind the magic number: lengths and offset of the first entry, then the inode.
        let at = start + usize::from(extra) + 4 + 4;
        at..at + 4
    };
    let of_first = number(&bytes, first);
    let value = u32::from_le_bytes(bytes[of_first.clone()].try_into().expect("4 bytes"));
    assert!(atlas.read_inode(&bytes, value).flags.contains(InodeFlags::EA_INODE));
    let of_second = number(&bytes, second);
    bytes.copy_within(of_first, of_second.start);
    atlas.seal(&mut bytes, atlas.slot(second));
    (bytes, value.into())
}

/// The entry must not free the file that has the number of the value's inode by then.
#[test]
fn an_entry_that_names_a_freed_value_changes_no_other_inode() {
    let (bytes, value) = with_a_value_named_twice();
    let content_of_file = vec![9; 9000];
    for written in [false, true] {
        let device = Arc::new(Memory::from_bytes(&bytes));
        device.leave_unjudged("two entries name a value with one reference");
        let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open");
        let root = fs.root().expect("root");
        let [first, second] = ["/first", "/second"].map(|p| fs.resolve(p, Follow::No).expect(p));
        assert_eq!(fs.get_xattr(&second, BIG).expect("readable"), vec![1; 20_000]);
        fs.remove_xattr(&first, BIG).expect("the value is freed");
        // Its slot on disk does not show that yet.
        let _ = fs.get_xattr(&second, BIG);
        fs.sync().expect("sync");
        let create = |name: &[u8]| fs.create(&root, name, 0o644, NodeKind::File).expect("create");
        let file = create(b"file");
        assert_eq!(file.ino(), value, "the number is used again");
        write(&fs, &file, &content_of_file);
        if written {
            fs.sync().expect("sync");
        }
        assert!(fs.get_xattr(&second, BIG).is_err(), "written: {written}");
        fs.remove_xattr(&second, BIG).expect("the entry goes");
        fs.sync().expect("sync");
        let other = create(b"other");
        assert_ne!(other.ino(), value, "the number is in use");
        write(&fs, &other, &[8; 90_000]);
        drop((root, first, second, file, other));
        fs.unmount().expect("unmount");
        let image = repaired(&device.to_vec());
        let fs = open(&image);
        assert_eq!(fs.resolve("/file", Follow::No).expect("the file").ino(), value);
        assert!(content(&fs, "/file") == content_of_file);
        fs.unmount().expect("unmount");
    }
}

/// Freeing a value needs more credits than the last transaction may have left. Without a timer no
/// other thread commits it.
#[test]
fn values_are_freed_in_transactions_of_a_small_log() {
    const LINKS: u32 = 600;
    let args = ["-t", "ext4", "-b", "1024", "-O", "ea_inode,quota,^resize_inode", "-J", "size=1"];
    let image = Image::mke2fs(64 << 20, &args);
    let options = OpenOptions::new().memory(64 << 20).seed(7);
    let fs = Fs::open(image.path(), &options).expect("the image opens");
    let root = fs.root().expect("root");
    let name = |n: u32| format!("link{n}").into_bytes();
    for n in 0..LINKS {
        let made = NodeKind::Symlink(b"target");
        let link = fs.create(&root, &name(n), 0o777, made).expect("symlink");
        fs.set_xattr(&link, BIG, &vec![n as u8; 3000], XattrMode::Create).expect("a large value");
    }
    fs.sync().expect("sync");
    let (done, end) = std::sync::mpsc::channel();
    let remover = std::thread::spawn(move || {
        (0..LINKS).for_each(|n| fs.unlink(&root, &name(n)).expect("unlink"));
        drop(root);
        fs.unmount().expect("unmount");
        done.send(()).expect("the test listens");
    });
    let patience = std::time::Duration::from_secs(300);
    end.recv_timeout(patience).expect("all values are freed");
    remover.join().expect("no panic");
    image.assert_clean();
}

/// The inode of the value lies in a block of the inode table that is needed for nothing else.
#[test]
fn a_value_that_cannot_be_read_fails_the_change_and_changes_nothing() {
    let image =
        Image::mke2fs(64 << 20, &["-t", "ext4", "-b", "4096", "-O", "ea_inode,orphan_file"]);
    let fs = open(&image);
    let root = fs.root().expect("root");
    let owner = fs.create(&root, b"owner", 0o644, NodeKind::File).expect("create");
    for n in 0..64 {
        fs.create(&root, format!("file{n}").as_bytes(), 0o644, NodeKind::File).expect("create");
    }
    fs.set_xattr(&owner, BIG, &[1; 20_000], XattrMode::Create).expect("a large value");
    drop((root, owner));
    fs.unmount().expect("unmount");
    let bytes = image.bytes();
    let atlas = Atlas::of(&bytes);
    let is_value = |ino: &u32| atlas.read_inode(&bytes, *ino).flags.contains(InodeFlags::EA_INODE);
    let value = atlas.inodes.iter().copied().find(is_value).expect("a value");
    let block = atlas.slot(value).bytes.start as u64 & !4095;
    for with in CHANGES {
        let device = Arc::new(FaultDevice::new(Memory::from_bytes(&bytes)));
        let fs =
            Fs::open_device(device.clone(), &OpenOptions::new().look_ahead(false)).expect("open");
        device.inject(Fault::new(Op::Read, 0).from_then_on().within(block..block + 4096));
        let failed = change(&fs, with);
        if with == "unlink" {
            failed.expect("the name goes, the inode stays as an orphan");
        } else {
            assert_eq!(failed.expect_err(with).errno(), 5);
        }
        assert!(!fs.is_read_only(), "{with}");
        fs.set_xattr(&fs.root().expect("root"), b"user.new", b"new", XattrMode::Create)
            .expect("changes go on");
        device.heal();
        fs.unmount().expect("unmount");
        let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open again");
        assert_eq!(fs.recovery().orphans.freed, u64::from(with == "unlink"));
        if with != "unlink" {
            let owner = fs.resolve("/owner", Follow::No).expect("owner");
            assert_eq!(fs.get_xattr(&owner, BIG).expect("unchanged"), vec![1; 20_000]);
        }
        fs.unmount().expect("unmount");
        Image::holding(&device.inner().to_vec()).assert_clean();
    }
}

/// A file may have capabilities that cannot be read: a caller without privileges must not change
/// its content then.
#[test]
fn capabilities_that_cannot_be_read_forbid_the_change() {
    const CAPABILITY: &[u8] = b"security.capability";
    let image = Image::mke2fs(64 << 20, &["-t", "ext4", "-b", "4096"]);
    let fs = open(&image);
    let root = fs.root().expect("root");
    let node = fs.create(&root, b"program", 0o755, NodeKind::File).expect("create");
    // The inode has no bytes left, so the capabilities lie in a block.
    fs.set_xattr(&node, b"user.near", &[1; 64], XattrMode::Create).expect("in the inode");
    // None, in the form of version 2.
    let none = 0x0200_0000_u128.to_le_bytes().into_iter().chain([0; 4]).collect::<Vec<u8>>();
    fs.set_xattr(&node, CAPABILITY, &none, XattrMode::Create).expect("in a block");
    let ino = node.ino() as u32;
    drop((root, node));
    fs.unmount().expect("unmount");
    let bytes = image.bytes();
    let block = Atlas::of(&bytes).read_inode(&bytes, ino).file_acl << 12;
    assert_ne!(block, 0, "the attributes have a block");
    let device = Arc::new(FaultDevice::new(Memory::from_bytes(&bytes)));
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open");
    let node = fs.resolve("/program", Follow::No).expect("program");
    device.inject(Fault::new(Op::Read, 0).from_then_on().within(block..block + 4096));
    assert_eq!(fs.drop_privileges(&node, |_| false).expect_err("unknown").errno(), 5);
    device.heal();
    fs.drop_privileges(&node, |_| false).expect("known");
    assert!(fs.get_xattr(&node, CAPABILITY).expect_err("dropped").is(Errno::NoData));
    drop(node);
    fs.unmount().expect("unmount");
}

/// Gives the value the form of Lustre: it names its owner and has no count, and the owner does not
/// count its blocks.
fn make_old(bytes: &mut [u8], owner: u32, value: u32) {
    let atlas = Atlas::of(bytes);
    let generation = atlas.read_inode(bytes, owner).generation;
    atlas.change_inode(bytes, value, |inode| {
        let time = Timestamp::new(1_500_000_000, 0);
        (inode.atime, inode.ctime, inode.mtime) = (time, time, Timestamp::new(owner.into(), 0));
        inode.generation = generation;
        inode.version = 5;
    });
    let sectors = 20_000_u64.div_ceil(4096) * 8;
    atlas.change_inode(bytes, owner, |inode| inode.blocks -= sectors);
}

#[test]
fn a_value_of_the_old_form_is_freed_with_its_owner() {
    let (mut bytes, owner, value) = with_values();
    make_old(&mut bytes, owner, value);
    Image::holding(&bytes).assert_clean();
    for with in CHANGES {
        let device = Arc::new(Memory::from_bytes(&bytes));
        let fs = Fs::open_device(device.clone(), &OpenOptions::new()).expect("open");
        let node = fs.resolve("/owner", Follow::No).expect("owner");
        assert_eq!(fs.get_xattr(&node, BIG).expect("readable"), vec![1; 20_000]);
        drop(node);
        let (free, inodes) = (fs.usage().free, fs.usage().inodes_free);
        change(&fs, with).expect(with);
        fs.sync().expect("sync");
        // Five blocks of the value; three of the owner, or three of the new value.
        let gained = match with {
            "large" => (2, 0),
            "unlink" => (8, 2),
            _ => (5, 1),
        };
        assert_eq!((fs.usage().free - free, fs.usage().inodes_free - inodes), gained, "{with}");
        fs.create(&fs.root().expect("root"), b"new", 0o644, NodeKind::File).expect("create");
        check_change(&fs, with);
        fs.unmount().expect("unmount");
        Image::holding(&device.to_vec()).assert_clean();
    }
}

/// A nearly full file system of 4096 groups, in which the blocks for further values lie in a group
/// of their own each, with many inodes: those of every fourth file lie in blocks of their own.
fn fragmented() -> (Image, Fs, Vec<Node>) {
    let args = ["-t", "ext4", "-b", "1024", "-g", "256", "-m", "0", "-N", "8192"];
    let features = ["-O", "ea_inode,^resize_inode", "-J", "size=1"];
    let image = Image::mke2fs(1 << 30, &[&args[..], &features].concat());
    let fs = Fs::open(image.path(), &OpenOptions::new().memory(64 << 20).seed(7)).expect("open");
    let root = fs.root().expect("root");
    let create =
        |name: &str| fs.create(&root, name.as_bytes(), 0o644, NodeKind::File).expect("create");
    let files: Vec<Node> = (0..1024).map(|n| create(&format!("file{n}"))).collect();
    let write = OpenFlags { write: true, ..Default::default() };
    let most = fs.open_file(&create("most"), write).expect("a file");
    let mut end = 0;
    for len in [1 << 22, 1 << 16, 1 << 10] {
        while most.allocate(Falloc::Allocate, end, len).is_ok() {
            end += len;
        }
    }
    // The blocks that data must leave free lie together: values take them.
    let mut others = files.iter().skip(2).step_by(3);
    let mut add = || fs.set_xattr(others.next().expect("files"), BIG, &[1; 60_000], XattrMode::Any);
    let mut added = 0;
    while add().is_ok() {
        added += 1;
    }
    for at in (0..end).step_by(256 << 10) {
        most.allocate(Falloc::Punch, at, 1024).expect("a hole");
    }
    fs.sync().expect("sync");
    (0..=added).for_each(|_| add().expect("a value"));
    fs.sync().expect("sync");
    (image, fs, files)
}

/// The blocks of a value lie in many groups, whose bitmaps and descriptors change with it. The
/// credits suffice wherever in a transaction the change begins.
#[test]
fn values_in_many_groups_have_enough_credits() {
    let (image, fs, files) = fragmented();
    let before = fs.stats().journal.overdrawn;
    for touched in (0..256).step_by(6) {
        for node in files.iter().step_by(4).take(touched) {
            fs.set_attr(node, &SetAttr { mode: Some(touched as u16), ..Default::default() })
                .expect("a mode");
        }
        let value = vec![touched as u8; 60_000];
        fs.set_xattr(&files[1], BIG, &value, XattrMode::Any)
            .unwrap_or_else(|e| panic!("after {touched} inodes: {e}"));
        assert!(!fs.is_read_only(), "after {touched} inodes");
        fs.sync().expect("sync");
        assert_eq!(fs.get_xattr(&files[1], BIG).expect("the value"), value);
    }
    assert_eq!(fs.stats().journal.overdrawn, before, "credits");
    drop(files);
    fs.unmount().expect("unmount");
    // The reaper freed the old values for which a transaction had no room.
    image.assert_clean();
}
