//! Names and content of files in places that damage, old kernels and earlier users of the disk
//! leave: no image of metadata has them.

use crate::metadata::{KEY, has, index_directories, save};
use extant_testkit::{Image, Scratch, debugfs, tool};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

/// A block of the images.
const BLOCK: u64 = 1024;

/// A tree with an indexed directory, a small one, links, and a file whose data lies in its inode
/// where the file system has that.
fn tree() -> Scratch {
    let root = Scratch::new();
    let large = root.dir("secret-directory");
    for n in 0..200 {
        fs::write(large.join(format!("secret-name-{n}")), "").expect("a file");
    }
    let small = root.dir("small");
    for name in ["first", "second-secret"] {
        fs::write(small.join(name), "").expect("a file");
    }
    symlink("secret-directory/of-a-link", root.join("fast")).expect("a link");
    symlink(format!("/secret-{}", "x".repeat(200)), root.join("slow")).expect("a link");
    fs::write(root.join("inline"), "confidential ".repeat(12)).expect("a file");
    root
}

fn blocks(image: &Path, path: &str) -> Vec<u64> {
    let list = debugfs::read(image, &format!("blocks {path}"));
    list.split_whitespace().map(|nr| nr.parse().expect("a block")).collect()
}

/// Writes bytes to a place in a block of a file.
fn put(image: &Path, path: &str, offset: u64, bytes: &[u8]) {
    let first = blocks(image, path)[0];
    let file = File::options().write(true).open(image).expect("an image");
    file.write_all_at(bytes, first * BLOCK + offset).expect("a write");
}

fn set(image: &Path, fields: &[&str]) {
    for field in fields {
        debugfs::write(image, &format!("set_inode_field {field}"));
    }
}

/// Damages an image, and checks that its scrambled image has no name and no content.
fn assert_hidden(case: &str, options: &[&str], damage: fn(&Path)) {
    let root = tree();
    let kind = [&["-t", "ext4", "-b", "1024", "-I", "256"], options].concat();
    let image = Image::mke2fs_from(8 << 20, &kind, root.path());
    image.leave_unjudged("it is damaged");
    index_directories(&image);
    damage(image.path());
    let bytes = image.bytes();
    let (plain, _) = save(&bytes, None).expect("an image");
    assert!(has(&plain, "secret") && !has(&plain, "confidential"), "{case}");
    let (saved, _) = save(&bytes, KEY).expect("an image");
    assert!(!has(&saved, "secret") && !has(&saved, "confidential"), "{case}");
}

#[test]
fn names_behind_indexes_are_removed() {
    assert_hidden("behind the entries", &[], |image| {
        put(image, "/secret-directory", BLOCK - 64, b"secret-old-name");
    });
    assert_hidden("a wrong count", &[], |image| {
        put(image, "/secret-directory", 0x22, &[0xFF, 0xFF]);
        put(image, "/secret-directory", BLOCK - 64, b"secret-old-name");
    });
    assert_hidden("an index without its mark", &[], |image| {
        put(image, "/secret-directory", BLOCK - 64, b"secret-old-name");
        set(image, &["/secret-directory flags 0x80000"]);
    });
}

/// Bytes of deleted entries may be older than the encryption of a directory.
#[test]
fn names_between_encrypted_ones_are_removed() {
    assert_hidden("an encrypted directory", &[], |image| {
        debugfs::write(image, "feature encrypt");
        debugfs::write(image, "unlink /small/second-secret");
        put(image, "/small", BLOCK - 64, b"secret-old-name");
        set(image, &["/small flags 0x80800"]);
    });
    assert_hidden("the mark without the feature", &[], |image| {
        set(image, &["/small flags 0x80800", "/fast flags 0x800", "/slow flags 0x80800"]);
    });
}

#[test]
fn targets_of_damaged_links_are_removed() {
    for options in [&[][..], &["-O", "ea_inode"]] {
        assert_hidden("deleted links", options, |image| {
            set(image, &["/fast size 0", "/fast links_count 0"]);
        });
    }
    assert_hidden("wrong sizes", &[], |image| {
        set(image, &["/fast size 5000", "/slow size 4"]);
        put(image, "/slow", 400, b"secret behind a target");
    });
    assert_hidden("a long target", &[], |image| {
        put(image, "/slow", 400, b"secret behind a target");
        set(image, &["/slow size 900"]);
    });
}

#[test]
fn directories_that_damage_shows_as_bitmaps_are_scrambled() {
    assert_hidden("a bitmap", &[], |image| {
        let leaf = blocks(image, "/secret-directory")[1];
        debugfs::write(image, &format!("set_block_group 0 block_bitmap {leaf}"));
    });
}

#[test]
fn data_in_damaged_inodes_is_removed() {
    assert_hidden("a wrong length of fields", &["-O", "inline_data"], |image| {
        set(image, &["/inline extra_isize 60000"]);
    });
}

/// Programs that make file systems leave parts of the disk as they were.
#[test]
fn earlier_content_of_the_disk_is_in_no_image() {
    for options in [
        &["-t", "ext4", "-b", "1024", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"][..],
        &["-t", "ext4", "-b", "4096", "-O", "fast_commit", "-E", "nodiscard,lazy_journal_init=1"],
        &["-t", "ext3", "-b", "1024", "-E", "nodiscard,lazy_itable_init=1,resize=1000000"],
    ] {
        let scratch = Scratch::new();
        let path = scratch.join("disk");
        let old = b"confidential of before ";
        fs::write(&path, old.repeat((24 << 20) / old.len() + 1)).expect("a disk");
        let mut args: Vec<std::ffi::OsString> = options.iter().map(Into::into).collect();
        args.extend(["-q".into(), "-F".into(), path.clone().into(), "24576k".into()]);
        tool::run("mke2fs", &args).must_succeed();
        let (saved, told) = save(&fs::read(&path).expect("a disk"), None).expect("an image");
        // The first kilobyte is before the superblock.
        assert!(!has(&saved[1024..], "confidential"), "{options:?}");
        assert_eq!(told.problems, [""; 0], "{options:?}");
    }
}
