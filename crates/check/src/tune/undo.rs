//! Undo files of changes: the blocks of all steps are known from the change in memory.

use super::features::Purpose;
use super::{Tunable, Tune, TuneChanges, TuneError};
use crate::repair::save_undo;
use crate::view::mmp_block;
use extant_format::superblock::SUPERBLOCK_OFFSET;
use std::io::Write;

impl Tune {
    /// Writes an undo file of changes that are not made yet: the current content of all blocks that
    /// [`Tune::apply`] writes, or with `with_redo` [`Tune::apply_with_redo`], for
    /// [`restore`](crate::repair::restore). It leaves out the block of multi-mount protection,
    /// which has the claim of this host now.
    ///
    /// # Errors
    /// As [`Tune::apply`]; a journal on another device, which the file would not have; those of
    /// `out`.
    pub fn save_undo(
        &self,
        changes: &TuneChanges,
        with_redo: bool,
        out: &mut dyn Write,
    ) -> Result<(), TuneError> {
        let tunable = Tunable::open(&self.device, self.journal.as_ref())?;
        let wanted = self.wanted(&tunable, changes)?;
        if tunable.has_other_device(&wanted) {
            let why = "an undo file is of one device, and the journal is on another one";
            return Err(TuneError::Unsupported(why.into()));
        }
        let collects = with_redo && tunable.needs_redo(changes, &wanted)?;
        let is_collected = collects && wanted.width().is_none();
        let purpose = if is_collected { Purpose::Collect } else { Purpose::Rehearse };
        let size = tunable.primary.geometry.block_size;
        let mut blocks = self.over(changes, (purpose, size))?.written_blocks();
        // The mark in the superblock changes on the way.
        blocks.push(SUPERBLOCK_OFFSET >> tunable.primary.geometry.block_bits);
        let mmp = mmp_block(&tunable.primary.superblock);
        blocks.retain(|nr| Some(*nr) != mmp);
        blocks.sort_unstable();
        blocks.dedup();
        Ok(save_undo(&*self.device, (size, &blocks), self.device.len(), out)?)
    }
}
