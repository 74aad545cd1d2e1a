//! Discards of free blocks on the device.
//!
//! A *trim* (FITRIM) holds free space slice by slice while the device discards it: blocks 2048 to
//! 4095, then 4096 to 6143. Files that grow meanwhile take the rest of the free space. A caller
//! that finds too little space waits for the slices in flight, and no trim holds another slice
//! before that caller has searched again.
//!
//! Space that is *freed* is discarded, too, where the mount wants that (`discard`). The commit that
//! makes the freeing durable queues the runs of [`SHORTEST`] and more, merged, and releases the
//! others: blocks 100 to 149, freed in five pieces by transaction 7, are one run. A thread of its
//! own discards the queue slice by slice; queued space stays pending until then. Without the
//! thread, the commit discards the queue itself. A caller that lacks space takes it out of the
//! queue instead.
//!
//! # Invariants
//! - A slice is neither in a tree nor in the budget until the device has discarded it. So no thread
//!   writes there meanwhile.
//! - A trim leaves the margin in the budget, for metadata.
//! - A tree whose lists have queued runs is in the queue. Both change under the lock of the lists.
//! - Nothing is discarded once changes have stopped: the device may belong to another host then.
//!
//! # Locking
//! A thread with a slice holds no lock while the device works, and then takes locks of
//! [`FreeSpace`] only. The caller that waits for slices holds none of these; it may hold locks of
//! inodes and a journal handle. The lock of [`Discards`] is inward of all others.

use super::Alloc;
use super::free_space::FreeSpace;
use crate::bounds::check_interrupt;
use crate::error::{Error, Result};
use extant_format::types::{BlockNr, GroupNr};
use extant_space::Run;
use extant_sync::atomic::{AtomicBool, Ordering};
use extant_sync::scheduler::Bell;
use extant_sync::{Condvar, Level, Mutex};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::ops::Range;

/// Bytes that are discarded at a time.
const SLICE: u64 = 8 << 20;

/// Bytes of the shortest run that is discarded after it was freed. Shorter ones cost a device more
/// time than they are worth.
const SHORTEST: u64 = 64 << 10;

/// The queue, the slices in flight, and the callers that wait for them.
#[derive(Debug)]
pub(super) struct Discards {
    /// Whether freed space is discarded.
    on: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    /// Rung when ranges enter the queue.
    bell: Bell,
}

#[derive(Debug, Default)]
struct State {
    /// Slices in flight.
    slices: u32,
    /// Threads that lack space.
    lacking: u32,
    /// Trees with queued runs.
    trees: VecDeque<u32>,
    /// Whether a task discards the queue.
    has_task: bool,
}

/// A slice in flight, or the right to hold one.
pub(super) struct SliceScope<'a>(&'a Discards);

impl Drop for SliceScope<'_> {
    fn drop(&mut self) {
        self.0.state.lock().slices -= 1;
        self.0.changed.notify_all();
    }
}

/// A thread that lacks space. No slice is in flight until this is dropped.
pub(super) struct LackScope<'a>(&'a Discards);

impl Drop for LackScope<'_> {
    fn drop(&mut self) {
        self.0.state.lock().lacking -= 1;
        self.0.changed.notify_all();
    }
}

impl Discards {
    pub fn new() -> Discards {
        Discards {
            on: AtomicBool::new(false),
            state: Mutex::new(Level::Leaf, State::default()),
            changed: Condvar::new(),
            bell: Bell::default(),
        }
    }

    /// Whether freed space is discarded.
    pub fn is_on(&self) -> bool {
        // Relaxed: a switch that guards nothing.
        self.on.load(Ordering::Relaxed)
    }

    /// Adds a tree to the queue. The caller holds the lock of its lists.
    pub fn add_tree(&self, tree: u32) {
        self.state.lock().trees.push_back(tree);
        self.bell.ring();
    }

    /// Removes a tree from the queue. The caller holds the lock of its lists.
    pub fn remove_tree(&self, tree: u32) {
        self.state.lock().trees.retain(|queued| *queued != tree);
    }

    /// The first tree of the queue, and a slice.
    fn first(&self) -> Option<(u32, SliceScope<'_>)> {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.lacking > 0);
        let tree = *state.trees.front()?;
        state.slices += 1;
        Some((tree, SliceScope(self)))
    }

