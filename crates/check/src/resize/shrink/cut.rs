//! The change to a smaller size, in memory.
#![expect(clippy::arithmetic_side_effects, reason = "numbers of a file system without damage")]

use super::moves::{Copied, Mover};
use crate::claims::ClaimMap;
use crate::passes::superblocks::Primary;
use crate::repair::{Draft, RepairLevel, Round, Surveyor, count};
use crate::resize::ResizeError;
use crate::resize::target::Target;
use crate::survey::Survey;
use crate::tune::copy_of;
use crate::volume::Volume;
use extant_format::superblock::SUPERBLOCK_OFFSET;
use extant_format::{Geometry, GroupFlags, GroupNr, Superblock};
use std::time::{SystemTime, UNIX_EPOCH};

/// A smaller size to be made in a draft.
pub struct Cut<'c> {
    pub surveyor: Surveyor<'c>,
    pub draft: &'c Draft,
    pub target: &'c Target,
}

impl Cut<'_> {
    /// Makes all changes in the draft. Returns the contents that must be copied before.
    pub fn make(&self) -> Result<Vec<Copied>, ResizeError> {
        let view = self.surveyor.view(self.draft)?;
        let (survey, found) = self.surveyor.survey(&view)?;
        if !found.is_empty() {
            return Err(ResizeError::HasErrors);
        }
        self.check_tables(&survey.volume)?;
        self.check_space(&survey)?;
        let old = survey.volume.reader.geometry;
        let metadata = metadata_clusters(&survey.volume);
        let end = self.target.geometry.blocks_count;
        survey.claims.claim_all(end..old.blocks_count);
        let round = Round::new(&survey, self.draft, RepairLevel::Safe);
        let mut mover = Mover::new(&round, end, self.target.geometry.groups_count);
        mover.find_numbers()?;
        mover.move_attributes()?;
        mover.move_inodes()?;
        mover.rename()?;
        mover.seal_orphan_file()?;
        let mmp = mover.move_mmp()?;
        let mut superblock = self.target.superblock.clone();
        mover.rename_in_super(&mut superblock);
        mmp.into_iter().for_each(|block| superblock.set_mmp_block(block));
        let copies = std::mem::take(&mut mover.copies);
        // A short last group must have a bitmap: the next survey finds that it is to be written.
        let last = GroupNr(self.target.geometry.groups_count - 1);
        round.edit_desc(last, |desc| desc.flags.remove(GroupFlags::BLOCK_UNINIT))?;
        drop(mover);
        self.draft.edit_super(|sb| *sb = superblock)?;
        self.surveyor.finish(self.draft)?;
        self.finish_super(metadata)?;
        Ok(copies)
    }

    /// Moves at most so many inodes of each kind in the draft, and keeps the size. Returns the
    /// contents that must be copied before.
    ///
    /// # Errors
    /// [`ResizeError::Full`] if none is left.
    pub fn make_part(&self, most: usize) -> Result<Vec<Copied>, ResizeError> {
        let view = self.surveyor.view(self.draft)?;
        let (survey, _) = self.surveyor.survey(&view)?;
        let old = survey.volume.reader.geometry;
        let end = self.target.geometry.blocks_count;
        survey.claims.claim_all(end..old.blocks_count);
        let round = Round::new(&survey, self.draft, RepairLevel::Safe);
        let mut mover = Mover::new(&round, end, self.target.geometry.groups_count);
        mover.limit = most;
        mover.find_numbers()?;
        mover.move_attributes()?;
        mover.move_inodes()?;
        mover.rename()?;
        mover.seal_orphan_file()?;
        mover.clear_old_slots()?;
        self.draft.edit_super(|sb| mover.rename_in_super(sb))?;
        if mover.moved == 0 {
            return Err(ResizeError::Full("its structures need more blocks of its journal".into()));
        }
        let copies = std::mem::take(&mut mover.copies);
        self.surveyor.finish(self.draft)?;
        Ok(copies)
    }

    /// Refuses a size behind which a group that stays has its bitmaps or its table.
    fn check_tables(&self, volume: &Volume<'_>) -> Result<(), ResizeError> {
        let geometry = &self.target.geometry;
        let table = u64::from(geometry.inode_table_blocks());
        for (nr, group) in (0..geometry.groups_count).zip(&volume.groups) {
            let desc = &group.desc;
            let last = (desc.inode_table + table - 1).max(desc.block_bitmap);
            let last = last.max(desc.inode_bitmap);
            if last >= geometry.blocks_count {
                let least = (last + 1) << geometry.block_bits;
                let why = format!(
                    "the bitmaps and inode tables of the groups that stay end at {least} bytes \
                     (group {nr}), and they do not move"
                );
                return Err(ResizeError::Size(why));
            }
        }
        Ok(())
    }

    /// Refuses a size below which the blocks in use cannot have places, without looking at them.
    fn check_space(&self, survey: &Survey<'_>) -> Result<(), ResizeError> {
        let (old, new) = (&survey.volume.reader.geometry, &self.target.geometry);
        let first = u64::from(old.first_data_block);
        let (below, behind) = (first..new.blocks_count, new.blocks_count..old.blocks_count);
        let metadata = metadata_map(&survey.volume);
        let moving = count(&survey.claims, old, behind.clone()) - count(&metadata, old, behind);
        let all = (new.blocks_count - first).div_ceil(u64::from(new.cluster_ratio()));
        let free = all - count(&survey.claims, old, below);
        if moving > free {
            let bits = old.block_bits + old.cluster_bits;
            let (moving, free) = (moving << bits, free << bits);
            let why = format!(
                "{moving} bytes behind that size are in use, and {free} before it \
                               are free"
            );
            return Err(ResizeError::Full(why));
        }
        Ok(())
    }

    /// Completes superblock and copies, once all counts are known.
    fn finish_super(&self, metadata: u64) -> Result<(), ResizeError> {
        let Primary { superblock, geometry } = self.surveyor.view(self.draft)?.primary;
        let overhead = u64::from(superblock.overhead_clusters());
        let left = match overhead {
            0 => 0,
            _ => overhead.saturating_sub(metadata.saturating_sub(self.metadata_clusters()?)),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.draft.edit_super(|sb| {
            sb.set_overhead_clusters(u32::try_from(left).unwrap_or(0));
            sb.set_wtime(now.as_secs());
        })?;
        write_copies(self.draft, &geometry)
    }

    /// Returns the number of clusters with metadata of the draft's file system.
    fn metadata_clusters(&self) -> Result<u64, ResizeError> {
        let view = self.surveyor.view(self.draft)?;
        let reader = crate::reader::Reader::new(&*view.device, view.primary.geometry);
        let mut ignored = |_| ();
        let mut findings = crate::finding::Findings::new(&mut ignored);
        let volume = Volume::load(reader, view.primary.superblock.clone(), &mut findings);
        Ok(metadata_clusters(&volume))
    }
}

