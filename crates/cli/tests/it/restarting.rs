//! Servers that are killed and started again: by their keepers (`-o restart`), or by others, after
//! `umount --dead`.

use crate::args;
use crate::contained::process;
use crate::program::{await_that, done, extant, is_mount, json, refused};
use extant_testkit::kernel::{Loop, Mount};
use extant_testkit::tool::run;
use extant_testkit::{FeatureSet, Scratch};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

/// Kills of a server in a run of `make test`; EXTANT_KILLS sets another number.
const KILLS: u32 = 6;

/// A mount in the background whose servers are started again.
struct Restarted {
    dir: PathBuf,
    log: PathBuf,
    _scratch: Scratch,
}

impl Restarted {
    #[track_caller]
    fn mount(image: &Path, options: &str) -> Restarted {
        let scratch = Scratch::new();
        let (dir, log) = (scratch.dir("mnt"), scratch.join("log"));
        done(&args!["mount", "--log", &log, "-o", options, image, &dir]);
        Restarted { dir, log, _scratch: scratch }
    }

    /// The number of the process that serves, if one does.
    fn server(&self) -> Option<Pid> {
        let printed = extant(&args!["--json", "stats", &self.dir]);
        let told: serde_json::Value = serde_json::from_slice(&printed.stdout).ok()?;
        let id = told.get("server")?.get("process")?.as_i64()?;
        Pid::from_raw(id.try_into().expect("a number"))
    }

    /// Kills the server and waits for the next one.
    #[track_caller]
    fn kill(&self) {
        let mut server = None;
        await_that("a server", || {
            server = self.server();
            server.is_some()
        });
        kill_process(server.expect("a server"), Signal::KILL).expect("a kill");
        await_that("another server", || self.server().is_some_and(|next| Some(next) != server));
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("the log")
    }
}

impl Drop for Restarted {
    fn drop(&mut self) {
        if is_mount(&self.dir) {
            run("umount", &["--lazy".as_ref(), self.dir.as_os_str()]);
        }
    }
}

/// Returns whether a mount has no server. The kernel's cache may know its directory.
fn is_dead(dir: &Path) -> bool {
    rustix::fs::statvfs(dir).is_err_and(|error| error == Errno::NOTCONN)
}

/// Returns the process whose child this one is.
fn parent(process: &Path) -> PathBuf {
    let status = fs::read_to_string(process.join("status")).expect("a process");
    let id = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("a line");
    PathBuf::from("/proc").join(id.trim())
}

#[test]
fn a_killed_server_is_started_again() {
    for options in ["restart", "restart,no_sandbox,noatime,noexec,suid", "restart,data=journal"] {
        let image = FeatureSet::named("default").make_sized(64 << 20);
        let mount = Restarted::mount(image.path(), options);
        let file = mount.dir.join("file");
        fs::write(&file, "before").expect("a write");
        File::open(&file).and_then(|file| file.sync_all()).expect("an fsync");
        let mut open = File::open(&file).expect("the file");
        let shown = || {
            let line = run("findmnt", &args!["-rno", "OPTIONS,SOURCE,FSTYPE", &mount.dir]);
            line.must_succeed().text()
        };
        let before = shown();
        for _ in 0..2 {
            mount.kill();
            let stale = open.sync_all().expect_err("its server is gone");
            assert_eq!(stale.raw_os_error(), Some(Errno::NOTCONN.raw_os_error()), "{options}");
            assert_eq!(fs::read(&file).expect("the file"), b"before", "{options}");
            assert_eq!(shown(), before, "{options}");
            open = File::open(&file).expect("the file");
        }
        let stats = json(&args!["stats", &mount.dir]);
        let state = if options.contains("no_sandbox") { "off" } else { "on" };
        assert_eq!(stats["sandbox"]["state"], state, "{options}");
        drop(open);
        let keeper = parent(&process(&mount.dir));
        assert_eq!(fs::read_to_string(keeper.join("comm")).expect("a name"), "extant-keeper\n");
        let log = mount.log();
        assert!(log.contains("another one is started") && log.contains("replayed"), "{log}");
        done(&args!["umount", &mount.dir]);
        await_that("the keeper's end", || !keeper.exists());
        assert!(!is_mount(&mount.dir), "no mount lies below");
        image.assert_clean();
    }
}

