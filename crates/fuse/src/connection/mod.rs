//! A connection with the kernel, whatever its transport: INIT, notices, reads, and the end.

pub mod bell;
pub mod forget;
pub mod init;
mod notify;

pub use notify::teller;

use init::MAX_REQUEST;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;

/// Bytes for the largest request or reply with its headers.
pub const BUFFER: usize = MAX_REQUEST as usize + 4096;

/// Reads the next request and returns its length; `None` after the mount has ended.
pub fn next(fuse: &File, buf: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match try_next(fuse, buf) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
    }
}

/// As [`next`]. Returns `WouldBlock` if there is no request and the descriptor is non-blocking.
pub fn try_next(mut fuse: &File, buf: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match fuse.read(buf) {
            Ok(len) => return Ok(Some(len)),
            Err(e) => match Errno::from_io_error(&e) {
                Some(Errno::NOENT | Errno::INTR) => {}
                // CONNABORTED if the mount ended while a request was being read.
                Some(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                _ => return Err(e),
            },
        }
    }
}

/// Ends a mount by force.
#[derive(Clone)]
pub struct ForcedEnd {
    /// The mount point.
    pub dir: PathBuf,
    /// Ends it. Fails for users other than root.
    pub end: Arc<dyn Fn() -> io::Result<()> + Send + Sync>,
}

/// Ends the connection when one of its threads ends early, with requests that no other thread
/// serves. Only root may unmount by force. For other users the function ends the threads that
/// depend on this one, which closes their descriptors; the kernel then fails all requests.
struct Abort<'a, F: Fn()>(&'a ForcedEnd, &'a F);

impl<F: Fn()> Drop for Abort<'_, F> {
    fn drop(&mut self) {
        tracing::error!("a thread that serves {} ended early", self.0.dir.display());
        if let Err(e) = (self.0.end)() {
            tracing::error!("it cannot be unmounted: {e}");
        }
        (self.1)();
    }
}

/// Runs the work of a thread. If it fails, the mount ends, by `end_all` where unmounting fails.
pub fn needed<T>(
    forced: &ForcedEnd,
    end_all: &impl Fn(),
    work: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let abort = Abort(forced, end_all);
    let done = work()?;
    std::mem::forget(abort);
    Ok(done)
}

/// Joins a thread that serves, and returns its result.
pub fn join(thread: ScopedJoinHandle<'_, io::Result<()>>) -> io::Result<()> {
    thread.join().map_err(|_| io::Error::other("a serving thread panicked"))?
}
