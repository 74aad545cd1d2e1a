//! A number of free units that many threads draw from and that is never overdrawn.
//!
//! For example, with 1,000,000 free units a thread that takes 3 moves 259 out of the pool: 3 for
//! itself and 256 to its shard's stash, from which the next takes are served.
//!
//! # Invariants
//! - The amount is the pool plus all stashes. It is never below zero, unless [`Budget::correct`]
//!   makes it so.
//! - A stash is filled from the pool only while the pool has plenty. Stashes are emptied into the
//!   pool only under the mutex.
//! - Taking fails only if the amount was too small at some moment of the call: the last attempt is
//!   made under the mutex, with nothing in transit from the pool to a stash.

use extant_sync::atomic::{AtomicI64, AtomicU32, Ordering::SeqCst};
use extant_sync::{CachePadded, Level, Mutex, Sharded};

/// Amount with which a stash is filled.
const BATCH: i64 = 256;

/// A budget of free units. See the module's documentation.
#[derive(Debug)]
pub struct Budget {
    pool: CachePadded<AtomicI64>,
    stashes: Sharded<AtomicI64>,
    /// Number of threads that are moving an amount from the pool to a stash.
    moving: CachePadded<AtomicU32>,
    scarce: Mutex<()>,
}

/// Subtracts `n` if at least `n + keep` is left before.
fn try_sub(from: &AtomicI64, n: i64, keep: i64) -> bool {
    let enough = |have: i64| (have.saturating_sub(n) >= keep).then(|| have - n);
    from.fetch_update(SeqCst, SeqCst, enough).is_ok()
}

impl Budget {
    /// Makes a budget of `amount`.
    pub fn new(amount: u64) -> Budget {
        let amount = i64::try_from(amount).unwrap_or(i64::MAX);
        Budget {
            pool: CachePadded::new(AtomicI64::new(amount)),
            stashes: Sharded::default(),
            moving: CachePadded::new(AtomicU32::new(0)),
            scarce: Mutex::new(Level::Leaf, ()),
        }
    }

    /// Returns the amount below which the pool is low: stashes are then neither filled nor used.
    fn low(&self, keep: i64) -> i64 {
        keep.saturating_add(BATCH.saturating_mul(4).saturating_mul(self.stashes.len() as i64))
    }

    /// Takes `n` if at least `keep` is left afterwards. Returns whether it did.
    pub fn take(&self, n: u64, keep: u64) -> bool {
        let (Ok(n), Ok(keep)) = (i64::try_from(n), i64::try_from(keep)) else { return false };
        if self.pool.load(SeqCst) > self.low(keep).saturating_add(n) {
            let stash = self.stashes.local();
            if n <= BATCH && (try_sub(stash, n, 0) || self.refill(stash, n, keep)) {
                return true;
            }
            if try_sub(&self.pool, n, keep) {
                return true;
            }
        }
        self.take_scarce(n, keep)
    }

    /// Moves `n` and a batch out of the pool. The batch goes to the stash.
    fn refill(&self, stash: &AtomicI64, n: i64, keep: i64) -> bool {
        self.moving.fetch_add(1, SeqCst);
        let filled = try_sub(&self.pool, n + BATCH, self.low(keep));
        if filled {
            stash.fetch_add(BATCH, SeqCst);
        }
        self.moving.fetch_sub(1, SeqCst);
        filled
    }

    #[cold]
    fn take_scarce(&self, n: i64, keep: i64) -> bool {
        self.settled(|| try_sub(&self.pool, n, keep).then_some(())).is_some()
    }

    /// Moves all stashes to the pool and calls `attempt`, until it succeeds or failed with nothing
    /// in transit.
    fn settled<T>(&self, attempt: impl Fn() -> Option<T>) -> Option<T> {
        let _scarce = self.scarce.lock();
        loop {
            // Amounts in transit before the stashes were emptied may be missing in the pool.
            let settled = self.moving.load(SeqCst) == 0;
            self.gather();
            let got = attempt();
            if got.is_some() || settled {
                return got;
            }
            extant_sync::thread::yield_now();
        }
    }

    /// Moves all stashes to the pool.
    fn gather(&self) {
        let sum: i64 = self.stashes.iter().map(|stash| stash.swap(0, SeqCst)).sum();
        self.pool.fetch_add(sum, SeqCst);
    }

    /// Takes as much of `want` as there is above `keep`, but at least `min`. Returns 0 if less than
    /// `min` is available.
    pub fn take_some(&self, want: u64, min: u64, keep: u64) -> u64 {
        if self.take(want, keep) {
            return want;
        }
        let keep = i64::try_from(keep).unwrap_or(i64::MAX);
        let part = self.settled(|| {
            let have = self.pool.load(SeqCst).saturating_sub(keep);
            let mut part = u64::try_from(have).unwrap_or(0).min(want);
            while part >= min.max(1) {
                if try_sub(&self.pool, part as i64, keep) {
                    return Some(part);
                }
                part /= 2;
            }
            None
        });
        part.unwrap_or(0)
    }

    /// Returns `n` to the budget.
    pub fn give(&self, n: u64) {
        self.pool.fetch_add(i64::try_from(n).unwrap_or(i64::MAX), SeqCst);
    }

    /// Lowers the amount by `n` even below zero, for space that turned out to be unusable.
    pub fn correct(&self, n: u64) {
        self.pool.fetch_sub(i64::try_from(n).unwrap_or(i64::MAX), SeqCst);
    }

    /// Returns the amount; exact without concurrent changes.
    pub fn amount(&self) -> u64 {
        let stashes: i64 = self.stashes.iter().map(|stash| stash.load(SeqCst)).sum();
        u64::try_from(self.pool.load(SeqCst).saturating_add(stashes)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_sync::atomic::AtomicU64;

    #[test]
    fn keeps_the_requested_reserve() {
        let budget = Budget::new(100);
        assert!(!budget.take(51, 50));
        assert!(budget.take(50, 50));
        assert!(!budget.take(1, 50));
        assert!(budget.take(50, 0));
        assert!(!budget.take(1, 0));
        assert_eq!(budget.take_some(5, 1, 0), 0);
        budget.give(7);
        assert_eq!(budget.take_some(10, 8, 0), 0);
        assert_eq!(budget.take_some(10, 3, 2), 5);
        assert_eq!(budget.amount(), 2);
        budget.correct(9);
        assert_eq!(budget.amount(), 0);
    }

    #[test]
    fn a_part_is_taken_of_an_amount_in_transit() {
        let budget = Budget::new(0);
        // Another thread has moved the amount out of the pool, and not yet into its stash.
        budget.moving.store(1, SeqCst);
        std::thread::scope(|scope| {
            let part = scope.spawn(|| budget.take_some(9, 2, 0));
            std::thread::sleep(std::time::Duration::from_millis(20));
            budget.stashes.local().store(7, SeqCst);
            budget.moving.store(0, SeqCst);
            assert_eq!(part.join().unwrap(), 7);
        });
    }

    #[test]
    fn threads_take_exactly_the_amount() {
        let (budget, taken) = (Budget::new(50_000), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 1..=4u64 {
                let (budget, taken) = (&budget, &taken);
                scope.spawn(move || {
                    while budget.take(thread, 0) {
                        taken.fetch_add(thread, SeqCst);
                        if thread == 3 {
                            budget.give(1);
                            taken.fetch_sub(1, SeqCst);
                        }
                    }
                });
            }
        });
        while budget.take(1, 0) {
            taken.fetch_add(1, SeqCst);
        }
        assert_eq!(taken.load(SeqCst), 50_000);
        assert_eq!(budget.amount(), 0);
    }
}
