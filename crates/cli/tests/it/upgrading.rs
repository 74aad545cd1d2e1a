//! Servers that are followed by others while programs use their mounts: `extant upgrade`.

use crate::args;
use crate::contained::process;
use crate::program::{await_that, done, extant, is_mount, json, refused};
use extant_fuse::{MeetingPoint, control};
use extant_testkit::kernel::Loop;
use extant_testkit::tool::run;
use extant_testkit::{FeatureSet, Scratch};
use rustix::net::{SendFlags, send};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// A mount in the background.
struct Upgraded {
    dir: PathBuf,
    log: PathBuf,
    _scratch: Scratch,
}

impl Upgraded {
    #[track_caller]
    fn mount(image: &Path, options: &str) -> Upgraded {
        let scratch = Scratch::new();
        let (dir, log) = (scratch.dir("mnt"), scratch.join("log"));
        done(&args!["mount", "--log", &log, "-o", options, image, &dir]);
        Upgraded { dir, log, _scratch: scratch }
    }

    /// Upgrades, and waits for the end of the server before.
    #[track_caller]
    fn upgrade(&self, options: &str) {
        let before = process(&self.dir);
        done(&args!["upgrade", "--log", &self.log, "-o", options, &self.dir]);
        await_that("the end of the server before", || !before.exists());
        assert_ne!(process(&self.dir), before);
    }

    fn server(&self) -> Option<Pid> {
        let printed = extant(&args!["--json", "stats", &self.dir]);
        let told: serde_json::Value = serde_json::from_slice(&printed.stdout).ok()?;
        Pid::from_raw(told["server"]["process"].as_i64()?.try_into().ok()?)
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("the log")
    }
}

impl Drop for Upgraded {
    fn drop(&mut self) {
        if is_mount(&self.dir) {
            run("umount", &["--lazy".as_ref(), self.dir.as_os_str()]);
        }
    }
}

/// An open file that has lost its name, with content that nothing has synced.
fn unlinked(dir: &Path) -> File {
    let path = dir.join("unlinked");
    let mut options = File::options();
    let mut file = options.read(true).write(true).create_new(true).open(&path).expect("a file");
    file.write_all(b"content").expect("a write");
    fs::remove_file(path).expect("an unlink");
    file
}

#[track_caller]
fn check(file: &File, round: u64) {
    let mut content = [0; 7];
    file.read_exact_at(&mut content, 0).expect("a read");
    assert_eq!(&content, b"content");
    file.write_all_at(&[1; 100_000], round * 100_000 + 7).expect("a write");
    let found = file.metadata().expect("fstat");
    assert_eq!((found.len(), found.nlink()), ((round + 1) * 100_000 + 7, 0));
}

#[test]
fn open_files_survive_upgrades() {
    for options in ["noatime,noexec", "no_sandbox", "restart", "open=fast"] {
        let image = FeatureSet::named("default").make_sized(64 << 20);
        let mount = Upgraded::mount(image.path(), options);
        let shown = || {
            let line = run("findmnt", &args!["-rno", "OPTIONS,SOURCE,FSTYPE,ID", &mount.dir]);
            line.must_succeed().text()
        };
        let (before, file) = (shown(), unlinked(&mount.dir));
        for round in 0..2 {
            mount.upgrade(options);
            check(&file, round);
            assert_eq!(shown(), before, "{options}");
        }
        let stats = json(&args!["stats", &mount.dir]);
        let state = if options == "no_sandbox" { "off" } else { "on" };
        assert_eq!(stats["sandbox"]["state"], state, "{options}");
        drop(file);
        if options == "restart" {
            let server = mount.server().expect("a server");
            kill_process(server, Signal::KILL).expect("a kill");
            await_that("another server", || mount.server().is_some_and(|next| next != server));
        }
        done(&args!["umount", &mount.dir]);
        assert!(!is_mount(&mount.dir), "no mount lies below");
        image.assert_clean();
    }
}

#[test]
fn disks_and_mounts_for_reading_are_upgraded() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let disk = Loop::attach(image.path(), false);
    for options in ["rw", "ro"] {
        let mount = Upgraded::mount(disk.device(), options);
        let file = (options == "rw").then(|| unlinked(&mount.dir));
        mount.upgrade("");
        file.iter().for_each(|file| check(file, 0));
        drop(file);
        assert_eq!(fs::write(mount.dir.join("new"), "x").is_ok(), options == "rw");
        done(&args!["umount", &mount.dir]);
    }
    drop(disk);
    image.assert_clean();
}

/// The new server ends at each of its steps. The old one goes on.
#[test]
fn a_server_that_cannot_be_followed_goes_on() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let mount = Upgraded::mount(image.path(), "rw");
    let (before, file) = (mount.server(), unlinked(&mount.dir));
    for step in 0..4 {
        let point = MeetingPoint::new().expect("a socket");
        control::set(&mount.dir, control::UPGRADE, point.number().into()).expect("a request");
        if step > 0 {
            let (socket, _) = point.accept(Duration::from_secs(20)).expect("its keeper");
            let message: &[u8] = if step == 3 { b"Fplanted" } else { b"R" };
            if step > 1 {
                send(&socket, message, SendFlags::NOSIGNAL).expect("a message");
            }
        }
        drop(point);
        check(&file, step);
        assert_eq!(mount.server(), before);
    }
    await_that("its messages", || mount.log().matches("is not handed over").count() == 4);
    assert!(mount.log().contains("planted"), "{}", mount.log());
    mount.upgrade("");
    check(&file, 4);
    drop(file);
    done(&args!["umount", &mount.dir]);
    image.assert_clean();
}

#[test]
fn work_goes_on_during_upgrades() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let mount = Upgraded::mount(image.path(), "rw");
    let (ended, done_so_far) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let (old, new) = (mount.dir.join("old"), mount.dir.join("new"));
            while !ended.load(Ordering::Relaxed) {
                let round = done_so_far.fetch_add(1, Ordering::Relaxed);
                fs::write(&old, round.to_string())?;
                fs::rename(&old, &new)?;
                assert_eq!(fs::read_to_string(&new)?, round.to_string());
            }
            std::io::Result::Ok(())
        });
        for _ in 0..3 {
            let before = done_so_far.load(Ordering::Relaxed);
            await_that("work", || done_so_far.load(Ordering::Relaxed) > before + 10);
            mount.upgrade("");
        }
        ended.store(true, Ordering::Relaxed);
        worker.join().expect("no panic").expect("no error");
    });
    done(&args!["umount", &mount.dir]);
    image.assert_clean();
}

#[test]
fn other_directories_are_refused() {
    let scratch = Scratch::new();
    refused(&args!["upgrade", scratch.path()], 1, "not a mount point");
    refused(&args!["upgrade", "/proc"], 1, "serves no mount there");
}
