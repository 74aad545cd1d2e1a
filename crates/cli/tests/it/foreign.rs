//! Images that hold something else: mkfs asks before it overwrites them, readers name them.

use crate::args;
use crate::program::{EXTANT, done, extant, refused};
use extant_testkit::tool::{need, run};
use extant_testkit::{FeatureSet, Image, Scratch, e2fsck};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Begins of foreign images by their name: bytes at a place.
const FOREIGN: [(&str, u64, &[u8]); 10] = [
    ("XFS", 0, b"XFSB"),
    ("btrfs", 65_600, b"_BHRfS_M"),
    ("SquashFS", 0, b"hsqs"),
    ("F2FS", 1024, b"\x10\x20\xf5\xf2"),
    ("LUKS", 0, b"LUKS\xba\xbe"),
    ("LVM", 512, b"LABELONE"),
    ("qcow2", 0, b"QFI\xfb"),
    ("GPT", 512, b"EFI PART"),
    ("RAID", (16 << 20) - (64 << 10), b"\xfc\x4e\x2b\xa9"),
    ("ZFS", 200 << 10, b"\x0c\xb1\xba\0\0\0\0\0"),
];

fn put(path: &Path, at: u64, bytes: &[u8]) {
    std::fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

/// An image with one partition, from 1 MiB on.
fn partitioned(path: &Path) {
    put(path, 446, &[0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0x40, 0, 0]);
    put(path, 510, &[0x55, 0xaa]);
}

#[test]
fn mkfs_overwrites_foreign_images_only_if_told() {
    for (name, at, magic) in FOREIGN {
        let image = Image::blank(16 << 20);
        image.leave_unjudged("it holds no ext4 file system");
        put(image.path(), at, magic);
        let before = image.bytes();
        refused(&args!["mkfs", image.path()], 1, name);
        refused(&args!["mkfs", image.path(), "32M"], 1, "-F overwrites it");
        assert!(before == image.bytes(), "{name}: a refusal wrote, or let the file grow");
        done(&args!["mkfs", "-F", image.path()]);
        e2fsck::check(image.path()).assert_clean();
        let left = run(
            "blkid",
            &[
                "-p".as_ref(),
                "-o".as_ref(),
                "value".as_ref(),
                "-s".as_ref(),
                "TYPE".as_ref(),
                image.path().as_os_str(),
            ],
        );
        assert!(["ext4", ""].contains(&left.text().trim()), "{name}: {left}");
    }
}

/// An offset may be mistaken: content around it is overwritten only with -F, too.
#[test]
fn mkfs_overwrites_no_part_of_something_larger() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let table = Image::blank(16 << 20);
    table.leave_unjudged("it holds a partition table");
    partitioned(table.path());
    for (disk, words) in [(&image, "ext4"), (&table, "partition table")] {
        let before = disk.bytes();
        let mut place = disk.path().as_os_str().to_owned();
        place.push("@2M");
        refused(&args!["mkfs", &place, "4M"], 1, words);
        assert!(before == disk.bytes());
    }
    let mut partition = table.path().as_os_str().to_owned();
    partition.push("@p1");
    done(&args!["mkfs", &partition]);
}

#[test]
fn mkfs_overwrites_foreign_formats_only_with_force() {
    let scratch = Scratch::new();
    let source = scratch.dir("source");
    std::fs::write(source.join("f"), "x").unwrap();
    for (name, tool, options) in [
        ("swap space", "mkswap", &[][..]),
        ("Minix", "mkfs.minix", &[]),
        ("cramfs", "mkfs.cramfs", &["source"]),
    ] {
        let image = Image::blank(16 << 20);
        image.leave_unjudged("it holds no ext4 file system");
        let mut words: Vec<std::ffi::OsString> =
            options.iter().map(|_| source.clone().into()).collect();
        words.push(image.path().into());
        run(need(tool).to_str().unwrap(), &words).must_succeed();
        let before = image.bytes();
        refused(&args!["mkfs", image.path()], 1, name);
        assert!(before == image.bytes(), "{name}");
    }
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let before = image.bytes();
    refused(&args!["mkfs", image.path()], 1, "an ext2, ext3 or ext4 file system");
    assert!(before == image.bytes());
}

/// On a terminal, which script(1) makes, the question is asked.
#[test]
fn mkfs_asks_on_a_terminal() {
    for (answer, made) in [("n", false), ("", false), ("y", true)] {
        let image = Image::blank(16 << 20);
        put(image.path(), 0, b"XFSB");
        let command = format!("{EXTANT} mkfs {}", image.path().display());
        let script = format!(
            "printf '{answer}\\n' | {} -qec '{command}' /dev/null",
            need("script").display()
        );
        let printed = run("sh", &["-c", &script]);
        assert!(printed.text().contains("XFS") && printed.text().contains("(y/N)"), "{printed}");
        let begin = &image.bytes()[..4];
        assert_eq!((printed.code == 0, begin != b"XFSB"), (made, made), "{answer:?}: {printed}");
        if !made {
            image.leave_unjudged("it holds no ext4 file system");
        }
    }
}

#[test]
fn readers_name_a_foreign_format_and_the_remedy() {
    for (name, at, magic) in FOREIGN {
        let image = Image::blank(16 << 20);
        image.leave_unjudged("it holds no ext4 file system");
        put(image.path(), at, magic);
        refused(&args!["ls", image.path()], 1, name);
        assert!(!extant(&args!["info", image.path()]).errors().contains("magic"), "{name}");
    }
    let disk = Image::blank(16 << 20);
    disk.leave_unjudged("it holds no ext4 file system");
    refused(&args!["ls", disk.path()], 1, "holds no file system that is known");
    partitioned(disk.path());
    refused(&args!["ls", disk.path()], 1, "@p1 names a partition");
    refused(&args!["mkfs", disk.path()], 1, "an MBR partition table");
    done(&args!["mkfs", format!("{}@p1", disk.path().display())]);
    done(&args!["ls", format!("{}@p1", disk.path().display())]);
    put(disk.path(), 0, b"QFI\xfb");
    refused(&args!["ls", disk.path()], 1, "--format qcow2");
}
