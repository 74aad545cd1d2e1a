//! All groups' free maps, and the budget over them.
//!
//! # Locking
//! `Blocks::warm` queues (Alloc) and cools other groups while a group is locked; those it only tries to lock.

use super::Purpose;
use super::group::{self, Group, Map};
use crate::error::{Error, Result};
use crate::groups::Groups;
use crate::volume::Volume;
use extant_format::types::{BlockNr, GroupNr};
use extant_journal::Tid;
use extant_space::{Budget, FreeMap, Index, Run};
use extant_sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use extant_sync::{Level, Mutex, MutexGuard, Sharded};
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes that free maps may take, as far as nothing is claimed in their groups.
const MAP_BYTES: usize = 64 << 20;
/// The most groups that one load looks at to drop others.
const COOL_STEPS: usize = 4;
/// Clusters that data leave to metadata, at most; and their share of all clusters.
const MARGIN: u64 = 4096;
const MARGIN_SHARE: u64 = 50;

/// The blocks of a file system.
#[derive(Debug)]
pub struct Blocks {
    pub(super) vol: Arc<Volume>,
    pub(super) groups: Arc<Groups>,
    slots: Box<[Mutex<Group>]>,
    /// For each group the longest free run's power of two. For a group that was never looked at, what it would be if all
    /// its free clusters were one run.
    pub(super) longest: Index,
    /// Clusters that may be claimed or reserved.
    pub(super) budget: Budget,
    /// Clusters that only root may use, and those that only metadata may use.
    root: u64,
    margin: u64,
    /// Warm groups, in the order in which eviction looks at them.
    warm: Mutex<VecDeque<GroupNr>>,
    max_warm: usize,
    freed: Sharded<Mutex<Vec<Freed>>>,
    pending: AtomicI64,
    /// Whether freed space is discarded before it is allocated again.
    pub(super) discard: AtomicBool,
    /// How often a bitmap could not be read.
    pub(super) unread: AtomicU64,
    /// Where each thread last found space away from its goal.
    pub(super) streams: Sharded<AtomicU64>,
}

/// Clusters whose freeing is not durable yet.
#[derive(Debug, Clone, Copy)]
struct Freed {
    tid: Tid,
    group: GroupNr,
    run: Run,
}

/// The largest power of two up to `count`; 0 for 0.
pub(super) fn power(count: u32) -> u32 {
    count.checked_ilog2().map_or(0, |log| 1 << log)
}

impl Blocks {
    pub fn new(vol: Arc<Volume>, groups: Arc<Groups>) -> Blocks {
        let free = |g| groups.with(GroupNr(g), |desc| desc.free_clusters);
        let longest = Index::new((0..groups.count()).map(|g| power(free(g))));
        let clusters = vol.geo.blocks_count >> vol.geo.cluster_bits;
        let root = groups.superblock().r_blocks_count() >> vol.geo.cluster_bits;
        Blocks {
            slots: (0..groups.count()).map(|_| Mutex::new(Level::Group, Group::Cold)).collect(),
            longest,
            budget: Budget::new(groups.free_clusters()),
            root,
            margin: (clusters / MARGIN_SHARE).min(MARGIN),
            warm: Mutex::new(Level::Alloc, VecDeque::new()),
            max_warm: (MAP_BYTES / vol.block_size()).max(64),
            freed: Sharded::new(|_| Mutex::new(Level::Alloc, Vec::new())),
            pending: AtomicI64::new(0),
            discard: AtomicBool::new(false),
            unread: AtomicU64::new(0),
            streams: Sharded::default(),
            vol,
            groups,
        }
    }

    pub fn cluster_ratio(&self) -> u32 {
        self.vol.geo.cluster_ratio()
    }

    /// Whole clusters that `blocks` blocks take.
    pub fn clusters(&self, blocks: u32) -> u64 {
        u64::from(blocks.div_ceil(self.cluster_ratio()))
    }

    /// Clusters that have to be left.
    pub fn keep(&self, purpose: Purpose, privileged: bool) -> u64 {
        match (purpose, privileged) {
            (Purpose::Data, false) => self.root.saturating_add(self.margin),
            (Purpose::Data, true) => self.margin,
            (Purpose::Metadata, false) => self.margin / 2,
            (Purpose::Metadata, true) => 0,
        }
    }

    /// The root reserve and the margin.
    pub fn kept(&self) -> (u64, u64) {
        (self.root, self.margin)
    }

    /// Clusters whose freeing is not durable yet.
    pub fn pending(&self) -> u64 {
        u64::try_from(self.pending.load(Ordering::SeqCst)).unwrap_or(0)
    }

