//! Maps from logical to physical blocks: extent trees, indirect blocks, and the cache of runs.
//!
//! For example, a file whose blocks 0 to 7 are at 100 to 107 has one extent in the inode. A write
//! to block 9 adds a second extent. The fifth extent does not fit into the inode: the root's
//! entries move into a leaf block of their own.
//!
//! With bigalloc the logical blocks of one cluster share one physical cluster at the same offset. A
//! cluster is freed with its last mapped block. Inodes with inline data have no map: every block is
//! a hole, and nothing can be mapped.
//!
//! # Invariants
//! Each change of a map is one step of a transaction, or a sequence of steps of which each leaves a
//! valid map. Space, nodes and bitmaps are obtained before the first change of a step.
//!
//! # Locking
//! Every function takes the inode's map lock itself: for reading in lookups, for writing in
//! changes. Functions that change a map take a handle that the caller started before.

mod budget;
mod convert;
mod env;
mod first;
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
pub use budget::{credits, credits_of_new};
pub use convert::{convert, has_unwritten};
pub use env::MapEnv;
pub use first::{FirstBlock, claim_first, map_first};
pub use lookup::{Around, around, check_distinct, goal, implied, lookup, pieces, unowned};
pub use map::{Placement, allocate, insert_booked, insert_claim, insert_scattered};
pub use owner::{charge, init, init_body, max_blocks, owns_nothing};
pub use share::MapShape;
pub use shift::{shift, split_at};
pub use unmap::{most_at_once, removal_credits, remove};
