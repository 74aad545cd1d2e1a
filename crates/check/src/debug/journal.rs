//! The log of the journal: its superblock, its transactions, and earlier states of blocks.
//!
//! A log is a circle. Transactions that were replayed or checkpointed long ago stay there until
//! later ones overwrite them, and show earlier states of metadata. For example, the log holds
//! transactions 5 to 9, of which a recovery would replay 8 and 9. The descriptor of 5 is still
//! there, and half of its copies were overwritten by 9.
//!
//! # Invariants
//! A block of the log belongs to the newest transaction that names it. Memory grows with the
//! blocks of the log, not with the numbers in it.

use super::{ChecksumState, InodeSlot, InspectError, Inspector};
use crate::maps::{Run, Runs};
use extant_blocks::BlockDevice;
use extant_format::extent::Node;
use extant_format::jbd2::{
    BlockHeader, BlockType, CommitBlock, JournalFormat, JournalSuperblock, RevokeRecords, Tag,
    TagFlags, Tags, external_journal_block, unescape,
};
use extant_format::{Compat, Inode, InodeFlags, InodeNr, Timestamp};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

/// The fate of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionState {
    /// It was replayed or checkpointed: its changes are in the file system, or newer ones.
    Done,
    /// A recovery replays it.
    Pending,
    /// It has no commit record, or follows on one without.
    Incomplete,
}

impl TransactionState {
    /// Returns the name of the state.
    pub fn name(self) -> &'static str {
        match self {
            TransactionState::Done => "done",
            TransactionState::Pending => "pending",
            TransactionState::Incomplete => "incomplete",
        }
    }
}

/// A copy of a block in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedBlock {
    /// The block of the file system.
    pub block: u64,
    /// The block of the log.
    pub at: u32,
    /// The block of the log with the descriptor.
    pub descriptor: u32,
    /// The transaction.
    pub sequence: u32,
    /// Flags of the tag.
    pub flags: u16,
    /// Checksum of the tag.
    checksum: u32,
}

/// A transaction in the log.
#[derive(Clone, Debug)]
pub struct LoggedTransaction {
    /// Its number.
    pub sequence: u32,
    /// Its fate.
    pub state: TransactionState,
    /// Blocks of the log with its headers: descriptors (1), commit records (2) and revoke blocks
    /// (5).
    pub headers: Vec<(u32, u32)>,
    /// Its copies that no later transaction has overwritten, in the order of the log.
    pub blocks: Vec<LoggedBlock>,
    /// Number of copies that later transactions have overwritten.
    pub overwritten: u64,
    /// Blocks of the log with its revoke records.
    pub revokes: Vec<u32>,
    /// The time of its commit record.
    pub committed: Option<Timestamp>,
    /// A checksum of its descriptors, revoke blocks or commit record is wrong.
    pub is_damaged: bool,
}

impl LoggedTransaction {
    fn new(sequence: u32) -> LoggedTransaction {
        LoggedTransaction {
            sequence,
            state: TransactionState::Done,
            headers: Vec::new(),
            blocks: Vec::new(),
            overwritten: 0,
            revokes: Vec::new(),
            committed: None,
            is_damaged: false,
        }
    }
}

/// The log of a file system.
pub struct JournalLog<'i> {
    inspector: &'i Inspector,
    device: &'i dyn BlockDevice,
    runs: Vec<Run>,
    superblock: JournalSuperblock,
    format: JournalFormat,
    /// The circle of the log.
    first: u32,
    end: u32,
    /// By their age: see [`JournalLog::age`].
    transactions: BTreeMap<u32, LoggedTransaction>,
    /// The copies of each block of the file system, the oldest first.
    copies: BTreeMap<u64, Vec<LoggedBlock>>,
    problems: Vec<String>,
}

