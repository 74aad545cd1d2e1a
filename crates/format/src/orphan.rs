//! Blocks of the orphan file: slots that each hold the number of an orphan inode, or 0.
//!
//! # Invariants
//! The checksum covers the slots and the block's own number, not the magic behind them.

use crate::bytes::{le32, part, put_le32};
use crate::checksum::{block_seed, crc32c_raw};
use crate::error::{Corrupt, Result};

/// The magic number at the end of a block.
pub const ORPHAN_MAGIC: u32 = 0x0B10_CA04;

const TAIL_SIZE: usize = 8;
const SLOT_SIZE: usize = 4;

/// Returns the number of slots of a block of this many bytes: 1022 at 4 KiB.
pub const fn slots(block_size: usize) -> usize {
    block_size.saturating_sub(TAIL_SIZE) / SLOT_SIZE
}

/// Returns the size of a new file system's orphan file in blocks: 32 in small file systems, 512 at
/// most. `cluster_ratio` is the number of blocks per cluster.
pub fn default_blocks(blocks_count: u64, cluster_ratio: u32) -> u64 {
    let blocks = (blocks_count / 4096).clamp(32, 512);
    blocks.next_multiple_of(u64::from(cluster_ratio.max(1)))
}

fn tail(block: &[u8]) -> usize {
    block.len().saturating_sub(TAIL_SIZE)
}

/// Returns the inode in a slot, 0 if there is none or the slot is past the end.
pub fn get(block: &[u8], slot: usize) -> u32 {
    if slot < slots(block.len()) { le32(block, slot.saturating_mul(SLOT_SIZE)) } else { 0 }
}

/// Stores an inode, or 0, in a slot; writes past the end are ignored.
pub fn put(block: &mut [u8], slot: usize, ino: u32) {
    if slot < slots(block.len()) {
        put_le32(block, slot.saturating_mul(SLOT_SIZE), ino);
    }
}

/// Returns the number of empty slots.
pub fn count_zero(block: &[u8]) -> usize {
    let (slots, _) = part(block, 0, tail(block)).as_chunks::<SLOT_SIZE>();
    slots.iter().filter(|slot| **slot == [0; SLOT_SIZE]).count()
}

/// Returns the slots that hold an inode, with its number.
pub fn used(block: &[u8]) -> impl Iterator<Item = (usize, u32)> + '_ {
    (0..slots(block.len())).map(|slot| (slot, get(block, slot))).filter(|(_, ino)| *ino != 0)
}

/// Makes a block without orphans; its checksum is not written.
pub fn init(block: &mut [u8]) {
    block.fill(0);
    put_le32(block, tail(block), ORPHAN_MAGIC);
}

fn compute(block: &[u8], nr: u64, seed: u32) -> u32 {
    crc32c_raw(block_seed(seed, nr), part(block, 0, slots(block.len()).saturating_mul(SLOT_SIZE)))
}

/// Verifies magic and, with `metadata_csum`, the checksum; `seed` is that of the orphan file's
/// inode.
///
/// # Errors
/// [`Corrupt`] with the wrong field.
pub fn verify(block: &[u8], nr: u64, seed: u32, metadata_csum: bool) -> Result<()> {
    let error = || Corrupt::new("orphan file block").at_block(nr);
    let magic = le32(block, tail(block));
    if block.len() < TAIL_SIZE || magic != ORPHAN_MAGIC {
        return Err(error().field("magic").found(magic).expected(ORPHAN_MAGIC));
    }
    let (found, expected) = (le32(block, tail(block).saturating_add(4)), compute(block, nr, seed));
    if metadata_csum && found != expected {
        return Err(error().field("checksum").found(found).expected(expected));
    }
    Ok(())
}

/// Writes a block's checksum; `seed` is that of the orphan file's inode.
pub fn seal_orphan_block(block: &mut [u8], nr: u64, seed: u32) {
    let checksum = compute(block, nr, seed);
    put_le32(block, tail(block).saturating_add(4), checksum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_kept_and_sealed() {
        let mut block = vec![0xFFu8; 1024];
        init(&mut block);
        assert_eq!((slots(1024), slots(4096), count_zero(&block)), (254, 1022, 254));
        put(&mut block, 253, 77);
        put(&mut block, 254, 88);
        assert_eq!(used(&block).collect::<Vec<_>>(), [(253, 77)]);
        assert_eq!(count_zero(&block), 253);
        seal_orphan_block(&mut block, 5, 1);
        assert!(verify(&block, 5, 1, true).is_ok());
        assert!(verify(&block, 6, 1, true).is_err());
        assert!(verify(&block, 6, 1, false).is_ok());
        assert!(verify(&[], 6, 1, true).is_err());
    }

    #[test]
    fn default_sizes() {
        assert_eq!(default_blocks(1000, 1), 32);
        assert_eq!(default_blocks(200_000, 1), 48);
        assert_eq!(default_blocks(1 << 30, 1), 512);
        assert_eq!(default_blocks(1000, 64), 64);
    }
}
