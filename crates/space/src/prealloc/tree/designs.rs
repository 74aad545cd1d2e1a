//! Former designs of the preallocations of a file: a list, the newest in front, and one with a cap.
//!
//! A list is walked for each search, and each preallocation on the way is locked. The capped list
//! moves used entries to its front, and is cut to [`CAP`] entries from its tail once it has a
//! quarter more. [`RUNS`] chooses the design of trees that are made from then on.

use super::linked::Linked;
use super::{Key, Piece, Tree, Visits};
use extant_sync::designs::Choice;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// The structure that keeps the preallocations of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunsDesign {
    /// A tree by the first logical unit: Linux since 6.4, and the engine.
    Tree,
    /// A list.
    List,
    /// A list of at most about [`CAP`] entries: Linux from 2020 on.
    CappedList,
}

/// The chosen structure.
pub static RUNS: Choice<RunsDesign> = {
    use RunsDesign::*;
    Choice::new(&[Tree, List, CappedList])
};

/// Entries that the capped list is cut to.
pub const CAP: usize = 512;

/// Values by their keys, in the chosen structure.
#[derive(Debug)]
pub(super) enum Runs<V> {
    Tree(BTreeMap<Key, V>),
    List { list: Linked<Entry<V>>, places: BTreeMap<Key, usize>, capped: bool },
}

#[derive(Debug)]
pub(super) struct Entry<V> {
    key: Key,
    value: V,
    /// The lock of a preallocation, taken by each look.
    locked: AtomicBool,
}

impl<V> Entry<V> {
    fn look<R>(&self, at: impl FnOnce(Key, &V) -> R) -> R {
        let free =
            || self.locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed);
        while free().is_err() {}
        let result = at(self.key, &self.value);
        self.locked.store(false, Ordering::Release);
        result
    }
}

impl<V> Default for Runs<V> {
    fn default() -> Self {
        match RUNS.get() {
            RunsDesign::Tree => Runs::Tree(BTreeMap::new()),
            design => Runs::List {
                list: Linked::new(),
                places: BTreeMap::new(),
                capped: design == RunsDesign::CappedList,
            },
        }
    }
}

impl<V> Runs<V> {
    pub fn len(&self) -> usize {
        match self {
            Runs::Tree(tree) => tree.len(),
            Runs::List { list, .. } => list.len(),
        }
    }

    /// Returns the last value at or before `logical` that is `live`. A list ends its walk at one
    /// that contains it.
    pub fn left(
        &self,
        logical: u32,
        visits: &mut Visits,
        (live, end): (impl Fn(&V) -> bool, impl Fn(&V, Key) -> u64),
    ) -> Option<(Key, &V)> {
        let list = match self {
            Runs::Tree(tree) => {
                let all = tree.range(..=logical).rev().inspect(|_| *visits += 1);
                let found = all.map(|(key, value)| (*key, value)).find(|(_, value)| live(value));
                return found;
            }
            Runs::List { list, .. } => list,
        };
        let mut nearest: Option<(Key, &V)> = None;
        for (_, entry) in list.iter() {
            *visits += 1;
            let (before, contains) = entry.look(|key, value| {
                let before = key <= logical && live(value);
                (before, before && u64::from(logical) < end(value, key))
            });
            if before && nearest.is_none_or(|(key, _)| key < entry.key) {
                nearest = Some((entry.key, &entry.value));
            }
            if contains {
                break;
            }
        }
        nearest
    }

    /// Returns the key of the first value at or behind `first` that is `live`. In a list the walk
    /// of [`Runs::left`] has seen it, too.
    pub fn right(&self, first: u32, visits: &mut Visits, live: impl Fn(&V) -> bool) -> Option<Key> {
        match self {
            Runs::Tree(tree) => {
                let mut behind = tree.range(first..).inspect(|_| *visits += 1);
                behind.find(|(_, value)| live(value)).map(|(key, _)| *key)
            }
            Runs::List { list, places, .. } => {
                let mut behind = places.range(first..);
                let live = |at: &usize| list.get(*at).is_some_and(|entry| live(&entry.value));
                behind.find(|(_, at)| live(at)).map(|(key, _)| *key)
            }
        }
    }

