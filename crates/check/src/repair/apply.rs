//! A planned repair, and the writes that make it.

use super::open::Opened;
use super::{
    Exceeding, LargerLog, MAX_BYTES, NoLargerLog, RepairError, Surveyor, UnlistedBlock, save_undo,
};
use crate::claims::ClaimMap;
use crate::difference::{Difference, FreeBlocks, SaveRedo};
use crate::parallel::Workers;
use crate::passes::superblocks::Primary;
use crate::redo::RedoRecord;
use crate::view::{Source, mmp_block};
use extant_blocks::{BlockDevice, OverlayDevice};
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State};
use extant_format::{Compat, Geometry, Incompat, Superblock};
use extant_journal::offline::check_fit;
use extant_journal::{Log, recovery};
use std::io::{self, Write};
use std::sync::Arc;

/// A repair whose result was surveyed without a finding. Dropping it changes nothing.
pub struct RepairPlan {
    opened: Opened,
    journal: Option<Arc<dyn BlockDevice>>,
    /// The clusters in use before the repair.
    in_use: Option<ClaimMap>,
    /// A log for changes that exceed that of the file system.
    larger: Option<LargerLog>,
    /// Bad blocks that are not listed.
    unlisted: Vec<UnlistedBlock>,
}

impl RepairPlan {
    pub(super) fn new(
        opened: Opened,
        journal: Option<Arc<dyn BlockDevice>>,
        in_use: Option<ClaimMap>,
        unlisted: Vec<UnlistedBlock>,
    ) -> RepairPlan {
        RepairPlan { opened, journal, in_use, larger: None, unlisted }
    }

