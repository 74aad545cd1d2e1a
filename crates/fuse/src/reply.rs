//! Handlers do not take their thread with them.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs work for a request; none if that panicked.
pub fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(work));
    if done.is_err() {
        tracing::error!("a request's handler panicked; the request failed with EIO");
    }
    done.ok()
}
