//! Bounds on the blocks that a map needs for dirty pages. They are reserved with the pages' own
//! blocks, so that accepted writes can be mapped on a full disk.
//!
//! For example, 8000 distant pages of an empty file with blocks of 4 KiB become 8000 extents in a
//! tree. A leaf has 340 entries. A full leaf is split behind its last entry, or in the middle with
//! at least 170 entries left free. At most 1 + 2 * 16000 / 170 leaves are therefore added, and a
//! few indexes for them by the same rule.

use super::MapEnv;
use super::owner::Kind;
use crate::inode::{Inode, Remapped};
use extant_format::extent::{MAX_DEPTH, Node};
use extant_format::indirect::{DIRECT, pointers_per_block};

/// Entries of the root of a tree.
const ROOT_ENTRIES: u64 = 4;

/// Bytes of an entry of a node, and of a node's header and tail.
const ENTRY: u64 = 12;
const NODE_OVERHEAD: u64 = 16;

/// The properties of an inode's map that determine the bound, at one moment.
#[derive(Clone, Copy, Debug)]
pub struct MapShape {
    kind: Kind,
    /// The tree's depth, and the free entries of its root if that is a leaf.
    depth: u32,
    room: u64,
    block_size: u32,
}

impl MapShape {
    /// Reads the properties from an inode.
    pub fn of(env: &MapEnv, inode: &Inode) -> MapShape {
        let kind = Kind::of(inode);
        let (depth, room) = if kind == Kind::Tree { root(inode) } else { (0, 0) };
        MapShape { kind, depth, room, block_size: env.geo.block_size }
    }

    /// Returns the number of map blocks that pages of a file of `size` bytes, and pinned pages
    /// behind its end, may need. `size` must be read under the lock of the pages: a writer raises
    /// it there when it unpins its pages.
    pub fn needs(&self, pages: Remapped, size: u64) -> u32 {
        let reach = size.div_ceil(self.block_size.into()).max(pages.end);
        let blocks = match self.kind {
            _ if pages.pages == 0 => 0,
            Kind::Indirect => self.pointer_blocks(pages, reach),
            Kind::Tree | Kind::Inline => self.nodes(pages),
        };
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }

    /// Returns the bound for a map of pointers of a file with at most `reach` blocks.
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
        // The levels above: one block for each `per_block` blocks, at most one array of them, and
        // one block above all.
        last + last.min(per_block + 1) + 1
    }

    /// Returns the bound for a tree, level by level from the leaves: existing nodes may all be
    /// full, and the levels from the root up are new.
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

    /// Returns the most nodes of a level below the root.
    fn nodes_at(&self, level: u32, entries: u64) -> u64 {
        let above = self.depth.saturating_sub(level + 1);
        ROOT_ENTRIES.saturating_mul(entries.saturating_pow(above))
    }
}

/// Returns the depth of an inode's tree, and the free entries of its root if that is a leaf. An
/// invalid root counts as one of the greatest depth.
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

    /// Returns the bound for a file with blocks up to `reach`.
    fn needs(shape: MapShape, pages: u64, leaves: u64, reach: u64) -> u32 {
        let size = reach * u64::from(shape.block_size);
        let needed = shape.needs(Remapped { pages, leaves, end: 0 }, size);
        assert_eq!(shape.needs(Remapped { pages, leaves, end: reach }, 0), needed);
        needed
    }

    #[test]
    fn a_page_needs_a_leaf_and_the_full_levels_above_it() {
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
