//! Larger inodes: tables of a larger form in the same place, after a move where that lacks space.
//!
//! For example, inodes of 256 bytes become ones of 512, with blocks of 4 KiB and 8192 inodes in
//! each group. A table of 512 blocks takes 1024. The tables of a flexible group follow each other,
//! so all but the last one move to 1024 free blocks, of which they use the first 512.
//!
//! # Order of writes
//! 1. *Space*: a transaction moves tables, in the old form, to places with free blocks behind them
//!    (module [`room`]).
//! 2. *Size*: the write of the superblock counts ([`OfflineChanges::commit_by_superblock`]), and
//!    the log has all blocks in use: the first part of each table, descriptors and bitmaps. Blocks
//!    that were free, the second part of each table, are written before.
//! 3. *Name*: the journal gets its inode again, see below.
//!
//! A program reads the journal's inode before it replays the log: at 7 × 512 bytes of the first
//! table, where inodes 15 and 16 are while that table has the old form. So the superblock of step 2
//! names another inode, with the same map, whose slot lies in the second part of a table, which
//! nothing reads before. As such an inode has an ordinary number, the kernel could give it to a new
//! file after its replay, unless it is in use: it is that of a file `.journal` in the root
//! directory then. Journals had that place before they had an inode of their own, and e2fsck moves
//! them from there. Step 3 does the same in a transaction of which the write of the superblock
//! counts.
//!
//! A power cut between the steps leaves a file system without damage: the old one with tables in
//! other places, or the new one with a journal that has a name. One within step 3 may also leave an
//! inode 8 that nothing reads, as where a journal is added.
//!
//! A log that is too small for step 2 gets another length for the time of the change, and a file
//! system without a journal has one, as for other features. A journal on another device needs no
//! inode, so step 3 is left out.
//!
//! [`OfflineChanges::commit_by_superblock`]:
//!     extant_journal::offline::OfflineChanges::commit_by_superblock

mod name;
mod room;
mod tables;

use super::{Parts, SPARE, Site, Step, copies, journal, with_log_back};
use crate::edit::{Edit, EditBase, EditError};
use crate::finding::Findings;
use crate::reader::Reader;
use crate::repair::{Draft, RepairLevel, Round, count_overhead};
use crate::tune::{JournalSize, Tunable, TuneChanges, TuneError};
use crate::volume::Volume;
use extant_format::jbd2::MIN_JOURNAL_BLOCKS;
use extant_format::{Compat, Geometry, InodeNr, Superblock};
use extant_journal::offline::check_fit;
use extant_journal::{Log, LogPlace};

/// Gives all inodes another size, and sets further values of the superblock.
pub fn change(site: &Site<'_>, changes: &TuneChanges, size: u16) -> Result<(), TuneError> {
    let change = Change { changes, size };
    site.rehearse(&|site: &Site<'_>| change.through_log(site))?;
    change.through_log(site)
}

/// A change that is asked for.
#[derive(Clone, Copy)]
struct Change<'c> {
    changes: &'c TuneChanges,
    size: u16,
}