impl Inspector {
    /// Reads the log.
    ///
    /// # Errors
    /// There is no journal, or neither its inode nor its superblock is usable.
    pub fn journal(&self) -> Result<JournalLog<'_>, InspectError> {
        let (mut log, at) = self.unread_journal()?;
        log.open(at)?;
        log.scan();
        Ok(log)
    }

    /// Returns the log without its content, and the block with its superblock.
    fn unread_journal(&self) -> Result<(JournalLog<'_>, u32), InspectError> {
        if !self.superblock.compat().contains(Compat::HAS_JOURNAL) {
            return Err(InspectError::new("the file system has no journal".into()));
        }
        let mut problems = Vec::new();
        let ino = self.superblock.journal_inum();
        let (device, runs, at): (&dyn BlockDevice, _, _) = if ino == InodeNr::NONE {
            let journal = self.journal.as_ref();
            let missing = || InspectError::new("the external journal is not named".into());
            let device = &**journal.ok_or_else(missing)?;
            let len = device.len() >> self.geometry.block_bits;
            let whole = Run { logical: 0, physical: 0, len, unwritten: false };
            (device, vec![whole], external_journal_block(self.geometry.block_size))
        } else {
            (&*self.raw, self.journal_runs(ino, &mut problems)?, 0)
        };
        let log = JournalLog {
            inspector: self,
            device,
            runs,
            superblock: JournalSuperblock::new(self.geometry.block_size, 2, [0; 16]),
            format: JournalSuperblock::new(self.geometry.block_size, 2, [0; 16]).format(),
            first: 0,
            end: 0,
            transactions: BTreeMap::new(),
            copies: BTreeMap::new(),
            problems,
        };
        Ok((log, at as u32))
    }

    /// Reads the superblock of the journal, and nothing else of it.
    ///
    /// # Errors
    /// As [`Inspector::journal`].
    pub fn journal_superblock(&self) -> Result<JournalSuperblock, InspectError> {
        let (mut log, at) = self.unread_journal()?;
        log.open(at)?;
        Ok(log.superblock)
    }

    /// Returns the runs of the journal's inode, or of its copy in the superblock if the inode has
    /// none.
    fn journal_runs(
        &self,
        ino: InodeNr,
        problems: &mut Vec<String>,
    ) -> Result<Vec<Run>, InspectError> {
        let reader = self.reader();
        let own = self.inode(ino.0).map(|slot| Runs::of(&reader, ino, &slot.inode));
        if let Ok(own) = &own
            && !own.damaged
            && !own.runs.is_empty()
        {
            return Ok(own.runs.clone());
        }
        problems.push(format!("the map of the journal's inode {ino} is damaged"));
        let backup = self.superblock.journal_backup().map(|backup| {
            let mut inode = Inode { i_block: backup.i_block, ..Inode::default() };
            let is_tree = Node::parse(&inode.i_block, None).is_ok();
            inode.flags.set(InodeFlags::EXTENTS, is_tree);
            Runs::of(&reader, ino, &inode).runs
        });
        let mut maps = backup.into_iter().chain(own.ok().map(|own| own.runs));
        let found = maps.find(|runs| !runs.is_empty());
        found.ok_or_else(|| InspectError::new(format!("the journal's inode {ino} has no map")))
    }
}

