//! Where free runs are: a pattern for each group, many groups of one pattern.

use extant_space::{FreeTree, Run};

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

    /// Returns a group's free runs in order, as they are before anything is taken.
    pub fn runs(&self, g: u32) -> impl Iterator<Item = Run> {
        self.group(g).runs.within(0..self.shape.group_len)
    }

    pub(super) fn group(&self, g: u32) -> &Group {
        &self.patterns[self.of_group.get(g as usize).map_or(0, |pattern| *pattern as usize)]
    }
}

/// Powers of two that buddies have: up to a group of 2^19 blocks.
pub const ORDERS: usize = 20;

/// Counts of a group: its free blocks, its runs, and the buddies that they fall into.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    pub free: u32,
    pub runs: u32,
    buddies: [u32; ORDERS],
}

/// Calls `each` with the aligned powers of two that a run falls into, each as large as its place
/// allows.
fn buddies(run: Run, mut each: impl FnMut(u32, u32)) {
    let mut at = run.start;
    while at < run.end() {
        let by_place = if at == 0 { ORDERS as u32 - 1 } else { at.trailing_zeros() };
        let order = by_place.min((run.end() - at).ilog2()).min(ORDERS as u32 - 1);
        each(at, order);
        at += 1 << order;
    }
}

impl Orders {
    pub fn of(runs: impl IntoIterator<Item = Run>) -> Orders {
        let mut orders = Orders::default();
        runs.into_iter().for_each(|run| orders.add(run));
        orders
    }

    pub fn add(&mut self, run: Run) {
        (self.free, self.runs) = (self.free + run.len, self.runs + 1);
        buddies(run, |_, order| self.buddies[order as usize] += 1);
    }

    pub fn remove(&mut self, run: Run) {
        (self.free, self.runs) = (self.free - run.len, self.runs - 1);
        buddies(run, |_, order| self.buddies[order as usize] -= 1);
    }

    /// Returns the order of the largest buddy; `None` if nothing is free.
    pub fn largest(&self) -> Option<u32> {
        self.buddies.iter().rposition(|count| *count > 0).map(|order| order as u32)
    }

    /// Blocks of the average free run.
    pub fn average(&self) -> u32 {
        self.free.checked_div(self.runs).unwrap_or(0)
    }
}

/// Returns the first buddy of at least an order in a run.
pub fn buddy_in(run: Run, least: u32) -> Option<u32> {
    let mut found = None;
    buddies(run, |at, order| {
        if order >= least && found.is_none() {
            found = Some(at);
        }
    });
    found
}