    fn set_task(&self, runs: bool) {
        self.state.lock().has_task = runs;
    }

    /// Begins a slice, as soon as no thread lacks space.
    pub fn begin_slice(&self) -> SliceScope<'_> {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.lacking > 0);
        state.slices += 1;
        SliceScope(self)
    }

    /// Waits for the slices in flight. The caller must hold no lock of [`FreeSpace`], and must
    /// search for space before it drops the result.
    pub fn wait_for_slices(&self) -> LackScope<'_> {
        let mut state = self.state.lock();
        state.lacking += 1;
        self.changed.wait_while(&mut state, |state| state.slices > 0);
        LackScope(self)
    }

    /// Threads that lack space.
    #[cfg(test)]
    pub fn lacking(&self) -> u32 {
        self.state.lock().lacking
    }
}

impl Alloc {
    /// Whether space that is freed from now on is discarded, once its freeing is durable.
    pub fn set_discard(&self, on: bool) {
        self.space.discards.on.store(on, Ordering::Relaxed);
    }

    /// Begins the use of a task, which must call [`Alloc::discard_next`] after each ring of
    /// [`Alloc::discard_bell`] until that returns false.
    pub fn begin_discard_task(&self) {
        self.space.discards.set_task(true);
    }

    /// Rung when freed space is queued.
    pub fn discard_bell(&self) -> &Bell {
        &self.space.discards.bell
    }

    /// Ends the use of the task. Queued space stays queued.
    pub fn end_discard_task(&self) {
        self.space.discards.set_task(false);
    }

    /// Discards a slice of the freed space that is queued. False if there is none, or once the use
    /// of the task has ended.
    pub fn discard_next(&self) -> bool {
        self.space.discards.bell.begin();
        let goes_on = self.space.discards.state.lock().has_task;
        goes_on && self.space.discard_queued()
    }

    /// Discards everything that is queued, unless the caller is interrupted, and waits for the
    /// slices that other threads discard.
    pub fn finish_discards(&self) {
        self.space.finish_discards();
        drop(self.space.discards.wait_for_slices());
    }

    /// Discards free runs of at least `min` blocks within `blocks`; gives how many blocks that
    /// were. Space that was freed by transactions that are not durable yet is left out.
    ///
    /// # Errors
    /// The device's.
    pub fn trim(&self, blocks: Range<u64>, min: u64) -> Result<u64> {
        let geo = &self.vol.geo;
        let end = blocks.end.min(geo.blocks_count);
        let mut at = blocks.start.max(geo.first_data_block.into());
        let mut done = 0;
        while at < end {
            let Some(g) = geo.group_of_block(BlockNr(at)) else { break };
            let first = geo.first_block_of_group(g).0;
            let group_end = first.saturating_add(geo.blocks_in_group(g).into()).min(end);
            // Only clusters that lie in the range as a whole.
            let clusters = (at - first).div_ceil(u64::from(geo.cluster_ratio())) as u32
                ..((group_end - first) >> geo.cluster_bits) as u32;
            done += self.space.trim(g, clusters, self.space.clusters_of(min))?;
            at = group_end.max(at + 1);
        }
        Ok(done << geo.cluster_bits)
    }
}

impl FreeSpace {
    fn clusters_of(&self, blocks: u64) -> u64 {
        blocks.div_ceil(self.cluster_ratio().into()).max(1)
    }

    /// Discards free runs of a group that have at least `min` clusters. Returns the number of
    /// clusters discarded.
    fn trim(&self, g: GroupNr, clusters: Range<u32>, min: u64) -> Result<u64> {
        let (mut done, mut at, mut run_end) = (0, clusters.start, 0);
        loop {
            check_interrupt()?;
            self.vol.writable()?;
            let _scope = self.discards.begin_slice();
            let Some((slice, end)) = self.hold_slice(g, at..clusters.end, min, run_end) else {
                return Ok(done);
            };
            let discarded = self.discard(g, slice);
            self.release(g, slice);
            discarded?;
            done += u64::from(slice.len);
            (at, run_end) = (slice.end(), end);
        }
    }

