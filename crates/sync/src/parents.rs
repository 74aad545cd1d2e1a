//! Parents of objects, such as directories, read without a lock, and walks over several of them.
//!
//! For example, directory 12 is in directory 11. A lookup of its parent reads the link of 12, takes
//! a reference to 11, and reads the link again: it still names 11, so 11 was the parent at that
//! moment, which the reference keeps. A walk further up reads the link of 11. In between, 12 and 11
//! may have moved, so that 12 never was below the result. The walk therefore compares the sequence
//! of moves before and after.
//!
//! # Invariants
//! - A link changes between [`Moves::begin`] and the end of that move, or from unknown to the
//!   present parent. Writers of one link exclude each other by a lock of their own.
//! - A link is one word, so it is always whole. The number 0 stands for an unknown parent.
//!
//! # Memory order
//! A writer stores a link with Release after the begin of its move. A walk that sees the new link
//! (Acquire) therefore sees the begin, too, and its second look at the sequence tells of the move.
//! A walk that begins after the end of a move (Acquire) sees the links of that move. So the links
//! that a walk has seen between two equal looks, with no move in progress, existed together.

use crate::atomic::{AtomicU64, Ordering};
use crate::cache::{Cache, Held, Object};
use crate::epoch::Guard;

/// Lookups of a parent that moves each time, before the caller has to take its lock.
const TRIES: u32 = 4;

/// The parent of an object, by number and generation, or that it is unknown.
#[derive(Debug, Default)]
pub struct ParentLink(AtomicU64);

impl ParentLink {
    /// Returns number and generation of the parent; `None` if it is unknown.
    #[inline]
    pub fn get(&self) -> Option<(u32, u32)> {
        let word = self.0.load(Ordering::Acquire);
        (word != 0).then_some(((word >> 32) as u32, word as u32))
    }

    /// Sets the parent's number, which must not be 0, and generation. The caller must hold the lock
    /// that excludes other writers, and must have begun a move unless the parent was unknown.
    pub fn set(&self, key: u32, generation: u32) {
        self.0.store(u64::from(key) << 32 | u64::from(generation), Ordering::Release);
    }
}

impl<T: Object> Cache<T> {
    /// Returns a reference to the object that a link named while the reference was held. `is` tells
    /// whether an object has the link's generation and may be returned. Returns `None` if the
    /// parent is unknown, is not in the cache or is refused, or if it moves all the time. Takes no
    /// lock.
    pub fn get_parent(
        &self,
        pinned: &Guard,
        link: &ParentLink,
        is: impl Fn(&T, u32) -> bool,
    ) -> Option<Held<T>> {
        for _ in 0..TRIES {
            let seen @ (key, generation) = link.get()?;
            // A dead object grants no reference. The number may belong to another object by now.
            let found = self.get_pinned(pinned, key).filter(|held| is(held, generation));
            if link.get() == Some(seen) {
                return found;
            }
        }
        None
    }
}

/// A counter of moves: the low half counts moves in progress, the high half completed ones.
#[derive(Debug, Default)]
pub struct Moves(AtomicU64);

const ENDED: u64 = 1 << 32;

/// A move in progress, until this is dropped.
#[must_use]
#[derive(Debug)]
pub struct Moving<'a>(&'a Moves);

impl Moves {
    /// Begins the move of an object to another name or parent. Must precede the first change of an
    /// entry or a link.
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

    /// Returns whether no object moved since `then`, and none was moving at that time. The walk
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

#[cfg(all(test, not(loom)))]
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

    #[test]
    fn a_link_is_unknown_until_it_is_set() {
        let link = ParentLink::default();
        assert_eq!(link.get(), None);
        for (key, generation) in [(2, 0), (u32::MAX, u32::MAX), (1, 7)] {
            link.set(key, generation);
            assert_eq!(link.get(), Some((key, generation)));
        }
    }
}
