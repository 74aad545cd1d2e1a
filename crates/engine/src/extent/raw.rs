//! Reads a map before there is a cache or a journal: for the journal's own inode and the orphan
//! file.
//!
//! # Invariants
//! The work is bounded on any image: no block is visited twice, as a node or as data, at most
//! [`MAX_NODES`] blocks are read, and at most [`MAX_RUNS`] runs are kept.

use crate::bounds::Walk as Met;
use crate::error::Result;
use extant_blocks::BlockDevice;
use extant_format::Geometry;
use extant_format::error::Corrupt;
use extant_format::extent::{Node, verify_extent_block};
use extant_format::indirect::{DIRECT, IND, TIND, pointer, pointers_per_block};
use extant_format::inode::{Inode, InodeFlags};
use extant_format::types::{BlockNr, InodeNr};

/// The most blocks of a map that are read.
const MAX_NODES: u32 = 1 << 16;

/// The most runs that are collected.
const MAX_RUNS: usize = 1 << 20;

/// First logical block, first physical block, number of blocks.
pub type RawRun = (u32, u64, u32);

/// Returns all mapped runs of an inode in order, written or not.
///
/// # Errors
/// `Corrupt` if the map is wrong or larger than such a file's can be, `Io`.
pub fn map(
    dev: &dyn BlockDevice,
    geo: &Geometry,
    body: &Inode,
    ino: InodeNr,
) -> Result<Vec<RawRun>> {
    let mut walk = Walk {
        dev,
        geo,
        ino,
        seed: body.seed(geo, ino),
        nodes: 0,
        runs: Vec::new(),
        met: Met::of(ino),
    };
    if body.flags.contains(InodeFlags::INLINE_DATA) {
        return Err(walk.corrupt("inline data", 0).into());
    }
    if body.flags.contains(InodeFlags::EXTENTS) {
        walk.tree(&body.i_block, None)?
    } else {
        walk.indirect(&body.i_block, body.size)?
    }
    Ok(walk.runs)
}

struct Walk<'a> {
    dev: &'a dyn BlockDevice,
    geo: &'a Geometry,
    ino: InodeNr,
    seed: u32,
    nodes: u32,
    runs: Vec<RawRun>,
    met: Met,
}