    /// Holds a slice of the first free run that has at least `min` clusters, or that begins before
    /// `run_end`: the end of the run that the previous slice was of. Returns the slice and the end
    /// of its run. `None` if there is no such run, or if the budget has nothing above the margin.
    pub(super) fn hold_slice(
        &self,
        g: GroupNr,
        clusters: Range<u32>,
        min: u64,
        run_end: u32,
    ) -> Option<(Run, u32)> {
        let t = self.shape.tree_of(g);
        let mut tree = self.with_group(g, true)?;
        let run = self
            .runs_of(g, &tree, clusters)
            .find(|run| u64::from(run.len) >= min || run.start < run_end)?;
        let (_, margin) = self.kept();
        let taken = self.budget.take_some(self.slice_len(g, run), 1, margin);
        let slice =
            Run { start: run.start, len: u32::try_from(taken).ok().filter(|len| *len > 0)? };
        if !self.change(t, &mut tree, |tree| tree.claim(self.shape.place(g, slice))) {
            self.budget.give(taken);
            return None;
        }
        Some((slice, run.end()))
    }

    /// Clusters of the first slice of a run. Slices end at multiples of [`SLICE`] on the device, so
    /// that its own units, which are smaller, are discarded whole.
    fn slice_len(&self, g: GroupNr, run: Run) -> u64 {
        let geo = &self.vol.geo;
        let start = geo.block_of_bit(g, run.start).0 << geo.block_bits;
        let len = (SLICE - start % SLICE) >> geo.block_bits >> geo.cluster_bits;
        len.clamp(1, run.len.into())
    }

    fn discard(&self, g: GroupNr, run: Run) -> Result<()> {
        let geo = &self.vol.geo;
        let start = geo.block_of_bit(g, run.start).0;
        let len =
            (u64::from(run.len) << geo.cluster_bits).min(geo.blocks_count.saturating_sub(start));
        Ok(self.vol.dev.discard(start << geo.block_bits, len << geo.block_bits)?)
    }

    /// Whether a run of freed space is worth a discard.
    pub(super) fn is_discarded(&self, run: &Run) -> bool {
        u64::from(run.len) >= self.clusters_of(SHORTEST >> self.vol.geo.block_bits)
    }

    /// Discards the runs that a commit queued: by the thread, or here if none runs.
    pub(super) fn discard_committed(&self) {
        if !self.discards.state.lock().has_task {
            self.finish_discards();
        }
    }

    fn finish_discards(&self) {
        while check_interrupt().is_ok() && self.discard_queued() {}
    }

    /// Discards a slice of the queue and releases it. False if the queue is empty.
    fn discard_queued(&self) -> bool {
        let Some((t, _scope)) = self.discards.first() else { return false };
        let Some(returned) = self.returned.get(t as usize) else { return false };
        let slice = |units: Run| {
            let (g, run) = self.shape.group_run(t, units);
            self.slice_len(g, run)
        };
        if let Some(units) = self.begin_discard(t, returned, slice) {
            let (g, run) = self.shape.group_run(t, units);
            // Another host may own the device once changes have stopped here.
            if self.discards.is_on()
                && self.vol.writable().is_ok()
                && !self.vol.journal.is_aborted()
            {
                self.note_discard(self.discard(g, run));
            }
            self.end_discard(t, returned, units);
        }
        true
    }

    /// Releases the queued runs of a tree without a discard. False if no tree has any.
    pub(super) fn cancel_queued(&self) -> bool {
        let trees: Vec<u32> = self.discards.state.lock().trees.iter().copied().collect();
        trees.into_iter().any(|t| {
            self.returned.get(t as usize).is_some_and(|returned| self.cancel_discard(t, returned))
        })
    }

    /// Notes how a discard of freed space ended. An error costs no data; a device that never
    /// discards is asked no more.
    fn note_discard(&self, result: Result<()>) {
        match result {
            Ok(()) => {}
            Err(Error::Io(e)) if e.kind() == ErrorKind::Unsupported => {
                tracing::warn!("freed space is not discarded any more: {e}");
                self.discards.on.store(false, Ordering::Relaxed);
            }
            Err(e) => tracing::debug!("discard: {e}"),
        }
    }
}
