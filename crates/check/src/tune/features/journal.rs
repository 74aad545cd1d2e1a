//! Journals that are added, removed, or get another length.
//!
//! # Order of writes
//! *Added*: the new log is formatted in free blocks, and gets a transaction with all changes
//! (bitmaps, counts, inode, superblock). The journal's inode is written next; nothing reads it
//! before the superblock has the feature. The write of the superblock counts
//! ([`OfflineChanges::commit_by_superblock`]), and a recovery makes the rest. A power cut before it
//! leaves a file system without a journal, whose inode 8 e2fsck clears.
//!
//! *Moved from another device*: as added. *Moved to another device*: module `outside`.
//!
//! *Another length*: a new log in free blocks, as if it moved
//! ([`OfflineChanges::commit_by_switch`]).
//!
//! *Removed*: a kernel that replays a log goes on to use it, so the log cannot make this change.
//! The superblock loses the feature first, and is marked as not clean; then go inode, bitmaps and
//! counts; then the mark. A power cut between leaves all files, in a file system without a journal
//! whose blocks of the old one a repair frees; with a redo file they are free, too.

use super::{Parts, Site, copies, outside};
use crate::claims::ClaimMap;
use crate::maps::Runs;
use crate::repair::{
    NewLog, NewLogError, RepairError, RepairLevel, Round, WantedLog, count_overhead,
};
use crate::tune::{JournalSize, Tunable, TuneError};
use extant_blocks::BlockDevice;
use extant_format::jbd2::{
    JournalSuperblock, MAX_JOURNAL_BLOCKS, MIN_JOURNAL_BLOCKS, default_journal_blocks,
};
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State};
use extant_format::{Compat, Geometry, InodeNr, Superblock};
use extant_journal::offline::OfflineError;
use std::io;

/// Blocks of the log for one of its fast-commit area.
const PER_FAST_COMMIT: u32 = 64;

pub fn unchanged(error: impl Into<extant_journal::Error>) -> TuneError {
    TuneError::Apply(OfflineError::Unchanged(error.into()))
}

/// Returns the blocks of a journal of this size.
fn length(size: JournalSize, geometry: &Geometry) -> Result<u32, TuneError> {
    let blocks = match size {
        JournalSize::Default => default_journal_blocks(geometry.blocks_count).into(),
        JournalSize::Bytes(bytes) => bytes >> geometry.block_bits,
    };
    let (min, max) = (u64::from(MIN_JOURNAL_BLOCKS), u64::from(MAX_JOURNAL_BLOCKS));
    if blocks == 0 && size == JournalSize::Default {
        return Err(TuneError::Unsupported("it is too small for a journal".into()));
    }
    if !(min..=max).contains(&blocks) || blocks > geometry.blocks_count / 2 {
        let why = format!(
            "a journal of {blocks} blocks, of {min} to {max}, and at most half of the file system"
        );
        return Err(TuneError::Invalid(why));
    }
    Ok(blocks as u32)
}

/// Plans a log in free blocks, with all changes that give it to the file system.
fn plan(
    site: &Site<'_>,
    tunable: &Tunable<'_>,
    superblock: &JournalSuperblock,
) -> Result<(NewLog, Parts), TuneError> {
    let draft = site.draft(&tunable.primary.geometry);
    let mut claim = |_: &ClaimMap| ();
    let wanted = WantedLog { superblock: Some(superblock), claim: &mut claim };
    let new = NewLog::plan(site.surveyor(), &draft, wanted).map_err(|error| match error {
        NewLogError::Repair(RepairError::NoSpace) => TuneError::NoSpace,
        error => error.into(),
    })?;
    copies(site, &draft)?;
    let parts = site.parts(tunable, &draft, &[])?;
    Ok((new, parts))
}

