//! A planned repair, and the writes that make it.

use super::open::Opened;
use super::{RepairError, undo};
use crate::claims::ClaimMap;
use crate::passes::superblocks::Primary;
use crate::reader::Reader;
use crate::view::Source;
use extant_blocks::{BlockDevice, Plug};
use extant_format::group_desc::GroupFlags;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State};
use extant_format::types::Timestamp;
use extant_format::{BlockNr, Compat, Geometry, GroupDesc, Incompat, Superblock, bitmap};
use extant_journal::offline::{ChangedBlock, OfflineChanges};
use extant_journal::{Log, recovery};
use std::io::Write;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A repair whose result was surveyed without a finding. Dropping it changes nothing.
pub struct RepairPlan {
    opened: Opened,
    journal: Option<Arc<dyn BlockDevice>>,
    /// The clusters in use before the repair.
    in_use: Option<ClaimMap>,
}

impl RepairPlan {
    pub(super) fn new(
        opened: Opened,
        journal: Option<Arc<dyn BlockDevice>>,
        in_use: Option<ClaimMap>,
    ) -> RepairPlan {
        RepairPlan { opened, journal, in_use }
    }

    /// Marks the file system as checked and free of errors.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn mark_valid(&self) -> Result<(), RepairError> {
        self.opened.draft.edit_super(|sb| {
            let state = sb.state();
            if state.contains(State::ERROR) || !state.contains(State::VALID) {
                sb.clear_errors();
                sb.set_state(state.difference(State::ERROR) | State::VALID);
            }
        })
    }

    fn superblock(&self) -> Result<(Superblock, Geometry), RepairError> {
        let bytes = self.opened.draft.read(SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE)?;
        let superblock = Superblock::parse_unverified(&bytes)?;
        let geometry = Geometry::new(&superblock)?;
        Ok((superblock, geometry))
    }

    /// Returns the blocks that differ from those on the device, with their new content.
    fn changes(&self, size: u32) -> Result<Vec<ChangedBlock>, RepairError> {
        let mut old = vec![0; size as usize];
        let mut changes = Vec::new();
        for (nr, bytes) in self.opened.draft.device.written() {
            self.opened.device.read_exact_at(&mut old, nr.saturating_mul(size.into()))?;
            if bytes[..] != old {
                changes.push((nr, bytes));
            }
        }
        Ok(changes)
    }

    /// Returns the number of blocks that the repair changes, those of a replay of the log included;
    /// 0 if nothing is to be done.
    ///
    /// # Errors
    /// I/O errors.
    pub fn changed_blocks(&self) -> Result<u64, RepairError> {
        let (_, geometry) = self.superblock()?;
        Ok(self.changes(geometry.block_size)?.len() as u64)
    }

    /// Writes an undo file: the current content of all blocks that change, for [`super::restore`].
    ///
    /// # Errors
    /// I/O errors.
    pub fn save_undo(&self, out: &mut dyn Write) -> Result<(), RepairError> {
        let (_, geometry) = self.superblock()?;
        let changes = self.changes(geometry.block_size)?;
        let mut blocks: Vec<u64> = changes.into_iter().map(|(nr, _)| nr).collect();
        // The marks in the superblock change on the way, and the log takes the transaction.
        blocks.push(SUPERBLOCK_OFFSET >> geometry.block_bits);
        if let Some(log) = self.log()? {
            blocks.extend(log.own_blocks().into_iter().flat_map(|(start, end)| start..end));
        }
        blocks.sort_unstable();
        blocks.dedup();
        Ok(undo::save(&*self.opened.device, geometry.block_size, &blocks, out)?)
    }

    /// Opens the log on the device; `None` if it cannot be opened, or is not to be used.
    fn log(&self) -> Result<Option<Log>, RepairError> {
        let (new, _) = self.superblock()?;
        let mut bytes = [0; SUPERBLOCK_SIZE];
        self.opened.device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)?;
        let Ok(superblock) = Superblock::parse_unverified(&bytes) else { return Ok(None) };
        let Ok(geometry) = Geometry::new(&superblock) else { return Ok(None) };
        let has_journal = |sb: &Superblock| sb.compat().contains(Compat::HAS_JOURNAL);
        if !has_journal(&superblock) || !has_journal(&new) {
            return Ok(None);
        }
        let primary = Primary { superblock, geometry };
        let source =
            Source { device: &self.opened.device, journal: self.journal.as_ref(), as_is: true };
        Ok(source.open_log(&primary).ok().flatten())
    }

    /// Makes the repair: wholly or not at all, if the file system has a usable journal. Without one
    /// a power cut may leave a part of it, which another repair completes.
    ///
    /// # Errors
    /// Those of the device and of the log. [`RepairError::Apply`] says in which state the file
    /// system is.
    pub fn apply(&self) -> Result<(), RepairError> {
        let (_, geometry) = self.superblock()?;
        let device = &*self.opened.device;
        if self.opened.restored {
            self.restore_superblock()?;
        }
        self.restore_descriptors(geometry.block_size)?;
        if self.opened.replayed {
            self.replay(&geometry)?;
        }
        self.reset_logs(geometry.block_size)?;
        let changes = self.changes(geometry.block_size)?;
        let log = self.log()?.filter(|log| !log.needs_recovery());
        let is_new = |nr: u64| self.is_new(nr, &geometry);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = Timestamp::new(time.as_secs() as i64, time.subsec_nanos());
        let Some(log) = log else {
            let all = OfflineChanges { device, blocks: &changes, time };
            return all.write_in_place(geometry.block_size, &is_new).map_err(RepairError::Partly);
        };
        let (new, old): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(nr, _)| is_new(*nr));
        let changes = OfflineChanges { device, blocks: &old, time };
        changes.check(&log)?;
        // Nothing refers to these blocks before the transaction.
        let mut plug = Plug::new(device);
        for (nr, bytes) in &new {
            plug.add(nr.saturating_mul(geometry.block_size.into()), &bytes[..]);
        }
        plug.finish()?;
        device.flush()?;
        Ok(changes.commit(&log)?)
    }

    /// Writes the superblock from a copy, marked if the log is to be replayed.
    fn restore_superblock(&self) -> Result<(), RepairError> {
        let (mut superblock, _) = self.superblock()?;
        let mut features = superblock.features();
        features.incompat.set(Incompat::RECOVER, self.opened.replayed);
        superblock.set_features(features);
        self.opened.device.write_all_at(&superblock.seal(), SUPERBLOCK_OFFSET)?;
        Ok(self.opened.device.flush()?)
    }

    /// Writes blocks of descriptors that come from copies: they lead to the log. A power cut leaves
    /// some of them, and another repair restores the others.
    fn restore_descriptors(&self, size: u32) -> Result<(), RepairError> {
        if self.opened.descriptors.is_empty() {
            return Ok(());
        }
        let device = &*self.opened.device;
        for block in &self.opened.descriptors {
            device.write_all_at(&block.bytes, block.nr.saturating_mul(size.into()))?;
        }
        Ok(device.flush()?)
    }

    fn replay(&self, geometry: &Geometry) -> Result<(), RepairError> {
        let blocks = self.opened.device.len() >> geometry.block_bits;
        if let Some(log) = self.log()? {
            recovery::recover(log, &*self.opened.device, blocks).map_err(RepairError::Journal)?;
        }
        Ok(())
    }

    /// Writes superblocks of logs that are to be empty. Such a log has nothing that counts.
    fn reset_logs(&self, size: u32) -> Result<(), RepairError> {
        if let (Some(journal), Some(draft)) = (&self.journal, &self.opened.journal) {
            for (nr, bytes) in draft.written() {
                journal.write_all_at(&bytes, nr.saturating_mul(bytes.len() as u64))?;
            }
            journal.flush()?;
        }
        let Some(log) = self.log()? else { return Ok(()) };
        let own = log.own_blocks();
        let is_own = |nr: u64| own.iter().any(|(start, end)| (*start..*end).contains(&nr));
        for (nr, bytes) in self.changes(size)?.iter().filter(|(nr, _)| is_own(*nr)) {
            self.opened.device.write_all_at(bytes, nr.saturating_mul(size.into()))?;
        }
        Ok(self.opened.device.flush()?)
    }

    /// Returns whether nothing used a block before the repair: neither a structure that was found,
    /// nor the bitmap on the device, which may know of one that cannot be read.
    fn is_new(&self, nr: u64, geometry: &Geometry) -> bool {
        let range = nr..nr.saturating_add(1);
        let claimed = self.in_use.as_ref().is_none_or(|map| map.first_claimed(range).is_some());
        if claimed {
            return false;
        }
        let reader = Reader::new(&*self.opened.device, *geometry);
        let Some((group, bit)) = geometry.group_and_bit(BlockNr(nr)) else { return false };
        let (index, offset) = geometry.desc_location(group);
        let free = || {
            let descriptors = reader.block(geometry.gdt_block(index).0)?;
            let desc = GroupDesc::decode_unverified(descriptors.get(offset..)?, geometry);
            let unwritten = desc.has_flag(geometry, GroupFlags::BLOCK_UNINIT);
            let bits = reader.block(desc.block_bitmap).filter(|_| !unwritten)?;
            Some(!bitmap::test(&bits, bit as usize))
        };
        free().unwrap_or(false)
    }
}

impl std::fmt::Debug for RepairPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RepairPlan")
            .field("device", &self.opened.device.name())
            .finish_non_exhaustive()
    }
}
