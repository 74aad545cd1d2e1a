//! Verification of the nodes of an image's extent tree.
//!
//! A block is verified when it was just read: checksum, depth, order, keys within the parent's
//! range, and physical places. A hostile image may lead to a cached block by another path. Its
//! depth is therefore compared each time, and no code relies on the other properties for memory
//! safety or termination.

use super::tree::{Expect, LOGICAL_END};
use crate::groups::Zone;
use extant_format::Geometry;
use extant_format::error::{Corrupt, Result};
use extant_format::extent::{Leaf, MAX_DEPTH, Node, capacity, verify_extent_block};
use extant_format::types::{BlockNr, InodeNr};

/// The number of entries by which a node's capacity may be below that of its size, as some writers
/// store it.
const SPARE_ENTRIES: u16 = 2;

/// The tree's owner, as verification needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner<'a> {
    pub geo: &'a Geometry,
    pub zone: &'a Zone,
    pub ino: InodeNr,
    /// Seed of the checksums of its blocks.
    pub seed: u32,
}

impl Owner<'_> {
    /// A block just read from the device.
    pub fn check_block(&self, nr: u64, bytes: &[u8], expect: Expect) -> Result<()> {
        let checked = self.check_checksum(bytes).and_then(|()| {
            let node = Node::parse(bytes, expect.depth)?;
            self.check_node(&node, bytes.len(), expect)
        });
        checked.map_err(|e| e.at_inode(self.ino).at_block(nr))
    }

    /// The root, which was decoded with its inode.
    pub fn open_root<'b>(&self, bytes: &'b [u8]) -> Result<Node<'b>> {
        let node = Node::parse(bytes, None).and_then(|node| {
            self.check_node(&node, bytes.len(), Expect::ROOT)?;
            Ok(node)
        });
        node.map_err(|e| e.at_inode(self.ino))
    }

    /// A block from the cache.
    pub fn open_block<'b>(&self, nr: u64, bytes: &'b [u8], expect: Expect) -> Result<Node<'b>> {
        let node = Node::open(bytes).and_then(|node| match expect.depth {
            Some(depth) if depth == node.depth() => Ok(node),
            depth => {
                let error = Corrupt::new("extent header").field("depth").found(node.depth());
                Err(error.expected(depth.unwrap_or(MAX_DEPTH)))
            }
        });
        node.map_err(|e| e.at_inode(self.ino).at_block(nr))
    }

    fn check_checksum(&self, bytes: &[u8]) -> Result<()> {
        if !self.geo.metadata_csum || verify_extent_block(bytes, self.seed) {
            Ok(())
        } else {
            Err(Corrupt::new("extent block").field("checksum"))
        }
    }

    fn check_node(&self, node: &Node<'_>, size: usize, expect: Expect) -> Result<()> {
        let (max, room) = (node.header().max, capacity(size));
        if max < room.saturating_sub(SPARE_ENTRIES) {
            return Err(Corrupt::new("extent header").field("max").found(max).expected(room));
        }
        check_range(node, expect)?;
        node.check_physical(self.geo)?;
        node.leaves().try_for_each(|leaf| self.check_leaf(&leaf))?;
        node.indexes().try_for_each(|index| self.check_place(index.child, 1))
    }

    fn check_leaf(&self, leaf: &Leaf) -> Result<()> {
        let mask = u64::from(self.geo.cluster_ratio()) - 1;
        if u64::from(leaf.lblk) & mask != leaf.pblk & mask {
            return Err(Corrupt::new("extent").field("place in its cluster").found(leaf.pblk));
        }
        self.check_place(leaf.pblk, leaf.len.into())
    }

    /// Verifies that a file has no blocks of the file system's own, except the log and the file
    /// that reserves descriptors.
    fn check_place(&self, pblk: u64, len: u64) -> Result<()> {
        let is_own = self.ino != InodeNr::RESIZE && self.touches_base(pblk, len)
            || is_system(self.zone, self.ino, pblk, len);
        if !is_own {
            Ok(())
        } else {
            Err(Corrupt::new("extent").field("physical block").found(pblk))
        }
    }

    /// Returns whether the blocks overlap the superblock or descriptors of a group.
    fn touches_base(&self, pblk: u64, len: u64) -> bool {
        let group = |block| self.geo.group_of_block(BlockNr(block));
        let (Some(first), Some(last)) = (group(pblk), group(pblk + len.saturating_sub(1))) else {
            return false;
        };
        if first == last
            && pblk - self.geo.first_block_of_group(first).0 >= self.geo.most_base_meta_blocks()
        {
            return false;
        }
        (first.0..=last.0).any(|g| {
            let base = self.geo.base_meta(g.into());
            let overlaps =
                |r: &std::ops::Range<u64>| !r.is_empty() && r.start < pblk + len && pblk < r.end;
            let sb = base.superblock.map_or(0..0, |b| b.0..b.0 + 1);
            [sb, base.descriptors, base.reserved].iter().any(overlaps)
        })
    }
}

