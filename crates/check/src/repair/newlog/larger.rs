//! Changes that exceed the log of the file system, through a larger one in free blocks.
//!
//! For example, a script changes 5,000 blocks in use, and the log has 1,024. The larger log gets
//! 5,200 blocks that are free before and after the script.
//!
//! # Order of writes
//! 1. New contents go to blocks that are free in the old state, and the larger log is formatted in
//!    such blocks. Nothing refers to them.
//! 2. A transaction through the larger log makes the new state, in which the file system has that
//!    log. The write of the journal's inode counts ([`OfflineChanges::commit_by_switch`]): a block
//!    of the inode table, which is that of the old state but for this inode.
//! 3. A transaction through the old log, which no write has touched, gives the file system that log
//!    again. The write of the journal's inode counts here, too.
//!
//! A power cut before step 2 counts leaves the old state; one before step 3 counts leaves the new
//! state with the larger log; a later one leaves the new state. All three are file systems without
//! damage, if the new state is one: both logs are in the bitmaps of the states that have them.
//!
//! # Invariants
//! - Nothing is written before the surveys of both states have found nothing, and both transactions
//!   are known to fit into their logs.
//! - The larger log and its map have only blocks that are free in the old state and in the new one.
//! - The blocks of the old log are not written before step 3.

use super::{NewLog, NewLogError, Surveyor, WantedLog};
use crate::claims::ClaimMap;
use crate::difference::{Difference, WriteError, now};
use crate::finding::{Finding, Findings};
use crate::passes::superblocks::{Primary, read_primary};
use crate::reader::Reader;
use crate::repair::{Draft, RepairError};
use crate::view::{journal_extents, journal_slot};
use extant_blocks::{BlockDevice, OverlayDevice};
use extant_format::{Corrupt, Geometry, GroupNr, bitmap};
use extant_journal::offline::{ChangedBlock, OfflineChanges, OfflineError};
use extant_journal::{Error, Log, LogPlace};
use std::sync::Arc;

/// Bound on the contents of a transaction through a larger log, which are in memory while they are
/// written, in bytes.
const MAX_BYTES: u64 = 1 << 30;

/// Bound on the changes that give the file system the larger log, in bytes.
const MAX_DRAFT: usize = 256 << 20;

/// Maximum number of plans. Each is longer by the bitmaps that the one before has changed.
const MAX_PLANS: usize = 6;

/// Blocks more than those of the change: bitmaps and descriptors of the larger log.
const SPARE: usize = 64;

/// The reason why changes that exceed the log are not made through a larger one.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoLargerLog {
    /// The log is on a device of its own.
    #[error("a journal on another device gets no larger one")]
    External,
    /// The contents exceed their bound on memory.
    #[error("through a larger one, at most {} MiB of blocks in use can change", MAX_BYTES >> 20)]
    TooMany,
    /// Too few blocks are free before and after the changes.
    #[error("a larger one has {bytes} bytes, which are not free both before and after the changes")]
    NoSpace {
        /// Bytes of the larger log.
        bytes: u64,
    },
    /// The log cannot take the change that makes it the file system's again.
    #[error("it is too small for the return from a larger one")]
    TooSmall,
    /// The file system has damage, so that free blocks are not known to be free.
    #[error("a larger one takes a file system without damage: {0}")]
    Damage(Box<Finding>),
    /// The changes move the journal, or a structure that leads to it.
    #[error("the journal moves by the changes")]
    Moved,
    /// The form of the log has no larger one.
    #[error("{0}")]
    Journal(Box<Error>),
    /// Another failure.
    #[error("no larger one can be planned: {0}")]
    Failed(Arc<RepairError>),
}

impl From<NewLogError> for NoLargerLog {
    fn from(error: NewLogError) -> Self {
        match error {
            NewLogError::Damage(finding) | NewLogError::Unmovable(finding) => {
                NoLargerLog::Damage(Box::new(finding))
            }
            NewLogError::NoPlace(bytes) => NoLargerLog::NoSpace { bytes },
            NewLogError::Unsettled => {
                RepairError::Unsupported("numbers that change in each round").into()
            }
            NewLogError::Repair(error) => error.into(),
        }
    }
}

impl From<RepairError> for NoLargerLog {
    fn from(error: RepairError) -> Self {
        NoLargerLog::Failed(Arc::new(error))
    }
}

impl From<std::io::Error> for NoLargerLog {
    fn from(error: std::io::Error) -> Self {
        RepairError::Io(error).into()
    }
}

impl From<Error> for NoLargerLog {
    fn from(error: Error) -> Self {
        match error {
            Error::NoCredits { .. } => NoLargerLog::TooSmall,
            error => NoLargerLog::Journal(Box::new(error)),
        }
    }
}

