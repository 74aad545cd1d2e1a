//! Locations of groups, descriptors and inodes.
//!
//! # Invariants
//! [`Geometry::new`] has verified the numbers: no divisor is zero. Products of two 32-bit numbers
//! leave 2^33 of 64 bits, more than any sum of other numbers here.
#![expect(clippy::arithmetic_side_effects, reason = "numbers of a verified geometry")]

use super::Geometry;
use crate::error::{Corrupt, Result};
use crate::features::{Compat, Features, RoCompat};
use crate::types::{BlockNr, GroupNr, InodeNr};
use std::ops::Range;

/// The metadata at the start of a group: superblock copy, descriptors, reserved descriptor blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseMeta {
    /// The superblock copy.
    pub superblock: Option<BlockNr>,
    /// Descriptor blocks.
    pub descriptors: Range<u64>,
    /// Blocks reserved for further descriptors.
    pub reserved: Range<u64>,
}

impl BaseMeta {
    /// Returns the number of blocks from the group's first block to the end of the last of these.
    pub(super) fn blocks(&self, first: u64) -> u64 {
        let end = self.superblock.map_or(first, |block| block.0 + 1);
        let end = if self.descriptors.is_empty() { end } else { self.descriptors.end };
        let end = if self.reserved.is_empty() { end } else { self.reserved.end };
        end.saturating_sub(first)
    }
}

/// The groups that carry superblock copies, in ascending order, group 0 included.
#[derive(Clone, Debug)]
pub struct SuperGroups {
    geometry: Geometry,
    next: Option<u32>,
}

impl Iterator for SuperGroups {
    type Item = GroupNr;

    fn next(&mut self) -> Option<GroupNr> {
        let group = self.next.filter(|group| *group < self.geometry.groups_count)?;
        self.next = self.geometry.super_group_after(group);
        Some(GroupNr(group))
    }
}

fn is_power_of(base: u32, mut number: u32) -> bool {
    while number > 1 && number.is_multiple_of(base) {
        number /= base;
    }
    number == 1
}

/// Returns the smallest power of `base` above `number`.
fn power_above(base: u32, number: u32) -> Option<u32> {
    let mut power = 1u32;
    while power <= number {
        power = power.checked_mul(base)?;
    }
    Some(power)
}

/// Returns whether a group starts with a copy of the superblock, in a file system with these
/// features; `backups` are the groups of the copies with `sparse_super2`.
pub fn has_super(features: &Features, backups: [u32; 2], group: u32) -> bool {
    if group == 0 {
        return true;
    }
    if features.compat.contains(Compat::SPARSE_SUPER2) {
        return backups.contains(&group);
    }
    if !features.ro_compat.contains(RoCompat::SPARSE_SUPER) || group == 1 {
        return true;
    }
    group % 2 == 1 && [3, 5, 7].into_iter().any(|base| is_power_of(base, group))
}

impl Geometry {
    /// Inode slots of a block.
    #[inline]
    pub const fn inodes_per_block(&self) -> u32 {
        self.block_size / self.inode_size as u32
    }

    /// Returns the number of blocks of a group's inode table.
    pub const fn inode_table_blocks(&self) -> u32 {
        self.inodes_per_group.div_ceil(self.inodes_per_block())
    }

    /// Group descriptors of a block.
    pub const fn descs_per_block(&self) -> u32 {
        self.block_size / self.desc_size as u32
    }

    /// Returns whether the block lies in the file system.
    pub const fn block_in_range(&self, block: BlockNr) -> bool {
        block.0 < self.blocks_count
    }

    /// Returns whether `count` blocks from `block` on lie in the file system, at or above its first
    /// data block.
    pub fn data_range_valid(&self, block: BlockNr, count: u64) -> bool {
        let first = u64::from(self.first_data_block);
        count > 0
            && block.0 > 0
            && block.0 >= first
            && block.0.checked_add(count).is_some_and(|end| end <= self.blocks_count)
    }

    /// Returns whether the inode number is in range.
    pub const fn inode_in_range(&self, ino: InodeNr) -> bool {
        ino.0 >= 1 && ino.0 <= self.inodes_count
    }

    /// Returns the group of a block; `None` below the first data block or past the end.
    pub fn group_of_block(&self, block: BlockNr) -> Option<GroupNr> {
        if !self.block_in_range(block) {
            return None;
        }
        let offset = block.0.checked_sub(u64::from(self.first_data_block))?;
        Some(GroupNr((offset / u64::from(self.blocks_per_group)) as u32))
    }

