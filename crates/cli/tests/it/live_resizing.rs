//! `extant resize` of a live mount: programs go on to write, and the larger file system is whole
//! for e2fsck and the kernel.

use crate::args;
use crate::program::{Server, done, json, refused};
use crate::unprivileged::{Fuse, as_user, home};
use extant_testkit::kernel::{Loop, Mount};
use extant_testkit::tool::run;
use extant_testkit::{FeatureSet, Image, Scratch};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 * MIB;

/// Small groups, so that each growth adds some.
fn image() -> Image {
    Image::mke2fs(SIZE, &["-t", "ext4", "-b", "4096", "-g", "2048", "-J", "size=8"])
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).expect("an image").len()
}

/// Returns the bytes of a mount's blocks.
fn size_of_mount(dir: &Path) -> u64 {
    let usage = rustix::fs::statvfs(dir).expect("a mount");
    usage.f_blocks * usage.f_frsize
}

fn content(nr: u64) -> Vec<u8> {
    (0..60_000 + nr % 5000).map(|at| ((at * (2 * nr + 1)) >> 3) as u8).collect()
}

/// Writes files, and reads earlier ones, until it is told to end. Returns their number.
fn use_meanwhile(dir: &Path, ends: &AtomicBool, written: &AtomicU64) -> u64 {
    let mut files = 0;
    while !ends.load(Ordering::Acquire) && files < 200 {
        let path = |nr: u64| dir.join(format!("f{nr}"));
        fs::write(path(files), content(files)).expect("space");
        if files % 8 == 0 {
            File::open(path(files)).and_then(|file| file.sync_all()).expect("a sync");
        }
        let old = files / 2;
        assert!(fs::read(path(old)).expect("a file") == content(old), "file {old}");
        files += 1;
        written.fetch_add(1, Ordering::AcqRel);
    }
    files
}

