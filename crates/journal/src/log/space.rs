//! The transactions in the log, and the log's head and tail.
//!
//! For example, in a log of 55 blocks transactions 7 (blocks 1 to 20) and 8 (blocks 21 to 30) are
//! in the queue, and the head is block 31. When the blocks of 7 are home, the superblock gets the
//! start 21; after its flush, blocks 1 to 20 are free.
//!
//! # Invariants
//! 1. `queue` holds the transactions in the log in order: the oldest begins at the start in the
//!    superblock on the medium, each next one at the end of the one before, and `head` is the end
//!    of the last. `used` is their total length.
//! 2. A transaction leaves `queue` only when the superblock that no longer includes it is durable.
//!
//! # Locking
//! One mutex (`JournalState`), held over writes of the superblock, so that these are ordered, too.

use super::{Log, LogFeatures, LogPlace};
use crate::error::{Error, Result};
use crate::flush::Flusher;
use crate::gate::Gate;
use crate::stats::{Counters, count};
use crate::tid::Tid;
use extant_format::jbd2::{JournalFormat, JournalSuperblock};
use extant_sync::{Arc, Level, Mutex};
use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct LogSpace {
    log: Log,
    format: JournalFormat,
    /// Flushes the log's device, which is the file system's unless the log is external.
    flusher: Arc<Flusher>,
    counters: Arc<Counters>,
    /// Blocks that may join while a transaction freezes.
    spare: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    superblock: JournalSuperblock,
    head: u32,
    used: u32,
    queue: VecDeque<InLog>,
}

#[derive(Debug)]
struct InLog {
    tid: Tid,
    start: u32,
    len: u32,
}

impl LogSpace {
    pub fn new(
        log: Log,
        features: LogFeatures,
        home: &Arc<Flusher>,
        counters: &Arc<Counters>,
    ) -> Result<LogSpace> {
        if log.needs_recovery() {
            return Err(Error::NeedsRecovery);
        }
        let flusher = match log.place() {
            LogPlace::Inside => Arc::clone(home),
            LogPlace::External => {
                Arc::new(Flusher::new(Arc::clone(log.device()), Arc::clone(counters)))
            }
        };
        let superblock = log.prepare(features)?;
        let state = State { head: superblock.first(), used: 0, queue: VecDeque::new(), superblock };
        // Blocks that join late are not paid for by credits, so every transaction keeps space for
        // them.
        let spare = (log.capacity() / 64).clamp(1, 64);
        let space = LogSpace {
            format: state.superblock.format(),
            flusher,
            counters: Arc::clone(counters),
            spare,
            state: Mutex::new(Level::JournalState, state),
            log,
        };
        if space.max_credits() == 0 {
            return Err(Error::Unsupported("a journal of so few blocks"));
        }
        Ok(space)
    }

    pub fn format(&self) -> &JournalFormat {
        &self.format
    }

    pub fn log(&self) -> &Log {
        &self.log
    }

    pub fn flusher(&self) -> &Arc<Flusher> {
        &self.flusher
    }

    /// Returns the number of blocks that may join a transaction while it freezes.
    pub fn spare(&self) -> u32 {
        self.spare
    }

    /// Returns the first transaction of this session. Its sequence is above every sequence that may
    /// have been written to the log, including the one in the superblock of an empty log.
    pub fn first_tid(&self) -> Tid {
        Tid::first(self.log.superblock().sequence().wrapping_add(1))
    }

    /// Returns the most credits: those of a quarter of the log, so that handles rarely wait for a
    /// checkpoint.
    pub fn max_credits(&self) -> u32 {
        self.credits_in(self.log.capacity() / 4)
    }

    fn credits_in(&self, blocks: u32) -> u32 {
        credits_in(blocks, self.spare, self.format.tags_per_block() as u32)
    }

    fn limit(&self, state: &State) -> u32 {
        self.credits_in(self.log.capacity().saturating_sub(state.used)).min(self.max_credits())
    }

    /// Returns whether a checkpoint is due.
    pub fn is_crowded(&self) -> bool {
        self.state.lock().used > self.log.capacity() / 2
    }

    /// Allocates the blocks of a frozen transaction, and sets the gate's limit for its successor.
    /// Returns the first block. [`LogSpace::begin`] must follow.
    pub fn allocate(&self, tid: Tid, len: u32, gate: &Gate, max_credits: u32) -> Result<u32> {
        let mut state = self.state.lock();
        let used = state.used.saturating_add(len);
        if used > self.log.capacity() {
            let available = self.log.capacity() - state.used;
            return Err(Error::NoCredits { wanted: len, available });
        }
        let start = state.head;
        state.queue.push_back(InLog { tid, start, len });
        state.used = used;
        state.head = self.advance(start, len);
        // Under the lock, as in `advance_tail`.
        gate.reset(self.limit(&state).min(max_credits));
        Ok(start)
    }

