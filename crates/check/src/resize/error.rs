//! Reasons for a change of the size to fail.

use crate::difference::WriteError;
use crate::repair::{NewLogError, RepairError};
use extant_format::Corrupt;
use extant_format::growth::GrowthError;
use extant_journal::offline::OfflineError;
use std::io;

/// The reason why a file system does not get another size. Its content is safe in each case, and it
/// has the old size unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// A size that the content does not fit into, as far as it can move.
    #[error("the content does not fit into that size: {0}")]
    Full(String),
    /// The log cannot take the changes of blocks in use.
    #[error(
        "the change takes {wanted} blocks of the journal, which has {available}; a larger size \
         takes fewer"
    )]
    TooLarge {
        /// Blocks that the changes take.
        wanted: u32,
        /// Blocks that the log has.
        available: u32,
    },
    /// There is no log, so that a power cut would leave a part of the changes.
    #[error("the file system has no journal, through which it could become smaller safely")]
    NoJournal,
    /// The plan was interrupted.
    #[error("interrupted")]
    Interrupted,
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

impl ResizeError {
    /// Returns whether another size may be possible.
    pub(super) fn is_about_size(&self) -> bool {
        matches!(self, ResizeError::Full(_) | ResizeError::TooLarge { .. } | ResizeError::Size(_))
    }
}

impl From<GrowthError> for ResizeError {
    fn from(error: GrowthError) -> Self {
        match error {
            GrowthError::Corrupt(corrupt) => ResizeError::Corrupt(corrupt),
            GrowthError::SmallGroups => ResizeError::Unsupported(error.to_string()),
            _ => ResizeError::Size(error.to_string()),
        }
    }
}

impl From<WriteError> for ResizeError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Io(error) => ResizeError::Io(error),
            WriteError::Log(error) => ResizeError::Apply(error),
            WriteError::Partly(error) => ResizeError::Partly(error),
        }
    }
}

impl From<NewLogError> for ResizeError {
    fn from(error: NewLogError) -> Self {
        match error {
            NewLogError::Damage(_) => ResizeError::HasErrors,
            NewLogError::Unmovable(finding) => ResizeError::Unsupported(format!(
                "its structures cannot be moved for that size: {finding}"
            )),
            NewLogError::Unsettled => {
                ResizeError::Unsupported("its numbers cannot be made right for that size".into())
            }
            NewLogError::NoPlace(bytes) => ResizeError::Full(format!(
                "the journal has blocks behind that size, and no place for its {bytes} bytes is \
                 free before it"
            )),
            NewLogError::Repair(error) => error.into(),
        }
    }
}

impl From<RepairError> for ResizeError {
    fn from(error: RepairError) -> Self {
        match error {
            RepairError::NoSpace => ResizeError::Full("too few blocks are free below it".into()),
            RepairError::InUse => ResizeError::InUse,
            RepairError::Interrupted => ResizeError::Interrupted,
            RepairError::Unsupported(why) => ResizeError::Unsupported(why.into()),
            RepairError::FastCommits => ResizeError::NeedsRecovery,
            RepairError::Journal(error) | RepairError::Partly(error) => ResizeError::Journal(error),
            RepairError::Corrupt(corrupt) => ResizeError::Corrupt(corrupt),
            RepairError::Io(error) => ResizeError::Io(error),
            RepairError::JournalStays(error) => ResizeError::Journal(error),
            RepairError::TooLarge { wanted, available, .. } => {
                ResizeError::TooLarge { wanted, available }
            }
            RepairError::Apply(error) => ResizeError::Apply(error),
            RepairError::NoSuperblock | RepairError::NeedsLossy(_) | RepairError::Remaining(_) => {
                ResizeError::HasErrors
            }
        }
    }
}
