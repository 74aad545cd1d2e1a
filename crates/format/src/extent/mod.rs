//! Extent trees: nodes in the inode's `i_block` area and in blocks.
//!
//! # Invariants
//! A parsed [`Node`] has a header that fits its bytes and entries in ascending order without
//! overlap. Callers that have the geometry must check physical blocks: see
//! [`Leaf::check_physical`].

mod entry;
mod node;
mod node_mut;
#[cfg(test)]
mod tests;

pub use entry::{Index, Leaf, MAX_UNWRITTEN_LEN, MAX_WRITTEN_LEN};
pub use node::{Header, Node};
pub use node_mut::NodeMut;

use crate::bytes::{le16, le32, part, put_le32};
use crate::checksum::crc32c_raw;

/// The magic number of a node.
pub const EXTENT_MAGIC: u16 = 0xF30A;

/// Maximum height of a tree: index levels above the leaves.
pub const MAX_DEPTH: u16 = 5;

/// The highest logical block that a file may have.
pub const MAX_LOGICAL: u32 = 0xFFFF_FFFE;

/// Bytes of the root in the inode.
pub const ROOT_SIZE: usize = 60;

const HEADER_SIZE: usize = 12;
const ENTRY_SIZE: usize = 12;
const TAIL_SIZE: usize = 4;

/// Returns the number of entries that a node of this many bytes holds: 4 in the root, 340 in a
/// block of 4 KiB.
pub const fn capacity(bytes: usize) -> u16 {
    let entries = bytes.saturating_sub(HEADER_SIZE) / ENTRY_SIZE;
    if entries > u16::MAX as usize { u16::MAX } else { entries as u16 }
}

/// Returns the offset after the last of this many entries.
const fn entries_end(entries: usize) -> usize {
    entries.saturating_mul(ENTRY_SIZE).saturating_add(HEADER_SIZE)
}

/// Returns the offset of an extent block's checksum: after the last entry slot.
fn tail_offset(block: &[u8]) -> Option<usize> {
    let offset = entries_end(usize::from(le16(block, 4)));
    (offset.saturating_add(TAIL_SIZE) <= block.len()).then_some(offset)
}

/// Returns whether the checksum of an extent block is right; `seed` is the inode's.
pub fn verify_extent_block(block: &[u8], seed: u32) -> bool {
    tail_offset(block)
        .is_some_and(|tail| le32(block, tail) == crc32c_raw(seed, part(block, 0, tail)))
}

/// Writes the checksum of an extent block; `seed` is the inode's, the block's number is not used.
pub fn seal_extent_block(block: &mut [u8], _nr: u64, seed: u32) {
    if let Some(tail) = tail_offset(block) {
        let checksum = crc32c_raw(seed, part(block, 0, tail));
        put_le32(block, tail, checksum);
    }
}
