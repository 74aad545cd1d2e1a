//! Reading of images whose superblock, descriptors or end are damaged or missing.

use crate::args;
use crate::program::{done, extant, refused};
use crate::recovery::crashed;
use extant_testkit::tool::Printed;
use extant_testkit::tree::{Plan, Shape};
use extant_testkit::{FeatureSet, Image, Scratch, debugfs, dumpe2fs, e2fsck};
use std::fs::{self, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;

const SUPERBLOCK: Range<u64> = 1024..2048;

fn overwrite(image: &Image, bytes: Range<u64>) {
    image.leave_unjudged("a part was overwritten");
    let file = OpenOptions::new().write(true).open(image.path()).unwrap();
    file.write_all_at(&vec![0xa5; (bytes.end - bytes.start) as usize], bytes.start).unwrap();
}

/// The digest of the tree, read from a damaged image, which must stay as it is.
#[track_caller]
fn damaged_digest(image: &Image, words: &str) -> String {
    let changed = fs::metadata(image.path()).unwrap().modified().unwrap();
    let printed: Printed = extant(&args!["hash", image.path()]);
    assert_eq!(printed.code, 3, "{printed}");
    assert!(printed.errors().contains(words), "no `{words}` in {printed}");
    assert!(printed.errors().contains("`extant repair "), "{printed}");
    refused(&args!["hash", "--damaged", "refuse", image.path()], 1, "`extant repair ");
    assert_eq!(fs::metadata(image.path()).unwrap().modified().unwrap(), changed);
    printed.text()
}

#[test]
fn copies_replace_the_superblock_and_descriptors() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    Plan::random(5, &Shape::small()).apply(&top);
    for options in [
        &["-t", "ext4"][..],
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext4", "-O", "^metadata_csum,^64bit"],
        &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode"],
        &["-t", "ext4", "-O", "bigalloc"],
        &["-t", "ext2", "-b", "1024"],
    ] {
        let image = Image::mke2fs(300 << 20, options);
        done(&args!["put", image.path(), &top, "/"]);
        let expected = done(&args!["hash", image.path()]).text();
        let dump = dumpe2fs::dump(image.path());
        let (first, last) = dump.groups[0].descriptors.expect("descriptors");
        let size = dump.number("Block size");
        let intact = image.bytes()[..((last + 1) * size) as usize].to_vec();
        overwrite(&image, SUPERBLOCK);
        assert_eq!(damaged_digest(&image, "the superblock is replaced"), expected, "{options:?}");
        overwrite(&image, 0..(last + 1) * size);
        assert_eq!(damaged_digest(&image, "group descriptors are"), expected, "{options:?}");
        refused(&args!["mkdir", image.path(), "/new"], 1, "`extant repair ");
        let file = OpenOptions::new().write(true).open(image.path()).unwrap();
        file.write_all_at(&intact, 0).unwrap();
        overwrite(&image, first * size..(last + 1) * size);
        assert_eq!(damaged_digest(&image, "group descriptors are"), expected, "{options:?}");
        overwrite(&image, 0..(last + 1) * size);
        let printed = extant(&args!["repair", image.path()]);
        assert_eq!(printed.code, 1, "{options:?}: {printed}");
        assert!(printed.text().contains("superblock-replaced"), "{printed}");
        e2fsck::check(image.path()).assert_clean();
        assert_eq!(done(&args!["hash", image.path()]).text(), expected, "{options:?}");
    }
}

/// The primary superblock is valid, but that of another file system.
#[test]
fn the_copy_to_read_by_may_be_named() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    fs::write(top.join("text"), "text").unwrap();
    let image = Image::mke2fs(40 << 20, &["-t", "ext4", "-b", "1024"]);
    done(&args!["put", image.path(), &top, "/"]);
    let expected = done(&args!["hash", image.path()]).text();
    let other = Image::mke2fs(40 << 20, &["-t", "ext4", "-b", "4096"]);
    image.leave_unjudged("it has the superblock of another one");
    let file = OpenOptions::new().write(true).open(image.path()).unwrap();
    file.write_all_at(&other.bytes()[1024..2048], 1024).unwrap();
    let printed = extant(&args!["hash", "--superblock", "8193", image.path()]);
    assert_eq!((printed.code, printed.text()), (3, expected), "{printed}");
    refused(&args!["ls", "--superblock", "8194", image.path(), "/"], 1, "block 8194 has no copy");
    let usage = args!["ls", "--superblock", "8193", "--damaged", "refuse", image.path(), "/"];
    refused(&usage, 2, "cannot be used with");
}

