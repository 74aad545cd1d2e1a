//! Mounts that another server goes on with, while programs use them.

use crate::served::{Served, opening_fast, over_rings};
use crate::watchdog::await_that;
use extant_engine::{Error, Fs, OpenOptions};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Names of a directory that takes several requests to list.
const NAMES: usize = 3000;

fn opened(path: &Path) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).open(path).expect("a file")
}

/// Open files, one of which was never named, with content that nothing has synced.
struct Open {
    unlinked: File,
    nameless: File,
    locked: File,
    listing: fs::ReadDir,
    listed: usize,
}

impl Open {
    fn new(served: &Served) -> Open {
        let mut unlinked = opened(&served.path("unlinked"));
        unlinked.write_all(b"before").expect("a write");
        fs::remove_file(served.path("unlinked")).expect("an unlink");
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let nameless = openat(CWD, served.dir(), flags, Mode::from(0o600)).map(File::from);
        let nameless = nameless.expect("O_TMPFILE");
        nameless.write_all_at(&[7; 200_000], 0).expect("a write");
        let locked = opened(&served.path("locked"));
        locked.lock().expect("a lock");
        let names = served.path("names");
        fs::create_dir(&names).expect("a directory");
        (0..NAMES)
            .for_each(|i| drop(File::create(names.join(format!("name {i}"))).expect("a file")));
        let mut listing = fs::read_dir(names).expect("a listing");
        listing.next().expect("a name").expect("a name");
        Open { unlinked, nameless, locked, listing, listed: 1 }
    }

    /// Goes on with all of them.
    fn check(&mut self, served: &Served, round: usize) {
        let mut content = [0; 6];
        self.unlinked.read_exact_at(&mut content, 0).expect("a read");
        assert_eq!(&content, b"before");
        self.unlinked.write_all(&[round as u8; 5000]).expect("a write");
        assert_eq!(self.unlinked.metadata().expect("fstat").len(), 6 + 5000 * round as u64);
        self.nameless.read_exact_at(&mut content, 150_000).expect("a read");
        assert_eq!(content, [7; 6]);
        self.nameless.sync_all().expect("a sync");
        assert_eq!(self.nameless.metadata().expect("fstat").nlink(), 0);
        assert!(opened(&served.path("locked")).try_lock().is_err(), "it is locked");
        self.locked.write_all_at(b"x", 0).expect("a write");
        for _ in 0..NAMES / 10 {
            self.listing.next().expect("a name").expect("a name");
            self.listed += 1;
        }
    }

    fn end(self, served: &Served) {
        assert_eq!(self.listed + self.listing.count(), NAMES, "each name once");
        self.locked.unlock().expect("an unlock");
        assert!(opened(&served.path("locked")).try_lock().is_ok());
    }
}

fn open_files_survive_handovers() {
    let mut served = Served::by_device("orphan_file");
    let mut open = Open::new(&served);
    for round in 1..=3 {
        served.hand_over();
        open.check(&served, round);
    }
    open.end(&served);
    served.unmount();
    served.mount();
    assert_eq!(fs::read_dir(served.path("names")).expect("a listing").count(), NAMES);
    served.unmount();
}

#[test]
fn open_files_survive() {
    open_files_survive_handovers();
}

#[test]
fn open_files_of_unseen_opens_survive() {
    opening_fast(open_files_survive_handovers);
}

#[test]
fn a_server_whose_successor_fails_goes_on() {
    let mut served = Served::by_device("default");
    let mut open = Open::new(&served);
    for round in 1..=3 {
        let failed = served.try_hand_over(|| Err(io::Error::other("planted")));
        assert_eq!(failed.expect_err("it failed").to_string(), "planted");
        open.check(&served, round);
    }
    served.hand_over();
    open.check(&served, 4);
    open.end(&served);
    served.unmount();
}

fn planted() -> io::Result<()> {
    Err(io::Error::other("planted"))
}

/// The path is gone for both servers, and the first attempts to open the image again fail.
#[test]
fn a_server_goes_on_without_the_path_of_its_image() {
    let mut served = Served::by_device("default");
    let mut open = Open::new(&served);
    let moved = served.image().with_extension("moved");
    fs::rename(served.image(), &moved).expect("a rename");
    served.hand_over();
    open.check(&served, 1);
    let failures = AtomicUsize::new(3);
    let failed = served.hand_over_or(planted, |device, held| {
        let left =
            failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        match left {
            Ok(_) => Err(Error::Aborted("planted".into())),
            Err(_) => Fs::open_device(device, &OpenOptions::new().adopt(held)),
        }
    });
    assert_eq!(failed.expect_err("it failed").to_string(), "planted");
    open.check(&served, 2);
    fs::write(served.path("later"), "x").expect("a write");
    served.handover().sync().expect("a sync of the server that goes on");
    open.end(&served);
    fs::rename(&moved, served.image()).expect("a rename");
    served.unmount();
}

