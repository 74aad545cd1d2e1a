//! Errors of writeback by descriptor: each descriptor that was open when content was lost is told
//! of it once, by its next fsync.
//!
//! The number of a descriptor has the count of its inode's errors when it was opened, in the lower
//! 32 bits, and a serial number above it. So a descriptor needs no memory here before it was told
//! of an error. For example, a descriptor with the number (7, 2) is told when the inode has had
//! three errors; from then on `told` has 3 for it.
//!
//! A serial number comes again after 2^30 opens. A descriptor that stays open that long may share
//! its entry with another one, which then misses an error.

use extant_engine::Error;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Serial numbers: 30 bits.
const SERIALS: u64 = 1 << 30;

/// The descriptors that were told of errors.
#[derive(Debug, Default)]
pub struct Descriptors {
    /// Number of opens.
    opened: AtomicU64,
    /// The counts of errors that descriptors were told of, by their numbers.
    told: Mutex<HashMap<u64, u32>>,
    /// Entries of `told`; changes under its lock.
    entries: AtomicUsize,
}

impl Descriptors {
    /// Returns the number of a new descriptor of an inode with so many errors.
    pub fn open(&self, errors: u32) -> u64 {
        // Relaxed: only the number counts.
        let serial = self.opened.fetch_add(1, Ordering::Relaxed) % SERIALS;
        serial << 32 | u64::from(errors)
    }

    /// Runs `check` with the count of errors that the descriptor was told of. Keeps a new count.
    pub fn check(
        &self,
        descriptor: u64,
        check: impl FnOnce(&mut u32) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let before = if self.any() {
            let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            told.get(&descriptor).copied()
        } else {
            None
        };
        // The lower half of the number.
        let before = before.unwrap_or(descriptor as u32);
        let mut seen = before;
        let checked = check(&mut seen);
        if seen != before {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            let known = told.insert(descriptor, seen);
            self.entries.store(told.len(), Ordering::Relaxed);
            // Another thread's fsync of the descriptor was told meanwhile.
            if known == Some(seen) {
                return Ok(());
            }
        }
        checked
    }

    /// Forgets a descriptor.
    pub fn close(&self, descriptor: u64) {
        if self.any() {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            told.remove(&descriptor);
            self.entries.store(told.len(), Ordering::Relaxed);
        }
    }

    /// Whether a descriptor was told of an error. Relaxed: requests of one descriptor follow each
    /// other, and the entries of others do not matter.
    fn any(&self) -> bool {
        self.entries.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_engine::Errno;

    /// Tells of `errors` that the descriptor has not seen.
    fn check(of: &Descriptors, descriptor: u64, errors: u32) -> bool {
        let told = of.check(descriptor, |seen| {
            let new = *seen != errors;
            *seen = errors;
            if new { Err(Errno::Io.into()) } else { Ok(()) }
        });
        told.is_err()
    }

    #[test]
    fn each_descriptor_is_told_once() {
        let all = Descriptors::default();
        let (a, b) = (all.open(2), all.open(2));
        assert_ne!(a, b);
        assert!(!check(&all, a, 2));
        assert!(check(&all, a, 3));
        assert!(!check(&all, a, 3));
        assert!(check(&all, b, 3));
        assert!(!check(&all, b, 3));
        assert!(check(&all, a, 4));
        let during = all.check(b, |seen| {
            assert!(check(&all, b, 4), "another thread is first");
            *seen = 4;
            Err(Errno::Io.into())
        });
        assert!(during.is_ok(), "two threads with one descriptor are told once");
        let late = all.open(4);
        assert!(!check(&all, late, 4));
        [a, b].into_iter().for_each(|descriptor| all.close(descriptor));
        assert!(!all.any(), "closed descriptors take no memory");
    }
}
