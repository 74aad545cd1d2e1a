//! Bounded waits that tolerate a busy machine.
//!
//! A watchdog ends a stuck mount, so that the test fails instead of waiting forever. Requests
//! without replies would block every program that accesses the mount or calls sync(2).

use nix::mount::{MntFlags, umount2};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

/// Far longer than the mount of any test on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Far longer than the kernel's asynchronous work takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `is_so` returns true.
#[track_caller]
pub fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "waited in vain: {what}");
        sleep(Duration::from_millis(5));
    }
}

/// Unmounts as soon as the mount is not in use: programs that other tests start hold descriptors of
/// it between fork and exec.
#[track_caller]
pub fn unmount_unused(mut unmount: impl FnMut() -> io::Result<()>) {
    await_that("the mount is not in use", || match unmount() {
        Ok(()) => true,
        Err(e) if e.kind() == io::ErrorKind::ResourceBusy => false,
        Err(e) => panic!("unmount: {e}"),
    });
}

/// Waits until a change gets a later time than `time`, in seconds and nanoseconds: file systems
/// read a clock that advances by ticks, which a busy machine delays.
#[track_caller]
pub fn await_tick_after(time: (i64, i64)) {
    await_that("the clock ticks", || {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        (now.tv_sec, now.tv_nsec) > time
    });
}

/// Watches over one mount.
pub struct Watchdog {
    dir: PathBuf,
    /// Both until [`Watchdog::rest`].
    watching: Option<(Sender<()>, JoinHandle<bool>)>,
}

impl Watchdog {
    /// Starts a watchdog over the mount on `dir`.
    pub fn over(dir: &Path) -> Watchdog {
        let (calm, called) = channel();
        let watched = dir.to_path_buf();
        let thread = std::thread::spawn(move || {
            let late = called.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout);
            if late {
                abort(&watched);
            }
            late
        });
        Watchdog { dir: dir.into(), watching: Some((calm, thread)) }
    }

    /// Stops the watchdog after the end of the mount. Panics if the watchdog ended it.
    pub fn rest(mut self) {
        let Some((calm, thread)) = self.watching.take() else { return };
        drop(calm);
        let late = thread.join().expect("the watchdog lives");
        assert!(!late, "the mount was aborted: it did not end within {LIMIT:?}");
    }
}

impl Drop for Watchdog {
    /// Ends the mount of a test that has failed: threads of the test may wait for replies.
    fn drop(&mut self) {
        if self.watching.is_some() && std::thread::panicking() {
            abort(&self.dir);
        }
    }
}

/// Fails all pending and later requests.
fn abort(dir: &Path) {
    eprintln!("{} is stuck: its connection is aborted", dir.display());
    if let Err(e) = umount2(dir, MntFlags::MNT_FORCE | MntFlags::MNT_DETACH) {
        eprintln!("{}: {e}", dir.display());
    }
}
