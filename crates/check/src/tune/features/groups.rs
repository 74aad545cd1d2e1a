//! Groups whose bitmaps and tables are not written yet, which only checksums of descriptors allow.

use crate::repair::{RepairError, Round};
use extant_format::GroupNr;
use extant_format::group_desc::{GroupFlags, init_block_bitmap, init_inode_bitmap};
use std::ops::Range;

/// Writes the bitmaps and tables that flags of descriptors stand for, and removes the flags. Adds
/// the blocks of tables to `unread` that no program reads while the descriptors are as they were.
pub fn initialize(round: &Round<'_>, unread: &mut Vec<Range<u64>>) -> Result<(), RepairError> {
    for group in round.survey.volume.reader.groups() {
        initialize_group(round, group, unread)?;
    }
    Ok(())
}

fn initialize_group(
    round: &Round<'_>,
    group: GroupNr,
    unread: &mut Vec<Range<u64>>,
) -> Result<(), RepairError> {
    let geometry = round.geometry();
    let mut desc = round.desc(group)?;
    let mut bits = vec![0; round.block_size()];
    if desc.has_flag(geometry, GroupFlags::BLOCK_UNINIT) {
        init_block_bitmap(&mut bits, geometry, group, &desc);
        round.put(desc.block_bitmap, &bits)?;
    }
    let is_blank = desc.has_flag(geometry, GroupFlags::INODE_UNINIT);
    if is_blank {
        init_inode_bitmap(&mut bits, geometry);
        round.put(desc.inode_bitmap, &bits)?;
    }
    let all = geometry.inodes_per_group;
    let unused = if is_blank { all } else { desc.itable_unused.min(all) };
    let end = desc.inode_table.saturating_add(geometry.inode_table_blocks().into());
    let (block, offset) = geometry.inode_slot(all.saturating_sub(unused));
    let mut nr = desc.inode_table.saturating_add(block.into());
    if offset > 0 && nr < end {
        let mut bytes = round.block(nr)?;
        bytes.iter_mut().skip(offset).for_each(|byte| *byte = 0);
        round.put(nr, &bytes)?;
        nr = nr.saturating_add(1);
    }
    let zeroes = vec![0; round.block_size()];
    for nr in nr..end {
        round.put(nr, &zeroes)?;
    }
    unread.push(nr..end);
    desc.flags = GroupFlags::empty();
    desc.itable_unused = 0;
    round.edit_desc(group, |old| *old = desc)
}
