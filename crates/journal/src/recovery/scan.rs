//! The first pass: finds the transactions in the log.
//!
//! # Invariants
//! Each step of [`Scanner`] consumes some of `left`, the log's blocks that were not visited; the
//! scan ends when none is left.

use super::{Damage, Dropped};
use crate::error::Result;
use crate::log::Log;
use extant_format::Corrupt;
use extant_format::checksum::crc32_be;
use extant_format::jbd2::{
    BlockHeader, BlockType, ChecksumMode, CommitBlock, CommitChecksum, JournalFormat, Tag,
    TagFlags, Tags,
};
use extant_format::types::Timestamp;

/// A copy in the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    /// Its home block.
    pub block: u64,
    /// Its position in the log.
    pub at: u32,
    /// Its transaction.
    pub sequence: u32,
    pub checksum: u32,
    pub escaped: bool,
}

impl Copy {
    fn new(tag: &Tag, at: u32, sequence: u32) -> Copy {
        let escaped = tag.flags.contains(TagFlags::ESCAPE);
        Copy { block: tag.block.0, at, sequence, checksum: tag.checksum, escaped }
    }
}

/// A revoke block.
#[derive(Clone, Copy, Debug)]
pub(super) struct RevokeAt {
    pub at: u32,
    pub sequence: u32,
}

/// A committed transaction: the ends of its parts in the lists of [`Found`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Transaction {
    pub copies_end: usize,
    pub revokes_end: usize,
    /// The block of the log behind its commit record.
    pub next: u32,
}

/// All committed transactions.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub transactions: Vec<Transaction>,
    pub copies: Vec<Copy>,
    pub revokes: Vec<RevokeAt>,
    pub dropped: Option<Dropped>,
}

impl Found {
    /// Returns the block of the log at which the next transaction would begin.
    pub fn end_block(&self, log: &Log) -> u32 {
        self.transactions.last().map_or(log.superblock().start(), |last| last.next)
    }

    /// Drops the copies and revokes of no committed transaction.
    fn truncate(&mut self) {
        let last = self.transactions.last().copied().unwrap_or_default();
        self.copies.truncate(last.copies_end);
        self.revokes.truncate(last.revokes_end);
    }

    /// Drops the last transaction.
    pub fn drop_last(&mut self, why: Dropped) {
        self.transactions.pop();
        self.truncate();
        self.dropped = Some(why);
    }
}

/// Finds the transactions of a log that needs recovery.
pub(super) fn transactions(log: &Log, device_blocks: u64, damage: Damage) -> Result<Found> {
    let mut scanner = Scanner::new(log, device_blocks, damage);
    while let Step::Continue = scanner.step()? {}
    let mut found = scanner.found;
    let torn = found.transactions.last().copied().unwrap_or_default();
    if found.dropped.is_none()
        && (found.copies.len(), found.revokes.len()) != (torn.copies_end, torn.revokes_end)
    {
        found.dropped = Some(Dropped::Torn);
    }
    found.truncate();
    Ok(found)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Continue,
    End,
}

struct Scanner<'a> {
    log: &'a Log,
    damage: Damage,
    format: JournalFormat,
    device_blocks: u64,
    /// The log's own blocks, as sorted ranges.
    own: Vec<(u64, u64)>,
    block: Vec<u8>,
    next: u32,
    left: u32,
    sequence: u32,
    found: Found,
    /// Whether a descriptor or revoke block of the current transaction has a wrong checksum.
    damaged: bool,
    /// The checksum of version 1 of the current transaction.
    v1: u32,
    last_commit: Option<Timestamp>,
}

const V1_INIT: u32 = u32::MAX;

