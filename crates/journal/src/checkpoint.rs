//! Checkpoints: committed copies are written to their home locations.
//!
//! For example, block 100 was committed by transactions 7 and 9. Only the copy of 9 is pending.
//! Once it is home and flushed, and no older copy is pending, the log's tail moves past 9.
//!
//! # Invariants
//! 1. `pending` holds, for each block with a durable copy that is not known to be home, the newest
//!    such copy. The copy is there before its transaction is announced as durable.
//! 2. `live` counts the entries of `pending` by transaction.
//! 3. The log's tail is never past the oldest transaction in `live`, nor past the oldest that is
//!    not durable.
//! 4. A block in `in_flight` may be written home at any moment; other blocks are not.
//! 5. `pending` has at most twice `max_pending` entries, plus those of one transaction.
//!
//! # Locking
//! One mutex (`JournalList`), not held over I/O.

use crate::error::Result;
use crate::members::Pinned;
use crate::shared::{AbortOnPanic, Core, Logged};
use crate::stats::count;
use crate::tid::Tid;
use extant_blocks::Plug;
use extant_sync::atomic::Ordering::SeqCst;
use extant_sync::{Arc, Condvar, Level, Mutex};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Blocks written home at a time. A commit that frees blocks may have to wait for one such batch.
const BATCH: usize = 1024;

/// The frozen copy of a block.
#[derive(Debug)]
pub(crate) struct FrozenBlock {
    pub nr: u64,
    pub bytes: Arc<[u8]>,
    /// Keeps the block in the cache, since the device's contents are old.
    pub pinned: Pinned,
}

#[derive(Debug)]
pub(crate) struct Checkpoint {
    state: Mutex<State>,
    /// For the checkpoint thread.
    work: Condvar,
    /// For threads that wait for a pass or a batch.
    done: Condvar,
    /// More entries than this start a pass.
    max_pending: usize,
    /// The longest wait of an entry for a pass without a request.
    interval: Duration,
}

#[derive(Debug, Default)]
struct State {
    pending: FxHashMap<u64, Entry>,
    live: BTreeMap<Tid, u32>,
    in_flight: FxHashSet<u64>,
    /// Numbers of passes: the last requested; the last requested that must empty the log; the last
    /// begun; the last ended.
    asked: u64,
    asked_empty: u64,
    begun: u64,
    ended: u64,
    /// The time at which the next pass begins without a request.
    deadline: Option<Instant>,
    stopped: bool,
}

#[derive(Debug)]
struct Entry {
    tid: Tid,
    bytes: Arc<[u8]>,
    _pinned: Pinned,
}

impl State {
    fn remove(&mut self, nr: u64) -> Option<Entry> {
        let entry = self.pending.remove(&nr)?;
        self.forget_live(entry.tid);
        Some(entry)
    }

    fn forget_live(&mut self, tid: Tid) {
        if let Some(count) = self.live.get_mut(&tid) {
            *count -= 1;
            if *count == 0 {
                self.live.remove(&tid);
            }
        }
    }
}

impl Checkpoint {
    pub fn new(max_pending: usize, interval: Duration) -> Checkpoint {
        Checkpoint {
            state: Mutex::new(Level::JournalList, State::default()),
            work: Condvar::new(),
            done: Condvar::new(),
            max_pending,
            interval,
        }
    }

    /// Takes over the copies of a transaction that is durable in the log, drops the copies of the
    /// blocks that it revoked, and returns once no home write of these is in flight. Returns true
    /// if a pass should begin because of the number of copies.
    pub fn add(&self, tid: Tid, blocks: Vec<FrozenBlock>, revoked: &[u64]) -> bool {
        let mut state = self.state.lock();
        if !blocks.is_empty() {
            state.live.insert(tid, blocks.len() as u32);
        }
        for FrozenBlock { nr, bytes, pinned } in blocks {
            let entry = Entry { tid, bytes, _pinned: pinned };
            if let Some(older) = state.pending.insert(nr, entry) {
                state.forget_live(older.tid);
            }
        }
        for &nr in revoked {
            state.remove(nr);
        }
        // After an abort, no block is allocated, so the wait is unnecessary; and perhaps no thread
        // is left to end it.
        self.done.wait_while(&mut state, |state| {
            !state.stopped && revoked.iter().any(|nr| state.in_flight.contains(nr))
        });
        if state.deadline.is_none() && !state.pending.is_empty() {
            state.deadline = Instant::now().checked_add(self.interval);
            self.work.notify_one();
        }
        state.pending.len() > self.max_pending
    }

    /// Waits until few enough copies are kept to add those of another transaction. Returns whether
    /// it had to wait. The caller must hold nothing that the checkpointer needs.
    pub fn wait_for_room(&self) -> bool {
        let mut state = self.state.lock();
        let full = |state: &mut State| {
            !state.stopped && state.pending.len() > self.max_pending.saturating_mul(2)
        };
        let waits = full(&mut state);
        while full(&mut state) {
            state.asked = state.begun + 1;
            self.work.notify_one();
            self.done.wait(&mut state);
        }
        waits
    }

    /// Returns the oldest transaction with a copy that is not home.
    fn oldest(&self) -> Option<Tid> {
        self.state.lock().live.first_key_value().map(|(tid, _)| *tid)
    }

    /// Requests a pass.
    pub fn ask(&self) {
        let mut state = self.state.lock();
        state.asked = state.begun + 1;
        self.work.notify_one();
    }

