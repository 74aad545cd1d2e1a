//! The groups that a file system gets: places of their bitmaps and inode tables, descriptors.
//!
//! The new groups of a flexible group have their bitmaps and tables together, in the first of
//! them: first all block bitmaps, then all inode bitmaps, then the tables. Without `flex_bg` each
//! group has its own.

use super::GrowthError;
use crate::bitmap;
use crate::geometry::Geometry;
use crate::group_desc::{GroupDesc, GroupFlags, init_inode_bitmap, mark_blocks};
use crate::types::{BlockNr, GroupNr};
use std::ops::Range;

/// Returns the new groups whose tables lie together with those of a group.
fn unit_of(geometry: &Geometry, first: u32, group: u32) -> Range<u32> {
    let flex = u64::from(group) >> geometry.flex_bits;
    let end = (flex + 1) << geometry.flex_bits;
    let start = (flex << geometry.flex_bits) as u32;
    start.max(first)..end.min(geometry.groups_count.into()) as u32
}

/// The first blocks of a group's bitmaps and of its inode table.
#[derive(Clone, Copy, Debug)]
struct Places {
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
}

/// The new groups of a file system.
#[derive(Debug)]
pub struct NewGroups {
    geometry: Geometry,
    first: u32,
    places: Vec<Places>,
    /// All bitmaps and tables, as runs of blocks in ascending order.
    runs: Vec<Range<u64>>,
    descriptors: Vec<GroupDesc>,
}

impl NewGroups {
    /// Places the tables of the groups from `first` on.
    ///
    /// # Errors
    /// [`GrowthError::SmallGroups`] if the groups are too small for their tables.
    pub fn new(geometry: Geometry, first: u32) -> Result<NewGroups, GrowthError> {
        let (places, runs) = Default::default();
        let mut groups = NewGroups { geometry, first, places, runs, descriptors: Vec::new() };
        let mut next = first;
        while next < geometry.groups_count {
            let unit = unit_of(&geometry, first, next);
            next = unit.end;
            groups.place(unit)?;
        }
        groups.descriptors = (first..geometry.groups_count).map(|nr| groups.describe(nr)).collect();
        Ok(groups)
    }

    fn place(&mut self, unit: Range<u32>) -> Result<(), GrowthError> {
        let geometry = self.geometry;
        let mut at = geometry.first_block_of_group(GroupNr(unit.start)).0;
        let last = GroupNr(unit.end - 1);
        let end = geometry.first_block_of_group(last).0 + u64::from(geometry.blocks_in_group(last));
        let mut next = |len: u64| {
            at = after_copies(&geometry, at, len);
            if at + len > end {
                return Err(GrowthError::SmallGroups);
            }
            add(&mut self.runs, at..at + len);
            at += len;
            Ok(at - len)
        };
        let blocks = unit.clone().map(|_| next(1)).collect::<Result<Vec<_>, _>>()?;
        let inodes = unit.clone().map(|_| next(1)).collect::<Result<Vec<_>, _>>()?;
        let table = u64::from(geometry.inode_table_blocks());
        for (block_bitmap, inode_bitmap) in blocks.into_iter().zip(inodes) {
            let inode_table = next(table)?;
            self.places.push(Places { block_bitmap, inode_bitmap, inode_table });
        }
        Ok(())
    }

    /// Returns the numbers of the new groups.
    pub fn numbers(&self) -> Range<u32> {
        self.first..self.geometry.groups_count
    }

    /// Returns the descriptor of a new group.
    pub fn descriptor(&self, group: u32) -> Option<&GroupDesc> {
        self.descriptors.get(group.checked_sub(self.first)? as usize)
    }

    /// Returns the number of free clusters of all new groups.
    pub fn free_clusters(&self) -> u64 {
        self.descriptors.iter().map(|desc| u64::from(desc.free_clusters)).sum()
    }

    /// Returns the number of all clusters of the new groups.
    pub fn clusters(&self) -> u64 {
        self.numbers().map(|nr| u64::from(self.geometry.clusters_in_group(GroupNr(nr)))).sum()
    }

    /// Describes a group without inodes, and with the checksums of its bitmaps.
    fn describe(&self, group: u32) -> GroupDesc {
        let (geometry, nr) = (&self.geometry, GroupNr(group));
        let places = self.places.get((group - self.first) as usize).copied();
        let Some(Places { block_bitmap, inode_bitmap, inode_table }) = places else {
            return GroupDesc::default();
        };
        let mut desc = GroupDesc {
            block_bitmap,
            inode_bitmap,
            inode_table,
            free_inodes: geometry.inodes_per_group,
            ..GroupDesc::default()
        };
        let clusters = geometry.clusters_in_group(nr);
        let plain = geometry.has_group_checksums()
            && group + 1 < geometry.groups_count
            && self.has_only_own_tables(nr, &desc);
        if geometry.has_group_checksums() {
            desc.flags = GroupFlags::INODE_UNINIT;
            desc.itable_unused = geometry.inodes_per_group;
        } else {
            let mut bits = vec![0; geometry.block_size as usize];
            init_inode_bitmap(&mut bits, geometry);
            desc.seal_inode_bitmap(&bits, geometry);
        }
        let bits = self.block_bitmap(nr);
        desc.free_clusters = bitmap::count_zeros(&bits, 0..clusters as usize) as u32;
        if plain {
            desc.flags.insert(GroupFlags::BLOCK_UNINIT);
        } else {
            desc.seal_block_bitmap(&bits, geometry);
        }
        desc
    }

