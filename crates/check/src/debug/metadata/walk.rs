//! The walk that finds all metadata.

use super::Pass;
use super::content::{Content, DirectoryFacts, TablePart};
use super::index::HashRanges;
use super::log::SavedLog;
use super::map::FoundMap;
use crate::claims::ClaimMap;
use crate::debug::slots::GroupState;
use crate::debug::{ChecksumState, InodeSlot, InspectedBitmap, Inspector};
use crate::maps::Run;
use extant_format::xattr::XATTR_VALUE_MAX;
use extant_format::{
    BlockNr, Compat, Geometry, GroupFlags, GroupNr, Incompat, InodeFlags, InodeNr, RoCompat,
};
use std::io;
use std::ops::Range;

/// A walk over the metadata of a file system.
pub struct Walk<'w> {
    view: &'w Inspector,
    /// Nodes of maps that are read.
    nodes: ClaimMap,
    /// Blocks of files that are saved.
    data: ClaimMap,
    /// The inode bitmap that was used last, with its group.
    bitmap: Option<(u32, Option<InspectedBitmap>)>,
}

impl<'w> Walk<'w> {
    pub fn over(view: &'w Inspector) -> Walk<'w> {
        Walk { view, nodes: view.no_claims(), data: view.no_claims(), bitmap: None }
    }

    /// Saves all metadata.
    pub fn run(mut self, pass: &mut Pass<'_, '_>, progress: &mut dyn FnMut(u32)) -> io::Result<()> {
        let view = self.view;
        if view.geometry.incompat(Incompat::MMP) {
            self.plain(pass, view.superblock.mmp_block().0)?;
        }
        for (nr, state) in (0u32..).zip(&view.groups) {
            self.base(pass, GroupNr(nr))?;
            self.bitmaps(pass, state)?;
            self.table(pass, GroupNr(nr), state)?;
        }
        let mut saved = Ok(());
        let mut group = 0;
        let problems = view.each_slot(&mut |slot| {
            if slot.group != group {
                group = slot.group;
                progress(group);
            }
            if saved.is_ok() && self.is_in_use(&slot) {
                saved = self.inode(pass, &slot);
            }
        });
        saved?;
        problems.into_iter().for_each(|problem| pass.saver().problem(problem));
        Ok(())
    }

    fn plain(&self, pass: &mut Pass<'_, '_>, block: u64) -> io::Result<()> {
        pass.save(&self.view.geometry, block, Content::Plain)
    }

    fn all(&self, pass: &mut Pass<'_, '_>, blocks: Range<u64>) -> io::Result<()> {
        let end = blocks.end.min(self.view.reader().device_blocks());
        (blocks.start..end).try_for_each(|block| self.plain(pass, block))
    }

    /// Saves the superblock and the descriptors at the beginning of a group.
    fn base(&self, pass: &mut Pass<'_, '_>, group: GroupNr) -> io::Result<()> {
        let geometry = &self.view.geometry;
        let base = geometry.base_meta(group);
        let first = geometry.first_block_of_group(group).0;
        let end = first.saturating_add(geometry.blocks_in_group(group).into());
        base.superblock.map_or(Ok(()), |block| self.plain(pass, block.0))?;
        let mut parts = vec![base.descriptors];
        if group.0 == 0 {
            // Nothing reads those of other groups, which mke2fs leaves as they were on the disk.
            parts.push(base.reserved);
        }
        parts.into_iter().try_for_each(|part| self.all(pass, part.start..part.end.min(end)))
    }

    /// Saves the bitmaps of a group that were written.
    fn bitmaps(&self, pass: &mut Pass<'_, '_>, state: &GroupState) -> io::Result<()> {
        let (geometry, desc) = (&self.view.geometry, &state.desc);
        for (block, flag) in [
            (desc.block_bitmap, GroupFlags::BLOCK_UNINIT),
            (desc.inode_bitmap, GroupFlags::INODE_UNINIT),
        ] {
            let is_unused = is_trusted(state) && desc.has_flag(geometry, flag);
            if !is_unused && geometry.data_range_valid(BlockNr(block), 1) {
                self.plain(pass, block)?;
            }
        }
        Ok(())
    }

    /// Saves the part of an inode table that is in use.
    fn table(&self, pass: &mut Pass<'_, '_>, group: GroupNr, state: &GroupState) -> io::Result<()> {
        let (geometry, start) = (&self.view.geometry, state.desc.inode_table);
        let blocks = u64::from(geometry.inode_table_blocks());
        if !geometry.data_range_valid(BlockNr(start), blocks) {
            return Ok(());
        }
        let used = used_inodes(geometry, group, state);
        let used_blocks = u64::from(used.div_ceil(geometry.inodes_per_block().max(1))).min(blocks);
        let end = start.saturating_add(used_blocks).min(self.view.reader().device_blocks());
        // Until a replay, descriptors may be older than tables.
        let is_pending = pass.saver().log.as_ref().is_some_and(SavedLog::is_pending);
        let unused = if is_pending { geometry.inodes_per_group } else { used };
        for (n, block) in (0u32..).zip(start..end) {
            let first = n.saturating_mul(geometry.inodes_per_block());
            pass.save(geometry, block, Content::Inodes(TablePart { group, first, unused }))?;
        }
        Ok(())
    }

    /// Returns whether an inode has links, or none but an owner that has it open, or is that of bad
    /// blocks. Nothing reads the unused part of a table.
    fn is_in_use(&mut self, slot: &InodeSlot) -> bool {
        let location = self.view.geometry.inode_location(InodeNr(slot.ino)).ok();
        let state = self.view.groups.get(slot.group as usize);
        let is_read = location.zip(state).is_some_and(|((group, index), state)| {
            index < used_inodes(&self.view.geometry, group, state)
        });
        if !is_read || slot.is_linked() || slot.ino == InodeNr::BAD_BLOCKS.0 {
            return is_read;
        }
        if slot.inode.mode == 0 {
            return false;
        }
        if self.bitmap.as_ref().is_none_or(|(group, _)| *group != slot.group) {
            self.bitmap = Some((slot.group, self.view.inode_bitmap(GroupNr(slot.group)).ok()));
        }
        let bits = self.bitmap.as_ref().and_then(|(_, bits)| bits.as_ref());
        bits.zip(location).is_some_and(|(bits, (_, index))| bits.is_set(index))
    }

    /// Saves the metadata of an inode that is not in its slot.
    fn inode(&mut self, pass: &mut Pass<'_, '_>, slot: &InodeSlot) -> io::Result<()> {
        let (view, inode) = (self.view, &slot.inode);
        if inode.file_acl != 0 && view.geometry.data_range_valid(BlockNr(inode.file_acl), 1) {
            pass.save(&view.geometry, inode.file_acl, Content::Xattrs)?;
        }
        if !slot.has_map(&view.geometry) {
            return Ok(());
        }
        let map = FoundMap::read(view, slot, &self.nodes);
        if map.is_damaged {
            let ino = slot.ino;
            let message = "is damaged: metadata may be missing";
            pass.saver().problem(format!("the map of inode {ino} {message}"));
        }
        let is_tree = inode.flags.contains(InodeFlags::EXTENTS);
        let seed = inode.seed(&view.geometry, InodeNr(slot.ino));
        let node = if is_tree { Content::Extents(seed) } else { Content::Plain };
        map.nodes.iter().try_for_each(|block| pass.save(&view.geometry, *block, node))?;
        let blocks = self.stored_blocks(slot);
        if inode.is_dir() {
            let read = || HashRanges::read(view, slot, &map.runs);
            let index = pass.saver().cleaner.scrambles().then(read).flatten();
            let facts = DirectoryFacts::of(slot, &view.geometry, index);
            let content = |logical| Content::Directory(&facts, logical);
            return self.runs(pass, &map.runs, blocks, &content);
        }
        if inode.is_symlink() {
            return self.runs(pass, &map.runs, blocks, &|_| Content::Target(slot));
        }
        self.runs(pass, &map.runs, blocks, &|_| Content::Plain)
    }

    /// Saves the first blocks of a file. A run that is in another file, too, ends there: so
    /// hostile runs cost their distance to the next one.
    fn runs<'c>(
        &self,
        pass: &mut Pass<'_, '_>,
        runs: &[Run],
        blocks: u64,
        content: &dyn Fn(u64) -> Content<'c>,
    ) -> io::Result<()> {
        for run in runs {
            let len = blocks.saturating_sub(run.logical).min(run.len);
            let end = run.physical.saturating_add(len).min(self.view.reader().device_blocks());
            for (logical, block) in (run.logical..).zip(run.physical..end) {
                if self.data.claim(block..block.saturating_add(1)).is_some() {
                    break;
                }
                pass.save(&self.view.geometry, block, content(logical))?;
            }
        }
        Ok(())
    }

