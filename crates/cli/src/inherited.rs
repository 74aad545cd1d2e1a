//! Descriptors that the caller of the program left open.

use extant_fuse::InheritedDescriptors;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

static FOUND: Mutex<Option<InheritedDescriptors>> = Mutex::new(None);

/// Finds them. The program must have opened nothing yet.
pub fn find() {
    // Without /proc there is no way to name one either.
    *FOUND.lock().unwrap_or_else(PoisonError::into_inner) = InheritedDescriptors::find().ok();
}

/// Takes the socket that systemd(1) hands to a service that it starts for a client, if there is one
/// (sd_listen_fds(3)).
pub fn take_socket() -> Option<OwnedFd> {
    /// The number of the first one.
    const FIRST: RawFd = 3;
    let is_for_this =
        std::env::var("LISTEN_PID").is_ok_and(|id| id == std::process::id().to_string());
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    found.as_mut().filter(|_| is_for_this)?.take(FIRST)
}

/// Closes those that no argument names, as `/dev/fd/9` or `/proc/self/fd/9`.
pub fn close_unnamed() {
    let found = FOUND.lock().unwrap_or_else(PoisonError::into_inner).take();
    found.into_iter().for_each(|found| found.close(is_named));
}

fn is_named(number: RawFd) -> bool {
    std::env::args_os().any(|argument| names(&argument.to_string_lossy(), number))
}

fn names(argument: &str, number: RawFd) -> bool {
    let digits = |rest: &str| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
    argument.split("fd/").skip(1).any(|rest| digits(rest) == Some(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_name_descriptors() {
        for argument in ["/dev/fd/9", "--tar=/proc/self/fd/9", "/dev/fd/9@p1", "a/fd/7:fd/9"] {
            assert!(names(argument, 9), "{argument}");
        }
        for argument in ["/dev/fd/90", "/dev/fd/", "9", "/dev/fd/x9", ""] {
            assert!(!names(argument, 9), "{argument}");
        }
    }
}
