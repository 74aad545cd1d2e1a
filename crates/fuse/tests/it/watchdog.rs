//! Ends a mount that is stuck, so that the test fails instead of waiting for ever: requests that nobody answers would keep every
//! program waiting that touches the mount, or syncs the machine.

use nix::mount::{MntFlags, umount2};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Far more than any test keeps a mount.
const LIMIT: Duration = Duration::from_secs(90);

/// Watches over one mount.
pub struct Watchdog {
    calm: Sender<()>,
    thread: JoinHandle<bool>,
}

impl Watchdog {
    /// Begins to watch what is mounted on `dir`.
    pub fn over(dir: &Path) -> Watchdog {
        let (calm, called) = channel();
        let dir = dir.to_path_buf();
        let thread = std::thread::spawn(move || {
            let late = called.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout);
            if late {
                abort(dir);
            }
            late
        });
        Watchdog { calm, thread }
    }

    /// The mount has ended. Panics if that was the watchdog's doing.
    pub fn rest(self) {
        drop(self.calm);
        let late = self.thread.join().expect("the watchdog lives");
        assert!(!late, "the mount was aborted: it did not end within {LIMIT:?}");
    }
}

/// Fails all requests that wait, and all that come.
fn abort(dir: PathBuf) {
    eprintln!("{} is stuck: its connection is aborted", dir.display());
    if let Err(e) = umount2(&dir, MntFlags::MNT_FORCE | MntFlags::MNT_DETACH) {
        eprintln!("{}: {e}", dir.display());
    }
}