/// Adds a journal, or moves that of another device into the file system.
pub fn add(site: &Site<'_>, size: JournalSize) -> Result<(), TuneError> {
    let tunable = Tunable::open(site.device, site.journal)?;
    outside::check_at_hand(&tunable)?;
    let (sb, geometry) = (&tunable.primary.superblock, tunable.primary.geometry);
    if sb.rev_level() == 0 {
        return Err(TuneError::Unsupported("a file system of revision 0 has no features".into()));
    }
    let len = length(size, &geometry)?;
    let has_area = sb.compat().contains(Compat::FAST_COMMIT);
    let area = if has_area { len.checked_div(PER_FAST_COMMIT).unwrap_or(0) } else { 0 };
    let mut superblock =
        JournalSuperblock::new(geometry.block_size, len.saturating_add(area), sb.uuid());
    superblock.set_num_fc_blks(area);
    let (new, parts) = plan(site, &tunable, &superblock)?;
    if site.collects() {
        parts.collect(site)?;
        return new
            .format(site.device, &*parts.overlay, geometry.block_size)
            .map(drop)
            .map_err(unchanged);
    }
    let used = parts.used()?;
    let changes = parts.changes(site, &used);
    parts.write_new(site)?;
    let log = new.format(site.device, &*parts.overlay, geometry.block_size);
    let log = log.map_err(unchanged)?;
    changes.check(&log)?;
    let (nr, block) = inode_block(site, &new, &geometry, &parts)?;
    site.device.write_all_at(&block, nr.saturating_mul(geometry.block_size.into()))?;
    site.device.flush()?;
    changes.commit_by_superblock(&log)?;
    outside::forget(&tunable)
}

/// Returns the block of the device with the slot of the new journal's inode.
fn inode_block(
    site: &Site<'_>,
    new: &NewLog,
    geometry: &Geometry,
    parts: &Parts,
) -> Result<(u64, Vec<u8>), TuneError> {
    let (_, index) = geometry.inode_location(InodeNr::JOURNAL)?;
    let (_, at) = geometry.inode_slot(index);
    let size = u64::from(geometry.block_size);
    let mut block = vec![0; geometry.block_size as usize];
    site.device.read_exact_at(&mut block, new.switch.saturating_mul(size))?;
    let mut slot = vec![0; geometry.inode_size.into()];
    let place = new.switch.saturating_mul(size).saturating_add(at as u64);
    parts.overlay.read_exact_at(&mut slot, place)?;
    block.iter_mut().skip(at).zip(slot).for_each(|(to, from)| *to = from);
    Ok((new.switch, block))
}

/// Gives the journal another length, in bytes.
pub fn resize(site: &Site<'_>, bytes: u64) -> Result<(), TuneError> {
    let tunable = Tunable::open(site.device, site.journal)?;
    let len = length(JournalSize::Bytes(bytes), &tunable.primary.geometry)?;
    resize_to(site, &tunable, len)
}

/// Gives the journal a length in blocks.
pub fn resize_to(site: &Site<'_>, tunable: &Tunable<'_>, len: u32) -> Result<(), TuneError> {
    let geometry = tunable.primary.geometry;
    let log = tunable.log.as_ref();
    let log = log.ok_or_else(|| TuneError::Unsupported("there is no journal at hand".into()))?;
    if log.superblock().max_len() == len {
        return Ok(());
    }
    let superblock = log.superblock_of_length(len).map_err(unchanged)?;
    let (new, parts) = plan(site, tunable, &superblock)?;
    let used = parts.used()?;
    let changes = parts.changes(site, &used);
    parts.write_new(site)?;
    let log = new.format(site.device, &*parts.overlay, geometry.block_size);
    let log = log.map_err(unchanged)?;
    let switch = used.iter().find(|(nr, _)| *nr == new.switch);
    let missing = || extant_format::Corrupt::new("journal inode").field("table");
    Ok(changes.commit_by_switch(&log, switch.ok_or_else(missing)?)?)
}