    pub fn get(&self, key: &Key) -> Option<&V> {
        match self {
            Runs::Tree(tree) => tree.get(key),
            Runs::List { list, places, .. } => Some(&list.get(*places.get(key)?)?.value),
        }
    }

    /// Returns a value to be used. The capped list moves it to the front.
    pub fn get_mut(&mut self, key: &Key) -> Option<&mut V> {
        match self {
            Runs::Tree(tree) => tree.get_mut(key),
            Runs::List { list, places, capped } => {
                let at = *places.get(key)?;
                if *capped {
                    list.renew(at);
                }
                Some(&mut list.get_mut(at)?.value)
            }
        }
    }

    pub fn insert(&mut self, key: Key, value: V) -> Option<V> {
        if let Runs::Tree(tree) = self {
            return tree.insert(key, value);
        }
        let before = self.remove(&key);
        if let Runs::List { list, places, .. } = self {
            let locked = AtomicBool::new(false);
            places.insert(key, list.add(Entry { key, value, locked }));
        }
        before
    }

    pub fn remove(&mut self, key: &Key) -> Option<V> {
        match self {
            Runs::Tree(tree) => tree.remove(key),
            Runs::List { list, places, .. } => Some(list.remove(places.remove(key)?)?.value),
        }
    }

    /// Returns keys and values in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &V)> {
        let all: Vec<(&Key, &V)> = match self {
            Runs::Tree(tree) => tree.iter().collect(),
            Runs::List { list, places, .. } => {
                let value = |at: &usize| Some(&list.get(*at)?.value);
                places.iter().filter_map(|(key, at)| Some((key, value(at)?))).collect()
            }
        };
        all.into_iter()
    }

    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// The same to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&Key, &mut V)> {
        let mut all: Vec<(&Key, &mut V)> = match self {
            Runs::Tree(tree) => tree.iter_mut().collect(),
            Runs::List { list, .. } => {
                list.items_mut().map(|entry| (&entry.key, &mut entry.value)).collect()
            }
        };
        all.sort_unstable_by_key(|(key, _)| **key);
        all.into_iter()
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&Key, &V) -> bool) {
        let all = self.iter().filter(|(key, value)| !keep(key, value));
        let gone: Vec<Key> = all.map(|(key, _)| *key).collect();
        gone.iter().for_each(|key| drop(self.remove(key)));
    }
}

impl Tree {
    /// Passes the unused parts of the last entries of a capped list to `give`, if it has become too
    /// long. Returns the number of these entries.
    pub fn cut(&mut self, give: impl FnMut(Piece)) -> Visits {
        let Runs::List { list, capped: true, .. } = &self.pas else { return 0 };
        if list.len() <= CAP + CAP / 4 {
            return 0;
        }
        let mut last: Vec<Key> = list.iter().skip(CAP).map(|(_, entry)| entry.key).collect();
        last.sort_unstable();
        self.discard(|piece| last.binary_search(&piece.logical).is_ok(), give);
        self.sweep();
        last.len() as Visits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prealloc::Found;

    /// Returns the preallocations that a search for the oldest of `count` looks at, and their
    /// number then.
    fn looked_at(design: RunsDesign, count: u32) -> (Visits, usize) {
        RUNS.set(design);
        let mut tree = Tree::default();
        RUNS.set(RunsDesign::Tree);
        for n in 0..count {
            assert!(
                tree.insert(Piece { logical: n * 10, physical: 1000 + u64::from(n), len: 8 }, 0)
            );
            tree.cut(|_| ());
        }
        assert!(tree.is_sound());
        let mut visits = 0;
        let found = tree.take(3, 1, u64::MAX, &mut visits);
        let kept = matches!(found, Found::Taken { of: 0, .. });
        assert_eq!(kept, design != RunsDesign::CappedList || count as usize <= CAP, "{design:?}");
        assert!(tree.is_sound());
        (visits, tree.len())
    }

    #[test]
    fn each_design_looks_at_its_own_number_of_preallocations() {
        assert_eq!(looked_at(RunsDesign::Tree, 700), (1, 700));
        assert_eq!(looked_at(RunsDesign::List, 700), (700, 700));
        // It was cut to 512 when it had 641.
        assert_eq!(looked_at(RunsDesign::CappedList, 700), (571, 571));
    }
}
