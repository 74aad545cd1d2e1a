//! Builders of disks that call mke2fs: their own calls, and runs of those that are installed, with
//! this program under its names.

use crate::args;
use crate::building::kernel_tree;
use crate::helpers::Names;
use crate::program::{EXTANT, done, json};
use crate::unprivileged::{Fuse, as_user, belongs_to_user, home};
use extant_testkit::kernel::Mount;
use extant_testkit::tool::{install, need, run, run_with_env};
use extant_testkit::tree::Manifest;
use extant_testkit::{Scratch, dumpe2fs, e2fsck};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

const UUID: &str = "6f7ae4d6-9c2f-4f0e-8b1c-2d3a5b7c9e10";
const HASH_SEED: &str = "0b1fdc2e-58cf-5dd1-a2c5-1f0e7a6f4b3c";
const TIME: i64 = 1_700_000_000;

/// A tree with owners, a device, a link and a directory.
fn tree(scratch: &Scratch) -> PathBuf {
    let top = scratch.dir("top");
    let script = "mkdir -p etc dev usr/lib; echo content > file; ln file etc/again; ln -s file link
        mknod dev/null c 1 3; chown 7:8 file; chmod 4711 file; setfattr -n user.x -v y usr
        head -c 300000 /dev/urandom > usr/lib/large; chown 1000:1000 usr/lib";
    run("sh", &["-euc", &format!("cd {}; {script}", top.display())]).must_succeed();
    top
}

/// The calls that builders make, taken from their recipes and programs:
/// - OpenEmbedded's class of image types: bytes for each inode, the image, which has its size, and
///   behind it the directory; then `fsck.ext4 -pvfD`.
/// - OpenEmbedded's wic: label, UUID and a hash seed that follows from it, the time in the
///   environment; partitions without content have neither directory nor size.
/// - Buildroot: revision, count of inodes (0 for the default), percentage for root and label are
///   always there, the size has a unit; ext2, ext3 and ext4 by the name of the program.
/// - genimage: `lazy_journal_init`, several lists of features, a size in KiB.
/// - systemd-repart, which mkosi calls: block size and usage, options behind the image.
#[test]
fn calls_of_builders_of_disks_are_understood() {
    let names = Names::new();
    let (top, image) = (tree(&names.0), names.0.join("made"));
    let calls = [
        ("mkfs.ext4", true, "-F -i 4096 IMAGE -d TOP"),
        ("mkfs.ext3", true, "-F -i 4096 IMAGE -d TOP"),
        ("mkfs.ext2", true, "-F -i 4096 IMAGE -d TOP"),
        ("mkfs.ext4", true, "-F -i 8192 -E hash_seed=SEED IMAGE -L root -U UUID -d TOP"),
        ("mkfs.ext4", true, "-F -i 8192 -E hash_seed=SEED -L data -U UUID IMAGE"),
        ("mkfs.ext4", false, "-d TOP -r 1 -N 0 -m 5 -L rootfs -I 256 -O ^64bit IMAGE 60M"),
        ("mkfs.ext3", false, "-d TOP -r 1 -N 4000 -m 0 -L EMPTY -I 256 -O ^64bit IMAGE 60m"),
        ("mkfs.ext2", false, "-d TOP -r 1 -N 0 -m 5 -L EMPTY -I 256 IMAGE 61440"),
        (
            "mke2fs",
            false,
            "-t ext4 -I 256 -E root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0 \
             -O ^large_file -O ^huge_file -d TOP -L data -O ^64bit IMAGE 32768k",
        ),
        (
            "mkfs.ext4",
            true,
            "-L root -U UUID -I 256 -m 0 -E nodiscard,lazy_itable_init=1,hash_seed=UUID -b 4096 \
             -T default -d TOP -q -O verity IMAGE -O ^orphan_file",
        ),
    ];
    let expected = Manifest::walk(&top).without_root();
    for (name, is_there, call) in calls {
        let _ = fs::remove_file(&image);
        if is_there {
            fs::File::create(&image).unwrap().set_len(48 << 20).unwrap();
        }
        let words = call.split_whitespace().map(|word| match word {
            "IMAGE" => image.clone().into_os_string(),
            "TOP" => top.clone().into_os_string(),
            "EMPTY" => "".into(),
            other => other.replace("SEED", HASH_SEED).replace("UUID", UUID).into(),
        });
        let words = words.collect::<Vec<_>>();
        let program = names.0.join(name);
        let time = TIME.to_string();
        let env = [("E2FSPROGS_FAKE_TIME", &time[..])];
        run_with_env(program.to_str().unwrap(), &words, &env).must_succeed();
        e2fsck::check(&image).assert_clean();
        let info = json(&args!["info", &image]);
        if call.contains("-U") {
            assert_eq!(info["uuid"], UUID, "{call}: {info}");
        }
        let found = kernel_tree(&image).without_root();
        if call.contains("TOP") {
            expected.assert_same(&found);
        } else {
            assert!(found.nodes.is_empty());
        }
        let shown = run("dumpe2fs", &args!["-h", &image]).must_succeed().text();
        let made = shown.lines().find(|line| line.starts_with("Filesystem created")).unwrap();
        assert!(made.contains("Nov 14 22:13:20 2023"), "{call}: {made}");
        if call.contains("SEED") {
            assert!(shown.contains(HASH_SEED), "{call}: {shown}");
        }
        // OpenEmbedded checks and sorts directories behind each call.
        let checked = run("e2fsck", &args!["-pvfD", &image]);
        assert!(checked.code <= 1, "{checked}");
        e2fsck::check(&image).assert_clean();
    }
}