#[test]
fn a_server_that_ends_in_order_is_not_started_again() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    for signals in 1..=3 {
        let mount = Restarted::mount(image.path(), "restart");
        let server = process(&mount.dir);
        let keeper = server.join("task").join(server.file_name().expect("a number"));
        let keeper = fs::read_to_string(keeper.join("children")).expect("children");
        let keeper = PathBuf::from("/proc").join(keeper.trim());
        let user = File::open(mount.dir.join(".")).expect("a directory");
        let id = server.file_name().and_then(|id| id.to_str()?.parse().ok()).expect("a number");
        for _ in 0..signals {
            // An error says that it has ended already.
            let _ = kill_process(Pid::from_raw(id).expect("a number"), Signal::TERM);
        }
        drop(user);
        await_that("the end of both", || !server.exists() && !keeper.exists());
        done(&args!["umount", "--dead", &mount.dir]);
        done(&args!["info", "--wait", image.path()]);
        assert!(!is_mount(&mount.dir) && !mount.log().contains("another one"), "{}", mount.log());
    }
}

/// It is no power of the first mount that others have changed since.
#[test]
fn a_new_server_has_the_options_of_a_remount() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let mount = Restarted::mount(image.path(), "restart,suid,dev");
    done(&args!["mount", "-o", "remount,ro,nosuid,noexec", image.path(), &mount.dir]);
    mount.kill();
    let shown = run("findmnt", &args!["-rno", "OPTIONS", &mount.dir]).must_succeed().text();
    let shown: Vec<&str> = shown.trim().split(',').collect();
    for option in ["ro", "nosuid", "noexec"] {
        assert!(shown.contains(&option), "{shown:?}");
    }
    assert!(!shown.contains(&"nodev"), "{shown:?}");
    extant(&args!["umount", &mount.dir]);
    done(&args!["recover", "--wait", image.path()]);
    image.assert_clean();
}

#[test]
fn a_disk_in_use_is_mounted_anew() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let device = Loop::attach(image.path(), false);
    let mount = Restarted::mount(device.device(), "restart");
    fs::write(mount.dir.join("file"), "text").expect("a write");
    let open = File::open(mount.dir.join("file")).and_then(|file| file.sync_all().map(|()| file));
    let open = open.expect("a durable file");
    mount.kill();
    assert_eq!(fs::read(mount.dir.join("file")).expect("the file"), b"text");
    drop(open);
    done(&args!["umount", &mount.dir]);
    drop(device);
    image.assert_clean();
}

/// Root may have mounted an image in a directory of a user.
#[test]
fn another_file_in_place_of_the_image_is_not_mounted() {
    let (image, other) = (FeatureSet::named("default"), FeatureSet::named("default"));
    let (image, other) = (image.make_sized(64 << 20), other.make_sized(64 << 20));
    let scratch = Scratch::new();
    let link = scratch.join("link");
    std::os::unix::fs::symlink(image.path(), &link).expect("a link");
    let mount = Restarted::mount(&link, "restart");
    let server = mount.server().expect("a server");
    fs::remove_file(&link).expect("a link");
    std::os::unix::fs::symlink(other.path(), &link).expect("a link");
    kill_process(server, Signal::KILL).expect("a kill");
    await_that("a message", || mount.log().contains("has taken the place of the image"));
    assert!(is_dead(&mount.dir), "the mount stays");
    done(&args!["umount", "--dead", &mount.dir]);
    assert!(!is_mount(&mount.dir));
}

/// Keeper and server may be killed together. Then a supervisor mounts again, without a moment in
/// which the directory below is seen.
#[test]
fn a_dead_mount_is_replaced_where_asked() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let mount = Restarted::mount(image.path(), "rw");
    fs::write(mount.dir.join("file"), "text").expect("a write");
    File::open(mount.dir.join("file")).and_then(|file| file.sync_all()).expect("an fsync");
    kill_process(mount.server().expect("a server"), Signal::KILL).expect("a kill");
    await_that("the end", || is_dead(&mount.dir));
    let again = |options: &str, image: &Path| args!["mount", "-o", options, image, &mount.dir];
    refused(&again("rw", image.path()), 1, "whose server is gone");
    let other = FeatureSet::named("default").make_sized(16 << 20);
    refused(&again("restart", other.path()), 1, "whose server is gone");
    done(&again("restart", image.path()));
    assert_eq!(fs::read(mount.dir.join("file")).expect("the file"), b"text");
    refused(&again("restart", image.path()), 1, "is mounted at");
    done(&args!["umount", "--dead", &mount.dir]);
    assert_eq!(fs::read(mount.dir.join("file")).expect("it is not dead"), b"text");
    done(&args!["umount", &mount.dir]);
    assert!(!is_mount(&mount.dir), "no mount lies below");
    done(&args!["umount", "--dead", &mount.dir]);
    image.assert_clean();
}

