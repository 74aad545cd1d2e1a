//! Reasons for a change of the superblock to fail.

use crate::edit::EditError;
use crate::finding::Finding;
use crate::repair::RepairError;
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
    /// The file system has damage, so that its structures are not changed.
    #[error("the file system has damage: {0}")]
    Damage(Box<Finding>),
    /// The changed file system would have damage.
    #[error("the changed file system would have damage: {0}")]
    Remaining(Box<Finding>),
    /// Too few blocks or inodes are free for new structures.
    #[error("too few blocks or inodes are free for the change")]
    NoSpace,
    /// The structures cannot be changed.
    #[error(transparent)]
    Failed(RepairError),
    /// The changes of structures could not be written. The error says in which state the file
    /// system is.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// The device failed between two parts of the change.
    #[error("{done} is made, but not {left}: {error}")]
    Stopped {
        /// The parts that are made.
        done: String,
        /// The parts that are not, unless the error says so of the first one.
        left: String,
        /// The failure.
        error: Box<TuneError>,
    },
    /// The device failed while descriptors got another length: the file system is not clean, and a
    /// repair makes one of the two states of it.
    #[error("the change is begun, and not complete: {0}")]
    Unfinished(Box<TuneError>),
    /// The changes are made, but the file system still has the journal that was made for them.
    #[error("all changes are made, but the file system has another journal now: {0}")]
    JournalStays(Box<TuneError>),
    /// The changes are made, but the journal is a file in the root directory.
    #[error("all changes are made, but the journal is the file /.journal now: {0}")]
    JournalNamed(Box<TuneError>),
}
