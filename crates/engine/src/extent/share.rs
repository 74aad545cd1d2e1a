//! Bounds on the blocks that a map needs for pages that wait: they are set aside with the pages'
//! own blocks, so that what a write accepted can be mapped on a full disk.
//!
//! A tree: 8000 pages far from each other in an empty file with blocks of 4 KiB make 8000 extents.
//! A leaf has 340; one that is full is split behind its last entry, or in the middle with at least
//! 170 left free. So at most 1 + 2 * 16000 / 170 leaves come, and for those, by the same rule, a
//! few indexes.

use super::MapEnv;
use super::owner::Kind;
use crate::inode::{Inode, Remapped};
use extant_format::extent::{MAX_DEPTH, Node};
use extant_format::indirect::{DIRECT, pointers_per_block};

/// Entries of the root of a tree.
const ROOT_ENTRIES: u64 = 4;

/// Bytes of an entry of a node, and of what a node has besides.
const ENTRY: u64 = 12;
const NODE_OVERHEAD: u64 = 16;

/// What the bound depends on, of an inode at a time.
#[derive(Clone, Copy, Debug)]
pub struct MapShape {
    kind: Kind,
    /// Of the tree, and entries that its root has room for if that is a leaf.
    depth: u32,
    room: u64,
    block_size: u32,
}

impl MapShape {
    /// Looks at an inode.
    pub fn of(env: &MapEnv, inode: &Inode) -> MapShape {
        let kind = Kind::of(inode);
        let (depth, room) = if kind == Kind::Tree { root(inode) } else { (0, 0) };
        MapShape { kind, depth, room, block_size: env.geo.block_size }
    }

    /// Blocks of the map that may be needed for pages of a file of `size` bytes, and for pinned
    /// ones behind its end. `size` must be read under the lock of the pages: a writer raises it
    /// there, in the same moment in which its pages are no longer pinned.
    pub fn needs(&self, pages: Remapped, size: u64) -> u32 {
        let reach = size.div_ceil(self.block_size.into()).max(pages.end);
        let blocks = match self.kind {
            _ if pages.pages == 0 => 0,
            Kind::Indirect => self.pointer_blocks(pages, reach),
            Kind::Tree | Kind::Inline => self.nodes(pages),
        };
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }

    /// `reach` is the number of blocks that the file may have.
    fn pointer_blocks(&self, pages: Remapped, reach: u64) -> u64 {
        let per_block = u64::from(pointers_per_block(self.block_size)).max(1);
        let single = DIRECT as u64 + per_block;
        if reach <= DIRECT as u64 {
            return 0;
        }
        if reach <= single {
            return 1;
        }
        let last = pages.leaves.min(reach / per_block + 2);
        // Above them: one block for as many as it points to, of which there is one below the inode
        // and one above all others.
        last + last.min(per_block + 1) + 1
    }

    /// From the leaves up: nodes that are there may all be full, and the level of the root and
    /// those above it are new.
    fn nodes(&self, pages: Remapped) -> u64 {
        let entries = (u64::from(self.block_size) - NODE_OVERHEAD) / ENTRY;
        let half = (entries / 2).max(1);
        // One page in the middle of an unwritten extent makes three extents of it.
        let (mut coming, mut sum, mut most) = (pages.pages * 2, 0, pages.leaves);
        if coming <= self.room {
            return 0;
        }
        for level in 0..=u32::from(MAX_DEPTH) {
            let filled = 2 * coming / half;
            let new = match level {
                _ if level < self.depth => filled + 2 * self.nodes_at(level, entries),
                _ if level == self.depth => filled + 1,
                _ if coming <= ROOT_ENTRIES => 0,
                _ => filled + 1,
            };
            let new = new.min(most);
            sum += new;
            (coming, most) = (new, new);
        }
        sum
    }

    /// Nodes of a level below the root, at most.
    fn nodes_at(&self, level: u32, entries: u64) -> u64 {
        let above = self.depth.saturating_sub(level + 1);
        ROOT_ENTRIES.saturating_mul(entries.saturating_pow(above))
    }
}

/// Depth of an inode's tree, and entries that its root has room for if that is a leaf. An invalid
/// root counts as one of the greatest depth.
fn root(inode: &Inode) -> (u32, u64) {
    let i_block = inode.body().i_block;
    let Ok(root) = Node::open(&i_block) else { return (MAX_DEPTH.into(), 0) };
    let room = if root.depth() == 0 { ROOT_ENTRIES.saturating_sub(root.len() as u64) } else { 0 };
    (root.depth().into(), room)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(depth: u32, block_size: u32) -> MapShape {
        MapShape { kind: Kind::Tree, depth, room: 0, block_size }
    }

    /// Of a file with blocks up to `reach`.
    fn needs(shape: MapShape, pages: u64, leaves: u64, reach: u64) -> u32 {
        let size = reach * u64::from(shape.block_size);
        let needed = shape.needs(Remapped { pages, leaves, end: 0 }, size);
        assert_eq!(shape.needs(Remapped { pages, leaves, end: reach }, 0), needed);
        needed
    }

    #[test]
    fn a_page_needs_a_leaf_and_what_may_be_full_above_it() {
        for (depth, blocks) in [(0, 1), (1, 2), (2, 3), (5, 6)] {
            assert_eq!(needs(tree(depth, 4096), 1, 1, 1 << 30), blocks, "{depth}");
        }
        assert_eq!(needs(tree(3, 4096), 0, 0, 1 << 30), 0);
        let root = MapShape { room: 3, ..tree(0, 4096) };
        assert_eq!((needs(root, 1, 1, 1 << 30), needs(root, 2, 2, 1 << 30)), (0, 1));
    }

    #[test]
    fn distant_pages_share_leaves_that_they_fill() {
        let needed = needs(tree(0, 4096), 8000, 8000, 1 << 30);
        assert!((48..250).contains(&needed), "{needed}");
        let needed = needs(tree(2, 4096), 8000, 8000, 1 << 30);
        assert!((48..3500).contains(&needed), "{needed}");
    }

    #[test]
    fn distant_pages_have_pointer_blocks_of_their_own() {
        let far = MapShape { kind: Kind::Indirect, depth: 0, room: 0, block_size: 1024 };
        assert_eq!(needs(far, 8000, 8000, 1 << 24), 8000 + 257 + 1);
        assert_eq!(needs(far, 1, 1, 1 << 24), 3);
        assert_eq!(needs(far, 12, 4, 12), 0);
        assert_eq!(needs(far, 13, 4, 13), 1);
    }
}
