//! A gate that many threads pass at once with credits, and that can be shut, without a cache line
//! that all of them write.
//!
//! # Structure
//! Each shard is one word: the number of threads inside, whether the gate is shut or closed, and a
//! *lot*, which holds credits that the shard has drawn and no thread uses. Entering and leaving
//! change only that word. A lot that is too small is filled from the shared word, which holds the
//! credits drawn in total, and the bound.
//!
//! For example, with a bound of 8192 and 4 shards, the first thread that enters shard 1 with 10
//! credits draws 266: 10 for itself and 256 for the lot. The next threads of shard 1 pay from the
//! lot.
//!
//! # Invariants
//! 1. While the gate is shut and [`Gate::is_drained`] has returned true, no thread is inside, and
//!    none gets in.
//! 2. `drawn` is at most `bound` at every instant: both are in one word, and only a
//!    compare-and-swap raises `drawn`.
//! 3. `drawn` is the sum of the lots, of the credits still held by threads inside, and of the
//!    credits used. Credits leave a lot only together with an entry, or by a thread inside. No
//!    credits are in transit when no thread is inside.
//!
//! # Memory order
//! Shutting sets a bit in each shard's word, so an entry either precedes it in the modification
//! order of that word, and is counted, or fails. A thread that enters after [`Gate::open`]
//! (Release) sees by its Acquire all that happened before the opening. A thread that sees the gate
//! drained (Acquire) sees all that threads inside did before leaving (Release): all changes of a
//! word are read-modify-writes, so each continues the release sequences before it. The shared word
//! publishes no other data.

use crate::atomic::{AtomicU64, Ordering};
use crate::{CachePadded, shard_count};

/// One more thread inside.
const INSIDE: u64 = 1 << 32;
/// The bits that count the threads inside.
const ALL_INSIDE: u64 = SHUT - INSIDE;
/// Bit: no entry until the gate opens.
const SHUT: u64 = 1 << 62;
/// Bit: no entry any more.
const CLOSED: u64 = 1 << 63;

/// The most credits drawn for a lot at a time, beyond the credits requested.
const MAX_DRAWN: u32 = 256;

/// The reason why an entry is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The gate is shut.
    Stopped,
    /// The credits do not fit below the bound.
    NoRoom,
    /// The gate is closed for good.
    Closed,
}

/// A gate with credits. See the module's documentation.
#[derive(Debug)]
pub struct Gate {
    shards: Box<[CachePadded<AtomicU64>]>,
    /// `drawn` in the lower half, `bound` in the upper.
    shared: CachePadded<AtomicU64>,
}

fn lot(word: u64) -> u32 {
    word as u32
}

fn pack(drawn: u32, bound: u32) -> u64 {
    u64::from(bound) << 32 | u64::from(drawn)
}

fn unpack(shared: u64) -> (u32, u32) {
    (shared as u32, (shared >> 32) as u32)
}

impl Gate {
    /// Makes an open gate with a shard for each processor.
    pub fn new(bound: u32) -> Gate {
        Gate::with_shards(bound, shard_count())
    }

    /// Makes an open gate with `shards` shards, at least one.
    pub fn with_shards(bound: u32, shards: usize) -> Gate {
        let shards = (0..shards.max(1)).map(|_| CachePadded::new(AtomicU64::new(0))).collect();
        Gate { shards, shared: CachePadded::new(AtomicU64::new(pack(0, bound))) }
    }

    #[inline]
    fn shard(&self, shard: usize) -> &AtomicU64 {
        &self.shards[shard % self.shards.len()]
    }

