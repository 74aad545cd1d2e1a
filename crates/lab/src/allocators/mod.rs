//! Designs of block allocators, former and proposed ones, behind the trait [`Policy`]. They need
//! neither a file system nor gigabytes of memory: a design runs on a [`Map`] of free runs, and the
//! lab counts the bitmaps that it would read, keep and look at.
//!
//! # Rules of the copies
//! The copies keep the rules for the choice of groups and runs, for reading bitmaps, and for
//! keeping them. They take no locks.

mod buddy;
mod map;
mod posted;
mod space;
#[cfg(test)]
mod tests;

pub use buddy::{Buddy, Lists};
pub use map::{Map, Shape};
pub use posted::{Defects, Posted};
pub use space::{Reading, Space};

/// Blocks in a row, by their number on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The first.
    pub start: u64,
    /// How many; not 0.
    pub len: u32,
}

impl Taken {
    /// Returns the block behind the last.
    pub fn end(self) -> u64 {
        self.start + u64::from(self.len)
    }
}

/// A wish for blocks in a row.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// The block behind the file's last one, or the place for its first block.
    pub goal: u64,
    /// Blocks that would be best.
    pub len: u32,
    /// Number of the requesting file, from which some designs choose a place.
    pub file: u32,
}

/// Work of a design so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Groups or trees that were looked at.
    pub looked: u64,
    /// Bitmaps read.
    pub bitmaps: u64,
    /// Nanoseconds of the disk, virtual.
    pub waited: u64,
    /// Bytes in memory now, and groups or trees that ever were in memory.
    pub bytes: u64,
    pub cached: u64,
    /// Times that a tree left memory.
    pub evicted: u64,
}

/// Returns the design of a name on the free runs of `map`: buddies; `frsp` as posted or `mended`,
/// with its level and perhaps a limit of 1 GB.
pub(crate) fn named<'a>(name: &str, map: &'a Map, slow: bool) -> Option<Box<dyn Policy + 'a>> {
    let buddy = |lists, reading| {
        Some(Box::new(Buddy::new(map, lists, reading, slow)) as Box<dyn Policy + 'a>)
    };
    match name {
        "buddy" => buddy(Lists::None, Reading::Single),
        "buddy, read ahead" => buddy(Lists::None, Reading::Ahead),
        "lists of 2023" => buddy(Lists::Queues, Reading::Ahead),
        "arrays of 2025" => buddy(Lists::Arrays, Reading::Ahead),
        frsp => {
            let (kind, level) = frsp.split_once(", level ")?;
            let as_posted = kind == "frsp";
            let limit = if level.ends_with("1 GB") { 1 << 30 } else { 0 };
            let level = level.get(..1)?.parse().ok()?;
            let defects = Defects { unlinked: as_posted, lost: as_posted };
            Some(Box::new(Posted::new(map, level, limit, defects, slow)))
        }
    }
}

/// A way to choose free blocks.
pub trait Policy {
    /// Takes up to `want.len` blocks in a row; `None` if nothing is free.
    fn allocate(&mut self, want: &Want) -> Option<Taken>;
    /// Gives blocks back.
    fn free(&mut self, taken: Taken);
    /// Returns the work so far.
    fn cost(&self) -> Cost;
    /// Gets to know all groups, as the design does in the background after a mount.
    fn prefetch(&mut self);
}
