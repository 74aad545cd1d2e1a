//! Checksums of all metadata in another form: made, removed, or of another kind.
//!
//! # Invariants
//! The survey of the round is that of the file system before, with the geometry of the one after:
//! both have all structures in the same places.

use crate::maps::{MapVisitor, Run, Runs, walk};
use crate::passes::inodes::has_map;
use crate::repair::{RepairError, Round};
use extant_format::extent::seal_extent_block;
use extant_format::group_desc::GroupFlags;
use extant_format::inode::seal_inode;
use extant_format::mmp::Mmp;
use extant_format::xattr::seal_xattr_block;
use extant_format::{Compat, Geometry, GroupDesc, GroupNr, Incompat, Inode, InodeFlags, InodeNr};
use std::collections::BTreeSet;

/// Writes the checksums of all metadata but directories.
pub fn reseal(round: &Round<'_>, old: &Geometry) -> Result<(), RepairError> {
    if round.geometry().metadata_csum {
        let mut attributes = BTreeSet::new();
        for group in round.survey.volume.reader.groups() {
            seal_maps(round, group, &mut attributes)?;
            seal_table(round, group)?;
        }
        for nr in attributes {
            let mut bytes = round.block(nr)?;
            seal_xattr_block(&mut bytes, nr, round.geometry().csum_seed);
            round.put(nr, &bytes)?;
        }
    }
    seal_orphan_file(round)?;
    for group in round.survey.volume.reader.groups() {
        seal_group(round, group, old)?;
    }
    seal_mmp(round, old)
}

/// A visitor that collects the nodes of a map.
#[derive(Default)]
struct Nodes(Vec<u64>);

impl MapVisitor for Nodes {
    fn enter(&mut self, block: u64) -> bool {
        self.0.push(block);
        true
    }

    fn run(&mut self, _: Run) {}

    // Checksums are those before.
    fn bad(&mut self, _: crate::finding::Finding) {}
}

/// Seals the extent trees of a group's inodes, and collects the blocks of their attributes.
fn seal_maps(
    round: &Round<'_>,
    group: GroupNr,
    attributes: &mut BTreeSet<u64>,
) -> Result<(), RepairError> {
    let (volume, geometry) = (&round.survey.volume, round.geometry());
    let mut inodes = Vec::new();
    volume.each_slot(group, &mut |ino, slot| {
        let inode = Inode::decode_unverified(slot, geometry, ino);
        inodes.extend(inode.ok().filter(|inode| inode.links > 0).map(|inode| (ino, inode)));
    });
    for (ino, inode) in inodes {
        attributes.extend(Some(inode.file_acl).filter(|nr| *nr != 0));
        if inode.flags.contains(InodeFlags::EXTENTS) && has_map(volume, &inode) {
            seal_tree(round, ino, &inode)?;
        }
    }
    Ok(())
}

/// Seals the nodes of an extent tree.
fn seal_tree(round: &Round<'_>, ino: InodeNr, inode: &Inode) -> Result<(), RepairError> {
    let mut nodes = Nodes::default();
    walk(&round.survey.volume.reader, ino, inode, &mut nodes);
    let seed = inode.seed(round.geometry(), ino);
    for nr in nodes.0 {
        let mut bytes = round.block(nr)?;
        seal_extent_block(&mut bytes, nr, seed);
        round.put(nr, &bytes)?;
    }
    Ok(())
}

/// Seals the inodes of a table. A slot of zeros that is not reserved was never used.
fn seal_table(round: &Round<'_>, group: GroupNr) -> Result<(), RepairError> {
    let (volume, geometry) = (&round.survey.volume, round.geometry());
    let Some(state) = volume.groups.get(group.index()) else { return Ok(()) };
    let (count, per_block) = (state.inodes(&volume.reader), geometry.inodes_per_block());
    let starts = (0..count).step_by(per_block.max(1) as usize);
    for (nr, start) in (state.desc.inode_table..).zip(starts) {
        let mut bytes = round.block(nr)?;
        let slots = bytes.chunks_exact_mut(geometry.inode_size.into());
        for (slot, index) in slots.zip(start..count) {
            let ino = geometry.inode_at(group, index);
            if ino.0 < geometry.first_ino || slot.iter().any(|byte| *byte != 0) {
                seal_inode(slot, geometry, ino);
            }
        }
        round.put(nr, &bytes)?;
    }
    Ok(())
}

/// Seals bitmaps and descriptor of a group.
fn seal_group(round: &Round<'_>, group: GroupNr, old: &Geometry) -> Result<(), RepairError> {
    let geometry = round.geometry();
    let mut desc = round.desc(group)?;
    if !old.has_group_checksums() && geometry.has_group_checksums() {
        // All tables were written when the file system was made.
        desc.flags = GroupFlags::INODE_ZEROED;
        desc.itable_unused = 0;
    }
    (desc.block_bitmap_csum, desc.inode_bitmap_csum) = (0, 0);
    if !desc.has_flag(geometry, GroupFlags::BLOCK_UNINIT) {
        desc.seal_block_bitmap(&round.block(desc.block_bitmap)?, geometry);
    }
    if !desc.has_flag(geometry, GroupFlags::INODE_UNINIT) {
        desc.seal_inode_bitmap(&round.block(desc.inode_bitmap)?, geometry);
    }
    let (index, offset) = geometry.desc_location(group);
    let nr = geometry.gdt_block(index).0;
    let mut bytes = round.block(nr)?;
    if let Some(raw) = bytes.get_mut(offset..) {
        GroupDesc::clear_exclusion(raw);
        desc.encode(raw, geometry, group);
    }
    round.put(nr, &bytes)
}

/// Writes the blocks of the orphan file.
fn seal_orphan_file(round: &Round<'_>) -> Result<(), RepairError> {
    let geometry = round.geometry();
    if !geometry.compat(Compat::ORPHAN_FILE) {
        return Ok(());
    }
    let ino = round.survey.volume.superblock.orphan_file_inum();
    let inode = round.inode(ino)?;
    let seed = inode.seed(geometry, ino);
    let runs = Runs::of(&round.survey.volume.reader, ino, &inode);
    // A file system at rest has no orphans. Without checksums the field is 0.
    for nr in runs.blocks(inode.size >> geometry.block_bits).unwrap_or_default() {
        round.put_empty(nr, seed)?;
    }
    Ok(())
}

fn seal_mmp(round: &Round<'_>, old: &Geometry) -> Result<(), RepairError> {
    let geometry = round.geometry();
    if !geometry.incompat(Incompat::MMP) {
        return Ok(());
    }
    let nr = round.survey.volume.superblock.mmp_block().0;
    let mut bytes = round.block(nr)?;
    let seed = |geometry: &Geometry| geometry.metadata_csum.then_some(geometry.csum_seed);
    Mmp::parse(&bytes, seed(old))?.encode(&mut bytes, seed(geometry));
    round.put(nr, &bytes)
}