    /// Returns the bad blocks that are not listed, since structures with a fixed place have them.
    pub fn unlisted_blocks(&self) -> &[UnlistedBlock] {
        &self.unlisted
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

    /// Returns a function that tells whether nothing used a block before the repair: neither a
    /// structure that was found, nor the bitmap on the device, which may know of one that cannot be
    /// read. The block of multi-mount protection counts as such a block: hosts read and write it
    /// regardless of the log, of which a replay would undo a claim.
    fn is_new<'a>(
        &'a self,
        device: &'a dyn BlockDevice,
        geometry: &Geometry,
    ) -> impl FnMut(u64) -> bool + 'a {
        let mut bitmaps = FreeBlocks::new(device, *geometry);
        let mmp = self.superblock().ok().and_then(|(superblock, _)| mmp_block(&superblock));
        move |nr: u64| {
            if mmp == Some(nr) {
                return true;
            }
            let range = nr..nr.saturating_add(1);
            let claimed = self.in_use.as_ref().is_none_or(|map| map.first_claimed(range).is_some());
            !claimed && bitmaps.is_free(nr)
        }
    }

    /// Returns the blocks that differ from those on a device.
    fn changes_of(
        &self,
        device: &dyn BlockDevice,
        geometry: &Geometry,
    ) -> Result<Difference, RepairError> {
        let mut is_new = self.is_new(device, geometry);
        let overlay = &self.opened.draft.device;
        Ok(Difference::between(device, overlay, geometry.block_size, &[], &mut is_new)?)
    }

    fn changes(&self, geometry: &Geometry) -> Result<Difference, RepairError> {
        self.changes_of(&*self.opened.device, geometry)
    }

    /// Plans a larger log if the changes exceed that of the file system.
    ///
    /// # Errors
    /// [`RepairError::TooLarge`] if there is none.
    pub(super) fn find_log(&mut self, workers: Workers<'_>) -> Result<(), RepairError> {
        let (_, geometry) = self.superblock()?;
        let size = geometry.block_size as usize;
        // As the first writes leave the device.
        let before = OverlayDevice::new(self.opened.device.clone(), size, MAX_BYTES);
        let device: Arc<dyn BlockDevice> = Arc::new(before);
        if self.journal.is_none() {
            self.prepare(&device, &geometry)?;
        }
        let Some(log) = self.log(&device)?.filter(|log| !log.needs_recovery()) else {
            return Ok(());
        };
        let used = self.changes_of(&*device, &geometry)?.used.len();
        let (wanted, available) = match check_fit(&log, used) {
            Err(extant_journal::Error::NoCredits { wanted, available }) => (wanted, available),
            _ => return Ok(()),
        };
        let surveyor = Surveyor { journal: None, threads: workers.threads, stop: workers.stop };
        let overlay = &self.opened.draft.device;
        let exceeding = Exceeding { device: &device, overlay, log: &log, surveyor, used };
        let planned = exceeding.plan(&mut self.is_new(&*device, &geometry));
        self.larger = Some(planned.map_err(|why| match &why {
            NoLargerLog::Failed(error) if matches!(**error, RepairError::Interrupted) => {
                RepairError::Interrupted
            }
            _ => RepairError::TooLarge { wanted, available, why },
        })?);
        Ok(())
    }

    /// Returns the number of blocks that the repair changes, those of a replay of the log included;
    /// 0 if nothing is to be done.
    ///
    /// # Errors
    /// I/O errors.
    pub fn changed_blocks(&self) -> Result<u64, RepairError> {
        let (_, geometry) = self.superblock()?;
        Ok(self.changes(&geometry)?.all().count() as u64)
    }

    /// Writes an undo file: the current content of all blocks that change, for [`super::restore`].
    ///
    /// # Errors
    /// I/O errors.
    pub fn save_undo(&self, out: &mut dyn Write) -> Result<(), RepairError> {
        let (_, geometry) = self.superblock()?;
        let mut blocks: Vec<u64> = self.changes(&geometry)?.all().collect();
        // The marks in the superblock change on the way, and the log takes the transaction.
        blocks.push(SUPERBLOCK_OFFSET >> geometry.block_bits);
        if let Some(log) = self.log(&self.opened.device)? {
            blocks.extend(log.own_blocks().into_iter().flat_map(|(start, end)| start..end));
        }
        blocks.extend(self.larger.iter().flat_map(LargerLog::written));
        blocks.sort_unstable();
        blocks.dedup();
        let device = &*self.opened.device;
        Ok(save_undo(device, (geometry.block_size, &blocks), device.len(), out)?)
    }

    /// Opens the log on a device; `None` if it cannot be opened, or is not to be used.
    fn log(&self, device: &Arc<dyn BlockDevice>) -> Result<Option<Log>, RepairError> {
        let (new, _) = self.superblock()?;
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)?;
        let Ok(superblock) = Superblock::parse_unverified(&bytes) else { return Ok(None) };
        let Ok(geometry) = Geometry::new(&superblock) else { return Ok(None) };
        let has_journal = |sb: &Superblock| sb.compat().contains(Compat::HAS_JOURNAL);
        if !has_journal(&superblock) || !has_journal(&new) {
            return Ok(None);
        }
        let primary = Primary { superblock, geometry };
        let source = Source { device, journal: self.journal.as_ref(), as_is: true };
        Ok(source.open_log(&primary).ok().flatten())
    }

    /// Makes the repair: wholly or not at all, if the file system has a usable journal. Without one
    /// a power cut may leave a part of it, which another repair completes.
    ///
    /// # Errors
    /// Those of the device and of the log. [`RepairError::Apply`] and
    /// [`RepairError::JournalStays`] say in which state the file system is.
    pub fn apply(&self) -> Result<(), RepairError> {
        self.write(None)
    }

    /// Makes the repair as [`RepairPlan::apply`] does. Without a usable journal, `save` must make
    /// the record durable, by which [`finish_redo`](crate::finish_redo) completes the repair after
    /// a power cut. Copies of superblock and descriptors are written before, as the record needs
    /// them.
    ///
    /// # Errors
    /// As [`RepairPlan::apply`]; those of `save`.
    pub fn apply_with_redo(
        &self,
        save: &mut dyn FnMut(&RedoRecord<'_>) -> io::Result<()>,
    ) -> Result<(), RepairError> {
        self.write(Some(save))
    }

    fn write(&self, save: Option<&mut SaveRedo<'_>>) -> Result<(), RepairError> {
        let (_, geometry) = self.superblock()?;
        let device = &self.opened.device;
        self.prepare(device, &geometry)?;
        let log = self.log(device)?.filter(|log| !log.needs_recovery());
        if let (Some(larger), Some(log)) = (&self.larger, &log) {
            larger.make(device)?;
            return larger.put_back(device, log).map_err(RepairError::JournalStays);
        }
        let overlay = &*self.opened.draft.device;
        let changes = self.changes(&geometry)?;
        match (save, &log) {
            (Some(save), None) => changes.write_with_redo(&**device, overlay, save)?,
            _ => changes.write(&**device, overlay, log.as_ref())?,
        }
        Ok(())
    }

    /// Makes the first writes: copies of superblock and descriptors, the replay of the log, and
    /// superblocks of logs that are to be empty.
    fn prepare(
        &self,
        device: &Arc<dyn BlockDevice>,
        geometry: &Geometry,
    ) -> Result<(), RepairError> {
        if self.opened.restored {
            self.restore_superblock(&**device)?;
        }
        self.restore_descriptors(&**device, geometry.block_size)?;
        if self.opened.replayed {
            mark_recovery(&**device)?;
            self.replay(device, geometry)?;
        }
        self.reset_logs(device, geometry)
    }

    /// Writes the superblock from a copy, marked if the log is to be replayed.
    fn restore_superblock(&self, device: &dyn BlockDevice) -> Result<(), RepairError> {
        let (mut superblock, _) = self.superblock()?;
        let mut features = superblock.features();
        features.incompat.set(Incompat::RECOVER, self.opened.replayed);
        superblock.set_features(features);
        device.write_all_at(&superblock.seal(), SUPERBLOCK_OFFSET)?;
        Ok(device.flush()?)
    }

    /// Writes blocks of descriptors that come from copies: they lead to the log. A power cut leaves
    /// some of them, and another repair restores the others.
    fn restore_descriptors(&self, device: &dyn BlockDevice, size: u32) -> Result<(), RepairError> {
        if self.opened.descriptors.is_empty() {
            return Ok(());
        }
        for block in &self.opened.descriptors {
            device.write_all_at(&block.bytes, block.nr.saturating_mul(size.into()))?;
        }
        Ok(device.flush()?)
    }

    fn replay(
        &self,
        device: &Arc<dyn BlockDevice>,
        geometry: &Geometry,
    ) -> Result<(), RepairError> {
        let blocks = device.len() >> geometry.block_bits;
        let Some(log) = self.log(device)? else { return Ok(()) };
        let replayed = if self.opened.salvaged {
            recovery::salvage(&log, blocks).and_then(|replay| replay.apply(&**device))
        } else {
            recovery::recover(log, &**device, blocks).map(|(_, outcome)| outcome)
        };
        replayed.map(|_| ()).map_err(RepairError::Journal)
    }

    /// Writes superblocks of logs that are to be empty. Such a log has nothing that counts.
    fn reset_logs(
        &self,
        device: &Arc<dyn BlockDevice>,
        geometry: &Geometry,
    ) -> Result<(), RepairError> {
        if let (Some(journal), Some(draft)) = (&self.journal, &self.opened.journal) {
            for (nr, bytes) in draft.written() {
                journal.write_all_at(&bytes, nr.saturating_mul(bytes.len() as u64))?;
            }
            journal.flush()?;
        }
        let Some(log) = self.log(device)? else { return Ok(()) };
        let own = log.own_blocks();
        let is_own = |nr: &u64| own.iter().any(|(start, end)| (*start..*end).contains(nr));
        for nr in self.changes_of(&**device, geometry)?.all().filter(is_own) {
            let offset = nr.saturating_mul(geometry.block_size.into());
            let bytes = self.opened.draft.read(offset, geometry.block_size as usize)?;
            device.write_all_at(&bytes, offset)?;
        }
        Ok(device.flush()?)
    }
}

/// Marks the log as one to be replayed, so that any program completes a replay that is cut.
fn mark_recovery(device: &dyn BlockDevice) -> Result<(), RepairError> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)?;
    let mut superblock = Superblock::parse_unverified(&bytes)?;
    let mut features = superblock.features();
    if features.incompat.contains(Incompat::RECOVER) {
        return Ok(());
    }
    features.incompat.insert(Incompat::RECOVER);
    superblock.set_features(features);
    device.write_all_at(&superblock.seal(), SUPERBLOCK_OFFSET)?;
    Ok(device.flush()?)
}

impl std::fmt::Debug for RepairPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RepairPlan")
            .field("device", &self.opened.device.name())
            .finish_non_exhaustive()
    }
}
