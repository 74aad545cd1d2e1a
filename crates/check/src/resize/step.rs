//! One step of growth: a part of it that the log can take.
#![expect(clippy::arithmetic_side_effects, reason = "numbers of a verified geometry")]

use super::ResizeError;
use super::changes::Changes;
use super::groups::NewGroups;
use super::target::Target;
use crate::tune::Tunable;
use extant_blocks::Plug;
use extant_format::GroupNr;
use extant_format::types::Timestamp;
use extant_journal::Log;
use extant_journal::offline::{ChangedBlock, OfflineChanges};
use std::time::{SystemTime, UNIX_EPOCH};

/// Growth to a size, in one transaction.
pub struct Step<'s> {
    tunable: &'s Tunable<'s>,
    target: Target,
    groups: NewGroups,
}

impl<'s> Step<'s> {
    /// Finds the largest step towards `blocks` blocks with a transaction that fits into the log: of
    /// all missing groups, of half of them, and so on. If none fits, or there is no log, the step
    /// is the whole growth.
    pub fn largest(tunable: &'s Tunable<'s>, blocks: u64) -> Result<Step<'s>, ResizeError> {
        let whole = Step::new(tunable, blocks)?;
        let old = tunable.primary.geometry;
        let mut added = whole.target.geometry.groups_count - old.groups_count;
        if whole.fits()? {
            return Ok(whole);
        }
        while added > 0 {
            added /= 2;
            let end = old.first_block_of_group(GroupNr(old.groups_count + added)).0;
            // A size may need another form of the descriptors than a larger one.
            let Ok(step) = Step::new(tunable, end.min(blocks)) else { continue };
            if step.target.geometry.blocks_count > old.blocks_count && step.fits()? {
                return Ok(step);
            }
        }
        Ok(whole)
    }

    fn new(tunable: &'s Tunable<'s>, blocks: u64) -> Result<Step<'s>, ResizeError> {
        let target = Target::new(&tunable.primary, blocks)?;
        let groups = NewGroups::new(target.geometry, tunable.primary.geometry.groups_count)?;
        Ok(Step { tunable, target, groups })
    }

    /// Returns the log if there is one that can take the changes.
    fn log(&self, blocks: &[ChangedBlock]) -> Option<&'s Log> {
        self.tunable.log.as_ref().filter(|log| self.offline(blocks).fit(log))
    }

    fn fits(&self) -> Result<bool, ResizeError> {
        if self.tunable.log.is_none() {
            return Ok(true);
        }
        let changes = Changes::new(self.tunable, &self.target, &self.groups)?;
        Ok(self.log(&changes.inside()).is_some())
    }

    fn offline<'c>(&'c self, blocks: &'c [ChangedBlock]) -> OfflineChanges<'c> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = Timestamp::new(time.as_secs() as i64, time.subsec_nanos());
        OfflineChanges { device: &**self.tunable.device, blocks, time }
    }

    /// Makes the change durable.
    pub fn apply(mut self) -> Result<(), ResizeError> {
        let device = &**self.tunable.device;
        let size = self.target.geometry.block_size;
        self.groups.write(device)?;
        let changes = Changes::new(self.tunable, &self.target, &self.groups)?;
        let (inside, early) = (changes.inside(), changes.early()?);
        let log = self.log(&inside);
        let before = early.iter().flatten().filter(|_| log.is_some());
        let mut plug = Plug::new(device);
        for (nr, bytes) in changes.beyond().iter().chain(before) {
            plug.add(nr.saturating_mul(size.into()), &bytes[..]);
        }
        plug.finish()?;
        device.flush()?;
        match (log, early) {
            (Some(log), Some(_)) => Ok(self.offline(&inside).commit_by_superblock(log)?),
            (Some(log), None) => Ok(self.offline(&inside).commit(log)?),
            (None, _) => {
                let written = self.offline(&inside).write_in_place(size, &|_| false);
                written.map_err(ResizeError::Partly)
            }
        }
    }
}
