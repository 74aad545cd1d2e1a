//! The program under the names of mke2fs and fuse2fs, remounts, and images in use.

use crate::args;
use crate::helpers::{Names, options_of};
use crate::program::{extant, is_mount, json};
use crate::recovery::crashed;
use extant_testkit::tool::run;
use extant_testkit::{FeatureSet, e2fsck, kernel};
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

fn is_read_only(dir: &Path) -> bool {
    options_of(dir, "VFS-OPTIONS").split(',').any(|word| word == "ro")
}

fn is_protected(dir: &Path) -> bool {
    options_of(dir, "VFS-OPTIONS").contains("nosuid,nodev")
}

/// Programs and devices of an image file get no power unless that was asked for, also for root.
/// Those of a disk do, as on the kernel's ext4.
#[test]
fn image_files_are_mounted_without_privileges() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let dir = names.0.dir("mnt");
    let shown = |word: &str| options_of(&dir, "VFS-OPTIONS").split(',').any(|w| w == word);
    for (options, flags) in [
        ("rw", [true, true]),
        ("ro", [true, true]),
        ("rw,suid", [false, true]),
        ("dev", [true, false]),
        ("ro,suid,dev", [false, false]),
    ] {
        let own = args![image.path(), &dir, "-o", options];
        names.call("mount.fuse.extant", &own).must_succeed();
        let first = ["nosuid", "nodev"].map(shown);
        let device = dir.join("device");
        let made = rustix::fs::makedev(1, 3);
        let opened = (!options.contains("ro")).then(|| {
            use rustix::fs::{CWD, FileType, Mode, mknodat};
            let _ = std::fs::remove_file(&device);
            mknodat(CWD, &device, FileType::CharacterDevice, Mode::RUSR, made).unwrap();
            std::fs::File::open(&device).is_ok()
        });
        // A mount for reading is mounted anew.
        extant(&args!["mount", image.path(), &dir, "-o", "remount,rw"]).must_succeed();
        let remounted = ["nosuid", "nodev"].map(shown);
        run("umount", &[&dir]).must_succeed();
        extant(&args!["info", "--wait", image.path()]).must_succeed();
        assert_eq!((first, remounted), (flags, flags), "{options}");
        assert!(opened.is_none_or(|opened| opened != flags[1]), "{options}");
    }
    let disk = kernel::Loop::attach(image.path(), false);
    names.call("mount.fuse.extant", &args![disk.device(), &dir]).must_succeed();
    let protected = ["nosuid", "nodev"].map(shown);
    names.call("umount.fuse", &args![&dir]).must_succeed();
    drop(disk);
    assert_eq!(protected, [false, false]);
}

