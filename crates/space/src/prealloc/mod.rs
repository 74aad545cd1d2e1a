//! Preallocations: runs of free space that memory keeps for a file at a place in it, so that what
//! is written next to each other in the file, in whatever order and by however many writers, lies
//! next to each other on the device.
//!
//! - [`Ask::window`] says which part of a file a request should be given space for.
//! - [`Tree`] keeps the preallocations of one file by their first logical unit.
//! - [`place`] puts a run that is shorter than its window within the window.
//! - [`Locality`] keeps runs that many small files share.
//!
//! A unit is a cluster. Logical units count from the start of the file, physical ones from the
//! start of the device. Nothing here allocates or frees: who owns a structure gives runs to it, and
//! owns what comes out of it.

mod locality;
mod tree;
mod used;
mod window;

#[cfg(test)]
mod tests;

pub use locality::{Chunk, Locality};
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
    /// One behind the last logical unit.
    pub fn end(&self) -> u64 {
        u64::from(self.logical) + u64::from(self.len)
    }
}
