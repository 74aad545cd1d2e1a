//! Counters of preallocation.

use extant_space::prealloc::Visits;
use extant_sync::atomic::{AtomicI64, Ordering::Relaxed};
use extant_sync::{Sharded, ShardedCounter};

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
    /// Preallocations that discards looked at.
    pub discard_visited: u64,
    /// Searches in files' preallocations.
    pub searches: u64,
    /// Preallocations that those searches looked at.
    pub visited: u64,
    /// Small files' and directories' claims that a shared run had.
    pub small_hits: u64,
    /// Those for which there was none.
    pub small_misses: u64,
}

/// The counters of one shard of threads, together on one or two cache lines.
#[derive(Debug, Default)]
pub(super) struct Part {
    live: AtomicI64,
    bytes: AtomicI64,
    /// Unused clusters.
    pub held: AtomicI64,
    searches: AtomicI64,
    visited: AtomicI64,
    pub created: AtomicI64,
    pub discarded: AtomicI64,
    pub discard_visited: AtomicI64,
    pub small_hits: AtomicI64,
    pub small_misses: AtomicI64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    parts: Sharded<Part>,
    /// Clusters that were given back.
    pub given: ShardedCounter,
}

/// Adds to a counter. Relaxed: a sum is off by the changes in progress.
#[inline]
pub(super) fn count(counter: &AtomicI64, by: i64) {
    counter.fetch_add(by, Relaxed);
}

fn shift(counter: &AtomicI64, before: u64, after: u64) {
    if before != after {
        count(counter, after.wrapping_sub(before) as i64);
    }
}

impl Counters {
    /// Returns the counters of this thread's shard.
    #[inline]
    pub fn local(&self) -> &Part {
        self.parts.local()
    }

    /// Preallocations, bytes and unused clusters of a tree changed.
    #[inline]
    pub fn moved(&self, before: (usize, usize, u64), after: (usize, usize, u64), visits: Visits) {
        let part = self.local();
        shift(&part.live, before.0 as u64, after.0 as u64);
        shift(&part.bytes, before.1 as u64, after.1 as u64);
        shift(&part.held, before.2, after.2);
        if visits > 0 {
            count(&part.searches, 1);
            count(&part.visited, visits.into());
        }
    }

    fn sum(&self, of: impl Fn(&Part) -> &AtomicI64) -> u64 {
        let sum = self.parts.iter().map(|part| of(part).load(Relaxed)).fold(0, i64::wrapping_add);
        u64::try_from(sum).unwrap_or(0)
    }

    pub fn bytes(&self) -> u64 {
        self.sum(|part| &part.bytes)
    }

    /// Returns the unused clusters.
    pub fn held(&self) -> u64 {
        self.sum(|part| &part.held)
    }

    pub fn stats(&self, cluster_bits: u32) -> PreallocStats {
        PreallocStats {
            live: self.sum(|part| &part.live),
            blocks: self.held() << cluster_bits,
            bytes: self.bytes(),
            created: self.sum(|part| &part.created),
            discarded: self.sum(|part| &part.discarded),
            discard_visited: self.sum(|part| &part.discard_visited),
            searches: self.sum(|part| &part.searches),
            visited: self.sum(|part| &part.visited),
            small_hits: self.sum(|part| &part.small_hits),
            small_misses: self.sum(|part| &part.small_misses),
            ..PreallocStats::default()
        }
    }
}