impl Walk<'_> {
    fn corrupt(&self, field: &'static str, found: u64) -> Corrupt {
        Corrupt::new("block map").field(field).found(found).at_inode(self.ino)
    }

    fn read(&mut self, nr: u64) -> Result<Vec<u8>> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(self.corrupt("number of blocks", self.nodes.into()).into());
        }
        if !self.geo.data_range_valid(BlockNr(nr), 1) {
            return Err(self.corrupt("block", nr).into());
        }
        self.met.enter(nr)?;
        let mut bytes = vec![0; self.geo.block_size as usize];
        self.dev.read_exact_at(&mut bytes, nr * u64::from(self.geo.block_size))?;
        Ok(bytes)
    }

    fn push(&mut self, lblk: u64, pblk: u64, len: u32) -> Result<()> {
        let end = self.runs.last().map_or(0, |run| u64::from(run.0) + u64::from(run.2));
        if lblk < end || lblk + u64::from(len) > u64::from(u32::MAX) {
            return Err(self.corrupt("logical block", lblk).into());
        }
        if !self.geo.data_range_valid(BlockNr(pblk), len.into()) {
            return Err(self.corrupt("physical block", pblk).into());
        }
        self.met.enter_all(pblk..pblk + u64::from(len))?;
        if let Some(last) = self.runs.last_mut()
            && (end, last.1 + u64::from(last.2)) == (lblk, pblk)
        {
            last.2 += len;
            return Ok(());
        }
        if self.runs.len() >= MAX_RUNS {
            return Err(self.corrupt("number of runs", MAX_RUNS as u64).into());
        }
        self.runs.push((lblk as u32, pblk, len));
        Ok(())
    }

    /// Visits a node of an extent tree and all nodes below. The depth, which shrinks by one at each
    /// level, bounds the recursion.
    fn tree(&mut self, bytes: &[u8], depth: Option<u16>) -> Result<()> {
        let node = Node::parse(bytes, depth).map_err(|e| e.at_inode(self.ino))?;
        for leaf in node.leaves() {
            self.push(leaf.lblk.into(), leaf.pblk, leaf.len.into())?;
        }
        for index in node.indexes() {
            let block = self.read(index.child)?;
            if self.geo.metadata_csum && !verify_extent_block(&block, self.seed) {
                return Err(self.corrupt("checksum", index.child).at_block(index.child).into());
            }
            self.tree(&block, Some(node.depth() - 1))?;
        }
        Ok(())
    }

    fn indirect(&mut self, i_block: &[u8], size: u64) -> Result<()> {
        let end = size.div_ceil(self.geo.block_size.into());
        let per_block = u64::from(pointers_per_block(self.geo.block_size));
        for n in 0..DIRECT as u64 {
            self.pointer(pointer(i_block, n as usize), 0, n, end)?;
        }
        let mut first = DIRECT as u64;
        for (level, n) in (IND..=TIND).enumerate() {
            self.pointer(pointer(i_block, n), level as u32 + 1, first, end)?;
            first += per_block.pow(level as u32 + 1);
        }
        Ok(())
    }

    /// Visits a pointer to data (level 0) or to a block of pointers, and everything below it before
    /// `end`.
    fn pointer(&mut self, block: u32, level: u32, first: u64, end: u64) -> Result<()> {
        if block == 0 || first >= end {
            return Ok(());
        }
        if level == 0 {
            return self.push(first, block.into(), 1);
        }
        let bytes = self.read(block.into())?;
        let per_block = pointers_per_block(self.geo.block_size);
        let span = u64::from(per_block).pow(level - 1);
        (0..per_block).try_for_each(|n| {
            self.pointer(pointer(&bytes, n as usize), level - 1, first + u64::from(n) * span, end)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::geometry;
    use super::*;
    use extant_blocks::MemDevice;
    use extant_format::extent::{Index, Leaf, NodeMut, seal_extent_block};
    use extant_format::indirect::put_pointer;

    const BLOCK: usize = 1024;

    fn device() -> (MemDevice, Geometry) {
        (MemDevice::new(4096 * BLOCK as u64), geometry(4096, BLOCK as u32))
    }

    fn put(dev: &MemDevice, nr: u64, bytes: &[u8]) {
        dev.write_all_at(bytes, nr * BLOCK as u64).unwrap();
    }

    fn leaf(lblk: u32, pblk: u64, len: u16) -> Leaf {
        Leaf { lblk, pblk, len, unwritten: false }
    }

    #[test]
    fn a_tree_is_walked_in_order() {
        let (dev, geo) = device();
        let mut body = Inode { flags: InodeFlags::EXTENTS, ..Inode::default() };
        let seed = body.seed(&geo, InodeNr(8));
        for (n, first) in [(0u64, 0u32), (1, 100)] {
            let mut block = vec![0; BLOCK];
            let leaves = [
                leaf(first, 200 + n * 50, 10),
                leaf(first + 10, 210 + n * 50, 5),
                leaf(first + 20, 900 + n, 1),
            ];
            assert!(NodeMut::init(&mut block, 0).set_leaves(&leaves));
            seal_extent_block(&mut block, 0, seed);
            put(&dev, 1000 + n, &block);
        }
        let children = [Index { lblk: 0, child: 1000 }, Index { lblk: 100, child: 1001 }];
        assert!(NodeMut::init(&mut body.i_block, 1).set_indexes(&children));
        let runs = map(&dev, &geo, &body, InodeNr(8)).unwrap();
        assert_eq!(runs, [(0, 200, 15), (20, 900, 1), (100, 250, 15), (120, 901, 1)]);
    }

    #[test]
    fn a_loop_is_an_error() {
        let (dev, geo) = device();
        let mut body = Inode { flags: InodeFlags::EXTENTS, ..Inode::default() };
        let mut block = vec![0; BLOCK];
        for bytes in [&mut body.i_block[..], &mut block] {
            assert!(NodeMut::init(bytes, 2).set_indexes(&[Index { lblk: 0, child: 1000 }]));
        }
        seal_extent_block(&mut block, 0, body.seed(&geo, InodeNr(8)));
        put(&dev, 1000, &block);
        let error = map(&dev, &geo, &body, InodeNr(8)).unwrap_err();
        assert!(error.to_string().contains("depth"), "{error}");
    }

    #[test]
    fn pointers_are_followed_up_to_the_size() {
        let (dev, geo) = device();
        let mut body = Inode { size: 300 * BLOCK as u64, ..Inode::default() };
        let mut single = vec![0; BLOCK];
        let mut double = vec![0; BLOCK];
        (0..12).for_each(|n| put_pointer(&mut body.i_block, n, 100 + n as u32));
        (0..256).for_each(|n| put_pointer(&mut single, n, 113 + n as u32));
        let mut second = vec![0; BLOCK];
        (0..256).for_each(|n| put_pointer(&mut second, n, 513 + n as u32));
        put_pointer(&mut body.i_block, 12, 112);
        put_pointer(&mut body.i_block, 13, 1000);
        put_pointer(&mut double, 0, 512);
        put(&dev, 112, &single);
        put(&dev, 512, &second);
        put(&dev, 1000, &double);
        let runs = map(&dev, &geo, &body, InodeNr(8)).unwrap();
        assert_eq!(runs, [(0, 100, 12), (12, 113, 256), (268, 513, 32)]);
    }

    #[test]
    fn a_block_in_two_places_is_an_error() {
        let (dev, geo) = device();
        let error = |body: &Inode| map(&dev, &geo, body, InodeNr(8)).unwrap_err().to_string();
        let mut body = Inode { size: 300 * BLOCK as u64, ..Inode::default() };
        // Data twice, then a pointer block twice, then runs that overlap.
        (0..2).for_each(|n| put_pointer(&mut body.i_block, n, 100));
        assert!(error(&body).contains("in several places"));
        put_pointer(&mut body.i_block, 1, 101);
        (IND..IND + 2).for_each(|n| put_pointer(&mut body.i_block, n, 112));
        assert!(error(&body).contains("in several places"));
        body.flags = InodeFlags::EXTENTS;
        assert!(
            NodeMut::init(&mut body.i_block, 0).set_leaves(&[leaf(0, 100, 10), leaf(10, 105, 10)])
        );
        assert!(error(&body).contains("in several places"));
    }

    #[test]
    fn places_outside_the_device_are_errors() {
        let (dev, geo) = device();
        let mut body = Inode { size: 5000, ..Inode::default() };
        put_pointer(&mut body.i_block, 0, 4096);
        assert!(map(&dev, &geo, &body, InodeNr(8)).is_err());
        body.flags = InodeFlags::EXTENTS;
        assert!(NodeMut::init(&mut body.i_block, 0).set_leaves(&[leaf(0, 4090, 10)]));
        assert!(map(&dev, &geo, &body, InodeNr(8)).is_err());
    }
}
