//! The choice of the committing thread, and the wait for commits.
//!
//! A transaction is committed by one of the threads that wait for it, if any: a switch to another
//! thread and back would take longer than a small commit. The commit task commits transactions
//! without waiting threads: a request wakes it, or a timer that the first change of a transaction
//! arms. Before a commit by the timer the client may do work that belongs to the transaction: the
//! deadline is deferred once, by [`PREPARATION`], and ends earlier when that is done.
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
//! 5. The deadline of a transaction is deferred once at most, so its commit is late by
//!    [`PREPARATION`] at most, whatever the client does.
//! 6. While a deadline is set, the task's timer is armed for it or for an earlier time, or the task
//!    was woken, or a commit runs, and its end wakes the task.

use crate::tid::Tid;
use extant_sync::atomic::{AtomicU64, Ordering::SeqCst};
use extant_sync::scheduler::{NextRun, Task};
use extant_sync::{Condvar, Level, Mutex, MutexGuard, OnceLock};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// The time for which a commit waits for the client's preparation.
const PREPARATION: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Control {
    state: Mutex<State>,
    durable: AtomicU64,
    /// Commits transactions without waiting threads.
    task: OnceLock<Task>,
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
    /// The deadline was deferred: the client prepares the commit, or has done so.
    deferred: bool,
    /// For when the task's timer is armed at the latest.
    timer: Option<Instant>,
    /// Number of attempts that lacked space.
    stalls: u64,
    /// The last attempt lacked space.
    stalled: bool,
    /// The time of the task's next attempt after one that lacked space.
    retry: Option<Instant>,
    /// The committing thread.
    committing: Option<ThreadId>,
    /// Nothing is committed any more.
    stopped: bool,
}

impl State {
    /// Begins an attempt. No other attempt may be in progress.
    fn begin(&mut self) -> Attempt {
        // An attempt that comes after a lack of space may be at an older transaction than the
        // running one, whose deadline stays.
        if !self.stalled {
            self.deadline = None;
            self.deferred = false;
        }
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
    /// An attempt lacked space after the wait began.
    Stalled,
    /// No thread commits it: the caller must do so, and then wait again.
    Lead(Attempt),
}

/// An attempt to commit. Must end with [`Control::committed`], [`Control::found_empty`],
/// [`Control::stalled`] or [`Control::gave_up`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt(u64);

impl Control {
    pub fn new(durable: Tid) -> Control {
        let state = State {
            asked: durable,
            attempts: 0,
            empty_at: 0,
            deadline: None,
            deferred: false,
            timer: None,
            stalls: 0,
            stalled: false,
            retry: None,
            committing: None,
            stopped: false,
        };
        Control {
            state: Mutex::new(Level::JournalState, state),
            durable: AtomicU64::new(durable.0),
            task: OnceLock::new(),
            done: Default::default(),
            idle: Condvar::new(),
        }
    }

    pub fn durable(&self) -> Tid {
        Tid(self.durable.load(SeqCst))
    }

    /// Names the task, whose job is to run attempts as [`Control::next_attempt`] tells.
    pub fn set_task(&self, task: Task) {
        let first = self.task.set(task).is_ok();
        debug_assert!(first, "a journal has one commit task");
    }

    /// The commit task.
    pub fn task(&self) -> Option<&Task> {
        self.task.get()
    }

    /// Requests a commit from the commit task. Returns false if no thread is free for it: a caller
    /// that needs the commit must see to it itself.
    pub fn ask(&self, tid: Tid) -> bool {
        let mut state = self.state.lock();
        let new = state.asked < tid;
        state.asked = state.asked.max(tid);
        drop(state);
        !new || self.wake_task()
    }

    fn wake_task(&self) -> bool {
        self.task.get().is_some_and(Task::wake)
    }

    /// The running transaction got its first block: it is committed before long. Most transactions
    /// are committed earlier, so the timer of one serves for many: the task arms it again for a
    /// deadline that it finds to be later.
    pub fn arm(&self, interval: Duration) {
        let mut state = self.state.lock();
        if state.deadline.is_some() {
            return;
        }
        state.deadline = Instant::now().checked_add(interval);
        if let Some(at) = state.deadline.filter(|at| state.timer.is_none_or(|timer| *at < timer)) {
            state.timer = Some(at);
            self.task.get().into_iter().for_each(|task| task.wake_at(at));
        }
    }