/// As mke2fs has it: blocks by the size of the file system, and a file that is not cut.
#[test]
fn images_have_the_blocks_and_the_length_of_mke2fs() {
    let names = Names::new();
    let (top, image) = (tree(&names.0), names.0.join("made"));
    let program = names.0.join("mkfs.ext4");
    fs::File::create(&image).unwrap().set_len(24 << 20).unwrap();
    for size in [Some("8M"), None] {
        let mut call = args!["-F", "-q", "-d", &top, &image].to_vec();
        call.extend(size.map(Into::into));
        run(program.to_str().unwrap(), &call).must_succeed();
        assert_eq!(fs::metadata(&image).unwrap().len(), 24 << 20, "{size:?}");
        e2fsck::check(&image).assert_clean();
        let info = json(&args!["info", &image]);
        let blocks = if size.is_none() { 24 << 10 } else { 8 << 10 };
        assert_eq!(
            (&info["block_size"], &info["blocks"]),
            (&1024.into(), &blocks.into()),
            "{info}"
        );
    }
}

/// Buildroot's calls for its oldest kind of ext2: with an inode size that mke2fs does not heed.
#[test]
fn revision_0_is_made_and_gets_features_later() {
    let names = Names::new();
    let (top, image) = (tree(&names.0), names.0.join("made"));
    let program = names.0.join("mkfs.ext2");
    let call = |more: &[&str]| {
        let call = "-r 0 -b 1024 -N 0 -m 5 -L rootfs -I 256 -O ^64bit";
        let words = call.split(' ').chain(more.iter().copied()).map(OsString::from);
        let words = [args!["-d", &top].to_vec(), words.collect(), args![&image, "60M"].to_vec()];
        run(program.to_str().unwrap(), &words.concat())
    };
    let printed = call(&[]);
    assert!(printed.code == 1 && printed.errors().contains("no_copy_xattrs"), "{printed}");
    call(&["-E", "no_copy_xattrs"]).must_succeed();
    let revision = || dumpe2fs::header(&image).value("Filesystem revision #").to_owned();
    assert_eq!(revision(), "0 (original)");
    e2fsck::check(&image).assert_clean();
    run("setfattr", &args!["-x", "user.x", top.join("usr")]).must_succeed();
    // Inodes of 128 bytes have whole seconds.
    let expected = Manifest::walk(&top).without_root().in_whole_seconds();
    expected.assert_same(&kernel_tree(&image).without_root());
    done(&args!["check", &image]);
    let again = names.0.join("again");
    // Each change alone gives revision 1: a feature, growth by another kind of descriptors.
    let tune = args!["tune", &again, "--features", "dir_index"].to_vec();
    for change in [tune, args!["resize", &again, "400M"].to_vec()] {
        fs::copy(&image, &again).unwrap();
        done(&change);
        e2fsck::check(&again).assert_clean();
        assert_eq!(dumpe2fs::header(&again).value("Filesystem revision #"), "1 (dynamic)");
        expected.assert_same(&kernel_tree(&again).without_root());
    }
}