impl<'a> Scanner<'a> {
    fn new(log: &'a Log, device_blocks: u64, damage: Damage) -> Scanner<'a> {
        Scanner {
            log,
            damage,
            format: log.superblock().format(),
            device_blocks,
            own: log.own_blocks(),
            block: vec![0; log.block_size()],
            next: log.superblock().start(),
            left: log.capacity(),
            sequence: log.superblock().sequence(),
            found: Found::default(),
            damaged: false,
            v1: V1_INIT,
            last_commit: None,
        }
    }

    /// Advances by one block and returns its position. Returns `None` after one round of the log.
    fn advance(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        let at = self.next;
        self.next = self.log.after(at);
        Some(at)
    }

    /// Reads a block of the log with its dependents.
    fn step(&mut self) -> Result<Step> {
        let Some(at) = self.advance() else { return Ok(Step::End) };
        self.log.read(at, &mut self.block)?;
        let header =
            BlockHeader::parse(&self.block).filter(|header| header.sequence == self.sequence);
        match header.map(|header| header.block_type) {
            Some(BlockType::Descriptor) => self.descriptor(),
            Some(BlockType::Revoke) => {
                self.damaged |= !self.format.verify_tail(&self.block);
                self.found.revokes.push(RevokeAt { at, sequence: self.sequence });
                Ok(Step::Continue)
            }
            Some(BlockType::Commit) => self.commit(at),
            _ => Ok(Step::End),
        }
    }

    fn descriptor(&mut self) -> Result<Step> {
        self.damaged |= !self.format.verify_tail(&self.block);
        let v1 = self.format.checksums == ChecksumMode::V1;
        let descriptor = self.block.clone();
        if v1 {
            self.v1 = crc32_be(self.v1, &descriptor);
        }
        for tag in Tags::new(&descriptor, &self.format) {
            let Some(at) = self.advance() else { return Ok(Step::End) };
            self.found.copies.push(Copy::new(&tag, at, self.sequence));
            if v1 {
                self.log.read(at, &mut self.block)?;
                self.v1 = crc32_be(self.v1, &self.block);
            }
        }
        Ok(Step::Continue)
    }

    fn commit(&mut self, at: u32) -> Result<Step> {
        let Some(commit) = CommitBlock::parse(&self.block) else { return Ok(Step::End) };
        if self.damaged {
            return self.damaged_transaction(&commit, at);
        }
        if !CommitBlock::verify(&self.block, &self.format) || !self.v1_matches() {
            self.found.dropped = Some(Dropped::CommitChecksum);
            return Ok(Step::End);
        }
        match self.damage {
            Damage::Fails => self.check_homes()?,
            Damage::IsSkipped => self.drop_bad_homes(),
        }
        let found = &mut self.found;
        let (copies_end, revokes_end) = (found.copies.len(), found.revokes.len());
        found.transactions.push(Transaction { copies_end, revokes_end, next: self.next });
        self.last_commit = Some(commit.time);
        self.sequence = self.sequence.wrapping_add(1);
        self.v1 = V1_INIT;
        Ok(Step::Continue)
    }

    /// Handles a commit record after a damaged descriptor. If the record is older than the last
    /// good one, the blocks are from an earlier use of the log. A record that is damaged, too,
    /// proves nothing.
    fn damaged_transaction(&mut self, commit: &CommitBlock, at: u32) -> Result<Step> {
        let whole = CommitBlock::verify(&self.block, &self.format);
        let newer = self.last_commit.is_none_or(|last| time_key(&commit.time) >= time_key(&last));
        if whole && newer && self.damage == Damage::Fails {
            return Err(Corrupt::new("journal descriptor")
                .field("checksum")
                .found(self.sequence)
                .at_block(u64::from(at))
                .into());
        }
        self.found.dropped = Some(Dropped::Stale);
        Ok(Step::End)
    }

    fn v1_matches(&self) -> bool {
        if self.format.checksums != ChecksumMode::V1 {
            return true;
        }
        match CommitBlock::v1_checksum(&self.block) {
            CommitChecksum::Absent => true,
            CommitChecksum::Crc32(found) => found == self.v1,
            CommitChecksum::Unknown => false,
        }
    }

    /// Returns the place of the transaction's first copy in the list.
    fn first_copy(&self) -> usize {
        self.found.transactions.last().map_or(0, |last| last.copies_end)
    }

    /// Drops the transaction's copies whose home block cannot be one.
    fn drop_bad_homes(&mut self) {
        let (start, blocks) = (self.first_copy().min(self.found.copies.len()), self.device_blocks);
        let mut copies = self.found.copies.split_off(start);
        copies.retain(|copy| copy.block < blocks && !contains(&self.own, copy.block));
        self.found.copies.append(&mut copies);
    }

    /// Checks the home blocks of the transaction's copies.
    fn check_homes(&self) -> Result<()> {
        for copy in self.found.copies.get(self.first_copy()..).unwrap_or(&[]) {
            if copy.block >= self.device_blocks {
                let error = Corrupt::new("journal tag")
                    .field("block")
                    .found(copy.block)
                    .expected(self.device_blocks);
                return Err(error.at_block(u64::from(copy.at)).into());
            }
            if contains(&self.own, copy.block) {
                return Err(Corrupt::new("journal tag")
                    .field("block of the log")
                    .at_block(copy.block)
                    .into());
            }
        }
        Ok(())
    }
}

fn time_key(time: &Timestamp) -> (i64, u32) {
    (time.sec, time.nsec)
}

/// Returns whether one of the sorted, disjoint ranges contains `nr`.
fn contains(ranges: &[(u64, u64)], nr: u64) -> bool {
    let index = ranges.partition_point(|(start, _)| *start <= nr);
    index.checked_sub(1).and_then(|index| ranges.get(index)).is_some_and(|(_, end)| nr < *end)
}
