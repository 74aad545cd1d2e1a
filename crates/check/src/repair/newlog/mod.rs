//! Another log in free blocks, planned in a draft of the file system.
//!
//! A file system whose log has blocks behind a new end gets one before it. Changes that exceed the
//! log go through a [`LargerLog`]. Both are transactions through the new log, of which the write of
//! the journal's inode counts ([`OfflineChanges::commit_by_switch`]). For example, the log moves
//! from blocks 500 to 1523 to blocks 3000 to 4023: the draft has bitmaps without the former and
//! with the latter, and the survey of it finds nothing.
//!
//! [`OfflineChanges::commit_by_switch`]:
//!     extant_journal::offline::OfflineChanges::commit_by_switch
//!
//! # Invariants
//! The new log has only blocks that are free in the draft, and that the caller does not claim.
#![expect(clippy::arithmetic_side_effects, reason = "numbers of a file system without damage")]

mod larger;
mod space;
mod survey;

pub use larger::{Exceeding, LargerLog, NoLargerLog};
pub use space::{FreeSpace, count};
pub use survey::Surveyor;

use super::{Draft, RepairError, RepairLevel, Round};
use crate::claims::ClaimMap;
use crate::finding::Finding;
use crate::maps::{Run, Runs};
use extant_blocks::BlockDevice;
use extant_format::jbd2::JournalSuperblock;
use extant_format::superblock::JournalBackup;
use extant_format::{Compat, Corrupt, Geometry, InodeFlags, InodeNr, Superblock};
use extant_journal::offline::reset_log;
use extant_journal::{Log, LogExtent, LogPlace};
use std::sync::Arc;

/// The reason why a draft is not surveyed as whole, or a log gets no place.
#[derive(Debug)]
pub enum NewLogError {
    /// The file system has damage before the change.
    Damage(Finding),
    /// The change leaves this finding.
    Unmovable(Finding),
    /// Numbers change in each round.
    Unsettled,
    /// So many bytes are not free.
    NoPlace(u64),
    /// Another failure.
    Repair(RepairError),
}

impl From<RepairError> for NewLogError {
    fn from(error: RepairError) -> Self {
        NewLogError::Repair(error)
    }
}

impl From<Corrupt> for NewLogError {
    fn from(error: Corrupt) -> Self {
        NewLogError::Repair(error.into())
    }
}

/// The log that is wanted.
pub struct WantedLog<'w> {
    /// Its superblock, with its length; `None` for those of the present log.
    pub superblock: Option<&'w JournalSuperblock>,
    /// Claims the blocks that it must not have.
    pub claim: &'w mut dyn FnMut(&ClaimMap),
}

/// A new log for a file system, planned in a draft.
#[derive(Debug)]
pub struct NewLog {
    /// The new log's blocks.
    pub extents: Vec<LogExtent>,
    /// Blocks with parts of its map.
    pub nodes: Vec<u64>,
    /// The block of the inode table with the journal's inode.
    pub switch: u64,
}

