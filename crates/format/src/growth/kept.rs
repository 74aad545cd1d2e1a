//! The blocks that the resize inode keeps for further descriptors, as its lists tell them.
//!
//! The double-indirect block of the inode lists the kept blocks behind the primary descriptors.
//! Each of these lists its copies, at the same distance from the start of each group with a copy of
//! the superblock. For example, with descriptors in block 1 and block 2 kept, entry 1 of the
//! inode's block is 2, and block 2 lists 32770, 98306 and so on.

use super::GrowthError;
use crate::geometry::Geometry;
use crate::indirect::{pointers_per_block, put_pointer};
use crate::types::GroupNr;
use std::ops::Range;

/// The lists of a geometry's kept blocks.
#[derive(Clone, Debug)]
pub struct KeptBlocks {
    geometry: Geometry,
    copies: Vec<GroupNr>,
}

impl KeptBlocks {
    /// The lists of a file system with a resize inode.
    pub fn of(geometry: &Geometry) -> KeptBlocks {
        let copies = geometry.super_groups().skip(1).collect();
        KeptBlocks { geometry: *geometry, copies }
    }

    /// Checks that a block can list all copies.
    ///
    /// # Errors
    /// [`GrowthError::Copies`] if there are too many.
    pub fn check(&self) -> Result<(), GrowthError> {
        if self.copies.len() > pointers_per_block(self.geometry.block_size) as usize {
            return Err(GrowthError::Copies);
        }
        Ok(())
    }

    /// Returns the kept blocks behind the primary descriptors.
    pub fn places(&self) -> Range<u64> {
        self.geometry.base_meta(GroupNr(0)).reserved
    }

    /// Returns whether the kept blocks of another size list other copies.
    pub fn has_other_copies(&self, other: &KeptBlocks) -> bool {
        self.copies != other.copies
    }

    /// Returns the content of the inode's double-indirect block.
    pub fn list(&self) -> Vec<u8> {
        let mut list = vec![0; self.geometry.block_size as usize];
        let per_block = pointers_per_block(self.geometry.block_size);
        for (index, place) in (self.geometry.desc_blocks..).zip(self.places()) {
            put_pointer(&mut list, (index % per_block) as usize, place as u32);
        }
        list
    }

    /// Returns the content of a kept block behind the primary descriptors.
    pub fn copies_of(&self, place: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.geometry.block_size as usize];
        let within = place - u64::from(self.geometry.first_data_block);
        for (slot, group) in self.copies.iter().enumerate() {
            let copy = self.geometry.first_block_of_group(*group).0 + within;
            put_pointer(&mut bytes, slot, copy as u32);
        }
        bytes
    }

    /// Returns the inode's block count, in sectors of 512 bytes.
    pub fn sectors(&self) -> u64 {
        let places = self.places();
        let blocks = 1 + (places.end - places.start) * (1 + self.copies.len() as u64);
        let ratio = u64::from(self.geometry.cluster_ratio());
        blocks * ratio * u64::from(self.geometry.sectors_per_block())
    }
}
