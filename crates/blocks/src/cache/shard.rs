//! One shard of the cache: a table and the clock that chooses what to drop.
//!
//! # Invariants
//! `slots` maps each number to its buffer's place in `ring`; both have the same length.

use super::Buffer;
use super::load::{Load, Outcome};
use extant_sync::Arc;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// The most buffers that one insertion looks at to find room; the next one goes on from there.
const STEPS: usize = 64;

pub(super) struct Shard {
    slots: FxHashMap<u64, usize>,
    ring: Vec<Arc<Buffer>>,
    hand: usize,
    loading: FxHashMap<u64, Arc<Load>>,
    capacity: usize,
}

/// The buffer that was inserted, or else the one in use that kept its place.
pub(super) type Fresh = Result<Arc<Buffer>, Arc<Buffer>>;

/// Buffers taken out of a shard, to be dropped outside its lock.
pub(super) type Dropped = Vec<Arc<Buffer>>;

impl Shard {
    pub(super) fn new(capacity: usize) -> Self {
        Shard { slots: FxHashMap::default(), ring: Vec::new(), hand: 0, loading: FxHashMap::default(), capacity }
    }

    pub(super) fn len(&self) -> usize {
        self.ring.len()
    }

    pub(super) fn pinned(&self) -> usize {
        self.ring.iter().filter(|buffer| buffer.pinned()).count()
    }

    #[inline]
    pub(super) fn get(&self, nr: u64) -> Option<Arc<Buffer>> {
        let buffer = &self.ring[*self.slots.get(&nr)?];
        buffer.touch();
        Some(Arc::clone(buffer))
    }

    /// Finds the block, or whoever loads it, or registers a load for the caller.
    pub(super) fn begin(&mut self, nr: u64) -> Outcome {
        if let Some(buffer) = self.get(nr) {
            return Outcome::Cached(buffer);
        }
        if let Some(load) = self.loading.get(&nr) {
            return Outcome::LoadedByOther(Arc::clone(load));
        }
        let load = Arc::new(Load::new());
        self.loading.insert(nr, Arc::clone(&load));
        Outcome::LoadHere(load)
    }

    /// Takes a load out, if it is still the one registered.
    pub(super) fn end_load(&mut self, nr: u64, load: &Arc<Load>) {
        if self.loading.get(&nr).is_some_and(|registered| Arc::ptr_eq(registered, load)) {
            self.loading.remove(&nr);
        }
    }

    /// Inserts what a load read, unless the block came by other means or was forgotten. Gives the buffer to use.
    pub(super) fn complete(&mut self, load: &Arc<Load>, buffer: Arc<Buffer>) -> (Arc<Buffer>, Dropped) {
        if let Some(present) = self.get(buffer.nr()) {
            return (present, Dropped::new());
        }
        if load.is_cancelled() {
            return (buffer, Dropped::new());
        }
        let dropped = self.insert(Arc::clone(&buffer));
        (buffer, dropped)
    }

    /// Inserts a buffer made in memory, or gives the block's buffer that is in use as an error.
    pub(super) fn insert_fresh(&mut self, buffer: Arc<Buffer>) -> (Fresh, Dropped) {
        let nr = buffer.nr();
        self.cancel_load(nr);
        if let Some(slot) = self.slots.get(&nr).copied() {
            let present = &mut self.ring[slot];
            if present.in_use() {
                return (Err(Arc::clone(present)), Dropped::new());
            }
            let old = std::mem::replace(present, Arc::clone(&buffer));
            return (Ok(buffer), vec![old]);
        }
        let dropped = self.insert(Arc::clone(&buffer));
        (Ok(buffer), dropped)
    }

    /// Marks a buffer as checked and gives the one to use. If a failed check of somebody else dropped it meanwhile, it
    /// comes back, unless another took its place.
    pub(super) fn confirm(&mut self, buffer: Arc<Buffer>) -> Arc<Buffer> {
        match self.get(buffer.nr()) {
            Some(present) if present.is_verified() => present,
            Some(present) if Arc::ptr_eq(&present, &buffer) => {
                buffer.set_verified();
                buffer
            }
            _ => {
                drop(self.forget(buffer.nr()));
                buffer.set_verified();
                drop(self.insert(Arc::clone(&buffer)));
                buffer
            }
        }
    }

    fn insert(&mut self, buffer: Arc<Buffer>) -> Dropped {
        let dropped = self.make_room(self.capacity.saturating_sub(1), STEPS);
        self.slots.insert(buffer.nr(), self.ring.len());
        self.ring.push(buffer);
        dropped
    }

    /// Keeps what a load in progress reads from being cached: it would be older than what comes now.
    fn cancel_load(&mut self, nr: u64) {
        if let Some(load) = self.loading.remove(&nr) {
            load.cancel();
        }
    }

    /// Drops a block whoever uses it, and bars a load in progress from being cached.
    pub(super) fn forget(&mut self, nr: u64) -> Option<Arc<Buffer>> {
        self.cancel_load(nr);
        self.slots.get(&nr).copied().map(|slot| self.remove_slot(slot))
    }

    /// Drops the blocks of a range as [`Shard::forget`] does each.
    pub(super) fn forget_range(&mut self, range: &Range<u64>) -> Dropped {
        let numbers = self.slots.keys().chain(self.loading.keys()).copied();
        let numbers: Vec<u64> = numbers.filter(|nr| range.contains(nr)).collect();
        numbers.into_iter().filter_map(|nr| self.forget(nr)).collect()
    }

    /// Drops a block if its buffer is such as `condition` says.
    pub(super) fn remove_if(&mut self, nr: u64, condition: impl FnOnce(&Buffer) -> bool) {
        if let Some(slot) = self.slots.get(&nr).copied()
            && condition(&self.ring[slot])
        {
            self.remove_slot(slot);
        }
    }

    /// Drops unused blocks, recently used ones too, until `target` are left or none is unused.
    pub(super) fn shrink(&mut self, target: usize) -> Dropped {
        let dropped = self.make_room(target, self.ring.len().saturating_mul(2));
        self.slots.shrink_to_fit();
        self.ring.shrink_to_fit();
        dropped
    }

    /// The clock: from its hand on, drops unused blocks that were not touched since it last passed, and forgets that
    /// the others were.
    fn make_room(&mut self, target: usize, steps: usize) -> Dropped {
        let mut dropped = Dropped::new();
        for _ in 0..steps {
            if self.ring.len() <= target {
                break;
            }
            if self.hand >= self.ring.len() {
                self.hand = 0;
            }
            let buffer = &self.ring[self.hand];
            if buffer.in_use() || buffer.untouch() {
                self.hand += 1;
            } else {
                dropped.push(self.remove_slot(self.hand));
            }
        }
        dropped
    }

    fn remove_slot(&mut self, slot: usize) -> Arc<Buffer> {
        let buffer = self.ring.swap_remove(slot);
        self.slots.remove(&buffer.nr());
        if let Some(moved) = self.ring.get(slot) {
            self.slots.insert(moved.nr(), slot);
        }
        buffer
    }
}
