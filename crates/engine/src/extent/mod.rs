//! Logical to physical: the extent tree, indirect blocks, and the in-memory extent status.
//!
//! With bigalloc the logical blocks of one cluster share one physical cluster at the same offset; a
//! cluster is freed with its last mapped block. Inodes with inline data have no map: all is a hole,
//! and nothing can be mapped.
//!
//! # Locking
//! Every function takes the inode's map lock itself: for reading to look something up, for writing
//! to change something. Those that change something take a handle that was started before.

mod budget;
mod convert;
mod env;
mod indirect;
mod lookup;
mod map;
mod nodes;
mod owner;
mod pointers;
pub mod raw;
mod share;
mod shift;
#[cfg(test)]
mod testing;
mod tree;
mod unmap;
mod verify;

pub use crate::inode::{ExtentState, Run};
pub use budget::credits;
pub use convert::{has_unwritten, mark_unwritten, mark_written};
pub use env::MapEnv;
pub use lookup::{Around, around, check_distinct, goal, implied, lookup, pieces, unowned};
pub use map::{allocate, insert_booked, insert_claim, insert_scattered};
pub use owner::{charge, init, init_body, max_blocks, owns_nothing};
pub use share::MapShape;
pub use shift::{shift, split_at};
pub use unmap::{most_at_once, removal_credits, remove};
