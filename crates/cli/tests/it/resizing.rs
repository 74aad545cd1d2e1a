//! `extant resize`, and the program under the name resize2fs.

use crate::args;
use crate::program::{EXTANT, done, json, refused};
use crate::recovery::crashed;
use extant_testkit::kernel::{Loop, Mount};
use extant_testkit::tool::run;
use extant_testkit::{FeatureSet, Image, Scratch, e2fsck};
use std::os::unix::fs::symlink;
use std::path::Path;

const MIB: u64 = 1 << 20;

fn image() -> Image {
    FeatureSet::named("1k").make_sized(28 * MIB)
}

fn len(path: &Path) -> u64 {
    std::fs::metadata(path).expect("an image").len()
}

fn size_by_kernel(image: &Path) -> u64 {
    let mount = Mount::new(image, "minixdf");
    let usage = rustix::fs::statvfs(mount.path()).expect("a mount");
    let bytes = usage.f_blocks * usage.f_frsize;
    mount.unmount();
    bytes
}

#[test]
fn an_image_file_grows_with_its_file_system() {
    let image = image();
    let before = image.bytes();
    let dry = json(&args!["resize", "--dry-run", image.path(), "100M"]);
    assert_eq!(dry["after"]["bytes"].as_u64(), Some(100 * MIB), "{dry}");
    assert_eq!(dry["dry_run"], true);
    assert!(image.bytes() == before, "a dry run wrote");
    let printed = done(&args!["resize", image.path(), "+20M"]).text();
    assert!(printed.is_empty() && len(image.path()) == 48 * MIB, "{printed}");
    let document = json(&args!["resize", image.path(), "100M"]);
    assert_eq!(document["before"]["blocks"].as_u64(), Some(48 << 10), "{document}");
    assert_eq!(document["after"]["blocks"].as_u64(), Some(100 << 10), "{document}");
    assert_eq!(len(image.path()), 100 * MIB);
    image.assert_clean();
    assert!(size_by_kernel(image.path()) > 99 * MIB);
}

#[test]
fn without_a_size_it_fills_the_device() {
    let image = image();
    let file = std::fs::OpenOptions::new().write(true).open(image.path()).expect("an image");
    file.set_len(64 * MIB).expect("space");
    let disk = Loop::attach(image.path(), false);
    done(&args!["resize", disk.device()]);
    let again = json(&args!["resize", disk.device()]);
    assert_eq!(again["before"], again["after"]);
    assert_eq!(again["after"]["bytes"].as_u64(), Some(64 * MIB));
    // A device does not grow.
    refused(&args!["resize", disk.device(), "65M"], 1, "make the device or partition larger");
    drop(disk);
    image.assert_clean();
}

#[test]
fn what_cannot_be_had_is_refused_with_the_remedy() {
    let image = image();
    let before = image.bytes();
    refused(&args!["resize", image.path(), "1M"], 1, "--estimate");
    refused(&args!["resize", image.path(), "much"], 2, "not a size");
    refused(&args!["resize", image.path(), "-5M"], 2, "");
    refused(&args!["resize", image.path(), "+99999999T"], 2, "not a size");
    let mount = Mount::new(image.path(), "");
    refused(&args!["resize", image.path(), "40M"], 1, "unmount it");
    mount.unmount();
    assert_eq!(len(image.path()), before.len() as u64);
    let torn = crashed(FeatureSet::named("1k"));
    torn.leave_unjudged("it needs recovery");
    refused(&args!["resize", torn.path(), "+40M"], 1, "extant recover");
    let zero = Image::blank(MIB);
    zero.leave_unjudged("it has no file system");
    refused(&args!["resize", zero.path(), "4M"], 1, "");
    assert_eq!(len(zero.path()), MIB);
}

/// Returns an image with files behind its middle.
fn filled() -> Image {
    let image = image();
    let mount = Mount::new(image.path(), "");
    for n in 0..40 {
        let dir = mount.join(format!("dir{n}"));
        std::fs::create_dir(&dir).expect("a directory");
        std::fs::write(dir.join("file"), vec![n; 100_000]).expect("space");
    }
    mount.unmount();
    image
}

#[test]
fn an_image_file_shrinks_with_its_file_system() {
    let image = filled();
    let (before, files) = (image.bytes(), done(&args!["hash", image.path()]).text());
    let dry = json(&args!["resize", "--dry-run", image.path(), "16M"]);
    assert_eq!(dry["after"]["bytes"].as_u64(), Some(16 * MIB), "{dry}");
    assert!(image.bytes() == before, "a dry run wrote");
    done(&args!["resize", image.path(), "16M"]);
    assert_eq!(len(image.path()), 16 * MIB);
    image.assert_clean();
    assert_eq!(done(&args!["hash", image.path()]).text(), files);
    assert!(size_by_kernel(image.path()) > 15 * MIB);
}

#[test]
fn the_estimate_is_reached() {
    let image = filled();
    let before = image.bytes();
    let files = done(&args!["hash", image.path()]).text();
    let least = done(&args!["resize", "--estimate", image.path()]).text();
    let least: u64 = least.trim().parse().expect("a number");
    let below = (least - 1024).to_string();
    refused(&args!["resize", image.path(), below], 1, "does not fit");
    refused(&args!["resize", "--minimum", image.path(), "20M"], 2, "cannot be used with");
    assert!(image.bytes() == before, "an estimate wrote");
    let document = json(&args!["resize", "--minimum", image.path()]);
    assert_eq!(document["after"]["bytes"].as_u64(), Some(least), "{document}");
    assert_eq!(len(image.path()), least);
    image.assert_clean();
    assert_eq!(done(&args!["hash", image.path()]).text(), files);
}

#[test]
fn a_block_device_keeps_its_size() {
    let image = filled();
    let disk = Loop::attach(image.path(), false);
    let document = json(&args!["resize", disk.device(), "16M"]);
    assert_eq!(document["after"]["bytes"].as_u64(), Some(16 * MIB));
    drop(disk);
    assert_eq!(len(image.path()), 28 * MIB);
    image.assert_clean();
    done(&args!["resize", image.path()]);
    image.assert_clean();
}

#[test]
fn no_size_is_smaller_without_a_journal() {
    let image = Image::mke2fs(28 * MIB, &["-t", "ext2", "-b", "1024"]);
    refused(&args!["resize", image.path(), "20M"], 1, "extant build NEW");
}

#[test]
fn resize2fs_counts_blocks() {
    let names = Scratch::new();
    symlink(EXTANT, names.join("resize2fs")).expect("a link");
    let name = names.join("resize2fs");
    let call = |args: &[std::ffi::OsString]| run(name.to_str().expect("a name"), args);
    let image = image();
    for (size, mib) in [("34816", 34), ("36M", 36), ("79872s", 39)] {
        call(&args!["-f", "-p", image.path(), size]).must_succeed();
        assert_eq!(len(image.path()), mib * MIB, "{size}");
        e2fsck::check(image.path()).assert_clean();
    }
    let estimate = call(&args!["-P", image.path()]).must_succeed().text();
    let least = estimate.strip_prefix("Estimated minimum size of the filesystem: ");
    let least: u64 = least.expect("an estimate").trim().parse().expect("a number");
    call(&args!["-M", "-p", image.path()]).must_succeed();
    assert_eq!(len(image.path()), least * 1024);
    e2fsck::check(image.path()).assert_clean();
}