impl Change<'_> {
    /// Makes all steps, through a log that takes them.
    fn through_log(self, site: &Site<'_>) -> Result<(), TuneError> {
        if site.collects() {
            return self.steps(site);
        }
        let tunable = Tunable::open(site.device, site.journal)?;
        let blocks = self.blocks_in_log(&tunable)?;
        if !tunable.primary.superblock.compat().contains(Compat::HAS_JOURNAL) {
            // A block of records has those of at least 62 others.
            let blocks = blocks.saturating_add(blocks / 32).max(MIN_JOURNAL_BLOCKS as usize);
            let size = (blocks as u64) << tunable.primary.geometry.block_bits;
            journal::add(site, JournalSize::Bytes(size))?;
            let made = self.steps(site);
            return with_log_back(made, journal::remove(site), Step::InodeSize(self.size));
        }
        let log = tunable.log.as_ref().ok_or(EditError::JournalMissing)?;
        if log.place() == LogPlace::External || check_fit(log, blocks).is_ok() {
            return self.steps(site);
        }
        let longer = log.superblock_for(blocks).map_err(TuneError::Journal)?.max_len();
        let before = log.superblock().max_len();
        journal::resize_to(site, &tunable, longer)?;
        let made = self.steps(site);
        let back = Tunable::open(site.device, site.journal)
            .and_then(|tunable| journal::resize_to(site, &tunable, before));
        with_log_back(made, back, Step::InodeSize(self.size))
    }

    /// Returns a bound on the number of blocks in use that a step changes.
    fn blocks_in_log(self, tunable: &Tunable<'_>) -> Result<usize, TuneError> {
        let (superblock, old) = self.superblock(tunable)?;
        let new = Geometry::new(&superblock)?;
        let mut ignored = |_| ();
        let reader = Reader::new(&**tunable.device, old);
        let present = tunable.primary.superblock.clone();
        let volume = Volume::load(reader, present, &mut Findings::new(&mut ignored));
        let table = u64::from(old.inode_table_blocks());
        let of_tables: u64 = volume
            .groups
            .iter()
            .map(|group| u64::from(group.inodes(&volume.reader).div_ceil(new.inodes_per_block())))
            .map(|blocks| blocks.min(table))
            .fold(table, u64::saturating_add);
        let copies = old.super_groups().count() as u64;
        let descriptors = copies.saturating_mul(u64::from(old.desc_blocks).saturating_add(1));
        let bitmaps = u64::from(old.groups_count).saturating_mul(2);
        let root = self.blocks_of_root(&volume);
        let all = of_tables.saturating_add(descriptors).saturating_add(bitmaps);
        let all = all.saturating_add(root).saturating_add(SPARE as u64);
        Ok(usize::try_from(all).unwrap_or(usize::MAX))
    }

    /// Returns a bound on the blocks of the root directory.
    fn blocks_of_root(self, volume: &Volume<'_>) -> u64 {
        let geometry = &volume.reader.geometry;
        let slot = volume.slot(InodeNr::ROOT).unwrap_or_default();
        let root = extant_format::Inode::decode_unverified(&slot, geometry, InodeNr::ROOT);
        root.map_or(0, |root| (root.size >> geometry.block_bits).min(geometry.blocks_count))
    }

    /// Returns the superblock with the size and all values, and the present geometry.
    fn superblock(self, tunable: &Tunable<'_>) -> Result<(Superblock, Geometry), TuneError> {
        let old = tunable.primary.geometry;
        let mut superblock = tunable.with_values(self.changes)?;
        superblock.set_inode_size(self.size);
        let new = Geometry::new(&superblock)?;
        let clusters = |geometry: &Geometry| {
            let blocks = u64::from(geometry.inode_table_blocks());
            blocks.saturating_mul(geometry.groups_count.into()) >> geometry.cluster_bits
        };
        count_overhead(&mut superblock, clusters(&old), clusters(&new));
        Ok((superblock, old))
    }

    fn steps(self, site: &Site<'_>) -> Result<(), TuneError> {
        self.make_room(site)?;
        let tunable = Tunable::open(site.device, site.journal)?;
        let log = match tunable.log.as_ref().filter(|_| !site.collects()) {
            Some(log) => log,
            None if site.collects() => {
                let sized = self.sized(site, &tunable, false)?.0;
                return site.parts(&tunable, &sized, &[])?.collect(site);
            }
            None => return Err(EditError::JournalMissing.into()),
        };
        let (sized, number) = self.sized(site, &tunable, log.place() == LogPlace::Inside)?;
        match number {
            None => commit(site, &site.parts(&tunable, &sized, &[])?, log),
            Some(number) => {
                let named = name::give(site, &sized, number)?;
                let back = named.taken_back(site, log)?;
                commit(site, &named.parts(site, &tunable)?, log)?;
                back.make(site).map_err(|error| TuneError::JournalNamed(Box::new(error)))
            }
        }
    }

    /// Moves tables to places with space behind them.
    fn make_room(self, site: &Site<'_>) -> Result<(), TuneError> {
        let tunable = Tunable::open(site.device, site.journal)?;
        let new = Geometry::new(&self.superblock(&tunable)?.0)?;
        let draft = site.draft(&tunable.primary.geometry);
        {
            let view = site.surveyor().view(&draft)?;
            let survey = site.whole(&view)?;
            if !room::make(&Round::new(&survey, &draft, RepairLevel::Safe), &new)? {
                return Ok(());
            }
        }
        site.surveyor().finish(&draft)?;
        copies(site, &draft)?;
        if site.collects() {
            return site.parts(&tunable, &draft, &[])?.collect(site);
        }
        let base = EditBase { device: site.device, journal: site.journal, threads: site.threads };
        Ok(Edit::plan(base, draft.device)?.apply(false)?)
    }

    /// Makes the file system with larger inodes in memory. Returns a free inode, too, whose slot
    /// lies where the present tables are not, if that is wanted.
    fn sized(
        self,
        site: &Site<'_>,
        tunable: &Tunable<'_>,
        wants_inode: bool,
    ) -> Result<(Draft, Option<InodeNr>), TuneError> {
        let (superblock, old) = self.superblock(tunable)?;
        let new = Geometry::new(&superblock)?;
        let draft = site.draft(&old);
        let number = {
            let view = site.surveyor().view(&draft)?;
            let survey = site.whole(&view)?;
            let round = Round::new(&survey, &draft, RepairLevel::Safe);
            let number = wants_inode.then(|| tables::spare_inode(&round, &new)).transpose()?;
            tables::enlarge(&round, &new, number)?;
            draft.edit_super(|sb| *sb = superblock)?;
            number
        };
        site.surveyor().finish(&draft)?;
        copies(site, &draft)?;
        Ok((draft, number))
    }
}

/// Makes changes through the log: the write of the superblock counts.
fn commit(site: &Site<'_>, parts: &Parts, log: &Log) -> Result<(), TuneError> {
    let used = parts.used()?;
    let changes = parts.changes(site, &used);
    changes.check(log)?;
    parts.write_new(site)?;
    Ok(changes.commit_by_superblock(log)?)
}
