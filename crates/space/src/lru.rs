//! The order in which trees leave memory: an active and an inactive list, as in caches.
//!
//! A tree is added to the inactive list when it is loaded, and to the active list when it is used
//! again. Active trees hold at most a budget of bytes; beyond it, the tree that was promoted first
//! becomes inactive. The oldest inactive tree leaves memory first. Further uses of an active tree
//! change nothing here, so they need no lock.
//!
//! For example, tree 3 is loaded for one file and never used again: it leaves before tree 5, which
//! was used twice.
//!
//! # Invariants
//! - Each tree in memory is on exactly one list, other trees are on none.
//! - `active_bytes` is the sum of the weights of active trees, each as of the tree's promotion.

use std::collections::{BTreeMap, HashMap};

/// The eviction order of trees. See the module's documentation.
#[derive(Debug, Default)]
pub struct Lru {
    places: HashMap<u32, Place>,
    active: BTreeMap<u64, u32>,
    inactive: BTreeMap<u64, u32>,
    active_bytes: u64,
    turn: u64,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    active: bool,
    turn: u64,
    bytes: u64,
}

impl Lru {
    fn put(&mut self, tree: u32, active: bool, bytes: u64) {
        self.remove(tree);
        self.turn += 1;
        self.places.insert(tree, Place { active, turn: self.turn, bytes });
        if active {
            self.active_bytes += bytes;
            self.active.insert(self.turn, tree);
        } else {
            self.inactive.insert(self.turn, tree);
        }
    }

    /// Adds a tree that was loaded, or could not be evicted, to the end of the inactive list.
    /// Active trees stay where they are.
    pub fn loaded(&mut self, tree: u32) {
        if !self.is_active(tree) {
            self.put(tree, false, 0);
        }
    }

    /// Promotes a tree of `bytes` bytes that was used. Returns the trees that become inactive so
    /// that active ones have at most `budget` bytes; this tree may be one of them.
    pub fn used(&mut self, tree: u32, bytes: u64, budget: u64) -> Vec<u32> {
        self.put(tree, true, bytes);
        let mut demoted = Vec::new();
        while self.active_bytes > budget
            && let Some((_, first)) = self.active.first_key_value()
        {
            let first = *first;
            demoted.push(first);
            self.put(first, false, 0);
        }
        demoted
    }

    /// Removes a tree that left memory.
    pub fn remove(&mut self, tree: u32) {
        let Some(place) = self.places.remove(&tree) else { return };
        if place.active {
            self.active_bytes -= place.bytes;
            self.active.remove(&place.turn);
        } else {
            self.inactive.remove(&place.turn);
        }
    }

    /// Returns the tree that should leave memory next: the oldest inactive one, otherwise the
    /// active one that was promoted first.
    pub fn victim(&self) -> Option<u32> {
        let first = self.inactive.first_key_value().or_else(|| self.active.first_key_value());
        first.map(|(_, tree)| *tree)
    }

    /// Moves a tree that could not be evicted to the end of the inactive list.
    pub fn pass(&mut self, tree: u32) {
        if self.places.contains_key(&tree) {
            self.put(tree, false, 0);
        }
    }

    /// Returns whether a tree is on the active list.
    pub fn is_active(&self, tree: u32) -> bool {
        self.places.get(&tree).is_some_and(|place| place.active)
    }

    /// Returns the numbers of active and inactive trees.
    pub fn len(&self) -> (usize, usize) {
        (self.active.len(), self.inactive.len())
    }

    /// Returns whether no tree is in memory.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_tree_is_on_one_list(
            steps in prop::collection::vec(
                (0u8..4, 0u32..9, 0u64..50),
                0..100,
            ), budget in 0u64..120,
        ) {
            let mut lru = Lru::default();
            let mut held = std::collections::BTreeSet::new();
            for (step, tree, runs) in steps {
                match step {
                    0 => { lru.loaded(tree); held.insert(tree); }
                    1 if held.contains(&tree) => drop(lru.used(tree, runs, budget)),
                    2 => { lru.remove(tree); held.remove(&tree); }
                    _ => lru.pass(tree),
                }
                let mut listed: Vec<u32> =
                    lru.active.values().chain(lru.inactive.values()).copied().collect();
                listed.sort_unstable();
                prop_assert_eq!(&listed, &held.iter().copied().collect::<Vec<_>>());
                let active: u64 =
                    lru.places.values().filter(|place| place.active).map(|place| place.bytes).sum();
                prop_assert!(active == lru.active_bytes && active <= budget);
                prop_assert_eq!(lru.victim().is_some(), !held.is_empty());
            }
        }
    }

    #[test]
    fn trees_used_again_stay_longer() {
        let mut lru = Lru::default();
        (0..4).for_each(|tree| lru.loaded(tree));
        assert!(lru.used(0, 10, 25).is_empty() && lru.used(1, 10, 25).is_empty());
        assert_eq!(lru.victim(), Some(2));
        assert_eq!(lru.used(3, 10, 25), [0]);
        assert_eq!(lru.len(), (2, 2));
        let mut gone = Vec::new();
        while let Some(tree) = lru.victim() {
            gone.push(tree);
            lru.remove(tree);
        }
        assert_eq!(gone, [2, 0, 1, 3]);
    }
}
