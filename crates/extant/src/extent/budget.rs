//! What an operation on a map may write, in credits.
//!
//! One edit of an extent tree changes the nodes from the root to a leaf. It may split each of them, with a bitmap and a
//! descriptor for each new node, or join each with a sibling, which frees as many. A run of blocks is booked or freed.

use super::owner::Kind;
use crate::inode::Inode;
use crate::store::Store;
use extant_format::extent::{MAX_DEPTH, Node};
use extant_format::indirect::pointers_per_block;
use extant_journal::Handle;

/// Levels of pointer blocks.
const LEVELS: u32 = 3;

/// Credits for one insert, split or removal of one contiguous run of `blocks` (tree growth included, allocation included).
pub fn credits(st: &Store, inode: &Inode, blocks: u32) -> u32 {
    let map = match Kind::of(inode) {
        Kind::Indirect => pointer_blocks(st, blocks),
        // The tree may grow by a level before the handle comes to it.
        Kind::Tree | Kind::Inline => edit(st, depth(inode) + 1),
    };
    map.saturating_add(st.alloc.credits(blocks))
}

/// Credits of one edit of a tree of this depth: inode, path, and new nodes or siblings.
pub(super) fn edit(st: &Store, depth: u32) -> u32 {
    1 + depth + (depth + 1) * (1 + st.alloc.credits(1))
}

/// Credits of freeing a run: pointer blocks on the way, each of which may be freed.
pub(super) fn pointer_run(st: &Store) -> u32 {
    1 + LEVELS * (1 + st.alloc.credits(1))
}

/// Credits of mapping a run of `blocks` with all the pointer blocks that it needs.
fn pointer_blocks(st: &Store, blocks: u32) -> u32 {
    let per_block = pointers_per_block(st.geo.block_size).max(1);
    let arrays = blocks.saturating_sub(1) / per_block + 2;
    let above = arrays / per_block + 2;
    let new = arrays.saturating_add(above + 1);
    let booked = st.alloc.credits(1).saturating_mul(new.min(st.geo.groups_count));
    booked.saturating_add(1 + new)
}

/// Asserts, in builds that check, that a step that was started with `before` credits left used no more than its bound.
pub(super) fn assert_used(before: u32, h: &Handle<'_>, bound: u32) {
    let used = before.saturating_sub(h.credits_left());
    debug_assert!(used <= bound, "{used} credits used where {bound} were thought to do");
}

/// Depth of an inode's tree; an invalid root counts as one of the greatest depth.
pub(super) fn depth(inode: &Inode) -> u32 {
    let i_block = inode.body().i_block;
    Node::open(&i_block).map_or(MAX_DEPTH, |root| root.depth()).into()
}
