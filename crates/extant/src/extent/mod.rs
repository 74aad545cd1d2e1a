//! Logical to physical: the extent tree, indirect blocks, and the in-memory extent status.
//!
//! Every function takes the inode's map lock itself (for reading or writing). With bigalloc the logical blocks of one
//! cluster share one physical cluster at the same offset; a cluster is freed with its last mapped block.

pub mod raw;
#[cfg(test)]
mod testing;
mod tree;

use crate::alloc::Claim;
use crate::error::Result;
pub use crate::inode::{Run, State};

use crate::inode::Inode;
use crate::store::Store;
use extant_format::types::BlockNr;
use extant_journal::Handle;
use std::ops::Range;
use std::sync::Arc;

/// The run that contains `lblk`, from `lblk` on, cut to `max` blocks. For a hole `len` is the known length of the hole
/// (up to `max`).
pub fn lookup(st: &Store, inode: &Inode, lblk: u32, max: u32) -> Result<Run> {
    let _ = (st, inode, lblk, max);
    todo!()
}

/// The best physical place for `lblk`: after its left neighbour, before its right one, else in the inode's group.
pub fn goal(st: &Store, inode: &Inode, lblk: u32) -> Result<BlockNr> {
    let _ = (st, inode, lblk);
    todo!()
}

/// Claims, books and maps up to `len` blocks at the hole `lblk` within `h` (directories, symlinks, fallocate). Returns the
/// run that is mapped at `lblk` afterwards, at least one block. On bigalloc a cluster that the file already owns is
/// used.
pub fn allocate(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>, lblk: u32, len: u32, state: State) -> Result<Run> {
    let _ = (st, h, inode, lblk, len, state);
    todo!()
}

/// Physical block that `lblk` must get because its cluster is already mapped (bigalloc), if so.
pub fn implied(st: &Store, inode: &Inode, lblk: u32) -> Result<Option<BlockNr>> {
    let _ = (st, inode, lblk);
    todo!()
}

/// Blocks from `lblk` on, at most `max`, that are unmapped and whose clusters the file does not own: as many may be mapped from a new
/// claim (on bigalloc the claim begins with the cluster of `lblk`). 0 if `lblk` is mapped or its place is implied.
pub fn unowned(st: &Store, inode: &Inode, lblk: u32, max: u32) -> Result<u32> {
    let _ = (st, inode, lblk, max);
    todo!()
}

/// Books the first `len` blocks of `claim` and maps them at `lblk` (data before mapping: the data are on their way to the device
/// already). `offset_in_claim` is not zero only on bigalloc, where `lblk` may lie inside its cluster.
pub fn insert_claim(
    st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>, lblk: u32, claim: &mut Claim, offset_in_claim: u32, len: u32, state: State,
) -> Result<()> {
    let _ = (st, h, inode, lblk, claim, offset_in_claim, len, state);
    todo!()
}

/// Turns unwritten blocks of the range into written ones, from its start as far as the handle's credits allow. Returns where it
/// stopped: when that is `range.end`, all is done; else restart the handle and call again from there. A range within one run is
/// done at once if the handle was started with [`credits`] for it.
pub fn mark_written(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>, range: Range<u32>) -> Result<u32> {
    let _ = (st, h, inode, range);
    todo!()
}

/// Turns written blocks of the range into unwritten ones (zero range). Restartable as [`mark_written`]. EOPNOTSUPP for a map
/// without unwritten blocks (see [`has_unwritten`]).
pub fn mark_unwritten(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>, range: Range<u32>) -> Result<u32> {
    let _ = (st, h, inode, range);
    todo!()
}

/// Whether the inode's kind of map knows unwritten blocks (extent trees do, indirect blocks do not).
pub fn has_unwritten(inode: &Inode) -> bool {
    let _ = inode;
    todo!()
}

/// Unmaps and frees blocks of `range` from its end towards its start as far as the handle's credits allow. Returns the new end: when it
/// equals `range.start`, all is done; else restart the handle and call again with the shorter range. An empty tree goes
/// back to depth 0.
pub fn remove(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>, range: Range<u64>) -> Result<u64> {
    let _ = (st, h, inode, range);
    todo!()
}

/// Moves every mapping within `range` by `by` logical blocks (negative: collapse, the space before `range` must be unmapped by as much;
/// positive: insert, `range` must reach to the end). Returns what is left to do: when it is empty, all is done; else restart the handle
/// and call again with it. On bigalloc `by` must be a multiple of the cluster. EOPNOTSUPP for indirect maps.
pub fn shift(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>, range: Range<u64>, by: i64) -> Result<Range<u64>> {
    let _ = (st, h, inode, range, by);
    todo!()
}

/// Credits for one insert, split or removal of one contiguous run of `blocks` (tree growth included, allocation included).
pub fn credits(st: &Store, inode: &Inode, blocks: u32) -> u32 {
    let _ = (st, inode, blocks);
    todo!()
}

/// Gives a new inode an empty map: an extent root, or zeroed pointers where the file system has no extents.
pub fn init(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
    let _ = (st, h, inode);
    todo!()
}

/// Logical blocks that the inode's kind of map can hold.
pub fn max_blocks(st: &Store, inode: &Inode) -> u64 {
    let _ = (st, inode);
    todo!()
}

/// Adds `blocks` (may be negative) file-system blocks to `i_blocks` within `h`.
pub fn charge(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>, blocks: i64) -> Result<()> {
    let _ = (st, h, inode, blocks);
    todo!()
}
