//! Repairs: the damage that a check finds is removed, wholly or not at all.
//!
//! [`Repair::plan`] makes all changes in memory. It surveys the file system, repairs the findings
//! of the first stage that has any, and surveys the result, until nothing is found. Only a file
//! system without findings is written: [`RepairPlan::apply`] makes it in one transaction.
//!
//! For example, inode 12 has an extent outside of the file system. The first round builds its map
//! again without that extent, the second one corrects its count of blocks, the third one bitmaps
//! and counts. The fourth survey finds nothing.
//!
//! # Invariants
//! - Nothing is written before the survey of the result has found nothing.
//! - Each round changes a byte; otherwise the repair ends with the remaining findings. The number
//!   of rounds is bounded.
//! - New structures lie in blocks that no structure has in the survey of the round.

mod apply;
mod bad_blocks;
mod choice;
mod clones;
mod counts;
mod create;
mod directories;
mod directory;
mod draft;
mod error;
mod facts;
mod groups;
mod guesses;
mod inodes;
mod journal;
mod kinds;
mod map;
mod names;
mod newlog;
mod open;
mod orphans;
mod quota;
mod space;
mod stage;
mod superblock;
mod undo;
mod xattrs;

pub use apply::RepairPlan;
pub(crate) use bad_blocks::listed_blocks;
pub use bad_blocks::{BadBlocks, UnlistedBlock};
pub(crate) use choice::Chooser;
pub(crate) use directory::{Directory, Named};
pub(crate) use draft::{Draft, Round};
pub use error::RepairError;
pub use extant_journal::offline::OfflineError;
pub use newlog::NoLargerLog;
pub(crate) use newlog::{
    Exceeding, FreeSpace, LargerLog, NewLog, NewLogError, Surveyor, WantedLog, count,
    count_overhead,
};
pub(crate) use open::{choose_superblock, replaced};
pub(crate) use stage::{Stage, is_open, stage};
pub(crate) use superblock::copy_in_block;
pub use undo::restore;
pub(crate) use undo::save_undo;

use crate::finding::{Finding, Findings};
use crate::parallel::Workers;
use crate::passes::superblocks::read_primary;
use crate::survey::{Passes, Survey};
use crate::view::View;
use extant_blocks::BlockDevice;
use extant_format::Superblock;
use open::Opened;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The price that a repair may have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum RepairLevel {
    /// Nothing but facts that follow from undamaged structures.
    #[default]
    Safe,
    /// Damaged entries, extents, attributes and inodes are removed.
    Lossy,
}

/// Bound on the changes in memory, in bytes.
const MAX_BYTES: usize = 1 << 30;

/// Maximum number of rounds. Damage that hides other damage takes several.
const MAX_ROUNDS: usize = 64;

/// Maximum number of findings that a round keeps; the next one finds the others.
const MAX_FOUND: usize = 1 << 18;

/// Returns the superblock that a repair of the file system on a device begins with: the primary one
/// or a copy; `None` if none can be used.
pub fn chosen_superblock(device: &dyn BlockDevice) -> Option<Superblock> {
    choose_superblock(device).ok().map(|(superblock, _)| superblock)
}

/// A repair of the file system on a device that nothing else has open.
pub struct Repair {
    device: Arc<dyn BlockDevice>,
    journal: Option<Arc<dyn BlockDevice>>,
    level: RepairLevel,
    bad_blocks: Option<BadBlocks>,
    threads: usize,
    stop: Arc<AtomicBool>,
}

impl Repair {
    /// Makes a safe repair with one thread.
    pub fn new(device: Arc<dyn BlockDevice>) -> Repair {
        let stop = Arc::new(AtomicBool::new(false));
        let (journal, bad_blocks) = (None, None);
        Repair { device, journal, level: RepairLevel::Safe, bad_blocks, threads: 1, stop }
    }

    /// Sets the device of the journal, for file systems with an external one.
    #[must_use]
    pub fn journal(mut self, device: Arc<dyn BlockDevice>) -> Self {
        self.journal = Some(device);
        self
    }

    /// Sets the price that the repair may have.
    #[must_use]
    pub fn level(mut self, level: RepairLevel) -> Self {
        self.level = level;
        self
    }

    /// Sets blocks that the list of bad blocks gets. Files that have such blocks get copies of them
    /// at the level `Lossy`, with zeroes for unreadable bytes.
    #[must_use]
    pub fn bad_blocks(mut self, blocks: BadBlocks) -> Self {
        self.bad_blocks = Some(blocks);
        self
    }

    /// Sets the number of threads; 0 counts as 1.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Sets a flag that ends the planning early.
    #[must_use]
    pub fn interrupt(mut self, flag: Arc<AtomicBool>) -> Self {
        self.stop = flag;
        self
    }

    /// Plans the repair in memory, and hands each finding that it removes to `sink`. The device is
    /// only read.
    ///
    /// # Errors
    /// Damage that cannot be repaired, or not at this level; a lack of space, also for a larger log
    /// that the changes need; those of the device.
    pub fn plan(self, sink: &mut dyn FnMut(Finding)) -> Result<RepairPlan, RepairError> {
        let workers = Workers { threads: self.threads, stop: &self.stop };
        let opened = Opened::new(&self.device, self.journal.as_ref(), self.level, workers)?;
        opened.removed.iter().for_each(|finding| sink(*finding));
        let mut planner = Planner { repair: &self, sink, in_use: None };
        planner.orphans(&opened.draft)?;
        let unlisted = planner.list_bad_blocks(&opened.draft)?;
        for _ in 0..MAX_ROUNDS {
            if planner.round(&opened.draft)? {
                let in_use = planner.in_use.take();
                let mut plan = RepairPlan::new(opened, self.journal.clone(), in_use, unlisted);
                plan.mark_valid()?;
                plan.find_log(workers)?;
                return Ok(plan);
            }
        }
        Err(RepairError::Remaining(planner.survey_of(&opened.draft)?))
    }
}

