//! Counters of the allocator.

use super::FreeSpace;
use crate::alloc::Alloc;
use extant_format::types::GroupNr;
use extant_space::Summary;
use extant_sync::ShardedCounter;
use extant_sync::atomic::Ordering::Relaxed;

/// Counters; each is a sum over threads.
#[derive(Debug, Default)]
pub(in crate::alloc) struct Counts {
    /// Claims by where their place was found.
    pub goal: ShardedCounter,
    pub stream: ShardedCounter,
    pub criteria: [ShardedCounter; 3],
    pub anywhere: ShardedCounter,
    /// Searches that asked the order of all trees, and those that found it busy.
    pub advice: ShardedCounter,
    pub busy: ShardedCounter,
    /// Trees that requests looked at because nothing was known of them.
    pub explored: ShardedCounter,
    /// Claims in groups that earlier ones had brought into memory, and bitmaps read into it.
    pub hits: ShardedCounter,
    pub bitmaps_read: ShardedCounter,
    /// Bitmaps that were scanned for their summaries.
    pub bitmaps_scanned: ShardedCounter,
    /// Trees that came into memory and that left it.
    pub loaded: ShardedCounter,
    pub evictions: ShardedCounter,
}

/// Contents and counters of the free-space trees.
#[derive(Clone, Debug, Default)]
pub struct SpaceStats {
    /// Bytes of all trees in memory.
    pub frsp_tree_usage: u64,
    /// The most bytes that trees may take; 0 for any number.
    pub mb_frsp_max_mem: u64,
    /// How much a request does to know more: 0 to 3.
    pub frsp_cache_aggression: u8,
    /// Whether bitmaps are scanned in the background.
    pub prefetch_block_bitmaps: bool,
    /// Trees (flexible groups) in all; those on the active and on the inactive list; those of which
    /// not all is known.
    pub trees: u32,
    /// Trees in memory that another search used after the one that loaded them.
    pub trees_active: u64,
    /// Trees in memory that were not.
    pub trees_inactive: u64,
    /// Trees with groups of which nothing is known.
    pub trees_unknown: u64,
    /// Times that a tree came into memory.
    pub trees_loaded: u64,
    /// Times that a tree left memory.
    pub trees_evicted: u64,
    /// Searches in groups that were in memory already.
    pub cache_hits: u64,
    /// Bitmaps whose free runs were loaded.
    pub bitmaps_read: u64,
    /// Bitmaps that were scanned for their summaries.
    pub bitmaps_scanned: u64,
    /// Claims satisfied at their goal or near it in its group, behind the thread's last place, at
    /// criteria 0 (whole length), 1 (best, not in metadata's groups) and 2 (best), and by looking
    /// everywhere.
    pub claims: [u64; 6],
    /// Searches in the order of all trees.
    pub advice: u64,
    /// Searches that found it busy and looked at trees nearby.
    pub advice_busy: u64,
    /// Trees that requests looked at because nothing was known of them.
    pub advice_unknown: u64,
    /// Bytes of summaries and of the order of all trees.
    pub index_bytes: u64,
}

/// Free runs by their lengths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fragmentation {
    /// Clusters of the longest run that is known; none if nothing is known yet.
    pub longest: Option<u32>,
    /// Flexible groups of which not all is known yet.
    pub unknown: u64,
    /// For each power of two the number of runs of at least so many clusters and less than twice as
    /// many.
    pub runs: Vec<u32>,
}

fn sum(counter: &ShardedCounter) -> u64 {
    u64::try_from(counter.sum()).unwrap_or(0)
}

impl Alloc {
    /// Counters of the free-space trees.
    pub fn space_stats(&self) -> SpaceStats {
        let (blocks, counts) = (&self.space, &self.space.counts);
        let (active, inactive) = blocks.memory.lru.lock().len();
        let [full, best, any] = &counts.criteria;
        SpaceStats {
            frsp_tree_usage: blocks.memory.usage(),
            mb_frsp_max_mem: blocks.memory.limit(),
            frsp_cache_aggression: blocks.level.load(Relaxed),
            prefetch_block_bitmaps: blocks.scan.is_on(),
            trees: blocks.meta.len(),
            trees_active: active as u64,
            trees_inactive: inactive as u64,
            trees_unknown: blocks.scan.left(),
            trees_loaded: sum(&counts.loaded),
            trees_evicted: sum(&counts.evictions),
            cache_hits: sum(&counts.hits),
            bitmaps_read: sum(&counts.bitmaps_read),
            bitmaps_scanned: sum(&counts.bitmaps_scanned),
            claims: [&counts.goal, &counts.stream, full, best, any, &counts.anywhere].map(sum),
            advice: sum(&counts.advice),
            advice_busy: sum(&counts.busy),
            advice_unknown: sum(&counts.explored),
            index_bytes: (blocks.summaries.bytes() + blocks.meta.bytes()) as u64,
        }
    }

    /// How fragmented free space is. Groups in memory are counted as they are, others as they were
    /// when they were last looked at, rounded down to powers of two; those never looked at are left
    /// out. A file system that is too small for a scan in the background is scanned now.
    pub fn fragmentation(&self) -> Fragmentation {
        self.scan_few();
        let unknown = self.space.scan.left();
        let mut all = Summary::default();
        (0..self.space.meta.len()).for_each(|tree| all.merge(&self.space.fragmentation_of(tree)));
        let longest = (all.longest > 0 || unknown == 0).then_some(all.longest);
        Fragmentation { longest, unknown, runs: all.runs.to_vec() }
    }
}

impl FreeSpace {
    fn fragmentation_of(&self, t: u32) -> Summary {
        let Some(tree) = self.tree(t) else { return Summary::default() };
        let mut all = Summary::of(tree.free.by_length());
        let groups = self.shape.groups_of(t);
        let absent = groups.filter(|g| tree.is_absent(self.shape.mask(GroupNr(*g))));
        absent.filter_map(|g| self.summaries.get(g)).for_each(|group| all.merge(&group));
        all
    }
}
