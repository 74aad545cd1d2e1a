//! What the commit thread is asked for, and who waits for it.
//!
//! # Invariants
//! 1. `durable` is the newest durable transaction and only grows. It is changed under the lock, and read without it
//!    too.
//! 2. Whoever waits for a transaction has asked for it, and asks again when an attempt found it empty.

use crate::tid::Tid;
use extant_sync::atomic::{AtomicU64, Ordering::SeqCst};
use extant_sync::{Condvar, Level, Mutex, MutexGuard};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Control {
    state: Mutex<State>,
    durable: AtomicU64,
    /// For the commit thread.
    work: Condvar,
    /// For those who wait for a commit.
    done: Condvar,
}

#[derive(Debug)]
struct State {
    /// Commit everything up to this transaction.
    asked: Tid,
    /// Attempts begun.
    attempts: u64,
    /// The last attempt that found its transaction empty.
    empty_at: u64,
    /// When the running transaction is committed unasked.
    deadline: Option<Instant>,
    /// The commit thread has to end.
    stopped: bool,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The transaction is durable, or it was found empty after the wait began.
    Durable,
    /// It never will be.
    Stopped,
}

/// One attempt of the commit thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt(u64);

impl Control {
    pub fn new(durable: Tid) -> Control {
        let state = State { asked: durable, attempts: 0, empty_at: 0, deadline: None, stopped: false };
        Control {
            state: Mutex::new(Level::JournalState, state),
            durable: AtomicU64::new(durable.0),
            work: Condvar::new(),
            done: Condvar::new(),
        }
    }

    pub fn durable(&self) -> Tid {
        Tid(self.durable.load(SeqCst))
    }

    /// Asks for a commit. False if somebody had asked for it already.
    pub fn ask(&self, tid: Tid) -> bool {
        self.ask_locked(&mut self.state.lock(), tid)
    }

    fn ask_locked(&self, state: &mut MutexGuard<'_, State>, tid: Tid) -> bool {
        if state.asked >= tid {
            return false;
        }
        state.asked = tid;
        self.work.notify_one();
        true
    }

    /// The running transaction got its first block: it is committed before long.
    pub fn arm(&self, interval: Duration) {
        let mut state = self.state.lock();
        if state.deadline.is_none() {
            state.deadline = Instant::now().checked_add(interval);
            self.work.notify_one();
        }
    }

    /// Asks for `tid` and waits until it is durable. Also tells whether somebody had asked before.
    pub fn wait(&self, tid: Tid) -> (Waited, bool) {
        let mut state = self.state.lock();
        let (since, mut shared, mut first) = (state.attempts, false, true);
        loop {
            if self.durable() >= tid || state.empty_at > since {
                return (Waited::Durable, shared);
            }
            if state.stopped {
                return (Waited::Stopped, shared);
            }
            let asked = self.ask_locked(&mut state, tid);
            shared |= first && !asked;
            first = false;
            self.done.wait(&mut state);
        }
    }

    /// Waits for work on the transaction that runs. `None` if the thread has to end.
    pub fn next_attempt(&self, running: impl Fn() -> Tid) -> Option<Attempt> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            let due = state.deadline.is_some_and(|deadline| deadline <= Instant::now());
            if due || state.asked >= running() {
                state.deadline = None;
                state.attempts += 1;
                return Some(Attempt(state.attempts));
            }
            match state.deadline {
                Some(deadline) => drop(self.work.wait_until(&mut state, deadline)),
                None => self.work.wait(&mut state),
            }
        }
    }

    /// The transaction of an attempt is durable.
    pub fn committed(&self, tid: Tid) {
        let _state = self.state.lock();
        self.durable.store(tid.0, SeqCst);
        self.done.notify_all();
    }

    /// The transaction of an attempt was empty and goes on running.
    pub fn found_empty(&self, attempt: Attempt, tid: Tid) {
        let mut state = self.state.lock();
        state.empty_at = attempt.0;
        state.asked = state.asked.min(tid.previous());
        self.done.notify_all();
    }

    /// Ends the commit thread and all waits.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.work.notify_all();
        self.done.notify_all();
    }
}
