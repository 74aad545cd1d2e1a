//! The start of a repair: superblock, replay of the log in memory.

use super::choice::Chooser;
use super::draft::Draft;
use super::journal::MODE;
use super::superblock::{
    corrected, find_copy, has_same_facts, is_same_layout, without_contradictions,
};
use super::{MAX_BYTES, RepairError, RepairLevel};
use crate::descriptors::{RestoredBlock, restorable};
use crate::finding::{Finding, FindingCode, FindingPlace, Findings};
use crate::parallel::Workers;
use crate::passes::superblocks::{Primary, read_primary, unknown_features};
use crate::reader::Reader;
use crate::view::{Source, is_in_use};
use extant_blocks::{BlockDevice, OverlayDevice};
use extant_format::extent::Node;
use extant_format::inode::seal_inode;
use extant_format::superblock::{RawSuperblock, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_format::{
    Compat, Geometry, GroupDesc, Incompat, Inode, InodeFlags, InodeNr, Superblock,
};
use extant_journal::offline::reset_log;
use extant_journal::{Error, Log, recovery};
use std::mem::offset_of;
use std::sync::Arc;

/// Unit in which changes of an external journal are kept, in bytes.
const JOURNAL_UNIT: usize = 4096;

/// A file system whose log is replayed in memory.
pub struct Opened {
    pub device: Arc<dyn BlockDevice>,
    pub draft: Draft,
    /// The external journal with its changes.
    pub journal: Option<Arc<OverlayDevice>>,
    /// The primary superblock comes from a copy.
    pub restored: bool,
    /// Blocks of descriptors with some from copies, as they were before the replay.
    pub descriptors: Vec<RestoredBlock>,
    /// The damage that copies have removed.
    pub removed: Vec<Finding>,
    /// The log was replayed, and must be replayed on the device before any other change.
    pub replayed: bool,
    /// The log is damaged: the valid copies were replayed.
    pub salvaged: bool,
}

/// Reads the primary superblock; `None` if it cannot be read, or has another magic.
fn primary(device: &dyn BlockDevice) -> Option<Superblock> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET).ok()?;
    Superblock::parse_unverified(&bytes).ok()
}

/// Reads the primary superblock, and corrects one flipped bit of its magic. Returns whether it did.
pub fn parse_primary(device: &dyn BlockDevice) -> Option<(Superblock, bool)> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET).ok()?;
    if let Ok(superblock) = Superblock::parse_unverified(&bytes) {
        return Some((superblock, false));
    }
    let start = offset_of!(RawSuperblock, magic);
    let flips = (start..start.saturating_add(2)).flat_map(|at| (0..8).map(move |bit| (at, bit)));
    let mut corrected = flips.filter_map(|(at, bit)| {
        let mut bytes = bytes;
        *bytes.get_mut(at)? ^= 1 << bit;
        Superblock::parse_unverified(&bytes).ok()
    });
    corrected.next().map(|superblock| (superblock, true))
}

/// Returns whether all passes can use a superblock.
pub fn is_usable(sb: &Superblock) -> bool {
    sb.rev_level() <= 1 && unknown_features(&sb.features()).is_none() && Geometry::new(sb).is_ok()
}

/// Returns the superblock to go on with, and whether it comes from a copy or a correction. A
/// primary superblock with a wrong checksum is believed if it differs from the copies in counts,
/// times and the like.
pub fn choose_superblock(device: &dyn BlockDevice) -> Result<(Superblock, bool), RepairError> {
    let primary = primary(device).filter(|sb| sb.rev_level() <= 1);
    let has_layout = |sb: &&Superblock| Geometry::new(sb).is_ok();
    match primary.as_ref().filter(has_layout).cloned() {
        Some(primary) if is_sealed(&primary) => Ok((primary, false)),
        Some(primary) => match corrected(&primary).or_else(|| better_copy(device, &primary)) {
            Some(copy) => Ok((copy, true)),
            None => Ok((primary, false)),
        },
        None => {
            let parsed = parse_primary(device);
            let copy = parsed
                .and_then(|(primary, _)| corrected(&primary))
                .or_else(|| find_copy(device, None))
                .or_else(|| without_contradictions(primary?));
            Ok((copy.ok_or(RepairError::NoSuperblock)?, true))
        }
    }
}

/// Returns whether the checksum is right. A checksum without the feature is no proof of anything:
/// the feature may be a flipped bit.
fn is_sealed(superblock: &Superblock) -> bool {
    let has_trace = !superblock.has_checksum() && superblock.raw().checksum.get() != 0;
    superblock.verify_checksum().is_ok() && !has_trace
}

