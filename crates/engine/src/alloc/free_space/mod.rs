//! Free space in memory: a tree for each flexible group, the budget over all of them, and frees
//! that are not durable yet.
//!
//! `bitmap` makes the free runs of a group, `tree` holds them, `search` takes space from trees, and
//! `returned` lists space that comes back. `scan` and `memory` bring groups into memory and out of
//! it. The invariants and the order of locks are those of [`alloc`](super).

mod bitmap;
mod grow;
mod memory;
mod returned;
mod scan;
mod search;
mod shape;
mod stats;
mod tree;

pub use scan::Scanned;
pub use stats::{Fragmentation, SpaceStats};

pub(super) use bitmap::{Bitmap, is_metadata};
pub(super) use tree::Tree;

use super::Purpose;
use super::discard::Discards;
use super::free_batches::FreeBatches;
use crate::groups::Groups;
use crate::volume::Volume;
use extant_format::group_desc::GroupFlags;
use extant_format::types::{BlockNr, GroupNr};
use extant_space::{Budget, FreeTree, Meta, Run, Summaries, Summary};
use extant_sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};
use extant_sync::{GrowingTable, Level, Mutex, Sharded};
use memory::Memory;
use returned::ReturnedRuns;
use scan::Scan;
use shape::Shape;
use stats::Counts;
use std::sync::Arc;

/// Clusters that data leave to metadata, at most; and their share of all clusters.
const MARGIN: u64 = 4096;
const MARGIN_SHARE: u64 = 50;

/// How much a request does to know more, at first (`frsp_cache_aggression`).
const LEVEL: u8 = 1;

/// The free space of a file system, and the only owner of these fields.
#[derive(Debug)]
pub struct FreeSpace {
    pub(in crate::alloc) vol: Arc<Volume>,
    pub(in crate::alloc) groups: Arc<Groups>,
    pub(in crate::alloc) shape: Shape,
    pub(in crate::alloc) bitmaps: GrowingTable<Mutex<Bitmap>>,
    pub(in crate::alloc) trees: GrowingTable<Mutex<Tree>>,
    /// The returned runs of each tree, and the trees that have any.
    pub(in crate::alloc) returned: GrowingTable<ReturnedRuns>,
    pub(in crate::alloc) noted_trees: Mutex<Vec<u32>>,
    /// All trees by their longest runs.
    pub(in crate::alloc) meta: Meta,
    /// Summaries of groups that are not in memory.
    pub(in crate::alloc) summaries: Summaries,
    pub(in crate::alloc) scan: Scan,
    pub(in crate::alloc) memory: Memory,
    /// How much a request does to know more: 0 to 3.
    pub(in crate::alloc) level: AtomicU8,
    pub(in crate::alloc) counts: Counts,
    /// Clusters that may be claimed or reserved.
    pub(in crate::alloc) budget: Budget,
    /// Clusters that only root may use, and those that only metadata may use.
    root: AtomicU64,
    margin: AtomicU64,
    /// Clusters with frees that are not durable yet, by shards of threads that listed and released
    /// them.
    pending: Sharded<AtomicI64>,
    /// Frees that are not booked yet.
    pub(in crate::alloc) free_batches: FreeBatches,
    /// Discards.
    pub(in crate::alloc) discards: Discards,
    /// How often a bitmap could not be read.
    pub(in crate::alloc) unread: AtomicU64,
    /// Where each thread last found space away from its goal.
    pub(in crate::alloc) streams: Sharded<AtomicU64>,
}

