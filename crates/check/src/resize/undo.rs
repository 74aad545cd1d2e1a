//! Undo files of other sizes.
//!
//! For example, a file system of 3000 blocks gets 2000. Blocks 2500 to 2519 of a file are copied to
//! 700, which is free, and the image file is cut. The undo file has the blocks in use behind block
//! 2000, which are lost by the cut, and all blocks that are written, with both lengths of the file.

use super::step::Step;
use super::target::Target;
use super::{ResizeError, ResizePlan, bytes_of};
use crate::difference::FreeBlocks;
use crate::repair::save_undo;
use crate::tune::Tunable;
use crate::view::mmp_block;
use extant_blocks::BlockDevice;
use extant_format::superblock::SUPERBLOCK_OFFSET;
use extant_journal::{Log, LogPlace};
use std::io::Write;

impl ResizePlan {
    /// Writes an undo file of the change, which is not made yet: the current content of all blocks
    /// that it writes, and of those in use that an image file loses, for
    /// [`restore`](crate::repair::restore). It leaves out the block of multi-mount protection,
    /// which has the claim of this host now.
    ///
    /// # Errors
    /// As [`ResizePlan::apply`]; a journal on another device, which the file would not have; those
    /// of `out`.
    pub fn save_undo(&self, out: &mut dyn Write) -> Result<(), ResizeError> {
        let tunable = Tunable::open(&self.device, self.journal.as_ref())?;
        let geometry = tunable.primary.geometry;
        let log = tunable.log.as_ref();
        if log.is_some_and(|log| log.place() == LogPlace::External) {
            let why = "an undo file is of one device, and the journal is on another one";
            return Err(ResizeError::Unsupported(why.into()));
        }
        let own = log.map(Log::own_blocks).unwrap_or_default();
        let mut blocks: Vec<u64> = own.into_iter().flat_map(|(start, end)| start..end).collect();
        blocks.push(SUPERBLOCK_OFFSET >> geometry.block_bits);
        match &self.step {
            Some(step) => {
                blocks.extend(step.written());
                let mut bitmaps = FreeBlocks::new(&*self.device, geometry).verified();
                let behind = self.new.blocks_count()..self.old.blocks_count();
                blocks.extend(behind.filter(|nr| !bitmaps.is_free(*nr)));
            }
            None => {
                let target = Target::new(&tunable.primary, self.new.blocks_count())?;
                blocks.extend(Step::new(&tunable, target)?.written()?);
            }
        }
        let mmp = mmp_block(&tunable.primary.superblock);
        if self.step.is_some() && mmp.is_some_and(|nr| nr >= self.new.blocks_count()) {
            let why = "an undo file has no block of multi-mount protection, and it moves";
            return Err(ResizeError::Unsupported(why.into()));
        }
        blocks.retain(|nr| Some(*nr) != mmp);
        blocks.sort_unstable();
        blocks.dedup();
        Ok(save_undo(&*self.device, (geometry.block_size, &blocks), self.len_after(), out)?)
    }

    /// Returns the bytes that the device has after the change.
    fn len_after(&self) -> u64 {
        let (before, after) = (self.device.len(), self.bytes());
        match &self.step {
            // As in `ResizePlan::shrink`.
            Some(_) if before <= bytes_of(&self.old) => after,
            Some(_) => before,
            None => before.max(after),
        }
    }
}
