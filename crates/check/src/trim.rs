//! Blocks of a file system at rest whose content counts for nothing, and their release.
//!
//! [`Trim::plan`] checks the file system, and goes on only without damage: its maps and its bitmaps
//! then agree on each block. Unused are the free clusters and, while the log is empty, all blocks
//! of the log behind its superblock. For example, a file of blocks 100 to 149 is removed. Once the
//! log is empty, these blocks, and the copies of the removal in the log, are unused.
//!
//! [`TrimPlan::apply`] discards these blocks and writes nothing. A crash in the middle leaves the
//! same file system, with a part of its unused blocks released.
//!
//! # Order of writes
//! The device is flushed before the first discard. Otherwise the discard of a block could outlive a
//! power cut that undoes the metadata by which the block is free, or the log empty.

use crate::claims::ClaimMap;
use crate::finding::{CheckSummary, Findings};
use crate::parallel::Workers;
use crate::survey::Passes;
use crate::view::{Source, View, is_in_use};
use extant_blocks::BlockDevice;
use extant_format::superblock::State;
use extant_format::{Compat, Geometry, GroupNr, Incompat, InodeNr, bitmap};
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The reason why a file system is not trimmed. No block was discarded, unless the variant says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrimError {
    /// No primary superblock that can be used.
    #[error("no usable superblock was found")]
    NoSuperblock,
    /// The log has changes that a recovery must make first.
    #[error("the journal needs recovery")]
    NeedsRecovery,
    /// The file system is marked as having errors.
    #[error("the file system is marked as having errors")]
    HasErrors,
    /// The file system, which has no journal, was not unmounted.
    #[error("the file system was not unmounted")]
    NotUnmounted,
    /// The file system has an external journal whose device was not named.
    #[error("the journal is on another device")]
    NoJournal,
    /// The check found damage: free blocks may be in use.
    #[error("the file system is damaged")]
    Damaged(CheckSummary),
    /// Another host uses the file system, or did when it failed.
    #[error("another host uses the file system, or did when it failed (MMP)")]
    InUse,
    /// The trim was interrupted. A part of the unused blocks may be discarded.
    #[error("interrupted")]
    Interrupted,
    /// The device failed, or cannot discard. A part of the unused blocks may be discarded.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A trim of the file system on a device that nothing else has open.
pub struct Trim {
    device: Arc<dyn BlockDevice>,
    journal: Option<Arc<dyn BlockDevice>>,
    threads: usize,
    stop: Arc<AtomicBool>,
}

impl Trim {
    /// Makes a trim with one thread.
    pub fn new(device: Arc<dyn BlockDevice>) -> Trim {
        Trim { device, journal: None, threads: 1, stop: Arc::new(AtomicBool::new(false)) }
    }

    /// Sets the device of the journal, for file systems with an external one. It is read only.
    #[must_use]
    pub fn journal(mut self, device: Arc<dyn BlockDevice>) -> Self {
        self.journal = Some(device);
        self
    }

    /// Sets the number of threads of the check; 0 counts as 1.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Sets a flag that ends the trim early.
    #[must_use]
    pub fn interrupt(mut self, flag: Arc<AtomicBool>) -> Self {
        self.stop = flag;
        self
    }

    /// Finds the unused blocks. The device is only read.
    ///
    /// # Errors
    /// A file system that needs recovery or repair first, or that another host uses; those of the
    /// device.
    pub fn plan(self) -> Result<TrimPlan, TrimError> {
        let mut ignored = |_| ();
        let mut findings = Findings::new(&mut ignored);
        let source = Source { device: &self.device, journal: self.journal.as_ref(), as_is: true };
        let view = source.view(&mut findings).ok_or(TrimError::NoSuperblock)?;
        self.check_state(&view)?;
        let workers = Workers { threads: self.threads, stop: &self.stop };
        // The log is empty, so that orphans are those of a clean unmount. They have their blocks.
        let passes = Passes { as_is: false, workers, progress: None };
        let survey = passes.run(&view, &mut findings).ok_or(TrimError::Interrupted)?;
        let claims = survey.claims;
        let summary = findings.summary();
        if !summary.is_clean() {
            return Err(TrimError::Damaged(summary));
        }
        let log = source.open_log(&view.primary).map_err(|error| match error {
            extant_journal::Error::Io(error) => io::Error::new(error.kind(), error).into(),
            _ => TrimError::Damaged(summary),
        })?;
        let geometry = view.primary.geometry;
        let unused = log.map(|log| log.unused_blocks()).unwrap_or_default();
        let mut log: Vec<Range<u64>> =
            unused.into_iter().map(|(start, end)| in_bytes(&geometry, start..end)).collect();
        log.sort_unstable_by_key(|range| range.start);
        Ok(TrimPlan { device: self.device, geometry, claims, log, stop: self.stop })
    }

    /// Refuses a file system whose bitmaps may be older than its content.
    fn check_state(&self, view: &View) -> Result<(), TrimError> {
        let sb = &view.primary.superblock;
        let is_external = sb.journal_inum() == InodeNr::NONE;
        if is_in_use(&*self.device, sb, &view.primary.geometry)? {
            Err(TrimError::InUse)
        } else if sb.incompat().contains(Incompat::RECOVER) {
            Err(TrimError::NeedsRecovery)
        } else if sb.state().contains(State::ERROR) {
            Err(TrimError::HasErrors)
        } else if !sb.state().contains(State::VALID) {
            Err(TrimError::NotUnmounted)
        } else if sb.compat().contains(Compat::HAS_JOURNAL) && is_external && self.journal.is_none()
        {
            Err(TrimError::NoJournal)
        } else {
            Ok(())
        }
    }
}

impl fmt::Debug for Trim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Trim");
        out.field("device", &self.device.name()).field("threads", &self.threads);
        out.finish_non_exhaustive()
    }
}

