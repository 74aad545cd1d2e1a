//! Placement of superblock copies, descriptors, bitmaps and inode tables.
//!
//! The bitmaps and tables of a flex group lie together from the start of its first group: first all
//! block bitmaps, then all inode bitmaps, then the tables. The rest continues in later groups,
//! around superblock copies.

use super::error::{Error, Result};
use super::space::{Align, Taken};
use extant_format::{Geometry, GroupNr};
use std::ops::Range;

/// The first block of each group's bitmaps and table, by group.
#[derive(Debug, Default, Clone)]
pub(super) struct Tables {
    pub block_bitmaps: Vec<u64>,
    pub inode_bitmaps: Vec<u64>,
    pub inode_tables: Vec<u64>,
}

impl Tables {
    /// Allocates the blocks of all groups' metadata.
    pub(super) fn place(geo: &Geometry, taken: &mut Taken) -> Result<Tables> {
        for group in 0..geo.groups_count {
            let first = geo.first_block_of_group(GroupNr(group)).0;
            taken.take(first..first + u64::from(geo.base_meta_blocks(GroupNr(group))));
        }
        let mut tables = Tables::default();
        let mut first = 0;
        while first < geo.groups_count {
            let count = geo.flex_size().min(geo.groups_count - first);
            tables.place_flex_group(geo, taken, first, count)?;
            first += count;
        }
        Ok(tables)
    }

    fn place_flex_group(
        &mut self,
        geo: &Geometry,
        taken: &mut Taken,
        first: u32,
        count: u32,
    ) -> Result<()> {
        let start = geo.first_block_of_group(GroupNr(first)).0;
        let end = match geo.flex_bits {
            0 => start + u64::from(geo.blocks_in_group(GroupNr(first))),
            _ => geo.blocks_count,
        };
        let table = u64::from(geo.inode_table_blocks());
        place(taken, &mut self.block_bitmaps, start..end, count, 1)?;
        place(taken, &mut self.inode_bitmaps, start..end, count, 1)?;
        place(taken, &mut self.inode_tables, start..end, count, table)
    }

    /// Returns the blocks of a group's own bitmaps and table.
    pub(super) fn of(&self, geo: &Geometry, group: u32) -> [Range<u64>; 3] {
        let at = |starts: &[u64]| starts.get(group as usize).copied().unwrap_or(0);
        let (blocks, inodes, table) =
            (at(&self.block_bitmaps), at(&self.inode_bitmaps), at(&self.inode_tables));
        [blocks..blocks + 1, inodes..inodes + 1, table..table + u64::from(geo.inode_table_blocks())]
    }
}

/// Places `count` pieces of `len` blocks in `bounds`, each at the next free range.
fn place(
    taken: &mut Taken,
    starts: &mut Vec<u64>,
    bounds: Range<u64>,
    count: u32,
    len: u64,
) -> Result<()> {
    let mut from = bounds.start;
    for _ in 0..count {
        let Some(start) = taken.find(from..bounds.end, len, Align::NONE) else {
            return Error::too_small("no room for bitmaps and inode tables");
        };
        taken.take(start..start + len);
        starts.push(start);
        from = start + len;
    }
    Ok(())
}