    /// Returns the number of blocks of a file that an image has, from the first one on.
    fn stored_blocks(&self, slot: &InodeSlot) -> u64 {
        let (sb, inode) = (&self.view.superblock, &slot.inode);
        let ino = InodeNr(slot.ino);
        let bits = self.view.geometry.block_bits;
        let bytes = |most: u64| inode.size.clamp(1, most).div_ceil(1 << bits);
        if ino == InodeNr::RESIZE || ino == InodeNr::BAD_BLOCKS {
            // The blocks are no content.
            return 0;
        }
        if inode.is_dir() {
            return u64::MAX;
        }
        if inode.is_symlink() {
            // A target is shorter than a block.
            return 1;
        }
        if sb.compat().contains(Compat::HAS_JOURNAL) && ino == sb.journal_inum() {
            // The superblock of the log.
            return 1;
        }
        let is_orphan_file =
            sb.compat().contains(Compat::ORPHAN_FILE) && ino == sb.orphan_file_inum();
        let quotas = [sb.usr_quota_inum(), sb.grp_quota_inum(), sb.prj_quota_inum()];
        let is_quota = sb.ro_compat().contains(RoCompat::QUOTA) && quotas.contains(&ino);
        if is_orphan_file || is_quota {
            return u64::MAX;
        }
        let is_value = self.view.geometry.incompat(Incompat::EA_INODE)
            && inode.flags.contains(InodeFlags::EA_INODE);
        if is_value { bytes(XATTR_VALUE_MAX as u64) } else { 0 }
    }
}

/// Returns whether the descriptor's word on unused parts can be taken: others take it only with a
/// right checksum.
fn is_trusted(state: &GroupState) -> bool {
    state.checksum == Some(ChecksumState::Right)
}

/// Returns the number of inodes of a group that are read. All programs read those of the file
/// system itself, and ignore an impossible number.
fn used_inodes(geometry: &Geometry, group: GroupNr, state: &GroupState) -> u32 {
    let all = geometry.inodes_per_group;
    let used = match state.desc.has_flag(geometry, GroupFlags::INODE_UNINIT) {
        _ if !is_trusted(state) => all,
        true => 0,
        false => all.checked_sub(state.desc.itable_unused).unwrap_or(all),
    };
    let own = if group.0 == 0 { InodeNr::FIRST_ORDINARY.0.saturating_sub(1) } else { 0 };
    used.max(own).min(all)
}