fn metadata_map(volume: &Volume<'_>) -> ClaimMap {
    let map = ClaimMap::of_clusters(&volume.reader.geometry, volume.groups.len());
    volume.claim_metadata(&map);
    map
}

fn metadata_clusters(volume: &Volume<'_>) -> u64 {
    let geometry = &volume.reader.geometry;
    count(&metadata_map(volume), geometry, geometry.first_data_block.into()..geometry.blocks_count)
}

/// Writes the copies of superblock and descriptors.
pub fn write_copies(draft: &Draft, geometry: &Geometry) -> Result<(), ResizeError> {
    let size = geometry.block_size as usize;
    let offset = |block: u64| block << geometry.block_bits;
    let bytes = draft.read(SUPERBLOCK_OFFSET, extant_format::superblock::SUPERBLOCK_SIZE)?;
    let superblock = Superblock::parse(&bytes)?;
    for group in geometry.super_groups().skip(1) {
        if let Some(block) = geometry.super_block_of(group) {
            draft.write(offset(block.0), &copy_of(&superblock, group))?;
        }
    }
    for index in 0..geometry.desc_blocks {
        let place = geometry.gdt_block(index).0;
        let mut bytes = draft.read(offset(place), size)?;
        let groups = (geometry.groups_count - index * geometry.descs_per_block())
            .min(geometry.descs_per_block());
        let used = groups as usize * usize::from(geometry.desc_size);
        // Descriptors of groups that are gone.
        bytes.iter_mut().skip(used).for_each(|byte| *byte = 0);
        draft.write(offset(place), &bytes)?;
        for copy in geometry.gdt_backups(index) {
            draft.write(offset(copy.0), &bytes)?;
        }
    }
    Ok(())
}
