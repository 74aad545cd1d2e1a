//! Threads that run the jobs of any number of owners.
//!
//! An owner registers a [`Task`] and wakes it when its job has something to do. Threads start when
//! they are needed and end when they have been idle for a while; one stays. 200 journals register
//! 200 commit tasks: task 7 is woken by a full transaction, a thread runs its job, and the result
//! arms a timer 5 seconds ahead. The other 199 tasks cost memory only.
//!
//! # Lanes
//! A job belongs to a [`Lane`]. Jobs of `Lane::Device` must wait for devices and for holders of
//! locks only, never for another job. Jobs of `Lane::General` may wait for those of `Lane::Device`.
//! They never get all threads, so that a full lane of them leaves threads to the jobs that they
//! wait for. `Lane::Background` has threads of its own, of low priority.
//!
//! # Invariants
//! 1. A job runs on one thread at a time. Woken while it runs, it runs again.
//! 2. While a timer is armed, or a task waits for a place in its lane, a thread waits with a
//!    deadline, or one of those that run jobs looks at timers before it sleeps. For that the
//!    foreground runs at most one job fewer than it has threads.
//! 3. Without a timer and a waiting task no thread wakes up, but for the end of idle threads.
//! 4. A job that has run for [`Lanes::stuck_after`] does not count for the bounds of its lane: a
//!    spare thread takes its place, up to [`Lanes::spares`]. It still counts for the bound of its
//!    owner. So a device that hangs keeps jobs of its own owner from running, and no others.
//! 5. Callers must not depend on a job that has not begun: the number of spare threads is bounded,
//!    and the system may refuse a thread. [`Task::wake`] tells whether a thread is free.
//!
//! # Locking
//! One mutex (`Leaf`), not held while a job runs or is dropped.

mod bell;
mod state;
#[cfg(test)]
mod tests;
mod worker;

pub use bell::Bell;

use crate::{Condvar, Level, Mutex, MutexGuard};
use state::{Record, State};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The kinds of jobs, by their waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Waits for devices, and for handles and locks that are held: commits, checkpoints.
    Device,
    /// May wait for commits: writeback, freeing of inodes.
    General,
    /// Only saves time later, at low priority: scans, prefetches.
    Background,
}

/// The answer of a job: when it runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextRun {
    /// As soon as those that wait have had their turn.
    Again,
    /// After a while, or when it is woken.
    After(Duration),
    /// At a time, or when it is woken.
    At(Instant),
    /// When it is woken.
    WhenWoken,
    /// Never.
    Never,
}

/// The bounds of a scheduler.
#[derive(Clone, Copy, Debug)]
pub struct Lanes {
    /// Jobs of `Lane::Device` and `Lane::General` that run at once.
    pub foreground: usize,
    /// Jobs of `Lane::General` among them.
    pub general: usize,
    /// Jobs of one owner among those of the foreground.
    pub per_owner: usize,
    /// Jobs of `Lane::Background` that run at once.
    pub background: usize,
    /// Threads beyond these bounds while jobs are stuck.
    pub spares: usize,
    /// A job that has run for so long is stuck.
    pub stuck_after: Duration,
    /// Called on each thread of the background when it starts, to lower its priority.
    pub lower_priority: fn(),
}

impl Lanes {
    /// Bounds that keep no job of one owner from running, with so many of the background at once.
    pub fn for_one_owner(background: usize, lower_priority: fn()) -> Lanes {
        Lanes {
            foreground: 6,
            general: 3,
            per_owner: 6,
            background,
            spares: 0,
            stuck_after: Duration::MAX,
            lower_priority,
        }
    }
}

/// Counters of a scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Threads that live.
    pub threads: usize,
    /// The most that lived at once.
    pub most_threads: usize,
    /// Tasks registered now.
    pub tasks: usize,
    /// Jobs run.
    pub runs: u64,
    /// Ends of waits of threads: each is a wakeup of a processor.
    pub wakeups: u64,
    /// Timers that have expired.
    pub expired: u64,
}

/// The state that threads and handles share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    lanes: Lanes,
    /// For the thread that waits with a deadline.
    watch: Condvar,
    /// For other idle threads, by their kind.
    idle: [Condvar; 2],
    /// For callers that wait for the end of a running job.
    ended: Condvar,
}

/// Threads for jobs. Clones share them; they end with the last clone and the last task.
#[derive(Clone, Debug)]
pub struct Scheduler(Arc<Owner>);

/// The part that ends the threads when it is dropped.
#[derive(Debug)]
struct Owner(Arc<Shared>);

/// Tasks of one file system, for the bounds that hold for each owner.
#[derive(Clone, Debug)]
pub struct TaskOwner {
    scheduler: Scheduler,
    number: u64,
}

/// A job registered with a scheduler. Dropped, it is stopped as by [`Task::stop`].
#[derive(Debug)]
pub struct Task {
    scheduler: Scheduler,
    id: u64,
}

impl Scheduler {
    /// A scheduler without a thread.
    pub fn new(lanes: Lanes) -> Scheduler {
        let shared = Shared {
            state: Mutex::new(Level::Leaf, State::default()),
            lanes: Lanes {
                foreground: lanes.foreground.max(1),
                general: lanes.general.max(1),
                per_owner: lanes.per_owner.max(1),
                background: lanes.background.max(1),
                ..lanes
            },
            watch: Condvar::new(),
            idle: [Condvar::new(), Condvar::new()],
            ended: Condvar::new(),
        };
        Scheduler(Arc::new(Owner(Arc::new(shared))))
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }

