//! `extant resize`, and the program under the name resize2fs.

use crate::args;
use crate::program::{EXTANT, done, json, refused};
use crate::recovery::crashed;
use extant_check::RedoRecord;
use extant_check::resize::{NewSize, Resize};
use extant_engine::device::BlockDevice;
use extant_testkit::kernel::{Loop, Mount};
use extant_testkit::memory::Memory;
use extant_testkit::tool::run;
use extant_testkit::{FeatureSet, Image, Scratch, e2fsck};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

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
    let before = image.bytes();
    refused(&args!["resize", image.path(), "20M"], 1, "extant build NEW");
    assert!(image.bytes() == before, "a refused change wrote");
}

/// Interrupts a change of the size when its redo file is complete.
fn interrupted(image: &Path, redo: &Path, bytes: u64) {
    let memory = Arc::new(Memory::from_bytes(&fs::read(image).unwrap()));
    memory.leave_unjudged("the image is judged");
    let (device, mut file): (Arc<dyn BlockDevice>, _) = (memory.clone(), Vec::new());
    let plan = Resize::new(device).plan(NewSize::Bytes(bytes)).unwrap();
    let mut save = |record: &RedoRecord<'_>| {
        fs::write(image, memory.to_vec())?;
        record.write_to(&mut file)
    };
    plan.apply_with_redo(&mut save).unwrap();
    fs::write(redo, file).unwrap();
}

#[test]
fn a_redo_file_holds_another_size_until_it_is_made() {
    let image = Image::mke2fs(28 * MIB, &["-t", "ext2", "-b", "1024"]);
    let redo = image.scratch().join("redo");
    for (size, mib) in [("20M", 20), ("36M", 36)] {
        let printed = done(&args!["resize", "--redo", &redo, image.path(), size]);
        let told = format!("`extant recover --redo {} ", redo.display());
        assert!(printed.errors().contains(&told), "{printed}");
        assert!(!redo.exists(), "the file of a change that is made stays");
        assert_eq!(len(image.path()), mib * MIB, "{size}");
        e2fsck::check(image.path()).assert_clean();
    }
    let recover = args!["recover", "--redo", &redo, image.path()];
    for mib in [40, 24] {
        let copy = image.bytes();
        interrupted(image.path(), &redo, mib * MIB);
        assert_eq!(len(image.path()), 40 * MIB, "not extended before, or cut too early");
        assert!(done(&recover).errors().contains("completed a change of "));
        assert_eq!(len(image.path()), mib * MIB);
        e2fsck::check(image.path()).assert_clean();
        assert!(done(&recover).errors().contains("made already"));
        if mib == 40 {
            // A copy from before the change.
            let made = image.bytes();
            fs::write(image.path(), copy).unwrap();
            refused(&recover, 1, "length of the device");
            fs::write(image.path(), made).unwrap();
        }
    }
    done(&args!["resize", "--redo", image.scratch().join("other"), "-M", image.path()]);
    assert!(len(image.path()) < 20 * MIB);
    e2fsck::check(image.path()).assert_clean();
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

/// As `repair --undo`: to both sides, under both names.
#[test]
fn an_undo_file_takes_another_size_back() {
    let names = Scratch::new();
    symlink(EXTANT, names.join("resize2fs")).expect("a link");
    let name = names.join("resize2fs");
    let image = image();
    let before = image.bytes();
    for (nr, size) in ["40M", "16M"].into_iter().enumerate() {
        let undo = names.join(format!("undo{nr}"));
        done(&args!["resize", "--undo", &undo, image.path(), size]);
        assert!(len(image.path()) != before.len() as u64, "{size}");
        e2fsck::check(image.path()).assert_clean();
        done(&args!["repair", "--restore", &undo, image.path()]);
        assert!(image.bytes() == before, "{size}: the old image is not back");
        let undo = names.join(format!("undo{nr}z"));
        let call = args!["-z", &undo, image.path(), size];
        run(name.to_str().expect("a name"), &call).must_succeed();
        done(&args!["repair", "--restore", &undo, image.path()]);
        assert!(image.bytes() == before, "{size}: the old image is not back");
    }
    // A file that exists is not replaced, and nothing is changed.
    refused(&args!["resize", "--undo", names.join("undo0"), image.path(), "40M"], 1, "exists");
    assert!(image.bytes() == before, "a refused change wrote");
}