#[test]
fn restarts_are_refused_where_they_cannot_be() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let scratch = Scratch::new();
    let dir = scratch.dir("mnt");
    let mount = |options: &str| args!["mount", "-o", options, image.path(), &dir];
    refused(&mount("restart,journal_path=/x"), 2, "journal_path=");
    refused(&[&mount("restart")[..], &args!["-f"]].concat(), 2, "in the background");
    let remote = args!["mount", "-o", "restart", "nbd://localhost/x", &dir];
    refused(&remote, 2, "network block devices");
}

/// Files of a writer that were told to be durable.
#[derive(Debug, Default)]
struct Durable {
    /// Records in each file that grows.
    records: BTreeMap<String, u64>,
    /// Version of the file that is replaced by renames.
    version: u64,
}

/// The record of a number.
fn record(number: u64) -> String {
    format!("{number:>15}\n").repeat(4)
}

fn append(file: &mut File, number: u64) -> io::Result<()> {
    file.write_all(record(number).as_bytes())?;
    file.sync_all()
}

/// Replaces a file durably.
fn replace(dir: &Path, version: u64) -> io::Result<()> {
    let (new, path) = (dir.join("new"), dir.join("replaced"));
    let mut file = File::create(&new)?;
    file.write_all(version.to_string().as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, &path)?;
    File::open(dir)?.sync_all()
}

/// Appends to a new file, and replaces another one, until an error.
fn write_until_error(dir: &Path, life: u64, durable: &mut Durable, stop: &AtomicBool) {
    let name = format!("life{life}");
    let Ok(mut file) = File::create(dir.join(&name)) else { return };
    for number in 0.. {
        // Relaxed: it only ends the loop.
        if stop.load(Ordering::Relaxed) || append(&mut file, number).is_err() {
            return;
        }
        durable.records.insert(name.clone(), number + 1);
        if replace(dir, durable.version + 1).is_err() {
            return;
        }
        durable.version += 1;
    }
}

/// Nothing that was durable is lost. The step that was under way may be there as well.
fn assert_kept(dir: &Path, durable: &Durable) {
    for (name, records) in &durable.records {
        let text = fs::read_to_string(dir.join(name)).expect("a file");
        let kept: String = (0..*records).map(record).collect();
        assert!(text.starts_with(&kept), "{name} lacks some of {records} records");
    }
    if durable.version > 0 {
        let version = fs::read_to_string(dir.join("replaced")).expect("the file");
        let version: u64 = version.parse().expect("a number");
        assert!((durable.version..=durable.version + 1).contains(&version), "{version}");
    }
}

#[test]
fn nothing_durable_is_lost_by_kills() {
    let kills = std::env::var("EXTANT_KILLS").map_or(KILLS, |number| number.parse().unwrap());
    let image = FeatureSet::named("default").make_sized(256 << 20);
    let mount = Restarted::mount(image.path(), "restart");
    let (stop, dir) = (AtomicBool::new(false), &mount.dir);
    let durable = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut durable = Durable::default();
            for life in 0.. {
                // Relaxed: it only ends the loop.
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                write_until_error(dir, life, &mut durable, &stop);
                sleep(Duration::from_millis(2));
            }
            durable
        });
        let mut seed = 7_u64;
        for number in 1..=kills {
            if number % 64 == 0 {
                // Servers of which none lives for 10 s are not started forever.
                sleep(Duration::from_secs(11));
            }
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            sleep(Duration::from_millis((seed >> 33) % 600));
            mount.kill();
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().expect("the writer")
    });
    assert_kept(dir, &durable);
    let records: u64 = durable.records.values().sum();
    assert!(records >= u64::from(kills), "{records} records in {kills} kills");
    println!("{kills} kills, {records} durable records, {} renames", durable.version);
    done(&args!["umount", dir]);
    assert_eq!(fs::read_dir(dir).expect("a directory").count(), 0, "files lie below the mount");
    image.assert_clean();
    let kernel = Mount::new(image.path(), "ro");
    assert_kept(kernel.path(), &durable);
}
