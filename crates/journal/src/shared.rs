//! What the journal's handles and threads share.

use crate::checkpoint::Checkpoint;
use crate::client::Client;
use crate::commit::{self, Outcome};
use crate::control::{Control, Waited};
use crate::error::{Error, Result};
use crate::flush::Flusher;
use crate::gate::Gate;
use crate::log::space::LogSpace;
use crate::members::Members;
use crate::stats::{Counters, count};
use crate::tid::Tid;
use extant_blocks::Cache;
use extant_sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use extant_sync::{Arc, CachePadded, Level, Mutex, OnceLock, Weak, thread};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

const EIO: i32 = 5;

/// The log and what is to come home from it.
#[derive(Debug)]
pub(crate) struct Logged {
    pub space: LogSpace,
    pub checkpoint: Checkpoint,
}

/// The error number of an abort that is not written while updates are locked: the device may be
/// frozen, so that the write would wait for the thaw, and with it the thread that met the error.
#[derive(Debug, Default)]
struct Held {
    locks: u32,
    errno: Option<i32>,
}

pub(crate) struct Core {
    pub cache: Arc<Cache>,
    pub client: OnceLock<Weak<dyn Client>>,
    pub commit_interval: Duration,
    /// Commits and checkpoints are waited for where they are asked for.
    pub deterministic: bool,
    /// Most credits of a handle, and of a transaction.
    pub max_credits: u32,
    pub gate: Gate,
    pub members: Members,
    pub control: Control,
    /// On a line of its own: all handles read it.
    running: CachePadded<AtomicU64>,
    /// The file system's device.
    pub home: Arc<Flusher>,
    /// `None` without a journal.
    pub logged: Option<Logged>,
    /// Why nothing can be committed any more.
    why: OnceLock<Error>,
    held: Mutex<Held>,
    /// Stopped as by a power cut: nothing may be written.
    pub crashed: AtomicBool,
    pub counters: Arc<Counters>,
}

impl Core {
    #[expect(clippy::too_many_arguments, reason = "called once")]
    pub fn new(
        cache: Arc<Cache>,
        commit_interval: Duration,
        max_credits: u32,
        limit: u32,
        running: Tid,
        home: Arc<Flusher>,
        logged: Option<Logged>,
        counters: Arc<Counters>,
    ) -> Core {
        Core {
            cache,
            client: OnceLock::new(),
            commit_interval,
            deterministic: false,
            max_credits,
            gate: Gate::new(limit),
            members: Members::default(),
            control: Control::new(running.previous()),
            running: CachePadded::new(AtomicU64::new(running.0)),
            home,
            logged,
            why: OnceLock::new(),
            held: Mutex::new(Level::Leaf, Held::default()),
            crashed: AtomicBool::new(false),
            counters,
        }
    }

    /// The transaction that takes handles.
    #[inline]
    pub fn running(&self) -> Tid {
        Tid(self.running.load(SeqCst))
    }

    /// Lets the successor of a frozen transaction run. The gate is stopped, and its counts are
    /// reset.
    pub fn open_successor(&self, tid: Tid) {
        self.running.store(tid.0, SeqCst);
        self.members.reset_counts();
    }

    /// The running transaction, or the one before it if that has nothing to commit.
    pub fn newest_with_content(&self) -> Tid {
        loop {
            let (tid, empty) = (self.running(), self.members.is_empty());
            if self.running() == tid {
                return if empty { tid.previous() } else { tid };
            }
        }
    }

    /// How many revokes a log block holds; `None` if they need not be recorded.
    pub fn revokes_per_block(&self) -> Option<u32> {
        self.logged.as_ref().map(|logged| logged.space.format().revokes_per_block() as u32)
    }

    pub fn ask_commit(&self, tid: Tid) {
        self.control.ask(tid.min(self.running()));
    }