    /// Enters through a shard with `credits`.
    ///
    /// # Errors
    /// The reason of the refusal. After [`Refused::NoRoom`] the caller is inside without credits,
    /// and must leave.
    #[inline]
    pub fn enter(&self, shard: usize, credits: u32) -> Result<(), Refused> {
        let word = self.shard(shard);
        let mut now = word.load(Ordering::Relaxed);
        loop {
            if now & (SHUT | CLOSED) != 0 {
                return Err(if now & CLOSED != 0 { Refused::Closed } else { Refused::Stopped });
            }
            let paid = lot(now) >= credits;
            let then = now + INSIDE - if paid { u64::from(credits) } else { 0 };
            match word.compare_exchange_weak(now, then, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) if paid => return Ok(()),
                Ok(_) => break,
                Err(changed) => now = changed,
            }
        }
        // This thread is inside without credits, so `draw` cannot meet a reset.
        if self.draw(shard, credits) { Ok(()) } else { Err(Refused::NoRoom) }
    }

    /// Leaves through the shard of the entry and returns the unused credits. True if a shard of a
    /// shut gate became empty: the caller must then wake the thread that waits for
    /// [`Gate::is_drained`].
    #[inline]
    #[must_use]
    pub fn leave(&self, shard: usize, unused: u32) -> bool {
        // The lot does not overflow: it is a part of the drawn credits.
        let change = INSIDE - u64::from(unused);
        let then = self.shard(shard).fetch_sub(change, Ordering::Release).wrapping_sub(change);
        then & ALL_INSIDE == 0 && then & SHUT != 0
    }

    /// Draws more credits for a thread inside that entered through `shard`. Returns false if they
    /// do not fit.
    #[inline]
    pub fn reserve(&self, shard: usize, credits: u32) -> bool {
        let some = |now: u64| (lot(now) >= credits).then(|| now - u64::from(credits));
        self.shard(shard).fetch_update(Ordering::Relaxed, Ordering::Relaxed, some).is_ok()
            || self.draw(shard, credits)
    }

    /// Takes credits out of the bound for a thread inside, and some more for the shard's lot. Near
    /// the bound, takes back the credits of all lots first.
    #[cold]
    fn draw(&self, shard: usize, credits: u32) -> bool {
        let more = self.lot_size();
        if let Some(sum) = credits.checked_add(more)
            && self.try_draw(sum)
        {
            self.shard(shard).fetch_add(u64::from(more), Ordering::Relaxed);
            return true;
        }
        self.try_draw(credits) || (self.reclaim() && self.try_draw(credits))
    }

    /// Returns the credits drawn for a lot: when filled, all lots together hold at most an eighth
    /// of the bound.
    fn lot_size(&self) -> u32 {
        let (_, bound) = self.drawn_and_bound();
        (bound / 8 / self.shards.len() as u32).min(MAX_DRAWN)
    }

    fn try_draw(&self, credits: u32) -> bool {
        let more = |now: u64| {
            let (drawn, bound) = unpack(now);
            drawn.checked_add(credits).filter(|sum| *sum <= bound).map(|sum| pack(sum, bound))
        };
        self.shared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Empties all lots. Returns true if there were credits. The caller must be inside.
    fn reclaim(&self) -> bool {
        let none = |now: u64| (lot(now) != 0).then_some(now & !u64::from(u32::MAX));
        let empty = |word: &AtomicU64| {
            word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, none).map_or(0, lot)
        };
        let sum: u64 = self.shards.iter().map(|word| u64::from(empty(word))).sum();
        // The lots are a part of the drawn credits, so the lower half does not borrow.
        self.shared.fetch_sub(sum, Ordering::Relaxed);
        sum != 0
    }

    /// Returns the credits drawn and the bound.
    pub fn drawn_and_bound(&self) -> (u32, u32) {
        unpack(self.shared.load(Ordering::Relaxed))
    }

    /// Returns the drawn credits outside of the lots. May miss concurrent changes.
    pub fn reserved(&self) -> u32 {
        let lots: u32 = self.shards.iter().map(|word| lot(word.load(Ordering::Relaxed))).sum();
        self.drawn_and_bound().0.saturating_sub(lots)
    }

    /// Refuses all entries. [`Gate::is_drained`] tells when all threads have left.
    pub fn shut(&self) {
        for word in &self.shards {
            word.fetch_or(SHUT, Ordering::Acquire);
        }
    }

    /// Returns whether no thread is inside. The gate must be shut.
    pub fn is_drained(&self) -> bool {
        self.shards.iter().all(|word| word.load(Ordering::Acquire) & ALL_INSIDE == 0)
    }

    /// Allows entries again.
    pub fn open(&self) {
        for word in &self.shards {
            word.fetch_and(!SHUT, Ordering::Release);
        }
    }

    /// Resets the drawn credits to 0 and sets another bound. The caller must have shut the gate and
    /// seen it drained.
    pub fn reset(&self, bound: u32) {
        for word in &self.shards {
            word.fetch_and(!u64::from(u32::MAX), Ordering::Relaxed);
        }
        self.shared.store(pack(0, bound), Ordering::Relaxed);
    }

    /// Raises the bound. Returns false if it was at least as high.
    pub fn raise(&self, bound: u32) -> bool {
        let higher = |now: u64| {
            let (drawn, old) = unpack(now);
            (old < bound).then(|| pack(drawn, bound))
        };
        self.shared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, higher).is_ok()
    }

    /// Refuses all entries for good. Threads inside are not told.
    pub fn close(&self) {
        for word in &self.shards {
            word.fetch_or(CLOSED, Ordering::Relaxed);
        }
    }

    /// Returns whether the gate is closed or being closed.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.shard(0).load(Ordering::Relaxed) & CLOSED != 0
    }
}
