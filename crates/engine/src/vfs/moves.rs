//! Detection of directory moves by path walks.
//!
//! A walk resolves one component after the other. If a directory on the path moves meanwhile, the
//! walk may see one component before the move and another one after it, and miss a path that
//! existed all the time. For example, a walk to `/a/b` has resolved `/a` when `/a` and `/e` are
//! exchanged, and then the former `/a` loses its name `b`. Both directories had a `b`, so `/a/b`
//! existed all the time, but the walk finds none. So a walk that found nothing, or followed `..`,
//! checks for overlapping moves, and starts again if there was one.

use extant_sync::atomic::{AtomicU64, Ordering};

/// A counter of moves: the low half counts moves in progress, the high half completed ones.
#[derive(Debug, Default)]
pub struct Moves(AtomicU64);

const ENDED: u64 = 1 << 32;

/// A move in progress, until this is dropped.
#[must_use]
pub struct Moving<'a>(&'a Moves);

impl Moves {
    /// Begins the move of a directory to another name or parent. Must precede the first change of
    /// an entry.
    pub fn begin(&self) -> Moving<'_> {
        // AcqRel: the entries change after this.
        self.0.fetch_add(1, Ordering::AcqRel);
        Moving(self)
    }

    /// Returns the state at the beginning of a walk.
    #[inline]
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Returns whether no directory moved since `then`, and none was moving at that time. The walk
    /// loaded the entries with acquire ordering: if it saw a change of an entry, it sees the
    /// beginning of the move here.
    #[inline]
    pub fn still(&self, then: u64) -> bool {
        then & (ENDED - 1) == 0 && self.0.load(Ordering::Acquire) == then
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        // Release: a thread that sees the end of the move sees its entries.
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
