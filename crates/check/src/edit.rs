//! Changes that were made on a file system over an overlay: wholly or not at all on the device.
//!
//! A caller recovers the file system on the device, opens it over an [`OverlayDevice`], changes it
//! as it likes, and unmounts it. The overlay then shows a clean file system. [`Edit::plan`] finds
//! the blocks that differ, [`Edit::apply`] writes them in the order of
//! [`extant_journal::offline`].
//!
//! For example, a script removes a file of blocks 100 to 149 and puts one in blocks 900 to 999. The
//! latter are free on the device and are written first. Bitmaps, descriptors, directories, inodes
//! and the superblock are one transaction. Had the new file got blocks 100 to 149, its content
//! would be part of that transaction, since the old file must survive a power cut.
//!
//! A transaction that exceeds the log goes through a larger one in free blocks
//! ([`crate::repair`], module `newlog`), for which both states are surveyed.
//!
//! # Invariants
//! - The log on the device is empty, and its blocks are not among the changes: the overlay's own
//!   transactions stay in the overlay.
//! - No block that the file system on the device uses is written before the commit record is
//!   durable.

use crate::difference::{Difference, FreeBlocks, WriteError};
use crate::passes::superblocks::Primary;
use crate::redo::RedoRecord;
use crate::repair::{Exceeding, LargerLog, NoLargerLog, Surveyor};
use crate::view::Source;
use extant_blocks::{BlockDevice, OverlayDevice};
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_format::{Compat, Corrupt, Geometry, Incompat, InodeNr, RoCompat, Superblock};
use extant_journal::Log;
use extant_journal::offline::{OfflineError, check_fit};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bound on changes of blocks in use without a log, which are in memory while they are written, in
/// bytes.
const MAX_IN_PLACE: u64 = 256 << 20;

/// The reason why the changes were not written. Nothing was, unless the variant says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The log on the device has changes that a recovery must make first.
    #[error("the journal needs recovery")]
    NeedsRecovery,
    /// The file system has an external journal whose device was not named.
    #[error("the journal is on another device")]
    JournalMissing,
    /// The log cannot be opened.
    #[error("the journal cannot be used: {0}")]
    Journal(extant_journal::Error),
    /// There is no log, and the caller did not allow changes in place.
    #[error("the file system has no journal, so a power cut would leave a part of the changes")]
    NoJournal,
    /// The blocks in use that change exceed the log, and are not made through a larger one; or they
    /// exceed the bound without a log.
    #[error(
        "{used} blocks in use change, of {block_size} bytes each: with their records that takes \
         {wanted} blocks, and {} has {available}{}",
        if .why.is_some() { "the journal" } else { "a change in place" },
        .why.as_ref().map_or(String::new(), |why| format!("; {why}"))
    )]
    TooLarge {
        /// Blocks in use that change.
        used: u64,
        /// Bytes of a block.
        block_size: u32,
        /// Blocks that the changes take.
        wanted: u64,
        /// Blocks that are available.
        available: u64,
        /// The reason against a larger log; `None` without a log.
        why: Option<NoLargerLog>,
    },
    /// A structure cannot be read.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The device failed. At most free blocks were written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The transaction failed. The error says in which state the file system is.
    #[error(transparent)]
    Apply(#[from] OfflineError),
    /// The changes are made, through a larger log, which may still be that of the file system.
    #[error("all changes are made, but the file system may have a larger journal now: {0}")]
    JournalStays(extant_journal::Error),
    /// The changes of a file system without a journal failed: some may be missing.
    #[error("some changes may be missing: {0}")]
    Partly(extant_journal::Error),
}

impl From<WriteError> for EditError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Io(error) => EditError::Io(error),
            WriteError::Log(error) => EditError::Apply(error),
            WriteError::Partly(error) => EditError::Partly(error),
        }
    }
}

/// A file system at rest.
#[derive(Clone, Copy, Debug)]
pub struct EditBase<'b> {
    /// Its device.
    pub device: &'b Arc<dyn BlockDevice>,
    /// The device of its journal, if that is an external one.
    pub journal: Option<&'b Arc<dyn BlockDevice>>,
    /// The number of threads that survey it if the changes exceed its log; 0 counts as 1.
    pub threads: usize,
}

impl EditBase<'_> {
    /// Returns whether the file system must be recovered before it is changed: its log is not
    /// empty, or it has orphans.
    ///
    /// # Errors
    /// Those of the device and of the log.
    pub fn needs_recovery(&self) -> Result<bool, EditError> {
        let primary = self.primary()?;
        let sb = &primary.superblock;
        let marked = sb.incompat().contains(Incompat::RECOVER)
            || sb.ro_compat().contains(RoCompat::ORPHAN_PRESENT)
            || sb.last_orphan() != InodeNr::NONE;
        Ok(marked || self.log(&primary)?.is_some_and(|log| log.needs_recovery()))
    }

    /// Makes an overlay of the device, in blocks of the file system, that holds at most `max_bytes`
    /// of changes in memory.
    ///
    /// # Errors
    /// A superblock of no use; those of the device.
    pub fn overlay(&self, max_bytes: usize) -> Result<OverlayDevice, EditError> {
        let size = self.primary()?.geometry.block_size as usize;
        Ok(OverlayDevice::new(self.device.clone(), size, max_bytes))
    }

    fn primary(&self) -> Result<Primary, EditError> {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        self.device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)?;
        let superblock = Superblock::parse(&bytes)?;
        let geometry = Geometry::new(&superblock)?;
        Ok(Primary { superblock, geometry })
    }

    /// Opens the log; `None` without a journal.
    fn log(&self, primary: &Primary) -> Result<Option<Log>, EditError> {
        if !primary.superblock.compat().contains(Compat::HAS_JOURNAL) {
            return Ok(None);
        }
        let source = Source { device: self.device, journal: self.journal, as_is: true };
        let log = source.open_log(primary).map_err(EditError::Journal)?;
        log.ok_or(EditError::JournalMissing).map(Some)
    }
}

