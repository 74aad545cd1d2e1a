//! The choice of the committing thread, and the wait for commits.
//!
//! A transaction is committed by one of the threads that wait for it, if any: a switch to another
//! thread and back would take longer than a small commit. The commit thread commits transactions
//! without waiting threads.
//!
//! For example, threads A and B wait for transaction 7. A commits it and B sleeps. When 7 is
//! durable, B returns, and one of the threads that wait for transaction 8 commits that.
//!
//! # Invariants
//! 1. `durable` is the newest durable transaction and never decreases. It changes under the lock,
//!    and is also read without it.
//! 2. A thread that waits for a transaction has requested it, and requests it again if an attempt
//!    found it empty.
//! 3. One thread commits at a time: the one in `committing`.
//! 4. Threads that wait for a transaction sleep by the parity of its number: while one transaction
//!    is being committed, other threads wait for it and for its successor. The end of a commit
//!    wakes all threads that wait for its transaction, and one of the others, which commits next.

use crate::tid::Tid;
use extant_sync::atomic::{AtomicU64, Ordering::SeqCst};
use extant_sync::{Condvar, Level, Mutex, MutexGuard};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// The shortest interval at which the commit thread looks for work without a request.
const LEAST_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct Control {
    state: Mutex<State>,
    durable: AtomicU64,
    /// For the commit thread.
    work: Condvar,
    /// For threads that wait for a commit, by [`side`] of their transaction.
    done: [Condvar; 2],
    /// For threads that wait until no commit is in progress.
    idle: Condvar,
}

#[derive(Debug)]
struct State {
    /// The newest requested transaction: all up to it must be committed.
    asked: Tid,
    /// Number of attempts begun.
    attempts: u64,
    /// The last attempt that found its transaction empty.
    empty_at: u64,
    /// The time at which the running transaction is committed without a request.
    deadline: Option<Instant>,
    /// The committing thread.
    committing: Option<ThreadId>,
    /// The commit thread must end.
    stopped: bool,
}

impl State {
    /// Begins an attempt. No other attempt may be in progress.
    fn begin(&mut self) -> Attempt {
        self.deadline = None;
        self.attempts += 1;
        self.committing = Some(thread::current().id());
        Attempt(self.attempts)
    }
}

/// Returns the index of the condition variable for threads that wait for `tid`.
fn side(tid: Tid) -> usize {
    (tid.0 & 1) as usize
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The transaction is durable, or was found empty after the wait began.
    Durable,
    /// The transaction will never be durable.
    Stopped,
    /// No thread commits it: the caller must do so, and then wait again.
    Lead(Attempt),
}

/// An attempt to commit. Must end with [`Control::committed`], [`Control::found_empty`] or
/// [`Control::gave_up`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt(u64);

impl Control {
    pub fn new(durable: Tid) -> Control {
        let state = State {
            asked: durable,
            attempts: 0,
            empty_at: 0,
            deadline: None,
            committing: None,
            stopped: false,
        };
        Control {
            state: Mutex::new(Level::JournalState, state),
            durable: AtomicU64::new(durable.0),
            work: Condvar::new(),
            done: Default::default(),
            idle: Condvar::new(),
        }
    }

    pub fn durable(&self) -> Tid {
        Tid(self.durable.load(SeqCst))
    }

    /// Requests a commit from the commit thread.
    pub fn ask(&self, tid: Tid) {
        let mut state = self.state.lock();
        if state.asked < tid {
            state.asked = tid;
            self.work.notify_one();
        }
    }

    /// Sets the time of the commit after the first change of the running transaction. The commit
    /// thread looks often enough to see it in time.
    pub fn arm(&self, interval: Duration) {
        let mut state = self.state.lock();
        if state.deadline.is_none() {
            state.deadline = Instant::now().checked_add(interval);
        }
    }

