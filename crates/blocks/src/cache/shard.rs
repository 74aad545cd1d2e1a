//! One shard of the cache: what changes its part of the table, and the clock that chooses what to
//! drop.
//!
//! # Invariants
//! What the table has of this shard is what is in `ring`, each at the place that it knows itself.
//! Both change only under the shard's lock, so that there the table's answers are settled.

use super::Buffer;
use super::load::{Load, Outcome};
use extant_sync::{Arc, ArcTable};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// The most buffers that one insertion looks at to find room; the next one goes on from there.
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

/// The buffer that was inserted, or else the one in use that kept its place.
pub(super) type Fresh = Result<Arc<Buffer>, Arc<Buffer>>;

/// Buffers taken out of a shard, to be dropped outside its lock.
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

    /// Inserts what a load read, unless the block came by other means or was forgotten. Gives the
    /// buffer to use.
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

    /// Inserts a buffer made in memory, or gives the block's buffer that is in use as an error.
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

    /// Marks a buffer as checked and gives the one to use. If a failed check of somebody else
    /// dropped it meanwhile, it comes back, unless another took its place.
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

    /// Keeps what a load in progress reads from being cached: it would be older than what comes
    /// now.
    fn cancel_load(&mut self, nr: u64) {
        if let Some(load) = self.loading.remove(&nr) {
            load.cancel();
        }
    }

    /// Drops a block whoever uses it, and bars a load in progress from being cached.
    pub(super) fn forget(&mut self, nr: u64) -> Option<Arc<Buffer>> {
        self.cancel_load(nr);
        let place = self.blocks.get(nr)?.place();
        self.blocks.remove(nr);
        Some(self.leave_ring(place))
    }

    /// Drops the blocks of a range as [`Shard::forget`] does each.
    pub(super) fn forget_range(&mut self, range: &Range<u64>) -> Dropped {
        let numbers =
            self.ring.iter().map(|buffer| buffer.nr()).chain(self.loading.keys().copied());
        let numbers: Vec<u64> = numbers.filter(|nr| range.contains(nr)).collect();
        numbers.into_iter().filter_map(|nr| self.forget(nr)).collect()
    }

    /// Drops a block if its buffer is such as `condition` says.
    pub(super) fn remove_if(&mut self, nr: u64, condition: impl FnOnce(&Buffer) -> bool) {
        if let Some(buffer) = self.blocks.get(nr)
            && condition(&buffer)
        {
            self.blocks.remove(nr);
            self.leave_ring(buffer.place());
        }
    }

    /// Drops unused blocks, recently used ones too, until `target` are left or none is unused.
    pub(super) fn shrink(&mut self, target: usize) -> Dropped {
        let dropped = self.make_room(target, self.ring.len().saturating_mul(2));
        self.ring.shrink_to_fit();
        dropped
    }

    /// The clock: from its hand on, drops unused blocks that were not touched since it last passed,
    /// and forgets that the others were.
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

    /// Drops the buffer at a place if nobody uses it, and only the ring, the table and `others`
    /// here have references.
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
