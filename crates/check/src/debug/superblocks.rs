//! The superblock and its copies.

use super::{ChecksumState, Inspector};
use extant_blocks::BlockDevice;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_format::{GroupNr, Superblock};
use std::ops::ControlFlow;

/// A superblock as it lies on the device.
#[derive(Clone, Debug)]
pub struct SuperblockCopy {
    /// The group that begins with it.
    pub group: u32,
    /// Its block.
    pub block: u64,
    /// The superblock, or the reason why there is none.
    pub superblock: Result<Superblock, String>,
    /// Verdict on the checksum; `None` without a superblock.
    pub checksum: Option<ChecksumState>,
}

impl Inspector {
    /// Hands the primary superblock, as it lies on the device, and its copies to `sink`, until it
    /// breaks. Copies behind the end of the device are left out.
    pub fn superblocks(&self, sink: &mut dyn FnMut(SuperblockCopy) -> ControlFlow<()>) {
        for group in self.geometry.super_groups() {
            let Some(block) = self.geometry.super_block_of(group) else { continue };
            let size = u64::from(self.geometry.block_size);
            let offset = match group.0 {
                0 => SUPERBLOCK_OFFSET,
                _ => block.0.saturating_mul(size),
            };
            if offset >= self.raw.len() {
                break;
            }
            let found = self.superblock_at(group, block.0, offset);
            if sink(found).is_break() {
                break;
            }
        }
    }

    fn superblock_at(&self, group: GroupNr, block: u64, offset: u64) -> SuperblockCopy {
        let superblock = read(&*self.raw, offset);
        let checksum = superblock
            .as_ref()
            .ok()
            .map(|sb| ChecksumState::of(sb.has_checksum(), || sb.verify_checksum().is_ok()));
        SuperblockCopy { group: group.0, block, superblock, checksum }
    }
}

fn read(device: &dyn BlockDevice, offset: u64) -> Result<Superblock, String> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_exact_at(&mut bytes, offset).map_err(|error| error.to_string())?;
    Superblock::parse_unverified(&bytes).map_err(|error| error.to_string())
}
