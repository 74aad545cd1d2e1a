//! Counters of preallocation.

use extant_space::prealloc::Visits;
use extant_sync::ShardedCounter;

/// Preallocated space now, and counters since the file system was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PreallocStats {
    /// Whether space is kept for files that are being written.
    pub pa: bool,
    /// The sharing of runs by small files: none (0), one run for all threads (1), one for each
    /// thread (2).
    pub lg: u8,
    /// Preallocations of files now.
    pub live: u64,
    /// Preallocated blocks that no file uses, with those for small files and directories.
    pub blocks: u64,
    /// Bytes of memory that files' preallocations take.
    pub bytes: u64,
    /// Preallocations that were made for files.
    pub created: u64,
    /// Preallocations that were given back before they were used up.
    pub discarded: u64,
    /// Searches in files' preallocations.
    pub searches: u64,
    /// Preallocations that those searches looked at.
    pub visited: u64,
    /// Small files' and directories' claims that a shared run had.
    pub small_hits: u64,
    /// Those for which there was none.
    pub small_misses: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    live: ShardedCounter,
    bytes: ShardedCounter,
    /// Unused clusters.
    pub held: ShardedCounter,
    /// Clusters that were given back.
    pub given: ShardedCounter,
    pub created: ShardedCounter,
    pub discarded: ShardedCounter,
    searches: ShardedCounter,
    visited: ShardedCounter,
    pub small_hits: ShardedCounter,
    pub small_misses: ShardedCounter,
}

fn shift(counter: &ShardedCounter, before: u64, after: u64) {
    if before != after {
        counter.add(after.wrapping_sub(before) as i64);
    }
}

fn sum(counter: &ShardedCounter) -> u64 {
    u64::try_from(counter.sum()).unwrap_or(0)
}

impl Counters {
    /// Preallocations, bytes and unused clusters of a tree changed.
    pub fn moved(&self, before: (usize, usize, u64), after: (usize, usize, u64), visits: Visits) {
        shift(&self.live, before.0 as u64, after.0 as u64);
        shift(&self.bytes, before.1 as u64, after.1 as u64);
        shift(&self.held, before.2, after.2);
        if visits > 0 {
            self.searches.add(1);
            self.visited.add(visits.into());
        }
    }

    pub fn bytes(&self) -> u64 {
        sum(&self.bytes)
    }

    pub fn stats(&self, cluster_bits: u32) -> PreallocStats {
        PreallocStats {
            live: sum(&self.live),
            blocks: sum(&self.held) << cluster_bits,
            bytes: sum(&self.bytes),
            created: sum(&self.created),
            discarded: sum(&self.discarded),
            searches: sum(&self.searches),
            visited: sum(&self.visited),
            small_hits: sum(&self.small_hits),
            small_misses: sum(&self.small_misses),
            ..PreallocStats::default()
        }
    }
}