/// The unused blocks of an undamaged file system. Dropping it changes nothing.
pub struct TrimPlan {
    device: Arc<dyn BlockDevice>,
    geometry: Geometry,
    /// The clusters in use.
    claims: ClaimMap,
    /// The unused blocks of the log, in bytes of the device.
    log: Vec<Range<u64>>,
    stop: Arc<AtomicBool>,
}

impl TrimPlan {
    /// Returns the free space, in bytes of the device: disjoint ranges in ascending order, each
    /// within a group.
    pub fn free(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let groups = (0..self.geometry.groups_count).map(GroupNr);
        groups.flat_map(|group| self.free_in(group))
    }

    /// Returns the unused blocks of the log, in bytes of the device: disjoint ranges in ascending
    /// order.
    pub fn log(&self) -> &[Range<u64>] {
        &self.log
    }

    /// Returns everything but the free space and the unused blocks of the log, in bytes of the
    /// device: disjoint ranges in ascending order. Content behind the file system counts as used.
    pub fn used(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let (mut free, mut log) = (self.free().peekable(), self.log.iter().cloned().peekable());
        let (mut at, len) = (0, self.device.len());
        std::iter::from_fn(move || {
            while at < len {
                let log_is_next = match (free.peek(), log.peek()) {
                    (Some(free), Some(log)) => log.start < free.start,
                    (free, _) => free.is_none(),
                };
                let unused = if log_is_next { log.next() } else { free.next() };
                let unused = unused.unwrap_or(len..len);
                let used = at..unused.start.min(len);
                at = unused.end.max(at);
                if !used.is_empty() {
                    return Some(used);
                }
            }
            None
        })
    }

    fn free_in(&self, group: GroupNr) -> Vec<Range<u64>> {
        let mut bits = vec![0; self.geometry.block_size as usize];
        self.claims.copy_group(group, &mut bits);
        let len = self.geometry.clusters_in_group(group) as usize;
        let (mut from, mut free) = (0, Vec::new());
        while let Some(run) = bitmap::next_zero_run(&bits, from, len) {
            from = run.end;
            let block = |bit: usize| self.geometry.block_of_bit(group, bit as u32).0;
            // The last cluster may end behind the file system.
            let end = block(run.end).min(self.geometry.blocks_count);
            free.push(in_bytes(&self.geometry, block(run.start)..end));
        }
        free
    }

    /// Returns the number of bytes that the device stores for the unused blocks, as far as it tells
    /// data from holes.
    ///
    /// # Errors
    /// Those of the device.
    pub fn stored_bytes(&self) -> io::Result<u64> {
        let free = self.stored_in(self.free())?;
        Ok(free.saturating_add(self.stored_in(self.log.iter().cloned())?))
    }

    /// Adds up the data in ascending ranges.
    fn stored_in(&self, ranges: impl Iterator<Item = Range<u64>>) -> io::Result<u64> {
        // The first data at or behind the place that was asked for last.
        let (mut data, mut sum) = (0..0, 0u64);
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                if data.end <= at {
                    let Some(next) = self.device.next_data(at)? else { return Ok(sum) };
                    data = next;
                }
                let (start, end) = (data.start.max(at), data.end.min(range.end));
                sum = sum.saturating_add(end.saturating_sub(start));
                at = data.end.max(at.saturating_add(1));
            }
        }
        Ok(sum)
    }

    /// Discards the unused blocks, and nothing else. `progress` receives the length of each range
    /// that was discarded, in bytes.
    ///
    /// # Errors
    /// [`TrimError::Interrupted`]; [`TrimError::Io`], of kind `Unsupported` from a device that
    /// cannot discard. The file system is the same after each error.
    pub fn apply(&self, progress: &mut dyn FnMut(u64)) -> Result<(), TrimError> {
        // No power cut may undo the metadata by which the blocks are unused.
        self.device.flush()?;
        for range in self.free().chain(self.log.iter().cloned()) {
            // Relaxed: the flag orders nothing, and may be seen a range later.
            if self.stop.load(Ordering::Relaxed) {
                return Err(TrimError::Interrupted);
            }
            let len = range.end.saturating_sub(range.start);
            self.device.discard(range.start, len)?;
            progress(len);
        }
        Ok(self.device.flush()?)
    }
}

impl fmt::Debug for TrimPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrimPlan").field("device", &self.device.name()).finish_non_exhaustive()
    }
}

/// Returns a range of blocks in bytes.
fn in_bytes(geometry: &Geometry, blocks: Range<u64>) -> Range<u64> {
    let size = u64::from(geometry.block_size);
    blocks.start.saturating_mul(size)..blocks.end.saturating_mul(size)
}
