//! Changes that no journal makes whole, with a redo file.
//!
//! All steps of a change are made in memory, over the device. For example, checksums are added to a
//! file system without a journal: 40 blocks of inode tables, the bitmaps and the superblock differ
//! in the end. Their record is durable before the first of them is written, and a power cut from
//! then on is made good by it.

use super::features::{JournalStep, Purpose, Wanted};
use super::{Tunable, Tune, TuneChanges, TuneError};
use crate::difference::{Difference, FreeBlocks};
use crate::edit::EditError;
use crate::redo::RedoRecord;
use crate::view::mmp_block;
use extant_blocks::{BlockDevice, OverlayDevice};
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_format::{Compat, InodeNr, Superblock};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bound on the changes in memory, in bytes.
const MAX_COLLECTED: usize = 2 << 30;

impl Tune {
    /// Makes the changes durable as [`Tune::apply`] does. If no journal makes them whole, `save`
    /// must make the record durable, by which [`finish_redo`](crate::finish_redo) completes them
    /// after a power cut; without that nothing is changed. Otherwise it is not called: with a
    /// journal that stays, with one on another device, and for a journal that is only added, of
    /// which one write decides.
    ///
    /// # Errors
    /// As [`Tune::apply`]; those of `save`. With [`EditError::Partly`] and
    /// [`TuneError::Unfinished`] the record completes the changes.
    pub fn apply_with_redo(
        &self,
        changes: &TuneChanges,
        save: &mut dyn FnMut(&RedoRecord<'_>) -> io::Result<()>,
    ) -> Result<Superblock, TuneError> {
        let tunable = Tunable::open(&self.device, self.journal.as_ref())?;
        let wanted = self.wanted(&tunable, changes)?;
        if !tunable.needs_redo(changes, &wanted)? {
            return self.apply(changes);
        }
        match wanted.width() {
            Some(is_wide) => {
                let stop = AtomicBool::new(false);
                let site = self.site(&stop, Purpose::Make);
                site.make_width((changes, &wanted), is_wide, save)?;
            }
            None => self.collect(&tunable, changes)?.write(&*self.device, save)?,
        }
        let mut bytes = [0; SUPERBLOCK_SIZE];
        self.device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)?;
        Ok(Superblock::parse(&bytes)?)
    }

    /// Makes the changes in memory, over the device.
    pub(super) fn over(
        &self,
        changes: &TuneChanges,
        (purpose, block_size): (Purpose, u32),
    ) -> Result<Arc<OverlayDevice>, TuneError> {
        let base = self.device.clone();
        let overlay = Arc::new(OverlayDevice::new(base, block_size as usize, MAX_COLLECTED));
        Tune::new(overlay.clone()).threads(self.threads).make(changes, purpose)?;
        Ok(overlay)
    }

    fn collect(
        &self,
        tunable: &Tunable<'_>,
        changes: &TuneChanges,
    ) -> Result<Collected, TuneError> {
        let geometry = tunable.primary.geometry;
        let size = geometry.block_size;
        let overlay = self.over(changes, (Purpose::Collect, size))?;
        // As in `Site::parts`: hosts read and write that block at any time.
        let mmp = mmp_block(&tunable.primary.superblock);
        let mut bitmaps = FreeBlocks::new(&*self.device, geometry).verified();
        let mut is_new = |nr| bitmaps.is_free(nr) || mmp == Some(nr);
        let difference = Difference::between(&*self.device, &overlay, size, &[], &mut is_new)?;
        Ok(Collected { overlay, difference })
    }
}

/// Changes in memory, and the blocks that differ.
struct Collected {
    overlay: Arc<OverlayDevice>,
    difference: Difference,
}

impl Collected {
    fn write(
        &self,
        device: &dyn BlockDevice,
        save: &mut dyn FnMut(&RedoRecord<'_>) -> io::Result<()>,
    ) -> Result<(), TuneError> {
        let written = self.difference.write_with_redo(device, &*self.overlay, save);
        written.map_err(|error| EditError::from(error).into())
    }
}

impl Tunable<'_> {
    /// Returns whether the journal is on another device, or goes there.
    pub(super) fn has_other_device(&self, wanted: &Wanted) -> bool {
        let superblock = &self.primary.superblock;
        let has_journal = superblock.compat().contains(Compat::HAS_JOURNAL);
        let is_outside = has_journal && superblock.journal_inum() == InodeNr::NONE;
        is_outside || wanted.journal == Some(JournalStep::Outside)
    }

    /// Returns whether a power cut could leave a part of the changes.
    pub(super) fn needs_redo(
        &self,
        changes: &TuneChanges,
        wanted: &Wanted,
    ) -> Result<bool, TuneError> {
        // The record is of one device.
        if self.has_other_device(wanted) {
            return Ok(false);
        }
        let has_journal = self.primary.superblock.compat().contains(Compat::HAS_JOURNAL);
        if let Some(log) = self.log.as_ref().filter(|_| wanted.is_none()) {
            return Ok(self.transaction(&self.with_values(changes)?, log)?.is_none());
        }
        Ok(match wanted.journal {
            Some(JournalStep::Remove) => true,
            Some(JournalStep::Add(_)) => !changes.is_only_journal(),
            _ => !has_journal || wanted.width().is_some(),
        })
    }
}

impl TuneChanges {
    /// Returns whether nothing but the journal changes.
    fn is_only_journal(&self) -> bool {
        let adds = |list: &String| list.trim() == "has_journal";
        let rest = TuneChanges { features: None, journal_size: None, ..self.clone() };
        rest == TuneChanges::default() && self.features.as_ref().is_none_or(adds)
    }
}
