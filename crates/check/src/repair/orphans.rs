//! Orphans: files that were deleted or shortened while they were open.

use super::RepairError;
use super::draft::Round;
use crate::finding::{Finding, FindingCode, FindingPlace, Findings};
use crate::maps::Runs;
use crate::passes::orphans::collect;
use extant_format::inode::RawInode;
use extant_format::{Compat, InodeFlags, InodeNr, RoCompat, orphan};
use std::mem::offset_of;

impl Round<'_> {
    /// Completes the removal and truncation of the orphans, and empties their records.
    pub fn process_orphans(&self, sink: &mut dyn FnMut(Finding)) -> Result<(), RepairError> {
        let mut ignored = |_| ();
        let orphans = collect(&self.survey.volume, true, &mut Findings::new(&mut ignored));
        for ino in orphans {
            let ino = InodeNr(ino);
            sink(Finding::new(FindingCode::Orphan, FindingPlace::inode(ino)));
            self.process_orphan(ino)?;
        }
        self.empty_records()
    }

    fn process_orphan(&self, ino: InodeNr) -> Result<(), RepairError> {
        if RawInode::read(&self.slot(ino)?).links.get() == 0 {
            return self.clear_inode(ino);
        }
        // Fields of a damaged inode are repaired later.
        let Ok(inode) = self.inode(ino) else { return Ok(()) };
        self.edit_inode(ino, |inode| inode.dtime = 0)?;
        let keeps = InodeFlags::INLINE_DATA | InodeFlags::VERITY;
        if !inode.is_regular() || inode.flags.intersects(keeps) {
            return Ok(());
        }
        self.truncate(ino, inode.size)
    }

    /// Frees the blocks past the end, and zeroes the bytes past it in the last block.
    fn truncate(&self, ino: InodeNr, size: u64) -> Result<(), RepairError> {
        let (reader, block) = (&self.survey.volume.reader, u64::from(self.geometry().block_size));
        let inode = self.inode(ino)?;
        let end = size.div_ceil(block);
        let runs = Runs::of(reader, ino, &inode);
        if runs.damaged {
            return Ok(());
        }
        let mut kept = Vec::new();
        for mut run in runs.runs.iter().copied().filter(|run| run.logical < end) {
            run.len = run.len.min(end.saturating_sub(run.logical));
            kept.push(run);
        }
        if kept != runs.runs {
            self.write_map(ino, &kept)?;
        }
        let within = (size & block.saturating_sub(1)) as usize;
        let last = kept.last().filter(|run| within > 0 && run.end() == end && !run.unwritten);
        if let Some(run) = last {
            let nr = run.blocks().end.saturating_sub(1);
            let mut bytes = self.block(nr)?;
            bytes.iter_mut().skip(within).for_each(|byte| *byte = 0);
            self.put(nr, &bytes)?;
        }
        Ok(())
    }

    /// Empties the list and the file of orphans.
    fn empty_records(&self) -> Result<(), RepairError> {
        self.draft.edit_super(|sb| {
            sb.set_last_orphan(InodeNr::NONE);
            let mut features = sb.features();
            features.ro_compat.remove(RoCompat::ORPHAN_PRESENT);
            sb.set_features(features);
        })?;
        let geometry = self.geometry();
        if !geometry.compat(Compat::ORPHAN_FILE) {
            return Ok(());
        }
        let ino = self.survey.volume.superblock.orphan_file_inum();
        let Ok(inode) = self.inode(ino) else { return Ok(()) };
        let runs = Runs::of(&self.survey.volume.reader, ino, &inode);
        let blocks = runs.blocks(inode.size >> geometry.block_bits);
        let valid = inode.is_regular() && inode.links > 0 && !runs.damaged;
        let seed = inode.seed(geometry, ino);
        for nr in blocks.filter(|_| valid).unwrap_or_default() {
            if orphan::used(&self.block(nr)?).next().is_some() {
                self.put_empty(nr, seed)?;
            }
        }
        Ok(())
    }

    /// Repairs records that are damaged: blocks of the orphan file, and inodes of a broken list.
    pub fn repair_orphans(&self, found: &[Finding]) -> Result<(), RepairError> {
        let file = self.survey.volume.superblock.orphan_file_inum();
        for finding in found {
            match (finding.place.inode, finding.place.field) {
                (Some(ino), Some("next orphan")) => {
                    let ino = InodeNr(ino);
                    let reserved = ino.0 < self.geometry().first_ino;
                    if RawInode::read(&self.slot(ino)?).links.get() == 0 && !reserved {
                        self.clear_inode(ino)?;
                    } else {
                        self.clear_dtime(ino)?;
                    }
                }
                (Some(ino), None) if ino == file.0 => self.drop_orphan_file(file)?,
                _ => self.init_orphan_file(file)?,
            }
        }
        self.empty_records()
    }

    /// Clears the deletion time of an inode whose other fields may be damaged.
    fn clear_dtime(&self, ino: InodeNr) -> Result<(), RepairError> {
        let dtime = offset_of!(RawInode, dtime);
        self.edit_slot(ino, |slot| {
            let end = dtime.saturating_add(size_of::<u32>());
            slot.get_mut(dtime..end).unwrap_or(&mut []).fill(0);
            Ok(())
        })
    }

    fn init_orphan_file(&self, ino: InodeNr) -> Result<(), RepairError> {
        if !self.geometry().compat(Compat::ORPHAN_FILE) {
            return Ok(());
        }
        let Ok(inode) = self.inode(ino) else { return self.drop_orphan_file(ino) };
        let runs = Runs::of(&self.survey.volume.reader, ino, &inode);
        let blocks = runs.blocks(inode.size >> self.geometry().block_bits);
        let seed = inode.seed(self.geometry(), ino);
        for nr in blocks.unwrap_or_default() {
            self.put_empty(nr, seed)?;
        }
        Ok(())
    }

    /// Writes a block of the orphan file without orphans.
    pub fn put_empty(&self, nr: u64, seed: u32) -> Result<(), RepairError> {
        let mut bytes = vec![0; self.block_size()];
        orphan::init(&mut bytes);
        if self.geometry().metadata_csum {
            orphan::seal_orphan_block(&mut bytes, nr, seed);
        }
        self.put(nr, &bytes)
    }

    /// Drops an orphan file that is no file; orphans go to the list from then on.
    pub fn drop_orphan_file(&self, ino: InodeNr) -> Result<(), RepairError> {
        self.edit_features(|compat, _| compat.remove(Compat::ORPHAN_FILE))?;
        self.draft.edit_super(|sb| sb.set_orphan_file_inum(InodeNr::NONE))?;
        if ino.0 >= self.geometry().first_ino { self.clear_inode(ino) } else { Ok(()) }
    }
}
