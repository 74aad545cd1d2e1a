//! A gate that many threads pass with credits at once, and that can be shut, without a line that
//! all of them write.
//!
//! # Structure
//! Each shard is one word: how many are inside, whether the gate is shut or closed, and a *lot*:
//! credits that the shard has drawn and nobody uses. Entering and leaving change that word only. A
//! lot that is too small is filled from the shared word, which holds what was drawn in all, and the
//! bound.
//!
//! # Invariants
//! 1. While the gate is shut and [`Gate::is_drained`] has said so, nobody is inside, and nobody
//!    comes in.
//! 2. `drawn` is at most `bound` at every instant: both are in one word, and only a
//!    compare-and-swap raises it.
//! 3. `drawn` is the sum of the lots, of what those inside still have, and of what was used.
//!    Credits leave a lot only together with an entry, or by who is inside; so none are on their
//!    way when nobody is.
//!
//! # Memory order
//! Shutting sets a bit in each shard's word, so that an entrance either comes before it in the
//! order of that word's changes, and is counted, or fails. What happened before [`Gate::open`]
//! (Release) is seen by who enters after it (Acquire), what was done inside before leaving
//! (Release) by who sees the gate drained (Acquire): all changes of a word are read-modify-writes,
//! so each continues the release sequences before it. The shared word carries no other data with
//! it.

use crate::atomic::{AtomicU64, Ordering};
use crate::{CachePadded, shard_count};

/// One more inside.
const INSIDE: u64 = 1 << 32;
/// The part that counts those inside.
const ALL_INSIDE: u64 = SHUT - INSIDE;
/// Nobody comes in for now.
const SHUT: u64 = 1 << 62;
/// Nobody comes in any more.
const CLOSED: u64 = 1 << 63;

/// Most credits that are drawn for a lot at a time, beyond those asked for.
const MOST: u32 = 256;

/// Why somebody does not come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The gate is shut.
    Stopped,
    /// The credits do not fit.
    NoRoom,
    /// The gate is closed for ever.
    Closed,
}

/// See the module's description.
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
    /// An open gate, with a shard for each processor.
    pub fn new(bound: u32) -> Gate {
        Gate::with_shards(bound, shard_count())
    }

    /// An open gate with so many shards, at least one.
    pub fn with_shards(bound: u32, shards: usize) -> Gate {
        let shards = (0..shards.max(1)).map(|_| CachePadded::new(AtomicU64::new(0))).collect();
        Gate { shards, shared: CachePadded::new(AtomicU64::new(pack(0, bound))) }
    }

    #[inline]
    fn shard(&self, shard: usize) -> &AtomicU64 {
        &self.shards[shard % self.shards.len()]
    }

    /// Comes in by a shard, with credits.
    ///
    /// # Errors
    /// Why not. With [`Refused::NoRoom`] the caller is inside, without credits, and has to leave.
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
        // Inside without credits: what follows cannot meet a reset.
        if self.draw(shard, credits) { Ok(()) } else { Err(Refused::NoRoom) }
    }

    /// Leaves by the shard of the entry, with the credits that were not used. True if that made a
    /// shard of a shut gate empty: whoever waits for [`Gate::is_drained`] is to be told.
    #[inline]
    #[must_use]
    pub fn leave(&self, shard: usize, unused: u32) -> bool {
        // The lot does not overflow: it is a part of what was drawn.
        let change = INSIDE - u64::from(unused);
        let then = self.shard(shard).fetch_sub(change, Ordering::Release).wrapping_sub(change);
        then & ALL_INSIDE == 0 && then & SHUT != 0
    }

    /// More credits for somebody inside, who came by `shard`.
    #[inline]
    pub fn reserve(&self, shard: usize, credits: u32) -> bool {
        let some = |now: u64| (lot(now) >= credits).then(|| now - u64::from(credits));
        self.shard(shard).fetch_update(Ordering::Relaxed, Ordering::Relaxed, some).is_ok()
            || self.draw(shard, credits)
    }

    /// Takes credits out of the bound for somebody inside, and some more for the shard's lot; near
    /// the bound, what other lots hold comes back first.
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

    /// What is drawn for a lot: all lots together are an eighth of the bound at most when they are
    /// filled.
    fn lot_size(&self) -> u32 {
        let (_, bound) = self.room();
        (bound / 8 / self.shards.len() as u32).min(MOST)
    }

    fn try_draw(&self, credits: u32) -> bool {
        let more = |now: u64| {
            let (drawn, bound) = unpack(now);
            drawn.checked_add(credits).filter(|sum| *sum <= bound).map(|sum| pack(sum, bound))
        };
        self.shared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Empties all lots. True if there was something. Only for somebody inside.
    fn reclaim(&self) -> bool {
        let none = |now: u64| (lot(now) != 0).then_some(now & !u64::from(u32::MAX));
        let empty = |word: &AtomicU64| {
            word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, none).map_or(0, lot)
        };
        let sum: u64 = self.shards.iter().map(|word| u64::from(empty(word))).sum();
        // The lots are a part of what was drawn, so the lower half does not borrow.
        self.shared.fetch_sub(sum, Ordering::Relaxed);
        sum != 0
    }

    /// The credits drawn, and the most there may be.
    pub fn room(&self) -> (u32, u32) {
        unpack(self.shared.load(Ordering::Relaxed))
    }

    /// The credits drawn that lie in no lot. Changes meanwhile may be missed.
    pub fn reserved(&self) -> u32 {
        let lots: u32 = self.shards.iter().map(|word| lot(word.load(Ordering::Relaxed))).sum();
        self.room().0.saturating_sub(lots)
    }

    /// Lets nobody in. [`Gate::is_drained`] tells when all have left.
    pub fn shut(&self) {
        for word in &self.shards {
            word.fetch_or(SHUT, Ordering::Acquire);
        }
    }

    /// Whether nobody is inside a shut gate.
    pub fn is_drained(&self) -> bool {
        self.shards.iter().all(|word| word.load(Ordering::Acquire) & ALL_INSIDE == 0)
    }

    /// Lets people in again.
    pub fn open(&self) {
        for word in &self.shards {
            word.fetch_and(!SHUT, Ordering::Release);
        }
    }

    /// Nothing is drawn any more, and there is another bound. For who has shut the gate and seen it
    /// drained.
    pub fn reset(&self, bound: u32) {
        for word in &self.shards {
            word.fetch_and(!u64::from(u32::MAX), Ordering::Relaxed);
        }
        self.shared.store(pack(0, bound), Ordering::Relaxed);
    }

    /// Raises the bound; false if it was as high.
    pub fn raise(&self, bound: u32) -> bool {
        let higher = |now: u64| {
            let (drawn, old) = unpack(now);
            (old < bound).then(|| pack(drawn, bound))
        };
        self.shared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, higher).is_ok()
    }

    /// Lets nobody in for ever. Those inside are not told.
    pub fn close(&self) {
        for word in &self.shards {
            word.fetch_or(CLOSED, Ordering::Relaxed);
        }
    }

    /// Whether it was closed, or is being closed.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.shard(0).load(Ordering::Relaxed) & CLOSED != 0
    }
}
