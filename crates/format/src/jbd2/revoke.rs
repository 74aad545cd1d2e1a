//! Revoke blocks: lists of blocks whose copies in earlier transactions must not be replayed.

use super::{BlockHeader, BlockType, JournalFormat};
use crate::bytes::{be32, be64, put_be32, put_be64};
use crate::error::{Corrupt, Result};
use crate::types::BlockNr;

/// Bytes before the first record: block header and count.
pub(super) const REVOKE_HEADER_SIZE: usize = 16;

const COUNT_OFFSET: usize = 12;

/// The records of a revoke block.
#[derive(Clone, Debug)]
pub struct RevokeRecords<'a> {
    records: &'a [u8],
    size: usize,
}

impl<'a> RevokeRecords<'a> {
    /// Reads the records of a block that is known to be a revoke block.
    ///
    /// # Errors
    /// [`Corrupt`] for a count beyond the block.
    pub fn parse(block: &'a [u8], format: &JournalFormat) -> Result<RevokeRecords<'a>> {
        let count = be32(block, COUNT_OFFSET);
        let end = block.len().saturating_sub(format.tail_size());
        let records = block.get(REVOKE_HEADER_SIZE..count as usize);
        match records.filter(|_| count as usize <= end) {
            Some(records) => Ok(RevokeRecords { records, size: format.revoke_record_size() }),
            None => Err(Corrupt::new("journal revoke block")
                .field("count")
                .found(count)
                .expected(end as u64)),
        }
    }
}

impl Iterator for RevokeRecords<'_> {
    type Item = BlockNr;

    fn next(&mut self) -> Option<BlockNr> {
        let (record, rest) = self.records.split_at_checked(self.size)?;
        self.records = rest;
        let block = if self.size == 8 { be64(record, 0) } else { u64::from(be32(record, 0)) };
        Some(BlockNr(block))
    }
}

/// Writes a revoke block.
#[derive(Debug)]
pub struct RevokeBuilder<'a> {
    block: &'a mut [u8],
    format: JournalFormat,
    next: usize,
}

impl<'a> RevokeBuilder<'a> {
    /// Starts a revoke block of transaction `sequence` in `block`, which is overwritten.
    pub fn new(block: &'a mut [u8], format: &JournalFormat, sequence: u32) -> RevokeBuilder<'a> {
        block.fill(0);
        BlockHeader { block_type: BlockType::Revoke, sequence }.encode(block);
        RevokeBuilder { block, format: *format, next: REVOKE_HEADER_SIZE }
    }

    /// Adds a block; returns `false` if its record does not fit.
    #[must_use]
    pub fn push(&mut self, block: BlockNr) -> bool {
        let end = self.next.saturating_add(self.format.revoke_record_size());
        if end > self.block.len().saturating_sub(self.format.tail_size()) {
            return false;
        }
        if self.format.bit64 {
            put_be64(self.block, self.next, block.0);
        } else {
            put_be32(self.block, self.next, block.0 as u32);
        }
        self.next = end;
        true
    }

    /// Writes the count and the block's checksum.
    pub fn finish(self) {
        put_be32(self.block, COUNT_OFFSET, self.next as u32);
        self.format.seal_tail(self.block);
    }
}
