//! Reasons for a repair to end without success.

use super::NoLargerLog;
use crate::difference::WriteError;
use crate::finding::Finding;
use extant_format::Corrupt;
use extant_journal::offline::OfflineError;
use std::io;

/// The reason why a repair was not made. Nothing was written, unless the variant says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// No superblock, neither the primary nor a copy, is usable.
    #[error("no usable superblock, nor a copy of one, was found")]
    NoSuperblock,
    /// Some damage can be repaired at the price of data only.
    #[error("{} findings cannot be repaired without loss", .0.len())]
    NeedsLossy(Vec<Finding>),
    /// Damage for which no repair is known, or which remained after the attempt.
    #[error("{} findings cannot be repaired", .0.len())]
    Remaining(Vec<Finding>),
    /// The journal has fast commits, which only a recovery replays.
    #[error("the journal has fast commits")]
    FastCommits,
    /// The journal cannot be replayed; it can be dropped at the price of its changes only.
    #[error("the journal cannot be replayed: {0}")]
    Journal(extant_journal::Error),
    /// Another host uses the file system, or did when it failed.
    #[error("another host uses the file system, or did when it failed (MMP)")]
    InUse,
    /// A structure that the repair does not know how to write.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// No free blocks or inodes for new structures.
    #[error("too few free blocks or inodes for the repair")]
    NoSpace,
    /// The changes of blocks in use exceed the log, and are not made through a larger one.
    #[error("the repair takes {wanted} blocks of the journal, which has {available}; {why}")]
    TooLarge {
        /// Blocks that the changes take.
        wanted: u32,
        /// Blocks that the log has.
        available: u32,
        /// The reason against a larger log.
        why: NoLargerLog,
    },
    /// The repair was interrupted.
    #[error("interrupted")]
    Interrupted,
    /// A structure cannot be read or written.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The device failed, or the changes exceed their bound on memory.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The changes could not be written. The error says in which state the file system is.
    #[error(transparent)]
    Apply(#[from] OfflineError),
    /// The repair is made, through a larger log, which may still be that of the file system.
    #[error("the repair is made, but the file system may have a larger journal now: {0}")]
    JournalStays(extant_journal::Error),
    /// The changes could not be written to a file system without a journal: some may be missing.
    #[error("a part of the repair may be missing, and another run completes it: {0}")]
    Partly(extant_journal::Error),
}

impl From<WriteError> for RepairError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Io(error) => RepairError::Io(error),
            WriteError::Log(error) => RepairError::Apply(error),
            WriteError::Partly(error) => RepairError::Partly(error),
        }
    }
}
