//! The journal's structures. All numbers are big-endian, except in fast commits.
//!
//! [`JournalFormat`] describes the blocks of one journal: the kind of checksums, the width of block
//! numbers. It is made from the [`JournalSuperblock`]; all other parsers and builders of this
//! module take it.

mod commit;
mod descriptor;
mod fast_commit;
mod revoke;
mod superblock;

pub use commit::{CommitBlock, CommitChecksum};
pub use descriptor::{DescriptorBuilder, Tag, TagFlags, Tags, renew_checksums};
pub use fast_commit::{FastCommitTag, FastCommitTags, FastCommitTail, FcRange};
pub use revoke::{RevokeBuilder, RevokeRecords};
pub use superblock::{
    DEFAULT_FAST_COMMIT_BLOCKS, JOURNAL_SUPERBLOCK_SIZE, JournalCompat, JournalIncompat,
    JournalSuperblock, MAX_JOURNAL_BLOCKS, MIN_JOURNAL_BLOCKS, RawJournalSuperblock,
    default_journal_blocks, external_journal_block,
};

use crate::bytes::{be32, put_be32};
use crate::checksum::{CRC32C_INIT, crc32c_raw, crc32c_with_hole};

/// The magic number of every block that the journal itself writes.
pub const JBD2_MAGIC: u32 = 0xC03B_3998;

/// Bytes of a block header.
pub const HEADER_SIZE: usize = 12;

/// Type of a journal block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockType {
    /// A list of the blocks that follow it.
    Descriptor,
    /// The end of a transaction.
    Commit,
    /// Superblock of version 1, without features.
    SuperblockV1,
    /// Superblock of version 2.
    SuperblockV2,
    /// A list of blocks that must not be replayed.
    Revoke,
    /// None of these.
    Other(u32),
}

impl BlockType {
    /// From the header's number.
    pub const fn from_raw(number: u32) -> BlockType {
        match number {
            1 => BlockType::Descriptor,
            2 => BlockType::Commit,
            3 => BlockType::SuperblockV1,
            4 => BlockType::SuperblockV2,
            5 => BlockType::Revoke,
            other => BlockType::Other(other),
        }
    }

    /// Returns the header's number.
    pub const fn to_raw(self) -> u32 {
        match self {
            BlockType::Descriptor => 1,
            BlockType::Commit => 2,
            BlockType::SuperblockV1 => 3,
            BlockType::SuperblockV2 => 4,
            BlockType::Revoke => 5,
            BlockType::Other(other) => other,
        }
    }
}

/// The header of every journal block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader {
    /// The type of the block.
    pub block_type: BlockType,
    /// The transaction that it belongs to.
    pub sequence: u32,
}

impl BlockHeader {
    /// Reads a header; `None` if the magic is another.
    pub fn parse(block: &[u8]) -> Option<BlockHeader> {
        if block.len() < HEADER_SIZE || be32(block, 0) != JBD2_MAGIC {
            return None;
        }
        Some(BlockHeader {
            block_type: BlockType::from_raw(be32(block, 4)),
            sequence: be32(block, 8),
        })
    }

    /// Writes the header.
    pub fn encode(&self, block: &mut [u8]) {
        put_be32(block, 0, JBD2_MAGIC);
        put_be32(block, 4, self.block_type.to_raw());
        put_be32(block, 8, self.sequence);
    }
}

/// Kind of a journal's checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ChecksumMode {
    /// None.
    #[default]
    None,
    /// One CRC-32 per transaction, in the commit block.
    V1,
    /// CRC-32C, 16 bits of it in each tag.
    V2,
    /// CRC-32C, all of it in each tag.
    V3,
}

/// Format of a journal's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalFormat {
    /// Bytes of a block.
    pub block_size: u32,
    /// Kind of its checksums.
    pub checksums: ChecksumMode,
    /// Whether block numbers have 64 bits.
    pub bit64: bool,
    /// The journal's UUID.
    pub uuid: [u8; 16],
    /// The seed of checksums of versions 2 and 3.
    pub seed: u32,
}

/// Bytes of the UUID that follows the first tag of a descriptor block.
const TAG_UUID_SIZE: usize = 16;

impl JournalFormat {
    /// A format with the seed that follows from the UUID.
    pub fn new(
        block_size: u32,
        checksums: ChecksumMode,
        bit64: bool,
        uuid: [u8; 16],
    ) -> JournalFormat {
        let seed = crc32c_raw(CRC32C_INIT, &uuid);
        JournalFormat { block_size, checksums, bit64, uuid, seed }
    }

