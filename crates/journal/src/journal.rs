//! The journal as its client sees it.
//!
//! # Locking
//! A handle is ordered as a lock of level `Handle`. The journal's own locks (`JournalState`,
//! `JournalList`) are never held while the client is called, while waiting for a handle, or two of
//! one level at once.

use crate::checkpoint::{self, Checkpoint};
use crate::client::Client;
use crate::commit;
use crate::error::{Error, Result};
use crate::flush::{Flusher, WriteStamp};
use crate::handle::Handle;
use crate::log::{Log, LogFeatures, space::LogSpace};
use crate::shared::{Core, Logged};
use crate::stats::{Counters, Stats};
use crate::tid::Tid;
use extant_blocks::Cache;
use extant_sync::atomic::Ordering::SeqCst;
use extant_sync::levels::{self, Level};
use extant_sync::{Arc, Mutex, Weak, thread};
use std::time::Duration;

/// Most blocks of a transaction without a log.
const CREDITS_WITHOUT_LOG: u32 = 8192;

/// How a journal is opened.
#[derive(Debug)]
pub struct Config {
    /// The blocks that are journalled, and the device they come home to.
    pub cache: Arc<Cache>,
    /// The log, replayed. Without one, a commit writes the blocks home.
    pub log: Option<Log>,
    /// How the log is written.
    pub features: LogFeatures,
    /// How long after its first change a transaction is committed unasked.
    pub commit_interval: Duration,
    /// How long copies stay in the log alone at most, if nothing else brings them home earlier.
    pub checkpoint_interval: Duration,
    /// An upper bound on the blocks of a transaction, below that which the log's length sets.
    pub max_credits: Option<u32>,
    /// So many copies in memory that are not home call for a checkpoint. At twice as many commits
    /// wait for it.
    pub max_pending_blocks: usize,
    /// The log's bytes depend on the calls of the client only: the caller that needs a commit or a
    /// checkpoint waits for it, and none begins unasked, whatever the intervals are.
    pub deterministic: bool,
}

impl Config {
    /// The defaults: a commit after 5 seconds, a checkpoint after 30 or at 64 MiB of copies.
    pub fn new(cache: Arc<Cache>, log: Option<Log>) -> Config {
        let max_pending_blocks = (64 << 20) / cache.block_size().max(1);
        let features = LogFeatures::default();
        let commit_interval = Duration::from_secs(5);
        let checkpoint_interval = Duration::from_secs(30);
        let (max_credits, deterministic) = (None, false);
        Config {
            cache,
            log,
            features,
            commit_interval,
            checkpoint_interval,
            max_credits,
            max_pending_blocks,
            deterministic,
        }
    }
}

/// Transactions over the blocks of one cache.
///
/// Dropping it without [`Journal::shutdown`] stops its threads and leaves what is not committed, as
/// a crash would.
#[derive(Debug)]
pub struct Journal {
    core: Arc<Core>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

/// While it lives no handle is open. See [`Journal::lock_updates`].
#[derive(Debug)]
#[must_use]
pub struct UpdatesLock<'a> {
    core: &'a Core,
}

