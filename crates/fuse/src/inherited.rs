//! Descriptors of the program that started this one.

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};

/// The first descriptor behind standard input, output and error.
const FIRST: RawFd = 3;

/// Keeps all descriptors but standard input, output and error from programs that this one starts.
///
/// A server lives as long as its mount. With the descriptors of its caller it would hold the
/// caller's locks and pipes for that time. Call this before other threads start.
///
/// # Errors
/// Those of `/proc/self/fd`.
#[expect(unsafe_code, reason = "descriptors that came from outside have no owner")]
pub fn keep_descriptors_from_children() -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_string_lossy().parse::<RawFd>();
        let Some(number) = number.ok().filter(|number| *number >= FIRST) else { continue };
        // SAFETY: the number is that of an open descriptor, since no other thread closes one. For a
        // number that is closed meanwhile the calls fail, and access no memory.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        let flags = fcntl_getfd(descriptor)?;
        fcntl_setfd(descriptor, flags | FdFlags::CLOEXEC)?;
    }
    Ok(())
}
