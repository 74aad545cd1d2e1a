//! The committed copies that are to be written to their home locations.
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
//! 4. A block in `in_flight` may be written at any moment; all others are not.
//! 5. One thread at a time makes a pass: the one that `passing` names. Callers that wait for a pass
//!    make it themselves if none is made, so no wait depends on a thread of the scheduler.
//! 6. `pending` has at most twice `max_pending` entries and those of one transaction more.
//!
//! # Locking
//! One mutex (`JournalList`), not held over I/O.

use crate::members::Pinned;
use crate::tid::Tid;
use extant_sync::scheduler::{NextRun, Task};
use extant_sync::{Arc, Condvar, Level, Mutex, OnceLock};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

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
    /// Makes the passes that no caller waits for.
    task: OnceLock<Task>,
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
    /// The thread that makes a pass.
    passing: Option<ThreadId>,
    stopped: bool,
}

/// The end of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// All copies are home.
    Made,
    /// The journal is aborted.
    Failed,
    /// The device lacked space. The next pass without a request begins after this time, if any.
    Stalled(Option<Duration>),
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

    /// When a pass is wanted: `NextRun::Again` stands for now.
    fn next(&self, now: Instant) -> NextRun {
        match self.deadline {
            _ if self.stopped => NextRun::Never,
            _ if self.asked > self.begun => NextRun::Again,
            Some(deadline) if deadline <= now => NextRun::Again,
            Some(deadline) => NextRun::At(deadline),
            None => NextRun::WhenWoken,
        }
    }

    /// Begins a pass. Tells whether it is to leave an empty log.
    fn begin(&mut self) -> bool {
        self.deadline = None;
        self.begun += 1;
        self.passing = Some(thread::current().id());
        self.asked_empty >= self.begun
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
            task: OnceLock::new(),
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
            if let (Some(at), Some(task)) = (state.deadline, self.task.get()) {
                task.wake_at(at);
            }
        }
        state.pending.len() > self.max_pending
    }

    /// Names the task, whose job is the next pass.
    pub fn set_task(&self, task: Task) {
        let first = self.task.set(task).is_ok();
        debug_assert!(first, "a journal has one checkpoint task");
    }

    /// The checkpoint task.
    pub fn task(&self) -> Option<&Task> {
        self.task.get()
    }

    /// Returns the oldest transaction with a copy that is not home.
    pub fn oldest(&self) -> Option<Tid> {
        self.state.lock().live.first_key_value().map(|(tid, _)| *tid)
    }

    /// Asks for a pass. False if no thread is free for it.
    pub fn ask(&self) -> bool {
        self.request(false);
        self.wake_task()
    }

    fn wake_task(&self) -> bool {
        self.task.get().is_some_and(Task::wake)
    }

    /// Begins a pass unless another thread is at one; tells whether it is to leave an empty log.
    pub fn try_begin(&self) -> Option<bool> {
        let mut state = self.state.lock();
        (state.passing.is_none() && !state.stopped).then(|| state.begin())
    }

    /// For a run of the task: begins the pass that is wanted now, or tells when one will be.
    pub fn begin_wanted(&self) -> std::result::Result<bool, NextRun> {
        let mut state = self.state.lock();
        match state.next(Instant::now()) {
            // The end of the pass that is made wakes the task for later requests.
            _ if state.passing.is_some() => Err(NextRun::WhenWoken),
            NextRun::Again => Ok(state.begin()),
            next => Err(next),
        }
    }

    /// The time of the task's next run.
    pub fn next_run(&self) -> NextRun {
        self.state.lock().next(Instant::now())
    }

    /// Requests a pass that begins after this call; with `empty`, it is to leave an empty log if
    /// everything is durable. Returns the pass's number.
    pub fn request(&self, empty: bool) -> u64 {
        let mut state = self.state.lock();
        state.asked = state.begun + 1;
        if empty {
            state.asked_empty = state.asked;
        }
        state.asked
    }

    /// Waits for the end of a pass. If no thread is at one, begins one, which the caller must make
    /// before it calls again. `None` at the end, or once there are no more passes.
    pub fn wait_or_begin(&self, pass: u64) -> Option<bool> {
        self.wait_while_or_begin(|state| state.ended < pass)
    }

    /// As [`Checkpoint::wait_or_begin`], until few enough copies are kept for another
    /// transaction's to be added.
    pub fn wait_for_room_or_begin(&self) -> Option<bool> {
        self.wait_while_or_begin(|state| self.full(state))
    }

    /// Returns whether too many copies are kept for another transaction's to be added.
    pub fn is_full(&self) -> bool {
        self.full(&self.state.lock())
    }

    fn full(&self, state: &State) -> bool {
        state.pending.len() > self.max_pending.saturating_mul(2)
    }

    fn wait_while_or_begin(&self, wanted: impl Fn(&State) -> bool) -> Option<bool> {
        let mut state = self.state.lock();
        self.done.wait_while(&mut state, |state| {
            !state.stopped && state.passing.is_some() && wanted(state)
        });
        (!state.stopped && wanted(&state)).then(|| state.begin())
    }

    /// Returns whether a pass has ended without a failure.
    pub fn has_ended(&self, pass: u64) -> bool {
        self.state.lock().ended >= pass
    }

    /// Ends the pass of the calling thread.
    pub fn end(&self, ended: Ended) {
        let mut state = self.state.lock();
        state.passing = None;
        match ended {
            Ended::Made => state.ended = state.begun,
            Ended::Failed => {}
            Ended::Stalled(retry) => {
                state.deadline = retry.and_then(|retry| Instant::now().checked_add(retry));
                if let (Some(at), Some(task)) = (state.deadline, self.task.get()) {
                    task.wake_at(at);
                }
            }
        }
        self.done.notify_all();
        // A request that came meanwhile; a deadline has a timer of its own.
        let next = state.next(Instant::now());
        drop(state);
        if next == NextRun::Again {
            self.wake_task();
        }
    }

    /// Waits until no other thread makes a pass.
    pub fn wait_idle(&self) {
        let mut state = self.state.lock();
        let me = thread::current().id();
        self.done.wait_while(&mut state, |state| state.passing.is_some_and(|by| by != me));
    }

    /// Ends passes and all waits.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.done.notify_all();
    }

    /// Returns the blocks with pending copies in order.
    pub fn blocks(&self) -> Vec<u64> {
        let mut blocks: Vec<u64> = self.state.lock().pending.keys().copied().collect();
        blocks.sort_unstable();
        blocks
    }

    /// Returns the pending copies of `blocks`, which then count as in flight.
    pub fn begin_batch(&self, blocks: &[u64]) -> Vec<(u64, Tid, Arc<[u8]>)> {
        let mut state = self.state.lock();
        let copy = |nr: &u64| {
            state.pending.get(nr).map(|entry| (*nr, entry.tid, Arc::clone(&entry.bytes)))
        };
        let copies: Vec<_> = blocks.iter().filter_map(copy).collect();
        state.in_flight.extend(copies.iter().map(|(nr, ..)| *nr));
        copies
    }

    pub fn end_batch(&self) {
        let mut state = self.state.lock();
        state.in_flight.clear();
        self.done.notify_all();
    }

    /// Removes copies that are home and flushed, unless a newer copy is pending.
    pub fn are_home(&self, written: &[(u64, Tid)]) {
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
