//! Passes, in the order of their runs; each checks one kind of structure.

pub mod bitmaps;
pub mod connectivity;
pub mod directories;
pub mod inodes;
pub mod orphans;
pub mod protection;
pub mod quota;
pub mod superblocks;