    /// Returns whether blocks have CRC-32C checksums (version 2 or 3).
    pub const fn has_crc32c(&self) -> bool {
        matches!(self.checksums, ChecksumMode::V2 | ChecksumMode::V3)
    }

    /// Returns the number of bytes of the checksum at the end of descriptor and revoke blocks.
    pub const fn tail_size(&self) -> usize {
        if self.has_crc32c() { 4 } else { 0 }
    }

    /// Returns the number of bytes of a tag, without the UUID.
    pub const fn tag_size(&self) -> usize {
        match (self.checksums, self.bit64) {
            (ChecksumMode::V3, _) => 16,
            (ChecksumMode::V2, true) => 14,
            (ChecksumMode::V2, false) => 10,
            (_, true) => 12,
            (_, false) => 8,
        }
    }

    /// Returns the capacity of a descriptor block in tags.
    pub const fn tags_per_block(&self) -> usize {
        let used = (HEADER_SIZE + TAG_UUID_SIZE).saturating_add(self.tail_size());
        capacity(self.block_size, used, self.tag_size())
    }

    /// Returns the number of bytes of a revoke record.
    pub const fn revoke_record_size(&self) -> usize {
        if self.bit64 { 8 } else { 4 }
    }

    /// Returns the capacity of a revoke block in records.
    pub const fn revokes_per_block(&self) -> usize {
        let used = revoke::REVOKE_HEADER_SIZE.saturating_add(self.tail_size());
        capacity(self.block_size, used, self.revoke_record_size())
    }

    /// Returns the checksum that a tag carries for a block's bytes as they are in the log (after
    /// escaping); 0 if tags have none.
    pub fn tag_checksum(&self, sequence: u32, logged: &[u8]) -> u32 {
        let full = || crc32c_raw(crc32c_raw(self.seed, &sequence.to_be_bytes()), logged);
        match self.checksums {
            ChecksumMode::V3 => full(),
            ChecksumMode::V2 => full() & 0xFFFF,
            ChecksumMode::None | ChecksumMode::V1 => 0,
        }
    }

    /// Returns whether a logged block's bytes (after escaping) are those that its tag was made for.
    pub fn tag_matches(&self, tag: &Tag, sequence: u32, logged: &[u8]) -> bool {
        tag.checksum == self.tag_checksum(sequence, logged)
    }

    fn tail_offset(&self, block: &[u8]) -> usize {
        block.len().saturating_sub(4)
    }

    /// Returns whether the checksum at the end of a descriptor or revoke block is right; always
    /// where there is none.
    pub fn verify_tail(&self, block: &[u8]) -> bool {
        let tail = self.tail_offset(block);
        !self.has_crc32c() || be32(block, tail) == crc32c_with_hole(self.seed, block, tail, 4)
    }

    /// Writes the checksum at the end of a descriptor or revoke block.
    pub fn seal_tail(&self, block: &mut [u8]) {
        if self.has_crc32c() {
            let tail = self.tail_offset(block);
            let checksum = crc32c_with_hole(self.seed, block, tail, 4);
            put_be32(block, tail, checksum);
        }
    }
}

/// Returns whether a block must be escaped before it goes into the log: it begins like a journal
/// block.
pub fn needs_escape(block: &[u8]) -> bool {
    block.len() >= 4 && be32(block, 0) == JBD2_MAGIC
}

/// Escapes a copy of a block if needed, and returns whether it did; the tag must then have
/// [`TagFlags::ESCAPE`].
pub fn escape(block: &mut [u8]) -> bool {
    let needed = needs_escape(block);
    if needed {
        put_be32(block, 0, 0);
    }
    needed
}

/// Restores the beginning of a block whose tag has [`TagFlags::ESCAPE`].
pub fn unescape(block: &mut [u8]) {
    put_be32(block, 0, JBD2_MAGIC);
}

/// Returns whether transaction `a` is `b` or later; numbers wrap around.
pub const fn tid_geq(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 >= 0
}

/// Returns whether transaction `a` is later than `b`; numbers wrap around.
pub const fn tid_gt(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

/// Returns the number of records that fit into a block of which `used` bytes have other content.
const fn capacity(block_size: u32, used: usize, record: usize) -> usize {
    match (block_size as usize).saturating_sub(used).checked_div(record) {
        Some(records) => records,
        None => 0,
    }
}

#[cfg(test)]
mod tests;
