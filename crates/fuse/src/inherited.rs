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

/// Descriptors of the program that started this one, but standard input, output and error.
#[derive(Debug)]
pub struct InheritedDescriptors(Vec<RawFd>);

impl InheritedDescriptors {
    /// Finds them. Call this before the program opens anything, and before other threads start:
    /// then no code of the program owns one of them.
    ///
    /// # Errors
    /// Those of `/proc/self/fd`.
    #[expect(unsafe_code, reason = "descriptors that came from outside have no owner")]
    pub fn find() -> io::Result<InheritedDescriptors> {
        // SAFETY: the call fails for the number of the list itself, which is closed already, and
        // accesses no memory.
        let is_open = |number: &RawFd| fcntl_getfd(unsafe { BorrowedFd::borrow_raw(*number) });
        let numbers = numbers()?.into_iter().filter(|number| is_open(number).is_ok());
        Ok(InheritedDescriptors(numbers.collect()))
    }

    /// Takes one of them.
    #[expect(unsafe_code, reason = "descriptors that came from outside have no owner")]
    pub fn take(&mut self, number: RawFd) -> Option<OwnedFd> {
        let place = self.0.iter().position(|found| *found == number)?;
        self.0.swap_remove(place);
        // SAFETY: the program had opened nothing when the descriptor was found, so no code of it
        // owns the descriptor, and its number is not in the list any more.
        Some(unsafe { OwnedFd::from_raw_fd(number) })
    }

    /// Closes them, unless `keeps` returns true for the number. A process that is taken over would
    /// have the open files of its caller.
    #[expect(unsafe_code, reason = "descriptors that came from outside have no owner")]
    pub fn close(self, keeps: impl Fn(RawFd) -> bool) {
        for number in self.0.into_iter().filter(|number| !keeps(*number)) {
            // SAFETY: the program had opened nothing when the descriptor was found, so no code of
            // it owns the descriptor.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
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
