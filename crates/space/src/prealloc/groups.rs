//! The preallocations of one file by the groups that their space is in.
//!
//! For example, a file with preallocations at logical units 0 and 64 in group 3 and at 128 in group
//! 5 has two lists: 0 and 64, and 128. A discard in group 5 looks at 128 alone.
//!
//! A key is appended when its preallocation is made. It is not removed when that ends, which would
//! need a search; the list is compacted once most of its keys are stale. Both cost a constant time
//! for each preallocation, and a list has at most [`SLACK`] keys more than twice its live ones.
//!
//! The list of a group whose last preallocation was used up stays until the next one becomes empty:
//! a file that is written on gets its next preallocation there.
//!
//! # Invariants
//! - The list of a group has the keys of all live preallocations there.
//! - At most one group without live preallocations has a list.

use super::tree::Key;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

/// Stale keys that a short list may have.
const SLACK: usize = 8;

/// Keys of preallocations, some of which may have ended, in no order.
pub(super) type Keys = SmallVec<[Key; 2]>;

#[derive(Debug)]
struct List {
    group: u32,
    /// The owner's number for this list.
    slot: Option<u32>,
    live: usize,
    keys: Keys,
}

impl List {
    fn is_stale(&self) -> bool {
        self.keys.len() > 2 * self.live + SLACK
    }

    #[cold]
    fn compact(&mut self, is_live: impl Fn(Key) -> bool) {
        self.keys.retain(|key| is_live(*key));
        // A key is listed twice if its preallocation was made again.
        self.keys.sort_unstable();
        self.keys.dedup();
        self.keys.shrink_to_fit();
    }
}

/// The lists of one file's groups, in the order of the groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    lists: SmallVec<[List; 1]>,
    /// Where a list was found last. Files use one group for a while.
    recent: usize,
    /// The group without live preallocations that has a list.
    empty: Option<u32>,
    /// Groups whose list is gone, with their slots.
    left: SmallVec<[(u32, u32); 1]>,
}

impl Groups {
    #[inline]
    fn find(&self, group: u32) -> Result<usize, usize> {
        if self.lists.get(self.recent).is_some_and(|list| list.group == group) {
            return Ok(self.recent);
        }
        self.lists.binary_search_by_key(&group, |list| list.group)
    }

    #[inline]
    fn find_mut(&mut self, group: u32) -> Option<&mut List> {
        self.recent = self.find(group).ok()?;
        self.lists.get_mut(self.recent)
    }

    /// Adds a preallocation.
    pub fn add(&mut self, group: u32, key: Key) {
        let at = self.find(group).unwrap_or_else(|at| {
            self.lists.insert(at, List { group, slot: None, live: 0, keys: Keys::new() });
            at
        });
        self.recent = at;
        if let Some(list) = self.lists.get_mut(at) {
            if list.live == 0 && self.empty == Some(group) {
                self.empty = None;
            }
            list.live += 1;
            list.keys.push(key);
        }
    }

    /// A preallocation ended. `is_live` tells stale keys.
    #[inline]
    pub fn end(&mut self, group: u32, is_live: impl Fn(Key) -> bool) {
        let Some(list) = self.find_mut(group) else { return };
        list.live = list.live.saturating_sub(1);
        if list.live == 0 {
            list.keys.clear();
            if let Some(before) = self.empty.replace(group) {
                self.remove(before);
            }
        } else if list.is_stale() {
            list.compact(is_live);
        }
    }

    fn remove(&mut self, group: u32) {
        if let Ok(at) = self.find(group) {
            let list = self.lists.remove(at);
            self.left.extend(list.slot.map(|slot| (group, slot)));
        }
    }

    /// Takes the keys of a group out. The caller must [restore](Groups::restore) those that stay.
    pub fn take(&mut self, group: u32) -> Keys {
        self.find_mut(group).map(|list| std::mem::take(&mut list.keys)).unwrap_or_default()
    }

    /// Lists all live keys of a group whose keys were taken out. Without any the list goes.
    pub fn restore(&mut self, group: u32, keys: Keys) {
        let Some(list) = self.find_mut(group) else { return };
        list.live = keys.len();
        list.keys = keys;
        if list.live == 0 {
            self.empty.take_if(|empty| *empty == group);
            self.remove(group);
        }
    }

    /// Ends all preallocations but those for which `is_live` returns true.
    pub fn retain(&mut self, is_live: impl Fn(u32, Key) -> bool) {
        let groups: SmallVec<[u32; 1]> = self.lists.iter().map(|list| list.group).collect();
        for group in groups {
            let mut keys = self.take(group);
            keys.sort_unstable();
            keys.dedup();
            keys.retain(|key| is_live(group, *key));
            self.restore(group, keys);
        }
    }

    /// Returns the slot of a group with a list.
    pub fn slot_mut(&mut self, group: u32) -> Option<&mut Option<u32>> {
        self.find_mut(group).map(|list| &mut list.slot)
    }

    /// Takes the groups out whose list is gone, with their slots.
    #[inline]
    pub fn take_left(&mut self) -> Option<(u32, u32)> {
        self.left.pop()
    }

    /// Returns the groups with lists, with their slots.
    pub fn slots(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.lists.iter().filter_map(|list| Some((list.group, list.slot?)))
    }

    /// Returns whether these are the lists of exactly these live preallocations.
    pub fn is_sound(&self, live: impl Iterator<Item = (u32, Key)>) -> bool {
        let all = self.lists.iter();
        let listed: BTreeSet<_> =
            all.flat_map(|list| list.keys.iter().map(|key| (list.group, *key))).collect();
        let count = |list: &List| (list.group, list.live);
        let mut counts = BTreeMap::<u32, usize>::new();
        let mut live = live.inspect(|(group, _)| *counts.entry(*group).or_default() += 1);
        live.all(|entry| listed.contains(&entry))
            && self.lists.iter().all(|list| list.live > 0 || self.empty == Some(list.group))
            && self.lists.iter().filter(|list| list.live > 0).map(count).eq(counts)
    }
}
