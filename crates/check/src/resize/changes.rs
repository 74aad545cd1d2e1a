//! The blocks that growth changes: those of the file system, and copies in its new groups.
#![expect(clippy::arithmetic_side_effects, reason = "numbers of a verified geometry")]

use super::ResizeError;
use super::target::Target;
use crate::tune::{Tunable, copy_of};
use extant_blocks::BlockDevice;
use extant_format::group_desc::init_block_bitmap;
use extant_format::growth::{Growth, KeptBlocks, NewGroups};
use extant_format::indirect::{DIND, pointer};
use extant_format::superblock::SUPERBLOCK_OFFSET;
use extant_format::{
    BlockNr, Compat, Corrupt, Geometry, GroupDesc, GroupFlags, GroupNr, Inode, InodeNr, Superblock,
    bitmap,
};
use extant_journal::offline::ChangedBlock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The new contents of blocks.
pub struct Changes<'c> {
    device: &'c dyn BlockDevice,
    old: Geometry,
    new: Geometry,
    groups: &'c NewGroups,
    /// Old groups that change, with those of their bitmaps that do.
    changed: BTreeMap<u32, (GroupDesc, Option<Vec<u8>>)>,
    /// Blocks of the file system.
    inside: BTreeMap<u64, Arc<[u8]>>,
    /// Blocks behind its end.
    beyond: Vec<ChangedBlock>,
}

