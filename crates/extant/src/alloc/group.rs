//! The free map of one group: made from the bitmap when needed, dropped when nothing of the group is claimed.

use crate::error::Result;
use crate::groups::{Groups, Kind};
use crate::volume::Volume;
use extant_format::bitmap;
use extant_format::error::Corrupt;
use extant_format::group_desc::GroupDesc;
use extant_format::superblock::Geometry;
use extant_format::types::GroupNr;
use extant_space::{BitMap, FreeMap};

/// The blocks of one group in memory.
#[derive(Debug, Default)]
pub(super) enum Group {
    /// Nothing is claimed; the map is not in memory.
    #[default]
    Cold,
    /// The map is in memory.
    Warm(Box<Map>),
    /// The bitmap cannot be trusted: nothing is allocated here any more.
    Bad,
}

/// What a warm group has.
#[derive(Debug)]
pub(super) struct Map {
    /// Neither used nor claimed.
    pub free: BitMap,
    /// Clusters that are claimed.
    pub claimed: u32,
    /// Used since eviction last looked.
    pub used: bool,
}

impl Group {
    /// The map of a warm group.
    pub fn warm(&mut self) -> Option<&mut Map> {
        match self {
            Group::Warm(map) => Some(map),
            _ => None,
        }
    }

    /// Drops the map if nothing is claimed and nobody used it since the last call. True if it was dropped.
    pub fn cool(&mut self) -> bool {
        let Group::Warm(map) = self else { return true };
        if map.claimed > 0 || std::mem::take(&mut map.used) {
            return false;
        }
        *self = Group::Cold;
        true
    }
}

/// Makes a group's map from its bitmap.
pub(super) fn load(vol: &Volume, groups: &Groups, g: GroupNr) -> Result<Box<Map>> {
    let bitmap = groups.bitmap(g, Kind::Blocks)?;
    let desc = groups.desc(g)?;
    let free = bitmap.with(|bits| {
        check_own_metadata(&vol.geo, g, &desc, bits)?;
        Ok::<_, Corrupt>(BitMap::from_bitmap(bits, vol.geo.clusters_in_group(g)))
    })?;
    if free.count() != desc.free_clusters {
        let error = Corrupt::new("group descriptor").field("free clusters").found(desc.free_clusters);
        return Err(error.expected(free.count()).at_group(g).into());
    }
    Ok(Box::new(Map { free, claimed: 0, used: true }))
}

/// A bitmap that calls its own group's metadata free would give it away.
fn check_own_metadata(geo: &Geometry, g: GroupNr, desc: &GroupDesc, bits: &[u8]) -> Result<(), Corrupt> {
    let table = u64::from(geo.inode_table_blocks());
    for (start, count) in [(desc.block_bitmap, 1), (desc.inode_bitmap, 1), (desc.inode_table, table)] {
        if !marked(geo, g, start, count, bits) {
            return Err(Corrupt::new("block bitmap").field("metadata marked free").found(start).at_group(g));
        }
    }
    Ok(())
}

/// Whether those of the blocks that lie in the group are marked as used.
fn marked(geo: &Geometry, g: GroupNr, start: u64, count: u64, bits: &[u8]) -> bool {
    let first = geo.first_block_of_group(g).0;
    let end = first + u64::from(geo.blocks_in_group(g));
    let (from, to) = (start.max(first), start.saturating_add(count).min(end));
    let bit = |block: u64| ((block - first) >> geo.cluster_bits) as usize;
    from >= to || bitmap::all_ones(bits, bit(from)..bit(to - 1) + 1)
}

/// Whether any of the blocks is the metadata of a group of `g`'s flexible group: no file may own such a block.
pub(super) fn is_metadata(geo: &Geometry, groups: &Groups, g: GroupNr, start: u64, count: u64) -> bool {
    let end = start.saturating_add(count);
    let hits = |from: u64, len: u64| start < from.saturating_add(len) && end > from;
    let base = u64::from(geo.base_meta_blocks(g));
    if hits(geo.first_block_of_group(g).0, base) {
        return true;
    }
    let table = u64::from(geo.inode_table_blocks());
    let first = geo.flex_group_of(g) << geo.flex_bits;
    let last = first.saturating_add(1u32.checked_shl(geo.flex_bits).unwrap_or(u32::MAX)).min(geo.groups_count);
    // A flexible group of absurd size is looked at only near the group.
    let near = g.0.saturating_sub(MAX_FLEX)..g.0.saturating_add(MAX_FLEX);
    (first.max(near.start)..last.min(near.end)).any(|other| {
        let desc = groups.with(GroupNr(other), |desc| *desc);
        hits(desc.block_bitmap, 1) || hits(desc.inode_bitmap, 1) || hits(desc.inode_table, table)
    })
}

const MAX_FLEX: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_unclaimed_and_unused_cools() {
        let map = |claimed, used| Group::Warm(Box::new(Map { free: BitMap::from_bitmap(&[0], 8), claimed, used }));
        assert!(!map(1, false).cool());
        let mut group = map(0, true);
        assert!(!group.cool());
        assert!(group.cool());
        assert!(group.warm().is_none());
        assert!(Group::Bad.cool());
    }
}
