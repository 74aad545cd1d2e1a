//! Groups that the file system gets while it is open.
//!
//! # Order
//! The tables of groups grow before the geometry does, so that a thread which reads a larger number
//! of groups finds them. Their bitmaps and inode tables are on the device by then. Descriptors,
//! superblock and geometry change within one handle, and so in one transaction.

use super::{Group, Groups, Hull, hull};
use crate::error::{Error, Result};
use extant_blocks::Buffer;
use extant_format::Geometry;
use extant_format::group_desc::GroupDesc;
use extant_format::growth::{Growth, NewGroups};
use extant_format::types::GroupNr;
use extant_journal::{Handle, Seal};
use extant_sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

impl Groups {
    /// Descriptor blocks of new groups that change in a transaction: those that lie in the file
    /// system as it is. The others have their content when the new size counts.
    pub fn changed_desc_blocks(&self, larger: &Geometry) -> Vec<u32> {
        let (groups, end) = (self.count(), self.vol.geo.blocks_count);
        let first = groups / larger.descs_per_block();
        (first..larger.desc_blocks).filter(|index| larger.gdt_block(*index).0 < end).collect()
    }

    /// Makes the file system larger in the handle's transaction. Costs a credit for the superblock
    /// and for each of [`Self::changed_desc_blocks`]. No two threads may do this at once.
    ///
    /// # Errors
    /// Those of the journal, and `Io`.
    pub fn grow(&self, h: &mut Handle<'_>, growth: &Growth, groups: &NewGroups) -> Result<()> {
        let larger = &growth.geometry;
        let old_blocks = self.vol.geo.desc_blocks;
        let changed = self.changed_desc_blocks(larger);
        self.join_superblock(h)?;
        for index in &changed {
            let block = larger.gdt_block(*index).0;
            if *index < old_blocks {
                h.join(&self.desc_block_at(block)?)?;
            } else {
                // A kept block becomes one of descriptors: its old content goes.
                h.write(&self.vol.cache.fresh(block), Seal::NONE)?.fill(0);
            }
        }
        let descs: Vec<GroupDesc> =
            groups.numbers().filter_map(|g| groups.descriptor(g).copied()).collect();
        let first = self.count();
        self.append(larger, first, &descs);
        growth.apply_to(&mut self.sb.fields.lock());
        self.vol.geo.grow(*larger);
        let per_block = larger.descs_per_block();
        for g in groups.numbers().filter(|g| changed.contains(&(g / per_block))) {
            self.join(h, GroupNr(g))?;
        }
        Ok(())
    }

    fn append(&self, larger: &Geometry, first: u32, descs: &[GroupDesc]) {
        self.tables.append(descs.iter().map(|desc| desc.inode_table));
        self.slots.append(descs.iter().map(|desc| Group::new(*desc)));
        self.zone.append(larger, descs);
        self.append_hulls(larger, first, descs);
        self.totals.append(larger, first, descs);
    }

    fn append_hulls(&self, larger: &Geometry, first: u32, descs: &[GroupDesc]) {
        for of_flex in (first..).zip(descs).collect::<Vec<_>>().chunk_by(|(a, _), (b, _)| {
            larger.flex_group_of(GroupNr(*a)) == larger.flex_group_of(GroupNr(*b))
        }) {
            let descs: Vec<GroupDesc> = of_flex.iter().map(|(_, desc)| **desc).collect();
            let blocks = hull(larger, &descs);
            let Some((g, _)) = of_flex.first() else { continue };
            match self.metadata.get(larger.flex_group_of(GroupNr(*g)) as usize) {
                // It lies behind that of the groups before.
                Some(hull) => _ = hull.end.fetch_max(blocks.end, Ordering::Relaxed),
                None => self
                    .metadata
                    .append([Hull { start: blocks.start, end: AtomicU64::new(blocks.end) }]),
            }
        }
    }

    /// Returns the content of a descriptor block, as it is in memory, for a copy. Descriptors of
    /// groups that do not count yet are those of `groups`.
    ///
    /// # Errors
    /// `Io` if the block cannot be read.
    pub fn encoded_desc_block(
        &self,
        geo: &Geometry,
        index: u32,
        groups: Option<&NewGroups>,
    ) -> Result<Vec<u8>> {
        let mut block = if index < self.vol.geo.desc_blocks {
            self.desc_block_at(geo.gdt_block(index).0)?.snapshot().to_vec()
        } else {
            vec![0; geo.block_size as usize]
        };
        let first = index * geo.descs_per_block();
        for g in (first..first + geo.descs_in_block(index)).map(GroupNr) {
            let new = groups.and_then(|groups| groups.descriptor(g.0)).copied();
            let desc = new.map_or_else(|| self.desc(g), Ok)?;
            let (_, at) = geo.desc_location(g);
            if let Some(slot) = block.get_mut(at..at + usize::from(geo.desc_size)) {
                desc.encode(slot, geo, g);
            }
        }
        Ok(block)
    }

    fn desc_block_at(&self, block: u64) -> Result<Arc<Buffer>> {
        self.vol.cache.read::<Error>(block, |_| Ok(()))
    }
}
