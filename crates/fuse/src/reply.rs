//! Handlers do not take their thread with them.

use crate::convert::errno;
use crate::service::Answer;
use extant::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs work for a request; none if that panicked.
pub fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(work));
    if done.is_err() {
        tracing::error!("a request's handler panicked; the request failed with EIO");
    }
    done.ok()
}

/// Runs a handler; a panic becomes EIO instead of the loss of the thread that serves.
pub fn guarded<T>(work: impl FnOnce() -> Result<T, Error>) -> Answer<T> {
    match caught(work) {
        Some(result) => result.map_err(|e| errno(&e)),
        None => Err(fuser::Errno::EIO),
    }
}
