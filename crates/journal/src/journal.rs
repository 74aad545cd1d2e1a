//! The journal's interface for its client.
//!
//! # Locking
//! A handle is ordered as a lock of level `Handle`. The journal's own locks (`JournalState`,
//! `JournalList`) are not held while the client is called or while a thread waits for a handle, and
//! no thread holds two of one level at once.

use crate::checkpoint::Checkpoint;
use crate::client::Client;
use crate::commit;
use crate::error::{Error, Result};
use crate::flush::{Flusher, WriteStamp};
use crate::handle::Handle;
use crate::log::{Log, LogFeatures, space::LogSpace};
use crate::passes;
use crate::shared::{Core, Logged, NO_BLOCK};
use crate::stats::{Counters, Stats};
use crate::tid::Tid;
use extant_blocks::Cache;
use extant_sync::atomic::Ordering::SeqCst;
use extant_sync::levels::{self, Level};
use extant_sync::scheduler::{Lane, Lanes, NextRun, Scheduler, Task, TaskOwner};
use extant_sync::{Arc, Weak};
use std::time::Duration;

/// The most blocks of a transaction without a log.
const CREDITS_WITHOUT_LOG: u32 = 8192;

/// The configuration of a journal.
#[derive(Debug)]
pub struct Config {
    /// The cache of the journaled blocks, and the device of their home locations.
    pub cache: Arc<Cache>,
    /// The log, after recovery. Without one, a commit writes the blocks home.
    pub log: Option<Log>,
    /// The format in which the log is written.
    pub features: LogFeatures,
    /// The time after the first change of a transaction at which it is committed without a request.
    pub commit_interval: Duration,
    /// The longest time for which copies stay only in the log.
    pub checkpoint_interval: Duration,
    /// An upper bound on the blocks of a transaction, below the bound by the log's length.
    pub max_credits: Option<u32>,
    /// This many copies in memory that are not home start a checkpoint. At twice as many, commits
    /// wait for it.
    pub max_pending_blocks: usize,
    /// The log's bytes depend only on the client's calls: a caller that needs a commit or a
    /// checkpoint waits for it, and none begins without a request, whatever the intervals are.
    pub deterministic: bool,
    /// The owner of the commit task and the checkpoint task; `None` for threads of the journal's
    /// own.
    pub tasks: Option<TaskOwner>,
}

impl Config {
    /// Makes the default configuration: a commit after 5 seconds, a checkpoint after 30 seconds or
    /// at 64 MiB of copies.
    pub fn new(cache: Arc<Cache>, log: Option<Log>) -> Config {
        let max_pending_blocks = (64 << 20) / cache.block_size().max(1);
        let features = LogFeatures::default();
        let commit_interval = Duration::from_secs(5);
        let checkpoint_interval = Duration::from_secs(30);
        let (max_credits, deterministic, tasks) = (None, false, None);
        Config {
            cache,
            log,
            features,
            commit_interval,
            checkpoint_interval,
            max_credits,
            max_pending_blocks,
            deterministic,
            tasks,
        }
    }
}

/// A journal of the blocks of one cache.
///
/// Dropping it without [`Journal::shutdown`] stops its tasks and loses uncommitted changes, as a
/// crash would.
#[derive(Debug)]
pub struct Journal {
    core: Arc<Core>,
}

/// A lock that keeps handles from being open. See [`Journal::lock_updates`].
#[derive(Debug)]
#[must_use]
pub struct UpdatesLock<'a> {
    core: &'a Core,
}

impl Journal {
    /// Opens a journal and registers its tasks.
    ///
    /// # Errors
    /// [`Error::NeedsRecovery`] if the log is not empty, [`Error::Unsupported`] if it is too short,
    /// I/O errors.
    pub fn open(mut config: Config) -> Result<Arc<Journal>> {
        if config.deterministic {
            (config.commit_interval, config.checkpoint_interval) = (Duration::MAX, Duration::MAX);
        }
        let counters = Arc::new(Counters::default());
        let home = Arc::new(Flusher::new(Arc::clone(config.cache.device()), Arc::clone(&counters)));
        let mut running = Tid::first(1);
        let (mut logged, mut bound) = (None, CREDITS_WITHOUT_LOG);
        // Block numbers need 64 bits if the device has more than 2^32 blocks, whatever the log had.
        if let Some(log) = config.log {
            let blocks = config.cache.device().len() / config.cache.block_size() as u64;
            let bit64 = config.features.bit64 || blocks > 1 << 32;
            let features = LogFeatures { bit64, ..config.features };
            let space = LogSpace::new(log, features, &home, &counters)?;
            (running, bound) = (space.first_tid(), space.max_credits());
            logged = Some(Logged {
                space,
                checkpoint: Checkpoint::new(config.max_pending_blocks, config.checkpoint_interval),
            });
        }
        let max_credits = config.max_credits.map_or(bound, |max| max.min(bound));
        let mut core = Core::new(config.cache, home, counters, running, max_credits);
        core.commit_interval = config.commit_interval;
        core.deterministic = config.deterministic;
        core.logged = logged;
        let tasks = match config.tasks {
            Some(tasks) => tasks,
            None => own_threads()?,
        };
        Ok(Journal::run(Arc::new(core), &tasks))
    }

