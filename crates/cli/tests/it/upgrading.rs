//! Servers that are followed by others while programs use their mounts: `extant upgrade`.

use crate::args;
use crate::contained::process;
use crate::program::{await_that, done, extant, is_mount, json, refused};
use extant_fuse::{SharedMount, TakenOffer, control, receive_message};
use extant_testkit::kernel::Loop;
use extant_testkit::tool::run;
use extant_testkit::{FeatureSet, Scratch};
use rustix::mount::{UnmountFlags, unmount};
use rustix::net::{SendFlags, send};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A mount in the background.
struct Upgraded {
    dir: PathBuf,
    log: PathBuf,
    /// Ends a mount whose server answers no more.
    watchdog: Option<(Sender<()>, JoinHandle<()>)>,
    _scratch: Scratch,
}

/// Far longer than a mount of these tests.
const LIMIT: Duration = Duration::from_secs(120);

/// Fails all requests of a mount, and detaches it.
fn abort(dir: &Path) {
    let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
    if let Err(error) = unmount(dir, flags) {
        eprintln!("{}: {error}", dir.display());
    }
}

fn watch(dir: PathBuf, limit: Duration) -> (Sender<()>, JoinHandle<()>) {
    let (calm, called) = channel();
    let body = move || {
        if called.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{} is stuck: its connection is aborted", dir.display());
            abort(&dir);
        }
    };
    (calm, thread::spawn(body))
}

impl Upgraded {
    #[track_caller]
    fn mount(image: &Path, options: &str) -> Upgraded {
        let scratch = Scratch::new();
        let (dir, log) = (scratch.dir("mnt"), scratch.join("log"));
        // Other tests may have enabled io_uring.
        let options = format!("{options},transport=dev");
        done(&args!["mount", "--log", &log, "-o", options, image, &dir]);
        let watchdog = Some(watch(dir.clone(), LIMIT * rounds(1) as u32));
        Upgraded { dir, log, watchdog, _scratch: scratch }
    }

    /// Upgrades, and waits for the end of the server before.
    #[track_caller]
    fn upgrade(&self, options: &str) {
        let before = process(&self.dir);
        done(&args!["upgrade", "--log", &self.log, "-o", options, &self.dir]);
        await_that("the end of the server before", || has_ended(&before));
        assert_ne!(process(&self.dir), before);
    }

    fn server(&self) -> Option<Pid> {
        let printed = extant(&args!["--json", "stats", &self.dir]);
        let told: serde_json::Value = serde_json::from_slice(&printed.stdout).ok()?;
        Pid::from_raw(told["server"]["process"].as_i64()?.try_into().ok()?)
    }

    /// Takes the offer of the server, as a new one does.
    fn take(&self) -> TakenOffer {
        // An upgrade that was refused may still be ending.
        let mut number = None;
        await_that("an offer", || match control::set(&self.dir, control::UPGRADE, 0) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy => false,
            offered => {
                number = Some(offered.expect("an offer"));
                true
            }
        });
        let number = number.expect("an offer");
        let server = self.server().expect("a server").as_raw_nonzero().get();
        TakenOffer::take(server as u32, number, Duration::from_secs(20), |_| Ok(())).expect("taken")
    }

    /// Takes the offer, and the state of the server, which has closed the image then. Programs wait
    /// until the result is dropped.
    fn take_state(&self) -> TakenOffer {
        let taken = self.take();
        send(&taken.socket, b"R", SendFlags::NOSIGNAL).expect("a message");
        let mut message = vec![0; 1 << 16];
        while receive_message(&taken.socket, &mut message).expect("a message").0 != 1 {
            assert_eq!(message[0], b'S');
        }
        assert_eq!(message[0], b'E');
        taken
    }

    /// Fails an upgrade when the server has closed the image.
    fn fail_an_upgrade(&self) {
        let failures = || self.log().matches("is not handed over").count();
        let before = failures();
        drop(self.take_state());
        await_that("its message", || failures() > before);
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("the log")
    }
}

