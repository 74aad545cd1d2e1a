//! Answers: every request is answered exactly once, whatever happens in its handler.

use crate::convert::errno;
use extant::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a handler; a panic becomes EIO instead of the loss of the thread that serves.
pub fn guarded<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, fuser::Errno> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|e| errno(&e)),
        Err(_) => {
            tracing::error!("a request's handler panicked; the request failed with EIO");
            Err(fuser::Errno::EIO)
        }
    }
}

/// Runs a handler and sends its result through `$ok`, or its error.
macro_rules! answer {
    ($reply:expr, $work:expr, |$r:ident, $value:pat_param| $ok:expr) => {{
        let $r = $reply;
        match $crate::reply::guarded(|| $work) {
            Ok($value) => $ok,
            Err(e) => $r.error(e),
        }
    }};
    ($reply:expr, $work:expr) => {
        answer!($reply, $work, |r, _done| r.ok())
    };
}
pub(crate) use answer;
