//! Places of new images and archives: files, symlinks, block devices, standard output.

use crate::args;
use crate::helpers::Names;
use crate::program::{EXTANT, done, extant, json, refused};
use crate::unprivileged::{Fuse, as_user, belongs_to_user, home};
use extant_testkit::kernel::{Loop, Mount};
use extant_testkit::tool::run;
use extant_testkit::{FeatureSet, Scratch, e2fsck};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Bytes of the disks of these tests.
const DISK: usize = 24 << 20;

/// A directory to build from, and the image of it.
fn source(scratch: &Scratch) -> (PathBuf, Vec<u8>) {
    let top = scratch.dir("top");
    fs::write(top.join("large"), vec![7; 3 << 20]).unwrap();
    fs::write(top.join("small"), "text").unwrap();
    let image = scratch.join("image");
    done(&args!["build", "--free", "2M", &image, &top]);
    (top, fs::read(image).unwrap())
}

/// A file that is a disk with bytes from before.
fn used_disk(scratch: &Scratch) -> PathBuf {
    let disk = scratch.join("disk");
    fs::write(&disk, vec![0xff; DISK]).unwrap();
    scratch.leave_unjudged("disk", "the file system ends before the disk");
    disk
}

#[test]
fn a_disk_gets_the_bytes_of_the_file() {
    let scratch = Scratch::new();
    let (top, image) = source(&scratch);
    let file = used_disk(&scratch);
    let disk = Loop::attach(&file, false);
    let call = args!["build", "--free", "2M", disk.device(), &top];
    done(&call);
    let is_written = || {
        let bytes = fs::read(disk.device()).unwrap();
        assert!(bytes[..image.len()] == image, "the image differs");
        assert!(bytes[image.len()..].iter().all(|byte| *byte == 0xff), "more was written");
    };
    is_written();
    e2fsck::check(disk.device()).assert_clean();
    // The file system that is there now is not overwritten unasked.
    refused(&call, 1, "-F overwrites it");
    let forced = [&call[..], &args!["-F"]].concat();
    assert_eq!(json(&forced)["bytes"], image.len());
    is_written();
    let mounted = run("mount", &args!["-r", disk.device(), scratch.dir("mnt")]);
    mounted.must_succeed();
    let printed = extant(&forced);
    run("umount", &[scratch.join("mnt")]).must_succeed();
    assert!(printed.code == 1 && printed.errors().contains("unmount"), "{printed}");
    let sized = |size: &str| args!["build", "-F", "--size", size, disk.device(), &top];
    refused(&sized("25M"), 1, "the device has 25165824 bytes");
    refused(&sized("1M"), 1, "too small");
    is_written();
    let printed = done(&[&forced[..], &args!["--verity"]].concat()).text();
    let root = printed.lines().next().unwrap().strip_prefix("root-hash: ").unwrap();
    let offset = format!("--hash-offset={}", image.len());
    run("veritysetup", &args!["verify", disk.device(), disk.device(), root, offset]).must_succeed();
    // All of it.
    let names = Names::new();
    names
        .call("mke2fs", &args!["-q", "-F", "-t", "ext4", "-d", &top, disk.device()])
        .must_succeed();
    let mount = Mount::new(disk.device(), "ro");
    assert_eq!(fs::read(mount.join("small")).unwrap(), b"text");
    mount.unmount();
    assert_eq!(json(&args!["info", disk.device()])["blocks"], DISK / 1024);
    drop(disk);
    let disk = Loop::attach(&file, true);
    refused(&args!["build", "-F", disk.device(), &top], 1, "write-protected");
}

#[test]
fn standard_output_gets_the_bytes_of_the_file() {
    let scratch = Scratch::new();
    let (top, image) = source(&scratch);
    let call = args!["build", "--free", "2M", "-", &top];
    assert!(done(&call).stdout == image);
    refused(&[&args!["--json"], &call[..]].concat(), 2, "standard output");
    refused(&[&call[..], &args!["--verity"]].concat(), 2, "--verity");
    let script = |script: &str| {
        let quoted = format!("{EXTANT} build --free 2M - {}", top.display());
        run("bash", &["-c".to_owned(), script.replace("BUILD", &quoted)])
    };
    let printed = script("BUILD 2>&1 >/dev/full");
    assert!(printed.code == 1 && printed.text().contains("standard output: No space"), "{printed}");
    let printed = script("{ BUILD 2>&3 | head -c 9 >/dev/null; exit ${PIPESTATUS[0]}; } 3>&1");
    assert!(printed.code == 1 && printed.text().contains("Broken pipe"), "{printed}");
    let printed = script("TMPDIR=/nowhere BUILD >/dev/null");
    assert!(printed.code == 1 && printed.errors().contains("/nowhere"), "{printed}");
}

