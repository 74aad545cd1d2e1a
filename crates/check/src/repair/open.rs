//! The start of a repair: superblock, replay of the log in memory.

use super::draft::Draft;
use super::superblock::{find_copy, has_same_facts, is_same_layout, without_contradictions};
use super::{RepairError, RepairLevel};
use crate::descriptors::{RestoredBlock, restorable};
use crate::finding::{Finding, FindingCode, FindingPlace, Findings};
use crate::passes::superblocks::{Primary, read_primary};
use crate::reader::Reader;
use crate::view::{Source, is_in_use};
use extant_blocks::{BlockDevice, OverlayDevice};
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_format::{Compat, Geometry, Incompat, Superblock};
use extant_journal::offline::reset_log;
use extant_journal::{Error, Log, recovery};
use std::sync::Arc;

/// Bound on the changes in memory, in bytes.
const MAX_BYTES: usize = 1 << 30;

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
}

/// Reads the primary superblock; `None` if it cannot be read, or has another magic or revision.
fn primary(device: &dyn BlockDevice) -> Option<Superblock> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET).ok()?;
    let superblock = Superblock::parse_unverified(&bytes).ok();
    superblock.filter(|sb| sb.rev_level() <= 1)
}

/// Returns the superblock to go on with, and whether it comes from a copy. A primary superblock
/// with a wrong checksum is believed if it differs from the copies in counts, times and the like.
pub fn choose_superblock(device: &dyn BlockDevice) -> Result<(Superblock, bool), RepairError> {
    let primary = primary(device);
    let is_usable = |sb: &&Superblock| Geometry::new(sb).is_ok();
    match primary.as_ref().filter(is_usable).cloned() {
        Some(primary) if is_sealed(&primary) => Ok((primary, false)),
        Some(primary) => match better_copy(device, &primary) {
            Some(copy) => Ok((copy, true)),
            None => Ok((primary, false)),
        },
        None => {
            let copy = find_copy(device, None).or_else(|| without_contradictions(primary?));
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

/// Returns the damage of a primary superblock that a copy replaces.
pub fn replaced(device: &dyn BlockDevice) -> Finding {
    let mut first = None;
    read_primary(device, &mut Findings::new(&mut |finding| first = first.or(Some(finding))));
    let code = FindingCode::SuperblockReplaced;
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
    ) -> Result<Opened, RepairError> {
        let (superblock, restored) = choose_superblock(&**device)?;
        let geometry = Geometry::new(&superblock)?;
        let size = geometry.block_size as usize;
        let overlay = Arc::new(OverlayDevice::new(device.clone(), size, MAX_BYTES));
        let draft = Draft::new(overlay);
        let mut removed = Vec::new();
        if restored {
            removed.push(replaced(&**device));
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
        };
        opened.restore_descriptors(geometry)?;
        if is_in_use(&*opened.draft.device, &superblock, &geometry)? {
            return Err(RepairError::InUse);
        }
        opened.replay(Primary { superblock, geometry }, level)?;
        Ok(opened)
    }

    /// Takes impossible places of inode tables from copies, as the log can only be found with their
    /// help, and new bitmaps must not lie in them. The log may have newer ones.
    fn restore_descriptors(&mut self, geometry: Geometry) -> Result<(), RepairError> {
        let reader = Reader::new(&*self.draft.device, geometry);
        for block in restorable(&reader) {
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
        let log = match self.log(&primary) {
            Ok(None) => return Ok(()),
            Ok(Some(log)) => log,
            Err(error) if marked && level == RepairLevel::Safe => {
                return Err(RepairError::Journal(error));
            }
            Err(_) => return self.unmark(marked),
        };
        // A copy of the superblock has no mark.
        if log.needs_recovery() && (marked || self.restored) {
            self.replay_log(log, &primary.geometry, level)?;
        }
        self.unmark(marked)
    }

    fn replay_log(
        &mut self,
        log: Log,
        geometry: &Geometry,
        level: RepairLevel,
    ) -> Result<(), RepairError> {
        let blocks = self.device.len() >> geometry.block_bits;
        let replay = match recovery::scan(&log, blocks) {
            Ok(replay) if !replay.fast_commits().is_empty() => {
                return Err(RepairError::FastCommits);
            }
            Ok(replay) => replay,
            Err(error) if level == RepairLevel::Safe => return Err(RepairError::Journal(error)),
            Err(_) => {
                let dropped = reset_log(&log);
                return dropped.map_err(RepairError::Journal);
            }
        };
        replay.apply(&*self.draft.device).map_err(RepairError::Journal)?;
        self.replayed = true;
        Ok(())
    }

    fn unmark(&self, marked: bool) -> Result<(), RepairError> {
        if !marked {
            return Ok(());
        }
        self.draft.edit_super(|sb| {
            let mut features = sb.features();
            features.incompat.remove(Incompat::RECOVER);
            sb.set_features(features);
        })
    }
}
