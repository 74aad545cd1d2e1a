//! Moves of directories, as walks notice them.
//!
//! A walk takes one component after the other, each as it is when it gets there. If a directory on
//! the way moves meanwhile, it may see the names before the move at one component and after it at
//! another, and miss a path that was there all the time. So a walk that found nothing, or went
//! upward, asks whether a directory was moving, and if so goes again.

use extant_sync::atomic::{AtomicU64, Ordering};

/// The low half counts the moves in progress, the high half those that are over.
#[derive(Debug, Default)]
pub struct Moves(AtomicU64);

const ENDED: u64 = 1 << 32;

/// A directory is moving until this is dropped.
#[must_use]
pub struct Moving<'a>(&'a Moves);

impl Moves {
    /// A directory gets another name or parent: before the first entry changes.
    pub fn begin(&self) -> Moving<'_> {
        // AcqRel: the entries change after this.
        self.0.fetch_add(1, Ordering::AcqRel);
        Moving(self)
    }

    /// The state that a walk begins with.
    #[inline]
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Whether no directory has moved or was moving since `then`. The entries that the walk saw
    /// were loaded with acquire, so who saw a change of one sees its move's beginning.
    #[inline]
    pub fn still(&self, then: u64) -> bool {
        then & (ENDED - 1) == 0 && self.0.load(Ordering::Acquire) == then
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        // Release: who sees the end sees the entries.
        self.0.0.fetch_add(ENDED - 1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_notice_moves() {
        let moves = Moves::default();
        let quiet = moves.now();
        assert!(moves.still(quiet));
        let first = moves.begin();
        assert!(!moves.still(quiet) && !moves.still(moves.now()));
        let second = moves.begin();
        drop(first);
        assert!(!moves.still(moves.now()));
        drop(second);
        assert!(moves.still(moves.now()) && !moves.still(quiet));
    }
}
