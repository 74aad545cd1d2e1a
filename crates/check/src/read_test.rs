//! The test that reads every block of a file system, also those that nothing uses.
//!
//! The device is read in parts of 4 MiB by several threads. Where a read fails, its blocks are read
//! one by one. Ranges that a sparse image file does not store are left out.

use crate::parallel::Workers;
use crate::reader::Reader;
use crate::repair::{RepairError, chosen_superblock, listed_blocks};
use extant_blocks::BlockDevice;
use extant_format::Geometry;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes that a thread takes at once.
const PART: u64 = 4 << 20;

/// Bytes of a read.
const READ: u64 = 256 << 10;

/// Bytes of a read that need not pass the page cache, whose reads fail in larger units.
const DIRECT_UNIT: u64 = 4096;

/// Bound on the blocks that are returned.
const MAX_FOUND: usize = 1 << 18;

/// A test that reads every block.
pub struct ReadTest<'t> {
    /// The device of the file system.
    pub device: &'t dyn BlockDevice,
    /// The number of threads; 0 counts as 1.
    pub threads: usize,
    /// A flag that ends the test early.
    pub stop: &'t AtomicBool,
}

/// Results of a test.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadTestResult {
    /// The blocks that cannot be read, in order.
    pub unreadable: Vec<u64>,
    /// Those among them that the list of bad blocks does not have.
    pub unlisted: Vec<u64>,
}

impl ReadTest<'_> {
    /// Reads all blocks of the file system. Calls `progress` with the parts that are done, and
    /// their number.
    ///
    /// # Errors
    /// No superblock; an interruption; more unreadable blocks than a list may have.
    pub fn run(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<ReadTestResult, RepairError> {
        let superblock = chosen_superblock(self.device).ok_or(RepairError::NoSuperblock)?;
        let geometry = Geometry::new(&superblock)?;
        let reader = Reader::new(self.device, geometry);
        let blocks = superblock.blocks_count().min(reader.device_blocks());
        let end = blocks.saturating_mul(geometry.block_size.into());
        let parts = end.div_ceil(PART);
        let mut unreadable = Vec::new();
        let workers = Workers { threads: self.threads.max(1), stop: self.stop };
        let work = |part: usize| {
            let start = (part as u64).saturating_mul(PART);
            self.part(&geometry, start..start.saturating_add(PART).min(end))
        };
        workers.run(parts as usize, work, |part, found: Vec<u64>| {
            if unreadable.len() <= MAX_FOUND {
                unreadable.extend(found);
            }
            progress((part as u64).saturating_add(1), parts);
        });
        if workers.stopped() {
            return Err(RepairError::Interrupted);
        }
        if unreadable.len() > MAX_FOUND {
            return Err(RepairError::Unsupported("so many bad blocks: replace the device"));
        }
        let listed = listed_blocks(&reader).unwrap_or_default();
        Ok(ReadTestResult { unlisted: without(&unreadable, &listed), unreadable })
    }

    /// Returns the unreadable blocks of a range of bytes.
    fn part(&self, geometry: &Geometry, range: Range<u64>) -> Vec<u64> {
        let size = u64::from(geometry.block_size);
        let mut buffer = vec![0; READ.max(size) as usize];
        let (mut found, mut next) = (Vec::new(), range.start);
        // Relaxed: the flag orders nothing, and may be seen a read later.
        while next < range.end && !self.stop.load(Ordering::Relaxed) {
            // The end of a hole is no border of blocks.
            next = match self.device.next_data(next) {
                Ok(Some(data)) => {
                    next.max(data.start >> geometry.block_bits << geometry.block_bits)
                }
                Ok(None) => break,
                Err(_) => next,
            };
            let len = range.end.saturating_sub(next).min(buffer.len() as u64);
            let Some(read) = buffer.get_mut(..len as usize) else { break };
            if self.device.read_exact_at(read, next).is_err() {
                self.each_unit(read, (next, size), &mut found);
            }
            next = next.saturating_add(len);
        }
        found.iter().map(|offset: &u64| offset >> geometry.block_bits).collect()
    }

    /// Reads a range, whose read has failed, unit by unit and then block by block.
    fn each_unit(&self, range: &mut [u8], (start, size): (u64, u64), found: &mut Vec<u64>) {
        let (unit, size) = (DIRECT_UNIT.max(size) as usize, size as usize);
        for (offset, part) in (start..).step_by(unit).zip(range.chunks_mut(unit)) {
            if self.device.read_exact_at(part, offset).is_ok() {
                continue;
            }
            let blocks = (offset..).step_by(size).zip(part.chunks_mut(size));
            let is_bad = |(offset, block): (u64, &mut [u8])| {
                self.device.read_exact_at(block, offset).is_err().then_some(offset)
            };
            found.extend(blocks.filter_map(is_bad));
        }
    }
}

fn without(blocks: &[u64], listed: &BTreeSet<u64>) -> Vec<u64> {
    blocks.iter().copied().filter(|block| !listed.contains(block)).collect()
}

impl std::fmt::Debug for ReadTest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadTest").field("device", &self.device.name()).finish_non_exhaustive()
    }
}