/// Writes scripts that note each call and make it by this program, under these names. Returns the
/// search path with them, and the file with the calls.
fn recorders(scratch: &Scratch, names: &[&str]) -> (String, PathBuf) {
    let (bin, log) = (scratch.dir("recorders"), scratch.join("calls"));
    for name in names {
        let script = format!(
            "#!/bin/bash\necho {name} \"$@\" >> {}\nexec -a {name} {EXTANT} \"$@\"\n",
            log.display()
        );
        let path = bin.join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = std::env::var("PATH").unwrap_or_default();
    (format!("{}:{path}:/sbin:/usr/sbin", bin.display()), log)
}

fn calls(log: &Path) -> Vec<String> {
    fs::read_to_string(log).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn genimage_makes_images_and_disks() {
    let scratch = Scratch::new();
    let (top, config) = (tree(&scratch), scratch.join("config"));
    let (work, images) = (scratch.dir("work"), scratch.dir("images"));
    let text = r#"
image root.ext4 {
    ext4 { use-mke2fs = true label = "rootfs" features = "^64bit" fs-timestamp = "20200101000000" }
    size = 24M
}
image two.ext2 { ext2 { use-mke2fs = true } size = 16M }
image owned.ext4 {
    ext4 { use-mke2fs = true usage-type = "small" root-owner = "7:8" extraargs = "-m 0 -i 4096" }
    size = 16M
}
image empty.ext4 { ext4 { use-mke2fs = true } size = 16M empty = true }
image disk.img {
    hdimage { partition-table-type = "gpt" }
    partition root { partition-type-uuid = "L" image = "root.ext4" }
}
"#;
    fs::write(&config, text).unwrap();
    let (path, log) = recorders(&scratch, &["mke2fs"]);
    let place = |name: &str, path: &Path| format!("--{name}={}", path.display());
    let words = [
        place("config", &config),
        place("rootpath", &top),
        place("tmppath", &work.join("tmp")),
        place("inputpath", &work),
        place("outputpath", &images),
    ];
    run_with_env("genimage", &words, &[("PATH", &path)]).must_succeed();
    let calls = calls(&log);
    assert_eq!(calls.len(), 4, "{calls:?}");
    let first = "mke2fs -t ext4 -I 256 -E root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0 \
                 -O ^large_file -O ^huge_file -d ";
    assert!(calls[0].starts_with(first) && calls[0].ends_with("root.ext4 24576k"), "{calls:?}");
    let expected = Manifest::walk(&top).without_root();
    for (name, owner) in [("root.ext4", (0, 0)), ("two.ext2", (0, 0)), ("owned.ext4", (7, 8))] {
        let image = images.join(name);
        expected.assert_same(&kernel_tree(&image).without_root());
        let mount = Mount::new(&image, "ro");
        let root = fs::metadata(mount.path()).unwrap();
        assert_eq!((root.uid(), root.gid()), owner, "{name}");
        mount.unmount();
    }
    assert!(kernel_tree(&images.join("empty.ext4")).without_root().nodes.is_empty());
    let part = PathBuf::from(format!("{}@p1", images.join("disk.img").display()));
    assert_eq!(done(&args!["cat", &part, "/file"]).text(), "content\n");
    assert_eq!(json(&args!["info", &part])["label"], "rootfs");
}

#[test]
fn systemd_repart_makes_a_partition_with_files() {
    let scratch = Scratch::new();
    let (top, definitions) = (tree(&scratch), scratch.dir("definitions"));
    let text = format!(
        "[Partition]\nType=root\nFormat=ext4\nCopyFiles={}:/\nSizeMinBytes=64M\nSizeMaxBytes=64M\n",
        top.display()
    );
    fs::write(definitions.join("10-root.conf"), text).unwrap();
    let (path, log) = recorders(&scratch, &["mkfs.ext4"]);
    let disk = scratch.join("disk");
    let words = args![
        "--empty=create",
        "--size=auto",
        "--dry-run=no",
        format!("--seed={UUID}"),
        format!("--definitions={}", definitions.display()),
        &disk
    ];
    let time = TIME.to_string();
    let env = [("PATH", &path[..]), ("SOURCE_DATE_EPOCH", &time)];
    run_with_env("systemd-repart", &words, &env).must_succeed();
    let calls = calls(&log);
    assert!(calls.len() == 1 && calls[0].contains("-I 256"), "{calls:?}");
    let part = PathBuf::from(format!("{}@p1", disk.display()));
    assert_eq!(done(&args!["cat", &part, "/file"]).text(), "content\n");
    let image = scratch.join("part.img");
    done(&args!["clone", &part, &image]);
    let found = kernel_tree(&image).without_root();
    Manifest::walk(&top).without_root().without_times().assert_same(&found.without_times());
}

/// A tree whose owners, device and capability exist for programs under a feigned root alone.
const FEIGNED: &str = "
    umask 022; mkdir -p top/d; echo content > top/file; chown 7:8 top/file; chmod 4755 top/file
    mknod top/null c 1 3; mknod top/disk b 259 300; ln -s file top/link; chown -h 5:6 top/link
    ln top/file top/d/again; chown 9:10 top/d
    setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 top/file
    setfattr -n user.note -v text top/d
    ln -s $PWD/extant mkfs.ext4; mkfs.ext4 -q -F -d top called.img 16M
    mkfs.ext4 -q -F -d top called.img; extant build built.img top";

/// Builds as a user under a program that feigns root, and judges the images.
fn build_feigned(feign: &str) {
    let home = home();
    belongs_to_user(&home.join("extant"));
    fs::write(home.join("script"), FEIGNED).unwrap();
    as_user(&home, Fuse::Root, &format!("{feign} sh -eu script")).must_succeed();
    let there = fs::metadata(home.join("top/file")).unwrap();
    assert_ne!(there.uid(), 7, "the owner is feigned");
    for name in ["called.img", "built.img"] {
        let image = home.join(name);
        e2fsck::check(&image).assert_clean();
        let mount = Mount::new(&image, "ro");
        let found = |path: &str| fs::symlink_metadata(mount.join(path)).unwrap();
        let owner = |path: &str| (found(path).uid(), found(path).gid());
        assert_eq!(owner(""), (0, 0), "{name}");
        assert_eq!([owner("file"), owner("link"), owner("d")], [(7, 8), (5, 6), (9, 10)]);
        assert_eq!(found("file").mode() & 0o7777, 0o4755);
        assert_eq!(found("file").ino(), found("d/again").ino());
        let (null, disk) = (found("null"), found("disk"));
        assert!(null.file_type().is_char_device() && disk.file_type().is_block_device());
        assert_eq!(null.rdev(), rustix::fs::makedev(1, 3));
        assert_eq!(disk.rdev(), rustix::fs::makedev(259, 300));
        let mut value = [0; 64];
        let len = rustix::fs::getxattr(mount.join("file"), "security.capability", &mut value);
        assert_eq!(value[..len.unwrap()], [&[1, 0, 0, 2, 0, 32][..], &[0; 14]].concat());
        let len = rustix::fs::getxattr(mount.join("d"), "user.note", &mut value).unwrap();
        assert_eq!(&value[..len], b"text");
        assert_eq!(fs::read(mount.join("d/again")).unwrap(), b"content\n");
        mount.unmount();
    }
}

#[test]
fn owners_under_fakeroot_are_those_that_it_shows() {
    need("fakeroot");
    build_feigned("fakeroot");
}

#[test]
fn owners_under_pseudo_are_those_that_it_shows() {
    need("pseudo");
    build_feigned("mkdir state; PSEUDO_PREFIX=/usr PSEUDO_LOCALSTATEDIR=$PWD/state pseudo");
}

/// The owner of the root without a value is the feigned one, and sandboxes are told of.
#[test]
fn fakeroot_gives_the_root_to_its_root_and_has_no_sandbox() {
    need("fakeroot");
    let home = home();
    belongs_to_user(&home.join("extant"));
    let script = "mkdir top; ./extant build -E root_owner i.img top
        ./extant mkfs -E root_owner m.img 16M
        ln -s extant fsck.ext4; ./fsck.ext4 -f -n m.img; ./fsck.ext4 -pvfD m.img
        ./extant --no-sandbox ls i.img /; ./extant ls i.img /";
    fs::write(home.join("script"), script).unwrap();
    let printed = as_user(&home, Fuse::Root, "fakeroot sh -eu script");
    assert!(printed.code == 1 && printed.errors().contains("--no-sandbox"), "{printed}");
    assert!(printed.text().contains("lost+found"), "{printed}");
    for name in ["i.img", "m.img"] {
        let image = home.join(name);
        e2fsck::check(&image).assert_clean();
        let mount = Mount::new(&image, "ro");
        let found = fs::metadata(mount.path()).unwrap();
        assert_eq!((found.uid(), found.gid()), (0, 0), "{name}");
        mount.unmount();
    }
}

/// A program without shared libraries is not seen by such a library.
#[test]
fn feigned_owners_that_are_not_seen_are_refused() {
    let scratch = Scratch::new();
    let (top, image) = (scratch.dir("top"), scratch.join("i.img"));
    chown(&top, Some(7), Some(8)).unwrap();
    let call = args!["build", &image, &top];
    let printed = run_with_env(EXTANT, &call, &[("FAKEROOTKEY", "1")]);
    assert!(printed.code == 1 && printed.errors().contains("--owner"), "{printed}");
    let call = args!["build", "--owner", "0:0", &image, &top];
    run_with_env(EXTANT, &call, &[("FAKEROOTKEY", "1")]).must_succeed();
    let program = scratch.join("mkfs.ext4");
    install(EXTANT.as_ref(), &program);
    let call = args!["-q", "-d", &top, &image, "16M"];
    let printed = run_with_env(program.to_str().unwrap(), &call, &[("PSEUDO_PREFIX", "/usr")]);
    assert!(printed.code == 1 && printed.errors().contains("tar archive"), "{printed}");
}
