//! The map of a file: nodes of an extent tree, or pointer blocks, with their entries.

use super::{ChecksumState, InodeSlot, Inspector};
use extant_format::extent::{Node, verify_extent_block};
use extant_format::indirect::{DIRECT, IND, TIND, pointer, pointers, pointers_per_block};
use extant_format::{BlockNr, Corrupt, InodeFlags};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Bound on the nodes of a map that are listed.
const MAX_NODES: usize = 1 << 20;

/// A node of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapNode {
    /// Levels above it: 0 for the root, which lies in the inode.
    pub level: u16,
    /// Levels below it: 0 for a leaf.
    pub depth: u16,
    /// Its block; `None` for the root.
    pub block: Option<u64>,
    /// Entries in use, or pointers that are not zero.
    pub entries: u32,
    /// Capacity in entries.
    pub max: u32,
    /// Verdict on the checksum.
    pub checksum: ChecksumState,
}

/// Kinds of entries of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapEntryKind {
    /// It leads to a node.
    Index,
    /// Blocks with data.
    Written,
    /// Blocks that read as zeroes.
    Unwritten,
}

/// An entry of an extent node, or a run of pointers to consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// Levels above its node.
    pub level: u16,
    /// Its number in the node, from 1 on; 0 for pointers.
    pub number: u32,
    /// The first block of the file.
    pub logical: u64,
    /// Number of blocks of the file.
    pub len: u64,
    /// The first block of the device.
    pub physical: u64,
    /// Its kind.
    pub kind: MapEntryKind,
}

/// A part of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapPart {
    /// A node; its entries follow, and after each index the node that it leads to.
    Node(MapNode),
    /// An entry.
    Entry(MapEntry),
    /// Damage, in words.
    Problem(String),
}

/// Receiver of parts, which may end a walk.
type Sink<'s> = &'s mut dyn FnMut(MapPart) -> ControlFlow<()>;

struct Walk<'w, 's> {
    inspector: &'w Inspector,
    slot: &'w InodeSlot,
    seen: BTreeSet<u64>,
    sink: Sink<'s>,
}

impl Inspector {
    /// Hands each part of an inode's map to `sink`, in the order of the file, until it breaks.
    pub fn map(&self, slot: &InodeSlot, sink: &mut dyn FnMut(MapPart) -> ControlFlow<()>) {
        let mut walk = Walk { inspector: self, slot, seen: BTreeSet::new(), sink };
        let _ = if slot.inode.flags.contains(InodeFlags::EXTENTS) {
            walk.node(&slot.inode.i_block, None, (0, None), 0..1 << 32)
        } else {
            walk.pointers()
        };
    }
}

impl Walk<'_, '_> {
    fn give(&mut self, part: MapPart) -> ControlFlow<()> {
        (self.sink)(part)
    }

    fn problem(&mut self, message: String) -> ControlFlow<()> {
        self.give(MapPart::Problem(message))
    }

    fn corrupt(&mut self, error: Corrupt, block: Option<u64>) -> ControlFlow<()> {
        let error = block.into_iter().fold(error, Corrupt::at_block);
        self.problem(error.to_string())
    }

