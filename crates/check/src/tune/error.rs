//! Reasons for a change of the superblock to fail.

use extant_format::Corrupt;
use extant_journal::offline::OfflineError;
use std::io;

/// The reason why a superblock was not changed. Nothing was written, unless the variant says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// A value that the field cannot have.
    #[error("{0}")]
    Invalid(String),
    /// The log must be replayed first.
    #[error("the file system needs recovery")]
    NeedsRecovery,
    /// The file system must be checked and repaired first.
    #[error("the file system is not clean, or has errors")]
    HasErrors,
    /// Another host uses the file system, or did when it failed.
    #[error("another host uses the file system, or did when it failed (MMP)")]
    InUse,
    /// A change that this file system does not allow.
    #[error("{0}")]
    Unsupported(String),
    /// The superblock or the block of multi-mount protection is damaged.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The journal cannot be opened.
    #[error("the journal cannot be opened: {0}")]
    Journal(extant_journal::Error),
    /// The device failed. The superblock is the old or the new one.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The changes could not be written. The error says in which state the file system is.
    #[error(transparent)]
    Apply(#[from] OfflineError),
    /// The superblock is changed, but not all of its copies or the user of the external journal.
    #[error("the superblock is changed, but {0} may be old: {1}")]
    Partly(&'static str, extant_journal::Error),
}
