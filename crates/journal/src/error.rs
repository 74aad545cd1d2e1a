//! What can go wrong in the journal.

use extant_format::Corrupt;
use extant_sync::Arc;
use std::io;

/// An error of the journal. It can be cloned, since one failure is told to many waiters.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A device failed.
    #[error("journal I/O: {0}")]
    Io(Arc<io::Error>),
    /// The log holds something that no journal writes.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The log needs something that is not implemented.
    #[error("not supported by the journal: {0}")]
    Unsupported(&'static str),
    /// The journal was aborted, with this errno; nothing can be committed any more.
    #[error("the journal was aborted (errno {0})")]
    Aborted(i32),
    /// The log holds transactions that have not been replayed.
    #[error("the journal needs recovery")]
    NeedsRecovery,
    /// More credits than a transaction can have, or than a handle was given.
    #[error("{wanted} journal credits wanted, {available} available")]
    NoCredits {
        /// Blocks asked for.
        wanted: u32,
        /// Blocks that can be had at most.
        available: u32,
    },
    /// The client could not write its objects into their blocks.
    #[error("{message}")]
    Client {
        /// A positive errno.
        errno: i32,
        /// What went wrong.
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
    /// The positive errno that says this to a caller of the system and to the journal superblock.
    pub fn errno(&self) -> i32 {
        const EIO: i32 = 5;
        const ENOSPC: i32 = 28;
        const EROFS: i32 = 30;
        const EUCLEAN: i32 = 117;
        const EOPNOTSUPP: i32 = 95;
        match self {
            Error::Io(error) => extant_blocks::raw_os_error(error).unwrap_or(EIO),
            Error::Corrupt(_) | Error::NeedsRecovery => EUCLEAN,
            Error::Unsupported(_) => EOPNOTSUPP,
            Error::Aborted(errno) | Error::Client { errno, .. } => *errno,
            Error::NoCredits { .. } => ENOSPC,
            Error::ShutDown => EROFS,
        }
    }
}