    /// Begins an attempt for a caller that waits for the running transaction to end, unless another
    /// thread is at one.
    pub fn try_lead(&self) -> Option<Attempt> {
        let mut state = self.state.lock();
        (state.committing.is_none() && !state.stopped).then(|| state.begin())
    }

    /// Requests `tid` and waits until it is durable, or until the caller must commit it. Also
    /// returns whether another thread had requested it before.
    pub fn wait(&self, tid: Tid, running: impl Fn() -> Tid) -> (Waited, bool) {
        let mut state = self.state.lock();
        let (since, mut shared, mut first) = (state.attempts, false, true);
        let stalls = state.stalls;
        loop {
            if self.durable() >= tid || state.empty_at > since {
                return (Waited::Durable, shared);
            }
            if state.stopped {
                return (Waited::Stopped, shared);
            }
            if state.stalls > stalls {
                return (Waited::Stalled, shared);
            }
            shared |= first && state.asked >= tid;
            first = false;
            state.asked = state.asked.max(tid);
            // A transaction that lacked space is frozen, and older than the running one.
            if state.committing.is_none() && (tid >= running() || state.stalled) {
                return (Waited::Lead(state.begin()), shared);
            }
            self.done[side(tid)].wait(&mut state);
        }
    }

    /// Defers a deadline that has come, if no thread has requested the `running` transaction and
    /// its deadline was not deferred before. Returns whether it did.
    pub fn defer(&self, running: Tid) -> bool {
        let mut state = self.state.lock();
        let now = Instant::now();
        let due = state.deadline.is_some_and(|deadline| deadline <= now);
        let asked = state.asked >= running || state.committing.is_some() || state.stopped;
        if !due || asked || state.deferred {
            return false;
        }
        state.deferred = true;
        state.deadline = now.checked_add(PREPARATION);
        true
    }

    /// Ends the deferral of a deadline: the commit begins now.
    pub fn prepared(&self) {
        let mut state = self.state.lock();
        if state.deferred && state.deadline.is_some() {
            state.deadline = Some(Instant::now());
            drop(state);
            self.wake_task();
        }
    }

    /// Begins an attempt for the commit task if one is due. Otherwise tells when the task must look
    /// again.
    pub fn next_attempt(&self, running: impl Fn() -> Tid) -> Result<Attempt, NextRun> {
        let mut state = self.state.lock();
        if state.stopped {
            return Err(NextRun::Never);
        }
        let now = Instant::now();
        let due = state.deadline.is_some_and(|deadline| deadline <= now);
        let is_free = state.committing.is_none();
        if is_free && state.stalled {
            state.timer = state.retry.filter(|at| *at > now);
            return match (state.retry, state.timer) {
                (Some(_), None) => Ok(state.begin()),
                (_, timer) => Err(timer.map_or(NextRun::WhenWoken, NextRun::At)),
            };
        }
        if is_free && (due || state.asked >= running()) {
            return Ok(state.begin());
        }
        // The end of the attempt that runs wakes the task if it is late.
        state.timer = state.deadline.filter(|_| !due);
        Err(state.timer.map_or(NextRun::WhenWoken, NextRun::At))
    }

    /// Ends an attempt whose transaction is durable.
    pub fn committed(&self, tid: Tid) {
        let mut state = self.state.lock();
        self.durable.store(tid.0, SeqCst);
        state.stalled = false;
        self.done[side(tid)].notify_all();
        self.done[side(tid.next())].notify_one();
        self.end(&mut state);
    }

    /// Ends an attempt whose transaction was empty and stays the running one. The request for it is
    /// dropped if the transaction `is_empty` still. Handles join it before the attempt ends, and
    /// their requests find it requested already.
    pub fn found_empty(&self, attempt: Attempt, tid: Tid, is_empty: impl Fn() -> bool) {
        let mut state = self.state.lock();
        state.empty_at = attempt.0;
        state.stalled = false;
        // Under the lock: a request that is not seen here comes after this, with its content.
        if is_empty() {
            state.asked = state.asked.min(tid.previous());
        }
        self.wake_all();
        self.end(&mut state);
    }

