//! Preallocations: runs of free space that are kept in memory for a range of a file. Neighboring
//! data of the file thus lies together on the device, in whatever order and by however many threads
//! it is written.
//!
//! For example, a write of block 5 of a new file gets the window of blocks 0 to 7 (32 KiB) and 8
//! contiguous blocks. A later write of block 6 is served from it.
//!
//! - [`Ask::window`] computes the range of a file that a request should be given space for.
//! - [`Tree`] keeps the preallocations of one file by their first logical unit, and lists them by
//!   the group of the device that their space is in.
//! - [`place`] positions a run that is shorter than its window within the window.
//! - [`Locality`] keeps runs that many small files share.
//!
//! A unit is a cluster. Logical units count from the start of the file, physical ones from the
//! start of the device. This module neither allocates nor frees: the owner of a structure adds runs
//! to it, and owns the runs that it returns.

mod groups;
mod locality;
mod tree;
mod used;
mod window;

#[cfg(test)]
mod tests;

pub use locality::{Chunk, Locality};
#[cfg(feature = "designs")]
#[doc(hidden)]
pub use tree::designs;
pub use tree::{Found, Key, Tree, Visits};
pub use window::{Ask, place};

/// A run of a file and the run of the device that is meant for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First logical unit.
    pub logical: u32,
    /// First physical unit.
    pub physical: u64,
    /// Units; not 0.
    pub len: u32,
}

impl Piece {
    /// Returns the unit behind the last logical unit.
    pub fn end(&self) -> u64 {
        u64::from(self.logical) + u64::from(self.len)
    }
}
