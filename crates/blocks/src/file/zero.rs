//! Zeroing and discarding ranges of a file by system calls.

use extant_sync::atomic::{AtomicBool, Ordering};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::File;
use std::io;

/// The methods that the file does not support. Relaxed: a stale value costs one failing attempt.
#[derive(Debug, Default)]
pub(super) struct Deallocator {
    no_punch: AtomicBool,
    no_zero: AtomicBool,
}

impl Deallocator {
    /// Releases a range's storage. A range that does not fit the file's units keeps it.
    ///
    /// # Errors
    /// EOPNOTSUPP if the file cannot release any storage.
    pub(super) fn discard(&self, file: &File, at: u64, len: u64) -> io::Result<()> {
        let done = attempt(&self.no_punch, file, FallocateFlags::PUNCH_HOLE, at, len)?;
        if !done && self.no_punch.load(Ordering::Relaxed) {
            Err(Errno::OPNOTSUPP.into())
        } else {
            Ok(())
        }
    }

    /// Zeroes a range without writing it. The file keeps the range's storage, so space that was
    /// allocated in advance does not become unavailable. Returns false if the range must be written
    /// instead.
    pub(super) fn zero(&self, file: &File, at: u64, len: u64) -> io::Result<bool> {
        attempt(&self.no_zero, file, FallocateFlags::ZERO_RANGE, at, len)
    }
}

/// Tries one method and returns whether it worked. A method that the file does not support is not
/// tried again; one that does not fit the range (a disk's sectors) may fit the next.
fn attempt(
    unsupported: &AtomicBool,
    file: &File,
    way: FallocateFlags,
    at: u64,
    len: u64,
) -> io::Result<bool> {
    if len == 0 {
        return Ok(true);
    }
    if unsupported.load(Ordering::Relaxed) {
        return Ok(false);
    }
    let flags = way | FallocateFlags::KEEP_SIZE;
    loop {
        match fallocate(file, flags, at, len) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            // This range does not fit the file's units; another may.
            Err(Errno::INVAL) => return Ok(false),
            // The file does not support the method for any range.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV) => {
                unsupported.store(true, Ordering::Relaxed);
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
    }
}
