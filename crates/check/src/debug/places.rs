//! Places of metadata that belongs to no inode.

use super::{InspectError, Inspector};
use extant_format::{BlockNr, GroupNr, Incompat};

/// Metadata in a block that belongs to no inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataPlace {
    /// The superblock, or a copy of it.
    Superblock,
    /// Group descriptors.
    Descriptors,
    /// Blocks that are kept for further descriptors.
    ReservedDescriptors,
    /// The block bitmap of a group.
    BlockBitmap,
    /// The inode bitmap of a group.
    InodeBitmap,
    /// The inode table of a group.
    InodeTable,
    /// The block of multi-mount protection.
    Mmp,
}

impl MetadataPlace {
    /// Returns the name of the metadata.
    pub fn name(self) -> &'static str {
        match self {
            MetadataPlace::Superblock => "superblock",
            MetadataPlace::Descriptors => "group-descriptors",
            MetadataPlace::ReservedDescriptors => "reserved-group-descriptors",
            MetadataPlace::BlockBitmap => "block-bitmap",
            MetadataPlace::InodeBitmap => "inode-bitmap",
            MetadataPlace::InodeTable => "inode-table",
            MetadataPlace::Mmp => "multi-mount-protection",
        }
    }
}

impl Inspector {
    /// Returns the metadata in a block with the group that it belongs to, and for an inode table
    /// the first inode of the block.
    ///
    /// # Errors
    /// There is no such block.
    pub fn metadata_in(
        &self,
        block: u64,
    ) -> Result<Vec<(MetadataPlace, u32, Option<u32>)>, InspectError> {
        let geometry = &self.geometry;
        if block >= geometry.blocks_count {
            let last = geometry.blocks_count.saturating_sub(1);
            let message = format!("block {block} does not exist: the last is {last}");
            return Err(InspectError::new(message));
        }
        let mut found = Vec::new();
        if block < u64::from(geometry.first_data_block) {
            return Ok(found);
        }
        if geometry.incompat(Incompat::MMP) && self.superblock.mmp_block().0 == block {
            found.push((MetadataPlace::Mmp, 0, None));
        }
        if let Some(group) = geometry.group_of_block(BlockNr(block)) {
            let base = geometry.base_meta(group);
            if base.superblock == Some(BlockNr(block)) {
                found.push((MetadataPlace::Superblock, group.0, None));
            }
            if base.descriptors.contains(&block) {
                found.push((MetadataPlace::Descriptors, group.0, None));
            }
            if base.reserved.contains(&block) {
                found.push((MetadataPlace::ReservedDescriptors, group.0, None));
            }
        }
        let table = u64::from(geometry.inode_table_blocks());
        for (group, state) in (0u32..).zip(&self.groups) {
            let desc = &state.desc;
            if desc.block_bitmap == block {
                found.push((MetadataPlace::BlockBitmap, group, None));
            }
            if desc.inode_bitmap == block {
                found.push((MetadataPlace::InodeBitmap, group, None));
            }
            let within = block.checked_sub(desc.inode_table).filter(|within| *within < table);
            if let Some(within) = within {
                let index = (within as u32).saturating_mul(geometry.inodes_per_block());
                let first = geometry.inode_at(GroupNr(group), index).0;
                found.push((MetadataPlace::InodeTable, group, Some(first)));
            }
        }
        Ok(found)
    }
}
