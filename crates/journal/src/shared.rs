//! State shared by the journal's handles and threads.

use crate::checkpoint::Checkpoint;
use crate::client::Client;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::flush::Flusher;
use crate::gate::Gate;
use crate::log::space::LogSpace;
use crate::members::Members;
use crate::stall::{RETRY, Stall};
use crate::stats::Counters;
use crate::tid::Tid;
use extant_blocks::Cache;
use extant_sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use extant_sync::{Arc, CachePadded, Level, Mutex, OnceLock, Weak, thread};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

const EIO: i32 = 5;

/// The number of no block.
pub(crate) const NO_BLOCK: u64 = u64::MAX;

/// The log, and the copies to be written home from it.
#[derive(Debug)]
pub(crate) struct Logged {
    pub space: LogSpace,
    pub checkpoint: Checkpoint,
}

/// The error number of an abort while updates are locked. It is not written then: the device may be
/// frozen, so the write would wait for the thaw, and with it the thread that met the error.
#[derive(Debug, Default)]
struct Held {
    locks: u32,
    errno: Option<i32>,
}

pub(crate) struct Core {
    pub cache: Arc<Cache>,
    pub client: OnceLock<Weak<dyn Client>>,
    pub commit_interval: Duration,
    /// Commits and checkpoints are awaited where they are requested.
    pub deterministic: bool,
    /// The most credits of a handle, and of a transaction.
    pub max_credits: u32,
    pub gate: Gate,
    pub members: Members,
    pub control: Control,
    /// On a cache line of its own, since all handles read it.
    running: CachePadded<AtomicU64>,
    /// The flusher of the file system's device.
    pub home: Arc<Flusher>,
    /// The block that a checkpoint writes home after all others, or [`NO_BLOCK`].
    pub last_home: AtomicU64,
    /// `None` without a log.
    pub logged: Option<Logged>,
    pub stall: Stall,
    /// The error that aborted the journal.
    why: OnceLock<Error>,
    held: Mutex<Held>,
    /// Set by a simulated power failure: nothing may be written.
    pub crashed: AtomicBool,
    pub counters: Arc<Counters>,
}

impl Core {
    /// Returns the state without a log. Commits begin when they are requested; `max_credits` bounds
    /// each handle and each transaction.
    pub fn new(
        cache: Arc<Cache>,
        home: Arc<Flusher>,
        counters: Arc<Counters>,
        running: Tid,
        max_credits: u32,
    ) -> Core {
        Core {
            cache,
            client: OnceLock::new(),
            commit_interval: Duration::MAX,
            deterministic: false,
            max_credits,
            gate: Gate::new(max_credits),
            members: Members::default(),
            control: Control::new(running.previous()),
            running: CachePadded::new(AtomicU64::new(running.0)),
            home,
            last_home: AtomicU64::new(NO_BLOCK),
            logged: None,
            stall: Stall::new(),
            why: OnceLock::new(),
            held: Mutex::new(Level::Leaf, Held::default()),
            crashed: AtomicBool::new(false),
            counters,
        }
    }

    /// Returns the transaction that handles join.
    #[inline]
    pub fn running(&self) -> Tid {
        Tid(self.running.load(SeqCst))
    }

    /// Makes the successor of a frozen transaction the running one. The gate must be stopped, with
    /// its counts reset.
    pub fn open_successor(&self, tid: Tid) {
        self.running.store(tid.0, SeqCst);
        self.members.reset_counts();
    }

    /// Returns the running transaction, or the one before it if the running one is empty.
    pub fn newest_with_content(&self) -> Tid {
        loop {
            let (tid, empty) = (self.running(), self.members.is_empty());
            if self.running() == tid {
                return if empty { tid.previous() } else { tid };
            }
        }
    }

    /// Returns the number of revokes in a log block; `None` if revokes need not be recorded.
    pub fn revokes_per_block(&self) -> Option<u32> {
        self.logged.as_ref().map(|logged| logged.space.format().revokes_per_block() as u32)
    }

    /// Returns the time from work that lacked space to the next one without a request, if any.
    pub fn retry(&self) -> Option<Duration> {
        (!self.deterministic).then_some(RETRY)
    }

