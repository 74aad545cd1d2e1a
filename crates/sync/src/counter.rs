//! A counter that many threads change without sharing a cache line.
//!
//! # Invariants
//! The count is the shared part plus the parts of all shards. A change goes to the thread's shard;
//! once a shard holds a batch or more, the batch moves to the shared part. The shared part alone is
//! therefore off by less than a batch for each shard, and by more only for shards that are between
//! such a change and its move: see [`ShardedCounter::approximate`].

use crate::atomic::{AtomicI64, Ordering};
use crate::{CachePadded, Sharded};

/// The absolute value at which a shard's part moves to the shared part.
const BATCH: i64 = 64;

/// A signed counter whose changes are cheap and whose exact value is not.
#[derive(Debug, Default)]
pub struct ShardedCounter {
    shared: CachePadded<AtomicI64>,
    shards: Sharded<AtomicI64>,
}

impl ShardedCounter {
    /// Makes a counter with this value.
    pub fn new(value: i64) -> Self {
        ShardedCounter {
            shared: CachePadded::new(AtomicI64::new(value)),
            shards: Sharded::default(),
        }
    }

    /// Adds `delta`, wrapping on overflow.
    #[inline]
    pub fn add(&self, delta: i64) {
        let shard = self.shards.local();
        let part = shard.fetch_add(delta, Ordering::Relaxed).wrapping_add(delta);
        if part.unsigned_abs() >= BATCH.unsigned_abs() {
            self.spill(shard);
        }
    }

    /// Subtracts `delta`.
    #[inline]
    pub fn sub(&self, delta: i64) {
        self.add(delta.wrapping_neg());
    }

    /// Moves a shard's part to the shared part. The shard is emptied first, so that no part is ever
    /// counted twice: a thread that has read the batch in the shared part (Acquire) sees the shard
    /// empty. A sum taken in between may miss the batch.
    #[cold]
    fn spill(&self, shard: &AtomicI64) {
        let part = shard.swap(0, Ordering::Relaxed);
        self.shared.fetch_add(part, Ordering::Release);
    }

    /// Returns the count from one cache line, off by less than [`ShardedCounter::error_bound`]
    /// while no thread adds.
    #[inline]
    pub fn approximate(&self) -> i64 {
        self.shared.load(Ordering::Relaxed)
    }

    /// Returns the greatest error of [`ShardedCounter::approximate`].
    pub fn error_bound(&self) -> i64 {
        BATCH.saturating_mul(self.shards.len() as i64)
    }

    /// Returns the sum of all parts. It is exact if all changes happened before the call, and
    /// otherwise off by the changes in progress.
    pub fn sum(&self) -> i64 {
        let shared = self.shared.load(Ordering::Acquire);
        self.shards.iter().fold(shared, |sum, part| sum.wrapping_add(part.load(Ordering::Relaxed)))
    }

    /// Returns whether the count is at least `value`: from the approximate count if that is
    /// conclusive, otherwise from the exact one.
    pub fn at_least(&self, value: i64) -> bool {
        let distance = self.approximate().saturating_sub(value);
        if distance.saturating_abs() > self.error_bound() {
            distance > 0
        } else {
            self.sum() >= value
        }
    }

    /// Sets the count. Concurrent changes may be lost.
    pub fn set(&self, value: i64) {
        self.shards.iter().for_each(|part| part.store(0, Ordering::Relaxed));
        self.shared.store(value, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counts_across_threads() {
        let counter = ShardedCounter::new(10);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let counter = &counter;
                scope.spawn(move || {
                    (0..1000).for_each(|n| counter.add(if n % 4 == 0 { -1 } else { thread }))
                });
            }
        });
        assert_eq!(counter.sum(), 10 + 4 * -250 + 750 * (1 + 2 + 3));
        assert!((counter.approximate() - counter.sum()).abs() < counter.error_bound());
    }

    #[test]
    fn compares_near_and_far() {
        let counter = ShardedCounter::new(1_000_000);
        assert!(counter.at_least(5));
        assert!(counter.at_least(1_000_000));
        assert!(!counter.at_least(1_000_001));
        counter.sub(1);
        assert!(!counter.at_least(1_000_000));
        assert!(!counter.at_least(i64::MAX));
        assert!(counter.at_least(i64::MIN));
        counter.set(3);
        assert_eq!(counter.sum(), 3);
    }
}