    /// Returns whether a group has no tables but its own: its bitmap follows from its descriptor.
    fn has_only_own_tables(&self, group: GroupNr, desc: &GroupDesc) -> bool {
        let geometry = &self.geometry;
        let first = geometry.first_block_of_group(group).0;
        let blocks = first..first + u64::from(geometry.blocks_in_group(group));
        let within = |part: Range<u64>| {
            let part = blocks.start.max(part.start)..blocks.end.min(part.end);
            part.end.saturating_sub(part.start)
        };
        let table = u64::from(geometry.inode_table_blocks());
        let own = within(desc.block_bitmap..desc.block_bitmap + 1)
            + within(desc.inode_bitmap..desc.inode_bitmap + 1)
            + within(desc.inode_table..desc.inode_table + table);
        self.runs_in(&blocks).map(within).sum::<u64>() == own
    }

    /// Returns the runs that have blocks of a range.
    fn runs_in(&self, blocks: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let from = self.runs.partition_point(|run| run.end <= blocks.start);
        let rest = self.runs.get(from..).unwrap_or_default();
        let end = blocks.end;
        rest.iter().take_while(move |run| run.start < end).cloned()
    }

    fn block_bitmap(&self, group: GroupNr) -> Vec<u8> {
        let geometry = &self.geometry;
        let mut bits = vec![0; geometry.block_size as usize];
        let first = geometry.first_block_of_group(group).0;
        mark_blocks(&mut bits, geometry, group, first, geometry.base_meta_blocks(group).into());
        let blocks = first..first + u64::from(geometry.blocks_in_group(group));
        for run in self.runs_in(&blocks) {
            mark_blocks(&mut bits, geometry, group, run.start, run.end - run.start);
        }
        let end = bits.len() * 8;
        bitmap::set_range(&mut bits, geometry.clusters_in_group(group) as usize..end);
        bits
    }

    /// Returns the blocks of a new group's inode table.
    pub fn table(&self, group: u32) -> Range<u64> {
        let start = self.descriptor(group).map_or(0, |desc| desc.inode_table);
        start..start + u64::from(self.geometry.inode_table_blocks())
    }

    /// Returns whether the inode tables must be zeroed: no flag tells that they are unused.
    pub fn needs_zero_tables(&self) -> bool {
        !self.geometry.has_group_checksums()
    }

    /// Returns the bitmaps of a new group that must be written: their blocks and contents.
    pub fn bitmaps(&self, group: u32) -> impl Iterator<Item = (u64, Vec<u8>)> {
        let desc = self.descriptor(group).copied();
        let inodes = desc.filter(|_| !self.geometry.has_group_checksums()).map(|desc| {
            let mut bits = vec![0; self.geometry.block_size as usize];
            init_inode_bitmap(&mut bits, &self.geometry);
            (desc.inode_bitmap, bits)
        });
        let blocks = desc.filter(|desc| !desc.flags.contains(GroupFlags::BLOCK_UNINIT));
        let blocks = blocks.map(|desc| (desc.block_bitmap, self.block_bitmap(GroupNr(group))));
        inodes.into_iter().chain(blocks)
    }

    /// Notes that a new group's inode table is zero on the device.
    pub fn note_zero(&mut self, group: u32) {
        let desc = self.descriptors.get_mut((group - self.first) as usize);
        desc.into_iter().for_each(|desc| desc.flags.insert(GroupFlags::INODE_ZEROED));
    }
}

/// Returns the first block from `at` on with `len` blocks between copies of the superblock.
fn after_copies(geometry: &Geometry, mut at: u64, len: u64) -> u64 {
    loop {
        let first = geometry.group_of_block(BlockNr(at)).map_or(0, |group| group.0);
        let last = geometry.group_of_block(BlockNr(at + len - 1)).map_or(first, |group| group.0);
        let meta = |group: u32| {
            let start = geometry.first_block_of_group(GroupNr(group)).0;
            start..start + u64::from(geometry.base_meta_blocks(GroupNr(group)))
        };
        match (first..=last).map(meta).find(|meta| meta.start < at + len && at < meta.end) {
            Some(meta) => at = meta.end,
            None => return at,
        }
    }
}

/// Adds a run behind the others.
fn add(runs: &mut Vec<Range<u64>>, run: Range<u64>) {
    match runs.last_mut() {
        Some(last) if last.end == run.start => last.end = run.end,
        _ => runs.push(run),
    }
}
