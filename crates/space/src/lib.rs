//! Free-space data structures without I/O.
//!
//! - [`FreeTree`] holds the free space of a flex group by position and by length. [`Held`] holds
//!   the runs that must be excluded from it, and [`free_runs`] reads its runs from bitmaps.
//! - [`Meta`] orders all trees by their longest runs. [`Summaries`] keeps 16 bytes for each group,
//!   whether its tree is in memory or not. [`Lru`] chooses the tree that leaves memory next.
//! - [`Index`] finds groups by a small number each (free inodes) without visiting all of them.
//! - [`prealloc`] keeps preallocated runs for files.
//! - [`Budget`] is the free space of the whole file system as a number that is never overdrawn.
#![forbid(unsafe_code)]

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

pub use budget::Budget;
pub use held::Held;
pub use index::Index;
pub use lru::Lru;
pub use meta::{Advice, Meta};
pub use runs::free_runs;
pub use summary::{ORDERS, Summaries, Summary};
pub use tree::FreeTree;

/// A run of contiguous units (clusters) of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// The first unit.
    pub start: u32,
    /// Number of units; not 0.
    pub len: u32,
}

impl Run {
    /// Returns the unit behind the last.
    pub fn end(self) -> u32 {
        self.start.saturating_add(self.len)
    }
}

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
