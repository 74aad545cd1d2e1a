//! One shard of the cache: the changes of its part of the table, and the clock that chooses the
//! blocks to evict.
//!
//! # Invariants
//! The table's entries of this shard are the buffers in `ring`, each of which knows its position.
//! Both change only under the shard's lock, so under it the table's answers are exact.

use super::Buffer;
use super::load::{Load, Outcome};
use extant_sync::{Arc, ArcTable};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// The most buffers that one insertion examines to evict one. The next insertion continues from
/// there.
const STEPS: usize = 64;

/// The buffers of all shards.
pub(super) type Blocks = ArcTable<Buffer>;

pub(super) struct Shard {
    blocks: Arc<Blocks>,
    ring: Vec<Arc<Buffer>>,
    hand: usize,
    loading: FxHashMap<u64, Arc<Load>>,
    capacity: usize,
}

/// The inserted buffer, or as the error the buffer in use that kept its position.
pub(super) type Fresh = Result<Arc<Buffer>, Arc<Buffer>>;

/// Buffers removed from a shard, to be dropped outside its lock.
pub(super) type Dropped = Vec<Arc<Buffer>>;

impl Shard {
    pub(super) fn new(blocks: Arc<Blocks>, capacity: usize) -> Self {
        Shard { blocks, ring: Vec::new(), hand: 0, loading: FxHashMap::default(), capacity }
    }

    pub(super) fn len(&self) -> usize {
        self.ring.len()
    }

    pub(super) fn pinned(&self) -> usize {
        self.ring.iter().filter(|buffer| buffer.pinned()).count()
    }

    pub(super) fn get(&self, nr: u64) -> Option<Arc<Buffer>> {
        let buffer = self.blocks.get(nr)?;
        buffer.touch();
        Some(buffer)
    }

    /// Finds the block or its load in progress, or registers a load for the caller.
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

    /// Removes a load if it is still registered.
    pub(super) fn end_load(&mut self, nr: u64, load: &Arc<Load>) {
        if self.loading.get(&nr).is_some_and(|registered| Arc::ptr_eq(registered, load)) {
            self.loading.remove(&nr);
        }
    }

    /// Inserts the result of a load, unless the block was cached or forgotten meanwhile. Returns
    /// the buffer to use.
    pub(super) fn complete(
        &mut self,
        load: &Arc<Load>,
        buffer: Arc<Buffer>,
    ) -> (Arc<Buffer>, Dropped) {
        if let Some(present) = self.get(buffer.nr()) {
            return (present, Dropped::new());
        }
        if load.is_cancelled() {
            return (buffer, Dropped::new());
        }
        let dropped = self.insert(Arc::clone(&buffer));
        (buffer, dropped)
    }

    /// Inserts a buffer made in memory. Returns the block's present buffer as an error if it is in
    /// use.
    pub(super) fn insert_fresh(&mut self, buffer: Arc<Buffer>) -> (Fresh, Dropped) {
        let nr = buffer.nr();
        self.cancel_load(nr);
        let present = self.blocks.get(nr);
        let place = present.as_ref().map(|present| present.place());
        let old = place.and_then(|place| self.remove_unused(place, present.iter().len()));
        if old.is_none()
            && let Some(present) = present
        {
            return (Err(present), Dropped::new());
        }
        let mut dropped = self.insert(Arc::clone(&buffer));
        dropped.extend(old);
        (Ok(buffer), dropped)
    }

    /// Marks a buffer as verified and returns the one to use. A buffer that another thread's failed
    /// check has dropped meanwhile is inserted again, unless another took its place.
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
        buffer.set_place(self.ring.len());
        self.blocks.insert(buffer.nr(), Arc::clone(&buffer));
        self.ring.push(buffer);
        dropped
    }

    /// Forbids caching the result of a load in progress, which would be older than the present
    /// contents.
    fn cancel_load(&mut self, nr: u64) {
        if let Some(load) = self.loading.remove(&nr) {
            load.cancel();
        }
    }

    /// Drops a block even if it is in use, and forbids caching the result of a load in progress.
    pub(super) fn forget(&mut self, nr: u64) -> Option<Arc<Buffer>> {
        self.cancel_load(nr);
        let place = self.blocks.get(nr)?.place();
        self.blocks.remove(nr);
        Some(self.leave_ring(place))
    }

    /// Drops the blocks of a range, as [`Shard::forget`] does for each.
    pub(super) fn forget_range(&mut self, range: &Range<u64>) -> Dropped {
        let numbers =
            self.ring.iter().map(|buffer| buffer.nr()).chain(self.loading.keys().copied());
        let numbers: Vec<u64> = numbers.filter(|nr| range.contains(nr)).collect();
        numbers.into_iter().filter_map(|nr| self.forget(nr)).collect()
    }

    /// Drops a block if `condition` returns true for its buffer.
    pub(super) fn remove_if(&mut self, nr: u64, condition: impl FnOnce(&Buffer) -> bool) {
        if let Some(buffer) = self.blocks.get(nr)
            && condition(&buffer)
        {
            self.blocks.remove(nr);
            self.leave_ring(buffer.place());
        }
    }

    /// Changes the number of blocks to keep, and drops unused ones beyond it.
    pub(super) fn set_capacity(&mut self, capacity: usize) -> Dropped {
        self.capacity = capacity;
        if self.ring.len() > capacity { self.shrink(capacity) } else { Dropped::new() }
    }

    /// Drops unused blocks, including recently used ones, until `target` are left or all are in
    /// use.
    pub(super) fn shrink(&mut self, target: usize) -> Dropped {
        let dropped = self.make_room(target, self.ring.len().saturating_mul(2));
        self.ring.shrink_to_fit();
        dropped
    }

    /// Advances the clock: drops unused blocks that were not used since the last pass of the hand,
    /// and clears the marks of the others.
    fn make_room(&mut self, target: usize, steps: usize) -> Dropped {
        let mut dropped = Dropped::new();
        for _ in 0..steps {
            if self.ring.len() <= target {
                break;
            }
            if self.hand >= self.ring.len() {
                self.hand = 0;
            }
            let touched = self.ring[self.hand].untouch();
            match if touched { None } else { self.remove_unused(self.hand, 0) } {
                Some(buffer) => dropped.push(buffer),
                None => self.hand += 1,
            }
        }
        dropped
    }

    /// Drops the buffer at a position if it is unused: only the ring, the table and `others` in the
    /// caller have references.
    fn remove_unused(&mut self, place: usize, others: usize) -> Option<Arc<Buffer>> {
        let nr = self.ring[place].nr();
        self.blocks
            .remove_unused(nr, 1 + others, |buffer| !buffer.pinned())
            .then(|| self.leave_ring(place))
    }

    fn leave_ring(&mut self, place: usize) -> Arc<Buffer> {
        let buffer = self.ring.swap_remove(place);
        if let Some(moved) = self.ring.get(place) {
            moved.set_place(place);
        }
        buffer
    }
}
