//! Panics of handlers. A panic must fail one request, not the thread that serves others.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the work of a request; `None` if it panicked. The caller must reply with `EIO`.
pub fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(work));
    if done.is_err() {
        tracing::error!("a request's handler panicked; the request failed with EIO");
    }
    done.ok()
}