    /// Asks for a commit. False if no thread is free for it.
    pub fn ask_commit(&self, tid: Tid) -> bool {
        self.control.ask(tid.min(self.running()))
    }

    /// Returns an error after a simulated power failure.
    pub fn check_crash(&self) -> Result<()> {
        if self.crashed.load(SeqCst) { Err(Error::ShutDown) } else { Ok(()) }
    }

    /// Returns an error if nothing can be committed any more.
    pub fn check(&self) -> Result<()> {
        if self.gate.is_closed() { Err(self.closed_error()) } else { Ok(()) }
    }

    /// Returns the error for callers of a closed journal.
    pub fn closed_error(&self) -> Error {
        self.why.get().map_or(Error::ShutDown, |why| Error::Aborted(why.errno()))
    }

    /// Returns an error if the journal was aborted, but not if it is only being shut down.
    pub fn check_abort(&self) -> Result<()> {
        if self.why.get().is_some() { Err(self.closed_error()) } else { Ok(()) }
    }

    /// Returns the error that aborted the journal.
    pub fn why(&self) -> Option<&Error> {
        self.why.get()
    }

    /// Aborts the journal: nothing is committed any more. Only the first call has an effect. A
    /// missing client and a simulated power failure are no errors, and are reported to no one.
    pub fn abort(&self, why: Error) {
        if matches!(why, Error::ShutDown) {
            self.stop();
            return;
        }
        if self.why.set(why.clone()).is_err() {
            return;
        }
        // Before the steps below, all of which may panic: waiting threads must be released.
        self.stop();
        tracing::error!(error = %why, "journal aborted");
        if !self.keep_error(why.errno()) {
            self.record_error(why.errno());
        }
        if let Some(client) = self.client.get().and_then(Weak::upgrade) {
            client.aborted(&why);
        }
    }

    /// Writes the error number of an abort to the journal superblock.
    fn record_error(&self, errno: i32) {
        if let Some(logged) = &self.logged
            && self.check_crash().is_ok()
        {
            // This may run during a panic, so it must not panic.
            let recorded = catch_unwind(AssertUnwindSafe(|| logged.space.record_error(errno)));
            if !matches!(recorded, Ok(Ok(()))) {
                tracing::warn!("the journal superblock could not take the error number");
            }
        }
    }

    /// Keeps an error number until the end of a lock of updates. Returns false if there is no such
    /// lock.
    fn keep_error(&self, errno: i32) -> bool {
        let mut held = self.held.lock();
        if held.locks > 0 {
            held.errno = Some(errno);
        }
        held.locks > 0
    }

    /// Defers the writing of error numbers until [`Core::release_errors`], while updates are
    /// locked.
    pub fn lock_errors(&self) {
        self.held.lock().locks += 1;
    }

    /// Undoes one [`Core::lock_errors`], and writes the error number kept meanwhile.
    pub fn release_errors(&self) {
        let kept = {
            let mut held = self.held.lock();
            held.locks = held.locks.saturating_sub(1);
            if held.locks == 0 { held.errno.take() } else { None }
        };
        if let Some(errno) = kept {
            self.record_error(errno);
        }
    }

    /// Returns whether a lock of updates exists or is awaited.
    pub fn updates_are_locked(&self) -> bool {
        self.held.lock().locks > 0
    }

    /// Aborts the journal after a panic, which may have left incomplete changes.
    pub fn abort_of_panic(&self, what: &str) {
        self.abort(Error::Client { errno: EIO, message: what.to_owned() });
    }

    /// Refuses further handles, and ends waits and threads.
    pub fn stop(&self) {
        self.gate.close();
        self.control.stop();
        if let Some(logged) = &self.logged {
            logged.checkpoint.stop();
        }
    }
}

/// Aborts the journal if one of its threads panics, so that threads that wait for it are released.
pub(crate) struct AbortOnPanic<'a>(pub &'a Core);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.abort_of_panic("a journal thread panicked");
        }
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("running", &self.running())
            .field("durable", &self.control.durable())
            .field("gate", &self.gate)
            .field("logged", &self.logged)
            .field("why", &self.why)
            .finish_non_exhaustive()
    }
}
