//! Group descriptors, bitmaps and inode tables.

use super::error::Result;
use super::files::Files;
use super::options::{Options, Zeroing};
use super::output::Output;
use super::population::Population;
use super::space::Taken;
use super::tables::Tables;
use extant_format::{Geometry, GroupDesc, GroupFlags, GroupNr, InodeNr, bitmap};
use std::ops::Range;

/// State of all groups after all allocations.
pub(super) struct Groups<'a> {
    geo: &'a Geometry,
    tables: &'a Tables,
    taken: &'a Taken,
    files: &'a Files,
    population: &'a dyn Population,
    last_inode: InodeNr,
    /// Descriptors of all groups.
    pub descriptors: Vec<GroupDesc>,
}

impl<'a> Groups<'a> {
    pub(super) fn new(
        geo: &'a Geometry,
        tables: &'a Tables,
        taken: &'a Taken,
        files: &'a Files,
        population: &'a dyn Population,
    ) -> Self {
        let last_inode = InodeNr(files.last_inode().0 + population.inodes());
        let descriptors = Vec::new();
        let mut groups = Self { geo, tables, taken, files, population, last_inode, descriptors };
        groups.descriptors = (0..geo.groups_count).map(|group| groups.describe(group)).collect();
        groups
    }

    fn blocks(&self, group: u32) -> Range<u64> {
        let first = self.geo.first_block_of_group(GroupNr(group)).0;
        first..first + u64::from(self.geo.blocks_in_group(GroupNr(group)))
    }

    /// Returns the number of inodes in use of a group; they are its first ones.
    fn used_inodes(&self, group: u32) -> u32 {
        let per_group = u64::from(self.geo.inodes_per_group);
        u64::from(self.last_inode.0).saturating_sub(u64::from(group) * per_group).min(per_group)
            as u32
    }

    fn describe(&self, group: u32) -> GroupDesc {
        let geo = self.geo;
        let [block_bitmap, inode_bitmap, table] = self.tables.of(geo, group);
        let used = self.used_inodes(group);
        let first = group * geo.inodes_per_group + 1;
        let taken = self.taken.clusters(self.blocks(group), geo.cluster_bits);
        GroupDesc {
            block_bitmap: block_bitmap.start,
            inode_bitmap: inode_bitmap.start,
            inode_table: table.start,
            free_clusters: geo.clusters_in_group(GroupNr(group)).saturating_sub(taken as u32),
            free_inodes: geo.inodes_per_group - used,
            used_dirs: self.directories(first..first.saturating_add(geo.inodes_per_group)),
            flags: self.flags(group),
            itable_unused: if geo.has_group_checksums() { geo.inodes_per_group - used } else { 0 },
            ..GroupDesc::default()
        }
    }

    /// Returns the number of directories among these inodes.
    fn directories(&self, inodes: Range<u32>) -> u32 {
        let root = u32::from(inodes.contains(&InodeNr::ROOT.0));
        root + self.files.directories(inodes.clone()) + self.population.directories(inodes)
    }

    /// Returns the flags of a group. A group without inodes needs no inode bitmap, a group with
    /// only its own metadata no block bitmap. Exceptions are the first group, and the last one,
    /// which may be short.
    fn flags(&self, group: u32) -> GroupFlags {
        let mut flags = GroupFlags::empty();
        if !self.geo.has_group_checksums() {
            return flags;
        }
        flags.set(GroupFlags::INODE_UNINIT, self.used_inodes(group) == 0 && group > 0);
        let inner = group > 0 && group + 1 < self.geo.groups_count;
        flags.set(GroupFlags::BLOCK_UNINIT, inner && self.has_only_own_metadata(group));
        flags
    }

    fn has_only_own_metadata(&self, group: u32) -> bool {
        let blocks = self.blocks(group);
        let within = |part: &Range<u64>| blocks.start.max(part.start)..blocks.end.min(part.end);
        let own: u64 = self
            .tables
            .of(self.geo, group)
            .iter()
            .map(within)
            .map(|part| part.end.saturating_sub(part.start))
            .sum();
        self.taken.count(blocks.clone())
            == u64::from(self.geo.base_meta_blocks(GroupNr(group))) + own
    }

