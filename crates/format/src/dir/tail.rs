//! The checksum at the end of a linear block: a record that looks unused.

use crate::bytes::{le16, le32, part, put_bytes, put_le32};
use crate::checksum::crc32c_raw;
use crate::error::{Corrupt, Result};

/// Bytes of the tail.
pub const DIR_TAIL_SIZE: usize = 12;

const TAIL_TYPE: u8 = 0xDE;
/// Inode 0, record length 12, name length 0, type 0xDE.
const MARK: [u8; 8] = [0, 0, 0, 0, DIR_TAIL_SIZE as u8, 0, 0, TAIL_TYPE];

/// Writes a tail, without checksum.
pub fn init_tail(block: &mut [u8]) {
    let start = block.len().saturating_sub(DIR_TAIL_SIZE);
    put_bytes(block, start, &MARK);
    put_le32(block, start.saturating_add(MARK.len()), 0);
}

/// Returns whether the block ends with a tail.
pub fn has_tail(block: &[u8]) -> bool {
    let start = block.len().saturating_sub(DIR_TAIL_SIZE);
    part(block, start, start.saturating_add(MARK.len())) == MARK
}

fn compute(block: &[u8], seed: u32) -> u32 {
    crc32c_raw(seed, part(block, 0, block.len().saturating_sub(DIR_TAIL_SIZE)))
}

/// Verifies the checksum of a linear block; `seed` is the inode's.
///
/// # Errors
/// A mismatch, or no tail.
pub fn verify_leaf(block: &[u8], seed: u32) -> Result<()> {
    let error = Corrupt::new("directory block");
    if !has_tail(block) {
        let start = block.len().saturating_sub(DIR_TAIL_SIZE);
        return Err(error
            .field("tail")
            .found(le16(block, start.saturating_add(4)))
            .expected(DIR_TAIL_SIZE as u64));
    }
    let (found, expected) = (le32(block, block.len().saturating_sub(4)), compute(block, seed));
    if found != expected {
        return Err(error.field("checksum").found(found).expected(expected));
    }
    Ok(())
}

/// Writes the checksum of a linear block that has a tail; `seed` is the inode's, the block's number
/// is not used.
pub fn seal_dir_leaf(block: &mut [u8], _nr: u64, seed: u32) {
    if has_tail(block) {
        let checksum = compute(block, seed);
        let end = block.len();
        put_le32(block, end.saturating_sub(4), checksum);
    }
}
