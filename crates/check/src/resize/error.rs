//! Reasons for a change of the size to fail.

use extant_format::Corrupt;
use extant_journal::offline::OfflineError;
use std::io;

/// The reason why a file system does not get another size. Its content is safe in each case, and it
/// has the old size unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// A size below the present one, in bytes.
    #[error("the file system has {present} bytes, and cannot shrink to {wanted}")]
    Smaller {
        /// The present size.
        present: u64,
        /// The size that was asked for.
        wanted: u64,
    },
    /// A size that this file system cannot have.
    #[error("{0}")]
    Size(String),
    /// A file system that is not resized.
    #[error("{0}")]
    Unsupported(String),
    /// The log must be replayed first.
    #[error("the file system needs recovery")]
    NeedsRecovery,
    /// The file system must be checked and repaired first.
    #[error("the file system is not clean, or has errors")]
    HasErrors,
    /// Another host uses the file system, or did when it failed.
    #[error("another host uses the file system, or did when it failed (MMP)")]
    InUse,
    /// A structure that the change depends on is damaged.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The journal cannot be opened.
    #[error("the journal cannot be opened: {0}")]
    Journal(extant_journal::Error),
    /// The device failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The changes could not be written. The error says in which state the file system is.
    #[error(transparent)]
    Apply(#[from] OfflineError),
    /// The changes of a file system without a usable log could not be written. It is marked as not
    /// cleanly unmounted, and a repair makes one of the two sizes valid.
    #[error("a part of the changes may be written: {0}")]
    Partly(extant_journal::Error),
}
