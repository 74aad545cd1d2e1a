//! Attributes in a block, which several inodes may share. Offsets of values count from the block's
//! start.

use super::hash::{block_hash, hash_in_block};
use super::region::{decode, encode, space};
use super::{Entry, XATTR_MAGIC, XATTR_NAME_MAX};
use crate::bytes::{le32, put_le32};
use crate::checksum::{block_seed, crc32c_with_hole};
use crate::error::{Corrupt, Result};

const REFCOUNT: usize = 4;
const BLOCKS: usize = 8;
const HASH: usize = 12;
const CHECKSUM: usize = 16;
const HEADER: usize = 32;

const STRUCTURE: &str = "attribute block";

/// The header of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader {
    /// Number of inodes that use the block.
    pub refcount: u32,
    /// Hash of all entries; 0 if the block is not to be shared.
    pub hash: u32,
}

fn decode_header(block: &[u8]) -> Result<BlockHeader> {
    let fail = |field, found: u32, expected: u32| {
        Err(Corrupt::new(STRUCTURE).field(field).found(found).expected(expected))
    };
    let (magic, blocks) = (le32(block, 0), le32(block, BLOCKS));
    if block.len() < HEADER || magic != XATTR_MAGIC {
        return fail("magic", magic, XATTR_MAGIC);
    }
    if blocks != 1 {
        return fail("blocks", blocks, 1);
    }
    let header = BlockHeader { refcount: le32(block, REFCOUNT), hash: le32(block, HASH) };
    if header.refcount == 0 {
        return fail("reference count", 0, 1);
    }
    Ok(header)
}

/// Returns whether a block begins like one of attributes.
pub fn is_xattr_block(block: &[u8]) -> bool {
    block.len() >= HEADER && le32(block, 0) == XATTR_MAGIC
}

/// Reads a block of attributes without verifying its checksum; see [`verify_xattr_block`].
///
/// # Errors
/// [`Corrupt`] for an invalid header or entry.
pub fn decode_block(block: &[u8]) -> Result<(BlockHeader, Vec<Entry>)> {
    let header = decode_header(block)?;
    Ok((header, decode(block, HEADER, 0)?))
}

/// Returns the number of bytes that these attributes take in a block.
pub fn block_space(entries: &[Entry]) -> usize {
    space(entries).saturating_add(HEADER)
}

/// Writes a block of attributes, sorted, with their hashes but without checksum. Returns `false` if
/// they do not fit, and then leaves the block unchanged.
#[must_use]
pub fn encode_block(entries: &[Entry], refcount: u32, block: &mut [u8]) -> bool {
    let names_fit = entries.iter().all(|entry| entry.name.len() <= XATTR_NAME_MAX);
    if !names_fit || block_space(entries) > block.len() {
        return false;
    }
    let mut sorted: Vec<_> = entries.iter().map(|entry| (entry, hash_in_block(entry))).collect();
    sorted.sort_by(|(one, _), (other, _)| one.key().cmp(&other.key()));
    block.fill(0);
    put_le32(block, 0, XATTR_MAGIC);
    put_le32(block, REFCOUNT, refcount);
    put_le32(block, BLOCKS, 1);
    put_le32(block, HASH, block_hash(sorted.iter().map(|(_, hash)| *hash)));
    encode(block, HEADER, 0, sorted);
    true
}

/// Returns the number of inodes that use a block.
pub fn refcount(block: &[u8]) -> u32 {
    le32(block, REFCOUNT)
}

/// Sets the number of inodes that use a block.
pub fn set_refcount(block: &mut [u8], count: u32) {
    put_le32(block, REFCOUNT, count);
}

fn compute(block: &[u8], nr: u64, seed: u32) -> u32 {
    crc32c_with_hole(block_seed(seed, nr), block, CHECKSUM, 4)
}

/// Verifies the checksum of block `nr`; `seed` is the file system's.
///
/// # Errors
/// A mismatch.
pub fn verify_xattr_block(block: &[u8], nr: u64, seed: u32) -> Result<()> {
    let (found, expected) = (le32(block, CHECKSUM), compute(block, nr, seed));
    if found != expected {
        let error = Corrupt::new(STRUCTURE).field("checksum").at_block(nr);
        return Err(error.found(found).expected(expected));
    }
    Ok(())
}

/// Writes the checksum of block `nr`; `seed` is the file system's.
pub fn seal_xattr_block(block: &mut [u8], nr: u64, seed: u32) {
    let checksum = compute(block, nr, seed);
    put_le32(block, CHECKSUM, checksum);
}