impl JournalLog<'_> {
    /// Returns the superblock of the journal.
    pub fn superblock(&self) -> &JournalSuperblock {
        &self.superblock
    }

    /// Returns the damage that was met, in words.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Returns the verdict on the checksum of the superblock.
    pub fn checksum(&self) -> ChecksumState {
        let has = self.format.has_crc32c();
        ChecksumState::of(has, || self.superblock.verify_checksum().is_ok())
    }

    /// Returns the transactions, the oldest first.
    pub fn transactions(&self) -> impl Iterator<Item = &LoggedTransaction> {
        self.transactions.values()
    }

    /// Returns the copies of a block of the file system, the oldest first.
    pub fn copies_of(&self, block: u64) -> &[LoggedBlock] {
        self.copies.get(&block).map_or(&[], Vec::as_slice)
    }

    /// Returns a number that grows with the age of transactions, whose numbers wrap around.
    fn age(&self, sequence: u32) -> u32 {
        sequence.wrapping_sub(self.superblock.sequence()).wrapping_add(1 << 31)
    }

    /// Returns the newest copy of a block in a transaction up to `sequence`, or in any, that was
    /// committed.
    pub fn copy_as_of(&self, block: u64, sequence: Option<u32>) -> Option<LoggedBlock> {
        let last = sequence.map_or(u32::MAX, |sequence| self.age(sequence));
        let is_known = |copy: &&LoggedBlock| {
            let age = self.age(copy.sequence);
            let transaction = self.transactions.get(&age);
            age <= last && transaction.is_some_and(|found| found.committed.is_some())
        };
        self.copies_of(block).iter().rev().find(is_known).copied()
    }

    /// Returns the content of a copy, and the verdict on its checksum.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn content(&self, copy: &LoggedBlock) -> Result<(Vec<u8>, ChecksumState), InspectError> {
        let unreadable =
            || InspectError::new(format!("block {} of the journal cannot be read", copy.at));
        let mut bytes = self.read(copy.at).ok_or_else(unreadable)?;
        let flags = TagFlags::from_bits_retain(copy.flags);
        let tag = Tag { block: copy.block.into(), flags, checksum: copy.checksum };
        let right = || self.format.tag_matches(&tag, copy.sequence, &bytes);
        let checksum = ChecksumState::of(self.format.has_crc32c(), right);
        if flags.contains(TagFlags::ESCAPE) {
            unescape(&mut bytes);
        }
        Ok((bytes, checksum))
    }

    /// Calls `each` with each block that a transaction revokes.
    pub fn revoked(&self, transaction: &LoggedTransaction, each: &mut dyn FnMut(u64)) {
        for at in &transaction.revokes {
            let Some(bytes) = self.read(*at) else { continue };
            if let Ok(records) = RevokeRecords::parse(&bytes, &self.format) {
                records.for_each(|block| each(block.0));
            }
        }
    }

    /// Returns the format of the log.
    pub(super) fn format(&self) -> JournalFormat {
        self.format
    }

    /// Returns whether the log is in the file system.
    pub(super) fn is_inside(&self) -> bool {
        self.inspector.superblock.journal_inum() != InodeNr::NONE
    }

    /// Returns the blocks of the log for transactions, and those for fast commits.
    pub(super) fn parts(&self) -> (Range<u32>, Range<u32>) {
        let mapped = self.runs.last().map_or(0, Run::end);
        let len = u64::from(self.superblock.max_len()).min(mapped) as u32;
        (self.first..self.end, self.end..len.max(self.end))
    }

    /// Returns the block of the device with a block of the log.
    pub(super) fn physical(&self, at: u32) -> Option<u64> {
        let at = u64::from(at);
        let next = self.runs.partition_point(|run| run.logical <= at);
        let run = self.runs.get(next.checked_sub(1)?)?;
        let within = at.saturating_sub(run.logical);
        (within < run.len).then(|| run.physical.checked_add(within))?
    }

    /// Reads a block of the log.
    pub(super) fn read(&self, at: u32) -> Option<Vec<u8>> {
        let block = self.physical(at)?;
        let mut bytes = vec![0; self.inspector.geometry.block_size as usize];
        let offset = block.checked_mul(self.inspector.geometry.block_size.into())?;
        self.device.read_exact_at(&mut bytes, offset).ok().map(|()| bytes)
    }

    /// Reads the superblock of the journal, in a block of the log.
    fn open(&mut self, at: u32) -> Result<(), InspectError> {
        let unreadable =
            || InspectError::new("the superblock of the journal cannot be read".into());
        let bytes = self.read(at).ok_or_else(unreadable)?;
        self.superblock = JournalSuperblock::parse_unverified(&bytes)?;
        if let Err(error) = JournalSuperblock::parse(&bytes) {
            self.problems.push(error.to_string());
        }
        let block_size = self.inspector.geometry.block_size;
        if self.superblock.block_size() != block_size {
            let message =
                format!("the journal has blocks of {} bytes", self.superblock.block_size());
            self.problems.push(message);
        }
        self.superblock.set_block_size(block_size);
        self.format = self.superblock.format();
        let mapped = self.runs.last().map_or(0, Run::end);
        let on_device = self.device.len() >> self.inspector.geometry.block_bits;
        let mapped = u32::try_from(mapped.min(on_device)).unwrap_or(u32::MAX);
        if self.superblock.max_len() > mapped {
            let len = self.superblock.max_len();
            self.problems.push(format!("the journal has {mapped} of its {len} blocks"));
        }
        self.first = self.superblock.first().max(at.saturating_add(1));
        self.end = self.superblock.log_end().min(mapped).max(self.first);
        Ok(())
    }

    /// Returns the block of the log that is `n` blocks behind another one.
    pub(super) fn behind(&self, at: u32, n: u64) -> Option<u32> {
        let capacity = u64::from(self.end.saturating_sub(self.first));
        if n >= capacity {
            return None;
        }
        let within = u64::from(at.saturating_sub(self.first)).saturating_add(n);
        let within = within.checked_rem(capacity)?;
        Some(self.first.saturating_add(within as u32))
    }

    /// Reads all headers of the log, wherever they are.
    fn scan(&mut self) {
        // The newest use of each block of the log.
        let mut uses: BTreeMap<u32, (u32, Option<LoggedBlock>)> = BTreeMap::new();
        let mut unreadable = 0u64;
        for at in self.first..self.end {
            let Some(bytes) = self.read(at) else {
                unreadable = unreadable.saturating_add(1);
                continue;
            };
            let Some(header) = BlockHeader::parse(&bytes) else { continue };
            let age = self.age(header.sequence);
            if uses.get(&at).is_none_or(|(newest, _)| *newest <= age) {
                uses.insert(at, (age, None));
            } else {
                continue;
            }
            if header.block_type == BlockType::Descriptor {
                self.use_by_tags(&bytes, (at, age, header.sequence), &mut uses);
            }
            self.header(&bytes, at, header);
        }
        if unreadable > 0 {
            self.problems.push(format!("{unreadable} blocks of the journal cannot be read"));
        }
        self.place(uses);
        self.judge();
    }

    /// Notes the copies that a descriptor names.
    fn use_by_tags(
        &self,
        bytes: &[u8],
        (at, age, sequence): (u32, u32, u32),
        uses: &mut BTreeMap<u32, (u32, Option<LoggedBlock>)>,
    ) {
        for (n, tag) in (1u64..).zip(Tags::new(bytes, &self.format)) {
            let Some(place) = self.behind(at, n) else { break };
            if uses.get(&place).is_some_and(|(newest, _)| *newest > age) {
                continue;
            }
            let copy = LoggedBlock {
                block: tag.block.0,
                at: place,
                descriptor: at,
                sequence,
                flags: tag.flags.bits(),
                checksum: tag.checksum,
            };
            uses.insert(place, (age, Some(copy)));
        }
    }

    /// Adds a header to its transaction.
    fn header(&mut self, bytes: &[u8], at: u32, header: BlockHeader) {
        let (age, format) = (self.age(header.sequence), self.format);
        let new = || LoggedTransaction::new(header.sequence);
        let is_known = matches!(
            header.block_type,
            BlockType::Descriptor | BlockType::Commit | BlockType::Revoke
        );
        if !is_known {
            return;
        }
        let transaction = self.transactions.entry(age).or_insert_with(new);
        transaction.headers.push((at, header.block_type.to_raw()));
        match header.block_type {
            BlockType::Descriptor => {
                transaction.is_damaged |= !format.verify_tail(bytes);
                let tags = Tags::new(bytes, &format).count() as u64;
                transaction.overwritten = transaction.overwritten.saturating_add(tags);
            }
            BlockType::Revoke => {
                transaction.is_damaged |= !format.verify_tail(bytes);
                transaction.revokes.push(at);
            }
            _ => {
                transaction.is_damaged |= !CommitBlock::verify(bytes, &format);
                transaction.committed = CommitBlock::parse(bytes).map(|commit| commit.time);
            }
        }
    }

    /// Gives each copy to its transaction.
    fn place(&mut self, uses: BTreeMap<u32, (u32, Option<LoggedBlock>)>) {
        for (age, copy) in uses.into_values() {
            let (Some(copy), Some(transaction)) = (copy, self.transactions.get_mut(&age)) else {
                continue;
            };
            transaction.overwritten = transaction.overwritten.saturating_sub(1);
            transaction.blocks.push(copy);
        }
        for transaction in self.transactions.values() {
            for copy in &transaction.blocks {
                self.copies.entry(copy.block).or_default().push(*copy);
            }
        }
    }

    /// Determines the fate of each transaction.
    fn judge(&mut self) {
        let (first, is_empty) = (self.superblock.sequence(), self.superblock.start() == 0);
        let (mut expected, start) = (self.age(first), self.age(first));
        for (age, transaction) in &mut self.transactions {
            let follows = *age == expected && !is_empty && transaction.committed.is_some();
            transaction.state = match *age {
                age if age < start => TransactionState::Done,
                _ if follows => TransactionState::Pending,
                _ => TransactionState::Incomplete,
            };
            if follows {
                expected = expected.saturating_add(1);
            }
        }
    }
}

