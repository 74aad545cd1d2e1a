//! The results of an opening, and counters of an open file system.

use crate::alloc::{PreallocStats, SpaceStats, Usage};
use crate::ops::{Operations, OrphanReport};
use crate::orphan::OrphanStats;
use crate::store::PoolStats;
use extant_blocks::{CacheStats, PlugStats};
use extant_format::superblock::ErrorRecord;
use extant_journal::Stats as JournalStats;
use extant_journal::recovery::Outcome;
use extant_sync::atomic::Ordering;

/// The repairs of an opening.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// The result of the replay; `None` if the journal was empty or there is none.
    pub journal: Option<Outcome>,
    /// Whether the journal held something though the superblock said that nothing had to be
    /// recovered: it was emptied.
    pub log_emptied: bool,
    /// Whether the superblock said that the file system was in use: it was not unmounted.
    pub was_in_use: bool,
    /// Why the journal was left alone, where
    /// [`OpenOptions::skip_damaged_log`](crate::OpenOptions::skip_damaged_log) allows that: its
    /// changes are missing.
    pub log_skipped: Option<String>,
    /// Whether the device is unchanged: blocks are read from their copies in the log, and fast
    /// commits were replayed in memory.
    pub in_memory: bool,
    /// The results for orphan records.
    pub orphans: OrphanReport,
    /// Why the file system can be read only, if it was not asked to be.
    pub read_only: Option<String>,
}

/// Whether a live file system can be changed, and the errors that its superblock has recorded.
#[derive(Clone, Debug)]
pub struct Health {
    /// Nothing can be changed: asked for, or after an error.
    pub read_only: bool,
    /// It was shut down.
    pub shut_down: bool,
    /// The journal was aborted.
    pub journal_aborted: bool,
    /// An error of the file system's own structures ends all changes.
    pub stops_on_error: bool,
    /// Errors since the last check.
    pub errors: u32,
    /// The first of them.
    pub first_error: Option<ErrorRecord>,
    /// The last of them.
    pub last_error: Option<ErrorRecord>,
}

impl Health {
    fn of(ops: &Operations) -> Health {
        let (st, sb) = (ops.st(), ops.st().groups.superblock());
        let journal_aborted = st.journal.is_aborted();
        Health {
            read_only: st.read_only.load(Ordering::Acquire) || journal_aborted,
            shut_down: st.is_shut_down(),
            journal_aborted,
            stops_on_error: st.policy.stop_on_error,
            errors: sb.error_count(),
            first_error: sb.first_error(),
            last_error: sb.last_error(),
        }
    }
}

/// Counters of all modules.
#[derive(Clone, Debug)]
pub struct FsStats {
    /// State and errors.
    pub health: Health,
    /// Space.
    pub usage: Usage,
    /// Free-space trees.
    pub space: SpaceStats,
    /// The number of shards of structures that threads share.
    pub shards: usize,
    /// Inodes in memory that can be looked up by number.
    pub inodes_cached: usize,
    /// Inodes in memory without a name that cannot be looked up by number.
    pub inodes_nameless: usize,
    /// The approximate number of unused inodes among those that can be looked up.
    pub inodes_unused: usize,
    /// Inodes that are held, by a FUSE kernel for example, without being in memory.
    pub inodes_parked: usize,
    /// Inodes that left memory to stay within its bound.
    pub inodes_evicted: u64,
    /// Inodes that were loaded before anybody asked for them.
    pub inodes_ahead: u64,
    /// Prefetched inodes that were asked for.
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
    /// Writes of file content, and the requests to the device that they were merged into.
    pub plugs: PlugStats,
    /// Files of which these writes had content; a file counts once for each batch of requests.
    pub plug_files: u64,
    /// References to objects in memory that had to take a lock, in the whole process.
    pub lockref_fallbacks: u64,
}

impl FsStats {
    /// The counters now.
    pub fn of(ops: &Operations) -> FsStats {
        let st = ops.st();
        let (inodes_ahead, inodes_ahead_used) = ops.vfs.prefetch.counts();
        FsStats {
            health: Health::of(ops),
            usage: ops.usage(),
            space: st.alloc.space_stats(),
            shards: st.shards,
            inodes_cached: ops.vfs.inodes.len(),
            inodes_nameless: ops.vfs.inodes.nameless(),
            inodes_parked: ops.vfs.inodes.evicted_holds(),
            inodes_unused: ops.vfs.inodes.unused(),
            inodes_evicted: ops.vfs.inodes.evicted(),
            inodes_ahead,
            inodes_ahead_used,
            names_cached: ops.vfs.dentries.len(),
            names_evicted: ops.vfs.dentries.evicted(),
            pages: st.page_stats(),
            cache: st.cache.stats(),
            journal: st.journal.stats(),
            prealloc: st.alloc.prealloc_stats(),
            orphans: st.orphans.stats(),
            plugs: st.dirty_files.plugs.sum(),
            plug_files: st.dirty_files.plugs.files(),
            lockref_fallbacks: extant_sync::lockref::Lockref::fallbacks(),
        }
    }
}
