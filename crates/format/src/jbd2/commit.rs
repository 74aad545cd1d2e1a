//! Commit blocks: the end of a transaction.

use super::{BlockHeader, BlockType, ChecksumMode, JournalFormat};
use crate::bytes::{be32, be64, part_mut, put_be32, put_be64};
use crate::checksum::crc32c_with_hole;
use crate::types::Timestamp;

const CHECKSUM_TYPE_OFFSET: usize = 0x0C;
const CHECKSUM_OFFSET: usize = 0x10;
const SEC_OFFSET: usize = 0x30;
const NSEC_OFFSET: usize = 0x38;

/// The version 1 algorithm: CRC-32, big-endian.
const CHECKSUM_TYPE_CRC32: u8 = 1;
const CHECKSUM_SIZE_CRC32: u8 = 4;

/// A commit block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommitBlock {
    /// The transaction.
    pub sequence: u32,
    /// When it was committed.
    pub time: Timestamp,
}

/// The version 1 checksum in a commit block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommitChecksum {
    /// The block declares no checksum.
    Absent,
    /// CRC-32 over the transaction's descriptor and data blocks.
    Crc32(u32),
    /// An unknown algorithm.
    Unknown,
}

impl CommitBlock {
    /// Reads a commit block; `None` if it is no such block.
    pub fn parse(block: &[u8]) -> Option<CommitBlock> {
        let header =
            BlockHeader::parse(block).filter(|header| header.block_type == BlockType::Commit)?;
        let time =
            Timestamp { sec: be64(block, SEC_OFFSET) as i64, nsec: be32(block, NSEC_OFFSET) };
        Some(CommitBlock { sequence: header.sequence, time })
    }

    /// Returns whether the CRC-32C in a commit block is right; `true` if blocks have none.
    pub fn verify(block: &[u8], format: &JournalFormat) -> bool {
        !format.has_crc32c()
            || be32(block, CHECKSUM_OFFSET)
                == crc32c_with_hole(format.seed, block, CHECKSUM_OFFSET, 4)
    }

    /// Returns the version 1 checksum in a commit block.
    pub fn v1_checksum(block: &[u8]) -> CommitChecksum {
        let kind = block.get(CHECKSUM_TYPE_OFFSET).copied().unwrap_or(0);
        let size = block.get(CHECKSUM_TYPE_OFFSET + 1).copied().unwrap_or(0);
        match (kind, size, be32(block, CHECKSUM_OFFSET)) {
            (0, 0, 0) => CommitChecksum::Absent,
            (CHECKSUM_TYPE_CRC32, CHECKSUM_SIZE_CRC32, value) => CommitChecksum::Crc32(value),
            _ => CommitChecksum::Unknown,
        }
    }

    /// Removes the version 1 checksum from a commit block, which declares none then.
    pub fn clear_v1_checksum(block: &mut [u8]) {
        part_mut(block, CHECKSUM_TYPE_OFFSET, CHECKSUM_OFFSET + 4).fill(0);
    }

    /// Writes the block over all of `block`, with its checksum. `v1` is the CRC-32 over the
    /// transaction's descriptor and data blocks, used only by journals with version 1 checksums.
    pub fn encode(&self, block: &mut [u8], format: &JournalFormat, v1: u32) {
        block.fill(0);
        BlockHeader { block_type: BlockType::Commit, sequence: self.sequence }.encode(block);
        put_be64(block, SEC_OFFSET, self.time.sec as u64);
        put_be32(block, NSEC_OFFSET, self.time.nsec);
        if format.checksums == ChecksumMode::V1 {
            let kind = [CHECKSUM_TYPE_CRC32, CHECKSUM_SIZE_CRC32];
            crate::bytes::put_bytes(block, CHECKSUM_TYPE_OFFSET, &kind);
            put_be32(block, CHECKSUM_OFFSET, v1);
        } else if format.has_crc32c() {
            let checksum = crc32c_with_hole(format.seed, block, CHECKSUM_OFFSET, 4);
            put_be32(block, CHECKSUM_OFFSET, checksum);
        }
    }
}
