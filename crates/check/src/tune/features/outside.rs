//! Journals that move to a device of their own.
//!
//! # Order of writes
//! The log on the other device gets the file system as its user, then a transaction with all
//! changes: superblock and copies that name the device, and bitmaps and counts without the blocks
//! of the journal inside. The write of the superblock counts
//! ([`OfflineChanges::commit_by_superblock`]): before it the file system has its old journal, and
//! after it a recovery with the device makes the rest. The superblock has the UUID of that log, so
//! that no older log can take its place.
//!
//! A power cut before leaves a log on the other device that no file system refers to; the same
//! change can be made again.
//!
//! [`OfflineChanges::commit_by_superblock`]:
//!     extant_journal::offline::OfflineChanges::commit_by_superblock

use super::{Site, copies, journal};
use crate::edit::EditError;
use crate::repair::{RepairLevel, Round, Surveyor};
use crate::tune::{Tunable, TuneError};
use crate::view::external_log;
use extant_blocks::BlockDevice;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_format::{Compat, Geometry, InodeNr, Superblock};
use extant_journal::offline::{check_fit, remove_user, reset_log, set_user};
use extant_journal::{Log, LogPlace};
use std::sync::Arc;

/// Refuses to change a journal on another device that is not named: it may have changes.
pub fn check_at_hand(tunable: &Tunable<'_>) -> Result<(), TuneError> {
    let has_journal = tunable.primary.superblock.compat().contains(Compat::HAS_JOURNAL);
    if has_journal && tunable.log.is_none() {
        return Err(EditError::JournalMissing.into());
    }
    Ok(())
}

/// Removes the file system from the users of the journal that it had on another device.
pub fn forget(tunable: &Tunable<'_>) -> Result<(), TuneError> {
    match &tunable.log {
        Some(log) if log.place() == LogPlace::External => {
            let removed = remove_user(log, tunable.primary.superblock.uuid());
            removed.map_err(|error| TuneError::Partly("the external journal", error))
        }
        _ => Ok(()),
    }
}

/// Opens the empty journal of a device, which no other file system uses.
fn open(
    device: &Arc<dyn BlockDevice>,
    geometry: &Geometry,
    user: [u8; 16],
) -> Result<([u8; 16], Log), TuneError> {
    let refuse = |why: &str| Err(TuneError::Unsupported(why.into()));
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)?;
    match Superblock::parse(&bytes) {
        Ok(own) if own.block_size() == geometry.block_size => {}
        Ok(own) => {
            let (own, size) = (own.block_size(), geometry.block_size);
            return refuse(&format!("a journal with blocks of {own} bytes in place of {size}"));
        }
        Err(_) => {
            let size = geometry.block_size;
            return refuse(&format!(
                "the device has no journal, which `extant mkfs -O journal_dev -b {size}` makes"
            ));
        }
    }
    let (uuid, log) = external_log(device, geometry).map_err(TuneError::Journal)?;
    match log.superblock().users() {
        // They may be those of a copy of this file system, with the same UUID, or the rest of a
        // move that a power cut has ended.
        _ if log.needs_recovery() => {
            let size = geometry.block_size;
            return refuse(&format!(
                "a journal with changes of a file system: mount that with it, or drop them by \
                 `extant mkfs -O journal_dev -b {size}`"
            ));
        }
        [] => {}
        // Of an earlier use.
        [known] if *known == user => {}
        _ => return refuse("a journal that another file system uses"),
    }
    Ok((uuid, log))
}

/// Moves the journal to the other device, whose number the superblock gets. A file system without
/// a journal gets one.
pub fn move_to(site: &Site<'_>, number: u32) -> Result<(), TuneError> {
    let device = site.new_journal.ok_or(EditError::JournalMissing)?;
    let tunable = Tunable::open(site.device, site.journal)?;
    check_at_hand(&tunable)?;
    let (superblock, geometry) = (&tunable.primary.superblock, tunable.primary.geometry);
    let (uuid, log) = open(device, &geometry, superblock.uuid())?;
    if superblock.journal_inum() == InodeNr::NONE && superblock.journal_uuid() == uuid {
        let why = "the journal is on that device already";
        return Err(TuneError::Invalid(why.into()));
    }
    if superblock.rev_level() == 0 {
        return Err(TuneError::Unsupported("a file system of revision 0 has no features".into()));
    }
    let draft = site.draft(&geometry);
    {
        let view = site.surveyor().view(&draft)?;
        let survey = site.whole(&view)?;
        let ino = superblock.journal_inum();
        if ino != InodeNr::NONE {
            journal::free(&Round::new(&survey, &draft, RepairLevel::Safe), ino)?;
        }
        draft.edit_super(|sb| {
            let mut features = sb.features();
            features.compat.insert(Compat::HAS_JOURNAL);
            sb.set_features(features);
            sb.set_journal_inum(InodeNr::NONE);
            sb.set_journal_backup(None);
            sb.set_journal_uuid(uuid);
            sb.set_journal_dev(number);
        })?;
    }
    let surveyor = Surveyor { journal: Some(device), ..site.surveyor() };
    surveyor.finish(&draft)?;
    copies(site, &draft)?;
    let parts = site.parts(&tunable, &draft, &[])?;
    let used = parts.used()?;
    let changes = parts.changes(site, &used);
    check_fit(&log, used.len()).map_err(journal::unchanged)?;
    let again = || external_log(device, &geometry).map(|(_, log)| log);
    let reset = reset_log(&log).and_then(|()| set_user(&again()?, superblock.uuid()));
    reset.map_err(journal::unchanged)?;
    let log = again().map_err(TuneError::Journal)?;
    parts.write_new(site)?;
    changes.check(&log)?;
    changes.commit_by_superblock(&log)?;
    forget(&tunable)
}
