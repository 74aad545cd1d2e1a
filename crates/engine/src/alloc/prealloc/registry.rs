//! The preallocations of all files: their bounds, and the order in which files lose them.
//!
//! # Invariants
//! - Every file with preallocations is in `ages`, from its first preallocation until it is dropped,
//!   by the approximate age of its newest one. Files lose preallocations in that order, recently
//!   used files last.
//! - Every file with preallocations in a group is listed there ([`ByGroup`]).

use super::by_group::ByGroup;
use super::small::Shared;
use super::stats::{Counters, count};
use super::{MAX_BYTES, Prealloc, PreallocStats, SHARE};
use crate::alloc::Purpose;
use crate::alloc::free_space::FreeSpace;
use extant_format::types::BlockNr;
use extant_space::prealloc::{Piece, Visits};
use extant_sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use extant_sync::{Level, Mutex, Sharded};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// A window may take one part in so many of the remaining allowance.
const STEP: u64 = 16;

/// One part in so many of all clusters is left alone: preallocating ends before space does.
const SCARCE: u64 = 256;

/// Small files of all threads share runs, or those of each thread.
const AMONG_ALL: u8 = 1;
const PER_THREAD: u8 = 2;

/// So many of the youngest files are not put into their order again.
const YOUNGEST: u64 = 16;

type Ages = BTreeMap<u64, Weak<Prealloc>>;

/// See the module's description.
#[derive(Debug)]
pub struct PreallocRegistry {
    space: Arc<FreeSpace>,
    pub(super) shared: Shared,
    counters: Counters,
    pub(super) by_group: ByGroup,
    ages: Sharded<Mutex<Ages>>,
    next_age: AtomicU64,
    /// Held by a thread that returns all preallocations, until their space is available. No lock of
    /// a group may be held before or taken inside.
    shedding: Mutex<()>,
    /// Whether files have preallocations, and the sharing of runs by small files.
    files: AtomicBool,
    sharing: AtomicU8,
}

impl PreallocRegistry {
    pub fn new(space: Arc<FreeSpace>) -> Arc<PreallocRegistry> {
        Arc::new(PreallocRegistry {
            shared: Shared::default(),
            counters: Counters::default(),
            by_group: ByGroup::new(space.shape.trees()),
            ages: Sharded::new(|_| Mutex::new(Level::Lru, Ages::new())),
            next_age: AtomicU64::new(1),
            shedding: Mutex::new(Level::Group, ()),
            files: AtomicBool::new(true),
            sharing: AtomicU8::new(PER_THREAD),
            space,
        })
    }

    pub fn space(&self) -> &Arc<FreeSpace> {
        &self.space
    }

    pub fn cluster_bits(&self) -> u32 {
        self.space.vol.geo.cluster_bits
    }

    /// Returns the number of preallocated clusters that no file uses.
    pub fn held(&self) -> u64 {
        self.counters.held()
    }

