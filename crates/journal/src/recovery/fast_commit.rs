//! The fast-commit area: what follows in it on the last full commit.
//!
//! # Invariants
//! Records count up to the last tail whose transaction and checksum are right; what comes after it
//! was never promised to anybody. The area is read once, and no further than to its first block
//! that does not go on.

use crate::error::{Error, Result};
use crate::log::Log;
use extant_format::jbd2::{FastCommitTag, FastCommitTags};

/// More bytes than any program sets aside for fast commits.
const MAX_BYTES: usize = 64 << 20;

/// Records of fast commits. What they mean is the file system's affair.
#[derive(Clone, Debug, Default)]
pub struct FastCommits {
    blocks: Vec<Box<[u8]>>,
    records: usize,
}

impl FastCommits {
    /// Whether there is nothing to replay.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.records
    }

    /// The records in their order.
    pub fn iter(&self) -> impl Iterator<Item = FastCommitTag<'_>> + Clone {
        self.blocks.iter().flat_map(|block| FastCommitTags::new(block, 0)).take(self.records)
    }
}

/// Reads the fast commits that follow on the last full commit, `end` being the sequence after that
/// one.
pub(super) fn find(log: &Log, end: u32) -> Result<FastCommits> {
    let mut found = FastCommits::default();
    let Some(area) = log.superblock().fast_commit_area() else { return Ok(found) };
    let mut scan = Scan { end, ..Scan::default() };
    let mut needed = 0;
    for at in area {
        let mut block = vec![0; log.block_size()];
        log.read(at, &mut block)?;
        let goes_on = scan.block(&block);
        found.blocks.push(block.into());
        if scan.valid > found.records {
            (found.records, needed) = (scan.valid, found.blocks.len());
        }
        if !goes_on {
            break;
        }
        if found.blocks.len() * log.block_size() >= MAX_BYTES {
            return Err(Error::Unsupported("fast commits of so many bytes"));
        }
    }
    found.blocks.truncate(needed);
    if scan.features != 0 && !found.is_empty() {
        Err(Error::Unsupported("a feature of fast commits that is not known"))
    } else {
        Ok(found)
    }
}

/// What was read so far.
#[derive(Debug, Default)]
struct Scan {
    end: u32,
    /// Records read, and those of them that are before a tail that is right.
    seen: usize,
    valid: usize,
    checksum: u32,
    features: u32,
}

impl Scan {
    /// Reads a block; whether the area goes on after it.
    fn block(&mut self, block: &[u8]) -> bool {
        let mut tags = FastCommitTags::new(block, self.checksum);
        for tag in tags.by_ref() {
            let first = self.seen == 0;
            self.seen += 1;
            match tag {
                FastCommitTag::Head(features, tid) if first && tid == self.end => {
                    self.features = features
                }
                FastCommitTag::Head(..) | FastCommitTag::Unknown(_) => return false,
                _ if first => return false,
                FastCommitTag::Tail(tail) if tail.valid_for(self.end) => self.valid = self.seen,
                FastCommitTag::Tail(_) => return false,
                _ => {}
            }
        }
        self.checksum = tags.checksum();
        tags.is_at_end()
    }
}
