//! The log as a sequence of blocks, mapped to a device by extents.

pub(crate) mod format;
pub(crate) mod record;
pub(crate) mod space;

use crate::error::{Error, Result};
use extant_blocks::BlockDevice;
use extant_format::Corrupt;
use extant_format::jbd2::{
    JOURNAL_SUPERBLOCK_SIZE, JournalCompat, JournalIncompat, JournalSuperblock,
    external_journal_block,
};
use extant_sync::Arc;

/// A run of the log's blocks that are adjacent on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogExtent {
    /// The run's first block in the log.
    pub logical: u32,
    /// The run's first block on the device.
    pub physical: u64,
    /// Number of blocks.
    pub len: u32,
}

/// The location of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogPlace {
    /// In the file system, as the blocks of an inode.
    Inside,
    /// On a device of its own.
    External,
}

impl LogPlace {
    /// Returns the block of the log with its superblock.
    pub(crate) fn superblock(self, block_size: u32) -> u32 {
        match self {
            LogPlace::Inside => 0,
            LogPlace::External => external_journal_block(block_size) as u32,
        }
    }
}

/// The features with which a log is to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogFeatures {
    /// Checksums: `Some(true)` for version 3, `Some(false)` for none, `None` to keep the log's.
    pub checksums: Option<bool>,
    /// Block numbers have 64 bits. If false, as the log has them, unless the device needs more than
    /// 32.
    pub bit64: bool,
}

/// An open log: its device, its superblock, and the position of each block.
#[derive(Clone)]
pub struct Log {
    device: Arc<dyn BlockDevice>,
    /// In order of logical blocks, without gaps from 0 on.
    extents: Vec<LogExtent>,
    place: LogPlace,
    superblock: JournalSuperblock,
}

impl Log {
    /// Opens a log in `extents` of `device`, whose blocks have `block_size` bytes, and reads its
    /// superblock.
    ///
    /// The blocks of an external journal are those of its device; its superblock is not the first
    /// of them.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the extents have gaps, overlap, lead outside the device, or are
    /// shorter than the superblock says, or if the superblock is damaged; [`Error::Unsupported`]
    /// for unknown features.
    pub fn open(
        device: Arc<dyn BlockDevice>,
        extents: &[LogExtent],
        block_size: u32,
        place: LogPlace,
    ) -> Result<Log> {
        let mut extents = extents.to_vec();
        extents.sort_unstable_by_key(|extent| extent.logical);
        let blocks = check_extents(&extents, device.len() / u64::from(block_size.max(1)))?;
        let superblock = read_superblock(&*device, &extents, block_size, place)?;
        check_superblock(&superblock, block_size, blocks, place.superblock(block_size))?;
        Ok(Log { device, extents, place, superblock })
    }

    /// Returns the journal superblock as of the opening of the log.
    pub fn superblock(&self) -> &JournalSuperblock {
        &self.superblock
    }

    /// Returns whether the log may have transactions to replay.
    pub fn needs_recovery(&self) -> bool {
        self.superblock.start() != 0
    }

    /// Returns the errno that an aborted session left; 0 for none.
    pub fn errno(&self) -> i32 {
        self.superblock.errno()
    }

    /// Returns whether the log has a fast-commit area.
    pub fn has_fast_commit(&self) -> bool {
        self.superblock.incompat().contains(JournalIncompat::FAST_COMMIT)
    }

    /// Returns the location of the log.
    pub fn place(&self) -> LogPlace {
        self.place
    }