/// A remount keeps the options that it does not name: programs of an image get no privileges by it.
#[test]
fn remounts_keep_views_and_protection() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let dir = names.0.dir("mnt");
    let remount = |options: &str| {
        extant(&args!["mount", image.path(), &dir, "-o", format!("remount,{options}")])
            .must_succeed();
        names.call("mount.fuse.extant", &args![image.path(), &dir, "-o", "remount,rw"])
    };
    for first in ["fakeroot,allow_other,uid=7", "fakeroot,allow_other,uid=7,ro"] {
        extant(&args!["mount", image.path(), &dir, "-o", first]).must_succeed();
        remount("rw,suid").must_succeed();
        assert!(is_protected(&dir), "{first}");
        assert!(!options_of(&dir, "FS-OPTIONS").contains("default_permissions"), "{first}");
        assert_eq!(std::fs::metadata(&dir).unwrap().uid(), 7, "{first}");
        run("umount", &[&dir]).must_succeed();
    }
    extant(&args!["mount", image.path(), &dir, "-o", "nosuid,nodev"]).must_succeed();
    remount("noatime").must_succeed();
    assert!(is_protected(&dir));
    names
        .call("mount.fuse.extant", &args![image.path(), &dir, "-o", "remount,rw,suid,dev"])
        .must_succeed();
    assert!(!is_protected(&dir), "it was asked for");
    names
        .call("mount.fuse.extant", &args![image.path(), &dir, "-o", "remount,ro,noexec"])
        .must_succeed();
    extant(&args!["mount", image.path(), &dir, "-o", "remount,noatime"]).must_succeed();
    let shown = options_of(&dir, "VFS-OPTIONS");
    for word in ["ro", "noexec", "noatime"] {
        assert!(shown.split(',').any(|shown| shown == word), "{word} in {shown}");
    }
    for shows in ["strictatime", "noatime", "relatime"] {
        extant(&args!["mount", image.path(), &dir, "-o", format!("remount,{shows}")])
            .must_succeed();
        let shown = options_of(&dir, "VFS-OPTIONS");
        let is_shown = |name: &str| shown.split(',').any(|word| word == name);
        let times = ["noatime", "relatime"].map(is_shown);
        assert_eq!(times, ["noatime", "relatime"].map(|name| name == shows), "{shows}: {shown}");
    }
    let printed = extant(&args!["mount", image.path(), &dir, "-o", "remount,uid=7"]);
    assert!(printed.code == 1 && printed.errors().contains("cannot change"), "{printed}");
    let second = names.0.dir("second");
    let printed = names.call("mount.fuse.extant", &args![image.path(), &second, "-o", "umask=077"]);
    assert!(printed.code == 32 && printed.errors().contains("other owners"), "{printed}");
    run("umount", &[&dir]).must_succeed();
    // Evidence stays as it is.
    let crashed = crashed(FeatureSet::named("default"));
    let bytes = crashed.bytes();
    crashed.leave_unjudged("its journal is not replayed");
    extant(&args!["mount", crashed.path(), &dir, "-o", "noload"]).must_succeed();
    extant(&args!["mount", crashed.path(), &dir, "-o", "remount,nosuid"]).must_succeed();
    assert!(is_read_only(&dir));
    run("umount", &[&dir]).must_succeed();
    names.call("mount.fuse.extant", &args![crashed.path(), &dir, "-o", "ro,sb=32768"]);
    if is_mount(&dir) {
        run("umount", &[&dir]).must_succeed();
    }
    assert!(crashed.bytes() == bytes, "the image has changed");
}

/// The calls of programs that know fuse2fs: an image within a file, owned by others.
#[test]
fn fuse2fs_takes_an_offset_and_a_view() {
    const OFFSET: u64 = 1 << 20;
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let whole = names.0.join("whole.img");
    std::fs::write(&whole, [vec![0; OFFSET as usize], image.bytes()].concat()).unwrap();
    let dir = names.0.dir("mnt");
    let options_at = |offset: u64| format!("offset={offset},no_default_opts");
    let options = format!("{},fakeroot,uid=1000,gid=1000", options_at(OFFSET));
    names.call("fuse2fs", &args!["-o", options, &whole, &dir]).must_succeed();
    assert!(is_protected(&dir));
    let fs_options = options_of(&dir, "FS-OPTIONS");
    assert!(!fs_options.contains("default_permissions") && !fs_options.contains("allow_other"));
    assert_eq!(std::fs::metadata(&dir).unwrap().uid(), 1000);
    std::fs::write(dir.join("file"), "content").unwrap();
    run("umount", &[&dir]).must_succeed();
    names.call("fuse2fs", &args![&whole, &dir, "-o", options_at(OFFSET)]).must_succeed();
    assert!(is_protected(&dir) && !options_of(&dir, "FS-OPTIONS").contains("allow_other"));
    run("umount", &[&dir]).must_succeed();
    let part = names.0.join("whole.img@1048576");
    let stat = json(&args!["stat", &part, "/file", "--json"]);
    assert_eq!(stat[0]["uid"], 0, "{stat}");
}

