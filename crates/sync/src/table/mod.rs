//! A hash table whose values are read in place, without a lock and without a write to shared
//! memory.
//!
//! # Locking
//! Changes lock a shard. A lookup locks one only if it found nothing while the shard was growing.
#![expect(unsafe_code, reason = "values are reached by pointers that epochs keep valid")]

pub(crate) mod raw;

use crate::Level;
use crate::epoch::{Guard, pin};
use core::fmt;
use raw::{Node, RawTable};

/// A value that a [`Table`] finds by its hash, which never changes.
pub trait Hashed {
    /// Returns the hash. All its bits should vary: the highest bits choose a shard, the lowest a
    /// bucket.
    fn hash(&self) -> u32;
}

/// A hash table. A [`Guard`] is required for lookups; removed values are dropped some time later.
pub struct Table<T: Hashed + Send + Sync + 'static> {
    raw: RawTable<T>,
}

/// A shard of a table, locked for changes.
pub struct TableShard<'a, T: Hashed + Send + Sync + 'static> {
    locked: raw::Locked<'a, T>,
}

impl<T: Hashed + Send + Sync + 'static> Table<T> {
    /// Makes an empty table. `shards`, a power of two, is the number of threads that can change it
    /// at once.
    pub fn new(level: Level, shards: usize) -> Self {
        Table { raw: RawTable::new(level, shards, if cfg!(loom) { 1 } else { 16 }) }
    }

    /// Returns the first value with this hash for which `is` returns true.
    #[inline(always)]
    pub fn find<'g>(
        &'g self,
        pinned: &'g Guard,
        hash: u32,
        is: impl FnMut(&T) -> bool,
    ) -> Option<&'g T> {
        self.raw.find(pinned, hash, is).map(|node| &node.get().value)
    }

    /// As [`Table::find`], but never waits: for callers that hold a lock which other threads take
    /// under the table's lock. The outer `None` means that the answer is unknown at the moment.
    pub fn try_find<'g>(
        &'g self,
        pinned: &'g Guard,
        hash: u32,
        is: impl FnMut(&T) -> bool,
    ) -> Option<Option<&'g T>> {
        self.raw.try_find(pinned, hash, is).map(|found| found.map(|node| &node.get().value))
    }

    /// Locks the shard of this hash.
    pub fn lock(&self, hash: u32) -> TableShard<'_, T> {
        TableShard { locked: self.raw.lock(hash) }
    }

    /// Locks the shard of this hash unless another thread has it.
    pub fn try_lock(&self, hash: u32) -> Option<TableShard<'_, T>> {
        self.raw.try_lock(hash).map(|locked| TableShard { locked })
    }

    /// Returns the number of shards.
    pub fn shard_count(&self) -> usize {
        self.raw.shard_count()
    }

    /// Returns the shard of this hash.
    #[inline]
    pub fn shard_of(&self, hash: u32) -> usize {
        self.raw.shard_of(hash)
    }

    /// Calls `f` for each value of a shard, under the shard's lock. A walk over all shards, one by
    /// one, visits every value that is in the table from the beginning of the walk to its end
    /// exactly once, whatever changes meanwhile.
    pub fn each_in_shard(&self, shard: usize, mut f: impl FnMut(&T)) {
        self.raw.lock_shard(shard).each(|node| f(&node.get().value));
    }

    /// Returns the number of values. Concurrent insertions and removals may or may not be counted.
    pub fn len(&self) -> usize {
        (0..self.raw.shard_count()).map(|shard| self.raw.lock_shard(shard).totals.len).sum()
    }

    /// Returns whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Hashed + Send + Sync + 'static> TableShard<'_, T> {
    /// Returns the first value with this hash for which `is` returns true.
    pub fn find(&self, hash: u32, is: impl FnMut(&T) -> bool) -> Option<&T> {
        self.locked.find(hash, is).map(|node| &node.get().value)
    }

    /// Adds a value. Its hash must belong to this shard.
    pub fn insert(&mut self, value: T) -> &T {
        let node = self.locked.insert(Node::new(value));
        // SAFETY: the node is on a chain, the shard is locked, and nodes are removed only through
        // `&mut self`.
        unsafe { &node.as_ref().value }
    }

    /// Removes the first value with this hash for which `is` returns true. Returns whether there
    /// was one.
    pub fn remove(&mut self, hash: u32, is: impl FnMut(&T) -> bool) -> bool {
        let Some(node) = self.locked.unlink(hash, is) else { return false };
        // SAFETY: the node came from a box and is on no chain any more.
        unsafe { pin().retire(node.as_ptr()) };
        true
    }
}