    /// Returns the device of the log.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    pub(crate) fn block_size(&self) -> usize {
        self.superblock.block_size() as usize
    }

    /// Returns the file system's blocks that belong to the log, as sorted and disjoint half-open
    /// ranges.
    pub fn own_blocks(&self) -> Vec<(u64, u64)> {
        if self.place == LogPlace::External {
            return Vec::new();
        }
        let end = |extent: &LogExtent| extent.physical.saturating_add(u64::from(extent.len));
        let mut ranges: Vec<(u64, u64)> =
            self.extents.iter().map(|extent| (extent.physical, end(extent))).collect();
        ranges.sort_unstable();
        // Merges adjacent extents.
        ranges.dedup_by(|next, kept| {
            let joins = next.0 <= kept.1;
            if joins {
                kept.1 = kept.1.max(next.1);
            }
            joins
        });
        ranges
    }

    /// Returns the file system's blocks that the log has and does not use, as disjoint half-open
    /// ranges: all behind its superblock, if it is empty. None if it has transactions.
    pub fn unused_blocks(&self) -> Vec<(u64, u64)> {
        if self.place == LogPlace::External || self.needs_recovery() {
            return Vec::new();
        }
        let (first, end) = (self.superblock.first(), self.superblock.max_len());
        let part = |extent: &LogExtent| {
            let skipped = first.saturating_sub(extent.logical);
            let len = end.saturating_sub(extent.logical).min(extent.len);
            let start = extent.physical.saturating_add(u64::from(skipped));
            let end = extent.physical.saturating_add(u64::from(len));
            (start < end).then_some((start, end))
        };
        self.extents.iter().filter_map(part).collect()
    }

    /// Reads the superblock again.
    pub(crate) fn reopen(self) -> Result<Log> {
        Log::open(self.device, &self.extents, self.superblock.block_size(), self.place)
    }

    /// Returns the offset of a block of the log on the device, in bytes.
    pub(crate) fn offset(&self, logical: u32) -> Result<u64> {
        offset(&self.extents, logical, self.superblock.block_size())
    }

    /// Reads a block of the log.
    pub(crate) fn read(&self, logical: u32, block: &mut [u8]) -> Result<()> {
        Ok(self.device.read_exact_at(block, self.offset(logical)?)?)
    }

    /// Writes a superblock, without a flush.
    pub(crate) fn write_superblock(&self, superblock: &JournalSuperblock) -> Result<()> {
        let mut block = vec![0; self.block_size()];
        block[..JOURNAL_SUPERBLOCK_SIZE].copy_from_slice(&superblock.encode());
        Ok(self.device.write_all_at(
            &block,
            self.offset(self.place.superblock(self.superblock.block_size()))?,
        )?)
    }

    /// Returns the block that follows `logical` in the circular log.
    pub(crate) fn after(&self, logical: u32) -> u32 {
        if logical + 1 >= self.superblock.log_end() { self.superblock.first() } else { logical + 1 }
    }

    /// Returns the number of blocks in the circle of the log.
    pub(crate) fn capacity(&self) -> u32 {
        self.superblock.log_end().saturating_sub(self.superblock.first())
    }

    /// Checks that the log can be written. Returns the superblock that it is to have.
    pub(crate) fn prepare(&self, features: LogFeatures) -> Result<JournalSuperblock> {
        let mut superblock = self.superblock.clone();
        if !superblock.is_v2() {
            return Err(Error::Unsupported("writing a journal of version 1"));
        }
        let mut incompat = superblock.incompat();
        incompat.insert(JournalIncompat::REVOKE);
        incompat.remove(JournalIncompat::ASYNC_COMMIT);
        incompat.set(
            JournalIncompat::BIT64,
            features.bit64 || incompat.contains(JournalIncompat::BIT64),
        );
        if let Some(checksums) = features.checksums {
            incompat.remove(JournalIncompat::CSUM_V2);
            incompat.set(JournalIncompat::CSUM_V3, checksums);
        }
        // Checksums of version 1 would have to be computed over whole transactions; every reader
        // accepts records without one.
        superblock.set_compat(superblock.compat() - JournalCompat::CHECKSUM);
        superblock.set_incompat(incompat);
        Ok(superblock)
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log")
            .field("device", &self.device.name())
            .field("place", &self.place)
            .field("superblock", &self.superblock)
            .finish_non_exhaustive()
    }
}

fn corrupt(field: &'static str) -> Corrupt {
    Corrupt::new("journal").field(field)
}

