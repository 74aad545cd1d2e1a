//! The bitmap of one group: read, and compared with the descriptor, when the group's free space is
//! needed.

use super::FreeSpace;
use super::tree::clear_runs;
use crate::error::Result;
use crate::groups::{Groups, Kind};
use extant_format::Geometry;
use extant_format::bitmap;
use extant_format::error::Corrupt;
use extant_format::group_desc::GroupDesc;
use extant_format::types::GroupNr;
use extant_space::Run;
use extant_sync::{Level, Mutex};

/// A group's bitmap on the device; its lock is held to read and to change it.
#[derive(Debug, Default)]
pub(in crate::alloc) struct Bitmap {
    /// It cannot be trusted: nothing is allocated here any more.
    pub bad: bool,
}

impl Bitmap {
    /// A bitmap that is trusted, with its lock.
    pub fn new() -> Mutex<Bitmap> {
        Mutex::new(Level::Group, Bitmap::default())
    }
}

/// Returns the free runs of a group by its bitmap, whose lock the caller must hold.
///
/// # Errors
/// `Corrupt` if the bitmap contradicts its checksum, the descriptor or the group's own metadata;
/// `Io`.
pub(in crate::alloc) fn free_runs_of(blocks: &FreeSpace, g: GroupNr) -> Result<Vec<Run>> {
    let (geo, groups) = (&blocks.vol.geo, &blocks.groups);
    let bitmap = groups.bitmap(g, Kind::Blocks)?;
    let desc = groups.desc(g)?;
    let runs = bitmap.with(|bits| {
        check_own_metadata(geo, g, &desc, bits)?;
        Ok::<_, Corrupt>(clear_runs(bits, geo.clusters_in_group(g)))
    })?;
    let free: u32 = runs.iter().map(|run| run.len).sum();
    if free != desc.free_clusters {
        let error =
            Corrupt::new("group descriptor").field("free clusters").found(desc.free_clusters);
        return Err(error.expected(free).at_group(g).into());
    }
    Ok(runs)
}

/// A bitmap that calls its own group's metadata free would give it away.
fn check_own_metadata(
    geo: &Geometry,
    g: GroupNr,
    desc: &GroupDesc,
    bits: &[u8],
) -> Result<(), Corrupt> {
    let table = u64::from(geo.inode_table_blocks());
    for (start, count) in
        [(desc.block_bitmap, 1), (desc.inode_bitmap, 1), (desc.inode_table, table)]
    {
        if !marked(geo, g, start, count, bits) {
            return Err(Corrupt::new("block bitmap")
                .field("metadata marked free")
                .found(start)
                .at_group(g));
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

/// Whether any of the blocks is the metadata of a group of `g`'s flexible group: no file may own
/// such a block.
pub(in crate::alloc) fn is_metadata(
    geo: &Geometry,
    groups: &Groups,
    g: GroupNr,
    start: u64,
    count: u64,
) -> bool {
    let end = start.saturating_add(count);
    let hits = |from: u64, len: u64| start < from.saturating_add(len) && end > from;
    let first = geo.first_block_of_group(g).0;
    if start - first.min(start) < geo.most_base_meta_blocks()
        && hits(first, geo.base_meta_blocks(g).into())
    {
        return true;
    }
    if !groups.near_metadata(g, start, end) {
        return false;
    }
    let table = u64::from(geo.inode_table_blocks());
    let first = geo.flex_group_of(g) << geo.flex_bits;
    let last = first
        .saturating_add(1u32.checked_shl(geo.flex_bits).unwrap_or(u32::MAX))
        .min(geo.groups_count);
    // A flexible group of absurd size is looked at only near the group.
    let near = g.0.saturating_sub(MAX_FLEX)..g.0.saturating_add(MAX_FLEX);
    (first.max(near.start)..last.min(near.end)).any(|other| {
        let desc = groups.with(GroupNr(other), |desc| *desc);
        hits(desc.block_bitmap, 1) || hits(desc.inode_bitmap, 1) || hits(desc.inode_table, table)
    })
}

const MAX_FLEX: u32 = 256;