impl Journal {
    /// Opens a journal and starts its threads.
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
        let mut core = Core::new(
            config.cache,
            config.commit_interval,
            max_credits,
            max_credits,
            running,
            home,
            logged,
            counters,
        );
        core.deterministic = config.deterministic;
        Journal::run(Arc::new(core))
    }

    fn run(core: Arc<Core>) -> Result<Arc<Journal>> {
        let journal = Journal { threads: Mutex::new(Level::JournalState, Vec::new()), core };
        journal.spawn("extant-commit", commit::run)?;
        if journal.core.logged.is_some() {
            journal.spawn("extant-checkpoint", checkpoint::run)?;
        }
        Ok(Arc::new(journal))
    }

    fn spawn(&self, name: &str, run: fn(&Core)) -> Result<()> {
        let core = Arc::clone(&self.core);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || run(&core))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Names the client. To be called once, before the first handle starts; a journal without a
    /// client only carries the blocks that handles write.
    pub fn set_client(&self, client: Weak<dyn Client>) {
        let first = self.core.client.set(client).is_ok();
        debug_assert!(first, "a journal has one client");
    }

    /// Starts a handle that may bring up to `credits` blocks into the running transaction. Waits
    /// for a transaction that is being frozen, for log space, or for an [`UpdatesLock`]; a thread
    /// has one handle at a time.
    ///
    /// # Errors
    /// [`Error::Aborted`], [`Error::ShutDown`]; [`Error::NoCredits`] beyond
    /// [`Journal::max_credits`].
    pub fn start(&self, credits: u32) -> Result<Handle<'_>> {
        Handle::start(&self.core, credits)
    }

    /// As [`Journal::start`], but gives none instead of waiting for an [`UpdatesLock`].
    ///
    /// # Errors
    /// Those of [`Journal::start`].
    pub fn start_unless_locked(&self, credits: u32) -> Result<Option<Handle<'_>>> {
        Handle::start_unless_locked(&self.core, credits)
    }

    /// The most credits a handle can have.
    pub fn max_credits(&self) -> u32 {
        self.core.max_credits
    }

    /// The transaction that takes handles.
    pub fn running_tid(&self) -> Tid {
        self.core.running()
    }

    /// The newest durable transaction.
    pub fn durable(&self) -> Tid {
        self.core.control.durable()
    }

    /// Asks for a commit of `tid`, without waiting.
    pub fn commit(&self, tid: Tid) {
        self.core.ask_commit(tid);
    }

    /// Asks for a commit of `tid` and waits until it is durable. Many waits share one commit. A
    /// transaction that holds nothing counts as durable.
    ///
    /// # Errors
    /// [`Error::Aborted`] or [`Error::ShutDown`], if it never will be.
    pub fn wait(&self, tid: Tid) -> Result<()> {
        levels::assert_may_take(Level::Handle);
        self.core.wait(tid)
    }

    /// What fsync needs: waits for `tid`, and makes data durable that was written before the call.
    ///
    /// # Errors
    /// As [`Journal::wait`] and [`Journal::barrier_flush`].
    pub fn wait_and_flush(&self, tid: Tid) -> Result<()> {
        self.wait(tid)?;
        self.barrier_flush()
    }

    /// Makes everything durable that was changed before the call, noted data too.
    ///
    /// # Errors
    /// As [`Journal::wait_and_flush`].
    pub fn sync(&self) -> Result<()> {
        self.wait_and_flush(self.core.newest_with_content())
    }

    /// Whether everything is durable: no change waits for a commit, and no noted write for a flush.
    /// Reads a few words.
    pub fn is_clean(&self) -> bool {
        self.core.newest_with_content() <= self.core.control.durable() && self.core.home.is_clean()
    }

    /// Notes that data was written to the file system's device, past the cache. To be called when
    /// the write is complete. The stamp tells [`Journal::flush_since`] which flushes cover it.
    #[inline]
    pub fn note_data_write(&self) -> WriteStamp {
        self.core.home.note_write()
    }

    /// The stamp of the newest data write: for who does not know which of them concern him.
    pub fn newest_data_write(&self) -> WriteStamp {
        self.core.home.newest()
    }

    /// Makes the data durable that has this stamp or an earlier one. Does nothing if a flush has
    /// done it already, even if other data waits for one.
    ///
    /// # Errors
    /// As [`Journal::barrier_flush`].
    pub fn flush_since(&self, stamp: WriteStamp) -> Result<()> {
        self.core.home.flush_since(stamp).inspect_err(|error| self.core.abort(error.clone()))
    }

    /// Flushes the file system's device, unless a flush since the last noted write has done it
    /// already.
    ///
    /// # Errors
    /// The device's; the journal is aborted then, since it is unknown what is durable.
    pub fn barrier_flush(&self) -> Result<()> {
        self.core.home.flush().inspect_err(|error| self.core.abort(error.clone()))
    }

    /// Commits, writes everything home, and marks the log empty if it is then.
    ///
    /// # Errors
    /// As [`Journal::sync`].
    pub fn checkpoint_all(&self) -> Result<()> {
        self.sync()?;
        match &self.core.logged {
            None => Ok(()),
            Some(logged) => {
                if logged.checkpoint.wait_for_all() {
                    Ok(())
                } else {
                    Err(self.core.closed_error())
                }
            }
        }
    }

    /// Waits until no handle is open and lets none start until the lock is dropped.
    /// [`Journal::sync`] and [`Journal::checkpoint_all`] work meanwhile: together they freeze the
    /// file system on the medium.
    pub fn lock_updates(&self) -> UpdatesLock<'_> {
        levels::assert_may_take(Level::Handle);
        self.core.lock_errors();
        self.core.gate.stop();
        UpdatesLock { core: &self.core }
    }

    /// Commits, writes everything home, marks the log empty and ends the threads. Handles cannot
    /// start any more.
    ///
    /// # Errors
    /// [`Error::Aborted`] if it was; the log keeps what is not home.
    pub fn shutdown(&self) -> Result<()> {
        let updates = self.lock_updates();
        let result = self.checkpoint_all();
        self.stop_threads();
        drop(updates);
        result
    }

    /// Aborts: an error elsewhere means that nothing may be committed any more. `errno` goes to the
    /// journal superblock.
    pub fn abort(&self, errno: i32) {
        self.core.abort(Error::Aborted(errno));
    }

    /// Why the journal was aborted, if it was.
    pub fn abort_cause(&self) -> Option<&Error> {
        self.core.why()
    }

    /// Whether the journal was aborted.
    pub fn is_aborted(&self) -> bool {
        self.core.why().is_some()
    }

    /// Clears the error number that an aborted session left in the journal superblock, once it is
    /// noted elsewhere.
    ///
    /// # Errors
    /// I/O errors.
    pub fn clear_errno(&self) -> Result<()> {
        self.core.logged.as_ref().map_or(Ok(()), |logged| logged.space.record_error(0))
    }

    /// What was done so far.
    pub fn stats(&self) -> Stats {
        self.core.counters.read()
    }

    /// As if the power failed: threads end without writing another block (a write in progress is
    /// finished).
    pub fn crash(&self) {
        self.core.crashed.store(true, SeqCst);
        self.stop_threads();
    }

    fn stop_threads(&self) {
        self.core.stop();
        let threads = std::mem::take(&mut *self.threads.lock());
        let me = thread::current().id();
        // The client's last reference may be dropped on one of the journal's own threads, which
        // cannot wait for itself.
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != me) {
            if thread.join().is_err() {
                tracing::error!("a journal thread panicked");
            }
        }
        self.core.control.wait_idle();
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

impl Drop for UpdatesLock<'_> {
    fn drop(&mut self) {
        self.core.gate.resume();
        self.core.release_errors();
    }
}
