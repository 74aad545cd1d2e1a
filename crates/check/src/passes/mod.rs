//! Passes, in the order of their runs; each checks one kind of structure.

pub mod bitmaps;
pub mod groups;
pub mod superblocks;
