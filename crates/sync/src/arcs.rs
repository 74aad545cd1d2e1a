//! Shared values by number: who looks one up gets a reference of his own, without a lock; a writer
//! takes out those that nobody has.
//!
//! # Invariants
//! - What a lookup gives is what the table has for the number at one moment of the lookup.
//! - What was taken out because nobody had it is given to nobody afterwards.
//!
//! # Locking
//! Lookups take no lock, but as [`Table::find`] does. Changes of one number are made by one thread
//! at a time: the caller's lock sees to that, under which the table's own is taken.
//!
//! # Memory order
//! A writer marks the entry, then counts references; a reader makes his reference, then looks at
//! the mark. Between the two steps either side has a fence, and these are in one order: if the
//! writer's is first, the reader sees the mark, and takes the value for absent; if the reader's is
//! first, the writer counts his reference, and the value stays.

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
    /// Somebody is taking it out, or has.
    leaving: AtomicBool,
    value: Arc<T>,
}

impl<T> Hashed for Entry<T> {
    #[inline]
    fn hash(&self) -> u32 {
        hash(self.key)
    }
}

/// The high half of a product has all bits of the number in it.
#[inline]
fn hash(key: u64) -> u32 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

impl<T: Send + Sync + 'static> ArcTable<T> {
    /// An empty table; `shards`, a power of two, is how many threads may change it at once. Its own
    /// locks are of `level`.
    pub fn new(level: Level, shards: usize) -> Self {
        ArcTable { table: Table::new(level, shards) }
    }

    /// Number of shards.
    pub fn shard_count(&self) -> usize {
        self.table.shard_count()
    }

    /// The shard that a number is in, for callers who have a lock for each.
    #[inline]
    pub fn shard_of(&self, key: u64) -> usize {
        self.table.shard_of(hash(key))
    }

    /// The value of this number. `None` if there is none, or somebody is taking it out, or thinks
    /// about it: under the lock of those who change it that is settled.
    #[inline]
    pub fn get(&self, key: u64) -> Option<Arc<T>> {
        let pinned = pin();
        let entry = self.table.find(&pinned, hash(key), |entry| entry.key == key)?;
        let value = Arc::clone(&entry.value);
        // See *Memory order* above.
        fence(Ordering::SeqCst);
        // Relaxed: the value came by the chain's pointers, and who sees the mark goes by the lock.
        if entry.leaving.load(Ordering::Relaxed) { None } else { Some(value) }
    }

    /// Adds a value, whose number has none.
    pub fn insert(&self, key: u64, value: Arc<T>) {
        let hash = hash(key);
        self.table.lock(hash).insert(Entry { key, leaving: AtomicBool::new(false), value });
    }

    /// Takes a number's value out, whoever has it.
    pub fn remove(&self, key: u64) -> bool {
        self.remove_if(key, |_| true, |_| true)
    }

    /// Takes a number's value out if nobody has a reference but the table and `others`, whom the
    /// caller knows, and then `may_go` says so, which sees all that was done by those who had one.
    /// True if it went.
    pub fn remove_unused(&self, key: u64, others: usize, may_go: impl FnOnce(&T) -> bool) -> bool {
        let unused = |value: &Arc<T>| Arc::strong_count(value) <= 1 + others;
        // What is in use anyway is not marked, so that those who look it up are not sent to the
        // lock.
        self.remove_if(key, unused, |value| {
            let unused = unused(value);
            // With the release of references that were dropped, which the count has read.
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
    fn what_somebody_has_stays() {
        let table = ArcTable::new(Level::Leaf, 4);
        assert!(table.get(7).is_none() && !table.remove(7) && !table.remove_unused(7, 0, |_| true));
        table.insert(7, Arc::new(70));
        table.insert(1 << 40 | 7, Arc::new(71));
        let held = table.get(7).unwrap();
        assert!(!table.remove_unused(7, 0, |_| true), "it is in use");
        assert_eq!((*held, table.get(7).as_deref()), (70, Some(&70)));
        assert!(table.remove_unused(7, 1, |_| true), "by somebody whom the caller knows");
        assert!(!table.remove_unused(1 << 40 | 7, 0, |value| *value != 71), "the caller wants it");
        assert_eq!(table.get(1 << 40 | 7).as_deref(), Some(&71));
        assert!(
            table.get(7).is_none() && table.remove(1 << 40 | 7) && table.get(1 << 40 | 7).is_none()
        );
    }

    /// Threads count up in values that others take out whenever nobody has them, and put back: no
    /// count is lost.
    #[test]
    fn nobody_counts_in_a_value_that_is_gone() {
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