impl std::fmt::Debug for JournalLog<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JournalLog").field("superblock", &self.superblock).finish_non_exhaustive()
    }
}

/// The device as it was when a transaction was committed, as far as the log tells.
#[derive(Debug)]
pub(super) struct AsOf<'l> {
    pub log: &'l JournalLog<'l>,
    pub sequence: u32,
}

impl BlockDevice for AsOf<'_> {
    fn len(&self) -> u64 {
        self.log.inspector.device.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let size = self.log.inspector.geometry.block_size as usize;
        let first = offset >> self.log.inspector.geometry.block_bits;
        self.log.inspector.device.read_exact_at(buf, offset)?;
        // Readers of maps read whole blocks.
        for (block, part) in (first..).zip(buf.chunks_mut(size)) {
            let copy = self.log.copy_as_of(block, Some(self.sequence));
            let Some(Ok((bytes, _))) = copy.map(|copy| self.log.content(&copy)) else { continue };
            if part.len() == bytes.len() {
                part.copy_from_slice(&bytes);
            }
        }
        Ok(())
    }

    fn write_all_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

impl JournalLog<'_> {
    /// Returns the copies of an inode's slot in the log, the newest first, with their transactions.
    /// Damaged ones are left out.
    pub(super) fn slots_of<'s>(
        &'s self,
        slot: &'s InodeSlot,
    ) -> impl Iterator<Item = (u32, InodeSlot)> + 's {
        self.copies_of(slot.block).iter().rev().filter_map(move |copy| {
            let (bytes, checksum) = self.content(copy).ok()?;
            let geometry = &self.inspector.geometry;
            let end = slot.offset.saturating_add(geometry.inode_size.into());
            let bytes = bytes.get(slot.offset..end)?;
            let place = (slot.group.into(), slot.block, slot.offset);
            let found = InodeSlot::decode(geometry, slot.number(), place, bytes)?;
            let is_good =
                checksum != ChecksumState::Wrong && found.checksum != ChecksumState::Wrong;
            (is_good && found.problem.is_none()).then_some((copy.sequence, found))
        })
    }
}
