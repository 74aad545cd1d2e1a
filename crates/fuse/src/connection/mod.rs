//! A connection with the kernel, however its requests come: how it begins, what is told through it,
//! and how it ends.

pub mod forgets;
pub mod hello;

use crate::flags::MAX_REQUEST;
use crate::service::{Old, Tell};
use crate::wire::structs::{InvalInode, NOTIFY_INVAL_INODE, NOTIFY_PRUNE, OutHeader, Prune};
use nix::libc;
use nix::mount::{MntFlags, umount2};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use zerocopy::IntoBytes;

/// Room for the largest request, or reply, and what stands before it.
pub const BUFFER: usize = MAX_REQUEST as usize + 4096;

/// Reads the next request: how long it is. None when the mount has ended.
pub fn next(fuse: &File, buf: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match try_next(fuse, buf) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
    }
}

/// As [`next`]. `WouldBlock` if there is no request and the descriptor does not wait.
pub fn try_next(mut fuse: &File, buf: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match fuse.read(buf) {
            Ok(len) => return Ok(Some(len)),
            Err(e) => match e.raw_os_error() {
                Some(libc::ENOENT | libc::EINTR) => {}
                // The second, if it ended while a request was on its way here.
                Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(None),
                _ => return Err(e),
            },
        }
    }
}

/// Tells the kernel through the connection what is old.
pub fn teller(fuse: Arc<File>) -> Tell {
    let send = move |code, body: &[u8]| {
        let bytes = size_of::<OutHeader>() + body.len();
        let head = OutHeader { len: bytes as u32, error: code, unique: 0 };
        (&*fuse).write_all(&[head.as_bytes(), body].concat())
    };
    Box::new(move |old| match old {
        Old::Pages(ino, off, len) => {
            send(NOTIFY_INVAL_INODE, InvalInode { ino: ino.0, off, len }.as_bytes())
        }
        Old::Inode(ino) => {
            send(NOTIFY_PRUNE, Prune { count: 1, padding: 0, spare: 0, ino: ino.0 }.as_bytes())
        }
    })
}

/// Ends the connection when one of its threads ends early, with requests that no other thread
/// serves. Only root may unmount it by force; else the function has the other threads end, where
/// they depend on this one, and close their descriptors, after which the kernel fails all requests.
struct Abort<'a, F: Fn()>(&'a Path, &'a F);

impl<F: Fn()> Drop for Abort<'_, F> {
    fn drop(&mut self) {
        tracing::error!("a thread that serves {} ended early", self.0.display());
        if let Err(e) = umount2(self.0, MntFlags::MNT_FORCE | MntFlags::MNT_DETACH) {
            tracing::error!("it cannot be unmounted: {e}");
        }
        (self.1)();
    }
}

/// Runs a thread's work; the mount ends if that fails, by `end_all` where it cannot be unmounted.
pub fn needed<T>(
    dir: &Path,
    end_all: &impl Fn(),
    work: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let abort = Abort(dir, end_all);
    let done = work()?;
    std::mem::forget(abort);
    Ok(done)
}

/// What a thread that serves has come to.
pub fn join(thread: ScopedJoinHandle<'_, io::Result<()>>) -> io::Result<()> {
    thread.join().map_err(|_| io::Error::other("a serving thread panicked"))?
}