fn without_journal(sb: &mut Superblock) {
    let mut features = sb.features();
    features.compat.remove(Compat::HAS_JOURNAL | Compat::FAST_COMMIT);
    sb.set_features(features);
    sb.set_journal_inum(InodeNr::NONE);
    sb.set_journal_uuid([0; 16]);
    sb.set_journal_dev(0);
    sb.set_journal_backup(None);
}

/// Frees the blocks and the inode of the journal.
pub fn free(round: &Round<'_>, ino: InodeNr) -> Result<(), TuneError> {
    let runs = Runs::of(&round.survey.volume.reader, ino, &round.inode(ino)?);
    let blocks = runs.runs.last().map_or(0, |run| run.end());
    round.clear_inode(ino)?;
    let clusters = blocks.div_ceil(round.geometry().cluster_ratio().into());
    Ok(round.draft.edit_super(|sb| count_overhead(sb, clusters, 0))?)
}

/// Removes the journal.
pub fn remove(site: &Site<'_>) -> Result<(), TuneError> {
    let tunable = Tunable::open(site.device, site.journal)?;
    let geometry = tunable.primary.geometry;
    let ino = tunable.primary.superblock.journal_inum();
    if ino == InodeNr::NONE {
        return remove_external(&tunable);
    }
    let draft = site.draft(&geometry);
    {
        let view = site.surveyor().view(&draft)?;
        let survey = site.whole(&view)?;
        free(&Round::new(&survey, &draft, RepairLevel::Safe), ino)?;
        draft.edit_super(without_journal)?;
    }
    site.surveyor().finish(&draft)?;
    copies(site, &draft)?;
    let parts = site.parts(&tunable, &draft, &[])?;
    if site.collects() {
        return parts.collect(site);
    }
    let used = parts.used()?;
    let (group, index) = geometry.inode_location(ino)?;
    let (block, _) = geometry.inode_slot(index);
    let table = inode_table(site, &geometry, group)?.saturating_add(block.into());
    let partly =
        |error: io::Error| TuneError::Partly("the blocks of the old journal", error.into());
    let mut bytes = [0; SUPERBLOCK_SIZE];
    parts.overlay.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)?;
    let mut marked = Superblock::parse_unverified(&bytes)?;
    marked.set_state(marked.state().difference(State::VALID));
    site.device.write_all_at(&marked.seal(), SUPERBLOCK_OFFSET)?;
    site.device.flush()?;
    let holder = SUPERBLOCK_OFFSET >> geometry.block_bits;
    // The inode goes before its blocks are free, and the mark after all else.
    let step = |nr: u64| match nr {
        _ if nr == table => 0,
        _ if nr == holder => 2,
        _ => 1,
    };
    for now in 0..3 {
        for (nr, bytes) in used.iter().filter(|(nr, _)| step(*nr) == now) {
            let place = nr.saturating_mul(geometry.block_size.into());
            site.device.write_all_at(bytes, place).map_err(partly)?;
        }
        site.device.flush().map_err(partly)?;
    }
    Ok(())
}

fn inode_table(
    site: &Site<'_>,
    geometry: &Geometry,
    group: extant_format::GroupNr,
) -> Result<u64, TuneError> {
    let (index, offset) = geometry.desc_location(group);
    let mut bytes = vec![0; geometry.desc_size.into()];
    let start = geometry.gdt_block(index).0.saturating_mul(geometry.block_size.into());
    site.device.read_exact_at(&mut bytes, start.saturating_add(offset as u64))?;
    Ok(extant_format::GroupDesc::decode_unverified(&bytes, geometry).inode_table)
}

/// Removes a journal on another device, which forgets the file system if it is at hand.
fn remove_external(tunable: &Tunable<'_>) -> Result<(), TuneError> {
    let mut superblock = tunable.primary.superblock.clone();
    without_journal(&mut superblock);
    superblock.seal();
    tunable.write_in_place(&superblock)?;
    outside::forget(tunable)
}
