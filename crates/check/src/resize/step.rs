//! The writes of growth; the order is that of the module's head.

use super::ResizeError;
use super::changes::Changes;
use super::groups::write_groups;
use super::target::Target;
use crate::tune::Tunable;
use extant_blocks::Plug;
use extant_format::growth::NewGroups;
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

    /// Makes the change durable.
    pub fn apply(mut self) -> Result<(), ResizeError> {
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
        match log {
            Some(log) => Ok(self.offline(&inside).commit_by_superblock(log)?),
            None => {
                let written = self.offline(&inside).write_in_place(size);
                written.map_err(ResizeError::Partly)
            }
        }
    }
}