    pub fn stats(&self) -> PreallocStats {
        PreallocStats {
            pa: self.files.load(Ordering::Relaxed),
            lg: self.sharing.load(Ordering::Relaxed),
            ..self.counters.stats(self.cluster_bits())
        }
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Keeps count after work on a tree: preallocations, bytes and unused clusters before and
    /// afterwards.
    pub(super) fn counted(
        &self,
        before: (usize, usize, u64),
        after: (usize, usize, u64),
        visits: Visits,
    ) {
        self.counters.moved(before, after, visits);
    }

    pub(super) fn created(&self) {
        count(&self.counters.local().created, 1);
    }

    /// Keeps count of preallocations that were given back, and of those that were looked at.
    pub(super) fn discarded(&self, many: usize, visits: Visits) {
        if visits > 0 {
            let counters = self.counters.local();
            count(&counters.discarded, many as i64);
            count(&counters.discard_visited, visits.into());
        }
    }

    /// The group whose list has a file with a preallocation at this block.
    pub(super) fn group_of(&self, start: BlockNr) -> u32 {
        let group = self.space.vol.geo.group_of_block(start);
        group.map_or(u32::MAX, |group| self.space.shape.tree_of(group))
    }

    /// Returns the number of free clusters beyond those that must stay free.
    pub fn spare(&self) -> u64 {
        let clusters = self.space.vol.geo.blocks_count >> self.cluster_bits();
        let scarce = clusters / SCARCE;
        let left = self.space.min_free(Purpose::Data, false).saturating_add(scarce);
        self.space.budget.amount().saturating_sub(left)
    }

    /// Makes lists for trees, up to so many.
    pub fn append_trees(&self, trees: u32) {
        self.by_group.append(trees);
    }

    /// Switches preallocations of files on or off, and gives those back that there are.
    pub fn set_files(&self, on: bool) {
        // Relaxed, here and for `sharing`: a switch for later requests. A thread that reads an old
        // value keeps one preallocation more, which counts as free.
        self.files.store(on, Ordering::Relaxed);
        if !on {
            self.shed_all();
        }
    }

    /// Sets the sharing of runs, and returns the present ones.
    pub fn set_sharing(&self, sharing: u8) {
        self.sharing.store(sharing, Ordering::Relaxed);
        self.drain_shared();
    }

    /// Which of the shared runs a small file's space comes from; `None` if none are shared.
    pub(super) fn sharer(&self) -> Option<usize> {
        match self.sharing.load(Ordering::Relaxed) {
            PER_THREAD => Some(extant_sync::shard_index()),
            AMONG_ALL => Some(0),
            _ => None,
        }
    }

    /// As [`Self::capacity`], for a file's own preallocations.
    pub fn capacity_for_file(&self) -> u64 {
        if self.files.load(Ordering::Relaxed) { self.capacity() } else { 0 }
    }

    /// Clusters that one more preallocation may have now; 0 if space or memory is scarce.
    pub fn capacity(&self) -> u64 {
        let free = self.spare();
        let held = self.held();
        let most = free.saturating_add(held) / SHARE * (SHARE - 1);
        let memory = self.counters.bytes() > MAX_BYTES;
        if memory || held > most - most / 8 {
            self.shed(memory, |registry| {
                registry.counters.bytes() <= MAX_BYTES / 4 * 3 && registry.held() <= most / 4 * 3
            });
        }
        if self.counters.bytes() > MAX_BYTES {
            0
        } else {
            most.saturating_sub(self.held()).div_ceil(STEP).min(free)
        }
    }

    /// A file has a new preallocation: it is the youngest, unless it is among the youngest already.
    pub(super) fn register(&self, file: &Arc<Prealloc>) {
        let old = file.age.load(Ordering::Relaxed);
        if old == 0 || self.next_age.load(Ordering::Relaxed) - old > YOUNGEST {
            let age = self.next_age.fetch_add(1, Ordering::Relaxed);
            // An addition holds the file's `work`, so it has no concurrent one.
            file.age.store(age, Ordering::Relaxed);
            self.ages.at(age as usize).lock().insert(age, Arc::downgrade(file));
            self.forget(old);
        }
    }

    pub(super) fn forget(&self, age: u64) {
        if age != 0 {
            let gone = self.ages.at(age as usize).lock().remove(&age);
            drop(gone);
        }
    }

    /// Frees space that its owners have released. No lock of the allocator may be held.
    pub(super) fn give_back(&self, runs: impl IntoIterator<Item = Piece>) {
        let bits = self.cluster_bits();
        let place = |run: Piece| self.space.place(BlockNr(run.physical << bits), run.len << bits);
        let runs: Vec<_> = runs.into_iter().filter_map(place).collect();
        let clusters = runs.iter().map(|(_, run)| i64::from(run.len)).sum();
        self.space.release_all(runs);
        self.counters.given.add(clusters);
    }

    /// Gives preallocations of files back by their order until `enough`; if that does not do, and
    /// `recent` ones may go, those and the shared runs. Gives how many clusters that were.
    fn shed(&self, recent: bool, enough: impl Fn(&PreallocRegistry) -> bool) -> u64 {
        let mut clusters = 0;
        // Those that were used recently have their turn in the second round.
        for _ in 0..=u32::from(recent) {
            for file in self.by_age() {
                if enough(self) {
                    return clusters;
                }
                if !file.recent.swap(false, Ordering::Relaxed) {
                    clusters += file.discard();
                }
            }
        }
        if !recent || enough(self) { clusters } else { clusters + self.drain_shared() }
    }

    /// Returns the preallocations of all files in the flexible group of a block. Visits the files
    /// listed there only, and no preallocation elsewhere.
    pub fn shed_near(&self, goal: BlockNr) {
        let group = self.group_of(goal);
        self.by_group.files(group).iter().for_each(|file| file.discard_group(group));
    }

    /// Returns all preallocations, and waits for other threads that do.
    pub fn shed_all(&self) {
        let _shedding = self.shedding.lock();
        self.by_age().iter().for_each(|file| {
            file.discard();
        });
        self.drain_shared();
    }

    /// Clusters that were given back so far, all of which could be had by then.
    pub fn given(&self) -> i64 {
        self.counters.given.sum()
    }

    /// Files with preallocations, the oldest first.
    fn by_age(&self) -> Vec<Arc<Prealloc>> {
        let mut all: Vec<(u64, Arc<Prealloc>)> = Vec::new();
        for ages in self.ages.iter() {
            let ages = ages.lock();
            all.extend(ages.iter().filter_map(|(age, file)| Some((*age, file.upgrade()?))));
        }
        all.sort_unstable_by_key(|(age, _)| *age);
        all.into_iter().map(|(_, file)| file).collect()
    }
}
