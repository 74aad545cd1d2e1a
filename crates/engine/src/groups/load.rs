//! Reads all descriptors: those that lie one behind the other in few large reads.

use crate::bounds::Walk;
use crate::error::{Error, Result};
use crate::volume::Volume;
use extant_format::Geometry;
use extant_format::error::Corrupt;
use extant_format::group_desc::GroupDesc;
use extant_format::types::{BlockNr, GroupNr, InodeNr};
use std::ops::Range;

/// Bytes of the largest read.
const MAX_READ: usize = 1 << 20;

/// All descriptors in order, verified.
pub(super) fn descriptors(vol: &Volume) -> Result<Vec<GroupDesc>> {
    let geo = &vol.geo;
    // Grows with the descriptors read: a false group count meets the end of the device first.
    let mut descs = Vec::new();
    let mut bytes = Vec::new();
    let mut places = Walk::of(InodeNr(0));
    let mut index = 0;
    while index < geo.desc_blocks {
        let run = run(geo, index);
        bytes.resize(run.len() * vol.block_size(), 0);
        vol.dev.read_exact_at(&mut bytes, byte_of(vol, geo.gdt_block(index))?)?;
        for (block, bytes) in run.clone().zip(bytes.chunks_exact(vol.block_size())) {
            decode_block(geo, block, bytes, &mut descs, &mut places)?;
        }
        index = run.end;
    }
    descs.shrink_to_fit();
    Ok(descs)
}

/// Descriptor blocks from `index` on that lie one behind the other.
fn run(geo: &Geometry, index: u32) -> Range<u32> {
    let first = geo.gdt_block(index).0;
    let limit = (MAX_READ / geo.block_size as usize).max(1) as u32;
    let limit = geo.desc_blocks.min(index.saturating_add(limit));
    let follows = |next: &u32| geo.gdt_block(*next).0 == first + u64::from(*next - index);
    index..index + (index..limit).take_while(follows).count().max(1) as u32
}

fn byte_of(vol: &Volume, block: BlockNr) -> Result<u64> {
    let outside =
        || Corrupt::new("group descriptor block").found(block.0).expected(vol.geo.blocks_count);
    let inside = vol.geo.block_in_range(block).then_some(block.0);
    let byte = inside.and_then(|block| block.checked_mul(vol.block_size() as u64));
    byte.ok_or_else(|| outside().into())
}

fn decode_block(
    geo: &Geometry,
    block: u32,
    bytes: &[u8],
    descs: &mut Vec<GroupDesc>,
    places: &mut Walk,
) -> Result<()> {
    let first = block * geo.descs_per_block();
    for (g, slot) in (first..first + geo.descs_in_block(block))
        .zip(bytes.chunks_exact(usize::from(geo.desc_size)))
    {
        let desc = GroupDesc::decode(slot, geo, GroupNr(g))?;
        check(geo, GroupNr(g), &desc).map_err(|error| error.at_group(GroupNr(g)))?;
        // Groups must not share metadata: otherwise a few blocks of an image stand for millions of
        // groups.
        for place in [desc.block_bitmap, desc.inode_bitmap, desc.inode_table] {
            places.enter(place).map_err(|e| match e {
                Error::Corrupt(_) => shared(GroupNr(g), place).into(),
                other => other,
            })?;
        }
        descs.push(desc);
    }
    Ok(())
}

fn shared(g: GroupNr, place: u64) -> Corrupt {
    Corrupt::new("group descriptor")
        .field("bitmap or inode table of another group")
        .found(place)
        .at_group(g)
}

/// Checks a descriptor against the geometry: the counts of a short last group, and metadata that
/// would overlap the primary superblock or the descriptors.
fn check(geo: &Geometry, g: GroupNr, desc: &GroupDesc) -> Result<(), Corrupt> {
    let bad = |field, found: u64| Err(Corrupt::new("group descriptor").field(field).found(found));
    if desc.free_clusters > geo.clusters_in_group(g) {
        return bad("free clusters", desc.free_clusters.into());
    }
    if desc.used_dirs > geo.inodes_per_group {
        return bad("directories", desc.used_dirs.into());
    }
    let base = geo.base_meta(GroupNr(0));
    let reserved = geo.first_block_of_group(GroupNr(0)).0..base.descriptors.end;
    let table = geo.inode_table_blocks().into();
    for (field, start, count) in [
        ("block bitmap", desc.block_bitmap, 1),
        ("inode bitmap", desc.inode_bitmap, 1),
        ("inode table", desc.inode_table, table),
    ] {
        if start < reserved.end && start.saturating_add(count) > reserved.start {
            return bad(field, start);
        }
    }
    Ok(())
}
