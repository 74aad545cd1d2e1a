//! The journal as a file with a name, and as one without again.

use super::super::{MAX_BYTES, Parts, Site, copies};
use crate::difference::{Difference, FreeBlocks, now};
use crate::edit::EditError;
use crate::maps::Runs;
use crate::reader::Reader;
use crate::repair::{Directory, Draft, Named, RepairLevel, Round};
use crate::tune::{Tunable, TuneError};
use crate::view::journal_slot;
use extant_blocks::{BlockDevice, OverlayDevice};
use extant_format::superblock::JournalBackup;
use extant_format::{Corrupt, FileType, Geometry, InodeFlags, InodeNr};
use extant_journal::Log;
use extant_journal::offline::{ChangedBlock, OfflineChanges};
use std::sync::Arc;

/// The name that e2fsck looks for.
const NAME: &str = ".journal";

/// A file system in memory whose journal has a name, over one whose journal has none.
pub struct NamedJournal<'n> {
    unnamed: &'n Draft,
    draft: Draft,
    geometry: Geometry,
    /// The journal's own inode.
    ino: InodeNr,
}

/// Gives the journal another inode, which is free, and a name.
pub fn give<'n>(
    site: &Site<'_>,
    unnamed: &'n Draft,
    number: InodeNr,
) -> Result<NamedJournal<'n>, TuneError> {
    let primary = site.surveyor().view(unnamed)?.primary;
    let geometry = primary.geometry;
    let over = OverlayDevice::new(unnamed.device.clone(), geometry.block_size as usize, MAX_BYTES);
    let draft = Draft::new(Arc::new(over));
    let ino = primary.superblock.journal_inum();
    {
        let view = site.surveyor().view(&draft)?;
        let survey = site.whole(&view)?;
        let round = Round::new(&survey, &draft, RepairLevel::Safe);
        let journal = round.inode(ino)?;
        let map = Runs::of(&survey.volume.reader, ino, &journal);
        round.create_file(number, InodeFlags::IMMUTABLE)?;
        round.write_map(number, &map.runs)?;
        round.edit_inode(number, |inode| inode.size = journal.size)?;
        round.edit_slot(ino, |slot| {
            slot.fill(0);
            Ok(())
        })?;
        round.write_directory(with_name(round.directory(InodeNr::ROOT)?, number))?;
        let inode = round.inode(number)?;
        draft.edit_super(|sb| {
            sb.set_journal_inum(number);
            if sb.journal_backup().is_some() {
                let backup = JournalBackup { i_block: inode.i_block, size: inode.size };
                sb.set_journal_backup(Some(&backup));
            }
        })?;
    }
    site.surveyor().finish(&draft)?;
    copies(site, &draft)?;
    Ok(NamedJournal { unnamed, draft, geometry, ino })
}

/// Adds the journal to the root directory.
fn with_name(mut root: Directory, number: InodeNr) -> Directory {
    let is_free = |name: &String| root.entries.iter().all(|entry| entry.name != name.as_bytes());
    let others = (1u32..).map(|n| format!("{NAME}{n}"));
    let name = [NAME.to_owned()].into_iter().chain(others).find(is_free).unwrap_or_default();
    root.entries.push(Named { name: name.into_bytes(), ino: number, kind: FileType::Regular });
    root
}

impl NamedJournal<'_> {
    /// Returns the changes to this state.
    pub fn parts(&self, site: &Site<'_>, tunable: &Tunable<'_>) -> Result<Parts, TuneError> {
        let mut blocks = self.unnamed.device.written_blocks();
        blocks.extend(self.draft.device.written_blocks());
        blocks.sort_unstable();
        blocks.dedup();
        let own = tunable.log.as_ref().map(Log::own_blocks).unwrap_or_default();
        blocks.retain(|nr| !own.iter().any(|(start, end)| (*start..*end).contains(nr)));
        let mut is_new = site.new_blocks(tunable);
        let states: [&dyn BlockDevice; 2] = [&**site.device, &*self.draft.device];
        let size = self.geometry.block_size;
        let difference = Difference::among(&blocks, states, size, &mut is_new)?;
        Ok(Parts { overlay: self.draft.device.clone(), difference })
    }

    /// Returns the changes from this state to the one without a name, which the log must take. They
    /// are read now: both drafts show blocks of the device, which is about to change.
    pub fn taken_back(&self, site: &Site<'_>, log: &Log) -> Result<Back, TuneError> {
        let states: [&dyn BlockDevice; 2] = [&*self.draft.device, &*self.unnamed.device];
        let mut written = self.draft.device.written_blocks();
        // Blocks of the map of the other inode become free. A replay through that map needs them.
        let mut bitmaps = FreeBlocks::new(&*self.unnamed.device, self.geometry).verified();
        written.retain(|nr| !bitmaps.is_free(*nr));
        let size = self.geometry.block_size;
        let difference = Difference::among(&written, states, size, &mut |_| false)?;
        let blocks = difference.used_contents(&*self.unnamed.device)?;
        let back = Back { blocks, ino: self.ino };
        back.changes(site).check(log)?;
        Ok(back)
    }
}

/// Changes by which the journal has its own inode again.
pub struct Back {
    blocks: Vec<ChangedBlock>,
    ino: InodeNr,
}

impl Back {
    fn changes<'c>(&'c self, site: &'c Site<'_>) -> OfflineChanges<'c> {
        OfflineChanges { device: &**site.device, blocks: &self.blocks, time: now() }
    }

    /// Makes the changes: the write of the superblock counts. The inode is written before, as
    /// programs read it before they replay the log.
    pub fn make(&self, site: &Site<'_>) -> Result<(), TuneError> {
        let tunable = Tunable::open(site.device, site.journal)?;
        let geometry = tunable.primary.geometry;
        let log = tunable.log.as_ref().ok_or(EditError::JournalMissing)?;
        let (nr, at) = journal_slot(&Reader::new(&**site.device, geometry), self.ino)?;
        let mut block = vec![0; geometry.block_size as usize];
        let offset = nr.saturating_mul(geometry.block_size.into());
        site.device.read_exact_at(&mut block, offset)?;
        let slot = at..at.saturating_add(geometry.inode_size.into());
        let new = self.blocks.iter().find(|(changed, _)| *changed == nr);
        let new = new.and_then(|(_, bytes)| bytes.get(slot.clone()));
        let (Some(old), Some(new)) = (block.get_mut(slot), new) else {
            return Err(Corrupt::new("journal inode").field("table").at_block(nr).into());
        };
        old.copy_from_slice(new);
        self.changes(site).check(log)?;
        site.device.write_all_at(&block, offset)?;
        site.device.flush()?;
        Ok(self.changes(site).commit_by_superblock(log)?)
    }
}