    /// Returns the group of a block and the cluster's bit in the group's bitmap.
    pub fn group_and_bit(&self, block: BlockNr) -> Option<(GroupNr, u32)> {
        let group = self.group_of_block(block)?;
        let offset = block.0 - self.first_block_of_group(group).0;
        Some((group, (offset >> self.cluster_bits) as u32))
    }

    /// Returns the first block of the cluster that a group's bitmap bit stands for.
    pub const fn block_of_bit(&self, group: GroupNr, bit: u32) -> BlockNr {
        let offset = (bit as u64) << self.cluster_bits;
        BlockNr(self.first_block_of_group(group).0.saturating_add(offset))
    }

    /// Returns the first block of a group.
    pub const fn first_block_of_group(&self, group: GroupNr) -> BlockNr {
        BlockNr(self.first_data_block as u64 + group.0 as u64 * self.blocks_per_group as u64)
    }

    /// Returns the number of blocks of a group: fewer in the last one, none past it.
    pub fn blocks_in_group(&self, group: GroupNr) -> u32 {
        let left = self.blocks_count.saturating_sub(self.first_block_of_group(group).0);
        left.min(u64::from(self.blocks_per_group)) as u32
    }

    /// Returns the number of clusters of a group: fewer in the last one.
    pub fn clusters_in_group(&self, group: GroupNr) -> u32 {
        self.blocks_in_group(group).div_ceil(self.cluster_ratio())
    }

    /// Returns whether the group exists in the file system.
    pub const fn group_in_range(&self, group: GroupNr) -> bool {
        group.0 < self.groups_count
    }

    /// Returns the flexible group of a group.
    pub const fn flex_group_of(&self, group: GroupNr) -> u32 {
        group.0 >> self.flex_bits
    }

    /// Returns the group of an inode and its index there.
    ///
    /// # Errors
    /// [`Corrupt`] if the number is out of range.
    #[inline]
    pub fn inode_location(&self, ino: InodeNr) -> Result<(GroupNr, u32)> {
        if !self.inode_in_range(ino) {
            let error = Corrupt::new("inode number").found(ino.0).expected(self.inodes_count);
            return Err(error);
        }
        let number = ino.0 - 1;
        Ok((GroupNr(number / self.inodes_per_group), number % self.inodes_per_group))
    }

    /// Returns the inode of this index in a group.
    #[inline]
    pub const fn inode_at(&self, group: GroupNr, index: u32) -> InodeNr {
        InodeNr(group.0.wrapping_mul(self.inodes_per_group).wrapping_add(index).wrapping_add(1))
    }

    /// Returns the place of an inode slot within its group's table, in bytes.
    pub const fn inode_table_offset(&self, index: u32) -> u64 {
        index as u64 * self.inode_size as u64
    }

    /// Returns the block of the table, counted from the table's start, and the byte in it, of an
    /// inode slot.
    pub const fn inode_slot(&self, index: u32) -> (u32, usize) {
        let offset = self.inode_table_offset(index);
        ((offset >> self.block_bits) as u32, (offset & (self.block_size as u64 - 1)) as usize)
    }

    /// Returns whether the group starts with a copy of the superblock.
    pub fn has_super(&self, group: GroupNr) -> bool {
        has_super(&self.features, self.backup_bgs, group.0)
    }

    /// Returns the groups that carry superblock copies, group 0 first.
    pub fn super_groups(&self) -> SuperGroups {
        SuperGroups { geometry: *self, next: Some(0) }
    }

    fn super_group_after(&self, group: u32) -> Option<u32> {
        if self.compat(Compat::SPARSE_SUPER2) {
            return self.backup_bgs.into_iter().filter(|backup| *backup > group).min();
        }
        if !self.ro_compat(RoCompat::SPARSE_SUPER) || group == 0 {
            return group.checked_add(1);
        }
        [3, 5, 7].into_iter().filter_map(|base| power_above(base, group)).min()
    }

    /// Returns the block of a group's superblock copy, if it has one.
    pub fn super_block_of(&self, group: GroupNr) -> Option<BlockNr> {
        self.has_super(group).then(|| self.super_copy_block(group))
    }