    /// Starts the thread that stays, unless there is one. Later threads that cannot be started are
    /// done without.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn start(&self) -> std::io::Result<()> {
        let shared = self.shared();
        let mut state = shared.state.lock();
        if state.kind(state::FOREGROUND).threads > 0 {
            return Ok(());
        }
        worker::spawn(shared, &mut state, state::FOREGROUND)
    }

    /// An owner of tasks.
    pub fn owner(&self) -> TaskOwner {
        let number = self.shared().state.lock().new_number();
        TaskOwner { scheduler: self.clone(), number }
    }

    /// The counters now.
    pub fn stats(&self) -> SchedulerStats {
        self.shared().state.lock().stats()
    }
}

impl TaskOwner {
    /// Registers a task, which is not woken. A panic of `job` ends the task, nothing else.
    pub fn task(
        &self,
        lane: Lane,
        name: &'static str,
        job: impl FnMut() -> NextRun + Send + 'static,
    ) -> Task {
        let mut state = self.scheduler.shared().state.lock();
        let id = state.new_number();
        state.tasks.insert(id, Record::new(self.number, lane, name, Box::new(job)));
        Task { scheduler: self.scheduler.clone(), id }
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }
}

impl Task {
    /// Has the job run soon; if it runs now, once more. False if no thread is free for it. Other
    /// tasks may take the thread that was free: a caller that needs the outcome must do the work
    /// itself if this is false, or if the job does not begin in a while.
    pub fn wake(&self) -> bool {
        let shared = self.scheduler.shared();
        let mut state = shared.state.lock();
        state.queue(self.id) && shared.find_thread(&mut state, self.id)
    }

    /// Has the job run at `at` at the latest.
    pub fn wake_at(&self, at: Instant) {
        let shared = self.scheduler.shared();
        let mut state = shared.state.lock();
        if state.arm(self.id, at) {
            shared.find_watcher(&mut state, Some(at));
        }
    }

    /// Has the job run after `delay` at the latest. A time too far ahead for the clock is never.
    pub fn wake_after(&self, delay: Duration) {
        if let Some(at) = Instant::now().checked_add(delay) {
            self.wake_at(at);
        }
    }

    /// Lets the job run no more, and waits until it does not run. On the thread that runs it, waits
    /// for nothing: the job is dropped when it returns.
    pub fn stop(&self) {
        let shared = self.scheduler.shared();
        let mut state = shared.state.lock();
        let job = state.retire(self.id);
        let me = thread::current().id();
        shared.ended.wait_while(&mut state, |state| state.runs_elsewhere(self.id, me));
        drop(state);
        // May hold the last reference to anything, even to this task's owner.
        drop(job);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.stop();
        self.scheduler.shared().state.lock().remove(self.id);
    }
}

impl Shared {
    /// Finds a thread for a queued task; false if none is free.
    fn find_thread(self: &Arc<Self>, state: &mut MutexGuard<'_, State>, id: u64) -> bool {
        let Some(lane) = state.waits_in(id) else { return true };
        let now = Instant::now();
        let kind = state::kind_of(lane);
        if !state.may_run(&self.lanes, id, now) {
            // A watcher must learn when a stuck job stops counting.
            self.find_watcher(state, None);
            return false;
        }
        if state.kind(kind).idle > state.kind(kind).called {
            state.kind_mut(kind).called += 1;
            self.idle[kind].notify_one();
            return true;
        }
        if kind == state::FOREGROUND && state.watched_until.is_some() {
            // One that is called already takes one task, and calls the next thread.
            self.watch.notify_one();
            return true;
        }
        state.may_spawn(&self.lanes, kind, now) && worker::spawn(self, state, kind).is_ok()
    }

    /// Sees to it that a thread wakes up at `at`, or looks now until when it may wait.
    fn find_watcher(self: &Arc<Self>, state: &mut MutexGuard<'_, State>, at: Option<Instant>) {
        match (state.watched_until, at) {
            (None, _) => self.replace_watcher(state),
            (Some(Some(until)), Some(at)) if until <= at => {}
            _ => self.watch.notify_one(),
        }
    }

    /// No thread waits with a deadline: has an idle one do so, or a new one.
    fn replace_watcher(self: &Arc<Self>, state: &mut MutexGuard<'_, State>) {
        let kind = state::FOREGROUND;
        if state.watched_until.is_some() || state.kind(kind).called > 0 {
            return;
        }
        if state.kind(kind).idle > 0 {
            state.kind_mut(kind).called += 1;
            self.idle[kind].notify_one();
        } else if state.may_spawn(&self.lanes, kind, Instant::now()) {
            // Without it the threads that run jobs look at timers, a little later.
            let _ = worker::spawn(self, state, kind);
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let handles = {
            let mut state = self.0.state.lock();
            state.closed = true;
            std::mem::take(&mut state.handles)
        };
        self.0.watch.notify_all();
        self.0.idle.iter().for_each(Condvar::notify_all);
        let me = thread::current().id();
        for handle in handles.into_iter().filter(|handle| handle.thread().id() != me) {
            if handle.join().is_err() {
                tracing::error!("a thread of the engine had panicked");
            }
        }
    }
}
