//! Walks over the block maps of inodes: extent trees and pointers.
//!
//! A walk tells its visitor each node, each run of data and each defect. The visitor decides
//! whether a node is read, which bounds all walks together by the distinct blocks of the device.

use crate::finding::{Finding, FindingCode, FindingPlace};
use crate::reader::Reader;
use extant_format::extent::{Index, Leaf, Node, ROOT_SIZE, capacity, verify_extent_block};
use extant_format::indirect::{DIRECT, IND, TIND, pointer, pointers, pointers_per_block};
use extant_format::{BlockNr, Corrupt, Inode, InodeFlags, InodeNr};
use std::ops::Range;

/// Consecutive blocks of a file at consecutive places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first block of the file.
    pub logical: u64,
    /// The first block of the device.
    pub physical: u64,
    /// Number of blocks.
    pub len: u64,
    /// The blocks read as zeros.
    pub unwritten: bool,
}

impl Run {
    /// Returns the blocks of the device.
    pub fn blocks(&self) -> Range<u64> {
        self.physical..self.physical.saturating_add(self.len)
    }

    /// Returns the block of the file after the last one.
    pub fn end(&self) -> u64 {
        self.logical.saturating_add(self.len)
    }

    /// Adds the run to others, joined with the last one if it continues it.
    pub fn add_to(self, runs: &mut Vec<Run>) {
        match runs.last_mut() {
            _ if self.len == 0 => {}
            Some(last)
                if last.end() == self.logical
                    && last.blocks().end == self.physical
                    && last.unwritten == self.unwritten =>
            {
                last.len = last.len.saturating_add(self.len);
            }
            _ => runs.push(self),
        }
    }
}

/// Receiver of the parts of a map, in the order of the file.
pub trait MapVisitor {
    /// A node or pointer block, which is in the file system. Returns whether to read it.
    fn enter(&mut self, block: u64) -> bool;

    /// A run of data blocks, which are in the file system.
    fn run(&mut self, run: Run);

    /// A defect.
    fn bad(&mut self, finding: Finding);
}

/// Parts of an extent node that the entry above it determines.
struct Expected {
    depth: u16,
    /// The blocks of the file that the node may map.
    range: Range<u64>,
}

struct Walk<'w, 'a, V> {
    reader: &'w Reader<'a>,
    place: FindingPlace,
    seed: u32,
    visitor: &'w mut V,
}

/// Walks over the map of an inode. Inodes without a map (devices, inline data, short symbolic
/// links) must not be passed.
pub fn walk(reader: &Reader<'_>, ino: InodeNr, inode: &Inode, visitor: &mut impl MapVisitor) {
    let place = FindingPlace::inode(ino);
    let seed = inode.seed(&reader.geometry, ino);
    let mut walk = Walk { reader, place, seed, visitor };
    if inode.flags.contains(InodeFlags::EXTENTS) {
        walk.tree(&inode.i_block);
    } else {
        walk.pointers(&inode.i_block);
    }
}

impl<V: MapVisitor> Walk<'_, '_, V> {
    fn corrupt(&mut self, code: FindingCode, block: Option<u64>, error: &Corrupt) {
        let place = FindingPlace { block: block.or(self.place.block), ..self.place };
        self.visitor.bad(Finding::corrupt(code, place, error));
    }

    fn tree(&mut self, root: &[u8; ROOT_SIZE]) {
        match Node::parse(root, None) {
            Ok(node) => self.node(&node, root.len(), None, 0..1 << 32),
            Err(error) => self.corrupt(FindingCode::ExtentNode, None, &error),
        }
    }

    fn node(&mut self, node: &Node<'_>, bytes: usize, block: Option<u64>, range: Range<u64>) {
        let (max, most) = (node.header().max, capacity(bytes));
        if max < most.saturating_sub(2) {
            let error = Corrupt::new("extent header").field("max").found(max).expected(most);
            self.corrupt(FindingCode::ExtentNode, block, &error);
        }
        if node.is_leaf() {
            node.leaves().for_each(|leaf| self.leaf(&leaf, block, &range));
            return;
        }
        let next_keys = node.indexes().skip(1).map(|index| u64::from(index.lblk));
        let ends = next_keys.chain(std::iter::once(range.end));
        for (index, end) in node.indexes().zip(ends) {
            let start = u64::from(index.lblk);
            let depth = node.depth().saturating_sub(1);
            self.child(&index, block, Expected { depth, range: start..end });
        }
    }

    fn leaf(&mut self, leaf: &Leaf, block: Option<u64>, range: &Range<u64>) {
        if let Err(error) = leaf.check_physical(&self.reader.geometry) {
            self.corrupt(FindingCode::ExtentEntry, block, &error);
            return;
        }
        if u64::from(leaf.lblk) < range.start || leaf.end() > range.end {
            let error = Corrupt::new("extent").field("logical block");
            let error = error.found(leaf.lblk).expected(range.start);
            self.corrupt(FindingCode::ExtentEntry, block, &error);
        }
        self.visitor.run(Run {
            logical: leaf.lblk.into(),
            physical: leaf.pblk,
            len: leaf.len.into(),
            unwritten: leaf.unwritten,
        });
    }

