//! Free-space data structures without I/O.
//!
//! - [`FreeTree`] is the free space of a flexible group by place and by length; [`Held`] what must
//!   stay out of it; [`free_runs`] makes it from bitmaps.
//! - [`Meta`] orders all trees by their longest runs, [`Summaries`] has 16 bytes on each group, in
//!   memory or not, and [`Lru`] says which tree leaves memory next.
//! - [`Index`] finds groups by a small number each (free inodes) without visiting all of them.
//! - [`prealloc`] keeps free runs for files that will want them.
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

/// The examples of the README are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
