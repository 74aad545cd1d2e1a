//! Bringing home what a scan found.

use super::overlay::Overlay;
use super::scan::Copy;
use super::{Outcome, scan};
use crate::error::Result;
use crate::log::Log;
use extant_blocks::{BlockDevice, Plug};
use extant_format::jbd2;
use extant_sync::Arc;

/// Copies in memory at a time.
const BATCH: usize = 256;

/// What is to be replayed.
#[derive(Debug)]
pub struct Replay {
    log: Log,
    /// One for each block, in the order of the blocks.
    copies: Vec<Copy>,
    outcome: Outcome,
}

impl Replay {
    pub(super) fn new(log: Log, copies: Vec<Copy>, outcome: Outcome) -> Replay {
        Replay { log, copies, outcome }
    }

    /// What the log held.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Whether replaying changes nothing on the file system.
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// Writes everything home to `device`, flushes, and then marks the log empty. The [`Log`] that was scanned still
    /// knows the old superblock: open it again, as [`recover`] does.
    ///
    /// # Errors
    /// I/O errors; the log is as it was then.
    pub fn apply(&self, device: &dyn BlockDevice) -> Result<Outcome> {
        if !self.log.needs_recovery() {
            return Ok(self.outcome);
        }
        for copies in self.copies.chunks(BATCH) {
            self.write_home(device, copies)?;
        }
        device.flush()?;
        self.mark_empty()?;
        Ok(self.outcome)
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

    /// Marks the log empty without bringing anything home.
    ///
    /// # Errors
    /// I/O errors; the log is as it was then.
    pub fn discard(&self) -> Result<()> {
        self.mark_empty()
    }

    /// The next session starts above the sequence of a transaction that was torn.
    fn mark_empty(&self) -> Result<()> {
        let mut superblock = self.log.superblock().clone();
        superblock.set_start(0);
        superblock.set_head(superblock.first());
        superblock.set_sequence(self.outcome.end.wrapping_add(1));
        self.log.write_superblock(&superblock)?;
        Ok(self.log.device().flush()?)
    }

    /// The file system on `base` as it will be after the replay, for reading only.
    pub fn overlay(self, base: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        if self.is_empty() { base } else { Arc::new(Overlay::new(base, self)) }
    }

    pub(super) fn block_size(&self) -> usize {
        self.log.block_size()
    }

    /// The first copy of `nr` or a block after it.
    pub(super) fn copy_from(&self, nr: u64) -> Option<&Copy> {
        self.copies.get(self.copies.partition_point(|copy| copy.block < nr))
    }

    /// Reads a copy as it is to be at home.
    pub(super) fn read(&self, copy: &Copy, block: &mut [u8]) -> Result<()> {
        self.log.read(copy.at, block)?;
        if copy.escaped {
            jbd2::unescape(block);
        }
        Ok(())
    }
}

/// Scans a log, replays it onto `device` and gives the log as it is then.
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