/// Returns a copy, protected by a checksum, that contradicts a primary superblock which is not.
fn better_copy(device: &dyn BlockDevice, primary: &Superblock) -> Option<Superblock> {
    let copy = match find_copy(device, Some(primary.uuid())) {
        Some(copy) => Some(copy).filter(|copy| !has_same_facts(copy, primary)),
        // The UUID may be damaged, too. A copy of an earlier file system has another time.
        None => find_copy(device, None).filter(|copy| {
            copy.mkfs_time() == primary.mkfs_time() || is_same_layout(copy, primary)
        }),
    };
    copy.filter(Superblock::has_checksum)
}

/// Returns the block with the slot of the journal's inode, with the map that the superblock has;
/// `None` if it has none, or the inode has the same.
fn journal_from_backup(reader: &Reader<'_>, sb: &Superblock) -> Option<RestoredBlock> {
    let geometry = &reader.geometry;
    let backup = sb.journal_backup().filter(|_| sb.journal_inum() == InodeNr::JOURNAL)?;
    let (group, index) = geometry.inode_location(InodeNr::JOURNAL).ok()?;
    let (desc_block, at) = geometry.desc_location(group);
    let descriptors = reader.block(geometry.gdt_block(desc_block).0)?;
    let desc = GroupDesc::decode_unverified(descriptors.get(at..)?, geometry);
    let (block, offset) = geometry.inode_slot(index);
    let nr = desc.inode_table.checked_add(block.into())?;
    let mut bytes = reader.block(nr)?;
    let end = offset.saturating_add(geometry.inode_size.into());
    let slot = bytes.get_mut(offset..end)?;
    let mut inode = Inode::decode_unverified(slot, geometry, InodeNr::JOURNAL).ok()?;
    let is_file = inode.is_regular() && inode.links > 0;
    if is_file && inode.i_block == backup.i_block && inode.size == backup.size {
        return None;
    }
    (inode.mode, inode.links, inode.dtime) = (MODE, 1, 0);
    inode.i_block = backup.i_block;
    inode.size = backup.size;
    let is_tree = Node::parse(&inode.i_block, None).is_ok();
    inode.flags.set(InodeFlags::EXTENTS, is_tree);
    inode.encode(slot, geometry, InodeNr::JOURNAL).ok()?;
    seal_inode(slot, geometry, InodeNr::JOURNAL);
    Some(RestoredBlock::plain(nr, bytes))
}

/// Returns the damage of a primary superblock that is replaced; `field` is the first fact that was.
pub fn replaced(device: &dyn BlockDevice, field: Option<&'static str>) -> Finding {
    let code = FindingCode::SuperblockReplaced;
    if let Some(field) = field {
        return Finding::new(code, FindingPlace::default().field(field));
    }
    let mut first = None;
    read_primary(device, &mut Findings::new(&mut |finding| first = first.or(Some(finding))));
    match first {
        Some(finding) => Finding { code, ..finding },
        None => Finding::new(code, FindingPlace::default()),
    }
}

impl Opened {
    /// Opens a file system, and replays its log in memory.
    pub fn new(
        device: &Arc<dyn BlockDevice>,
        journal: Option<&Arc<dyn BlockDevice>>,
        level: RepairLevel,
        workers: Workers<'_>,
    ) -> Result<Opened, RepairError> {
        let choice = Chooser { device, journal, workers }.choose()?;
        let (superblock, restored) = (choice.superblock, choice.replaced);
        let geometry = Geometry::new(&superblock)?;
        let size = geometry.block_size as usize;
        let overlay = Arc::new(OverlayDevice::new(device.clone(), size, MAX_BYTES));
        let draft = Draft::new(overlay);
        let mut removed = Vec::new();
        if restored {
            removed.push(replaced(&**device, choice.field));
            draft.write(SUPERBLOCK_OFFSET, &superblock.encode())?;
        }
        let journal = journal
            .map(|journal| Arc::new(OverlayDevice::new(journal.clone(), JOURNAL_UNIT, MAX_BYTES)));
        let mut opened = Opened {
            device: device.clone(),
            draft,
            journal,
            restored,
            descriptors: Vec::new(),
            removed,
            replayed: false,
            salvaged: false,
        };
        opened.put_descriptors(choice.descriptors, geometry)?;
        let impossible = restorable(&Reader::new(&*opened.draft.device, geometry));
        opened.put_descriptors(impossible, geometry)?;
        if is_in_use(&*opened.draft.device, &superblock, &geometry)? {
            return Err(RepairError::InUse);
        }
        opened.replay(Primary { superblock, geometry }, level)?;
        Ok(opened)
    }

