//! Inode tables of a larger form, in the place of the old ones.
#![expect(clippy::arithmetic_side_effects, reason = "numbers of a file system without damage")]

use crate::repair::{RepairError, Round};
use crate::tune::TuneError;
use crate::volume::Group;
use extant_format::group_desc::{GroupFlags, init_inode_bitmap};
use extant_format::inode::seal_inode;
use extant_format::{Geometry, GroupNr, InodeNr};

/// Returns a free inode whose slot of the new form lies in a free block behind the old table, and
/// with the fewest inodes before it that were never used.
pub fn spare_inode(round: &Round<'_>, new: &Geometry) -> Result<InodeNr, TuneError> {
    let (survey, old) = (round.survey, round.geometry());
    let first = old.inode_table_blocks() * new.inodes_per_block();
    let mut best: Option<(u32, InodeNr)> = None;
    for (group, state) in survey.volume.reader.groups().zip(&survey.volume.groups) {
        let facts = survey.inodes.facts.group(group);
        let is_free = |index: &u32| {
            let nr = state.desc.inode_table + u64::from(new.inode_slot(*index).0);
            let is_used = facts.get(*index as usize).is_some_and(|fact| fact.is_used());
            let is_ordinary = old.inode_at(group, *index).0 >= old.first_ino;
            !is_used && is_ordinary && survey.claims.first_claimed(nr..nr + 1).is_none()
        };
        if let Some(index) = (first..old.inodes_per_group).find(is_free) {
            let unused = index.saturating_sub(state.inodes(&survey.volume.reader));
            if best.is_none_or(|(least, _)| unused < least) {
                best = Some((unused, old.inode_at(group, index)));
            }
        }
    }
    best.map(|(_, ino)| ino).ok_or(TuneError::NoSpace)
}

/// Writes all tables in the new form, with zeroes in the new space of each inode, and at least up
/// to the inode `spare` in its group.
pub fn enlarge(
    round: &Round<'_>,
    new: &Geometry,
    spare: Option<InodeNr>,
) -> Result<(), RepairError> {
    let volume = &round.survey.volume;
    let spare = spare.map(|ino| new.inode_location(ino)).transpose()?;
    for (group, state) in volume.reader.groups().zip(&volume.groups) {
        let present = state.inodes(&volume.reader);
        let least = spare.filter(|(of, _)| *of == group).map_or(0, |(_, index)| index + 1);
        let count = present.max(least);
        write_table(round, new, (group, state), count)?;
        if count == new.inodes_per_group {
            continue;
        }
        if least > 0 {
            initialize(round, group, state)?;
        }
        round.edit_desc(group, |desc| {
            desc.flags.remove(GroupFlags::INODE_ZEROED);
            if least > 0 {
                desc.itable_unused = desc.itable_unused.min(new.inodes_per_group - count);
            }
        })?;
    }
    Ok(())
}

/// Writes the first `count` inodes of a table, the last block first: each block has inodes of old
/// blocks at or before its own place.
fn write_table(
    round: &Round<'_>,
    new: &Geometry,
    (group, state): (GroupNr, &Group),
    count: u32,
) -> Result<(), RepairError> {
    let old = round.geometry();
    let (from, to) = (usize::from(old.inode_size), usize::from(new.inode_size));
    let (per_block, present) = (new.inodes_per_block(), state.inodes(&round.survey.volume.reader));
    for block in (0..count.div_ceil(per_block)).rev() {
        let mut bytes = vec![0; round.block_size()];
        let first = block * per_block;
        let source = state.desc.inode_table + u64::from(old.inode_slot(first).0);
        let source = if first < present { round.block(source)? } else { Vec::new() };
        for (slot, index) in bytes.chunks_exact_mut(to).zip(first..count) {
            let (_, at) = old.inode_slot(index);
            let inode = source.get(at..at + from).filter(|_| index < present);
            slot.iter_mut().zip(inode.unwrap_or_default()).for_each(|(to, from)| *to = *from);
            let ino = new.inode_at(group, index);
            // Others of zeroes were never used.
            if ino.0 < new.first_ino || slot.iter().any(|byte| *byte != 0) {
                seal_inode(slot, new, ino);
            }
        }
        round.put(state.desc.inode_table + u64::from(block), &bytes)?;
    }
    Ok(())
}

/// Gives a group an inode bitmap, if it has none yet.
fn initialize(round: &Round<'_>, group: GroupNr, state: &Group) -> Result<(), RepairError> {
    let geometry = round.geometry();
    if !state.desc.has_flag(geometry, GroupFlags::INODE_UNINIT) {
        return Ok(());
    }
    let mut bits = vec![0; round.block_size()];
    init_inode_bitmap(&mut bits, geometry);
    round.put(state.desc.inode_bitmap, &bits)?;
    round.edit_desc(group, |desc| {
        desc.seal_inode_bitmap(&bits, geometry);
        desc.flags.remove(GroupFlags::INODE_UNINIT);
        desc.itable_unused = geometry.inodes_per_group;
    })
}
