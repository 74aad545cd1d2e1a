//! The lack of space of a device, which may end: a sparse image file on a full host, an overlay, a
//! thin volume.
//!
//! For example, transaction 7 is frozen and 8 runs when a write to the log fails with `ENOSPC`. The
//! threads that wait for 7 get the error, and 7 stays here. The next attempt to commit writes it
//! again, from its first block on; 8 is committed only behind it.
//!
//! # Invariants
//! 1. Only writes end here, not flushes: a write that failed is repeated before any flush on which
//!    the transaction depends.
//! 2. Only the committing thread takes and keeps the frozen transaction. While one is kept, no
//!    other transaction is frozen.
//!
//! # Locking
//! One mutex (`Leaf`), not held over I/O.

use crate::checkpoint::FrozenBlock;
use crate::error::Error;
use crate::tid::Tid;
use extant_sync::{Level, Mutex};
use std::time::{Duration, Instant};

/// Time from an attempt that lacked space to the next one that no thread asks for.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// Time from such an attempt to the next one for a handle. Each writes a whole transaction, and a
/// writeback of many pages would make one for each page.
const PAUSE: Duration = Duration::from_millis(200);

/// A transaction whose content no longer changes.
pub(crate) struct Frozen {
    pub tid: Tid,
    pub blocks: Vec<FrozenBlock>,
    pub revoked: Vec<u64>,
    /// Its position in the log, if there is one.
    pub start: u32,
}

/// The work that lacks space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Commits.
    Commit,
    /// Passes of the checkpoint.
    Pass,
}

pub(crate) struct Stall {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    frozen: Option<Frozen>,
    /// The errors of the last commit and of the last pass, if they lacked space.
    errors: [Option<Error>; 2],
    /// When work lacked space last.
    lacked_at: Option<Instant>,
}

impl Stall {
    pub fn new() -> Stall {
        Stall { state: Mutex::new(Level::Leaf, State::default()) }
    }

    /// Takes the frozen transaction that waits for space.
    pub fn take_frozen(&self) -> Option<Frozen> {
        self.state.lock().frozen.take()
    }

    /// Keeps a frozen transaction for the next attempt.
    pub fn keep_frozen(&self, frozen: Frozen) {
        let older = self.state.lock().frozen.replace(frozen);
        debug_assert!(older.is_none(), "one transaction is frozen at a time");
    }

    /// Notes the end of work, with its error if it lacked space.
    pub fn note(&self, work: Work, lacked: Option<&Error>) {
        let old = {
            let mut state = self.state.lock();
            if lacked.is_some() {
                state.lacked_at = Some(Instant::now());
            }
            std::mem::replace(&mut state.errors[work as usize], lacked.cloned())
        };
        match (old, lacked) {
            (None, Some(error)) => {
                tracing::warn!(%error, ?work, "changes wait in memory until the device has space");
            }
            (Some(_), None) => tracing::info!(?work, "the device has space again"),
            _ => {}
        }
    }

    /// Returns the error of work that lacks space.
    pub fn error(&self, work: Work) -> Option<Error> {
        self.state.lock().errors[work as usize].clone()
    }

    /// Returns whether it is time for a handle to try again; `None` if no work lacks space.
    pub fn may_retry(&self) -> Option<bool> {
        let state = self.state.lock();
        let is_stalled = state.errors.iter().any(Option::is_some);
        is_stalled.then(|| state.lacked_at.is_none_or(|at| at.elapsed() >= PAUSE))
    }

    /// Returns an error if any work lacks space.
    pub fn any_error(&self) -> Option<Error> {
        self.error(Work::Commit).or_else(|| self.error(Work::Pass))
    }
}