#[test]
fn a_journal_is_replayed_although_a_copy_does_not_ask_for_it() {
    let image = crashed(FeatureSet::named("1k"));
    let expected = done(&args!["hash", image.path()]).text();
    overwrite(&image, SUPERBLOCK);
    assert_eq!(damaged_digest(&image, "the superblock is replaced"), expected);
    let told = extant(&args!["--verbose", "ls", image.path(), "/"]).errors();
    assert!(told.contains("replayed") && told.contains("in memory"), "{told}");
}

#[test]
fn a_shortened_image_shows_what_is_left() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    fs::write(top.join("text"), "text").unwrap();
    let image = Image::mke2fs(64 << 20, &["-t", "ext4"]);
    done(&args!["put", image.path(), &top, "/"]);
    fs::write(top.join("large"), vec![7; 40 << 20]).unwrap();
    done(&args!["put", image.path(), top.join("large"), "/large"]);
    image.leave_unjudged("its end is missing");
    OpenOptions::new().write(true).open(image.path()).unwrap().set_len(30 << 20).unwrap();
    let printed = extant(&args!["cat", image.path(), "/text"]);
    assert_eq!((printed.code, printed.text().as_str()), (3, "text"), "{printed}");
    assert!(printed.errors().contains("the last 35651584 bytes are missing"), "{printed}");
    assert!(printed.errors().contains("only another copy of the image has its end"), "{printed}");
    refused(&args!["rm", image.path(), "/text"], 1, "only another copy of the image has its end");
    let printed = extant(&args!["ls", image.path(), "/"]);
    assert_eq!(printed.code, 3, "{printed}");
    assert!(printed.text().contains("large"), "{printed}");
    let out = scratch.join("out");
    refused(&args!["get", image.path(), "/large", &out], 1, "beyond the end at 31457280");
    assert!(!out.exists());
}

/// The false length of a shortened image bounds nothing: its files would hold any number of bytes.
#[test]
fn files_of_a_shortened_image_hold_no_more_than_is_left() {
    const LEFT: u64 = 64 << 20;
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    fs::write(top.join("first"), vec![7; 4 << 20]).unwrap();
    for number in 0..30 {
        fs::write(top.join(format!("more-{number}")), "").unwrap();
    }
    let image = Image::mke2fs(1 << 30, &["-t", "ext4", "-O", "^metadata_csum"]);
    done(&args!["put", image.path(), &top, "/"]);
    for number in 0..30 {
        debugfs::write(image.path(), &format!("copy_inode /first /more-{number}"));
    }
    image.leave_unjudged("its end is missing, and inodes share blocks");
    OpenOptions::new().write(true).open(image.path()).unwrap().set_len(LEFT).unwrap();
    let (out, archive) = (scratch.join("out"), scratch.join("a.tar"));
    let printed = extant(&args!["cat", image.path(), "/first"]);
    assert!(printed.code == 3 && printed.stdout == vec![7; 4 << 20], "{}", printed.errors());
    refused(&args!["get", image.path(), "/", &out], 1, "inodes share blocks");
    refused(&args!["export", image.path(), "--tar", &archive], 1, "inodes share blocks");
    refused(&args!["hash", image.path()], 1, "inodes share blocks");
    assert!(fs::metadata(&archive).unwrap().len() <= LEFT + (1 << 20));
}

#[test]
fn what_no_copy_replaces_is_an_error_at_once() {
    // A wrong checksum alone.
    let image = Image::mke2fs(64 << 20, &["-t", "ext4"]);
    overwrite(&image, 1024 + 120..1024 + 124);
    damaged_digest(&image, "the superblock is used in spite of its checksum");
    // One group has no copies.
    let image = Image::mke2fs(6 << 20, &["-t", "ext4", "-b", "1024"]);
    overwrite(&image, SUPERBLOCK);
    refused(&args!["ls", image.path(), "/"], 1, "holds no file system that is known");
    // 8,192 groups, most of which have no descriptors.
    let image = Image::mke2fs(64 << 20, &["-t", "ext4", "-O", "^metadata_csum"]);
    let dump = dumpe2fs::dump(image.path());
    let inodes = 8192 * dump.number("Inodes per group");
    let blocks = 8192 * dump.number("Blocks per group") + dump.number("First block");
    image.leave_unjudged("its number of blocks is false");
    let file = OpenOptions::new().write(true).open(image.path()).unwrap();
    let numbers = [inodes as u32, blocks as u32].map(u32::to_le_bytes);
    file.write_all_at(numbers.as_flattened(), SUPERBLOCK.start).unwrap();
    refused(&args!["ls", image.path(), "/"], 1, "shorter than its file system");
}