/// Changes that exceed the log.
pub struct Exceeding<'e> {
    /// The old state, whose log is empty.
    pub device: &'e Arc<dyn BlockDevice>,
    /// The new state, in blocks of the file system.
    pub overlay: &'e Arc<OverlayDevice>,
    pub log: &'e Log,
    pub surveyor: Surveyor<'e>,
    /// The number of changed blocks in use.
    pub used: usize,
}

/// A larger log, with the changes that are to go through it.
#[derive(Debug)]
pub struct LargerLog {
    /// The new state with the larger log.
    state: Arc<OverlayDevice>,
    new: NewLog,
    /// The journal's inode: the byte of its slot in its block, and the bytes of the slot.
    slot: (usize, usize),
    block_size: u32,
    /// The blocks that differ between the old state and the new one with the larger log.
    changes: Difference,
    /// The blocks that give the new state the old log again.
    back: Vec<ChangedBlock>,
}

impl Exceeding<'_> {
    /// Plans a larger log. Only reads. `is_new` must say whether a block is free in the old state.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn plan(&self, is_new: &mut dyn FnMut(u64) -> bool) -> Result<LargerLog, NoLargerLog> {
        if self.log.place() == LogPlace::External {
            return Err(NoLargerLog::External);
        }
        let (geometry, slot) = self.unmoved()?;
        let (mut wanted, mut bytes) = (self.used, 0);
        for _ in 0..MAX_PLANS {
            wanted = wanted.saturating_add(wanted / 64).saturating_add(SPARE);
            if (wanted as u64).saturating_mul(geometry.block_size.into()) > MAX_BYTES {
                return Err(NoLargerLog::TooMany);
            }
            let superblock = self.log.superblock_for(wanted)?;
            bytes = u64::from(superblock.max_len()).saturating_mul(geometry.block_size.into());
            let overlay: Arc<dyn BlockDevice> = self.overlay.clone();
            let size = geometry.block_size as usize;
            let draft = Draft::new(Arc::new(OverlayDevice::new(overlay, size, MAX_DRAFT)));
            let mut claim = |claims: &ClaimMap| claim_used(claims, &geometry, is_new);
            let log = WantedLog { superblock: Some(&superblock), claim: &mut claim };
            let new = NewLog::plan(self.surveyor, &draft, log).map_err(|error| match error {
                // For the map.
                NewLogError::Repair(RepairError::NoSpace) => NewLogError::NoPlace(bytes),
                error => error,
            })?;
            let changes = self.changes(&draft, &new, &geometry, is_new)?;
            if changes.used.len() <= wanted {
                let back = self.back(&draft, &new, &geometry)?;
                let (state, block_size) = (draft.device, geometry.block_size);
                return Ok(LargerLog { state, new, slot, block_size, changes, back });
            }
            wanted = changes.used.len();
        }
        Err(NoLargerLog::NoSpace { bytes })
    }

    /// Checks that both states have the same journal in the same place, and the same form of
    /// inodes. Returns the geometry of the new state, and the slot of the journal's inode.
    fn unmoved(&self) -> Result<(Geometry, (usize, usize)), NoLargerLog> {
        let primary = |device: &dyn BlockDevice| {
            let primary = read_primary(device, &mut Findings::new(&mut |_| ()));
            primary.ok_or(RepairError::NoSuperblock)
        };
        let (old, new) = (primary(&**self.device)?, primary(&**self.overlay)?);
        let facts = |primary: &Primary| {
            let geometry = &primary.geometry;
            let table = (geometry.inodes_per_group, geometry.inode_size, geometry.desc_size);
            let checksums = (geometry.metadata_csum, geometry.csum_seed);
            let blocks = (geometry.block_size, geometry.blocks_count);
            (primary.superblock.journal_inum(), table, checksums, blocks)
        };
        let ino = new.superblock.journal_inum();
        let readers =
            [Reader::new(&**self.device, old.geometry), Reader::new(&**self.overlay, new.geometry)];
        let [before, after] = readers.map(|reader| {
            let slot = journal_slot(&reader, ino).map_err(Error::from)?;
            Ok::<_, Error>((slot, journal_extents(&reader, ino)?))
        });
        let (before, after) = (before?, after?);
        if facts(&old) != facts(&new) || before != after {
            return Err(NoLargerLog::Moved);
        }
        let ((_, at), _) = after;
        Ok((new.geometry, (at, new.geometry.inode_size.into())))
    }

    /// Compares the old state with the draft, but for the blocks of both logs.
    fn changes(
        &self,
        draft: &Draft,
        new: &NewLog,
        geometry: &Geometry,
        is_new: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Difference, NoLargerLog> {
        let mut blocks = self.overlay.written_blocks();
        blocks.extend(draft.device.written_blocks());
        blocks.sort_unstable();
        blocks.dedup();
        self.leave_out_logs(&mut blocks, new);
        let states: [&dyn BlockDevice; 2] = [&**self.device, &*draft.device];
        Ok(Difference::among(&blocks, states, geometry.block_size, is_new)?)
    }

    /// Returns the blocks that make the new state of the draft, and checks that the old log takes
    /// them. They are read now, as the overlay shows the device where it has no blocks of its own.
    fn back(
        &self,
        draft: &Draft,
        new: &NewLog,
        geometry: &Geometry,
    ) -> Result<Vec<ChangedBlock>, NoLargerLog> {
        let mut blocks = draft.device.written_blocks();
        self.leave_out_logs(&mut blocks, new);
        // They become free.
        blocks.retain(|nr| new.nodes.binary_search(nr).is_err());
        let states: [&dyn BlockDevice; 2] = [&*draft.device, &**self.overlay];
        let back = Difference::among(&blocks, states, geometry.block_size, &mut |_| false)?;
        let back = back.used_contents(&**self.overlay)?;
        let changes = OfflineChanges { device: &**self.device, blocks: &back, time: now() };
        changes.check(self.log).map_err(cause)?;
        Ok(back)
    }

    fn leave_out_logs(&self, blocks: &mut Vec<u64>, new: &NewLog) {
        let mut logs: Vec<_> = self.log.own_blocks().into_iter().chain(new.own_blocks()).collect();
        logs.sort_unstable();
        blocks.retain(|nr| {
            let after = logs.partition_point(|(start, _)| start <= nr);
            let before = after.checked_sub(1).and_then(|index| logs.get(index));
            before.is_none_or(|(_, end)| end <= nr)
        });
    }
}