    fn super_copy_block(&self, group: GroupNr) -> BlockNr {
        let first = self.first_block_of_group(group);
        // The primary copy is at byte 1024, which is block 1 of 1 KiB blocks even where group 0
        // starts at block 0.
        if group.0 == 0 && self.block_size == 1024 { BlockNr(1) } else { first }
    }

    /// Returns whether the group's descriptors are laid out without `meta_bg`.
    fn has_old_descriptors(&self, group: GroupNr) -> bool {
        !self.has_meta_bg() || group.0 / self.descs_per_block() < self.first_meta_bg
    }

    /// Descriptor blocks that follow each superblock copy: all, or those before the first meta
    /// group.
    const fn old_desc_blocks(&self) -> u32 {
        if self.has_meta_bg() { self.first_meta_bg } else { self.desc_blocks }
    }

    fn has_meta_descriptor(&self, group: GroupNr) -> bool {
        let per_block = self.descs_per_block();
        let place = group.0 % per_block;
        place <= 1 || place == per_block - 1
    }

    /// Returns the metadata at a group's start. Ranges of blocks are not cut at the end of a short
    /// last group.
    pub fn base_meta(&self, group: GroupNr) -> BaseMeta {
        let superblock = self.super_block_of(group);
        let first = self.first_block_of_group(group).0;
        let after = superblock.map_or(first, |block| block.0 + 1);
        let old = self.has_old_descriptors(group);
        let count = match (old, superblock.is_some()) {
            (true, true) => u64::from(self.old_desc_blocks()),
            (true, false) => 0,
            (false, _) => u64::from(self.has_meta_descriptor(group)),
        };
        let reserved =
            if old && superblock.is_some() { u64::from(self.reserved_gdt_blocks) } else { 0 };
        let end = after + count;
        BaseMeta { superblock, descriptors: after..end, reserved: end..end + reserved }
    }

    /// Returns the number of blocks at a group's start that its superblock copy, descriptors and
    /// reserved descriptor blocks take.
    pub fn base_meta_blocks(&self, group: GroupNr) -> u32 {
        let blocks = self.base_meta(group).blocks(self.first_block_of_group(group).0);
        blocks.min(u64::from(self.blocks_in_group(group))) as u32
    }

    /// Returns an upper bound of [`Self::base_meta_blocks`] over all groups.
    pub const fn most_base_meta_blocks(&self) -> u64 {
        // The primary superblock may be in the group's second block.
        2 + self.desc_blocks as u64 + self.reserved_gdt_blocks as u64
    }

    /// Returns the location of descriptor block `index` (0 to `desc_blocks` - 1).
    pub fn gdt_block(&self, index: u32) -> BlockNr {
        if !self.has_meta_bg() || index < self.first_meta_bg {
            return BlockNr(self.super_copy_block(GroupNr(0)).0 + 1 + u64::from(index));
        }
        let group = GroupNr(index.saturating_mul(self.descs_per_block()));
        BlockNr(self.base_meta(group).descriptors.start)
    }

    /// Returns the locations of the copies of descriptor block `index`.
    pub fn gdt_backups(&self, index: u32) -> impl Iterator<Item = BlockNr> + use<> {
        let geometry = *self;
        let old = !self.has_meta_bg() || index < self.first_meta_bg;
        // Groups past the first meta group have no such copies: a search goes through none of them.
        let plain = self
            .super_groups()
            .skip(1)
            .take_while(move |group| old && geometry.has_old_descriptors(*group));
        let per_block = self.descs_per_block();
        let start = u64::from(index) * u64::from(per_block);
        let meta = [start + 1, start + u64::from(per_block) - 1]
            .into_iter()
            .filter(move |group| !old && *group < u64::from(geometry.groups_count))
            .map(|group| GroupNr(group as u32));
        let within = if old { u64::from(index) } else { 0 };
        plain
            .chain(meta)
            .map(move |group| BlockNr(geometry.base_meta(group).descriptors.start + within))
    }

    /// Returns the descriptor block of a group and the byte of its descriptor there.
    pub const fn desc_location(&self, group: GroupNr) -> (u32, usize) {
        let per_block = self.descs_per_block();
        (group.0 / per_block, (group.0 % per_block) as usize * self.desc_size as usize)
    }

    /// Returns the number of descriptors in descriptor block `index`.
    pub const fn descs_in_block(&self, index: u32) -> u32 {
        let per_block = self.descs_per_block();
        let left = self.groups_count.saturating_sub(index.saturating_mul(per_block));
        if left < per_block { left } else { per_block }
    }
}
