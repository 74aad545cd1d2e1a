//! Where free runs are: a pattern for each group, many groups of one pattern.

use extant_space::{FreeTree, Run};
use std::iter;

/// How a disk is divided.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Blocks of a group; not 0.
    pub group_len: u32,
    pub groups: u32,
    /// Groups of a flexible group, as a power of two.
    pub flex_bits: u32,
}

impl Shape {
    /// Returns the group of a block, and the block in it.
    pub fn place(&self, block: u64) -> (u32, u32) {
        let len = u64::from(self.group_len);
        ((block / len) as u32, (block % len) as u32)
    }

    /// Returns the number of a group's block.
    pub fn block(&self, g: u32, bit: u32) -> u64 {
        u64::from(g) * u64::from(self.group_len) + u64::from(bit)
    }

    /// Flexible groups.
    pub fn trees(&self) -> u32 {
        self.groups.div_ceil(1 << self.flex_bits)
    }

    /// Returns the groups of a flexible group.
    pub fn groups_of(&self, tree: u32) -> std::ops::Range<u32> {
        let first = tree << self.flex_bits;
        first..(first + (1 << self.flex_bits)).min(self.groups)
    }

    /// Returns whether a group has the metadata of its flexible group.
    pub fn is_first(&self, g: u32) -> bool {
        self.flex_bits > 0 && g & ((1 << self.flex_bits) - 1) == 0
    }
}

#[derive(Debug)]
pub struct Map {
    /// How the disk is divided.
    pub shape: Shape,
    patterns: Vec<FreeTree>,
    of_group: Vec<u32>,
}

impl Map {
    /// Groups by the numbers of their patterns.
    pub fn new(
        shape: Shape,
        patterns: impl IntoIterator<Item = Vec<Run>>,
        of_group: Vec<u32>,
    ) -> Map {
        let loaded = |runs: Vec<Run>| {
            let mut free = FreeTree::new(shape.group_len);
            free.load(&runs);
            free
        };
        Map { shape, patterns: patterns.into_iter().map(loaded).collect(), of_group }
    }

    /// Makes a disk on which nothing but the first blocks of flexible groups is used.
    pub fn empty(shape: Shape, metadata: u32) -> Map {
        let free = |used: u32| vec![Run { start: used, len: shape.group_len - used }];
        let of_group = (0..shape.groups).map(|g| u32::from(shape.is_first(g))).collect();
        Map::new(shape, [free(0), free(metadata)], of_group)
    }

    /// Returns a group's free runs in order, as they are before anything is taken.
    pub fn runs(&self, g: u32) -> impl Iterator<Item = Run> {
        self.group(g).within(0..self.shape.group_len)
    }

    pub(super) fn group(&self, g: u32) -> &FreeTree {
        &self.patterns[self.of_group.get(g as usize).map_or(0, |pattern| *pattern as usize)]
    }
}

/// Powers of two that buddies have: up to a group of 2^19 blocks.
pub const ORDERS: usize = 20;

/// Returns the starts and orders of the aligned powers of two that a run falls into, each as large
/// as its place allows.
pub fn buddies(run: Run) -> impl Iterator<Item = (u32, u32)> {
    let mut next = run.start;
    iter::from_fn(move || {
        let at = next;
        let fits = run.end().checked_sub(at).filter(|left| *left > 0)?.ilog2();
        let order = fits.min(at.trailing_zeros()).min(ORDERS as u32 - 1);
        next += 1 << order;
        Some((at, order))
    })
}

/// Returns the order of the largest buddy of a group; `None` if nothing is free.
pub fn largest(group: &FreeTree) -> Option<u32> {
    let mut largest = None;
    for run in group.by_length() {
        if largest >= Some(run.len.ilog2()) {
            break;
        }
        largest = largest.max(buddies(run).map(|(_, order)| order).max());
    }
    largest
}

/// Returns the blocks of the average free run.
pub fn average(group: &FreeTree) -> u32 {
    group.free().checked_div(group.runs() as u32).unwrap_or(0)
}