impl<'c> Changes<'c> {
    /// Computes all blocks. Only reads.
    pub fn new(
        tunable: &'c Tunable<'_>,
        target: &Target,
        groups: &'c NewGroups,
    ) -> Result<Changes<'c>, ResizeError> {
        let mut changes = Changes {
            device: &**tunable.device,
            old: tunable.primary.geometry,
            new: target.geometry,
            groups,
            changed: BTreeMap::new(),
            inside: BTreeMap::new(),
            beyond: Vec::new(),
        };
        let mut freed = Freed { last: changes.extend_last_group()?, ..Freed::default() };
        if changes.new.compat(Compat::RESIZE_INODE) {
            changes.list_kept_blocks()?;
        } else if changes.old.compat(Compat::RESIZE_INODE) {
            freed.list = changes.remove_resize_inode()?;
        }
        if changes.new.reserved_gdt_blocks != changes.old.reserved_gdt_blocks {
            freed.kept = changes.free_kept_blocks()?;
        }
        changes.put_bitmaps();
        changes.put_descriptors()?;
        changes.put_superblocks(counted(&tunable.primary.superblock, target, groups, &freed))?;
        Ok(changes)
    }

    /// Returns the changed blocks of the file system, in ascending order.
    pub fn inside(&self) -> Vec<ChangedBlock> {
        self.inside.iter().map(|(nr, bytes)| (*nr, bytes.clone())).collect()
    }

    /// Returns the blocks behind the end of the file system.
    pub fn beyond(&self) -> &[ChangedBlock] {
        &self.beyond
    }

    /// Returns the descriptor blocks of the file system with descriptors of new groups, which are
    /// valid for the old size, too.
    pub fn early(&self) -> Result<Vec<ChangedBlock>, ResizeError> {
        let first = self.old.groups_count / self.new.descs_per_block();
        let mut blocks: Vec<ChangedBlock> = Vec::new();
        for index in first..self.old.desc_blocks {
            let place = self.new.gdt_block(index).0;
            let mut block = self.read(place)?;
            self.encode(index, &mut block, |group| self.groups.descriptor(group));
            blocks.push((place, block.into()));
        }
        Ok(blocks)
    }

    fn is_inside(&self, block: u64) -> bool {
        block < self.old.blocks_count
    }

    fn read(&self, block: u64) -> Result<Vec<u8>, ResizeError> {
        let size = self.old.block_size as usize;
        let mut bytes = vec![0; size];
        self.device.read_exact_at(&mut bytes, block.saturating_mul(size as u64))?;
        Ok(bytes)
    }

    fn put(&mut self, block: u64, bytes: impl Into<Arc<[u8]>>) {
        if self.is_inside(block) {
            self.inside.insert(block, bytes.into());
        } else {
            self.beyond.push((block, bytes.into()));
        }
    }

    /// Returns the descriptor of an old group as it is on the device.
    fn descriptor(&self, group: GroupNr) -> Result<GroupDesc, ResizeError> {
        let (index, _) = self.old.desc_location(group);
        decode(&self.read(self.old.gdt_block(index).0)?, &self.old, group)
    }

    /// Returns an old group to change, with its block bitmap if it has one.
    fn group(&mut self, group: GroupNr) -> Result<&mut (GroupDesc, Option<Vec<u8>>), ResizeError> {
        if !self.changed.contains_key(&group.0) {
            let desc = self.descriptor(group)?;
            let bits = if desc.has_flag(&self.old, GroupFlags::BLOCK_UNINIT) {
                None
            } else {
                let bits = self.read(desc.block_bitmap)?;
                desc.verify_block_bitmap(&bits, &self.old)
                    .map_err(|error| error.at_group(group))?;
                check_bitmap(&bits, &self.old, group, &desc)?;
                Some(bits)
            };
            self.changed.insert(group.0, (desc, bits));
        }
        let missing = || Corrupt::new("group").at_group(group);
        Ok(self.changed.get_mut(&group.0).ok_or_else(missing)?)
    }

    /// Adds blocks to the last group, if it is short. Returns the number of its new clusters.
    fn extend_last_group(&mut self) -> Result<u64, ResizeError> {
        let last = GroupNr(self.old.groups_count - 1);
        let before = self.old.clusters_in_group(last);
        let after = self.new.clusters_in_group(last);
        if before == after {
            return Ok(0);
        }
        let (desc, bits) = self.group(last)?;
        if let Some(bits) = bits {
            bitmap::clear_range(bits, before as usize..after as usize);
        }
        desc.free_clusters = desc.free_clusters.saturating_add(after - before);
        Ok((after - before).into())
    }

    /// Writes the bitmaps of old groups.
    fn put_bitmaps(&mut self) {
        let geometry = self.new;
        let mut blocks = Vec::new();
        for (desc, bits) in self.changed.values_mut() {
            if let Some(bits) = bits.take() {
                desc.seal_block_bitmap(&bits, &geometry);
                blocks.push((desc.block_bitmap, bits));
            }
        }
        blocks.into_iter().for_each(|(nr, bits)| self.put(nr, bits));
    }

    /// Writes the descriptor blocks that change, and all that a new copy needs.
    fn put_descriptors(&mut self) -> Result<(), ResizeError> {
        let (old, new) = (self.old, self.new);
        for index in 0..new.desc_blocks {
            let first = index * new.descs_per_block();
            let groups = first..first + new.descs_in_block(index);
            let changed = groups.end > old.groups_count
                || self.changed.range(groups.clone()).next().is_some();
            let mut places: Vec<u64> = new.gdt_backups(index).map(|block| block.0).collect();
            places.push(new.gdt_block(index).0);
            places.retain(|place| changed || !self.is_inside(*place));
            if places.is_empty() {
                continue;
            }
            let bytes: Arc<[u8]> = self.descriptor_block(index)?.into();
            places.into_iter().for_each(|place| self.put(place, bytes.clone()));
        }
        Ok(())
    }

    /// Returns the new content of a descriptor block.
    fn descriptor_block(&self, index: u32) -> Result<Vec<u8>, ResizeError> {
        let new = &self.new;
        let mut block = if index < self.old.desc_blocks {
            // Before they replace copies.
            let first = index * self.old.descs_per_block();
            let block = self.read(self.old.gdt_block(index).0)?;
            let groups = first..first + self.old.descs_in_block(index);
            groups.map(GroupNr).try_for_each(|group| decode(&block, &self.old, group).map(drop))?;
            block
        } else {
            vec![0; new.block_size as usize]
        };
        self.encode(index, &mut block, |group| {
            let changed = self.changed.get(&group).map(|(desc, _)| desc);
            changed.or_else(|| self.groups.descriptor(group))
        });
        Ok(block)
    }

    /// Writes descriptors into a block of them.
    fn encode<'d>(
        &self,
        index: u32,
        block: &mut [u8],
        descriptor: impl Fn(u32) -> Option<&'d GroupDesc>,
    ) {
        let new = &self.new;
        let first = index * new.descs_per_block();
        for group in first..first + new.descs_in_block(index) {
            let Some(desc) = descriptor(group) else { continue };
            let (_, at) = new.desc_location(GroupNr(group));
            let slot = block.get_mut(at..at + usize::from(new.desc_size)).unwrap_or_default();
            desc.encode(slot, new, GroupNr(group));
        }
    }

    /// Writes the superblock and all copies.
    fn put_superblocks(&mut self, superblock: Superblock) -> Result<(), ResizeError> {
        let mut superblock = superblock;
        let holder = SUPERBLOCK_OFFSET >> self.new.block_bits;
        let within = (SUPERBLOCK_OFFSET - (holder << self.new.block_bits)) as usize;
        let mut block = self.read(holder)?;
        overwrite(&mut block, within, &superblock.seal());
        self.put(holder, block);
        for group in self.new.super_groups().skip(1) {
            let Some(place) = self.new.super_block_of(group) else { continue };
            let mut block = if self.is_inside(place.0) {
                self.read(place.0)?
            } else {
                vec![0; self.new.block_size as usize]
            };
            overwrite(&mut block, 0, &copy_of(&superblock, group));
            self.put(place.0, block);
        }
        Ok(())
    }

    /// Frees the blocks that were kept for descriptors, in all old groups. Returns their number.
    fn free_kept_blocks(&mut self) -> Result<u64, ResizeError> {
        let old = self.old;
        let mut count = 0;
        for group in old.super_groups() {
            for block in old.base_meta(group).reserved.map(BlockNr) {
                self.free(block, "kept for descriptors")?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Frees a block of a file system without clusters.
    fn free(&mut self, block: BlockNr, what: &'static str) -> Result<(), ResizeError> {
        let bad = || Corrupt::new("block bitmap").field(what).found(block.0);
        let (group, bit) = self.old.group_and_bit(block).ok_or_else(bad)?;
        let (desc, bits) = self.group(group)?;
        // A group without a bitmap has it as its geometry tells.
        if bits.as_mut().is_some_and(|bits| !bitmap::clear(bits, bit as usize)) {
            return Err(bad().at_group(group).into());
        }
        desc.free_clusters = desc.free_clusters.saturating_add(1);
        Ok(())
    }

    /// Returns the resize inode, the block of its slot, and the byte of the slot there.
    fn resize_inode(&self) -> Result<(Inode, u64, usize), ResizeError> {
        let (group, index) = self.old.inode_location(InodeNr::RESIZE)?;
        let (block, at) = self.old.inode_slot(index);
        let block = self.descriptor(group)?.inode_table + u64::from(block);
        let bytes = self.read(block)?;
        let slot = bytes.get(at..at + usize::from(self.old.inode_size)).unwrap_or_default();
        let inode = Inode::decode(slot, &self.old, InodeNr::RESIZE)?;
        let list = u64::from(pointer(&inode.i_block, DIND));
        if !self.old.data_range_valid(BlockNr(list), 1) {
            let field = Corrupt::new("resize inode").field("double-indirect block").found(list);
            return Err(field.at_inode(InodeNr::RESIZE).into());
        }
        self.check_list(list)?;
        Ok((inode, block, at))
    }

    /// Checks that a block lists the blocks that are kept for descriptors, and nothing else.
    fn check_list(&self, list: u64) -> Result<(), ResizeError> {
        if self.read(list)? != KeptBlocks::of(&self.old).list() {
            let error = Corrupt::new("resize inode").field("list of kept blocks").found(list);
            return Err(error.at_inode(InodeNr::RESIZE).into());
        }
        Ok(())
    }

    fn put_resize_inode(
        &mut self,
        (inode, block, at): (&Inode, u64, usize),
        clear: bool,
    ) -> Result<(), ResizeError> {
        let mut bytes = self.read(block)?;
        let size = usize::from(self.new.inode_size);
        let slot = bytes.get_mut(at..at + size).unwrap_or_default();
        if clear {
            slot.fill(0);
        }
        inode.encode(slot, &self.new, InodeNr::RESIZE)?;
        self.put(block, bytes);
        Ok(())
    }

    /// Writes the lists of the blocks that are kept for descriptors, and of their copies.
    fn list_kept_blocks(&mut self) -> Result<(), ResizeError> {
        let kept = KeptBlocks::of(&self.new);
        if !kept.has_other_copies(&KeptBlocks::of(&self.old)) {
            return Ok(());
        }
        kept.check()?;
        let (mut inode, block, at) = self.resize_inode()?;
        for place in kept.places() {
            self.put(place, kept.copies_of(place));
        }
        self.put(pointer(&inode.i_block, DIND).into(), kept.list());
        inode.blocks = kept.sectors();
        self.put_resize_inode((&inode, block, at), false)
    }

    /// Clears the resize inode, and frees its list. Returns the number of free blocks.
    fn remove_resize_inode(&mut self) -> Result<u64, ResizeError> {
        let (inode, block, at) = self.resize_inode()?;
        self.free(BlockNr(pointer(&inode.i_block, DIND).into()), "list of the resize inode")?;
        self.put_resize_inode((&Inode::default(), block, at), true)?;
        Ok(1)
    }
}

/// Clusters of old groups that become free.
#[derive(Clone, Copy, Debug, Default)]
struct Freed {
    /// New ones of the last group.
    last: u64,
    /// Those that were kept for descriptors.
    kept: u64,
    /// That of the resize inode.
    list: u64,
}

/// Returns the descriptor of a group in a block of them.
fn decode(block: &[u8], geometry: &Geometry, group: GroupNr) -> Result<GroupDesc, ResizeError> {
    let (_, at) = geometry.desc_location(group);
    let slot = block.get(at..at + usize::from(geometry.desc_size)).unwrap_or_default();
    let desc = GroupDesc::decode(slot, geometry, group)?;
    desc.check(geometry).map_err(|error| error.at_group(group))?;
    Ok(desc)
}

/// Checks that a bitmap has the metadata of its own group: without checksums, nothing else tells
/// that it is one.
fn check_bitmap(
    bits: &[u8],
    geometry: &Geometry,
    group: GroupNr,
    desc: &GroupDesc,
) -> Result<(), ResizeError> {
    let mut own = vec![0; bits.len()];
    init_block_bitmap(&mut own, geometry, group, desc);
    if own.iter().zip(bits).any(|(own, bits)| own & !bits != 0) {
        return Err(Corrupt::new("block bitmap").field("own metadata").at_group(group).into());
    }
    Ok(())
}

fn overwrite(block: &mut [u8], at: usize, bytes: &[u8]) {
    let part = block.get_mut(at..at + bytes.len()).unwrap_or_default();
    part.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
}

/// Returns the new superblock with all counts.
fn counted(old: &Superblock, target: &Target, groups: &NewGroups, freed: &Freed) -> Superblock {
    let Target { superblock, geometry } = target.clone();
    let mut growth = Growth { superblock, geometry };
    growth.count_overhead(groups, freed.kept);
    let Growth { mut superblock, .. } = growth;
    let clusters = groups.free_clusters() + freed.last + freed.kept + freed.list;
    let free = old.free_blocks_count().saturating_add(clusters << geometry.cluster_bits);
    superblock.set_free_blocks_count(free);
    let inodes = superblock.inodes_count() - old.inodes_count();
    superblock.set_free_inodes_count(old.free_inodes_count().saturating_add(inodes));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    superblock.set_wtime(now.as_secs());
    superblock
}
