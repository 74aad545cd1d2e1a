//! What opening found, and counters of a live file system.

use crate::alloc::{PreallocStats, SpaceStats, Usage};
use crate::inode::PoolStats;
use crate::ops::{Operations, OrphanReport};
use crate::orphan::OrphanStats;
use extant_blocks::CacheStats;
use extant_journal::Stats as JournalStats;
use extant_journal::recovery::Outcome;

/// What opening had to mend.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// What was replayed; None if the journal was empty or there is none.
    pub journal: Option<Outcome>,
    /// Whether the journal held something though the superblock said that nothing had to be recovered: it was emptied.
    pub log_emptied: bool,
    /// Whether the replay went into memory only.
    pub in_memory: bool,
    /// What was done with orphan records.
    pub orphans: OrphanReport,
    /// Why the file system can be read only, if it was not asked to be.
    pub read_only: Option<String>,
}

/// Counters of all rooms.
#[derive(Clone, Debug)]
pub struct FsStats {
    /// Space.
    pub usage: Usage,
    /// Free-space trees.
    pub space: SpaceStats,
    /// Inodes in memory that can be looked up by number.
    pub inodes_cached: usize,
    /// Inodes in memory that have no name and that nobody looks up by number.
    pub inodes_nameless: usize,
    /// Of those that can be looked up, inodes that nobody uses, about.
    pub inodes_unused: usize,
    /// Inodes that are held, by a FUSE kernel for example, without being in memory.
    pub inodes_parked: usize,
    /// Inodes that left memory to stay within its bound.
    pub inodes_evicted: u64,
    /// Inodes that were loaded before anybody asked for them.
    pub inodes_ahead: u64,
    /// Of these, inodes that somebody asked for then.
    pub inodes_ahead_used: u64,
    /// Names in memory.
    pub names_cached: usize,
    /// Names that left memory to stay within its bound.
    pub names_evicted: u64,
    /// File content in memory.
    pub pages: PoolStats,
    /// The block cache.
    pub cache: CacheStats,
    /// The journal.
    pub journal: JournalStats,
    /// Preallocations.
    pub prealloc: PreallocStats,
    /// Orphan records.
    pub orphans: OrphanStats,
}

impl FsStats {
    /// The counters now.
    pub fn of(ops: &Operations) -> FsStats {
        let st = ops.st();
        let (inodes_ahead, inodes_ahead_used) = ops.vfs.ahead.counts();
        FsStats {
            usage: ops.usage(),
            space: st.alloc.space_stats(),
            inodes_cached: ops.vfs.inodes.len(),
            inodes_nameless: ops.vfs.inodes.nameless(),
            inodes_parked: ops.vfs.inodes.parked(),
            inodes_unused: ops.vfs.inodes.unused(),
            inodes_evicted: ops.vfs.inodes.evicted(),
            inodes_ahead,
            inodes_ahead_used,
            names_cached: ops.vfs.dentries.len(),
            names_evicted: ops.vfs.dentries.evicted(),
            pages: st.pool.stats(),
            cache: st.cache.stats(),
            journal: st.journal.stats(),
            prealloc: st.alloc.prealloc_stats(),
            orphans: st.orphans.stats(),
        }
    }
}