    pub(super) fn count(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Locks a group; `None` if there is no such group.
    pub(super) fn lock(&self, g: GroupNr) -> Option<MutexGuard<'_, Group>> {
        self.slots.get(g.index()).map(|slot| slot.lock())
    }

    /// Locks a group that nobody holds.
    pub(super) fn try_lock(&self, g: GroupNr) -> Option<MutexGuard<'_, Group>> {
        self.slots.get(g.index()).and_then(|slot| slot.try_lock())
    }

    /// The group's map, loaded if need be. `None` if the group is bad, or turns out to be.
    pub(super) fn warm<'a>(&self, g: GroupNr, group: &'a mut Group) -> Option<&'a mut Map> {
        self.try_warm(g, group).ok()
    }

    /// As [`Self::warm`].
    ///
    /// # Errors
    /// Why the group is bad.
    pub(super) fn try_warm<'a>(&self, g: GroupNr, group: &'a mut Group) -> Result<&'a mut Map> {
        if matches!(group, Group::Cold) {
            match group::load(&self.vol, &self.groups, g) {
                Ok(map) => self.warmed(g, group, map),
                // The next try may be luckier.
                Err(error @ Error::Io(_)) => {
                    self.unread.fetch_add(1, Ordering::Relaxed);
                    return Err(error);
                }
                Err(error) => return Err(self.disable(g, group, error)),
            }
        }
        let bad = || Error::from(extant_format::error::Corrupt::new("block bitmap").at_group(g));
        let map = group.warm().ok_or_else(bad)?;
        map.used = true;
        Ok(map)
    }

    fn warmed(&self, g: GroupNr, group: &mut Group, map: Box<Map>) {
        self.longest.set(g.0, map.free.longest());
        *group = Group::Warm(map);
        for _ in 0..COOL_STEPS {
            let Some(old) = self.eviction_candidate() else { break };
            let cooled = self.try_lock(old).is_some_and(|mut group| group.cool());
            if !cooled {
                self.warm.lock().push_back(old);
            }
        }
        self.warm.lock().push_back(g);
    }

    fn eviction_candidate(&self) -> Option<GroupNr> {
        let mut warm = self.warm.lock();
        if warm.len() < self.max_warm { None } else { warm.pop_front() }
    }

    /// Gives a group up: nothing is allocated there, and what it had is taken from the budget.
    fn disable(&self, g: GroupNr, group: &mut Group, error: Error) -> Error {
        tracing::error!("group {g} is not used for allocation any more: {error}");
        *group = Group::Bad;
        self.longest.set(g.0, 0);
        self.budget.correct(self.groups.with(g, |desc| desc.free_clusters).into());
        self.groups.note(&error);
        error
    }

    /// The group and the clusters of blocks within one group.
    pub(super) fn place(&self, start: BlockNr, len: u32) -> Option<(GroupNr, Run)> {
        let (g, bit) = self.vol.geo.group_and_bit(start)?;
        Some((g, Run { start: bit, len: len.div_ceil(self.cluster_ratio()) }))
    }

    /// A claim ends without being booked.
    pub(super) fn give_back(&self, start: BlockNr, len: u32) {
        if let Some((g, run)) = self.place(start, len) {
            self.release(g, run);
        }
    }

    /// Makes claimed clusters free again.
    fn release(&self, g: GroupNr, run: Run) {
        let Some(mut group) = self.lock(g) else { return };
        let Some(map) = group.warm() else { return };
        if !map.free.give(run) {
            tracing::error!("clusters {run:?} of group {g} were claimed and free at once");
            return;
        }
        map.claimed = map.claimed.saturating_sub(run.len);
        self.longest.set(g.0, map.free.longest());
        drop(group);
        self.budget.give(run.len.into());
    }

    /// Notes clusters that `tid` frees; their map counts them as claimed.
    pub(super) fn defer(&self, tid: Tid, group: GroupNr, run: Run) {
        self.pending.fetch_add(i64::from(run.len), Ordering::SeqCst);
        self.freed.local().lock().push(Freed { tid, group, run });
    }

    /// What `tid` and its predecessors freed may be allocated again.
    pub fn committed(&self, tid: Tid) {
        let mut durable: Vec<Freed> = Vec::new();
        for list in self.freed.iter() {
            durable.extend(list.lock().extract_if(.., |freed| freed.tid <= tid));
        }
        durable.sort_unstable_by_key(|freed| (freed.group, freed.run.start));
        if self.discard.load(Ordering::Relaxed) {
            self.discard_runs(durable.iter().map(|freed| (freed.group, freed.run)));
        }
        for freed in durable {
            self.release(freed.group, freed.run);
            self.pending.fetch_sub(i64::from(freed.run.len), Ordering::SeqCst);
        }
    }
}
