//! The view of the device that is checked: its blocks as they are, or as they will be once the
//! journal is replayed.

use crate::finding::{Finding, FindingCode, FindingPlace, Findings};
use crate::maps::{Run, Runs};
use crate::passes::superblocks::{Primary, read_primary};
use crate::reader::Reader;
use extant_blocks::BlockDevice;
use extant_format::inode::Inode;
use extant_format::mmp::{MMP_SEQ_CLEAN, Mmp};
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_format::{
    Compat, Corrupt, FileType, Geometry, GroupDesc, Incompat, InodeNr, Superblock,
};
use extant_journal::{Error, Log, LogExtent, LogPlace, recovery};
use std::io;
use std::sync::Arc;

/// A file system to check.
pub struct View {
    pub device: Arc<dyn BlockDevice>,
    pub primary: Primary,
    /// Whether a log was replayed in memory.
    pub replayed: bool,
}

/// Sources of a view.
pub struct Source<'a> {
    pub device: &'a Arc<dyn BlockDevice>,
    /// The device of the journal, if the file system has an external one.
    pub journal: Option<&'a Arc<dyn BlockDevice>>,
    /// Leave the journal alone.
    pub as_is: bool,
}

impl Source<'_> {
    /// Opens the view; `None` if there is no usable superblock.
    pub fn view(&self, findings: &mut Findings<'_>) -> Option<View> {
        let primary = read_primary(&**self.device, findings)?;
        let needed = primary.superblock.incompat().contains(Incompat::RECOVER);
        let log = self.log(&primary, findings);
        let as_it_is = |primary| View { device: self.device.clone(), primary, replayed: false };
        let Some(log) = log.filter(|_| needed) else { return Some(as_it_is(primary)) };
        if self.as_is {
            findings.report(Finding::new(FindingCode::JournalNotReplayed, FindingPlace::default()));
            return Some(as_it_is(primary));
        }
        let device = self.replayed(&log, &primary, findings);
        // The log may hold a newer superblock.
        let primary = read_primary(&*device, &mut Findings::new(&mut |_| ()))?;
        Some(View { device, primary, replayed: true })
    }

    /// Opens the log, and checks that superblock and log agree.
    fn log(&self, primary: &Primary, findings: &mut Findings<'_>) -> Option<Log> {
        let sb = &primary.superblock;
        let place = FindingPlace::inode(sb.journal_inum());
        let contradiction = |field| Finding::new(FindingCode::JournalInvalid, place.field(field));
        if !sb.compat().contains(Compat::HAS_JOURNAL) {
            if sb.incompat().contains(Incompat::RECOVER) {
                findings.report(contradiction("needs_recovery without a journal"));
            }
            if sb.journal_inum() != InodeNr::NONE {
                findings.report(contradiction("journal inode without a journal"));
            }
            if sb.journal_uuid() != [0; 16] {
                findings.report(contradiction("journal device without a journal"));
            }
            return None;
        }
        let log = match self.open_log(primary) {
            Ok(Some(log)) => log,
            Ok(None) => {
                let missing = FindingPlace::default();
                findings.report(Finding::new(FindingCode::JournalDeviceMissing, missing));
                return None;
            }
            Err(error) => {
                findings.report(journal_finding(place, &error));
                return None;
            }
        };
        let journal = log.superblock();
        let is_outside = sb.journal_uuid() != [0; 16] || sb.journal_dev() != 0;
        if sb.journal_inum() != InodeNr::NONE && is_outside {
            findings.report(contradiction("journal in the file system and outside"));
        }
        if journal.is_v2() && journal.raw().feature_ro_compat.get() != 0 {
            findings.report(contradiction("unknown features"));
        }
        if log.errno() != 0 {
            findings.report(Finding::new(FindingCode::ErrorsRecorded, place.field("journal")));
        }
        if log.place() == LogPlace::Inside && journal.users().len() > 1 {
            findings.report(contradiction("users of the journal"));
        }
        if !journal.is_v2() && journal.has_v2_fields() {
            findings.report(contradiction("fields of version 2"));
        }
        if !sb.incompat().contains(Incompat::RECOVER) && log.needs_recovery() {
            findings.report(contradiction("transactions without needs_recovery"));
        }
        Some(log)
    }

    /// Opens the log; `None` if it is on a device that is not at hand.
    pub fn open_log(&self, primary: &Primary) -> Result<Option<Log>, Error> {
        let sb = &primary.superblock;
        if sb.journal_inum() == InodeNr::NONE {
            let Some(journal) = self.journal else { return Ok(None) };
            let (uuid, log) = external_log(journal, &primary.geometry)?;
            if uuid != sb.journal_uuid() {
                return Err(Corrupt::new("external journal").field("UUID").into());
            }
            return Ok(Some(log));
        }
        let reader = Reader::new(&**self.device, primary.geometry);
        let extents = journal_extents(&reader, sb.journal_inum())?;
        let size = primary.geometry.block_size;
        Log::open(self.device.clone(), &extents, size, LogPlace::Inside).map(Some)
    }

    /// Returns the device with the full commits of the log over it.
    fn replayed(
        &self,
        log: &Log,
        primary: &Primary,
        findings: &mut Findings<'_>,
    ) -> Arc<dyn BlockDevice> {
        let place = FindingPlace::inode(primary.superblock.journal_inum());
        let blocks = self.device.len() >> primary.geometry.block_bits;
        let replay = match recovery::scan(log, blocks) {
            Ok(replay) => replay,
            Err(error) => {
                findings.report(journal_finding(place, &error));
                return self.device.clone();
            }
        };
        if !replay.fast_commits().is_empty() {
            let note = Finding::new(FindingCode::FastCommitsNotReplayed, place);
            findings.report(note.found(replay.fast_commits().len() as u64));
        }
        let note = Finding::new(FindingCode::JournalReplayed, place);
        findings.report(note.found(replay.outcome().transactions));
        replay.overlay(self.device.clone())
    }
}