    fn run(core: Arc<Core>, tasks: &TaskOwner) -> Arc<Journal> {
        let job = |run: fn(&Core) -> NextRun| {
            // The core has its tasks: the jobs must not keep it.
            let core = Arc::downgrade(&core);
            move || core.upgrade().map_or(NextRun::Never, |core| run(&core))
        };
        core.control.set_task(tasks.task(Lane::Device, "commit", job(commit::run)));
        if let Some(logged) = &core.logged {
            let task = tasks.task(Lane::Device, "checkpoint", job(passes::run));
            logged.checkpoint.set_task(task);
        }
        Arc::new(Journal { core })
    }

    /// Sets the client. Must be called once, before the first handle starts. A journal without a
    /// client commits only the blocks that handles write.
    pub fn set_client(&self, client: Weak<dyn Client>) {
        let first = self.core.client.set(client).is_ok();
        debug_assert!(first, "a journal has one client");
    }

    /// Starts a handle that may join up to `credits` blocks to the running transaction. Waits for a
    /// transaction that is being frozen, for log space, or for an [`UpdatesLock`]. A thread must
    /// have only one handle at a time.
    ///
    /// # Errors
    /// [`Error::Aborted`], [`Error::ShutDown`]; [`Error::NoSpace`] if it had to wait for a device
    /// without space; [`Error::NoCredits`] beyond [`Journal::max_credits`].
    pub fn start(&self, credits: u32) -> Result<Handle<'_>> {
        Handle::start(&self.core, credits)
    }

    /// As [`Journal::start`], but returns `None` instead of waiting for an [`UpdatesLock`].
    ///
    /// # Errors
    /// Those of [`Journal::start`].
    pub fn start_unless_locked(&self, credits: u32) -> Result<Option<Handle<'_>>> {
        Handle::start_unless_locked(&self.core, credits)
    }

    /// Returns the most credits that a handle can have.
    pub fn max_credits(&self) -> u32 {
        self.core.max_credits
    }

    /// Returns the transaction that handles join.
    pub fn running_tid(&self) -> Tid {
        self.core.running()
    }

    /// Returns the newest durable transaction.
    pub fn durable(&self) -> Tid {
        self.core.control.durable()
    }

    /// Requests a commit of `tid` without waiting.
    pub fn commit(&self, tid: Tid) {
        // The end of its wait, if there is one, commits where no thread is free.
        let _ = self.core.ask_commit(tid);
    }

    /// Tells that the work is done that [`Client::prepare`] began.
    pub fn prepared(&self) {
        self.core.control.prepared();
    }

    /// Requests a commit of `tid` and waits until it is durable. Several waiting threads share one
    /// commit. An empty transaction counts as durable.
    ///
    /// # Errors
    /// [`Error::Aborted`] or [`Error::ShutDown`], if the transaction will never be durable;
    /// [`Error::NoSpace`], if a device lacks space for it. It becomes durable later then, and
    /// another wait tries again.
    pub fn wait(&self, tid: Tid) -> Result<()> {
        levels::assert_may_take(Level::Handle);
        self.core.wait(tid)
    }

    /// Waits for `tid` and makes the data durable that was written before the call, as fsync
    /// requires.
    ///
    /// # Errors
    /// As [`Journal::wait`] and [`Journal::barrier_flush`].
    pub fn wait_and_flush(&self, tid: Tid) -> Result<()> {
        self.wait(tid)?;
        self.barrier_flush()
    }

    /// Makes all changes before the call durable, including noted data writes.
    ///
    /// # Errors
    /// As [`Journal::wait_and_flush`].
    pub fn sync(&self) -> Result<()> {
        self.wait_and_flush(self.core.newest_with_content())
    }

    /// Returns whether everything is durable: no change waits for a commit, and no noted write for
    /// a flush. Reads only a few words.
    pub fn is_clean(&self) -> bool {
        self.core.newest_with_content() <= self.core.control.durable() && self.core.home.is_clean()
    }

    /// Notes that data was written to the file system's device past the cache. Must be called when
    /// the write is complete. The stamp tells [`Journal::flush_since`] which flushes cover the
    /// write.
    #[inline]
    pub fn note_data_write(&self) -> WriteStamp {
        self.core.home.note_write()
    }

    /// Returns the stamp of the newest data write, for callers that do not know which writes
    /// concern them.
    pub fn newest_data_write(&self) -> WriteStamp {
        self.core.home.newest()
    }

    /// Makes the data writes with this stamp or an earlier one durable. Does nothing if a flush has
    /// covered them already, even if other data waits for one.
    ///
    /// # Errors
    /// As [`Journal::barrier_flush`].
    pub fn flush_since(&self, stamp: WriteStamp) -> Result<()> {
        self.core.home.flush_since(stamp).inspect_err(|error| self.core.abort(error.clone()))
    }

    /// Flushes the file system's device, unless a flush has covered the last noted write already.
    ///
    /// # Errors
    /// The device's. The journal is then aborted, since it is unknown which writes are durable.
    pub fn barrier_flush(&self) -> Result<()> {
        self.core.home.flush().inspect_err(|error| self.core.abort(error.clone()))
    }

    /// Commits, writes all copies home, and marks the log empty if nothing is left in it.
    ///
    /// # Errors
    /// As [`Journal::sync`].
    pub fn checkpoint_all(&self) -> Result<()> {
        self.sync()?;
        match &self.core.logged {
            None => Ok(()),
            Some(logged) => {
                if passes::wait_for_all(&self.core, logged)? {
                    Ok(())
                } else {
                    Err(self.core.closed_error())
                }
            }
        }
    }

    /// Has checkpoints write this block home after all others, with a flush between: a program that
    /// reads it there finds all blocks of its transaction at home, whether or not it replays the
    /// log. The block must never be freed. `None` ends that.
    pub fn write_home_last(&self, block: Option<u64>) {
        self.core.last_home.store(block.unwrap_or(NO_BLOCK), SeqCst);
    }

    /// Waits until no handle is open, and lets none start until the lock is dropped.
    /// [`Journal::sync`] and [`Journal::checkpoint_all`] work meanwhile: together they freeze the
    /// file system on the medium.
    pub fn lock_updates(&self) -> UpdatesLock<'_> {
        levels::assert_may_take(Level::Handle);
        self.core.lock_errors();
        self.core.gate.stop();
        UpdatesLock { core: &self.core }
    }

    /// Commits, writes everything home, marks the log empty and ends the tasks. Handles cannot
    /// start any more.
    ///
    /// # Errors
    /// [`Error::Aborted`] if the journal was aborted. The log then keeps the copies that are not
    /// home.
    pub fn shutdown(&self) -> Result<()> {
        let updates = self.lock_updates();
        let result = self.checkpoint_all();
        self.stop_tasks();
        drop(updates);
        result
    }

    /// Aborts the journal after an error elsewhere: nothing is committed any more. `errno` is
    /// written to the journal superblock.
    pub fn abort(&self, errno: i32) {
        self.core.abort(Error::Aborted(errno));
    }

    /// Returns the error that aborted the journal, if any.
    pub fn abort_cause(&self) -> Option<&Error> {
        self.core.why()
    }

    /// Returns whether the journal was aborted.
    pub fn is_aborted(&self) -> bool {
        self.core.why().is_some()
    }

    /// Clears the error number that an aborted session left in the journal superblock. The caller
    /// must have recorded it elsewhere.
    ///
    /// # Errors
    /// I/O errors.
    pub fn clear_errno(&self) -> Result<()> {
        self.core.logged.as_ref().map_or(Ok(()), |logged| logged.space.record_error(0))
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        self.core.counters.read()
    }

    /// As if the power failed: tasks end without writing another block (a write in progress is
    /// finished).
    pub fn crash(&self) {
        self.core.crashed.store(true, SeqCst);
        self.stop_tasks();
    }

    /// Ends the tasks, and waits for attempts and passes of other threads. The client's last
    /// reference may be dropped by one of the jobs, which cannot wait for itself.
    fn stop_tasks(&self) {
        self.core.stop();
        self.core.control.task().into_iter().for_each(Task::stop);
        self.core.control.wait_idle();
        if let Some(logged) = &self.core.logged {
            logged.checkpoint.task().into_iter().for_each(Task::stop);
            logged.checkpoint.wait_idle();
        }
    }
}

/// Threads for the tasks of one journal.
fn own_threads() -> Result<TaskOwner> {
    let scheduler = Scheduler::new(Lanes::for_one_owner(1, || ()));
    scheduler.start()?;
    Ok(scheduler.owner())
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.stop_tasks();
    }
}

impl Drop for UpdatesLock<'_> {
    fn drop(&mut self) {
        self.core.gate.resume();
        self.core.release_errors();
    }
}