/// The mount stays, without a server, and the process can end with an error.
#[test]
fn a_mount_that_no_server_can_go_on_with_is_lost() {
    let mut served = Served::by_device("default");
    fs::write(served.path("file"), "content").expect("a write");
    let mut file = opened(&served.path("file"));
    let failed = served.hand_over_or(planted, |_, _| Err(Error::Aborted("no way".into())));
    assert!(failed.expect_err("it failed").to_string().contains("no way"));
    let lost = served.lose();
    assert!(lost.to_string().contains("no way"), "{lost}");
    let dead = file.write_all(b"x").and_then(|()| file.sync_all()).expect_err("no server");
    let gone = [ErrorKind::NotConnected, ErrorKind::ConnectionAborted];
    assert!(gone.contains(&dead.kind()), "{dead}");
    drop(file);
    served.mount();
    assert_eq!(fs::read_to_string(served.path("file")).expect("a read"), "content");
    served.unmount();
}

/// The new server cannot even start. It closes the image without a loss.
#[test]
fn a_successor_with_other_owners_changes_nothing() {
    let mut served = Served::by_device("default");
    let mut open = Open::new(&served);
    let view = served.options.view;
    served.options.view.as_root = true;
    let failed = served.try_hand_over(|| Ok(())).expect_err("other owners");
    served.options.view = view;
    assert!(failed.to_string().contains("other owners"), "{failed}");
    open.check(&served, 1);
    open.end(&served);
    served.unmount();
}

/// Work of a thread, with its own directory: each result is the one that a program expects.
fn work(dir: &Path, number: usize, ended: &AtomicBool, done: &AtomicUsize) -> io::Result<()> {
    fs::create_dir(dir)?;
    let direct = dir.join("direct");
    for round in 0.. {
        if ended.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (old, new) =
            (dir.join(format!("old {round}")), dir.join(format!("new {}", round % 50)));
        let content: Vec<u8> = (0..20_000).map(|i| (i * 31 + round * 7 + number) as u8).collect();
        let mut file = File::options().read(true).write(true).create_new(true).open(&old)?;
        file.write_all(&content)?;
        if round % 5 == 0 {
            file.sync_all()?;
        }
        fs::rename(&old, &new)?;
        assert!(fs::symlink_metadata(&old).is_err_and(|e| e.kind() == ErrorKind::NotFound));
        let mut back = Vec::new();
        File::open(&new)?.read_to_end(&mut back)?;
        assert!(back == content, "other content");
        if round % 3 == 0 {
            fs::remove_file(&new)?;
            // Open, without a name, over the next handovers.
            file.write_all_at(b"more", 30_000)?;
            let mut end = [0; 4];
            file.read_exact_at(&mut end, 30_000)?;
            assert_eq!(&end, b"more");
        }
        write_past(&direct, round as u8)?;
        let names = fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?.len();
        assert!((1..=51).contains(&names), "{names} names");
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Writes directly to a file with changed pages in the cache: the server makes the kernel write
/// these pages before it answers.
fn write_past(path: &Path, byte: u8) -> io::Result<()> {
    let cached = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    cached.write_all_at(&[byte; 9000], 0)?;
    let mut options = File::options();
    let direct = options.write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path)?;
    let page = Aligned([byte ^ 1; 4096]);
    direct.write_all_at(&page.0, 4096)?;
    let mut back = [0; 9000];
    cached.read_exact_at(&mut back, 0)?;
    let expected = |at| if (4096..8192).contains(&at) { byte ^ 1 } else { byte };
    assert!((0..9000).all(|at| back[at] == expected(at)), "other content");
    Ok(())
}

#[repr(align(4096))]
struct Aligned([u8; 4096]);

/// Ends the threads of a test, also of one that has failed.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn work_goes_on_during_handovers() {
    const WORKERS: usize = 4;
    let served = Served::by_device("default");
    let (ended, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let top = served.dir().to_path_buf();
    let mut served = thread::scope(|scope| {
        // If the test fails, its mount ends before the threads are waited for.
        let (mut served, ending) = (served, Ending(&ended));
        let spawn = |number: usize| {
            let (dir, ended, done) = (top.join(format!("worker {number}")), &ended, &done);
            scope.spawn(move || work(&dir, number, ended, done))
        };
        let workers: Vec<_> = (0..WORKERS).map(spawn).collect();
        for round in 0..6 {
            let before = done.load(Ordering::Relaxed);
            await_that("work of the threads", || {
                done.load(Ordering::Relaxed) >= before + WORKERS
                    || workers.iter().any(|worker| worker.is_finished())
            });
            if round == 3 {
                let failed = served.try_hand_over(|| Err(io::Error::other("planted")));
                assert_eq!(failed.expect_err("it failed").to_string(), "planted");
            } else {
                served.hand_over();
            }
        }
        drop(ending);
        for worker in workers {
            worker.join().expect("no panic").expect("no error");
        }
        served
    });
    served.unmount();
}

#[test]
fn rings_are_not_handed_over() {
    over_rings(|| {
        let mut served = Served::new("default");
        let refused = served.try_hand_over(|| Ok(())).expect_err("rings");
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        fs::write(served.path("file"), "content").expect("it is served");
        served.unmount();
    });
}
