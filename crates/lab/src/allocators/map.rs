//! Where free runs are: a pattern for each group, many groups of one pattern.

use super::order::Orders;
use extant_space::{FreeTree, Run};

/// How a disk is divided.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Blocks of a group; not 0.
    pub group_len: u32,
    /// Groups.
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

/// Free space of a group.
#[derive(Debug)]
pub struct Group {
    pub runs: FreeTree,
    pub orders: Orders,
}

impl Group {
    /// Makes a group with these runs, disjoint, maximal and in order.
    pub fn new(group_len: u32, runs: &[Run]) -> Group {
        let mut free = FreeTree::new(group_len);
        free.load(runs);
        Group { runs: free, orders: Orders::of(runs.iter().copied()) }
    }

    /// One of its own with the same runs.
    pub fn copy(&self, group_len: u32) -> Group {
        let runs: Vec<Run> = self.runs.within(0..group_len).collect();
        Group::new(group_len, &runs)
    }

    pub fn longest(&self) -> u32 {
        self.runs.longest().map_or(0, |run| run.len)
    }

    pub fn take(&mut self, run: Run) -> bool {
        self.change(run, |runs| runs.take(run))
    }

    pub fn give(&mut self, run: Run) -> bool {
        self.change(run, |runs| runs.add(run))
    }

    /// Changes runs near one, and counts those anew that are other ones then.
    fn change(&mut self, near: Run, change: impl FnOnce(&mut FreeTree) -> bool) -> bool {
        let around = |runs: &FreeTree| {
            let first = near
                .start
                .checked_sub(1)
                .and_then(|before| runs.at(before))
                .map_or(near.start, |run| run.start);
            let end = runs.at(near.end()).map_or(near.end(), Run::end);
            runs.within(first..end).collect::<Vec<Run>>()
        };
        let before = around(&self.runs);
        let done = change(&mut self.runs);
        before.into_iter().for_each(|run| self.orders.remove(run));
        around(&self.runs).into_iter().for_each(|run| self.orders.add(run));
        done
    }
}

/// See the module's description.
#[derive(Debug)]
pub struct Map {
    /// How the disk is divided.
    pub shape: Shape,
    patterns: Vec<Group>,
    of_group: Vec<u32>,
}

impl Map {
    /// Groups by the numbers of their patterns.
    pub fn new(
        shape: Shape,
        patterns: impl IntoIterator<Item = Vec<Run>>,
        of_group: Vec<u32>,
    ) -> Map {
        let patterns =
            patterns.into_iter().map(|runs| Group::new(shape.group_len, &runs)).collect();
        Map { shape, patterns, of_group }
    }

    /// Makes a disk on which nothing but the first blocks of flexible groups is used.
    pub fn empty(shape: Shape, metadata: u32) -> Map {
        let free = |used: u32| vec![Run { start: used, len: shape.group_len - used }];
        let of_group = (0..shape.groups).map(|g| u32::from(shape.is_first(g))).collect();
        Map::new(shape, [free(0), free(metadata)], of_group)
    }

    /// Returns the number of a group's pattern. All groups of a pattern have the same free runs.
    pub fn pattern(&self, g: u32) -> u32 {
        self.of_group.get(g as usize).copied().unwrap_or(0)
    }

    /// Returns a group's free runs in order, as they are before anything is taken.
    pub fn runs(&self, g: u32) -> impl Iterator<Item = Run> {
        self.group(g).runs.within(0..self.shape.group_len)
    }

    pub(super) fn group(&self, g: u32) -> &Group {
        &self.patterns[self.pattern(g) as usize]
    }
}