    /// Takes places of inode tables from copies, as the log can only be found with their help, and
    /// new bitmaps must not lie in them. The log may have newer ones.
    fn put_descriptors(
        &mut self,
        blocks: Vec<RestoredBlock>,
        geometry: Geometry,
    ) -> Result<(), RepairError> {
        for block in blocks {
            self.draft.write(block.nr.saturating_mul(geometry.block_size.into()), &block.bytes)?;
            self.removed.extend(block.findings());
            self.descriptors.push(block);
        }
        Ok(())
    }

    /// Opens the log in the draft; `None` without a journal, or without its device.
    fn log(&self, primary: &Primary) -> Result<Option<Log>, Error> {
        let device: Arc<dyn BlockDevice> = self.draft.device.clone();
        let journal = self.journal.clone().map(|journal| journal as Arc<dyn BlockDevice>);
        Source { device: &device, journal: journal.as_ref(), as_is: true }.open_log(primary)
    }

    /// Replays the log. A log that cannot be replayed is dropped if that price may be paid.
    fn replay(&mut self, primary: Primary, level: RepairLevel) -> Result<(), RepairError> {
        let sb = &primary.superblock;
        if !sb.compat().contains(Compat::HAS_JOURNAL) {
            return Ok(());
        }
        let marked = sb.incompat().contains(Incompat::RECOVER);
        self.restore_journal(&primary)?;
        let log = match self.log(&primary) {
            Ok(None) => return Ok(()),
            Ok(Some(log)) => log,
            Err(error) if marked && level == RepairLevel::Safe => {
                return Err(RepairError::Journal(error));
            }
            Err(_) => return self.unmark(),
        };
        // A copy of the superblock has no mark, and without a checksum the mark may be damaged.
        // Otherwise the file system may have changed since the transactions of an unmarked log.
        let sealed = sb.has_checksum() && sb.verify_checksum().is_ok();
        let is_lost = self.restored || level == RepairLevel::Lossy && !sealed;
        if log.needs_recovery() && (marked || is_lost) {
            self.replay_log(log, &primary.geometry, level)?;
        }
        self.unmark()
    }

    /// Takes the map of the journal from its copy in the superblock, if the log has more committed
    /// transactions with that.
    fn restore_journal(&mut self, primary: &Primary) -> Result<(), RepairError> {
        let geometry = &primary.geometry;
        let reader = Reader::new(&*self.draft.device, *geometry);
        let Some(block) = journal_from_backup(&reader, &primary.superblock) else { return Ok(()) };
        let offset = block.nr.saturating_mul(geometry.block_size.into());
        let old = self.draft.read(offset, block.bytes.len())?;
        let count = |opened: &Opened| {
            let log = opened.log(primary).ok().flatten()?;
            let blocks = opened.device.len() >> geometry.block_bits;
            recovery::scan(&log, blocks).ok().map(|replay| replay.outcome().transactions)
        };
        let before = count(self);
        self.draft.write(offset, &block.bytes)?;
        // An empty log is no proof that the map is the newer one.
        if count(self) > before.max(Some(0)) {
            self.descriptors.push(block);
        } else {
            self.draft.write(offset, &old)?;
        }
        Ok(())
    }

    fn replay_log(
        &mut self,
        log: Log,
        geometry: &Geometry,
        level: RepairLevel,
    ) -> Result<(), RepairError> {
        let blocks = self.device.len() >> geometry.block_bits;
        let salvaged = |error| match recovery::salvage(&log, blocks) {
            _ if level == RepairLevel::Safe => Err(RepairError::Journal(error)),
            other => Ok(other.ok()),
        };
        let replay = match recovery::scan(&log, blocks) {
            Ok(replay) => Some(replay),
            Err(error) => {
                self.salvaged = true;
                salvaged(error)?
            }
        };
        let replay = match replay {
            Some(replay) if !replay.fast_commits().is_empty() => {
                return Err(RepairError::FastCommits);
            }
            Some(replay) => replay,
            None => return reset_log(&log).map_err(RepairError::Journal),
        };
        replay.apply(&*self.draft.device).map_err(RepairError::Journal)?;
        self.replayed = true;
        Ok(())
    }

    /// Removes the mark that the log is to be replayed: that of the primary superblock, or of the
    /// copy in the log.
    fn unmark(&self) -> Result<(), RepairError> {
        let bytes = self.draft.read(SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE)?;
        if !Superblock::parse_unverified(&bytes)?.incompat().contains(Incompat::RECOVER) {
            return Ok(());
        }
        self.draft.edit_super(|sb| {
            let mut features = sb.features();
            features.incompat.remove(Incompat::RECOVER);
            sb.set_features(features);
        })
    }
}