    /// Writes the necessary bitmaps and stores their checksums in the descriptors.
    pub(super) fn write_bitmaps(&mut self, out: &mut Output<'_>) -> Result<()> {
        let mut bits = vec![0; self.geo.block_size as usize];
        let mut descriptors = std::mem::take(&mut self.descriptors);
        for (group, desc) in (0u32..).zip(&mut descriptors) {
            if !desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
                self.block_bitmap(group, &mut bits);
                desc.seal_block_bitmap(&bits, self.geo);
                out.blocks(desc.block_bitmap, &bits)?;
            }
        }
        // In a separate pass, since bitmaps of one kind are adjacent on the device.
        for (group, desc) in (0u32..).zip(&mut descriptors) {
            if !desc.flags.contains(GroupFlags::INODE_UNINIT) {
                self.inode_bitmap(group, &mut bits);
                desc.seal_inode_bitmap(&bits, self.geo);
                out.blocks(desc.inode_bitmap, &bits)?;
            }
        }
        self.descriptors = descriptors;
        Ok(())
    }

    fn block_bitmap(&self, group: u32, bits: &mut [u8]) {
        bits.fill(0);
        let blocks = self.blocks(group);
        for part in self.taken.within(blocks.clone()) {
            let first = (part.start - blocks.start) >> self.geo.cluster_bits;
            let last = (part.end - 1 - blocks.start) >> self.geo.cluster_bits;
            bitmap::set_range(bits, first as usize..last as usize + 1);
        }
        bitmap::set_range(bits, self.geo.clusters_in_group(GroupNr(group)) as usize..usize::MAX);
    }

    fn inode_bitmap(&self, group: u32, bits: &mut [u8]) {
        bits.fill(0);
        bitmap::set_range(bits, 0..self.used_inodes(group) as usize);
        bitmap::set_range(bits, self.geo.inodes_per_group as usize..usize::MAX);
    }

    /// Returns whether inode tables must be zeroed. Without checksums of descriptors there is no
    /// record of never written inodes, so tables must be zero.
    fn must_zero(&self, options: &Options) -> bool {
        options.zeroing == Zeroing::Full || !self.geo.has_group_checksums()
    }

    /// Notes the tables that are zero, or will be. The caller must not have written anything yet,
    /// since devices report zero ranges at the granularity of their own pages.
    pub(super) fn note_zero_tables(
        &mut self,
        options: &Options,
        out: &mut Output<'_>,
    ) -> Result<()> {
        let must = self.must_zero(options);
        for (group, desc) in (0u32..).zip(&mut self.descriptors) {
            let [_, _, table] = self.tables.of(self.geo, group);
            desc.flags.set(GroupFlags::INODE_ZEROED, must || out.is_zero(table)?);
        }
        Ok(())
    }

    /// Zeroes inode tables if they must be zero.
    pub(super) fn zero_tables(&self, options: &Options, out: &mut Output<'_>) -> Result<()> {
        if !self.must_zero(options) {
            return Ok(());
        }
        (0..self.geo.groups_count).try_for_each(|group| {
            let [_, _, table] = self.tables.of(self.geo, group);
            out.zero(table)
        })
    }

    /// Writes the inodes.
    pub(super) fn write_inode_tables(&self, out: &mut Output<'_>) -> Result<()> {
        let groups = self.last_inode.0.div_ceil(self.geo.inodes_per_group);
        (0..groups).try_for_each(|group| self.write_inodes(group, out))
    }

    /// Writes the blocks of a group's table up to its last inode in use.
    fn write_inodes(&self, group: u32, out: &mut Output<'_>) -> Result<()> {
        let geo = self.geo;
        let size = usize::from(geo.inode_size);
        let used = self.used_inodes(group);
        let slots = used.div_ceil(geo.inodes_per_block()) * geo.inodes_per_block();
        let mut slots = vec![0; slots as usize * size];
        let first = group * geo.inodes_per_group + 1;
        for (ino, slot) in (first..first + used).map(InodeNr).zip(slots.chunks_exact_mut(size)) {
            match self.files.inode(ino) {
                Some(inode) => inode.encode(slot, geo, ino)?,
                None => self.population.encode(ino, slot)?,
            }
        }
        let [_, _, table] = self.tables.of(geo, group);
        out.blocks(table.start, &slots)
    }

    /// Writes the descriptors, and their copies if `backups`.
    pub(super) fn write_descriptors(&self, backups: bool, out: &mut Output<'_>) -> Result<()> {
        let geo = self.geo;
        let table = self.encode();
        let block_size = geo.block_size as usize;
        if geo.has_meta_bg() {
            return self.write_scattered(&table, backups, out);
        }
        let places = geo.super_groups().take(if backups { usize::MAX } else { 1 });
        for group in places {
            let start = geo.base_meta(group).descriptors.start;
            out.blocks(
                start,
                table.get(..geo.desc_blocks as usize * block_size).unwrap_or(&table),
            )?;
        }
        Ok(())
    }

    fn write_scattered(&self, table: &[u8], backups: bool, out: &mut Output<'_>) -> Result<()> {
        for (index, block) in (0u32..).zip(table.chunks(self.geo.block_size as usize)) {
            out.blocks(self.geo.gdt_block(index).0, block)?;
            for copy in self.geo.gdt_backups(index).filter(|_| backups) {
                out.blocks(copy.0, block)?;
            }
        }
        Ok(())
    }

    /// Returns the descriptor blocks, one after the other.
    fn encode(&self) -> Vec<u8> {
        let geo = self.geo;
        let mut table = vec![0; geo.desc_blocks as usize * geo.block_size as usize];
        for (group, desc) in (0u32..).zip(&self.descriptors) {
            let (block, offset) = geo.desc_location(GroupNr(group));
            let at = block as usize * geo.block_size as usize + offset;
            if let Some(slot) = table.get_mut(at..at + usize::from(geo.desc_size)) {
                desc.encode(slot, geo, GroupNr(group));
            }
        }
        table
    }

    /// Free clusters and inodes of all groups.
    pub(super) fn totals(&self) -> (u64, u64) {
        let clusters = self.descriptors.iter().map(|desc| u64::from(desc.free_clusters)).sum();
        let inodes = self.descriptors.iter().map(|desc| u64::from(desc.free_inodes)).sum();
        (clusters, inodes)
    }
}
