//! The free space of a flexible group in memory: loaded group by group, dropped as a whole.
//!
//! # Invariants
//! - A loaded group's free runs are its bitmap's clear bits less the held runs, and less the runs
//!   in `returned`.
//! - Both are recorded whether the group is loaded or not, so dropping a tree need not regard
//!   claims and frees that are not durable.

use super::FreeSpace;
use super::bitmap;
use super::search::TRACED;
use super::shape::Shape;
use crate::bounds::Remark;
use crate::error::{Error, Result};
use extant_format::error::Corrupt;
use extant_format::types::GroupNr;
use extant_space::{FreeTree, Held, Run, Summary, free_runs};
use extant_sync::MutexGuard;
use extant_sync::atomic::Ordering;
use std::ops::Range;

/// Less than one part in so many is little free space.
const SCARCE: u64 = 8;

/// See the module's description.
#[derive(Debug)]
pub(in crate::alloc) struct Tree {
    /// Neither used nor held, in loaded groups.
    pub free: FreeTree,
    /// Claimed, and not booked.
    pub held: Held,
    /// Groups in memory.
    loaded: u64,
    /// Groups with a damaged bitmap, where nothing is allocated any more.
    bad: u64,
    /// The longest run of groups that are not in memory, as far as is known.
    outside: u32,
}

impl Tree {
    pub fn new(shape: &Shape, outside: u32) -> Tree {
        Tree {
            free: FreeTree::new(shape.group_len()),
            held: Held::default(),
            loaded: 0,
            bad: 0,
            outside,
        }
    }

    pub fn is_loaded(&self, mask: u64) -> bool {
        self.loaded & mask != 0
    }

    pub fn is_bad(&self, mask: u64) -> bool {
        self.bad & mask != 0
    }

    /// Neither loaded nor bad.
    pub fn is_absent(&self, mask: u64) -> bool {
        (self.loaded | self.bad) & mask == 0
    }

    /// Returns whether the loaded groups have little free space.
    pub fn is_scarce(&self, group_len: u32) -> bool {
        u64::from(self.free.free()) * SCARCE
            < u64::from(self.loaded.count_ones()) * u64::from(group_len)
    }

    fn longest(&self) -> u32 {
        self.free.longest().map_or(0, |run| run.len).max(self.outside)
    }

    /// Takes a run that is free.
    pub fn claim(&mut self, run: Run) -> bool {
        self.free.take(run) && self.held.add(run)
    }
}

impl FreeSpace {
    /// Changes a tree, and updates its summary and its position in the order.
    pub(in crate::alloc) fn change<R>(
        &self,
        t: u32,
        tree: &mut Tree,
        change: impl FnOnce(&mut Tree) -> R,
    ) -> R {
        let before = tree.free.bytes() as i64;
        let result = change(tree);
        self.memory.count(tree.free.bytes() as i64 - before);
        self.tell_longest(t, tree);
        result
    }

    /// Tells the order of trees the longest run of a locked tree, or the longest that is noted
    /// beside it.
    pub(in crate::alloc) fn tell_longest(&self, t: u32, tree: &Tree) {
        let Some(returned) = self.returned.get(t as usize) else { return };
        self.meta.set(t, tree.longest().max(returned.longest()));
        // A run listed since may have raised the order before, and been overwritten just now.
        self.meta.raise(t, returned.longest());
    }

    /// Computes the summary of the groups that are not in memory again.
    pub(in crate::alloc) fn renew_outside(&self, t: u32, tree: &mut Tree) {
        let absent =
            self.shape.groups_of(t).filter(|g| tree.is_absent(self.shape.mask(GroupNr(*g))));
        tree.outside = absent.filter_map(|g| self.summaries.longest(g)).max().unwrap_or(0);
    }

