//! Handlers do not take their thread with them.

use crate::convert::errno;
use crate::service::Answer;
use extant::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a handler; a panic becomes EIO instead of the loss of the thread that serves.
pub fn guarded<T>(work: impl FnOnce() -> Result<T, Error>) -> Answer<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|e| errno(&e)),
        Err(_) => {
            tracing::error!("a request's handler panicked; the request failed with EIO");
            Err(fuser::Errno::EIO)
        }
    }
}