    fn child(&mut self, index: &Index, block: Option<u64>, expected: Expected) {
        if let Err(error) = index.check_physical(&self.reader.geometry) {
            self.corrupt(FindingCode::ExtentEntry, block, &error);
            return;
        }
        let child = index.child;
        if !self.visitor.enter(child) {
            return;
        }
        let Some(bytes) = self.reader.block(child) else {
            self.visitor.bad(Finding::new(FindingCode::Unreadable, self.place.block(child)));
            return;
        };
        let node = match Node::parse(&bytes, Some(expected.depth)) {
            Ok(node) => node,
            Err(error) => return self.corrupt(FindingCode::ExtentNode, Some(child), &error),
        };
        if self.reader.geometry.metadata_csum && !verify_extent_block(&bytes, self.seed) {
            self.visitor.bad(Finding::new(FindingCode::ExtentChecksum, self.place.block(child)));
        }
        let first = node.key(0).map(u64::from);
        if first != Some(expected.range.start) {
            let error = Corrupt::new("extent node").field("first logical block");
            let error = error.found(first.unwrap_or(0)).expected(expected.range.start);
            self.corrupt(FindingCode::ExtentNode, Some(child), &error);
        }
        self.node(&node, bytes.len(), Some(child), expected.range);
    }

    fn pointers(&mut self, i_block: &[u8]) {
        let direct = (0..DIRECT).map(|n| pointer(i_block, n)).collect::<Vec<_>>();
        self.data(&direct, 0, None);
        let per_block = u64::from(pointers_per_block(self.reader.geometry.block_size));
        let (mut first, mut reach) = (DIRECT as u64, per_block);
        for (slot, level) in (IND..=TIND).zip(1..) {
            self.pointer_block(pointer(i_block, slot).into(), level, first, None);
            first = first.saturating_add(reach);
            reach = reach.saturating_mul(per_block);
        }
    }

    fn is_valid(&mut self, block: u64, logical: u64, holder: Option<u64>) -> bool {
        let valid = self.reader.geometry.data_range_valid(BlockNr(block), 1);
        if !valid {
            let place = FindingPlace { block: holder, ..self.place.logical(logical) };
            let finding = Finding::new(FindingCode::BlockPointer, place);
            self.visitor.bad(finding.values(block, self.reader.geometry.blocks_count));
        }
        valid
    }

    /// Walks over a pointer block of `level`, whose first data block is `first`.
    fn pointer_block(&mut self, block: u64, level: u32, first: u64, holder: Option<u64>) {
        if block == 0 || !self.is_valid(block, first, holder) || !self.visitor.enter(block) {
            return;
        }
        let Some(bytes) = self.reader.block(block) else {
            self.visitor.bad(Finding::new(FindingCode::Unreadable, self.place.block(block)));
            return;
        };
        let list: Vec<u32> = pointers(&bytes).collect();
        if level == 1 {
            return self.data(&list, first, Some(block));
        }
        let per_block = pointers_per_block(self.reader.geometry.block_size);
        let below = level.saturating_sub(1);
        let reach = u64::from(per_block).saturating_pow(below);
        for (n, child) in (0u64..).zip(list) {
            let start = first.saturating_add(n.saturating_mul(reach));
            self.pointer_block(child.into(), below, start, Some(block));
        }
    }

    /// Gives the visitor the runs of a list of pointers to data.
    fn data(&mut self, list: &[u32], first: u64, holder: Option<u64>) {
        let mut run: Option<Run> = None;
        for (logical, block) in (first..).zip(list.iter().map(|block| u64::from(*block))) {
            if block == 0 || !self.is_valid(block, logical, holder) {
                continue;
            }
            match &mut run {
                Some(run) if run.end() == logical && run.blocks().end == block => {
                    run.len = run.len.saturating_add(1);
                }
                _ => {
                    let next = Run { logical, physical: block, len: 1, unwritten: false };
                    if let Some(run) = run.replace(next) {
                        self.visitor.run(run);
                    }
                }
            }
        }
        if let Some(run) = run {
            self.visitor.run(run);
        }
    }
}

/// The runs of a map, without findings. A node is read once, and at most [`Runs::MAX_NODES`] are.
#[derive(Debug, Default)]
pub struct Runs {
    /// The runs, in the order of the file.
    pub runs: Vec<Run>,
    /// Whether a part of the map is damaged, or was left out.
    pub damaged: bool,
    seen: std::collections::BTreeSet<u64>,
}

impl Runs {
    /// Bounds on the nodes and runs of files that the file system itself uses.
    const MAX_NODES: usize = 1 << 16;
    const MAX_RUNS: usize = 1 << 20;

    /// Returns the runs of an inode.
    pub fn of(reader: &Reader<'_>, ino: InodeNr, inode: &Inode) -> Runs {
        let mut runs = Runs::default();
        walk(reader, ino, inode, &mut runs);
        runs
    }

    /// Returns the blocks with parts of the map.
    pub fn nodes(&self) -> impl Iterator<Item = u64> + '_ {
        self.seen.iter().copied()
    }

    /// Returns the first `most` blocks of the file, in order; `None` if one is missing.
    pub fn blocks(&self, most: u64) -> Option<Vec<u64>> {
        let mut blocks = Vec::new();
        for run in &self.runs {
            if run.logical != blocks.len() as u64 {
                break;
            }
            let left = most.saturating_sub(blocks.len() as u64) as usize;
            blocks.extend(run.blocks().take(left));
        }
        (blocks.len() as u64 == most).then_some(blocks)
    }
}

impl MapVisitor for Runs {
    fn enter(&mut self, block: u64) -> bool {
        let new = self.seen.len() < Runs::MAX_NODES && self.seen.insert(block);
        self.damaged |= !new;
        new
    }

    fn run(&mut self, run: Run) {
        if self.runs.len() < Runs::MAX_RUNS {
            self.runs.push(run);
        } else {
            self.damaged = true;
        }
    }

    fn bad(&mut self, _: Finding) {
        self.damaged = true;
    }
}