/// Returns whether blocks of a file's map are bitmaps, inode tables, or another file's log.
pub(super) fn is_system(zone: &Zone, ino: InodeNr, pblk: u64, len: u64) -> bool {
    let blocks = pblk..pblk.saturating_add(len);
    zone.holds_metadata(blocks.clone()) || ino != InodeNr::JOURNAL && zone.holds_log(blocks)
}

/// Verifies that the node's keys are in the range of its parent's entry, and that a child is not
/// empty.
fn check_range(node: &Node<'_>, expect: Expect) -> Result<()> {
    if let Some(first) = expect.first
        && node.key(0) != Some(first)
    {
        let found = node.key(0).map_or(LOGICAL_END, u64::from);
        return Err(Corrupt::new("extent block")
            .field("first logical block")
            .found(found)
            .expected(first));
    }
    let last = node.leaves().next_back().map(|leaf| leaf.end());
    let last =
        last.or(node.indexes().next_back().map(|index| u64::from(index.lblk) + 1)).unwrap_or(0);
    if last <= expect.end {
        Ok(())
    } else {
        Err(Corrupt::new("extent block")
            .field("last logical block")
            .found(last)
            .expected(expect.end))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::geometry;
    use super::*;
    use extant_format::extent::{Index, NodeMut, seal_extent_block};

    const BLOCK: usize = 1024;

    fn leaf(lblk: u32, pblk: u64, len: u16) -> Leaf {
        Leaf { lblk, pblk, len, unwritten: false }
    }

    fn field(result: Result<()>) -> &'static str {
        result.err().and_then(|e| e.field_name()).unwrap_or("none")
    }

    fn check(leaves: &[Leaf], expect: Expect) -> &'static str {
        let geo = geometry(40_000, BLOCK as u32);
        let (zone, geo) = (Zone::default(), &geo);
        let owner = Owner { geo, zone: &zone, ino: InodeNr(12), seed: 77 };
        let mut block = vec![0; BLOCK];
        assert!(NodeMut::init(&mut block, 0).set_leaves(leaves));
        seal_extent_block(&mut block, 0, 77);
        field(owner.check_block(5000, &block, expect))
    }

    fn expect(first: u32, end: u64) -> Expect {
        Expect { depth: Some(0), first: Some(first), end }
    }

    #[test]
    fn a_leaf_lies_within_its_parents_range() {
        let leaves = [leaf(10, 3000, 5), leaf(20, 4000, 5)];
        assert_eq!(check(&leaves, expect(10, 25)), "none");
        assert_eq!(check(&leaves, expect(10, 24)), "last logical block");
        assert_eq!(check(&leaves, expect(9, 25)), "first logical block");
        assert_eq!(check(&[], expect(9, 25)), "first logical block");
        assert_eq!(check(&leaves, Expect { depth: Some(1), ..expect(10, 25) }), "depth");
    }

    #[test]
    fn places_are_the_files_own() {
        assert_eq!(check(&[leaf(0, 39_990, 10)], expect(0, 99)), "none");
        assert_eq!(check(&[leaf(0, 39_990, 11)], expect(0, 99)), "physical block");
        // Group 2 has no superblock copy, so extents may cross into it; group 3 has one.
        assert_eq!(check(&[leaf(0, 16_380, 10)], expect(0, 99)), "none");
        assert_eq!(check(&[leaf(0, 24_570, 10)], expect(0, 99)), "physical block");
        assert_eq!(check(&[leaf(0, 1, 1)], expect(0, 99)), "physical block");
    }

    #[test]
    fn a_wrong_seed_or_a_small_node_is_found() {
        let geo = geometry(40_000, BLOCK as u32);
        let (zone, geo) = (Zone::default(), &geo);
        let owner = Owner { geo, zone: &zone, ino: InodeNr(12), seed: 78 };
        let mut block = vec![0; BLOCK];
        assert!(NodeMut::init(&mut block, 1).set_indexes(&[Index { lblk: 0, child: 9000 }]));
        seal_extent_block(&mut block, 0, 77);
        assert_eq!(field(owner.check_block(5000, &block, Expect::ROOT)), "checksum");
        assert_eq!(field(owner.open_root(&block[..600]).map(|_| ())), "max");
    }
}