/// Changes that are held in an overlay, and not written yet.
#[derive(Debug)]
pub struct Edit {
    device: Arc<dyn BlockDevice>,
    overlay: Arc<OverlayDevice>,
    log: Option<Log>,
    difference: Difference,
    block_size: u32,
    /// Of changes that exceed the log: a larger one, or the reason why there is none.
    larger: Option<Result<LargerLog, NoLargerLog>>,
}

impl Edit {
    /// Compares a file system at rest with the unmounted one over its device in the overlay, whose
    /// blocks must be those of the file system.
    ///
    /// # Errors
    /// A file system that needs recovery; those of the devices.
    pub fn plan(base: EditBase<'_>, overlay: Arc<OverlayDevice>) -> Result<Edit, EditError> {
        let primary = base.primary()?;
        let log = base.log(&primary)?;
        let marked = primary.superblock.incompat().contains(Incompat::RECOVER);
        if marked || log.as_ref().is_some_and(Log::needs_recovery) {
            return Err(EditError::NeedsRecovery);
        }
        let device = base.device.clone();
        let own = log.as_ref().map(Log::own_blocks).unwrap_or_default();
        let mut bitmaps = FreeBlocks::new(&*device, primary.geometry).verified();
        let mut is_new = |nr| bitmaps.is_free(nr);
        let block_size = primary.geometry.block_size;
        let difference = Difference::between(&*device, &overlay, block_size, &own, &mut is_new)?;
        let used = difference.used.len();
        let larger = log.as_ref().filter(|log| check_fit(log, used).is_err()).map(|log| {
            let stop = AtomicBool::new(false);
            let threads = base.threads.max(1);
            let surveyor = Surveyor { journal: base.journal, threads, stop: &stop };
            let (device, overlay) = (&device, &overlay);
            Exceeding { device, overlay, log, surveyor, used }.plan(&mut is_new)
        });
        Ok(Edit { device, overlay, log, difference, block_size, larger })
    }

    /// Returns whether the file system has a journal, through which the changes are made.
    pub fn has_journal(&self) -> bool {
        self.log.is_some()
    }

    /// Returns the numbers of changed blocks that are free on the device, and in use.
    pub fn changed_blocks(&self) -> [u64; 2] {
        [self.difference.new.len() as u64, self.difference.used.len() as u64]
    }

    /// Returns the number of blocks of the larger log through which the changes are made, if they
    /// exceed that of the file system.
    pub fn larger_log(&self) -> Option<u64> {
        self.larger.as_ref()?.as_ref().ok().map(LargerLog::blocks)
    }

    /// Checks that the changes can be made. Only reads.
    ///
    /// # Errors
    /// [`EditError::TooLarge`]; [`EditError::NoJournal`] unless `in_place` is set.
    pub fn check(&self, in_place: bool) -> Result<(), EditError> {
        let used = self.difference.used.len() as u64;
        let block_size = self.block_size;
        let Some(log) = &self.log else {
            if !in_place {
                return Err(EditError::NoJournal);
            }
            let available = MAX_IN_PLACE.checked_div(block_size.into()).unwrap_or(0);
            if used <= available {
                return Ok(());
            }
            let (wanted, why) = (used, None);
            return Err(EditError::TooLarge { used, block_size, wanted, available, why });
        };
        let why = match &self.larger {
            Some(Ok(_)) => return Ok(()),
            other => other.as_ref().and_then(|larger| larger.as_ref().err()).cloned(),
        };
        match check_fit(log, self.difference.used.len()) {
            Err(extant_journal::Error::NoCredits { wanted, available }) => {
                let (wanted, available) = (wanted.into(), available.into());
                Err(EditError::TooLarge { used, block_size, wanted, available, why })
            }
            other => Ok(other.map_err(OfflineError::Unchanged)?),
        }
    }

    /// Writes the changes: wholly or not at all through the journal. Without one a power cut may
    /// leave a part of them, which is why `in_place` must allow that.
    ///
    /// # Errors
    /// Those of [`Edit::check`], of the device and of the log. [`EditError::Apply`] and
    /// [`EditError::JournalStays`] say in which state the file system is.
    pub fn apply(&self, in_place: bool) -> Result<(), EditError> {
        self.check(in_place)?;
        if let (Some(Ok(larger)), Some(log)) = (&self.larger, &self.log) {
            larger.make(&self.device)?;
            return larger.put_back(&self.device, log).map_err(EditError::JournalStays);
        }
        Ok(self.difference.write(&*self.device, &*self.overlay, self.log.as_ref())?)
    }

    /// Writes the changes of a file system without a journal as [`Edit::apply`] does in place.
    /// `save` must make the record durable, by which [`finish_redo`](crate::finish_redo) completes
    /// the changes after a power cut; without that nothing is changed. With a journal it is not
    /// called.
    ///
    /// # Errors
    /// As [`Edit::apply`]; those of `save`.
    pub fn apply_with_redo(
        &self,
        save: &mut dyn FnMut(&RedoRecord<'_>) -> io::Result<()>,
    ) -> Result<(), EditError> {
        if self.has_journal() {
            return self.apply(false);
        }
        self.check(true)?;
        Ok(self.difference.write_with_redo(&*self.device, &*self.overlay, save)?)
    }
}
