//! The writes of growth; the order is that of the module's head.

use super::ResizeError;
use super::changes::Changes;
use super::groups::write_groups;
use super::target::Target;
use crate::difference::SaveRedo;
use crate::redo::RedoRecord;
use crate::tune::Tunable;
use extant_blocks::Plug;
use extant_format::growth::NewGroups;
use extant_format::types::Timestamp;
use extant_journal::Log;
use extant_journal::offline::{ChangedBlock, OfflineChanges};
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

/// Growth to a size, in one transaction.
pub struct Step<'s> {
    tunable: &'s Tunable<'s>,
    target: Target,
    groups: NewGroups,
}

impl<'s> Step<'s> {
    /// Prepares growth to a size. Only reads.
    pub fn new(tunable: &'s Tunable<'s>, target: Target) -> Result<Step<'s>, ResizeError> {
        let groups = NewGroups::new(target.geometry, tunable.primary.geometry.groups_count)?;
        Ok(Step { tunable, target, groups })
    }

    fn offline<'c>(&'c self, blocks: &'c [ChangedBlock]) -> OfflineChanges<'c> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = Timestamp::new(time.as_secs() as i64, time.subsec_nanos());
        OfflineChanges { device: &**self.tunable.device, blocks, time }
    }

    /// Returns the log if there is one that can take the changes.
    ///
    /// # Errors
    /// Changes that must not go through the log.
    fn log(&self) -> Result<Option<&'s Log>, ResizeError> {
        let changes = Changes::new(self.tunable, &self.target, &self.groups)?.inside();
        let changes = self.offline(&changes);
        let log = self.tunable.log.as_ref().filter(|log| changes.fit(log));
        log.map_or(Ok(()), |log| changes.check(log))?;
        Ok(log)
    }

    /// Returns the blocks of new groups that are known by their content, in ascending order.
    fn known(&self, beyond: &[ChangedBlock]) -> Vec<u64> {
        let bitmaps = self.groups.numbers().flat_map(|group| self.groups.bitmaps(group));
        let bitmaps = bitmaps.map(|(nr, _)| nr);
        let blocks: BTreeSet<u64> = beyond.iter().map(|(nr, _)| *nr).chain(bitmaps).collect();
        blocks.into_iter().collect()
    }

    /// Returns the blocks of the file system that are written, but for those of the log.
    pub fn written(&self) -> Result<Vec<u64>, ResizeError> {
        let changes = Changes::new(self.tunable, &self.target, &self.groups)?;
        let blocks = changes.inside().into_iter().chain(changes.early()?);
        Ok(blocks.map(|(nr, _)| nr).collect())
    }

    /// Makes the change durable. Without a log that takes it, `save` makes a record of it durable
    /// before the first write of a block in use.
    pub fn apply(mut self, save: Option<&mut SaveRedo<'_>>) -> Result<(), ResizeError> {
        let device = &**self.tunable.device;
        let size = self.target.geometry.block_size;
        let log = self.log()?;
        write_groups(&mut self.groups, size.into(), device)?;
        let changes = Changes::new(self.tunable, &self.target, &self.groups)?;
        let (inside, early) = (changes.inside(), changes.early()?);
        let before = early.iter().filter(|_| log.is_some());
        let mut plug = Plug::new(device);
        for (nr, bytes) in changes.beyond().iter().chain(before) {
            plug.add(nr.saturating_mul(size.into()), &bytes[..]);
        }
        plug.finish()?;
        device.flush()?;
        match (log, save) {
            (Some(log), _) => Ok(self.offline(&inside).commit_by_superblock(log)?),
            (None, Some(save)) => {
                let new = self.known(changes.beyond());
                let redo = RedoRecord::of(device, device, (&new, inside), size)?;
                save(&redo)?;
                let written = self.offline(redo.used()).write_in_place(size);
                written.map_err(ResizeError::Partly)
            }
            (None, None) => {
                let written = self.offline(&inside).write_in_place(size);
                written.map_err(ResizeError::Partly)
            }
        }
    }
}