impl std::fmt::Debug for Repair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Repair");
        out.field("device", &self.device.name()).field("level", &self.level);
        out.field("threads", &self.threads).finish_non_exhaustive()
    }
}

struct Planner<'p> {
    repair: &'p Repair,
    sink: &'p mut dyn FnMut(Finding),
    /// The clusters in use before the repair.
    in_use: Option<crate::claims::ClaimMap>,
}

impl Planner<'_> {
    fn view(&self, draft: &Draft) -> Result<View, RepairError> {
        let mut ignored = |_| ();
        let primary = read_primary(&*draft.device, &mut Findings::new(&mut ignored));
        let primary = primary.ok_or(RepairError::NoSuperblock)?;
        Ok(View { device: draft.device.clone(), primary, replayed: false })
    }

    /// Runs all passes over the draft.
    fn survey<'v>(
        &self,
        view: &'v View,
        found: &mut Vec<Finding>,
    ) -> Result<Survey<'v>, RepairError> {
        let mut sink = |finding| {
            if found.len() < MAX_FOUND {
                found.push(finding);
            }
        };
        let mut findings = Findings::new(&mut sink);
        let journal = self.repair.journal.as_ref();
        let device: Arc<dyn BlockDevice> = view.device.clone();
        let source = crate::view::Source { device: &device, journal, as_is: true };
        // For the findings of superblock and log.
        source.view(&mut findings).ok_or(RepairError::NoSuperblock)?;
        let workers = Workers { threads: self.repair.threads, stop: &self.repair.stop };
        let passes = Passes { as_is: true, workers, progress: None };
        passes.run(view, &mut findings).ok_or(RepairError::Interrupted)
    }

    fn survey_of(&self, draft: &Draft) -> Result<Vec<Finding>, RepairError> {
        let mut found = Vec::new();
        self.survey(&self.view(draft)?, &mut found)?;
        found.retain(stage::is_open);
        Ok(found)
    }

    /// Completes the removal and truncation of orphans.
    fn orphans(&mut self, draft: &Draft) -> Result<(), RepairError> {
        let view = self.view(draft)?;
        let survey = self.survey(&view, &mut Vec::new())?;
        let round = Round::new(&survey, draft, self.repair.level);
        let done = round.process_orphans(self.sink);
        self.in_use = Some(survey.claims);
        done
    }

    /// Writes the list of bad blocks, if blocks for it were set. Returns those that it did not get.
    fn list_bad_blocks(&self, draft: &Draft) -> Result<Vec<UnlistedBlock>, RepairError> {
        let Some(wanted) = &self.repair.bad_blocks else { return Ok(Vec::new()) };
        let view = self.view(draft)?;
        let survey = self.survey(&view, &mut Vec::new())?;
        let round = Round::new(&survey, draft, self.repair.level);
        round.complete_claims()?;
        round.list_bad_blocks(wanted)
    }

    /// Surveys the draft, and repairs the findings of the first stage that has any. Returns whether
    /// nothing was found.
    fn round(&mut self, draft: &Draft) -> Result<bool, RepairError> {
        let view = self.view(draft)?;
        let mut found = Vec::new();
        let survey = self.survey(&view, &mut found)?;
        found.retain(stage::is_open);
        let Some(stage) = found.iter().filter_map(stage::stage).min() else {
            return if found.is_empty() { Ok(true) } else { Err(RepairError::Remaining(found)) };
        };
        if self.repair.level == RepairLevel::Safe {
            let lossy = stage::lossy(&found, stage);
            if !lossy.is_empty() {
                return Err(RepairError::NeedsLossy(lossy));
            }
        }
        let of_stage = |finding: &&Finding| stage::stage(finding) == Some(stage);
        let acted: Vec<Finding> = found.iter().filter(of_stage).copied().collect();
        draft.take_changed();
        let round = Round::new(&survey, draft, self.repair.level);
        round.complete_claims()?;
        self.act(&round, stage, &acted)?;
        if !draft.take_changed() {
            return Err(RepairError::Remaining(found));
        }
        acted.into_iter().for_each(|finding| (self.sink)(finding));
        Ok(false)
    }

    fn act(&self, round: &Round<'_>, stage: Stage, found: &[Finding]) -> Result<(), RepairError> {
        match stage {
            Stage::Superblock => round.repair_superblock(found),
            Stage::Groups => round.repair_groups(found),
            Stage::Journal => round.repair_journal(found),
            Stage::Orphans => round.repair_orphans(found),
            Stage::Inodes => round.repair_inodes(found),
            Stage::Clones => round.clone_blocks(),
            Stage::Sizes => round.repair_sizes(found),
            Stage::Directories => round.repair_directories(found),
            Stage::Names => round.repair_names(found),
            Stage::Links => round.repair_links(found),
            Stage::Counts => round.repair_counts(found),
        }
    }
}
