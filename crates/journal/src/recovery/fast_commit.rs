//! The fast commits after the last full commit.
//!
//! # Invariants
//! Records count up to the last tail with the right transaction and checksum; later records were
//! never reported as durable. The area is read once, up to the first block that does not continue
//! it.

use crate::error::{Error, Result};
use crate::log::Log;
use extant_format::jbd2::{FastCommitTag, FastCommitTags};

/// More bytes than any known program reserves for fast commits.
const MAX_BYTES: usize = 64 << 20;

/// The records of fast commits. The file system interprets them.
#[derive(Clone, Debug, Default)]
pub struct FastCommits {
    blocks: Vec<Box<[u8]>>,
    records: usize,
}

impl FastCommits {
    /// Returns whether there is nothing to replay.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.records
    }

    /// Returns the records in order.
    pub fn iter(&self) -> impl Iterator<Item = FastCommitTag<'_>> + Clone {
        self.blocks.iter().flat_map(|block| FastCommitTags::new(block, 0)).take(self.records)
    }
}

/// Reads the fast commits after the last full commit. `end` is the sequence after that commit.
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
        // A valid tail makes the records before it count, and the blocks up to here necessary.
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

/// The state of a scan of the area.
#[derive(Debug, Default)]
struct Scan {
    end: u32,
    /// Number of records read, and number of those before the last valid tail.
    seen: usize,
    valid: usize,
    checksum: u32,
    features: u32,
}

impl Scan {
    /// Reads a block. Returns whether the area continues after it.
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