/// Returns the names in a directory, in order.
fn names(dir: &Path) -> Vec<OsString> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    names
}

#[test]
fn symlinks_stay_and_their_files_are_replaced() {
    let scratch = Scratch::new();
    let (top, image) = source(&scratch);
    let (links, files) = (scratch.dir("links"), scratch.dir("files"));
    let link = |name: &str| {
        fs::write(files.join(name), "older").unwrap();
        fs::set_permissions(files.join(name), fs::Permissions::from_mode(0o640)).unwrap();
        symlink(format!("../files/{name}"), links.join(name)).unwrap();
        (links.join(name), files.join(name))
    };
    let is_kept = |(link, file): &(PathBuf, PathBuf)| {
        assert!(fs::symlink_metadata(link).unwrap().is_symlink(), "{}", link.display());
        let found = fs::metadata(file).unwrap();
        assert!(found.is_file() && found.len() > 5, "{}", file.display());
        assert_eq!(found.permissions().mode() & 0o777, 0o640);
    };
    let built = link("built");
    done(&args!["build", "--free", "2M", &built.0, &top]);
    is_kept(&built);
    assert!(fs::read(&built.1).unwrap() == image);
    let tar = link("tar");
    done(&args!["export", &built.0, "--tar", &tar.0]);
    is_kept(&tar);
    let clone = link("clone");
    refused(&args!["clone", &built.0, &clone.0], 1, "--force");
    done(&args!["clone", "--force", &built.0, &clone.0]);
    is_kept(&clone);
    symlink("missing", links.join("dangling")).unwrap();
    for call in [
        args!["build", links.join("dangling"), &top],
        args!["clone", &built.0, links.join("dangling")],
    ] {
        refused(&call, 1, "a symlink to a missing file");
    }
    assert_eq!(names(&links), ["built", "clone", "dangling", "tar"]);
    assert_eq!(names(&files), ["built", "clone", "tar"]);
}

/// The kernel refuses links of other users in directories for all; so does the program.
#[test]
fn symlinks_of_others_in_shared_directories_lead_nowhere() {
    let home = home();
    belongs_to_user(&home.path().join("extant"));
    let shared = home.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    as_user(&home, Fuse::Root, "ln -s ../secret shared/out").must_succeed();
    let secret = home.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let setting = Path::new("/proc/sys/fs/protected_symlinks");
    let before = fs::read(setting).unwrap();
    fs::write(setting, "1").unwrap();
    let printed = extant(&args!["build", shared.join("out"), scratch_tree(&home)]);
    fs::write(setting, before).unwrap();
    assert_eq!(printed.code, 1, "{printed}");
    assert!(printed.errors().contains("Permission denied"), "{printed}");
    assert_eq!(fs::read(&secret).unwrap(), b"secret");
}

/// `/dev/stdout` is a symlink: a copy beside it would take its place, or be refused without a hint.
#[test]
fn names_of_standard_output_are_refused_with_the_name_that_works() {
    let home = home();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    fs::write(home.join("file"), "text").unwrap();
    done(&args!["put", image.path(), home.join("file"), "/file"]);
    fs::copy(image.path(), home.join("disk.img")).unwrap();
    let script = "{ extant get disk.img /file /dev/stdout || echo code $?; } 2>&1 | cat";
    let printed = as_user(&home, Fuse::Root, script).must_succeed().text();
    assert!(printed.contains("`-` writes") && printed.contains("code 2"), "{printed}");
    // Redirected into a file, it looks like one.
    let link = home.join("link");
    symlink("/proc/self/fd/1", &link).unwrap();
    let image = home.join("disk.img");
    let call = format!("{EXTANT} get {} /file {} >{0}.out", image.display(), link.display());
    let printed = run("sh", &["-c", &call]);
    assert!(printed.code == 2 && printed.errors().contains("`-` writes"), "{printed}");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "the link was replaced");
    done(&args!["get", &image, "/file", home.join("copy")]);
    assert_eq!(fs::read(home.join("copy")).unwrap(), b"text");
}

fn scratch_tree(scratch: &Scratch) -> PathBuf {
    let top = scratch.dir("tree");
    fs::write(top.join("file"), "x").unwrap();
    top
}
