//! Preallocations: space that is claimed in memory for later blocks of files.
//!
//! A file that grows, or is written at distant positions, has a tree of runs ([`Prealloc`]); small
//! files share runs of their thread ([`small`]). A part taken from either is an ordinary [`Claim`].
//! Preallocations are not on disk: a crash loses no space, and an unmount has nothing to do. For
//! example, a writer at block 10 of a file gets blocks 5000 to 5015 claimed for blocks 10 to 25. A
//! later write of block 12 takes block 5002.
//!
//! # Invariants
//! - Preallocated space has been taken from the budget and from its group's free space, as any
//!   claim. Users see it as free ([`PreallocRegistry::held`]), and it is returned before a request
//!   fails with ENOSPC ([`PreallocRegistry::shed`]). When space is scarce nothing is preallocated
//!   ([`PreallocRegistry::room`]), so that the returns end.
//! - Preallocated space is held, so it stays out of free space that is made again from a bitmap.
//!   Space in a group that proves damaged is not returned.
//!
//! # Bounds
//! A preallocation takes a few dozen bytes, or a few hundred once it is used out of order. All of
//! them take at most [`MAX_BYTES`] of memory and a share of the free space ([`SHARE`]); windows
//! shrink as either bound comes near. Beyond a bound files lose their preallocations, the least
//! recently written files first. For lack of space only files lose them that were not written since
//! the last such search, so that one file with many distant writes has smaller windows, not none. A
//! billion sparse writes therefore make neither a billion preallocations nor a full disk: they are
//! placed one by one, near their neighbors in the file.
//!
//! # Locking
//! A tree's lock and the shared runs' are of level Alloc, and taken one at a time. Space is given
//! back when they have been released, since that takes a group's lock. The lock of a group's list
//! of files is inward of a tree's, and taken for a file's first and last preallocation there.

mod by_group;
mod registry;
mod small;
mod stats;

pub(super) use registry::PreallocRegistry;
pub use small::Small;
pub use stats::PreallocStats;

use super::claim::Claim;
use extant_format::types::BlockNr;
use extant_space::prealloc::{Found, Piece, Tree, Visits};
use extant_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_sync::{Level, Mutex};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that all preallocations may take.
const MAX_BYTES: u64 = if cfg!(test) { 64 << 10 } else { 16 << 20 };

/// Of so many parts of the free space all but one may be preallocated.
const SHARE: u64 = 4;

/// Runs to be given back.
type Runs = SmallVec<[Piece; 4]>;

/// The preallocations of one file. Logical and physical numbers are blocks; runs begin at clusters'
/// starts.
#[derive(Debug)]
pub struct Prealloc {
    registry: Arc<PreallocRegistry>,
    tree: Mutex<Tree>,
    /// Space was taken since the last search for preallocations to return.
    recent: AtomicBool,
    /// Its name in the order of the newest preallocations; 0 before the first.
    age: AtomicU64,
}

/// The result of a lookup in a file's preallocations.
#[derive(Debug)]
pub enum Taken {
    /// Blocks for the place that was asked for, the first of them for the first block.
    Claim(Claim),
    /// So many blocks there had space, which was taken before or given up: they are to be claimed
    /// otherwise.
    Spent(u32),
    /// Nothing: a window may be preallocated.
    Nothing,
}

impl Prealloc {
    pub(super) fn new(registry: Arc<PreallocRegistry>) -> Arc<Prealloc> {
        let tree = Mutex::new(Level::Alloc, Tree::default());
        Arc::new(Prealloc {
            registry,
            tree,
            recent: AtomicBool::new(false),
            age: AtomicU64::new(0),
        })
    }

    fn bits(&self) -> u32 {
        self.registry.cluster_bits()
    }

    /// Runs a change of the tree and updates the counters.
    fn with<R>(&self, work: impl FnOnce(&mut Tree, &mut Visits) -> R) -> R {
        let mut visits = 0;
        let mut tree = self.tree.lock();
        let before = (tree.len(), tree.bytes(), tree.free());
        let result = work(&mut tree, &mut visits);
        // Each that is added is held against its neighbours anyhow. All of them now and then, lest
        // the check be quadratic.
        let looked_at = tree.len() <= 64 || before.0 != tree.len() && tree.len().is_power_of_two();
        debug_assert!(!looked_at || tree.is_sound(), "preallocations overlap or are miscounted");
        self.registry.counted(before, (tree.len(), tree.bytes(), tree.free()), visits);
        // Under the tree's lock, which orders this before the file's next preallocation there.
        while let Some((group, slot)) = tree.take_left() {
            self.registry.by_group.leave(group, slot);
        }
        result
    }