    /// Walks over an extent node at a level. `above` is the depth of the node above.
    fn node(
        &mut self,
        bytes: &[u8],
        block: Option<u64>,
        (level, above): (u16, Option<u16>),
        range: std::ops::Range<u64>,
    ) -> ControlFlow<()> {
        let node = match Node::open(bytes) {
            Ok(node) => node,
            Err(error) => return self.corrupt(error, block),
        };
        let geometry = &self.inspector.geometry;
        let seed = self.slot.inode.seed(geometry, self.slot.number());
        let has_checksum = block.is_some() && geometry.metadata_csum;
        let (header, right) = (node.header(), || verify_extent_block(bytes, seed));
        self.give(MapPart::Node(MapNode {
            level,
            depth: header.depth,
            block,
            entries: header.entries.into(),
            max: header.max.into(),
            checksum: ChecksumState::of(has_checksum, right),
        }))?;
        let expected = above.map(|above| above.saturating_sub(1));
        if let Err(error) = Node::parse(bytes, expected) {
            self.corrupt(error, block)?;
        }
        if above.is_some_and(|above| header.depth >= above) {
            // Deeper than the node above: without this bound, nodes could lead to each other.
            return ControlFlow::Continue(());
        }
        self.leaves(&node, block, level)?;
        let next_keys = node.indexes().skip(1).map(|index| u64::from(index.lblk));
        let ends: Vec<u64> = next_keys.chain([range.end]).collect();
        for ((n, index), end) in (1..).zip(node.indexes()).zip(ends) {
            let logical = u64::from(index.lblk);
            self.give(MapPart::Entry(MapEntry {
                level,
                number: n,
                logical,
                len: end.saturating_sub(logical),
                physical: index.child,
                kind: MapEntryKind::Index,
            }))?;
            let below = level.saturating_add(1);
            if let Some(bytes) = self.enter(index.child)? {
                let child = Some(index.child);
                self.node(&bytes, child, (below, Some(header.depth)), logical..end)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Gives the extents of a leaf.
    fn leaves(&mut self, node: &Node<'_>, block: Option<u64>, level: u16) -> ControlFlow<()> {
        for (n, leaf) in (1..).zip(node.leaves()) {
            let kind = if leaf.unwritten { MapEntryKind::Unwritten } else { MapEntryKind::Written };
            self.give(MapPart::Entry(MapEntry {
                level,
                number: n,
                logical: leaf.lblk.into(),
                len: leaf.len.into(),
                physical: leaf.pblk,
                kind,
            }))?;
            if let Err(error) = leaf.check_physical(&self.inspector.geometry) {
                self.corrupt(error, block)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Returns the content of a node's block, unless it cannot be one.
    fn enter(&mut self, block: u64) -> ControlFlow<(), Option<Vec<u8>>> {
        if !self.inspector.geometry.data_range_valid(BlockNr(block), 1) {
            self.problem(format!("block {block} of the map is not in the file system"))?;
            return ControlFlow::Continue(None);
        }
        if self.seen.len() >= MAX_NODES {
            self.problem(format!("the map has more than {MAX_NODES} nodes: the rest is left out"))?;
            return ControlFlow::Break(());
        }
        if !self.seen.insert(block) {
            self.problem(format!("block {block} is twice in the map"))?;
            return ControlFlow::Continue(None);
        }
        let bytes = self.inspector.reader().block(block);
        if bytes.is_none() {
            self.problem(format!("block {block} of the map cannot be read"))?;
        }
        ControlFlow::Continue(bytes)
    }

    fn pointers(&mut self) -> ControlFlow<()> {
        let i_block = self.slot.inode.i_block;
        let all: Vec<u32> = (0..=TIND).map(|n| pointer(&i_block, n)).collect();
        let is_used = |block: &&u32| **block != 0;
        self.give(MapPart::Node(MapNode {
            level: 0,
            depth: 0,
            block: None,
            entries: all.iter().filter(is_used).count() as u32,
            max: all.len() as u32,
            checksum: ChecksumState::Absent,
        }))?;
        self.runs(all.get(..DIRECT).unwrap_or_default(), 0, 0)?;
        let per_block = u64::from(pointers_per_block(self.inspector.geometry.block_size));
        let (mut first, mut reach) = (DIRECT as u64, per_block);
        for (slot, depth) in (IND..=TIND).zip(0u16..) {
            let block = pointer(&i_block, slot).into();
            self.pointer_block(block, (1, depth), first, reach)?;
            first = first.saturating_add(reach);
            reach = reach.saturating_mul(per_block);
        }
        ControlFlow::Continue(())
    }

    /// Walks over a pointer block with `depth` levels below, whose first data block is `first`, and
    /// which maps `reach` blocks.
    fn pointer_block(
        &mut self,
        block: u64,
        (level, depth): (u16, u16),
        first: u64,
        reach: u64,
    ) -> ControlFlow<()> {
        if block == 0 {
            return ControlFlow::Continue(());
        }
        self.give(MapPart::Entry(MapEntry {
            level: level.saturating_sub(1),
            number: 0,
            logical: first,
            len: reach,
            physical: block,
            kind: MapEntryKind::Index,
        }))?;
        let Some(bytes) = self.enter(block)? else { return ControlFlow::Continue(()) };
        let list: Vec<u32> = pointers(&bytes).collect();
        self.give(MapPart::Node(MapNode {
            level,
            depth,
            block: Some(block),
            entries: list.iter().filter(|block| **block != 0).count() as u32,
            max: list.len() as u32,
            checksum: ChecksumState::Absent,
        }))?;
        let Some(below) = depth.checked_sub(1) else { return self.runs(&list, level, first) };
        let reach = reach.checked_div(list.len() as u64).unwrap_or(0);
        for (n, child) in (0u64..).zip(list) {
            let start = first.saturating_add(n.saturating_mul(reach));
            self.pointer_block(child.into(), (level.saturating_add(1), below), start, reach)?;
        }
        ControlFlow::Continue(())
    }

    /// Gives the runs of a list of pointers to data.
    fn runs(&mut self, list: &[u32], level: u16, first: u64) -> ControlFlow<()> {
        let mut next = 0usize;
        while let Some(start) = list.get(next).copied() {
            let rest = list.get(next..).unwrap_or_default();
            let follows = |(n, block): &(u64, &u32)| {
                start != 0 && u64::from(**block) == u64::from(start).saturating_add(*n)
            };
            let len = (0u64..).zip(rest).take_while(follows).count().max(1);
            if start != 0 {
                let physical = u64::from(start);
                self.give(MapPart::Entry(MapEntry {
                    level,
                    number: 0,
                    logical: first.saturating_add(next as u64),
                    len: len as u64,
                    physical,
                    kind: MapEntryKind::Written,
                }))?;
                if !self.inspector.geometry.data_range_valid(BlockNr(physical), len as u64) {
                    self.problem(format!("block {physical} of the map is not in the file system"))?;
                }
            }
            next = next.saturating_add(len);
        }
        ControlFlow::Continue(())
    }
}
