//! Where the groups of a file system lie in its trees.
//!
//! A tree covers a flexible group; without flexible groups, or with absurdly large ones, a number
//! of neighbouring groups.

use extant_format::Geometry;
use extant_format::types::GroupNr;
use extant_space::Run;
use extant_sync::atomic::{AtomicU32, Ordering};
use std::ops::Range;

/// Groups of a tree, as a power of two, where the file system has no flexible groups; and the most:
/// a mask has 64 bits.
const PLAIN_BITS: u32 = 4;
const MAX_BITS: u32 = 6;

/// See the module's description.
#[derive(Debug)]
pub(in crate::alloc) struct Shape {
    /// Groups of a tree, as a power of two.
    bits: u32,
    /// Clusters of a full group.
    group_len: u32,
    /// Groups whose space may be allocated. The geometry may have more, while those that the file
    /// system is getting are not durable.
    groups: AtomicU32,
    /// Whether the first group of a tree is the one that has the metadata of all.
    first_is_special: bool,
}

impl Shape {
    pub fn new(geo: &Geometry, groups: u32) -> Shape {
        let bits = if geo.flex_bits == 0 { PLAIN_BITS } else { geo.flex_bits.min(MAX_BITS) };
        Shape {
            bits,
            group_len: geo.clusters_per_group.max(1),
            groups: AtomicU32::new(groups),
            first_is_special: geo.flex_bits > 0,
        }
    }

    /// Clusters of a full group.
    pub fn group_len(&self) -> u32 {
        self.group_len
    }

    /// Number of groups.
    pub fn groups(&self) -> u32 {
        // Acquire: tables of these groups are seen.
        self.groups.load(Ordering::Acquire)
    }

    /// Raises the number of groups. The tables of groups and trees must have grown before.
    pub fn grow(&self, groups: u32) {
        self.groups.fetch_max(groups, Ordering::Release);
    }

    pub fn trees(&self) -> u32 {
        self.trees_of(self.groups())
    }

    /// Number of trees of so many groups.
    pub fn trees_of(&self, groups: u32) -> u32 {
        self.trees_below(groups.saturating_add((1 << self.bits) - 1))
    }

    /// Returns the number of trees with all groups below `groups`.
    pub fn trees_below(&self, groups: u32) -> u32 {
        groups >> self.bits
    }

    /// Clusters of a full tree.
    pub fn tree_len(&self) -> u64 {
        u64::from(self.group_len) << self.bits
    }

    pub fn tree_of(&self, g: GroupNr) -> u32 {
        g.0 >> self.bits
    }

    /// The group's bit in its tree's masks.
    pub fn mask(&self, g: GroupNr) -> u64 {
        1 << (g.0 & ((1 << self.bits) - 1))
    }

    /// The groups of a tree.
    pub fn groups_of(&self, tree: u32) -> Range<u32> {
        let first = u64::from(tree) << self.bits;
        let end = (first + (1 << self.bits)).min(self.groups().into());
        first.min(end) as u32..end as u32
    }

    /// A cluster of a group as a unit of its tree.
    pub fn unit(&self, g: GroupNr, bit: u32) -> u32 {
        (g.0 & ((1 << self.bits) - 1)) * self.group_len + bit
    }

    /// A run of a group in its tree's units.
    pub fn place(&self, g: GroupNr, run: Run) -> Run {
        Run { start: self.unit(g, run.start), len: run.len }
    }

    /// The units of a group.
    pub fn units(&self, g: GroupNr) -> Range<u32> {
        let start = self.unit(g, 0);
        start..start + self.group_len
    }

    /// The group of a tree's run, and the run in it.
    pub fn group_run(&self, tree: u32, run: Run) -> (GroupNr, Run) {
        let g = (tree << self.bits) + run.start / self.group_len;
        (GroupNr(g), Run { start: run.start % self.group_len, len: run.len })
    }

    /// The first unit that is not of the group which has the metadata of its neighbours; 0 if no
    /// group is like that.
    pub fn behind_first(&self, tree: u32) -> u32 {
        if self.first_is_special && self.groups_of(tree).len() > 1 { self.group_len } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(bits: u32, groups: u32, first_is_special: bool) -> Shape {
        Shape { bits, group_len: 1000, groups: AtomicU32::new(groups), first_is_special }
    }

    #[test]
    fn places_lead_back_to_their_groups() {
        for (bits, groups, special) in [(4, 37, true), (0, 5, false), (6, 64, true)] {
            let shape = shape(bits, groups, special);
            let run = Run { start: 17, len: 5 };
            for g in (0..groups).map(GroupNr) {
                let tree = shape.tree_of(g);
                assert!(tree < shape.trees() && shape.groups_of(tree).contains(&g.0));
                assert_eq!(shape.group_run(tree, shape.place(g, run)), (g, run));
                assert_eq!(shape.units(g), shape.unit(g, 0)..shape.unit(g, 0) + 1000);
            }
            assert_eq!(
                (0..shape.trees()).map(|tree| shape.groups_of(tree).len() as u32).sum::<u32>(),
                groups
            );
            assert!(shape.groups_of(u32::MAX).is_empty());
        }
        let shape = shape(4, 33, true);
        assert_eq!((shape.behind_first(1), shape.behind_first(2)), (1000, 0));
        assert_eq!((shape.trees(), shape.trees_below(33), shape.tree_len()), (3, 2, 16_000));
    }
    #[test]
    fn a_short_tree_gets_the_new_groups_first() {
        let shape = shape(4, 18, true);
        shape.grow(40);
        assert_eq!((shape.trees(), shape.groups_of(1), shape.groups_of(2)), (3, 16..32, 32..40));
        shape.grow(20);
        assert_eq!(shape.groups(), 40);
    }
}
