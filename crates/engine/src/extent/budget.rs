//! Bounds on the blocks that an operation on a map writes, in credits.
//!
//! One edit of an extent tree changes the nodes from the root to a leaf. It may split each of them,
//! with a bitmap and a descriptor for each new node, or join each with a sibling, which frees as
//! many. A run of blocks is booked or freed.

use super::MapEnv;
use super::owner::Kind;
use crate::error::Result;
use crate::inode::{Inode, Step};
use extant_format::extent::{MAX_DEPTH, Node};
use extant_format::features::Incompat;
use extant_format::indirect::pointers_per_block;

/// Levels of pointer blocks.
const LEVELS: u32 = 3;

/// Returns the credits of one insert, split or removal of a contiguous run of `blocks` blocks, with
/// tree growth and allocation.
pub fn credits(env: &MapEnv, inode: &Inode, blocks: u32) -> u32 {
    let map = match Kind::of(inode) {
        Kind::Indirect => pointer_blocks(env, blocks),
        // The tree may grow by a level before the handle comes to it.
        Kind::Tree | Kind::Inline => edit(env, depth(inode) + 1),
    };
    map.saturating_add(env.alloc.credits(blocks))
}

/// Returns the credits of a new map of `blocks` blocks that lie anywhere on the device, of which
/// each may be an extent of its own, and all extents fit into one leaf.
pub fn credits_of_new(env: &MapEnv, blocks: u32) -> u32 {
    let map = if env.geo.incompat(Incompat::EXTENTS) {
        edit(env, 1)
    } else {
        pointer_blocks(env, blocks)
    };
    map.saturating_add(scattered(env, blocks))
}

/// Returns the credits of booking or freeing `blocks` blocks anywhere on the device.
fn scattered(env: &MapEnv, blocks: u32) -> u32 {
    let one = env.alloc.credits(1);
    let another_group =
        env.alloc.credits(env.geo.blocks_per_group.saturating_add(1)).saturating_sub(one);
    let groups = blocks.min(env.geo.groups_count);
    one.saturating_add(another_group.saturating_mul(groups.saturating_sub(1)))
}

/// Returns the credits of one edit of a tree of this depth: the inode, the path, and the nodes that
/// are split off, joined or removed.
pub(super) fn edit(env: &MapEnv, depth: u32) -> u32 {
    let others = 2 * depth + 1;
    1 + depth + others + scattered(env, others)
}

/// Returns the credits of unmapping a run of pointers: the pointer blocks above it, each of which
/// may be freed.
pub(super) fn pointer_run(env: &MapEnv) -> u32 {
    1 + LEVELS + scattered(env, LEVELS)
}

/// Returns the credits of mapping a run of `blocks` blocks with all pointer blocks that it needs.
fn pointer_blocks(env: &MapEnv, blocks: u32) -> u32 {
    let per_block = pointers_per_block(env.geo.block_size).max(1);
    let arrays = blocks.saturating_sub(1) / per_block + 2;
    let above = arrays / per_block + 2;
    let new = arrays.saturating_add(above + 1);
    scattered(env, new).saturating_add(1 + new)
}

/// Returns whether `needed` credits are left, after asking the transaction for the missing ones.
/// The first step of a call always continues.
pub(super) fn may_go_on(step: &mut Step<'_>, needed: u32, first: bool) -> Result<bool> {
    let missing = needed.saturating_sub(step.credits_left());
    Ok(missing == 0 || step.extend(missing)? || first)
}

/// Asserts, in debug builds, that a step that began with `before` credits used no more than its
/// bound.
pub(super) fn assert_used(before: u32, step: &Step<'_>, bound: u32) {
    let used = before.saturating_sub(step.credits_left());
    debug_assert!(used <= bound, "{used} credits used where {bound} were thought to do");
}

/// Returns the depth of an inode's tree. An invalid root counts as one of the greatest depth.
pub(super) fn depth(inode: &Inode) -> u32 {
    let i_block = inode.body().i_block;
    Node::open(&i_block).map_or(MAX_DEPTH, |root| root.depth()).into()
}
