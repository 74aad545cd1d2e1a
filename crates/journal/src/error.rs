//! Errors of the journal.

use extant_format::Corrupt;
use extant_sync::Arc;
use std::io;

/// An error of the journal. It is `Clone`, since one failure is reported to many waiting threads.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A device failed.
    #[error("journal I/O: {0}")]
    Io(Arc<io::Error>),
    /// A write to a device failed for a lack of space. The journal goes on: the change becomes
    /// durable once there is space.
    #[error("journal I/O: {0}")]
    NoSpace(Arc<io::Error>),
    /// The log is damaged.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The log needs a feature that is not implemented.
    #[error("not supported by the journal: {0}")]
    Unsupported(&'static str),
    /// The journal was aborted with this errno; nothing can be committed any more.
    #[error("the journal was aborted (errno {0})")]
    Aborted(i32),
    /// The log has transactions that have not been replayed.
    #[error("the journal needs recovery")]
    NeedsRecovery,
    /// More credits than a transaction can have, or than a handle was given.
    #[error("{wanted} journal credits wanted, {available} available")]
    NoCredits {
        /// Requested blocks.
        wanted: u32,
        /// The most blocks available.
        available: u32,
    },
    /// The client could not write its objects into their blocks.
    #[error("{message}")]
    Client {
        /// A positive errno.
        errno: i32,
        /// A description of the failure.
        message: String,
    },
    /// The journal was shut down.
    #[error("the journal is shut down")]
    ShutDown,
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Error::Io(Arc::new(error))
    }
}

impl Error {
    /// Returns the error of a write that may be repeated. (A flush may not: it tells of writes that
    /// are lost.)
    pub(crate) fn of_write(error: impl Into<Error>) -> Error {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        match error.into() {
            Error::Io(error) if matches!(error.kind(), StorageFull | QuotaExceeded) => {
                Error::NoSpace(error)
            }
            other => other,
        }
    }

    /// Returns the positive errno of the error, for callers of system calls and for the journal
    /// superblock.
    pub fn errno(&self) -> i32 {
        const EIO: i32 = 5;
        const ENOSPC: i32 = 28;
        const EROFS: i32 = 30;
        const EUCLEAN: i32 = 117;
        const EOPNOTSUPP: i32 = 95;
        match self {
            Error::Io(error) => extant_blocks::raw_os_error(error).unwrap_or(EIO),
            Error::NoSpace(error) => extant_blocks::raw_os_error(error).unwrap_or(ENOSPC),
            Error::Corrupt(_) | Error::NeedsRecovery => EUCLEAN,
            Error::Unsupported(_) => EOPNOTSUPP,
            Error::Aborted(errno) | Error::Client { errno, .. } => *errno,
            Error::NoCredits { .. } => ENOSPC,
            Error::ShutDown => EROFS,
        }
    }
}