impl<T: Hashed + Send + Sync + 'static> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("len", &self.len()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::atomic::{AtomicBool, AtomicU64, Ordering};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    struct Item {
        key: u32,
        value: u64,
    }

    /// A hash with few bits, for long chains and few shards.
    fn weak(key: u32) -> u32 {
        (key % 7) << 29 | (key % 5)
    }

    impl Hashed for Item {
        fn hash(&self) -> u32 {
            weak(self.key)
        }
    }

    fn find(table: &Table<Item>, key: u32) -> Option<u64> {
        table.find(&pin(), weak(key), |i| i.key == key).map(|i| i.value)
    }

    proptest! {
        #[test]
        fn is_a_map(steps in prop::collection::vec((0..40u32, any::<bool>()), 0..300)) {
            let (table, mut model) = (Table::<Item>::new(Level::Leaf, 4), BTreeMap::new());
            for (n, (key, add)) in steps.into_iter().enumerate() {
                let mut shard = table.lock(weak(key));
                let had = shard.remove(weak(key), |i| i.key == key);
                prop_assert_eq!(had, model.remove(&key).is_some());
                if add {
                    shard.insert(Item { key, value: n as u64 });
                    model.insert(key, n as u64);
                }
            }
            prop_assert_eq!(table.len(), model.len());
            for key in 0..40 {
                prop_assert_eq!(find(&table, key), model.get(&key).copied());
            }
            let mut all = Vec::new();
            (0..table.shard_count()).for_each(|s| table.each_in_shard(s, |i| all.push(i.key)));
            all.sort_unstable();
            prop_assert_eq!(all, model.into_keys().collect::<Vec<_>>());
        }
    }

    struct Counted(u32, u64);
    static ALIVE: AtomicU64 = AtomicU64::new(0);

    impl Hashed for Counted {
        fn hash(&self) -> u32 {
            self.0.wrapping_mul(0x9e37_79b1)
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1 = u64::MAX;
            ALIVE.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn counted(key: u32) -> Counted {
        ALIVE.fetch_add(1, Ordering::Relaxed);
        Counted(key, !u64::from(key))
    }

    /// The least number of lookup rounds, and the number of rounds of changes. Miri takes a minute
    /// for one round.
    const LOOKS: usize = if cfg!(miri) { 1 } else { 10 };
    const ROUNDS: usize = if cfg!(miri) { 2 } else { 20 };

    /// Keys below 100 stay and are always found. The others are added and removed while the table
    /// grows.
    #[test]
    fn stable_keys_are_found_while_others_change() {
        let (table, stop) = (Table::new(Level::Leaf, 2), AtomicBool::new(false));
        let hash = |key: u32| key.wrapping_mul(0x9e37_79b1);
        (0..100).for_each(|key| assert!(table.lock(hash(key)).insert(counted(key)).1 != 0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut rounds = 0;
                    while !stop.load(Ordering::Relaxed) || rounds < LOOKS {
                        let pinned = pin();
                        for key in 0..300 {
                            let found = table.find(&pinned, hash(key), |c| c.0 == key);
                            assert!(found.is_some() || key >= 100, "{key} is there");
                            assert!(
                                found.is_none_or(|c| c.1 == !u64::from(key)),
                                "{key} was given back"
                            );
                        }
                        rounds += 1;
                    }
                });
            }
            for _ in 0..ROUNDS {
                (100..100 + crate::times(2900))
                    .for_each(|key| assert!(table.lock(hash(key)).insert(counted(key)).1 != 0));
                (100..100 + crate::times(2900)).for_each(|key| {
                    assert!(table.lock(hash(key)).remove(hash(key), |c| c.0 == key))
                });
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(table.len(), 100);
        drop(table);
        while ALIVE.load(Ordering::Relaxed) > 0 {
            // Retired values are dropped as epochs advance, which pinning causes. The values
            // retired by this thread are dropped only after a flush.
            crossbeam_epoch::pin().flush();
            std::thread::yield_now();
        }
    }
}