    /// Requests a pass and waits for its end, or for the end of the thread.
    pub fn wait_for_pass(&self) {
        let mut state = self.state.lock();
        let pass = state.begun + 1;
        state.asked = pass;
        self.work.notify_one();
        self.done.wait_while(&mut state, |state| state.ended < pass && !state.stopped);
    }

    /// Waits until all copies that are durable now are home, and until the log is marked empty if
    /// it is. Returns false if that will not happen.
    pub fn wait_for_all(&self) -> bool {
        let mut state = self.state.lock();
        let pass = state.begun + 1;
        (state.asked, state.asked_empty) = (pass, pass);
        self.work.notify_one();
        self.done.wait_while(&mut state, |state| state.ended < pass && !state.stopped);
        state.ended >= pass
    }

    /// Waits until a pass is needed. Returns whether it must leave an empty log; `None` if the
    /// thread must end.
    fn next_pass(&self) -> Option<bool> {
        let mut state = self.state.lock();
        loop {
            let due = state.deadline.is_some_and(|deadline| deadline <= Instant::now());
            match state.deadline {
                _ if state.stopped => return None,
                _ if due || state.asked > state.begun => break,
                Some(deadline) => drop(self.work.wait_until(&mut state, deadline)),
                None => self.work.wait(&mut state),
            }
        }
        state.deadline = None;
        state.begun += 1;
        Some(state.asked_empty >= state.begun)
    }

    fn end_pass(&self) {
        let mut state = self.state.lock();
        state.ended = state.begun;
        self.done.notify_all();
    }

    /// Ends the thread and all waits.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.work.notify_all();
        self.done.notify_all();
    }

    /// Returns the blocks with pending copies in order.
    fn blocks(&self) -> Vec<u64> {
        let mut blocks: Vec<u64> = self.state.lock().pending.keys().copied().collect();
        blocks.sort_unstable();
        blocks
    }

    /// Returns the pending copies of `blocks`, which then count as in flight.
    fn begin_batch(&self, blocks: &[u64]) -> Vec<(u64, Tid, Arc<[u8]>)> {
        let mut state = self.state.lock();
        let copy = |nr: &u64| {
            state.pending.get(nr).map(|entry| (*nr, entry.tid, Arc::clone(&entry.bytes)))
        };
        let copies: Vec<_> = blocks.iter().filter_map(copy).collect();
        state.in_flight.extend(copies.iter().map(|(nr, ..)| *nr));
        copies
    }

    fn end_batch(&self) {
        let mut state = self.state.lock();
        state.in_flight.clear();
        self.done.notify_all();
    }

    /// Removes copies that are home and flushed, unless a newer copy is pending.
    fn are_home(&self, written: &[(u64, Tid)]) {
        let mut gone = Vec::with_capacity(written.len());
        let mut state = self.state.lock();
        for (nr, tid) in written {
            if state.pending.get(nr).is_some_and(|entry| entry.tid == *tid) {
                gone.push(state.remove(*nr));
            }
        }
        drop(state);
    }
}

/// Runs the checkpoint thread.
pub(crate) fn run(core: &Core) {
    let _guard = AbortOnPanic(core);
    let Some(logged) = &core.logged else { return };
    while let Some(empty) = logged.checkpoint.next_pass() {
        if let Err(error) = pass(core, logged, empty) {
            core.abort(error);
            return;
        }
        logged.checkpoint.end_pass();
    }
}

/// Writes all durable copies home, and moves the tail of the log.
fn pass(core: &Core, logged: &Logged, empty: bool) -> Result<()> {
    let checkpoint = &logged.checkpoint;
    let mut written = Vec::new();
    for blocks in checkpoint.blocks().chunks(BATCH) {
        let copies = checkpoint.begin_batch(blocks);
        let result = core.write_home(copies.iter().map(|(nr, _, bytes)| (*nr, bytes)));
        checkpoint.end_batch();
        result?;
        written.extend(copies.iter().map(|(nr, tid, _)| (*nr, *tid)));
    }
    core.flush_home()?;
    checkpoint.are_home(&written);
    count(&core.counters.local().checkpoints, 1);
    count(&core.counters.local().blocks_checkpointed, written.len() as u64);
    // In this order: copies of a transaction are pending before it counts as durable.
    let not_durable = core.control.durable().next();
    let tail = checkpoint.oldest().map_or(not_durable, |oldest| oldest.min(not_durable));
    core.check_crash()?;
    logged.space.advance_tail(tail, empty, &core.gate, core.max_credits)
}

impl Core {
    /// Writes copies to the file system's device, sorted and merged.
    pub fn write_home<'a>(&self, copies: impl Iterator<Item = (u64, &'a Arc<[u8]>)>) -> Result<()> {
        self.check_crash()?;
        let size = self.cache.block_size() as u64;
        let mut plug = Plug::new(&**self.home.device());
        for (nr, bytes) in copies {
            plug.add(nr.saturating_mul(size), &bytes[..]);
        }
        if plug.is_empty() {
            return Ok(());
        }
        plug.finish()?;
        self.home.note_write();
        Ok(())
    }

    /// Flushes the file system's device.
    pub fn flush_home(&self) -> Result<()> {
        self.check_crash()?;
        self.home.flush()
    }

    /// Returns an error after a simulated power failure.
    pub fn check_crash(&self) -> Result<()> {
        if self.crashed.load(SeqCst) { Err(crate::Error::ShutDown) } else { Ok(()) }
    }
}
