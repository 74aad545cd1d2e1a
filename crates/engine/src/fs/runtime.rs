//! Threads that many file systems of one process share.

use super::OpenOptions;
use super::memory::MIN_MEMORY;
use super::shares::MemoryPool;
use crate::os::run_in_background;
use extant_sync::scheduler::{Lanes, Scheduler, SchedulerStats, TaskOwner};
use extant_sync::shard_count;
use std::sync::Arc;
use std::time::Duration;

/// The least number of threads: one for timers, one for the background, one for jobs that wait for
/// commits, one for commits.
const MIN_THREADS: usize = 4;

/// A job that has run for so long gets a spare thread in its place: its device may hang.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// The most tasks of one file system in the background: scans, zeroing, looking ahead.
const MAX_BACKGROUND: usize = 8 + 2;

/// Threads shared by any number of file systems: see [`OpenOptions::runtime`].
///
/// Idle file systems cause no wakeups. No operation depends on a free thread: a caller that waits
/// for a commit or for space in the log does the work itself if no thread does. A device that
/// hangs therefore keeps only its own file system from work.
#[derive(Clone, Debug)]
pub struct Runtime {
    scheduler: Scheduler,
    memory: Option<Arc<MemoryPool>>,
}

/// The bounds of a [`Runtime`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct RuntimeBuilder {
    threads: usize,
    memory: Option<u64>,
}

/// Counters of a [`Runtime`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeStats {
    /// Threads that live.
    pub threads: usize,
    /// The most that lived at once.
    pub most_threads: usize,
    /// Jobs run: commits, writebacks and so on.
    pub runs: u64,
    /// Wakeups of threads.
    pub wakeups: u64,
    /// Bytes of [`RuntimeBuilder::memory`] that are lent to file systems; 0 without it.
    pub memory: u64,
}

impl Default for RuntimeBuilder {
    fn default() -> Self {
        RuntimeBuilder { threads: shard_count().clamp(MIN_THREADS, 8), memory: None }
    }
}

impl RuntimeBuilder {
    /// The most threads that live at once; at least 4, which any smaller number stands for. While
    /// jobs hang on their devices there may be as many again in their places. The default is the
    /// number of processors, between 4 and 8.
    pub fn threads(mut self, n: usize) -> Self {
        self.threads = n.max(MIN_THREADS);
        self
    }

    /// Bounds the caches of all file systems of the runtime together, in bytes: pages, metadata
    /// blocks, inodes and names. Values below 64 MiB count as 64 MiB. By default each file system
    /// has a bound of its own ([`OpenOptions::memory`]), which has no effect with this one.
    ///
    /// Each file system gets 4 MiB, also beyond the bound if that is too small for all of them. The
    /// rest goes to those whose caches evict: idle ones give their bytes back, and busy ones come
    /// to equal shares. Beside the bound, the journal of a file system takes up to 8 MiB while it
    /// has changes that are not in their places yet. File systems with a seed keep a bound of their
    /// own.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes.max(MIN_MEMORY));
        self
    }

    /// Starts the runtime. Its threads start when they are needed.
    ///
    /// # Errors
    /// If the first thread cannot be started.
    pub fn build(self) -> std::io::Result<Runtime> {
        // One thread for the background, one for timers while all others run jobs.
        let foreground = self.threads - 2;
        let scheduler = Scheduler::new(Lanes {
            foreground,
            general: (foreground / 2).max(1),
            // A device that hangs takes one thread. Callers that wait for another job of its file
            // system do the work themselves.
            per_owner: 1,
            background: 1,
            spares: self.threads,
            stuck_after: STUCK_AFTER,
            lower_priority: run_in_background,
        });
        scheduler.start()?;
        let memory = self.memory.map(|bytes| Arc::new(MemoryPool::new(bytes)));
        Ok(Runtime { scheduler, memory })
    }
}

impl Runtime {
    /// The bounds of a runtime, to be set before it is built.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// The counters now.
    pub fn stats(&self) -> RuntimeStats {
        let SchedulerStats { threads, most_threads, runs, wakeups, .. } = self.scheduler.stats();
        let memory = self.memory.as_ref().map_or(0, |pool| pool.lent());
        RuntimeStats { threads, most_threads, runs, wakeups, memory }
    }

    /// The memory that its file systems share.
    pub(super) fn memory(&self) -> Option<&Arc<MemoryPool>> {
        self.memory.as_ref()
    }
}

/// The owner of a file system's tasks: in the runtime that was named, or in one of its own, whose
/// threads are as many as its tasks can use.
pub(super) fn task_owner(options: &OpenOptions) -> TaskOwner {
    match &options.runtime {
        Some(runtime) => runtime.scheduler.owner(),
        None => Scheduler::new(Lanes::for_one_owner(MAX_BACKGROUND, run_in_background)).owner(),
    }
}
