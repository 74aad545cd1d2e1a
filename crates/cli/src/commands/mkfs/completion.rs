//! Parts that a new file system gets after its creation: a list of bad blocks, and a journal that
//! must not lie in these, or that lies on another device.
//!
//! With either, the file system is made without a journal first. A failure leaves it without these
//! parts, and the command fails.

use super::journal_device::JournalDevice;
use crate::bad_blocks::{BadBlockArgs, tell_unlisted};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::image::ImageArgs;
use extant_check::repair::{BadBlocks, Repair, RepairLevel, RepairPlan};
use extant_check::tune::{JournalSize, Tune, TuneChanges};
use extant_engine::device::{BlockDevice, OverlayDevice};
use extant_engine::mkfs::{self, Options, Report};
use extant_format::{Compat, Features};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The features that take a journal, which a new file system gets with its journal.
const WITH_JOURNAL: Compat = Compat::ORPHAN_FILE.union(Compat::FAST_COMMIT);

/// Unit and bound of a file system in memory, in bytes.
const MEMORY_UNIT: usize = 4096;
const MAX_MEMORY: usize = 2 << 30;

/// The parts that are asked for.
pub struct Completion<'c> {
    pub image: ImageArgs,
    pub context: &'c Context,
    pub bad: &'c BadBlockArgs,
    pub journal: Option<JournalDevice>,
}

impl Completion<'_> {
    /// Makes a file system with these parts. `failed` tells of errors of mkfs.
    pub fn make(
        &self,
        device: &Arc<dyn BlockDevice>,
        options: &Options,
        failed: &dyn Fn(mkfs::Error) -> Failure,
    ) -> Result<Report> {
        if self.journal.is_none() && !self.bad.is_given() {
            return mkfs::make(&**device, options).map_err(failed);
        }
        let planned = mkfs::preview(device.len(), options).map_err(failed)?;
        let mut plain = options.clone();
        plain.apply_features("^has_journal,^orphan_file,^fast_commit").map_err(failed)?;
        let blocks = self.rehearse(device, &plain, failed)?;
        let mut report = mkfs::make(&**device, &plain).map_err(failed)?;
        if let Some(blocks) = blocks {
            self.list(device, blocks)?;
        }
        self.add_journal(device, &planned)?;
        report.features = planned.features;
        report.features.compat.set(Compat::HAS_JOURNAL, self.has_journal(&planned));
        report.journal_blocks = planned.journal_blocks;
        Ok(report)
    }

    fn has_journal(&self, planned: &Report) -> bool {
        self.journal.is_some() || planned.features.compat.contains(Compat::HAS_JOURNAL)
    }

    /// Makes the file system and its list of bad blocks in memory. So a list that cannot be had
    /// leaves the device as it is. Returns the blocks.
    fn rehearse(
        &self,
        device: &Arc<dyn BlockDevice>,
        plain: &Options,
        failed: &dyn Fn(mkfs::Error) -> Failure,
    ) -> Result<Option<BadBlocks>> {
        if !self.bad.is_given() {
            return Ok(None);
        }
        let memory = OverlayDevice::new(device.clone(), MEMORY_UNIT, MAX_MEMORY);
        let memory: Arc<dyn BlockDevice> = Arc::new(memory);
        mkfs::make(&*memory, plain).map_err(failed)?;
        let (stop, named) = (AtomicBool::new(false), (&self.image, self.context));
        let blocks = self.bad.wanted(false, named, (&*memory, &stop))?;
        let plan = blocks.clone().map(|blocks| self.list(&memory, blocks)).transpose()?;
        if plan.is_some_and(|plan| tell_unlisted(&plan, &self.image)) {
            return Err(Failure::new(format_args!(
                "{}: structures of a new file system would lie in bad blocks: replace the device, \
                 or use a part of it; nothing was written",
                self.image.name()
            )));
        }
        Ok(blocks)
    }

    fn list(&self, device: &Arc<dyn BlockDevice>, blocks: BadBlocks) -> Result<RepairPlan> {
        let name = self.image.name();
        let repair = Repair::new(device.clone()).level(RepairLevel::Lossy).bad_blocks(blocks);
        let listed = repair.plan(&mut |_| ()).and_then(|plan| plan.apply().map(|()| plan));
        listed
            .map_err(|error| Failure::new(format_args!("{name}: its list of bad blocks: {error}")))
    }

    /// Gives the new file system its journal, and the features that take one.
    fn add_journal(&self, device: &Arc<dyn BlockDevice>, planned: &Report) -> Result {
        if !self.has_journal(planned) {
            return Ok(());
        }
        let compat = planned.features.compat & WITH_JOURNAL;
        let names = Features { compat, ..Features::default() }.names().join(",");
        let bytes = u64::from(planned.journal_blocks).saturating_mul(planned.block_size.into());
        let is_inside = self.journal.is_none();
        let changes = TuneChanges {
            journal_device: self.journal.as_ref().map(JournalDevice::number),
            journal_size: is_inside.then_some(JournalSize::Bytes(bytes)),
            features: Some(names).filter(|names| !names.is_empty()),
            ..TuneChanges::default()
        };
        let mut tune = Tune::new(device.clone());
        if let Some(journal) = &self.journal {
            tune = tune.new_journal(journal.device());
        }
        tune.apply(&changes).map(drop).map_err(|error| {
            Failure::new(format_args!("{}: its journal: {error}", self.image.name()))
        })
    }
}
