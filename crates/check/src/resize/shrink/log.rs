//! The log in free blocks below the new end, for a file system whose log has blocks behind it.
#![expect(clippy::arithmetic_side_effects, reason = "numbers of a file system without damage")]

use super::finish::Surveyor;
use super::space::FreeSpace;
use crate::maps::{Run, Runs};
use crate::repair::{Draft, RepairLevel, Round};
use crate::resize::ResizeError;
use crate::tune::Tunable;
use extant_format::superblock::JournalBackup;
use extant_journal::{Log, LogExtent, LogPlace};

/// A new log for a file system, planned in a draft.
#[derive(Debug)]
pub struct NewLog {
    /// The new log's blocks.
    pub extents: Vec<LogExtent>,
    /// The block of the inode table with the journal's inode.
    pub switch: u64,
}

/// Returns whether the log has blocks behind the new end.
pub fn is_beyond(tunable: &Tunable<'_>, end: u64) -> bool {
    let own = tunable.log.as_ref().map(Log::own_blocks).unwrap_or_default();
    own.iter().any(|(_, last)| *last > end)
}

impl NewLog {
    /// Plans a log of the same length below `end`.
    pub fn plan(surveyor: Surveyor<'_>, draft: &Draft, end: u64) -> Result<NewLog, ResizeError> {
        let view = surveyor.view(draft)?;
        let (survey, found) = surveyor.survey(&view)?;
        if !found.is_empty() {
            return Err(ResizeError::HasErrors);
        }
        let geometry = survey.volume.reader.geometry;
        let ino = view.primary.superblock.journal_inum();
        survey.claims.claim_all(end..geometry.blocks_count);
        let round = Round::new(&survey, draft, RepairLevel::Safe);
        let inode = round.inode(ino)?;
        let old = Runs::of(&survey.volume.reader, ino, &inode);
        let count = old.runs.last().map_or(0, Run::end);
        let first = old.runs.first().map(|run| run.physical);
        let mut space = FreeSpace::new(&survey.claims, geometry);
        let mut runs: Vec<Run> = Vec::new();
        let mut logical = 0;
        while logical < count {
            let clusters = (count - logical).div_ceil(geometry.cluster_ratio().into());
            let blocks = space.take(clusters).ok_or_else(|| {
                let bytes = count << geometry.block_bits;
                ResizeError::Full(format!(
                    "the journal has blocks behind that size, and no place for its {bytes} bytes \
                     is free before it"
                ))
            })?;
            let len = (blocks.end - blocks.start).min(count - logical);
            runs.push(Run { logical, physical: blocks.start, len, unwritten: false });
            logical += len;
        }
        let place = runs.first().map(|run| run.physical);
        if let (Some(old), Some(new)) = (first, place) {
            round.put(new, &round.block(old)?)?;
        }
        round.write_map(ino, &runs)?;
        if view.primary.superblock.journal_backup().is_some() {
            let backup = JournalBackup { i_block: round.inode(ino)?.i_block, size: inode.size };
            draft.edit_super(|sb| sb.set_journal_backup(Some(&backup)))?;
        }
        surveyor.finish(draft)?;
        let (group, index) = geometry.inode_location(ino)?;
        let (block, _) = geometry.inode_slot(index);
        let table = survey.volume.groups.get(group.index()).map_or(0, |g| g.desc.inode_table);
        let extent = |run: &Run| LogExtent {
            logical: run.logical as u32,
            physical: run.physical,
            len: run.len as u32,
        };
        let extents = runs.iter().map(extent).collect();
        Ok(NewLog { extents, switch: table + u64::from(block) })
    }

    /// Opens the new log on a device that has its superblock.
    pub fn open(&self, tunable: &Tunable<'_>) -> Result<Log, extant_journal::Error> {
        let size = tunable.primary.geometry.block_size;
        Log::open(tunable.device.clone(), &self.extents, size, LogPlace::Inside)
    }
}
