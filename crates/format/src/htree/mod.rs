//! Hash trees of directories: root and interior nodes.
//!
//! An entry points to the directory block with the names from its hash on. Entry 0 has no hash of
//! its own: it covers all names before entry 1. Bit 0 of an entry's hash marks a collision that
//! continues from the previous block: names with this hash begin there.
//!
//! # Invariants
//! An opened node has the limit that follows from the block size, and a count within it. Callers
//! that know the directory's size must check block numbers.

mod hash;
mod node;
#[cfg(test)]
mod tests;

pub use hash::{HashVersion, dirhash, hash_bytes};
pub use node::{Node, NodeMut, RootInfo};

use crate::bytes::{le16, le32, part, part_mut, put_le32};
use crate::checksum::{crc32c_le32, crc32c_raw, crc32c_zeros};
use crate::dir::DirFormat;
use crate::error::{Corrupt, Result};

/// Offset of the entries in the root.
const ROOT_ENTRIES: usize = 0x20;
/// Offset of the entries in an interior node.
const INTERIOR_ENTRIES: usize = 8;
const ENTRY_SIZE: usize = 8;
const TAIL_SIZE: usize = 8;
/// Mask of the significant bits of an entry's block number.
const BLOCK_MASK: u32 = 0x0FFF_FFFF;

const STRUCTURE: &str = "directory index";

/// Kind of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The directory's block 0.
    Root,
    /// A node below the root.
    Interior,
}

impl Kind {
    const fn entries(self) -> usize {
        match self {
            Kind::Root => ROOT_ENTRIES,
            Kind::Interior => INTERIOR_ENTRIES,
        }
    }

    /// Returns the offset of the number of entries.
    const fn count(self) -> usize {
        self.entries().saturating_add(2)
    }

    /// Returns the number of entries that a node holds, entry 0 included.
    pub const fn limit(self, format: &DirFormat) -> u16 {
        let tail = if format.metadata_csum { TAIL_SIZE } else { 0 };
        let room = (format.block_size as usize).saturating_sub(self.entries().saturating_add(tail));
        (room / ENTRY_SIZE) as u16
    }
}

/// Returns the maximum of `indirect_levels`: 1, or 2 with `largedir`.
pub const fn max_levels(format: &DirFormat) -> u8 {
    if format.largedir { 2 } else { 1 }
}

/// Returns whether a block looks like an interior node: one unused record of the whole block. A
/// leaf never does where blocks have checksums.
pub fn is_interior(block: &[u8], format: &DirFormat) -> bool {
    let whole = format.encode_rec_len(block.len());
    let raw = le16(block, 4);
    le32(block, 0) == 0 && le16(block, 6) == 0 && (raw == whole || block.len() == 65536 && raw == 0)
}

/// Zeroes the entries of a node that are not in use, which have no checksum; all but the first one
/// if their number is impossible.
pub fn clear_unused(block: &mut [u8], kind: Kind, format: &DirFormat) {
    let count = le16(block, kind.count());
    let used = if count > kind.limit(format) { 1 } else { count.max(1) };
    let tail = if format.metadata_csum { TAIL_SIZE } else { 0 };
    let start = after_entries(kind.entries(), used.into());
    let end = block.len().saturating_sub(tail);
    part_mut(block, start, end).fill(0);
}

/// Returns the kind of a node by its first record. The block must be a node.
fn kind_of(block: &[u8]) -> Kind {
    if le32(block, 0) == 0 { Kind::Interior } else { Kind::Root }
}

/// Returns the offset after this many entries, the first of which begins at `first`.
const fn after_entries(first: usize, entries: usize) -> usize {
    entries.saturating_mul(ENTRY_SIZE).saturating_add(first)
}

/// Offsets of count, limit and tail of a node.
struct Span {
    covered: usize,
    tail: usize,
}

fn span(block: &[u8]) -> Option<Span> {
    let first = kind_of(block).entries();
    let (limit, count) =
        (usize::from(le16(block, first)), usize::from(le16(block, first.saturating_add(2))));
    let tail = after_entries(first, limit);
    (count <= limit && tail.saturating_add(TAIL_SIZE) <= block.len())
        .then_some(Span { covered: after_entries(first, count), tail })
}

fn compute(block: &[u8], span: &Span, seed: u32) -> u32 {
    let seed = crc32c_raw(seed, part(block, 0, span.covered));
    crc32c_zeros(crc32c_le32(seed, le32(block, span.tail)), 4)
}

/// Verifies the checksum of a root or interior node; `seed` is the inode's.
///
/// # Errors
/// [`Corrupt`] for a mismatch, or if the limit leaves no space for a checksum.
pub fn verify_htree(block: &[u8], seed: u32) -> Result<()> {
    let error = Corrupt::new(STRUCTURE);
    let Some(span) = span(block) else { return Err(error.field("limit")) };
    let (found, expected) = (le32(block, span.tail.saturating_add(4)), compute(block, &span, seed));
    if found != expected {
        return Err(error.field("checksum").found(found).expected(expected));
    }
    Ok(())
}

/// Writes the checksum of a root or interior node; `seed` is the inode's, the block's number is not
/// used.
pub fn seal_htree(block: &mut [u8], _nr: u64, seed: u32) {
    if let Some(span) = span(block) {
        let checksum = compute(block, &span, seed);
        put_le32(block, span.tail.saturating_add(4), checksum);
    }
}
