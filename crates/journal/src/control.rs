//! Who commits next, and who waits for it.
//!
//! A transaction is committed by one of those who wait for it, if any do: a switch to another
//! thread and back would take longer than a small commit. The commit thread sees to those that
//! nobody waits for.
//!
//! # Invariants
//! 1. `durable` is the newest durable transaction and only grows. It is changed under the lock, and
//!    read without it too.
//! 2. Whoever waits for a transaction has asked for it, and asks again when an attempt found it
//!    empty.
//! 3. One thread commits at a time: the one that `committing` names.
//! 4. Those who wait for a transaction sleep by the parity of its number: while one is committed
//!    others wait for it and for its successor. The end of a commit wakes all whose transaction it
//!    was, and one of the others, who commits next.

use crate::tid::Tid;
use extant_sync::atomic::{AtomicU64, Ordering::SeqCst};
use extant_sync::{Condvar, Level, Mutex, MutexGuard};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// The commit thread looks for work at most so often unasked.
const LEAST_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct Control {
    state: Mutex<State>,
    durable: AtomicU64,
    /// For the commit thread.
    work: Condvar,
    /// For those who wait for a commit, by [`side`] of their transaction.
    done: [Condvar; 2],
    /// For those who wait until nobody commits.
    idle: Condvar,
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
    /// Who commits now.
    committing: Option<ThreadId>,
    /// The commit thread has to end.
    stopped: bool,
}

impl State {
    /// Begins an attempt, if nobody else is at one.
    fn begin(&mut self) -> Attempt {
        self.deadline = None;
        self.attempts += 1;
        self.committing = Some(thread::current().id());
        Attempt(self.attempts)
    }
}

/// Where those sleep who wait for a transaction.
fn side(tid: Tid) -> usize {
    (tid.0 & 1) as usize
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The transaction is durable, or it was found empty after the wait began.
    Durable,
    /// It never will be.
    Stopped,
    /// Nobody commits it: the caller is to do so, and to wait again.
    Lead(Attempt),
}

/// One attempt to commit. Ends with [`Control::committed`], [`Control::found_empty`] or
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

    /// Asks the commit thread for a commit.
    pub fn ask(&self, tid: Tid) {
        let mut state = self.state.lock();
        if state.asked < tid {
            state.asked = tid;
            self.work.notify_one();
        }
    }

    /// The running transaction got its first block: it is committed before long. The commit thread
    /// looks often enough to see it in time.
    pub fn arm(&self, interval: Duration) {
        let mut state = self.state.lock();
        if state.deadline.is_none() {
            state.deadline = Instant::now().checked_add(interval);
        }
    }

    /// Asks for `tid` and waits until it is durable, or until the caller is to commit it. Also
    /// tells whether somebody had asked before.
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

    /// Waits for work on the transaction that runs, and looks again after `interval` at the latest.
    /// `None` if the thread has to end.
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

    /// The transaction of an attempt is durable.
    pub fn committed(&self, tid: Tid) {
        let mut state = self.state.lock();
        self.durable.store(tid.0, SeqCst);
        self.done[side(tid)].notify_all();
        self.done[side(tid.next())].notify_one();
        self.end(&mut state);
    }

    /// The transaction of an attempt was empty and goes on running.
    pub fn found_empty(&self, attempt: Attempt, tid: Tid) {
        let mut state = self.state.lock();
        state.empty_at = attempt.0;
        state.asked = state.asked.min(tid.previous());
        self.wake_all();
        self.end(&mut state);
    }

    /// An attempt failed; the journal is stopped.
    pub fn gave_up(&self) {
        let mut state = self.state.lock();
        self.wake_all();
        self.end(&mut state);
    }

    fn wake_all(&self) {
        self.done.iter().for_each(Condvar::notify_all);
    }

    /// Nobody commits any more: the commit thread looks whether it was asked.
    fn end(&self, state: &mut MutexGuard<'_, State>) {
        state.committing = None;
        self.idle.notify_all();
        if state.asked > self.durable() {
            self.work.notify_one();
        }
    }

    /// Waits until nobody commits, but for the caller itself.
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
    fn one_of_those_who_wait_commits() {
        let control = Control::new(Tid(4));
        let (Waited::Lead(_), false) = control.wait(RUNNING, || RUNNING) else {
            panic!("nobody else commits")
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| control.wait(RUNNING, || RUNNING));
            control.committed(RUNNING);
            assert_eq!(other.join().expect("no panic").0, Waited::Durable);
        });
        control.wait_idle();
    }

    #[test]
    fn an_empty_transaction_frees_those_who_wait() {
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
    fn the_thread_looks_in_time() {
        let (control, interval) = (Control::new(Tid(4)), Duration::from_millis(20));
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| control.next_attempt(|| RUNNING, interval));
            control.arm(interval);
            assert!(thread.join().expect("no panic").is_some());
        });
    }
}