/// Makes the mount larger while two threads write and read: by its directory and by its image.
fn grow_in_use(server: &Server, image: &Path) -> [u64; 2] {
    let dirs = ["a", "b"].map(|name| server.dir().join(name));
    dirs.iter().for_each(|dir| fs::create_dir(dir).expect("a directory"));
    let (ends, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let (ends, written) = (&ends, &written);
    thread::scope(|scope| {
        let threads = dirs.each_ref().map(|dir| scope.spawn(|| use_meanwhile(dir, ends, written)));
        let steps = [(server.dir(), "96M"), (image, "+100M"), (server.dir(), "+104M")];
        for (nr, (place, size)) in steps.into_iter().enumerate() {
            while written.load(Ordering::Acquire) < 10 * nr as u64 + 5
                && !threads.iter().all(|thread| thread.is_finished())
            {
                thread::yield_now();
            }
            done(&args!["resize", place, size]);
        }
        ends.store(true, Ordering::Release);
        threads.map(|thread| thread.join().expect("no panic"))
    })
}

fn files_are_there(dir: &Path, files: [u64; 2]) {
    for (name, count) in ["a", "b"].into_iter().zip(files) {
        for nr in 0..count {
            let found = fs::read(dir.join(name).join(format!("f{nr}"))).expect("a file");
            assert!(found == content(nr), "{name}/f{nr}");
        }
    }
}

#[test]
fn a_mount_grows_under_its_writers() {
    let image = image();
    let server = Server::start(image.path(), "rw");
    let before = size_of_mount(server.dir());
    let files = grow_in_use(&server, image.path());
    let after = size_of_mount(server.dir());
    assert!(after > before + 200 * MIB, "{before} bytes, then {after}");
    assert_eq!(len(image.path()), 300 * MIB);
    // More than the old size.
    for nr in 0..15 {
        fs::write(server.dir().join(format!("new{nr}")), vec![nr; 10 << 20]).expect("space");
    }
    files_are_there(server.dir(), files);
    server.unmount();
    image.assert_clean();
    let kernel = Mount::new(image.path(), "");
    files_are_there(kernel.path(), files);
    for nr in 0..15 {
        let found = fs::read(kernel.join(format!("new{nr}"))).expect("a file");
        assert!(found == vec![nr; 10 << 20], "new{nr}");
    }
    fs::write(kernel.join("more"), vec![1; 30 << 20]).expect("space");
    kernel.unmount();
    image.assert_clean();
}

#[test]
fn both_sizes_are_told() {
    let image = image();
    let server = Server::start(image.path(), "rw");
    let dry = json(&args!["resize", "-n", server.dir(), "+36M"]);
    assert_eq!((dry["dry_run"].as_bool(), len(image.path())), (Some(true), SIZE), "{dry}");
    let document = json(&args!["resize", server.dir(), "100M"]);
    assert_eq!(document["dir"].as_str(), server.dir().to_str(), "{document}");
    assert_eq!(document["image"].as_str(), image.path().to_str(), "{document}");
    assert_eq!(document["before"]["bytes"].as_u64(), Some(SIZE), "{document}");
    assert_eq!(document["after"]["bytes"].as_u64(), Some(100 * MIB), "{document}");
    assert_eq!((&dry["before"], &dry["after"]), (&document["before"], &document["after"]));
    let inodes = |size: &serde_json::Value| size["inodes"].as_u64().expect("a number");
    assert!(inodes(&document["after"]) > inodes(&document["before"]), "{document}");
    let again = json(&args!["resize", server.dir()]);
    assert_eq!(again["before"], again["after"], "{again}");
    let printed = done(&args!["resize", "-v", server.dir(), "110M"]);
    assert!(printed.errors().contains("grew from 100"), "{printed}");
    server.unmount();
    image.assert_clean();
    // Nothing has it open: this command writes it.
    let document = json(&args!["resize", image.path(), "120M"]);
    assert!(document["dir"].is_null(), "{document}");
    image.assert_clean();
}

/// Other programs may make the image file or the disk longer; the server looks again.
#[test]
fn without_a_size_a_mount_fills_its_device() {
    let image = image();
    let server = Server::start(image.path(), "rw");
    let longer = |path: &Path, bytes: u64| {
        let file = File::options().write(true).open(path).expect("an image");
        file.set_len(bytes).expect("space");
    };
    longer(image.path(), 200 * MIB);
    done(&args!["resize", server.dir(), "80M"]);
    assert_eq!(len(image.path()), 200 * MIB, "a file is not cut");
    let document = json(&args!["resize", image.path()]);
    assert_eq!(document["after"]["bytes"].as_u64(), Some(200 * MIB), "{document}");
    server.unmount();
    image.assert_clean();
    let disk = Loop::attach(image.path(), false);
    let server = Server::start(disk.device(), "rw");
    refused(&args!["resize", server.dir(), "260M"], 1, "make it larger first");
    longer(image.path(), 260 * MIB);
    run("losetup", &["-c".as_ref(), disk.device().as_os_str()]).must_succeed();
    done(&args!["resize", disk.device()]);
    assert!(size_of_mount(server.dir()) > 220 * MIB);
    fs::write(server.dir().join("large"), vec![3; 190 << 20]).expect("space");
    server.unmount();
    drop(disk);
    image.assert_clean();
}

#[test]
fn what_a_mount_cannot_have_is_refused_with_the_remedy() {
    let image = image();
    let scratch = Scratch::new();
    refused(&args!["resize", scratch.path(), "80M"], 1, "no mount point");
    refused(&args!["resize", "/proc", "80M"], 1, "nothing that extant serves");
    let kernel = Mount::new(image.path(), "");
    refused(&args!["resize", kernel.path(), "80M"], 1, "resize2fs(8)");
    kernel.unmount();
    let server = Server::start(image.path(), "rw");
    for smaller in [&args!["resize", server.dir(), "20M"][..], &args!["resize", "-M", image.path()]]
    {
        refused(smaller, 1, "`extant umount");
    }
    refused(&args!["resize", server.dir(), "much"], 2, "not a size");
    refused(&args!["resize", server.dir(), "1000000T"], 1, "cannot have more than");
    done(&args!["mount", "-o", "remount,ro", image.path(), server.dir()]);
    refused(&args!["resize", server.dir(), "80M"], 1, "remount,rw");
    server.unmount();
    let server = Server::start(image.path(), "ro");
    refused(&args!["resize", image.path(), "80M"], 1, "remount,rw");
    server.unmount();
    assert_eq!(len(image.path()), SIZE);
    // Its lists of kept blocks do not fit into the log.
    let small = FeatureSet::named("1k").make_sized(28 * MIB);
    let server = Server::start(small.path(), "rw");
    refused(&args!["resize", server.dir(), "130M"], 1, "journal is too small");
    server.unmount();
}

#[test]
fn disks_of_other_formats_keep_their_length() {
    let image = image();
    let scratch = Scratch::new();
    let disk = scratch.join("disk.qcow2");
    let convert = args!["convert", "-f", "raw", "-O", "qcow2", image.path(), &disk];
    run("qemu-img", &convert).must_succeed();
    let server = Server::start(&disk, "rw,format=qcow2");
    refused(&args!["resize", server.dir(), "80M"], 1, "while nothing has them open");
    server.unmount();
    run("qemu-img", &args!["resize", "-q", &disk, "80M"]).must_succeed();
    let server = Server::start(&disk, "rw,format=qcow2");
    done(&args!["resize", server.dir()]);
    assert!(size_of_mount(server.dir()) > 60 * MIB);
    server.unmount();
}

/// resize2fs of e2fsprogs looks for the image in the table of mounts, whatever the type is.
#[test]
fn resize2fs_of_e2fsprogs_grows_a_mount() {
    let image = image();
    let server = Server::start(image.path(), "rw");
    fs::write(server.dir().join("file"), content(3)).expect("space");
    let printed = run("resize2fs", &args![image.path(), "120M"]).must_succeed();
    assert!(printed.text().contains("30720 (4k) blocks"), "{printed}");
    assert!(size_of_mount(server.dir()) > 100 * MIB);
    fs::write(server.dir().join("large"), vec![1; 90 << 20]).expect("space");
    let smaller = run("resize2fs", &args![image.path(), "80M"]);
    assert!(smaller.code != 0, "{smaller}");
    // The name makes the program another one, which finds the mount as well.
    let names = Scratch::new();
    symlink(crate::program::EXTANT, names.join("resize2fs")).expect("a link");
    let own = names.join("resize2fs");
    run(own.to_str().expect("a name"), &args![server.dir(), "32768"]).must_succeed();
    server.unmount();
    assert_eq!(len(image.path()), 128 * MIB);
    image.assert_clean();
}

/// A user grows an own mount, and no other.
#[test]
fn mounts_are_grown_by_their_users() {
    let home = home();
    let script = "extant mkfs disk.img 64M; mkdir mnt; extant mount disk.img mnt
        extant resize mnt 100M; extant resize disk.img +20M
        test $(stat -c %s disk.img) = $((120 << 20))
        extant umount mnt";
    as_user(&home, Fuse::Everybody, script).must_succeed();
    extant_testkit::e2fsck::check(&home.join("disk.img")).assert_clean();
    let image = image();
    let server = Server::start(image.path(), "rw,allow_other");
    let script = format!("extant resize {} 80M || echo refused", server.dir().display());
    let printed = as_user(&home, Fuse::Everybody, &script);
    assert!(printed.text().contains("refused"), "{printed}");
    server.unmount();
    assert_eq!(len(image.path()), SIZE);
}
