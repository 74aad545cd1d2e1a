//! A socket from a server to its keeper, with bounds on waits for answers.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat, major, minor};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, TryLockError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long the end of a server waits for an answer, and how often it looks for that.
const LAST_ANSWER: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(1);

/// A socket to another process.
pub struct Line {
    /// Its end of this process.
    pub socket: OwnedFd,
    /// Held from a request to its answer.
    pub turn: Mutex<()>,
}

impl Line {
    /// Takes a socket.
    pub fn new(socket: OwnedFd) -> Line {
        Line { socket, turn: Mutex::default() }
    }

    /// Ends all requests from now on, and the one that waits for its answer.
    pub fn shut(&self) {
        // An error says that it has ended.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Waits for the answer that another thread waits for, but not for long.
    pub fn await_turn(&self) {
        let begin = Instant::now();
        while matches!(self.turn.try_lock(), Err(TryLockError::WouldBlock))
            && begin.elapsed() < LAST_ANSWER
        {
            sleep(LOOK);
        }
    }

    /// Returns whether an answer, or the end of the socket, comes in time.
    pub fn has_answer(&self, patience: Duration) -> io::Result<bool> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)) {
                Err(Errno::INTR) => {}
                polled => return Ok(polled? > 0),
            }
        }
    }
}

/// Returns whether a descriptor is that of a FUSE connection.
pub fn is_connection(descriptor: &OwnedFd) -> bool {
    /// Number of the device of FUSE connections.
    const DEVICE: (u32, u32) = (10, 229);
    fstat(descriptor).is_ok_and(|found| {
        FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
            && (major(found.st_rdev), minor(found.st_rdev)) == DEVICE
    })
}