impl LargerLog {
    /// Returns the number of the larger log's blocks.
    pub fn blocks(&self) -> u64 {
        self.new.own_blocks().map(|(start, end)| end.saturating_sub(start)).sum()
    }

    /// Returns the numbers of all blocks that are written, but for those of the old log.
    pub fn written(&self) -> impl Iterator<Item = u64> + '_ {
        let own = self.new.own_blocks().flat_map(|(start, end)| start..end);
        let back = self.back.iter().map(|(nr, _)| *nr);
        self.changes.all().chain(own).chain(back)
    }

    /// Makes the new state with the larger log: wholly or not at all.
    pub fn make(&self, device: &Arc<dyn BlockDevice>) -> Result<(), WriteError> {
        let used = self.changes.used_contents(&*self.state)?;
        let changes = OfflineChanges { device: &**device, blocks: &used, time: now() };
        self.changes.write_new(&**device, &*self.state)?;
        let log = self.new.format(device, &*self.state, self.block_size);
        let log = log.map_err(OfflineError::Unchanged)?;
        changes.check(&log)?;
        let switch = self.switch(&**device, &used).map_err(OfflineError::Unchanged)?;
        Ok(changes.commit_by_switch(&log, &switch)?)
    }

    /// Gives the new state the old log again, which is empty.
    ///
    /// # Errors
    /// The failure, after which the file system has one of both logs.
    pub fn put_back(&self, device: &Arc<dyn BlockDevice>, old: &Log) -> Result<(), Error> {
        let changes = OfflineChanges { device: &**device, blocks: &self.back, time: now() };
        let switch = self.switch(&**device, &self.back)?;
        changes.commit_by_switch(old, &switch).map_err(cause)
    }

    /// Returns the block of the device with the journal's inode, which is that of the changes.
    fn switch(
        &self,
        device: &dyn BlockDevice,
        changes: &[ChangedBlock],
    ) -> Result<ChangedBlock, Error> {
        let nr = self.new.switch;
        let mut block = vec![0; self.block_size as usize];
        device.read_exact_at(&mut block, nr.saturating_mul(self.block_size.into()))?;
        let (at, len) = self.slot;
        let slot = at..at.saturating_add(len);
        let new = changes.iter().find(|(changed, _)| *changed == nr);
        let new = new.and_then(|(_, bytes)| bytes.get(slot.clone()));
        let (Some(old), Some(new)) = (block.get_mut(slot), new) else {
            return Err(Corrupt::new("journal inode").field("table").at_block(nr).into());
        };
        old.copy_from_slice(new);
        Ok((nr, block.into()))
    }
}

/// Returns the failure without the state of the file system.
fn cause(error: OfflineError) -> Error {
    match error {
        OfflineError::Unchanged(error) | OfflineError::InLog(error) => error,
    }
}

/// Claims all blocks that the old state uses.
fn claim_used(claims: &ClaimMap, geometry: &Geometry, is_new: &mut dyn FnMut(u64) -> bool) {
    let mut used = vec![0; geometry.block_size as usize];
    for group in (0..geometry.groups_count).map(GroupNr) {
        claims.copy_group(group, &mut used);
        let end = geometry.clusters_in_group(group) as usize;
        let mut from = 0;
        while let Some(run) = bitmap::next_zero_run(&used, from, end) {
            for block in run.clone().map(|bit| geometry.block_of_bit(group, bit as u32).0) {
                if !is_new(block) {
                    claims.claim_all(block..block.saturating_add(1));
                }
            }
            from = run.end;
        }
    }
}
