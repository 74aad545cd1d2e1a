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
//!
//! Where opens are no requests, descriptors have no numbers. There each thread that calls fsync is
//! told of every error of the file once, also of those before its open, as long as
//! the kernel remembers the file. Files with errors are few, so entries are bounded by forgetting
//! all of them: threads are then told again.

use crate::types::NodeId;
use extant_engine::Error;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Serial numbers: 30 bits.
const SERIALS: u64 = 1 << 30;

/// Largest number of threads that were told.
const MAX_THREADS: usize = 4096;

/// The descriptors that were told of errors.
#[derive(Debug, Default)]
pub struct Descriptors {
    /// Number of opens.
    opened: AtomicU64,
    /// The counts of errors that descriptors were told of, by the inode and their numbers.
    told: Mutex<HashMap<(NodeId, u64), u32>>,
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
        (ino, descriptor): (NodeId, u64),
        check: impl FnOnce(&mut u32) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let before = if self.any() {
            let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            told.get(&(ino, descriptor)).copied()
        } else {
            None
        };
        // The lower half of the number.
        let before = before.unwrap_or(descriptor as u32);
        let mut seen = before;
        let checked = check(&mut seen);
        if seen != before {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            let known = told.insert((ino, descriptor), seen);
            self.entries.store(told.len(), Ordering::Relaxed);
            // Another thread's fsync of the descriptor was told meanwhile.
            if known == Some(seen) {
                return Ok(());
            }
        }
        checked
    }

    /// As [`Descriptors::check`], for a thread, which has seen no error at first. Thread 0 stands
    /// for any that is not known: it is told each time.
    pub fn check_thread(
        &self,
        (ino, thread): (NodeId, u64),
        check: impl FnOnce(&mut u32) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if thread == 0 {
            return check(&mut 0);
        }
        // Relaxed: a few more entries cost memory only.
        if self.entries.load(Ordering::Relaxed) >= MAX_THREADS {
            self.remove(|_| true);
        }
        self.check((ino, thread << 32), check)
    }

    /// Returns the number of opens, and the errors that descriptors were told of, for
    /// [`Descriptors::adopt`].
    pub fn table(&self) -> (u64, Vec<[u64; 3]>) {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let told = told.iter().map(|((ino, number), count)| [ino.0, *number, u64::from(*count)]);
        // Relaxed, here and below: no request is served meanwhile.
        (self.opened.load(Ordering::Relaxed), told.collect())
    }

    /// Goes on with descriptors of another server.
    pub fn adopt(&self, opened: u64, told: &[[u64; 3]]) {
        self.opened.store(opened, Ordering::Relaxed);
        let mut all = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(
            told.iter().map(|[ino, number, count]| ((NodeId(*ino), *number), *count as u32)),
        );
        self.entries.store(all.len(), Ordering::Relaxed);
    }

    /// Forgets a descriptor.
    pub fn close(&self, ino: NodeId, descriptor: u64) {
        if self.any() {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            told.remove(&(ino, descriptor));
            self.entries.store(told.len(), Ordering::Relaxed);
        }
    }

    /// Forgets all descriptors of an inode.
    pub fn forget(&self, ino: NodeId) {
        if self.any() {
            self.remove(|of| of == ino);
        }
    }

    fn remove(&self, is_removed: impl Fn(NodeId) -> bool) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|(ino, _), _| !is_removed(*ino));
        self.entries.store(told.len(), Ordering::Relaxed);
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

    const INO: NodeId = NodeId(12);

    /// Tells of `errors` that were not seen.
    fn tell(seen: &mut u32, errors: u32) -> Result<(), Error> {
        let before = std::mem::replace(seen, errors);
        if before == errors { Ok(()) } else { Err(Errno::Io.into()) }
    }

    /// Returns whether a descriptor is told, when its inode has so many errors.
    fn check(of: &Descriptors, descriptor: u64, errors: u32) -> bool {
        of.check((INO, descriptor), |seen| tell(seen, errors)).is_err()
    }

    #[test]
    fn each_thread_is_told_once_of_each_file() {
        let all = Descriptors::default();
        let check = |ino, thread, errors| {
            all.check_thread((NodeId(ino), thread), |seen| tell(seen, errors)).is_err()
        };
        assert!(!check(5, 100, 0));
        assert!(check(5, 100, 1));
        assert!(!check(5, 100, 1));
        assert!(check(5, 101, 1));
        assert!(check(6, 100, 1), "another file has an error of its own");
        assert!(check(5, 0, 1) && check(5, 0, 1), "an unknown thread may be another one");
        all.forget(NodeId(5));
        assert!(check(5, 100, 1), "the file may be another one");
        assert!(!check(6, 100, 1));
        for thread in 1..=MAX_THREADS as u64 + 100 {
            check(7, thread, 1);
        }
        assert!(all.told.lock().expect("no panic").len() <= MAX_THREADS + 1);
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
        let during = all.check((INO, b), |seen| {
            assert!(check(&all, b, 4), "another thread is first");
            *seen = 4;
            Err(Errno::Io.into())
        });
        assert!(during.is_ok(), "two threads with one descriptor are told once");
        let late = all.open(4);
        assert!(!check(&all, late, 4));
        [a, b].into_iter().for_each(|descriptor| all.close(INO, descriptor));
        assert!(!all.any(), "closed descriptors take no memory");
    }
}