/// Checks that the extents are a gapless sequence of distinct blocks of the device, and returns its
/// length. A log is then no longer than its device, which bounds all work in proportion to its
/// length.
fn check_extents(extents: &[LogExtent], device_blocks: u64) -> Result<u32> {
    let mut next = 0u32;
    for extent in extents {
        if extent.logical != next {
            return Err(corrupt("logical block").found(extent.logical).expected(next).into());
        }
        let end =
            extent.physical.checked_add(u64::from(extent.len)).filter(|&end| end <= device_blocks);
        let after = next.checked_add(extent.len).filter(|_| end.is_some() && extent.len > 0);
        next = after.ok_or_else(|| {
            corrupt("extent's end").found(extent.physical).expected(device_blocks)
        })?;
    }
    check_distinct(extents)?;
    Ok(next)
}

/// Checks that no block is in two of the extents.
fn check_distinct(extents: &[LogExtent]) -> Result<()> {
    let mut runs: Vec<(u64, u32)> =
        extents.iter().map(|extent| (extent.physical, extent.len)).collect();
    runs.sort_unstable();
    for pair in runs.windows(2) {
        if let [(first, len), (second, _)] = *pair
            && second - first < u64::from(len)
        {
            return Err(corrupt("block that it has twice").found(second).at_block(second).into());
        }
    }
    Ok(())
}

fn offset(extents: &[LogExtent], logical: u32, block_size: u32) -> Result<u64> {
    let index = extents.partition_point(|extent| extent.logical <= logical);
    let extent = index.checked_sub(1).and_then(|index| extents.get(index));
    let physical = extent.and_then(|extent| {
        let within = logical - extent.logical;
        (within < extent.len).then(|| extent.physical.checked_add(u64::from(within)))?
    });
    physical
        .and_then(|physical| physical.checked_mul(u64::from(block_size)))
        .ok_or_else(|| corrupt("block").found(logical).into())
}

fn read_superblock(
    device: &dyn BlockDevice,
    extents: &[LogExtent],
    block_size: u32,
    place: LogPlace,
) -> Result<JournalSuperblock> {
    let mut bytes = [0; JOURNAL_SUPERBLOCK_SIZE];
    device.read_exact_at(&mut bytes, offset(extents, place.superblock(block_size), block_size)?)?;
    Ok(JournalSuperblock::parse(&bytes)?)
}

fn check_superblock(
    superblock: &JournalSuperblock,
    block_size: u32,
    blocks: u32,
    at: u32,
) -> Result<()> {
    if superblock.block_size() != block_size {
        return Err(corrupt("block size")
            .found(superblock.block_size())
            .expected(block_size)
            .into());
    }
    if superblock.max_len() > blocks {
        return Err(corrupt("length").found(superblock.max_len()).expected(blocks).into());
    }
    if superblock.first() <= at || superblock.first() >= superblock.log_end() {
        return Err(corrupt("first block")
            .found(superblock.first())
            .expected(superblock.log_end())
            .into());
    }
    if superblock.unknown_incompat() != 0 {
        return Err(Error::Unsupported("a journal feature that is not known"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(logical: u32, physical: u64, len: u32) -> LogExtent {
        LogExtent { logical, physical, len }
    }

    #[test]
    fn extents_must_be_a_row_on_the_device() {
        assert_eq!(check_extents(&[extent(0, 10, 5), extent(5, 90, 10)], 100).unwrap(), 15);
        for bad in [
            vec![extent(0, 10, 5), extent(6, 20, 1)],
            vec![extent(1, 10, 5)],
            vec![extent(0, 96, 5)],
            vec![extent(0, u64::MAX, 5)],
            vec![extent(0, 10, 5), extent(5, 20, 0)],
        ] {
            assert!(check_extents(&bad, 100).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn blocks_have_places() {
        let extents = [extent(0, 10, 5), extent(5, 90, 10)];
        assert_eq!(offset(&extents, 4, 1024).unwrap(), 14 * 1024);
        assert_eq!(offset(&extents, 5, 1024).unwrap(), 90 * 1024);
        assert!(offset(&extents, 15, 1024).is_err());
        assert!(offset(&[], 0, 1024).is_err());
    }
}
