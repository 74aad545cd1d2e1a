//! Shared values by number. A lookup returns a reference without a lock; a writer removes values
//! without references.
//!
//! # Invariants
//! - The result of a lookup is the table's entry for the number at one moment of the lookup.
//! - A value that was removed because it had no references is not returned by any later lookup.
//!
//! # Locking
//! Lookups take no lock, as [`Table::find`]. Only one thread at a time may change the entry of a
//! number: the caller must ensure that by a lock, under which the table's own lock is taken.
//!
//! # Memory order
//! A writer marks the entry, then counts references. A reader makes its reference, then reads the
//! mark. Both have a fence between the two steps, and the fences are in one total order:
//!
//! - The writer's fence is first. Then the reader sees the mark, and treats the value as absent.
//! - The reader's fence is first. Then the writer counts the reader's reference, and the value
//!   stays.

use crate::atomic::{AtomicBool, Ordering, fence};
use crate::epoch::pin;
use crate::table::{Hashed, Table};
use crate::{Arc, Level};
use core::fmt;

/// References to values by number.
pub struct ArcTable<T: Send + Sync + 'static> {
    table: Table<Entry<T>>,
}

struct Entry<T> {
    key: u64,
    /// Its removal is being decided, or has happened.
    leaving: AtomicBool,
    value: Arc<T>,
}

impl<T> Hashed for Entry<T> {
    #[inline]
    fn hash(&self) -> u32 {
        hash(self.key)
    }
}

/// Hashes a number. The high half of the product depends on all bits of the number.
#[inline]
fn hash(key: u64) -> u32 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

impl<T: Send + Sync + 'static> ArcTable<T> {
    /// Makes an empty table. `shards`, a power of two, is the number of threads that can change it
    /// at once. The table's own locks are of `level`.
    pub fn new(level: Level, shards: usize) -> Self {
        ArcTable { table: Table::new(level, shards) }
    }

    /// Returns the number of shards.
    pub fn shard_count(&self) -> usize {
        self.table.shard_count()
    }

    /// Returns the shard of a number, for callers with a lock for each shard.
    #[inline]
    pub fn shard_of(&self, key: u64) -> usize {
        self.table.shard_of(hash(key))
    }

    /// Returns the value of a number. Returns `None` if there is none, or if its removal is being
    /// decided: the caller can settle that under the lock that guards changes.
    #[inline]
    pub fn get(&self, key: u64) -> Option<Arc<T>> {
        let pinned = pin();
        let entry = self.table.find(&pinned, hash(key), |entry| entry.key == key)?;
        let value = Arc::clone(&entry.value);
        // See *Memory order* above.
        fence(Ordering::SeqCst);
        // Relaxed: the value was reached through the chain's pointers, and a reader that sees the
        // mark goes by the lock.
        if entry.leaving.load(Ordering::Relaxed) { None } else { Some(value) }
    }

    /// Adds a value. The number must have none.
    pub fn insert(&self, key: u64, value: Arc<T>) {
        let hash = hash(key);
        self.table.lock(hash).insert(Entry { key, leaving: AtomicBool::new(false), value });
    }

    /// Removes the value of a number even if it has references.
    pub fn remove(&self, key: u64) -> bool {
        self.remove_if(key, |_| true, |_| true)
    }

    /// Removes the value of a number if only the table and `others` references known to the caller
    /// are left, and if `may_go` then returns true. `may_go` sees all changes that former holders
    /// of references made. Returns true if the value was removed.
    pub fn remove_unused(&self, key: u64, others: usize, may_go: impl FnOnce(&T) -> bool) -> bool {
        let unused = |value: &Arc<T>| Arc::strong_count(value) <= 1 + others;
        // A value in use is not marked, so that its lookups are not sent to the lock.
        self.remove_if(key, unused, |value| {
            let unused = unused(value);
            // Pairs with the release of dropped references, which the count has read.
            fence(Ordering::Acquire);
            unused && may_go(value)
        })
    }

    fn remove_if(
        &self,
        key: u64,
        may: impl FnOnce(&Arc<T>) -> bool,
        goes: impl FnOnce(&Arc<T>) -> bool,
    ) -> bool {
        let hash = hash(key);
        let is = |entry: &Entry<T>| entry.key == key;
        let mut shard = self.table.lock(hash);
        let Some(entry) = shard.find(hash, is).filter(|entry| may(&entry.value)) else {
            return false;
        };
        entry.leaving.store(true, Ordering::Relaxed);
        // See *Memory order* above.
        fence(Ordering::SeqCst);
        if !goes(&entry.value) {
            entry.leaving.store(false, Ordering::Relaxed);
            return false;
        }
        shard.remove(hash, is)
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for ArcTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArcTable").field("table", &self.table).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Mutex;
    use crate::atomic::AtomicU64;

    #[test]
    fn referenced_values_are_not_removed_as_unused() {
        let table = ArcTable::new(Level::Leaf, 4);
        assert!(table.get(7).is_none() && !table.remove(7) && !table.remove_unused(7, 0, |_| true));
        table.insert(7, Arc::new(70));
        table.insert(1 << 40 | 7, Arc::new(71));
        let held = table.get(7).unwrap();
        assert!(!table.remove_unused(7, 0, |_| true), "it is in use");
        assert_eq!((*held, table.get(7).as_deref()), (70, Some(&70)));
        assert!(table.remove_unused(7, 1, |_| true), "the caller knows the other reference");
        assert!(!table.remove_unused(1 << 40 | 7, 0, |value| *value != 71), "the caller wants it");
        assert_eq!(table.get(1 << 40 | 7).as_deref(), Some(&71));
        assert!(
            table.get(7).is_none() && table.remove(1 << 40 | 7) && table.get(1 << 40 | 7).is_none()
        );
    }

    /// Threads increment values that another thread removes whenever they have no references, and
    /// saves. No increment is lost.
    #[test]
    fn increments_of_removed_values_are_not_lost() {
        const KEYS: u64 = 3;
        let (table, home) = (
            ArcTable::<AtomicU64>::new(Level::Leaf, 2),
            Mutex::new(Level::Alloc, [0u64; KEYS as usize]),
        );
        let rounds = crate::times(20_000);
        let count = |key: u64| {
            let find = || {
                table.get(key).unwrap_or_else(|| {
                    let home = home.lock();
                    table.get(key).unwrap_or_else(|| {
                        let value = Arc::new(AtomicU64::new(home[key as usize]));
                        table.insert(key, Arc::clone(&value));
                        value
                    })
                })
            };
            find().fetch_add(1, Ordering::Relaxed);
        };
        let take_out = |key: u64| {
            let mut home = home.lock();
            let _gone = table.remove_unused(key, 0, |value| {
                home[key as usize] = value.load(Ordering::Relaxed);
                true
            });
        };
        std::thread::scope(|scope| {
            (0..2).for_each(|_| {
                drop(scope.spawn(|| (0..rounds).for_each(|n| count(u64::from(n) % KEYS))))
            });
            scope.spawn(|| (0..rounds).for_each(|n| take_out(u64::from(n) % KEYS)));
        });
        (0..KEYS).for_each(take_out);
        assert_eq!(home.lock().iter().sum::<u64>(), 2 * u64::from(rounds));
    }
}
