//! Syncs that concurrent callers share, and their errors.
//!
//! A caller whose changes were lost by another caller's sync finds nothing to do. It must not take
//! that for success: each caller is told of the failures between its call and its return. For
//! example, A's sync loses a page that B wrote, while B calls sync, too. Both get the error, A as
//! the result of its own work, B by the number of failures, which is another one at its end.

use crate::error::{Error, Result};
use extant_sync::atomic::{AtomicU64, Ordering};
use extant_sync::{Coalescer, Level, Mutex};
use std::sync::Arc;

/// The syncs of a file system.
#[derive(Debug)]
pub struct Syncs {
    rounds: Coalescer<Result<(), Arc<Error>>>,
    /// The number of failures; changes after `last`.
    failed: AtomicU64,
    /// The error of the last failure.
    last: Mutex<Option<Arc<Error>>>,
}

impl Default for Syncs {
    fn default() -> Self {
        Syncs {
            rounds: Coalescer::new(Level::Leaf),
            failed: AtomicU64::new(0),
            last: Mutex::new(Level::Leaf, None),
        }
    }
}

impl Syncs {
    /// Does the work if it is `wanted`, or has another caller do it. Returns its error, or that of
    /// another caller's work that ended during the call.
    pub fn share(
        &self,
        wanted: impl Fn() -> bool,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let before = self.failed.load(Ordering::Acquire);
        let done = self.rounds.share(wanted, || work().map_err(|error| self.note(error)));
        let told = done.unwrap_or(Ok(())).and_then(|()| self.since(before));
        told.map_err(|error| Arc::try_unwrap(error).unwrap_or_else(|error| error.to_another()))
    }

    fn note(&self, error: Error) -> Arc<Error> {
        *self.last.lock() = Some(Arc::new(error.to_another()));
        self.failed.fetch_add(1, Ordering::Release);
        Arc::new(error)
    }

    /// Returns the last error if the number of failures is another one by now.
    fn since(&self, failed: u64) -> Result<(), Arc<Error>> {
        if self.failed.load(Ordering::Acquire) == failed {
            return Ok(());
        }
        self.last.lock().clone().map_or(Ok(()), Err)
    }
}
