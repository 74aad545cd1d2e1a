//! Sharded values: about one copy of a value for each processor.
//!
//! A thread is assigned a shard at its first use and keeps it. Shards are assigned round-robin, so
//! as many threads as there are processors share none.

use crate::{CachePadded, LazyLock};
use core::fmt;
// A static, which cannot be a type of the model checker: models assign shards in the same way.
use core::sync::atomic::{AtomicUsize, Ordering};
use std::cell::Cell;

/// The greatest number of shards, for any number of processors.
const MAX_SHARDS: usize = 128;

static SHARDS: LazyLock<usize> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    processors.clamp(1, MAX_SHARDS).next_power_of_two()
});

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Returns the number of shards: a power of two, at least the number of processors (up to 128).
#[inline]
pub fn shard_count() -> usize {
    *SHARDS
}

/// Returns this thread's shard, less than [`shard_count`].
#[inline]
pub fn shard_index() -> usize {
    let mine = MINE.try_with(Cell::get).unwrap_or(0);
    if mine != usize::MAX { mine } else { assign_shard() }
}

#[cold]
fn assign_shard() -> usize {
    let index = NEXT.fetch_add(1, Ordering::Relaxed) & (shard_count() - 1);
    let _ = MINE.try_with(|mine| mine.set(index));
    index
}

/// One value for each shard.
pub struct Sharded<T> {
    shards: Box<[CachePadded<T>]>,
}

impl<T> Sharded<T> {
    /// Makes each shard's value from its index.
    pub fn new(make: impl FnMut(usize) -> T) -> Self {
        let mut make = make;
        Sharded { shards: (0..shard_count()).map(|index| CachePadded::new(make(index))).collect() }
    }

    /// Returns the value of this thread's shard. Other threads may share it.
    #[inline]
    pub fn local(&self) -> &T {
        self.at(shard_index())
    }

    /// Returns the value of the shard `index` modulo the number of shards.
    #[inline]
    pub fn at(&self, index: usize) -> &T {
        &self.shards[index & (self.shards.len() - 1)]
    }

    /// Returns the values of all shards in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.shards.iter().map(|shard| &shard.0)
    }
}

impl<T: Default> Default for Sharded<T> {
    fn default() -> Self {
        Sharded::new(|_| T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for Sharded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_shard() {
        assert!(shard_count().is_power_of_two());
        assert!(shard_index() < shard_count());
        assert_eq!(shard_index(), shard_index());
        let sharded: Sharded<AtomicUsize> = Sharded::default();
        sharded.local().fetch_add(1, Ordering::Relaxed);
        assert_eq!(sharded.at(shard_index()).load(Ordering::Relaxed), 1);
        assert_eq!(sharded.iter().count(), shard_count());
        assert!(std::ptr::eq(sharded.at(shard_count()), sharded.at(0)));
    }
}
