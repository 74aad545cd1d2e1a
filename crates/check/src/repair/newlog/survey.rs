//! Surveys of file systems in memory, and the numbers and bitmaps that follow from the rest.

use super::NewLogError;
use crate::finding::{Finding, FindingCode, Findings};
use crate::parallel::Workers;
use crate::passes::superblocks::read_primary;
use crate::repair::{Draft, RepairError, RepairLevel, Round, Stage, is_open, stage};
use crate::survey::{Passes, Survey};
use crate::view::{Source, View};
use extant_blocks::BlockDevice;
use extant_format::InodeNr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Maximum number of rounds: the resize inode, sizes, counts, and the surveys that find nothing.
const MAX_ROUNDS: usize = 12;

/// Maximum number of findings that are kept.
const MAX_FOUND: usize = 1 << 16;

/// A way to survey a file system.
#[derive(Clone, Copy)]
pub struct Surveyor<'s> {
    pub journal: Option<&'s Arc<dyn BlockDevice>>,
    pub threads: usize,
    pub stop: &'s AtomicBool,
}

impl Surveyor<'_> {
    /// Returns a view of the file system of a draft.
    pub fn view(&self, draft: &Draft) -> Result<View, RepairError> {
        let mut ignored = |_| ();
        let primary = read_primary(&*draft.device, &mut Findings::new(&mut ignored));
        let primary = primary.ok_or(RepairError::NoSuperblock)?;
        Ok(View { device: draft.device.clone(), primary, replayed: false })
    }

    /// Runs all passes. Returns all findings but those about old copies of the superblock.
    pub fn survey<'v>(&self, view: &'v View) -> Result<(Survey<'v>, Vec<Finding>), RepairError> {
        let mut found = Vec::new();
        let mut sink = |finding: Finding| {
            let counts = is_open(&finding) && finding.code != FindingCode::BackupSuperblock;
            if counts && found.len() < MAX_FOUND {
                found.push(finding);
            }
        };
        let mut findings = Findings::new(&mut sink);
        let source = Source { device: &view.device, journal: self.journal, as_is: true };
        // For the findings of superblock and log.
        source.view(&mut findings).ok_or(RepairError::NoSuperblock)?;
        let workers = Workers { threads: self.threads, stop: self.stop };
        let passes = Passes { as_is: true, workers, progress: None };
        let survey = passes.run(view, &mut findings).ok_or(RepairError::Interrupted)?;
        Ok((survey, found))
    }

    /// Makes the resize inode, counts of blocks, bitmaps and other counts those of the survey.
    ///
    /// # Errors
    /// [`NewLogError::Unmovable`] if anything else is wrong after the change.
    pub fn finish(&self, draft: &Draft) -> Result<(), NewLogError> {
        for _ in 0..MAX_ROUNDS {
            let view = self.view(draft)?;
            let (survey, mut found) = self.survey(&view)?;
            let Some(first) = found.iter().filter_map(stage).min() else {
                return found.first().map_or(Ok(()), |first| Err(NewLogError::Unmovable(*first)));
            };
            found.retain(|finding| stage(finding) == Some(first));
            draft.take_changed();
            let round = Round::new(&survey, draft, RepairLevel::Safe);
            let other = |finding: &&Finding| finding.place.inode != Some(InodeNr::RESIZE.0);
            match (first, found.iter().find(other)) {
                (Stage::Inodes, None) => round.repair_inodes(&found)?,
                (Stage::Sizes, _) => round.repair_sizes(&found)?,
                (Stage::Counts, _) => round.repair_counts(&found)?,
                (_, finding) => return Err(unexpected(finding.or(found.first()))),
            }
            if !draft.take_changed() {
                return Err(unexpected(found.first()));
            }
        }
        Err(NewLogError::Unsettled)
    }
}

fn unexpected(finding: Option<&Finding>) -> NewLogError {
    finding.map_or(NewLogError::Unsettled, |finding| NewLogError::Unmovable(*finding))
}
