//! The writes of growth that are in no transaction: into new groups, which nothing refers to yet,
//! and of copies of the superblock and of descriptors, which only repairs read.

use crate::bounds::check_interrupt;
use crate::error::Result;
use crate::ops::Operations;
use extant_blocks::{BlockDevice, Plug};
use extant_format::growth::{Growth, NewGroups};
use extant_format::types::GroupNr;
use std::ops::Range;

/// Groups whose bitmaps are written together.
const BATCH: usize = 256;

impl Operations {
    /// Writes bitmaps, inode tables, and copies of superblock and descriptors into the new groups,
    /// and makes them durable. Notes the tables that are zero.
    pub(super) fn write_new_groups(&self, growth: &Growth, groups: &mut NewGroups) -> Result<()> {
        let device = &*self.st().dev;
        let size = u64::from(growth.geometry.block_size);
        let mut numbers = groups.numbers().peekable();
        while numbers.peek().is_some() {
            check_interrupt()?;
            let mut plug = Plug::new(device);
            for group in numbers.by_ref().take(BATCH) {
                let table = groups.table(group);
                let table = table.start.saturating_mul(size)..table.end.saturating_mul(size);
                let zero = is_zero(device, &table)?;
                if !groups.needs_zero_tables() && zero {
                    groups.note_zero(group);
                } else if groups.needs_zero_tables() && !zero {
                    device.write_zeroes(table.start, table.end - table.start)?;
                }
                for (nr, bits) in groups.bitmaps(group) {
                    plug.add(nr.saturating_mul(size), bits);
                }
            }
            plug.finish()?;
        }
        self.write_new_copies(growth, groups)?;
        Ok(device.flush()?)
    }

    /// Writes descriptor blocks and copies of them and of the superblock, as far as they lie in the
    /// new groups.
    fn write_new_copies(&self, growth: &Growth, groups: &NewGroups) -> Result<()> {
        let (st, larger) = (self.st(), &growth.geometry);
        let end = st.geo.blocks_count;
        let size = u64::from(larger.block_size);
        let mut plug = Plug::new(&*st.dev);
        let copies: Vec<GroupNr> =
            larger.super_groups().filter(|group| groups.numbers().contains(&group.0)).collect();
        // Blocks of descriptors before lie in old groups, and so do their copies, unless a new
        // group has copies of all.
        let first =
            if copies.is_empty() { st.geo.groups_count / larger.descs_per_block() } else { 0 };
        for index in first..larger.desc_blocks {
            let places = larger.gdt_backups(index).chain([larger.gdt_block(index)]);
            let mut places = places.map(|block| block.0).filter(|block| *block >= end).peekable();
            if places.peek().is_none() {
                continue;
            }
            let bytes = st.groups.encoded_desc_block(larger, index, Some(groups))?;
            places.for_each(|place| plug.add(place.saturating_mul(size), bytes.clone()));
        }
        for group in copies {
            let Some(place) = larger.super_block_of(group) else { continue };
            let mut block = vec![0; larger.block_size as usize];
            let copy = growth.superblock.encode_copy(group);
            block.iter_mut().zip(copy).for_each(|(to, from)| *to = from);
            plug.add(place.0.saturating_mul(size), block);
        }
        plug.finish()?;
        Ok(())
    }

    /// Writes the copies of the superblock, and those of descriptor blocks from `first` on.
    pub(super) fn write_old_copies(&self, first: u32) -> Result<()> {
        let st = self.st();
        let geo = *st.geo;
        let size = u64::from(geo.block_size);
        let mut plug = Plug::new(&*st.dev);
        for index in first..geo.desc_blocks {
            let mut places = geo.gdt_backups(index).peekable();
            if places.peek().is_none() {
                continue;
            }
            let bytes = st.groups.encoded_desc_block(&geo, index, None)?;
            places.for_each(|place| plug.add(place.0.saturating_mul(size), bytes.clone()));
        }
        plug.finish()?;
        self.write_superblock_copies()
    }

    /// Writes the copies of the superblock, and flushes. The lock of freezing must be held.
    pub(in crate::ops) fn write_superblock_copies(&self) -> Result<()> {
        let st = self.st();
        let geo = *st.geo;
        let size = u64::from(geo.block_size);
        let superblock = st.groups.superblock();
        for group in geo.super_groups().skip(1) {
            let Some(place) = geo.super_block_of(group) else { continue };
            st.dev.write_all_at(&superblock.encode_copy(group), place.0.saturating_mul(size))?;
        }
        Ok(st.dev.flush()?)
    }
}

/// Returns whether bytes of the device are known to be zero.
fn is_zero(device: &dyn BlockDevice, bytes: &Range<u64>) -> Result<bool> {
    Ok(device.next_data(bytes.start)?.is_none_or(|data| data.start >= bytes.end))
}