impl FreeSpace {
    pub fn new(vol: Arc<Volume>, groups: Arc<Groups>) -> FreeSpace {
        let shape = Shape::new(&vol.geo, groups.count());
        let summaries = never_used(&vol, &groups);
        let known =
            |tree| shape.groups_of(tree).filter_map(|g| summaries.longest(g)).max().unwrap_or(0);
        let longest: Vec<u32> = (0..shape.trees()).map(known).collect();
        let unknown = |tree: u32| shape.groups_of(tree).any(|g| summaries.longest(g).is_none());
        let worst = FreeTree::worst_bytes(shape.tree_len());
        let bitmaps_twice = u64::from(groups.count()) * 2 * vol.block_size() as u64;
        FreeSpace {
            bitmaps: (0..groups.count()).map(|_| Bitmap::new()).collect(),
            trees: longest
                .iter()
                .map(|len| Mutex::new(Level::FreeSpace, Tree::new(&shape, *len)))
                .collect(),
            returned: longest.iter().map(|_| ReturnedRuns::new()).collect(),
            noted_trees: Mutex::new(Level::Leaf, Vec::new()),
            scan: Scan::new(shape.trees(), unknown),
            meta: Meta::new(longest),
            summaries,
            memory: Memory::new(shape.trees(), worst, bitmaps_twice.max(worst)),
            level: AtomicU8::new(LEVEL),
            counts: Counts::default(),
            budget: Budget::new(groups.free_clusters()),
            root: AtomicU64::new(root_of(&vol, &groups)),
            margin: AtomicU64::new(margin_of(&vol)),
            pending: Sharded::default(),
            free_batches: FreeBatches::new(groups.count()),
            discards: Discards::new(),
            unread: AtomicU64::new(0),
            streams: Sharded::default(),
            shape,
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

    /// Returns the number of clusters that must remain free.
    pub fn min_free(&self, purpose: Purpose, privileged: bool) -> u64 {
        let (root, margin) = self.kept();
        match (purpose, privileged) {
            (Purpose::Data, false) => root.saturating_add(margin),
            (Purpose::Data, true) => margin,
            (Purpose::Metadata, false) => margin / 2,
            (Purpose::Metadata, true) => 0,
        }
    }

    /// The root reserve and the margin.
    pub fn kept(&self) -> (u64, u64) {
        // Relaxed: numbers that guard nothing.
        (self.root.load(Ordering::Relaxed), self.margin.load(Ordering::Relaxed))
    }

    /// Returns the number of clusters with frees that are not durable yet.
    pub fn pending(&self) -> u64 {
        u64::try_from(self.pending.iter().map(|part| part.load(Ordering::SeqCst)).sum::<i64>())
            .unwrap_or(0)
    }

    pub(in crate::alloc) fn add_pending(&self, clusters: i64) {
        // SeqCst: a thread that lacks space reads this, and then the numbers of transactions.
        self.pending.local().fetch_add(clusters, Ordering::SeqCst);
    }

    /// The group and the clusters of blocks within one group.
    pub(in crate::alloc) fn place(&self, start: BlockNr, len: u32) -> Option<(GroupNr, Run)> {
        let (g, bit) = self.vol.geo.group_and_bit(start)?;
        Some((g, Run { start: bit, len: len.div_ceil(self.cluster_ratio()) }))
    }

    /// A claim ends without being booked.
    pub(in crate::alloc) fn give_back(&self, start: BlockNr, len: u32) {
        if let Some((g, run)) = self.place(start, len) {
            self.release(g, run);
        }
    }

    /// Returns the position of a claim, but not its space. Returns the number of blocks that its
    /// owner still has taken from the budget.
    pub(in crate::alloc) fn unplace(&self, start: BlockNr, len: u32) -> u32 {
        let release = |(g, run)| self.release_held(self.shape.tree_of(g), &[(g, run)]);
        let clusters = self.place(start, len).map_or(0, release);
        u32::try_from(clusters << self.vol.geo.cluster_bits).unwrap_or(u32::MAX)
    }

    /// Makes held clusters free again.
    pub(in crate::alloc) fn release(&self, g: GroupNr, run: Run) {
        self.budget.give(self.release_held(self.shape.tree_of(g), &[(g, run)]));
    }

    /// Makes held clusters free again. Each tree's lists are locked once.
    pub(in crate::alloc) fn release_all(&self, mut runs: Vec<(GroupNr, Run)>) {
        let tree = |run: &(GroupNr, Run)| self.shape.tree_of(run.0);
        runs.sort_unstable_by_key(tree);
        for of_tree in runs.chunk_by(|a, b| tree(a) == tree(b)) {
            let Some(first) = of_tree.first() else { continue };
            self.budget.give(self.release_held(tree(first), of_tree));
        }
    }
}

/// Clusters that only root may use.
fn root_of(vol: &Volume, groups: &Groups) -> u64 {
    groups.superblock().r_blocks_count() >> vol.geo.cluster_bits
}

/// Clusters that only metadata may use.
fn margin_of(vol: &Volume) -> u64 {
    ((vol.geo.blocks_count >> vol.geo.cluster_bits) / MARGIN_SHARE).min(MARGIN)
}

/// Summarizes groups with a bitmap that was never written, without reading it: their free space is
/// behind their metadata.
fn never_used(vol: &Volume, groups: &Groups) -> Summaries {
    let summaries = Summaries::new(groups.count());
    for g in (0..groups.count()).map(GroupNr) {
        let free = groups.with(g, |desc| {
            desc.has_flag(&vol.geo, GroupFlags::BLOCK_UNINIT).then_some(desc.free_clusters)
        });
        if let Some(len) = free {
            summaries.set(g.0, &Summary::of([Run { start: 0, len }]));
        }
    }
    summaries
}