/// An image in use is not replaced: changes through the mount would be lost.
#[test]
fn images_in_use_are_not_replaced() {
    let names = Names::new();
    let (top, dir) = (names.0.dir("top"), names.0.dir("mnt"));
    let [image, other] = [(); 2].map(|()| FeatureSet::named("default").make_sized(32 << 20));
    let refuse = || {
        let calls = [
            names.call("mke2fs", &args!["-F", "-d", &top, image.path(), "16M"]),
            extant(&args!["build", image.path(), &top]),
            extant(&args!["clone", "--force", other.path(), image.path()]),
        ];
        for printed in calls {
            assert!(printed.code == 1 && printed.errors().contains("in use"), "{printed}");
        }
    };
    let kernel = kernel::Mount::new(image.path(), "");
    refuse();
    std::fs::write(kernel.join("file"), "content").unwrap();
    kernel.unmount();
    extant(&args!["mount", image.path(), &dir]).must_succeed();
    refuse();
    assert_eq!(std::fs::read(dir.join("file")).unwrap(), b"content");
    run("umount", &[&dir]).must_succeed();
}

/// The call by which builders of disks fill an image. The type follows from the name.
#[test]
fn mke2fs_fills_an_image_from_a_directory() {
    let names = Names::new();
    let (top, image) = (names.0.dir("top"), names.0.join("made"));
    std::fs::write(top.join("file"), "content").unwrap();
    names
        .call("mke2fs", &args!["-q", "-F", "-t", "ext4", "-d", &top, "-b", "4096", &image, "8192"])
        .must_succeed();
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 8192 * 4096);
    e2fsck::check(&image).assert_clean();
    let mount = kernel::Mount::new(&image, "ro");
    assert_eq!(std::fs::read(mount.join("file")).unwrap(), b"content");
    mount.unmount();
    // Without a size the image keeps its own, and its permissions.
    std::fs::set_permissions(&image, Permissions::from_mode(0o600)).unwrap();
    names.call("mke2fs", &args!["-q", "-d", &top, &image]).must_succeed();
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 8192 * 4096);
    assert_eq!(std::fs::metadata(&image).unwrap().mode() & 0o777, 0o600);
    let info = json(&args!["info", &image]);
    let features = info["features"].to_string();
    assert!(!features.contains("has_journal") && !features.contains("extent"), "{features}");
}

/// The places of copies are those of mke2fs, and nothing is written.
#[test]
fn mke2fs_tells_where_copies_would_lie() {
    let names = Names::new();
    let image = names.0.join("made");
    std::fs::write(&image, vec![7; 32 << 20]).unwrap();
    let call = args!["-n", "-F", "-t", "ext4", "-b", "1024", "-g", "2048", &image];
    let theirs = run("mke2fs", &call).must_succeed();
    let digits = |text: &str| -> Vec<u64> {
        text.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
    };
    let text = theirs.text();
    let copies = digits(text.split_once("stored on blocks").unwrap().1);
    assert!(copies.len() > 1, "{text}");
    let ours = json(&args!["mkfs", "-n", "-b", "1024", "-g", "2048", &image]);
    assert_eq!(ours["superblock_copies"], serde_json::json!(copies));
    assert!(std::fs::read(&image).unwrap().iter().all(|byte| *byte == 7));
    names.call("mke2fs", &call[1..]).must_succeed();
    e2fsck::check(&image).assert_clean();
    let mount = kernel::Mount::new(&image, "");
    std::fs::write(mount.join("file"), vec![1; 20 << 20]).unwrap();
    mount.unmount();
    e2fsck::check(&image).assert_clean();
    extant(&args!["check", &image]).must_succeed();
}

#[test]
fn mke2fs_makes_a_file_system_at_an_offset() {
    let names = Names::new();
    let image = names.0.join("made");
    std::fs::write(&image, vec![7; 20 << 20]).unwrap();
    let call = args!["-F", "-t", "ext4", "-E", "offset=1048576", &image, "16M"];
    names.call("mke2fs", &call).must_succeed();
    let bytes = std::fs::read(&image).unwrap();
    assert_eq!(bytes.len(), 20 << 20);
    let kept = [&bytes[..1 << 20], &bytes[17 << 20..]].concat();
    assert!(kept.iter().all(|byte| *byte == 7));
    std::fs::write(&image, &bytes[1 << 20..17 << 20]).unwrap();
    e2fsck::check(&image).assert_clean();
}