    /// Writes a transaction to the superblock as the first of the log, if that is empty. The write
    /// becomes durable with the flush before the transaction's commit record.
    ///
    /// # Errors
    /// [`Error::NoSpace`], after which the caller may begin again; those of the device.
    pub fn begin(&self, tid: Tid, start: u32) -> Result<()> {
        let mut state = self.state.lock();
        if state.superblock.start() != 0 {
            return Ok(());
        }
        let sequence = state.superblock.sequence();
        state.superblock.set_start(start);
        state.superblock.set_sequence(tid.sequence());
        let written = self.log.write_superblock(&state.superblock).map_err(Error::of_write);
        match written {
            Ok(()) => {
                self.flusher.note_write();
            }
            Err(_) => {
                state.superblock.set_start(0);
                state.superblock.set_sequence(sequence);
            }
        }
        written
    }

    fn write_superblock(&self, state: &State) -> Result<()> {
        self.log.write_superblock(&state.superblock)?;
        self.flusher.note_write();
        Ok(())
    }

    fn advance(&self, start: u32, len: u32) -> u32 {
        let (first, capacity) = (self.log.superblock().first(), self.log.capacity());
        // Both terms are at most the capacity, which is less than the log's length.
        first + ((u64::from(start - first) + u64::from(len)) % u64::from(capacity)) as u32
    }

    /// Moves the tail to `tail`; the copies of all transactions before it must be home and flushed.
    /// Writes the superblock and frees the space. If nothing is left in the log and `empty` is set,
    /// marks the log empty. Raises the gate's limit accordingly.
    pub fn advance_tail(
        &self,
        tail: Tid,
        empty: bool,
        gate: &Gate,
        max_credits: u32,
    ) -> Result<()> {
        let mut state = self.state.lock();
        if state.superblock.start() != 0 {
            self.move_tail(&mut state, tail, empty)?;
        }
        // Under the lock, so that no transaction is allocated in between, whose successor would get
        // this limit.
        let raised = gate.raise(self.limit(&state).min(max_credits));
        drop(state);
        if raised {
            gate.wake();
        }
        Ok(())
    }

    fn move_tail(&self, state: &mut State, tail: Tid, empty: bool) -> Result<()> {
        let gone = state.queue.iter().take_while(|in_log| in_log.tid < tail).count();
        let begin = state.queue.get(gone).map(|in_log| in_log.start);
        let empties = empty && begin.is_none();
        if gone == 0 && !empties {
            return Ok(());
        }
        let head = state.head;
        state.superblock.set_start(if empties { 0 } else { begin.unwrap_or(head) });
        state.superblock.set_head(if empties { head } else { 0 });
        state.superblock.set_sequence(tail.sequence());
        // The space is free for new transactions only once the superblock without it is durable.
        self.write_superblock(state)?;
        self.flusher.flush()?;
        let freed: u32 = state.queue.drain(..gone).map(|in_log| in_log.len).sum();
        state.used -= freed;
        count(&self.counters.local().tail_moves, 1);
        Ok(())
    }

    /// Writes an errno (0 for none) to the superblock.
    pub fn record_error(&self, errno: i32) -> Result<()> {
        let mut state = self.state.lock();
        if state.superblock.errno() == errno {
            return Ok(());
        }
        state.superblock.set_errno(errno);
        self.write_superblock(&state)?;
        self.flusher.flush()
    }
}

/// Returns how many blocks of metadata and of revokes are certain to fit into `blocks` blocks of
/// the log, besides `spare` blocks that join late.
fn credits_in(blocks: u32, spare: u32, tags_per_block: u32) -> u32 {
    let tags = u64::from(tags_per_block);
    // Subtracts the commit record, and the blocks that join late with their descriptors.
    let usable = blocks.saturating_sub(1).saturating_sub(spare.saturating_mul(2));
    (u64::from(usable) * tags / (tags + 1)) as u32
}

#[cfg(test)]
mod tests {
    use super::credits_in;

    #[test]
    fn credits_fit_for_copies_and_revokes() {
        for (tags, spare) in [(62, 1), (254, 16), (3, 2)] {
            for blocks in 0..2000u32 {
                let credits = credits_in(blocks, spare, tags);
                // All of them copies, which is the worst case: a revoke block has no descriptor.
                let copies = credits + spare;
                let needed = copies + copies.div_ceil(tags) + 1;
                assert!(credits == 0 || needed <= blocks, "{credits} in {blocks}");
            }
        }
    }
}