    /// Up to `len` blocks (whole clusters, not 0) for the blocks from `lblk` on; below block 2^32
    /// if `low`.
    pub fn take(self: &Arc<Self>, lblk: u32, len: u32, low: bool) -> Taken {
        let bits = self.bits();
        let limit = if low { 1 << (32 - bits) } else { u64::MAX };
        self.recent.store(true, Ordering::Relaxed);
        match self.with(|tree, visits| tree.take(lblk >> bits, (len >> bits).max(1), limit, visits))
        {
            Found::Taken { piece, of } => {
                let start = BlockNr(piece.physical << bits);
                Taken::Claim(Claim::of_prealloc(
                    self.registry.space().clone(),
                    start,
                    piece.len << bits,
                    self.clone(),
                    of,
                ))
            }
            Found::Spent(clusters) => Taken::Spent(clusters << bits),
            Found::Nothing => Taken::Nothing,
        }
    }

    /// Returns the part of a window (in clusters) around the block `lblk` without a preallocation.
    pub fn trim(&self, lblk: u32, window: Range<u64>) -> Range<u64> {
        let bits = self.bits();
        self.with(|tree, visits| tree.trim(lblk >> bits, window, visits))
    }

    /// Preallocates `claim` for the blocks from `lblk` on. If some of them have a preallocation
    /// already, the claim goes back and this is false.
    pub fn add(self: &Arc<Self>, lblk: u32, claim: Claim) -> bool {
        let bits = self.bits();
        let (start, len) = claim.into_parts();
        let piece = Piece { logical: lblk >> bits, physical: start.0 >> bits, len: len >> bits };
        // Before threads that search for space to return can find it.
        self.registry.created();
        let group = self.registry.group_of(start);
        let added = self.with(|tree, _| {
            let added = tree.insert(piece, group);
            if let (true, Some(slot @ None)) = (added, tree.slot_mut(group)) {
                *slot = self.registry.by_group.join(group, self);
            }
            added
        });
        if added {
            self.registry.register(self)
        } else {
            self.registry.give_back([piece])
        }
        #[cfg(feature = "designs")]
        self.cut();
        added
    }

    /// Returns the space of the preallocations that a capped list has too many of.
    #[cfg(feature = "designs")]
    fn cut(&self) {
        self.discard_by(|tree, runs, visits| *visits = tree.cut(|part| runs.push(part)));
    }

    /// A claim that was taken is mapped or given back.
    pub(super) fn finish(&self, of: u32) {
        self.with(|tree, _| tree.finish(of));
    }

    /// Returns all unused space. Returns the number of clusters.
    pub fn discard(&self) -> u64 {
        self.discard_by(|tree, runs, visits| {
            *visits = tree.len() as Visits;
            tree.discard(|_| true, |part| runs.push(part));
            tree.sweep();
        })
    }

    /// Returns the unused space in a group of the registry.
    pub(super) fn discard_group(&self, group: u32) {
        self.discard_by(|tree, runs, visits| {
            tree.discard_group(group, |part| runs.push(part), visits);
        });
    }

    /// Returns the space that `work` takes out of the tree. Returns the number of clusters.
    fn discard_by(&self, work: impl FnOnce(&mut Tree, &mut Runs, &mut Visits)) -> u64 {
        let (mut runs, mut visits) = (Runs::new(), 0);
        let gone = self.with(|tree, _| {
            let before = tree.len();
            work(tree, &mut runs, &mut visits);
            before - tree.len()
        });
        self.registry.discarded(gone, visits);
        let clusters = runs.iter().map(|run| u64::from(run.len)).sum();
        self.registry.give_back(runs);
        clusters
    }
}

impl Drop for Prealloc {
    fn drop(&mut self) {
        self.registry.forget(self.age.load(Ordering::Relaxed));
        if !self.tree.get_mut().is_empty() {
            self.discard();
        }
        for (group, slot) in self.tree.get_mut().slots() {
            self.registry.by_group.leave(group, slot);
        }
    }
}