    /// Ends an attempt that lacked space. The task makes the next one after `retry`, if any, unless
    /// a thread that waits does so earlier.
    pub fn stalled(&self, retry: Option<Duration>) {
        let mut state = self.state.lock();
        state.stalls += 1;
        state.stalled = true;
        state.retry = retry.and_then(|retry| Instant::now().checked_add(retry));
        self.wake_all();
        self.end(&mut state);
        // Whether it was asked or not.
        self.wake_task();
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

    /// No thread commits any more: the commit task looks whether it was asked, or is late.
    fn end(&self, state: &mut MutexGuard<'_, State>) {
        state.committing = None;
        self.idle.notify_all();
        let late = state.deadline.is_some_and(|deadline| deadline <= Instant::now());
        if state.asked > self.durable() || late {
            self.wake_task();
        }
    }

    /// Waits until no thread other than the caller is committing.
    pub fn wait_idle(&self) {
        let mut state = self.state.lock();
        let me = thread::current().id();
        self.idle.wait_while(&mut state, |state| state.committing.is_some_and(|by| by != me));
    }

    /// Ends attempts and all waits.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
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
        assert!(!control.ask(RUNNING), "there is no task");
        let begun = control.next_attempt(|| RUNNING).expect("it was asked for");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| control.wait(RUNNING, || RUNNING));
            control.found_empty(begun, RUNNING, || true);
            // If it came too late to wait for this attempt, it makes its own.
            let waited = other.join().expect("no panic").0;
            assert!(matches!(waited, Waited::Durable | Waited::Lead(_)));
        });
    }

    /// A handle joins the transaction as soon as an attempt has found it empty, and asks for a
    /// commit before the attempt ends.
    #[test]
    fn a_request_for_content_that_an_attempt_missed_is_kept() {
        let control = Control::new(Tid(4));
        control.ask(RUNNING);
        let begun = control.next_attempt(|| RUNNING).expect("it was asked for");
        control.ask(RUNNING);
        control.found_empty(begun, RUNNING, || false);
        let begun = control.next_attempt(|| RUNNING).expect("the content waits for its commit");
        control.found_empty(begun, RUNNING, || true);
        assert_eq!(control.next_attempt(|| RUNNING), Err(NextRun::WhenWoken));
    }

    #[test]
    fn the_task_runs_in_time() {
        let control = Control::new(Tid(4));
        assert_eq!(control.next_attempt(|| RUNNING), Err(NextRun::WhenWoken));
        control.arm(Duration::from_secs(60));
        assert!(matches!(control.next_attempt(|| RUNNING), Err(NextRun::At(_))));
        let control = Control::new(Tid(4));
        control.arm(Duration::ZERO);
        assert!(control.next_attempt(|| RUNNING).is_ok());
        assert_eq!(control.try_lead(), None, "another thread is at it");
    }

    #[test]
    fn an_attempt_that_lacked_space_is_made_again() {
        let control = Control::new(Tid(4));
        control.ask(RUNNING);
        let begun = control.next_attempt(|| RUNNING);
        assert!(begun.is_ok());
        // The transaction is frozen, and its successor runs.
        let running = RUNNING.next();
        control.arm(Duration::ZERO);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| control.wait(RUNNING, || running));
            control.stalled(Some(Duration::from_secs(60)));
            // If it came too late to wait for this attempt, it makes its own.
            let waited = other.join().expect("no panic").0;
            assert!(matches!(waited, Waited::Stalled | Waited::Lead(_)));
            if waited != Waited::Stalled {
                control.stalled(Some(Duration::from_secs(60)));
            }
        });
        assert!(matches!(control.next_attempt(|| running), Err(NextRun::At(_))), "it waits");
        let (Waited::Lead(_), _) = control.wait(RUNNING, || running) else {
            panic!("a thread that waits tries again")
        };
        control.stalled(Some(Duration::ZERO));
        assert!(control.next_attempt(|| running).is_ok());
        control.committed(RUNNING);
        let begun = control.next_attempt(|| running).expect("the deadline of the successor");
        control.found_empty(begun, running, || true);
        assert_eq!(control.next_attempt(|| running), Err(NextRun::WhenWoken));
    }

    #[test]
    fn a_commit_waits_once_for_its_preparation() {
        let control = Control::new(Tid(4));
        assert!(!control.defer(RUNNING), "there is no deadline");
        control.arm(Duration::ZERO);
        assert!(control.defer(RUNNING));
        assert!(matches!(control.next_attempt(|| RUNNING), Err(NextRun::At(_))), "it waits");
        control.prepared();
        assert!(!control.defer(RUNNING), "it waits once");
        let begun = control.next_attempt(|| RUNNING).expect("it is due");
        control.found_empty(begun, RUNNING, || true);
        // The next deadline is another one. A request does not wait.
        control.arm(Duration::ZERO);
        control.ask(RUNNING);
        assert!(!control.defer(RUNNING));
        assert!(control.next_attempt(|| RUNNING).is_ok());
    }
}