    /// Requests `tid` and waits until it is durable, or until the caller must commit it. Also
    /// returns whether another thread had requested it before.
    pub fn wait(&self, tid: Tid, running: impl Fn() -> Tid) -> (Waited, bool) {
        let mut state = self.state.lock();
        let (since, mut shared, mut first) = (state.attempts, false, true);
        loop {
            if self.durable() >= tid || state.empty_at > since {
                return (Waited::Durable, shared);
            }
            if state.stopped {
                return (Waited::Stopped, shared);
            }
            shared |= first && state.asked >= tid;
            first = false;
            state.asked = state.asked.max(tid);
            if state.committing.is_none() && tid >= running() {
                return (Waited::Lead(state.begin()), shared);
            }
            self.done[side(tid)].wait(&mut state);
        }
    }

    /// Waits for a request for the running transaction, looking again after `interval` at the
    /// latest. Returns `None` if the commit thread must end.
    pub fn next_attempt(&self, running: impl Fn() -> Tid, interval: Duration) -> Option<Attempt> {
        let interval = interval.max(LEAST_INTERVAL);
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            let now = Instant::now();
            let due = state.deadline.is_some_and(|deadline| deadline <= now);
            if state.committing.is_none() && (due || state.asked >= running()) {
                return Some(state.begin());
            }
            let deadline = state.deadline.filter(|_| !due).or_else(|| now.checked_add(interval));
            match deadline {
                Some(deadline) => drop(self.work.wait_until(&mut state, deadline)),
                None => self.work.wait(&mut state),
            }
        }
    }

    /// Ends an attempt whose transaction is durable.
    pub fn committed(&self, tid: Tid) {
        let mut state = self.state.lock();
        self.durable.store(tid.0, SeqCst);
        self.done[side(tid)].notify_all();
        self.done[side(tid.next())].notify_one();
        self.end(&mut state);
    }

    /// Ends an attempt whose transaction was empty and stays the running one.
    pub fn found_empty(&self, attempt: Attempt, tid: Tid) {
        let mut state = self.state.lock();
        state.empty_at = attempt.0;
        state.asked = state.asked.min(tid.previous());
        self.wake_all();
        self.end(&mut state);
    }

    /// Ends a failed attempt. The journal must have been stopped.
    pub fn gave_up(&self) {
        let mut state = self.state.lock();
        self.wake_all();
        self.end(&mut state);
    }

    fn wake_all(&self) {
        self.done.iter().for_each(Condvar::notify_all);
    }

    /// Ends the commit. The commit thread then checks for requests.
    fn end(&self, state: &mut MutexGuard<'_, State>) {
        state.committing = None;
        self.idle.notify_all();
        if state.asked > self.durable() {
            self.work.notify_one();
        }
    }

    /// Waits until no thread other than the caller is committing.
    pub fn wait_idle(&self) {
        let mut state = self.state.lock();
        let me = thread::current().id();
        self.idle.wait_while(&mut state, |state| state.committing.is_some_and(|by| by != me));
    }

    /// Ends the commit thread and all waits.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.work.notify_all();
        self.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNNING: Tid = Tid(5);

    #[test]
    fn a_waiting_thread_commits() {
        let control = Control::new(Tid(4));
        let (Waited::Lead(_), false) = control.wait(RUNNING, || RUNNING) else {
            panic!("no other thread commits")
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| control.wait(RUNNING, || RUNNING));
            control.committed(RUNNING);
            assert_eq!(other.join().expect("no panic").0, Waited::Durable);
        });
        control.wait_idle();
    }

    #[test]
    fn an_empty_transaction_releases_waiting_threads() {
        let control = Control::new(Tid(4));
        control.ask(RUNNING);
        let begun =
            control.next_attempt(|| RUNNING, Duration::from_secs(60)).expect("it was asked for");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| control.wait(RUNNING, || RUNNING));
            control.found_empty(begun, RUNNING);
            // If it came too late to wait for this attempt, it makes its own.
            let waited = other.join().expect("no panic").0;
            assert!(matches!(waited, Waited::Durable | Waited::Lead(_)));
        });
    }

    #[test]
    fn the_commit_thread_looks_in_time() {
        let (control, interval) = (Control::new(Tid(4)), Duration::from_millis(20));
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| control.next_attempt(|| RUNNING, interval));
            control.arm(interval);
            assert!(thread.join().expect("no panic").is_some());
        });
    }
}
