//! Reads of blocks and bounds by the device's length.

use extant_blocks::BlockDevice;
use extant_format::{Geometry, GroupNr};

/// A device with the geometry of its file system.
pub struct Reader<'a> {
    device: &'a dyn BlockDevice,
    pub geometry: Geometry,
}

impl<'a> Reader<'a> {
    pub fn new(device: &'a dyn BlockDevice, geometry: Geometry) -> Reader<'a> {
        Reader { device, geometry }
    }

    /// Returns the number of whole blocks of the device.
    pub fn device_blocks(&self) -> u64 {
        self.device.len() >> self.geometry.block_bits
    }

    /// Returns a buffer of one block.
    pub fn buffer(&self) -> Vec<u8> {
        vec![0; self.geometry.block_size as usize]
    }

    /// Fills `buffer` from the start of `block`. Returns whether the read succeeded.
    pub fn read(&self, block: u64, buffer: &mut [u8]) -> bool {
        let offset = block.checked_mul(u64::from(self.geometry.block_size));
        offset.is_some_and(|offset| self.device.read_exact_at(buffer, offset).is_ok())
    }

    /// Returns the content of a block; `None` if it cannot be read.
    pub fn block(&self, block: u64) -> Option<Vec<u8>> {
        let mut buffer = self.buffer();
        self.read(block, &mut buffer).then_some(buffer)
    }

    /// Returns whether the group begins on the device.
    pub fn begins_on_device(&self, group: GroupNr) -> bool {
        self.geometry.first_block_of_group(group).0 < self.device_blocks()
    }

    /// Returns the number of groups that begin on the device.
    pub fn group_count(&self) -> usize {
        let blocks = self.device_blocks().saturating_sub(self.geometry.first_data_block.into());
        let groups = blocks.div_ceil(u64::from(self.geometry.blocks_per_group.max(1)));
        groups.min(self.geometry.groups_count.into()) as usize
    }

    /// Returns the groups that begin on the device.
    pub fn groups(&self) -> impl Iterator<Item = GroupNr> + use<> {
        (0..self.group_count() as u32).map(GroupNr)
    }
}