    /// Asks for whatever lets a handle start that has no room. A pass of the checkpointer that
    /// comes too early for the transaction that is being committed is made up for by the one that
    /// its commit asks for.
    pub fn make_room(&self) {
        if self.deterministic {
            return self.make_room_now();
        }
        let (reserved, limit) = self.gate.room();
        if reserved > 0 {
            self.ask_commit(self.running());
        }
        if let Some(logged) = &self.logged
            && limit < self.max_credits
        {
            logged.checkpoint.ask();
        }
    }

    /// As [`Core::make_room`], but the room is there on return: commits and checkpoints on the way,
    /// so that the handle starts in the same transaction each time. A failure closes the gate,
    /// where the caller looks next.
    fn make_room_now(&self) {
        if self.gate.room().0 > 0 {
            let _ = self.wait(self.running());
        }
        if let Some(logged) = &self.logged
            && self.gate.room().1 < self.max_credits
        {
            logged.checkpoint.wait_for_pass();
        }
    }

    /// Waits until `tid` is durable.
    pub fn wait(&self, tid: Tid) -> Result<()> {
        if self.control.durable() >= tid {
            return Ok(());
        }
        count(&self.counters.local().waits, 1);
        let tid = tid.min(self.running());
        let mut first = true;
        loop {
            let (waited, shared) = self.control.wait(tid, || self.running());
            if std::mem::take(&mut first) && shared {
                count(&self.counters.local().shared_waits, 1);
            }
            match waited {
                Waited::Durable => return Ok(()),
                Waited::Stopped => return Err(self.closed_error()),
                Waited::Lead(begun) => {
                    if commit::attempt(self, begun) == Outcome::Empty {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Fails if nothing can be committed any more.
    pub fn check(&self) -> Result<()> {
        if self.gate.is_closed() { Err(self.closed_error()) } else { Ok(()) }
    }

    /// Why a closed journal is closed, to those who come later.
    pub fn closed_error(&self) -> Error {
        self.why.get().map_or(Error::ShutDown, |why| Error::Aborted(why.errno()))
    }

    /// Fails if the journal was aborted, though not if it is only being shut down.
    pub fn check_abort(&self) -> Result<()> {
        if self.why.get().is_some() { Err(self.closed_error()) } else { Ok(()) }
    }

    /// Why the journal was aborted.
    pub fn why(&self) -> Option<&Error> {
        self.why.get()
    }

    /// Aborts: nothing is committed any more. Only the first call does anything. That the client is
    /// gone, or a test's power failed, is no error: nobody is to be told.
    pub fn abort(&self, why: Error) {
        if matches!(why, Error::ShutDown) {
            self.stop();
            return;
        }
        if self.why.set(why.clone()).is_err() {
            return;
        }
        // Before anything else, all of which may panic: those who wait have to be told.
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
            // This may be the end of a panic, so none may come of it.
            let recorded = catch_unwind(AssertUnwindSafe(|| logged.space.record_error(errno)));
            if !matches!(recorded, Ok(Ok(()))) {
                tracing::warn!("the journal superblock could not take the error number");
            }
        }
    }

    /// Keeps an error number for the end of a lock of updates; false if there is none.
    fn keep_error(&self, errno: i32) -> bool {
        let mut held = self.held.lock();
        if held.locks > 0 {
            held.errno = Some(errno);
        }
        held.locks > 0
    }

    /// Updates are locked: errors are not written until [`Core::release_errors`].
    pub fn lock_errors(&self) {
        self.held.lock().locks += 1;
    }

    /// Undoes one [`Core::lock_errors`], and writes the error that was kept meanwhile.
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

    /// Whether a lock of updates exists or is waited for.
    pub fn updates_are_locked(&self) -> bool {
        self.held.lock().locks > 0
    }

    /// Aborts after a panic, which may have left something half-done.
    pub fn abort_of_panic(&self, what: &str) {
        self.abort(Error::Client { errno: EIO, message: what.to_owned() });
    }

    /// Ends handles to come, waits, and threads.
    pub fn stop(&self) {
        self.gate.close();
        self.control.stop();
        if let Some(logged) = &self.logged {
            logged.checkpoint.stop();
        }
    }
}

/// Aborts the journal if a thread of it panics, so that those who wait for the thread are told.
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
