//! Attribute values in inodes of their own: their owners are freed, damage to a value costs that value only, and values of the
//! form without reference counts are freed with their owner.

use extant::{Caller, Follow, Fs, New, Node, OpenFlags, OpenOptions, XattrMode};
use extant_testkit::image::Image;
use extant_testkit::kernel::Mount;

const WHO: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const BIG: &[u8] = b"trusted.big";
const MIDDLE: &[u8] = b"trusted.middle";

/// Block numbers of two bytes exist in each of these images: their text as a number is that of a block in use.
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

/// Symlinks of all lengths in `/links`, each with a value in an inode of its own, every other one with an attribute block.
fn make_links(fs: &Fs, dir: &Node) {
    for len in lengths() {
        let link =
            fs.create(&WHO, dir, format!("{len}").as_bytes(), 0o777, New::Symlink(&target(len))).expect("symlink");
        fs.set_xattr(&link, BIG, &vec![len as u8; 8000], XattrMode::Create).expect("a large value");
        if len % 2 == 0 {
            fs.set_xattr(&link, MIDDLE, &[len as u8; 500], XattrMode::Create).expect("a value in the block");
        }
    }
}

/// An image most of whose blocks belong to a file, with symlinks of all lengths; the number of free blocks without them.
fn with_links(args: &[&str]) -> (Image, Fs, Vec<u8>, u64) {
    let image = Image::mke2fs(64 << 20, args);
    let fs = open(&image);
    let root = fs.root().expect("root");
    let bytes: Vec<u8> = (0..40 << 20).map(|n: usize| (n >> 10) as u8).collect();
    write(&fs, &fs.create(&WHO, &root, b"other", 0o644, New::File).expect("create"), &bytes);
    let dir = fs.create(&WHO, &root, b"links", 0o755, New::Dir).expect("mkdir");
    for len in lengths() {
        // The directory has its size from now on.
        fs.create(&WHO, &dir, format!("{len}").as_bytes(), 0o644, New::File).expect("create");
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
        assert_eq!((fs.recovery().orphans.freed, fs.recovery().orphans.invalid), (count, 0), "{args:?}");
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
        // Not judged before the links are gone: without an attribute block e2fsck takes the text of a target that has a value in an
        // inode for a map, whoever made it.
        let mount = Mount::new(image.path(), "");
        for len in lengths() {
            let path = mount.join(format!("links/{len}"));
            assert_eq!(std::fs::read_link(&path).expect("readlink").into_os_string().into_encoded_bytes(), target(len));
            std::fs::remove_file(&path).expect("remove");
        }
        mount.unmount();
        image.assert_clean();
    }
}
