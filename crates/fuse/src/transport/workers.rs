//! Threads for requests that wait for a commit, so that other threads can receive. As many callers
//! of fsync as there are threads share one commit.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

type Job = Box<dyn FnOnce() + Send>;

/// How long a thread stays without work.
const KEEP: Duration = Duration::from_secs(10);

/// How often the end of all jobs is looked for.
const LOOK: Duration = Duration::from_millis(1);

/// Threads up to a number. One lives always, the others start when jobs wait, and end when none
/// came for some seconds. Even where no further thread can be started, a job that waits for
/// requests is thus never left to a thread that receives them.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    /// Number of callers of [`Pool::run_waiting`] that may still wait themselves.
    places: AtomicUsize,
}

#[derive(Debug)]
struct Shared {
    most: usize,
    /// How long a thread stays without work.
    keep: Duration,
    state: Mutex<State>,
    called: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: Vec<JoinHandle<()>>,
    /// Threads that live.
    living: usize,
    /// Threads that wait for jobs.
    idle: usize,
    stopped: bool,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("jobs", &self.jobs.len())
            .field("living", &self.living)
            .field("idle", &self.idle)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Makes a pool of up to `most` threads, and starts the first. Up to `callers` callers may wait
    /// themselves: fewer than there are, so that the others receive.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(most: usize, callers: usize) -> std::io::Result<Pool> {
        Pool::start_keeping(most, callers, KEEP)
    }

    fn start_keeping(most: usize, callers: usize, keep: Duration) -> std::io::Result<Pool> {
        let (state, called) = Default::default();
        let shared = Arc::new(Shared { most, keep, state, called });
        spawn(&shared, &mut shared.lock())?;
        Ok(Pool { shared, places: AtomicUsize::new(callers) })
    }

    /// Runs `job` on one of the threads, or on this thread if they have ended.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.lock();
        if state.stopped {
            drop(state);
            return job();
        }
        state.jobs.push_back(Box::new(job));
        if state.jobs.len() > state.idle && state.living < self.shared.most {
            // Without it a thread that lives takes the job later.
            let _ = spawn(&self.shared, &mut state)
                .inspect_err(|e| tracing::warn!("a thread could not be started: {e}"));
        }
        drop(state);
        self.shared.called.notify_one();
    }

    /// Runs `job`, which waits: on this thread while few callers do so, since a handover costs two
    /// switches of threads; else on one of the threads.
    pub fn run_waiting(&self, job: impl FnOnce() + Send + 'static) {
        // Relaxed: only the number counts.
        let place = self
            .places
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(1));
        if place.is_err() {
            return self.run(job);
        }
        job();
        self.places.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until no job runs or waits, but not beyond `end`. Returns whether that is so.
    pub fn await_idle(&self, end: Instant) -> bool {
        let mut state = self.shared.lock();
        while !state.jobs.is_empty() || state.idle < state.living {
            if Instant::now() >= end {
                return false;
            }
            drop(state);
            std::thread::sleep(LOOK);
            state = self.shared.lock();
        }
        true
    }

    /// Waits until all jobs are done.
    pub fn stop(&mut self) {
        let mut state = self.shared.lock();
        state.stopped = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.shared.called.notify_all();
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a waiting thread had panicked");
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned state is valid: no code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn spawn(shared: &Arc<Shared>, state: &mut State) -> std::io::Result<()> {
    let own = shared.clone();
    let name = format!("extant-wait-{}", state.living);
    let thread = Builder::new().name(name).spawn(move || serve(&own))?;
    state.threads.retain(|thread| !thread.is_finished());
    state.threads.push(thread);
    state.living += 1;
    Ok(())
}

fn serve(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            drop(state);
            // The job has answered its request if it panics (`caught`); the thread stays.
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!("a job of a waiting thread panicked");
            }
            state = shared.lock();
            continue;
        }
        if state.stopped {
            break;
        }
        let unused;
        (state, unused) = wait(shared, state);
        if unused && state.jobs.is_empty() && state.living > 1 {
            break;
        }
    }
    state.living -= 1;
}

/// Waits for a job; true if none came for long. The last thread wakes up for jobs only.
fn wait<'a>(shared: &'a Shared, mut state: MutexGuard<'a, State>) -> (MutexGuard<'a, State>, bool) {
    state.idle += 1;
    let (mut state, unused) = if state.living == 1 {
        (shared.called.wait(state).unwrap_or_else(PoisonError::into_inner), false)
    } else {
        let waited = shared.called.wait_timeout(state, shared.keep);
        let (state, result) = waited.unwrap_or_else(PoisonError::into_inner);
        (state, result.timed_out())
    };
    state.idle -= 1;
    (state, unused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::mpsc::channel;
    use std::thread;

    #[test]
    fn few_callers_wait_themselves() {
        let pool = Pool::start(1, 1).expect("a thread");
        let (ran, runs) = channel();
        let inner = ran.clone();
        let here = thread::current().id();
        pool.run_waiting(move || ran.send(thread::current().id()).expect("the test listens"));
        assert_eq!(runs.recv(), Ok(here));
        let full = Pool::start(1, 0).expect("a thread");
        full.run_waiting(move || inner.send(thread::current().id()).expect("the test listens"));
        assert_ne!(runs.recv(), Ok(here));
    }

    #[test]
    fn threads_start_for_jobs_that_wait_and_end_without_jobs() {
        let mut pool = Pool::start_keeping(3, 0, Duration::from_millis(1)).expect("a thread");
        let living = |pool: &Pool| pool.shared.lock().living;
        assert_eq!(living(&pool), 1);
        for _ in 0..2 {
            // All jobs run at once, or the barrier would hold them forever.
            let meeting = Arc::new(Barrier::new(4));
            for _ in 0..3 {
                let meeting = meeting.clone();
                pool.run(move || {
                    meeting.wait();
                });
            }
            assert_eq!(living(&pool), 3);
            pool.run(|| ());
            assert_eq!(living(&pool), 3, "a job beyond the bound waits");
            meeting.wait();
            while living(&pool) > 1 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        pool.stop();
        assert_eq!(living(&pool), 0);
    }

    #[test]
    fn a_job_that_panics_costs_no_thread() {
        let mut pool = Pool::start(1, 0).expect("a thread");
        let (ran, runs) = channel();
        pool.run(|| panic!("planted"));
        pool.run(move || ran.send(()).expect("the test listens"));
        assert_eq!(runs.recv(), Ok(()));
        pool.stop();
    }
}