fn journal_finding(place: FindingPlace, error: &Error) -> Finding {
    match error {
        Error::Corrupt(error) => Finding::corrupt(FindingCode::JournalInvalid, place, error),
        Error::Unsupported(what) => Finding::new(FindingCode::JournalInvalid, place.field(what)),
        _ => Finding::new(FindingCode::Unreadable, place),
    }
}

/// Opens a journal on a device of its own, for a file system of this geometry. Returns its UUID,
/// too.
pub fn external_log(
    journal: &Arc<dyn BlockDevice>,
    geometry: &Geometry,
) -> Result<([u8; 16], Log), Error> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    journal.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)?;
    let own = Superblock::parse(&bytes)?;
    if !own.incompat().contains(Incompat::JOURNAL_DEV) {
        return Err(Corrupt::new("external journal").field("features").into());
    }
    let blocks = own.blocks_count().min(journal.len() >> geometry.block_bits);
    let len = u32::try_from(blocks).unwrap_or(u32::MAX);
    let extents = [LogExtent { logical: 0, physical: 0, len }];
    let log = Log::open(journal.clone(), &extents, geometry.block_size, LogPlace::External)?;
    Ok((own.uuid(), log))
}

/// Returns the number of the block of multi-mount protection, if the file system has one.
pub fn mmp_block(sb: &Superblock) -> Option<u64> {
    sb.incompat().contains(Incompat::MMP).then(|| sb.mmp_block().0)
}

/// Reads the block of multi-mount protection, if the file system has one.
pub fn read_mmp(
    device: &dyn BlockDevice,
    sb: &Superblock,
    geometry: &Geometry,
) -> io::Result<Option<Result<Mmp, Corrupt>>> {
    let block = sb.mmp_block();
    if !geometry.incompat(Incompat::MMP) || !geometry.data_range_valid(block, 1) {
        return Ok(None);
    }
    let mut bytes = vec![0; geometry.block_size as usize];
    device.read_exact_at(&mut bytes, block.0.saturating_mul(geometry.block_size.into()))?;
    let seed = geometry.metadata_csum.then_some(geometry.csum_seed);
    Ok(Some(Mmp::parse(&bytes, seed)))
}

/// Returns whether another host uses the file system, or did when it failed. A damaged block of
/// multi-mount protection does not tell so.
pub fn is_in_use(
    device: &dyn BlockDevice,
    sb: &Superblock,
    geometry: &Geometry,
) -> io::Result<bool> {
    let mmp = read_mmp(device, sb, geometry)?;
    Ok(matches!(mmp, Some(Ok(mmp)) if mmp.seq != MMP_SEQ_CLEAN))
}

/// Returns the block of the slot of the journal's inode, and the byte there, before anything else
/// of the file system is known to be valid.
pub fn journal_slot(reader: &Reader<'_>, ino: InodeNr) -> Result<(u64, usize), Corrupt> {
    let geometry = &reader.geometry;
    let (group, index) = geometry.inode_location(ino)?;
    let (block, offset) = geometry.desc_location(group);
    let unreadable = || Corrupt::new("journal inode").field("table").at_inode(ino);
    let bytes = reader.block(geometry.gdt_block(block).0).ok_or_else(unreadable)?;
    let desc = bytes.get(offset..).ok_or_else(unreadable)?;
    let desc = GroupDesc::decode_unverified(desc, geometry);
    let (block, offset) = geometry.inode_slot(index);
    Ok((desc.inode_table.checked_add(block.into()).ok_or_else(unreadable)?, offset))
}

/// Reads the journal's inode.
fn read_inode(reader: &Reader<'_>, ino: InodeNr) -> Result<Inode, Error> {
    let (table, offset) = journal_slot(reader, ino)?;
    let unreadable = || Corrupt::new("journal inode").field("table").at_inode(ino);
    let bytes = reader.block(table).ok_or_else(unreadable)?;
    Ok(Inode::decode_unverified(bytes.get(offset..).unwrap_or(&[]), &reader.geometry, ino)?)
}

/// Returns the blocks of the journal in the file system.
pub fn journal_extents(reader: &Reader<'_>, ino: InodeNr) -> Result<Vec<LogExtent>, Error> {
    let inode = read_inode(reader, ino)?;
    let bad = |field| Error::from(Corrupt::new("journal inode").field(field).at_inode(ino));
    if inode.file_type() != FileType::Regular || inode.links == 0 {
        return Err(bad("mode"));
    }
    let map = Runs::of(reader, ino, &inode);
    let whole = inode.size >> reader.geometry.block_bits;
    if map.damaged || map.runs.last().is_none_or(|run| run.end() < whole) {
        return Err(bad("map"));
    }
    let narrow = |value: u64| u32::try_from(value).map_err(|_| bad("map"));
    let extent = |run: &Run| {
        let len = whole.saturating_sub(run.logical).min(run.len);
        let (logical, len) = (narrow(run.logical)?, narrow(len)?);
        Ok(LogExtent { logical, physical: run.physical, len })
    };
    map.runs.iter().filter(|run| run.logical < whole).map(extent).collect()
}
