//! An eventfd by which one thread wakes another one that waits for descriptors.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A descriptor that is readable after a ring, until it is silenced.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// Creates a bell that has not rung.
    pub fn new() -> io::Result<Bell> {
        Ok(Bell(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    /// Makes the descriptor readable.
    pub fn ring(&self) -> io::Result<()> {
        rustix::io::write(&self.0, &1u64.to_ne_bytes())?;
        Ok(())
    }

    /// Makes the descriptor unreadable until the next ring.
    pub fn silence(&self) {
        // An error means that it has not rung.
        let _ = rustix::io::read(&self.0, &mut [0; size_of::<u64>()]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    #[test]
    fn a_bell_is_readable_from_its_ring_until_it_is_silenced() {
        let bell = Bell::new().expect("eventfd");
        let is_readable = || {
            let mut fds = [PollFd::new(&bell, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).expect("poll") == 1
        };
        bell.silence();
        assert!(!is_readable());
        bell.ring().expect("ring");
        bell.ring().expect("ring again");
        assert!(is_readable());
        bell.silence();
        assert!(!is_readable());
    }
}