impl NewLog {
    /// Plans a log, whose place the draft then has. A file system without a journal inside gets
    /// one, for which a superblock must be given.
    pub fn plan(
        surveyor: Surveyor<'_>,
        draft: &Draft,
        wanted: WantedLog<'_>,
    ) -> Result<NewLog, NewLogError> {
        let view = surveyor.view(draft)?;
        let (survey, found) = surveyor.survey(&view)?;
        if let Some(finding) = found.first() {
            return Err(NewLogError::Damage(*finding));
        }
        let geometry = survey.volume.reader.geometry;
        (wanted.claim)(&survey.claims);
        let round = Round::new(&survey, draft, RepairLevel::Safe);
        // One on another device leaves the inode unused.
        let is_added = view.primary.superblock.journal_inum() == InodeNr::NONE;
        if is_added {
            round.create_file(InodeNr::JOURNAL, InodeFlags::empty())?;
        }
        let ino = if is_added { InodeNr::JOURNAL } else { view.primary.superblock.journal_inum() };
        let old = Runs::of(&survey.volume.reader, ino, &round.inode(ino)?);
        let old_count = old.runs.last().map_or(0, Run::end);
        let count = wanted.superblock.map_or(old_count, |sb| sb.max_len().into());
        let runs = take_runs(&survey.claims, geometry, count)?;
        if let Some(new) = runs.first() {
            let old = old.runs.first().map_or(0, |old| old.physical);
            let mut block = round.block(old)?;
            if let Some(superblock) = wanted.superblock {
                block.fill(0);
                block.iter_mut().zip(superblock.encode()).for_each(|(to, from)| *to = from);
            }
            round.put(new.physical, &block)?;
        }
        round.write_map(ino, &runs)?;
        if wanted.superblock.is_some() {
            round.edit_inode(ino, |inode| inode.size = count << geometry.block_bits)?;
        }
        let inode = round.inode(ino)?;
        draft.edit_super(|sb| {
            if wanted.superblock.is_some() {
                let clusters = |count: u64| count.div_ceil(geometry.cluster_ratio().into());
                count_overhead(sb, clusters(old_count), clusters(count));
            }
            if is_added || sb.journal_backup().is_some() {
                let backup = JournalBackup { i_block: inode.i_block, size: inode.size };
                sb.set_journal_backup(Some(&backup));
            }
            let mut features = sb.features();
            features.compat.insert(Compat::HAS_JOURNAL);
            sb.set_features(features);
            sb.set_journal_inum(ino);
            if is_added {
                sb.set_journal_uuid([0; 16]);
                sb.set_journal_dev(0);
            }
        })?;
        let nodes = Runs::of(&survey.volume.reader, ino, &inode).nodes().collect();
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
        Ok(NewLog { extents, nodes, switch: table + u64::from(block) })
    }

    /// Returns the new log's blocks as half-open ranges.
    pub fn own_blocks(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.extents.iter().map(|part| (part.physical, part.physical + u64::from(part.len)))
    }

    /// Makes the new log an empty one, with the superblock of the draft. Nothing on the device
    /// refers to it yet.
    pub fn format(
        &self,
        device: &Arc<dyn BlockDevice>,
        draft: &dyn BlockDevice,
        block_size: u32,
    ) -> Result<Log, extant_journal::Error> {
        let size = u64::from(block_size);
        // No older block may be taken for one of the log, nor for a fast commit.
        for (start, end) in self.own_blocks() {
            device.write_zeroes(start * size, (end - start) * size)?;
        }
        if let Some(first) = self.extents.first() {
            let mut block = vec![0; block_size as usize];
            draft.read_exact_at(&mut block, first.physical * size)?;
            device.write_all_at(&block, first.physical * size)?;
        }
        let open = || Log::open(device.clone(), &self.extents, block_size, LogPlace::Inside);
        reset_log(&open()?)?;
        open()
    }
}

/// Counts the clusters of a log with another length among those of metadata, if there is a count.
pub fn count_overhead(sb: &mut Superblock, before: u64, after: u64) {
    let overhead = u64::from(sb.overhead_clusters());
    if overhead >= before.max(1) {
        sb.set_overhead_clusters(u32::try_from(overhead - before + after).unwrap_or(0));
    }
}

/// Takes free blocks for so many blocks of a log.
fn take_runs(claims: &ClaimMap, geometry: Geometry, count: u64) -> Result<Vec<Run>, NewLogError> {
    let mut space = FreeSpace::new(claims, geometry);
    let mut runs: Vec<Run> = Vec::new();
    let mut logical = 0;
    while logical < count {
        let clusters = (count - logical).div_ceil(geometry.cluster_ratio().into());
        let blocks =
            space.take(clusters).ok_or(NewLogError::NoPlace(count << geometry.block_bits))?;
        let len = (blocks.end - blocks.start).min(count - logical);
        runs.push(Run { logical, physical: blocks.start, len, unwritten: false });
        logical += len;
    }
    Ok(runs)
}
