//! Free-space data structures without I/O.
//!
//! - [`FreeMap`] is the free space of one group; [`BitMap`] keeps it as a bitmap with a summary of run lengths.
//! - [`Index`] finds groups by a small number each (free inodes, longest free run) without visiting all of them.
//! - [`prealloc`] keeps free runs for files that will want them.
//! - [`Budget`] is the free space of the whole file system as a number that is never overdrawn.
#![forbid(unsafe_code)]

mod bitmap;
mod budget;
mod held;
mod index;
mod lru;
mod meta;
pub mod prealloc;
mod runs;
mod summary;
mod tree;

#[cfg(test)]
mod testing;

pub use bitmap::BitMap;
pub use budget::Budget;
pub use held::Held;
pub use index::Index;
pub use lru::Lru;
pub use meta::{Advice, Meta};
pub use runs::free_runs;
pub use summary::{ORDERS, Summaries, Summary};
pub use tree::FreeTree;

/// Contiguous units (clusters) of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// The first unit.
    pub start: u32,
    /// How many; not 0.
    pub len: u32,
}

impl Run {
    /// The unit behind the last.
    pub fn end(self) -> u32 {
        self.start.saturating_add(self.len)
    }
}

/// The free units of one group.
pub trait FreeMap: std::fmt::Debug + Send {
    /// From a bitmap whose set bits are used. Bits from `len` on, and those that `bitmap` does not have, are used.
    fn from_bitmap(bitmap: &[u8], len: u32) -> Self
    where
        Self: Sized;

    /// Free units.
    fn count(&self) -> u32;

    /// The longest free run has at least this many units and fewer than twice as many; 0 if nothing is free.
    fn longest(&self) -> u32;

    /// Takes between `min` and `want` contiguous units (both at least 1): the nearest run at or behind `goal` that has
    /// `want`, else one of the longest.
    fn take(&mut self, goal: u32, want: u32, min: u32) -> Option<Run>;

    /// Takes between `min` and `want` units that start at `start`.
    fn take_at(&mut self, start: u32, want: u32, min: u32) -> Option<Run>;

    /// Takes `want` units from the middle of one of the longest runs, if half of it is at least `room`: what grows from
    /// there is not soon in the way of what grows elsewhere.
    fn take_apart(&mut self, want: u32, room: u32) -> Option<Run>;

    /// Gives units back. False, with nothing changed, if one of them is free already or not of this group.
    fn give(&mut self, run: Run) -> bool;

    /// The first free run at or behind `from`: what of it is at or behind `from`.
    fn run_from(&self, from: u32) -> Option<Run>;

    /// Bytes of memory.
    fn bytes(&self) -> usize;
}
