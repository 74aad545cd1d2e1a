//! The log in an image of metadata.
//!
//! The image has all records of the log (descriptors, revoke records, commits), and of the copies
//! those that a recovery writes home, if they are metadata. Copies of file content, and those of
//! earlier transactions, whose blocks may be content of files by now, are holes. So the checksums
//! of all copies are renewed in their tags, and a recovery of the image gives the metadata that one
//! of the file system gives.
//!
//! For example, transaction 7 has copies of an inode table and of a file in `data=journal`. The
//! image has the first one. In place of the second are zeroes, with the checksum of zeroes.

use crate::debug::{Inspector, JournalLog, LoggedBlock, TransactionState};
use extant_format::jbd2::{
    BlockHeader, BlockType, ChecksumMode, CommitBlock, FastCommitTag, FastCommitTags, Tag,
    TagFlags, Tags, escape, renew_checksums,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The log, and the part of it that is replayed.
pub struct SavedLog<'l> {
    log: JournalLog<'l>,
    /// The descriptors and commit records of transactions that a recovery replays.
    pending: BTreeSet<u32>,
    /// Checksums of the copies that the image has, by their block in the log.
    copies: BTreeMap<u32, u32>,
}

/// A block of the log to be written.
pub struct LogWrite {
    /// Its block in the file system.
    pub place: u64,
    pub bytes: Vec<u8>,
}

impl<'l> SavedLog<'l> {
    /// Opens the log in a file system. `None` if there is none that can be read.
    pub fn open(inspector: &'l Inspector) -> Option<SavedLog<'l>> {
        let log = inspector.journal().ok().filter(JournalLog::is_inside)?;
        let replayed = log.transactions().filter(|one| one.state == TransactionState::Pending);
        let pending = replayed.flat_map(|one| one.headers.iter().map(|(at, _)| *at)).collect();
        Some(SavedLog { log, pending, copies: BTreeMap::new() })
    }

    /// Returns whether a recovery would replay anything.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns the copy of a block that a recovery writes home, of which `replayed` is the content.
    pub fn copy_of(&self, block: u64, replayed: &[u8]) -> Option<LoggedBlock> {
        let copies = self.log.copies_of(block).iter().rev();
        let mut pending = copies.filter(|copy| self.pending.contains(&copy.descriptor));
        let newest = pending.next().copied()?;
        let (content, _) = self.log.content(&newest).ok()?;
        (content == replayed).then_some(newest)
    }

    /// Returns the write of a copy with this content; `None` if it was written before.
    pub fn write_copy(&mut self, copy: &LoggedBlock, mut bytes: Vec<u8>) -> Option<LogWrite> {
        if self.copies.contains_key(&copy.at) {
            return None;
        }
        if TagFlags::from_bits_retain(copy.flags).contains(TagFlags::ESCAPE) {
            escape(&mut bytes);
        }
        let checksum = self.log.format().tag_checksum(copy.sequence, &bytes);
        self.copies.insert(copy.at, checksum);
        Some(LogWrite { place: self.log.physical(copy.at)?, bytes })
    }

    /// Calls `write` with each record of the log. `has_fast_commits` tells whether the image takes
    /// the blocks of fast commits, too.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn records<E>(
        &self,
        has_fast_commits: bool,
        write: &mut dyn FnMut(LogWrite) -> Result<(), E>,
    ) -> Result<(), E> {
        let (full, fast) = self.log.parts();
        for at in full {
            let (Some(place), Some(bytes)) = (self.log.physical(at), self.log.read(at)) else {
                continue;
            };
            if let Some(bytes) = self.record(at, bytes) {
                write(LogWrite { place, bytes })?;
            }
        }
        if !has_fast_commits {
            return Ok(());
        }
        for (at, bytes) in self.fast_commits(fast) {
            if let Some(place) = self.log.physical(at) {
                write(LogWrite { place, bytes })?;
            }
        }
        Ok(())
    }

    /// Returns the blocks of whole fast commits from the beginning of their area on. The rest of it
    /// may hold old content of the disk, from before there was a log.
    fn fast_commits(&self, area: Range<u32>) -> Vec<(u32, Vec<u8>)> {
        let (mut found, mut whole, mut checksum) = (Vec::new(), 0, 0);
        for at in area {
            let Some(bytes) = self.log.read(at) else { break };
            let mut tags = FastCommitTags::new(&bytes, checksum);
            let mut is_whole = false;
            let mut is_wrong = false;
            for tag in tags.by_ref() {
                match tag {
                    FastCommitTag::Tail(tail) if tail.checksum == tail.computed => is_whole = true,
                    FastCommitTag::Tail(_) | FastCommitTag::Unknown(_) => is_wrong = true,
                    _ => {}
                }
            }
            let goes_on = tags.is_at_end() && !is_wrong;
            checksum = tags.checksum();
            found.push((at, bytes));
            if is_whole {
                whole = found.len();
            }
            if !goes_on {
                break;
            }
        }
        found.truncate(whole);
        found
    }

    /// Returns a record as the image has it; `None` if the block is none.
    fn record(&self, at: u32, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        let header = BlockHeader::parse(&bytes).filter(|_| !self.copies.contains_key(&at))?;
        match header.block_type {
            BlockType::Descriptor if self.pending.contains(&at) => {
                self.renew(at, header.sequence, &mut bytes);
            }
            BlockType::Commit if self.pending.contains(&at) => {
                if self.log.format().checksums == ChecksumMode::V1 {
                    CommitBlock::clear_v1_checksum(&mut bytes);
                }
            }
            BlockType::Descriptor | BlockType::Commit | BlockType::Revoke => {}
            _ => return None,
        }
        Some(bytes)
    }

    /// Gives the tags of a descriptor the checksums of the copies in the image. A wrong checksum
    /// stays.
    fn renew(&self, at: u32, sequence: u32, bytes: &mut [u8]) {
        let format = self.log.format();
        if !format.has_crc32c() || !format.verify_tail(bytes) {
            return;
        }
        let zeroes = vec![0; bytes.len()];
        let places: Vec<Option<u32>> =
            (1u64..).zip(Tags::new(bytes, &format)).map(|(n, _)| self.log.behind(at, n)).collect();
        renew_checksums(bytes, &format, &mut |n, tag: &Tag| {
            let place = places.get(n).copied().flatten();
            let old = place.and_then(|place| self.log.read(place));
            let is_right = old.is_some_and(|old| format.tag_matches(tag, sequence, &old));
            let new = place.and_then(|place| self.copies.get(&place).copied());
            let new = new.unwrap_or_else(|| format.tag_checksum(sequence, &zeroes));
            if is_right { new } else { tag.checksum }
        });
    }

    /// Returns whether the log has space for fast commits.
    pub fn has_fast_commits(&self) -> bool {
        !self.log.parts().1.is_empty()
    }
}
