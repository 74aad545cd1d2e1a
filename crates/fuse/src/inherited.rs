//! Descriptors of the program that started this one.

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The first descriptor behind standard input, output and error.
const FIRST: RawFd = 3;

/// Returns the numbers of all descriptors but standard input, output and error.
fn numbers() -> io::Result<Vec<RawFd>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_string_lossy().parse::<RawFd>();
        numbers.extend(number.ok().filter(|number| *number >= FIRST));
    }
    Ok(numbers)
}

/// Closes all descriptors but standard input, output and error. A server that is taken over would
/// have the open files of its caller.
///
/// Call this before the program opens anything.
///
/// # Errors
/// Those of `/proc/self/fd`.
#[expect(unsafe_code, reason = "descriptors that came from outside have no owner")]
pub fn close_descriptors_of_caller() -> io::Result<()> {
    for number in numbers()? {
        // SAFETY: the call fails for the number of the list itself, which is closed already, and
        // accesses no memory.
        let is_open = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) }).is_ok();
        if is_open {
            // SAFETY: the program has opened nothing yet, so no code of it owns the descriptor.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
    Ok(())
}

/// Keeps all descriptors but standard input, output and error from programs that this one starts.
///
/// A server lives as long as its mount. With the descriptors of its caller it would hold the
/// caller's locks and pipes for that time. Call this before other threads start.
///
/// # Errors
/// Those of `/proc/self/fd`.
#[expect(unsafe_code, reason = "descriptors that came from outside have no owner")]
pub fn keep_descriptors_from_children() -> io::Result<()> {
    for number in numbers()? {
        // SAFETY: the number is that of an open descriptor, since no other thread closes one. For
        // that of the list itself, which is closed already, the calls fail, and access no memory.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        let Ok(flags) = fcntl_getfd(descriptor) else { continue };
        fcntl_setfd(descriptor, flags | FdFlags::CLOEXEC)?;
    }
    Ok(())
}