    /// Locks the group's tree, with the group in memory. Returns `None` if the group is damaged or
    /// cannot be read, or, without `wait`, if another thread holds the lock.
    pub(in crate::alloc) fn with_group(
        &self,
        g: GroupNr,
        wait: bool,
    ) -> Option<MutexGuard<'_, Tree>> {
        let (t, mask) = (self.shape.tree_of(g), self.shape.mask(g));
        // Between loading and locking the tree may be evicted.
        for attempt in 0..LOAD_TRIES {
            let tree = if wait { self.tree(t)? } else { self.try_tree(t)? };
            if tree.is_loaded(mask) {
                if attempt == 0 {
                    self.used_again(t, &tree);
                }
                return Some(tree);
            }
            let bad = tree.is_bad(mask);
            drop(tree);
            if bad || !wait && self.bitmaps.get(g.index())?.is_locked() {
                return None;
            }
            self.load(g).ok()?;
        }
        None
    }

    /// Brings a group's free space into memory.
    ///
    /// # Errors
    /// Why the group is bad; `Io`.
    pub(in crate::alloc) fn load(&self, g: GroupNr) -> Result<()> {
        let none = || Error::from(Corrupt::new("group number").found(g.0));
        let mut bitmap = self.bitmaps.get(g.index()).ok_or_else(none)?.lock();
        let t = self.shape.tree_of(g);
        let slot = self.trees.get(t as usize).ok_or_else(none)?;
        let (is_bad, is_loaded) = {
            let tree = slot.lock();
            (tree.is_bad(self.shape.mask(g)), tree.is_loaded(self.shape.mask(g)))
        };
        if bitmap.bad || is_bad {
            return Err(Corrupt::new("block bitmap").at_group(g).into());
        }
        if is_loaded {
            return Ok(());
        }
        let runs = match bitmap::free_runs_of(self, g) {
            Ok(runs) => runs,
            // The next try may be luckier.
            Err(error @ Error::Io(_)) => {
                self.unread.fetch_add(1, Ordering::Relaxed);
                return Err(error);
            }
            Err(error) => {
                bitmap.bad = true;
                return Err(self.disable(g, error));
            }
        };
        self.counts.bitmaps_read.add(1);
        if let Some(mut tree) = self.tree(t) {
            self.insert(t, g, &mut tree, runs);
        }
        drop(bitmap);
        self.evict(Some(t));
        Ok(())
    }

    fn insert(&self, t: u32, g: GroupNr, tree: &mut Tree, runs: Vec<Run>) {
        let runs: Vec<Run> = runs.into_iter().map(|run| self.shape.place(g, run)).collect();
        let runs = self.leaving(t, g).subtract(tree.held.subtract(runs));
        if tree.loaded == 0 {
            self.counts.loaded.add(1);
        }
        self.change(t, tree, |tree| {
            tree.free.load(&runs);
            tree.loaded |= self.shape.mask(g);
            self.renew_outside(t, tree);
        });
        self.set_resident(t, true);
        self.memory.loaded(t);
    }

    fn disable(&self, g: GroupNr, error: Error) -> Error {
        self.disable_group(g, &error);
        self.groups.note(&error);
        error
    }

    /// Ends allocation in a group, whose bitmap the caller must have locked, and subtracts its free
    /// space from the budget. Claims there may still be booked, and used blocks freed.
    pub(in crate::alloc) fn disable_group(&self, g: GroupNr, error: &Error) {
        let (t, mask) = (self.shape.tree_of(g), self.shape.mask(g));
        let Some(slot) = self.trees.get(t as usize) else { return };
        let mut tree = slot.lock();
        if tree.is_bad(mask) {
            return;
        }
        if self.vol.remarks.tells(Remark::Group) {
            tracing::error!("group {g} is not used for allocation any more: {error}");
        }
        self.summaries.set(g.0, &Summary::default());
        self.settle_and_mark(t, &mut tree, mask);
        let units = self.shape.units(g);
        let held = tree.held.count(units.clone()) + self.leaving(t, g).count(units.clone());
        self.change(t, &mut tree, |tree| {
            tree.free.unload(units);
            tree.loaded &= !mask;
            tree.bad |= mask;
            self.renew_outside(t, tree);
        });
        drop(tree);
        let free = self.groups.with(g, |desc| desc.free_clusters);
        self.budget.correct(free.saturating_sub(held).into());
    }

    /// Drops a tree; the summaries of its groups stay.
    pub(in crate::alloc) fn unload(&self, t: u32, tree: &mut Tree) {
        for g in
            self.shape.groups_of(t).map(GroupNr).filter(|g| tree.is_loaded(self.shape.mask(*g)))
        {
            self.summaries.set(g.0, &Summary::of(tree.free.within(self.shape.units(g))));
        }
        self.change(t, tree, |tree| {
            tree.free.clear();
            tree.loaded = 0;
            self.renew_outside(t, tree);
        });
        self.set_resident(t, false);
        self.counts.evictions.add(1);
        tracing::debug!(target: TRACED, tree = t, "tree freed");
    }

    /// The free runs of a group that is in memory.
    pub(in crate::alloc) fn runs_of(
        &self,
        g: GroupNr,
        tree: &Tree,
        clusters: Range<u32>,
    ) -> impl Iterator<Item = Run> {
        let first = self.shape.unit(g, 0);
        let units = first + clusters.start..first + clusters.end;
        tree.free.within(units).map(move |run| Run { start: run.start - first, len: run.len })
    }
}

/// How often a group is loaded for one claim.
const LOAD_TRIES: u32 = 4;

/// A bitmap's clear bits.
pub(in crate::alloc) fn clear_runs(bits: &[u8], len: u32) -> Vec<Run> {
    let mut runs = Vec::new();
    free_runs(bits, len, |run| runs.push(run));
    runs
}