impl Drop for Upgraded {
    fn drop(&mut self) {
        // A mount that a failed test leaves may have no server, so that no answer comes.
        if thread::panicking() {
            abort(&self.dir);
        }
        if let Some((calm, thread)) = self.watchdog.take() {
            drop(calm);
            let _ = thread.join();
        }
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

/// Returns whether a process has ended. Its parent, which may take its time, need not know.
fn has_ended(process: &Path) -> bool {
    fs::read_to_string(process.join("stat")).map_or(true, |stat| stat.contains(") Z"))
}

/// How often a test repeats itself: more often in `make kills`.
fn rounds(few: u64) -> u64 {
    std::env::var("EXTANT_UPGRADES").map_or(few, |text| text.parse().expect("a number"))
}

#[test]
fn open_files_survive_upgrades() {
    for (options, rounds) in
        [("noatime,noexec", rounds(2)), ("no_sandbox,open=fast", rounds(1)), ("restart", rounds(1))]
    {
        let image = FeatureSet::named("default").make_sized(64 << 20);
        let mount = Upgraded::mount(image.path(), options);
        let shown = || {
            let line = run("findmnt", &args!["-rno", "OPTIONS,SOURCE,FSTYPE,ID", &mount.dir]);
            line.must_succeed().text()
        };
        let (before, file) = (shown(), unlinked(&mount.dir));
        for round in 0..rounds {
            mount.upgrade(options);
            check(&file, round);
            assert_eq!(shown(), before, "{options}");
        }
        let stats = json(&args!["stats", &mount.dir]);
        let state = if options.contains("no_sandbox") { "off" } else { "on" };
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
    for options in ["rw,io=direct", "ro"] {
        let mount = Upgraded::mount(disk.device(), options);
        let file = options.starts_with("rw").then(|| unlinked(&mount.dir));
        mount.upgrade("");
        file.iter().for_each(|file| check(file, 0));
        drop(file);
        assert_eq!(fs::write(mount.dir.join("new"), "x").is_ok(), options != "ro");
        done(&args!["umount", &mount.dir]);
    }
    drop(disk);
    image.assert_clean();
}

/// The new server ends at each of its steps. The old one goes on, also where the image has no name.
#[test]
fn a_server_that_cannot_be_followed_goes_on() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let mount = Upgraded::mount(image.path(), "rw");
    let (before, file) = (mount.server(), unlinked(&mount.dir));
    let moved = image.scratch().join("moved");
    fs::rename(image.path(), &moved).expect("a rename");
    let upgrade = args!["upgrade", &mount.dir];
    refused(&upgrade, 1, "the image is no longer at");
    fs::write(image.path(), "another file").expect("a file");
    refused(&upgrade, 1, "the image is no longer at");
    for step in 0..3 {
        match step {
            0 => drop(mount.take()),
            1 => {
                let taken = mount.take();
                send(&taken.socket, b"Fplanted", SendFlags::NOSIGNAL).expect("a message");
            }
            _ => drop(mount.take_state()),
        }
        check(&file, step);
        assert_eq!(mount.server(), before);
        let failures = 2 + step as usize;
        await_that("its message", || mount.log().matches("not handed over").count() == failures);
    }
    assert!(mount.log().contains("planted"), "{}", mount.log());
    fs::rename(&moved, image.path()).expect("a rename");
    mount.upgrade("");
    check(&file, 3);
    drop(file);
    done(&args!["umount", &mount.dir]);
    image.assert_clean();
}

/// The second signal after an upgrade that failed.
#[test]
fn a_server_that_goes_on_commits_at_its_end() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let mount = Upgraded::mount(image.path(), "rw,commit=300");
    let (server, place) = (mount.server().expect("a server"), process(&mount.dir));
    mount.fail_an_upgrade();
    fs::write(mount.dir.join("file"), "content").expect("a write");
    let file = File::open(mount.dir.join("file")).expect("a file");
    kill_process(server, Signal::TERM).expect("a signal");
    await_that("the detached mount", || !is_mount(&mount.dir));
    fs::write(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)), "more")
        .expect("a write");
    kill_process(server, Signal::TERM).expect("a signal");
    await_that("its end", || has_ended(&place));
    drop(file);
    assert_eq!(done(&args!["cat", image.path(), "/file"]).stdout, b"more");
}

/// The image cannot be opened again: the server ends as one that was killed, and another one is
/// started.
#[test]
fn a_mount_that_is_lost_is_served_anew() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let mount = Upgraded::mount(image.path(), "restart");
    fs::write(mount.dir.join("file"), "content").expect("a write");
    let (server, place) = (mount.server().expect("a server"), process(&mount.dir));
    let TakenOffer { socket, shared } = mount.take_state();
    let disk = File::options().write(true).open(image.path());
    let (disk, mut magic) = (disk.expect("the image"), [0; 2]);
    File::open(image.path()).expect("the image").read_exact_at(&mut magic, 1080).expect("a read");
    disk.write_all_at(&[0; 2], 1080).expect("a write");
    // The next server waits for the lock.
    let SharedMount { image: locked, connection } = shared;
    drop((socket, connection));
    await_that("the end of the server", || has_ended(&place));
    disk.write_all_at(&magic, 1080).expect("a write");
    drop(locked);
    await_that("another server", || mount.server().is_some_and(|next| next != server));
    assert_eq!(fs::read_to_string(mount.dir.join("file")).expect("a read"), "content");
    assert!(mount.log().contains("ended unexpectedly"), "{}", mount.log());
    done(&args!["umount", &mount.dir]);
    image.assert_clean();
}

/// Ends the thread of a test, also of one that has failed.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn work_goes_on_during_upgrades() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let mount = Upgraded::mount(image.path(), "rw");
    let (ended, done_so_far) = (AtomicBool::new(false), AtomicU64::new(0));
    let dir = mount.dir.clone();
    let mount = thread::scope(|scope| {
        // If the test fails, its mount ends before the thread is waited for.
        let (mount, ending) = (mount, Ending(&ended));
        let worker = scope.spawn(|| {
            let (old, new) = (dir.join("old"), dir.join("new"));
            while !ended.load(Ordering::Relaxed) {
                let round = done_so_far.fetch_add(1, Ordering::Relaxed);
                fs::write(&old, round.to_string())?;
                fs::rename(&old, &new)?;
                assert_eq!(fs::read_to_string(&new)?, round.to_string());
            }
            std::io::Result::Ok(())
        });
        for _ in 0..rounds(1) {
            let before = done_so_far.load(Ordering::Relaxed);
            await_that("work", || done_so_far.load(Ordering::Relaxed) > before + 10);
            mount.upgrade("");
        }
        drop(ending);
        worker.join().expect("no panic").expect("no error");
        mount
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

#[test]
fn mounts_of_other_kinds_are_refused() {
    let scratch = Scratch::new();
    let disk = scratch.join("disk.qcow2");
    done(&args!["mkfs", "--format", "qcow2", &disk, "64M"]);
    let mount = Upgraded::mount(&disk, "format=qcow2");
    refused(&args!["upgrade", &mount.dir], 1, "unmount it, and mount again");
    fs::write(mount.dir.join("file"), "x").expect("a write");
    done(&args!["umount", &mount.dir]);
}
