//! The replay of a scanned log.

use super::overlay::Overlay;
use super::scan::Copy;
use super::{FastCommits, Outcome, scan};
use crate::error::{Error, Result};
use crate::log::record::{Record, blocks_needed};
use crate::log::{Log, LogFeatures};
use extant_blocks::{BlockDevice, Plug};
use extant_format::jbd2;
use extant_format::types::Timestamp;
use extant_sync::Arc;

/// Copies in memory at a time.
const BATCH: usize = 256;

/// The copies and fast commits to replay.
#[derive(Debug)]
pub struct Replay {
    log: Log,
    /// One copy for each block, in order of blocks.
    copies: Vec<Copy>,
    fast: FastCommits,
    outcome: Outcome,
    /// The block of the log behind the last transaction.
    next: u32,
}

impl Replay {
    pub(super) fn new(
        log: Log,
        copies: Vec<Copy>,
        fast: FastCommits,
        outcome: Outcome,
        next: u32,
    ) -> Replay {
        Replay { log, copies, fast, outcome, next }
    }

    /// Returns the result of the scan.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Returns whether the replay changes nothing in the file system.
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// The fast commits that follow on the full ones.
    pub fn fast_commits(&self) -> &FastCommits {
        &self.fast
    }

    /// Writes all copies home to `device`, flushes, and then marks the log empty. The scanned
    /// [`Log`] still has the old superblock: it must be opened again, as [`recover`] does.
    ///
    /// # Errors
    /// I/O errors; the log is then unchanged. [`Unsupported`](crate::Error::Unsupported) if fast
    /// commits follow, which the file system must replay.
    pub fn apply(&self, device: &dyn BlockDevice) -> Result<Outcome> {
        if !self.log.needs_recovery() {
            return Ok(self.outcome);
        }
        if !self.fast.is_empty() {
            return Err(Error::Unsupported("replaying fast commits without their file system"));
        }
        self.bring_home(device)?;
        self.mark_empty()?;
        Ok(self.outcome)
    }

    /// As [`Replay::apply`]. Returns the log after the replay.
    ///
    /// # Errors
    /// As [`Replay::apply`].
    pub fn finish(self, device: &dyn BlockDevice) -> Result<Log> {
        self.apply(device)?;
        self.log.reopen()
    }

    fn bring_home(&self, device: &dyn BlockDevice) -> Result<()> {
        for copies in self.copies.chunks(BATCH) {
            self.write_home(device, copies)?;
        }
        Ok(device.flush()?)
    }

    /// Writes the full commits home to `device`, flushes, and moves the log's start behind them.
    /// The fast commits stay valid, and the next recovery replays them. The log's features stay as
    /// well: behind the full commits there may be a torn transaction, which the features
    /// distinguish from a complete one.
    ///
    /// # Errors
    /// I/O errors; [`Unsupported`](crate::Error::Unsupported) for a log that cannot be written.
    pub fn apply_full(&self, device: &dyn BlockDevice) -> Result<()> {
        // Only the check is needed, not the resulting superblock.
        self.log.prepare(LogFeatures::default())?;
        let mut superblock = self.log.superblock().clone();
        self.bring_home(device)?;
        superblock.set_start(self.next);
        superblock.set_sequence(self.outcome.end);
        self.log.write_superblock(&superblock)?;
        Ok(self.log.device().flush()?)
    }

    /// Makes a full commit of `blocks`, the result of the fast commits, after
    /// [`Replay::apply_full`]. Once its record is durable, the fast commits no longer count; until
    /// then, only they count. Returns the log to recover.
    ///
    /// # Errors
    /// I/O errors; [`Unsupported`](crate::Error::Unsupported) if the log is too small for the
    /// blocks.
    pub fn append(self, blocks: &[(u64, Arc<[u8]>)], time: Timestamp) -> Result<Log> {
        let log = self.log.reopen()?;
        let format = log.superblock().format();
        let wide = blocks.iter().any(|(nr, _)| *nr > u64::from(u32::MAX));
        if wide && !format.bit64 {
            return Err(Error::Unsupported("a log of 32 bits for so large a file system"));
        }
        if blocks_needed(&format, blocks.len(), 0) >= log.capacity() {
            return Err(Error::Unsupported(
                "fast commits that change more blocks than the log holds",
            ));
        }
        let record = Record::build(&format, self.outcome.end, blocks, &[], time);
        let (device, mut at) = (Arc::clone(log.device()), self.next);
        for piece in &record.body {
            device.write_all_at(piece, log.offset(at)?)?;
            at = log.after(at);
        }
        if let Some(blank) = &record.blank {
            device.write_all_at(blank, log.offset(at)?)?;
        }
        device.flush()?;
        // The commit record follows the flush of all that it covers.
        device.write_all_at(&record.commit, log.offset(at)?)?;
        device.flush()?;
        log.reopen()
    }

    fn write_home(&self, device: &dyn BlockDevice, copies: &[Copy]) -> Result<()> {
        let size = self.log.block_size();
        let mut plug = Plug::new(device);
        for copy in copies {
            let mut block = vec![0; size];
            self.read(copy, &mut block)?;
            plug.add(copy.block.saturating_mul(size as u64), block);
        }
        plug.finish()?;
        Ok(())
    }

    /// Marks the log empty without writing any copies home.
    ///
    /// # Errors
    /// I/O errors; the log is then unchanged.
    pub fn discard(&self) -> Result<()> {
        self.mark_empty()
    }

    /// Marks the log empty. The next session starts above the sequence of a torn transaction.
    fn mark_empty(&self) -> Result<()> {
        let mut superblock = self.log.superblock().clone();
        superblock.set_start(0);
        superblock.set_head(superblock.first());
        superblock.set_sequence(self.outcome.end.wrapping_add(1));
        self.log.write_superblock(&superblock)?;
        Ok(self.log.device().flush()?)
    }

    /// Returns the file system on `base` as it will be after the replay, for reading only.
    pub fn overlay(self, base: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        if self.is_empty() { base } else { Arc::new(Overlay::new(base, self)) }
    }

    pub(super) fn block_size(&self) -> usize {
        self.log.block_size()
    }

    /// Returns the first copy of `nr` or of a later block.
    pub(super) fn copy_from(&self, nr: u64) -> Option<&Copy> {
        self.copies.get(self.copies.partition_point(|copy| copy.block < nr))
    }

    /// Reads a copy in its form for the home location.
    pub(super) fn read(&self, copy: &Copy, block: &mut [u8]) -> Result<()> {
        self.log.read(copy.at, block)?;
        if copy.escaped {
            jbd2::unescape(block);
        }
        Ok(())
    }
}

/// Scans a log and replays it onto `device`. Returns the log after the replay.
///
/// # Errors
/// As [`scan`] and [`Replay::apply`].
pub fn recover(log: Log, device: &dyn BlockDevice, fs_blocks: u64) -> Result<(Log, Outcome)> {
    if !log.needs_recovery() {
        let outcome = scan(&log, fs_blocks)?.outcome();
        return Ok((log, outcome));
    }
    let outcome = scan(&log, fs_blocks)?.apply(device)?;
    Ok((log.reopen()?, outcome))
}
