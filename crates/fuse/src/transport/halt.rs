//! Halting the threads that receive requests, between two requests of each.
//!
//! A thread that waits for a request cannot be interrupted. So a halt needs as many requests as
//! there are threads, which the keeper of the mount sends (`Keeper::wake`): each waiting thread
//! gets one of them, or another request, serves it, and parks. Requests that come later wait in the
//! kernel. They are served when the threads go on, or by another process that gets the connection.
//!
//! # Invariants
//! - A parked thread has answered its request, or a job of the pool will.
//! - Jobs may need further requests of the kernel for their end. So threads are halted for a moment
//!   only, unless all jobs are done.

use super::workers::Pool;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long the threads are halted at first while jobs run, and run until the next attempt. Each
/// further attempt takes longer.
const FIRST: Duration = Duration::from_millis(20);

/// Time between two looks at threads that are started.
const BETWEEN: Duration = Duration::from_millis(5);

/// How long all attempts may take.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Serving,
    Halting,
    /// Another process, or other threads, serve the connection.
    Replaced,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// Threads that receive.
    readers: usize,
    /// Those of them that wait for the end of the halt.
    parked: usize,
}

/// The threads that receive requests of a connection.
#[derive(Debug, Default)]
pub struct Halt {
    /// The phase is not [`Phase::Serving`].
    is_wanted: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    pool: OnceLock<Weak<Pool>>,
}

/// A thread that receives.
#[derive(Debug)]
pub struct ReaderMark<'a>(&'a Halt);

impl Drop for ReaderMark<'_> {
    fn drop(&mut self) {
        self.0.lock().readers -= 1;
        self.0.changed.notify_all();
    }
}

impl Halt {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned state is valid: no code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a halt of threads that are yet to be started.
    pub fn halted() -> Halt {
        let halt = Halt::default();
        halt.set(Phase::Halting);
        halt
    }

    /// Waits until so many threads are halted. Returns false if it takes too long, or `is_over`.
    pub fn await_parked(
        &self,
        readers: usize,
        patience: Duration,
        is_over: impl Fn() -> bool,
    ) -> bool {
        let end = Instant::now() + patience;
        let mut state = self.lock();
        while state.parked < readers {
            if Instant::now() >= end || is_over() {
                return false;
            }
            // An end is no change.
            let waited = self.changed.wait_timeout(state, BETWEEN);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Names the pool of the jobs. Called once.
    pub fn watch(&self, pool: Weak<Pool>) {
        let _ = self.pool.set(pool);
    }

    /// Counts a thread that receives, until the result is dropped.
    pub fn reader(&self) -> ReaderMark<'_> {
        self.lock().readers += 1;
        ReaderMark(self)
    }

    /// Waits for the end of a halt. Returns false if the thread must not receive any more.
    pub fn pass(&self, _reader: &ReaderMark<'_>) -> bool {
        // Relaxed: the lock orders the rest.
        if !self.is_wanted.load(Ordering::Relaxed) {
            return true;
        }
        let mut state = self.lock();
        state.parked += 1;
        self.changed.notify_all();
        while state.phase == Phase::Halting {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.parked -= 1;
        state.phase == Phase::Serving
    }

    /// Returns whether the threads serve, or have served until the end of the mount.
    pub fn is_serving(&self) -> bool {
        self.lock().phase == Phase::Serving
    }

    /// Returns whether others serve the connection now.
    pub fn is_replaced(&self) -> bool {
        self.lock().phase == Phase::Replaced
    }

    /// Halts all threads, when no job runs. `wake` must make the kernel send so many requests.
    /// Returns false if that was not possible: the mount has ended, or requests take too long. The
    /// threads go on then.
    pub fn stop(&self, wake: impl Fn(usize)) -> bool {
        let (end, mut patience) = (Instant::now() + PATIENCE, FIRST);
        while Instant::now() < end {
            match self.try_stop(&wake, patience) {
                Some(true) => return true,
                Some(false) => self.resume(),
                None => break,
            }
            std::thread::sleep(patience);
            patience = (patience * 2).min(PATIENCE / 4);
        }
        self.resume();
        false
    }

    /// Halts for so long. `None` if no thread receives any more.
    fn try_stop(&self, wake: &impl Fn(usize), patience: Duration) -> Option<bool> {
        let end = Instant::now() + patience;
        let mut state = self.lock();
        state.phase = Phase::Halting;
        self.is_wanted.store(true, Ordering::Relaxed);
        let waiting = state.readers - state.parked;
        drop(state);
        wake(waiting);
        state = self.lock();
        while state.readers > state.parked {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(false);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.readers == 0 {
            return None;
        }
        drop(state);
        let pool = self.pool.get().and_then(Weak::upgrade);
        Some(pool.is_none_or(|pool| pool.await_idle(end)))
    }

    /// Lets the threads go on.
    pub fn resume(&self) {
        self.set(Phase::Serving);
    }

    /// Ends the threads: others serve the connection now.
    pub fn replace(&self) {
        self.set(Phase::Replaced);
    }

    fn set(&self, phase: Phase) {
        let mut state = self.lock();
        state.phase = phase;
        self.is_wanted.store(phase != Phase::Serving, Ordering::Relaxed);
        drop(state);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    /// Threads that receive without end, as fast as they can.
    fn serve(halt: &Arc<Halt>, passed: &Arc<AtomicUsize>) -> Vec<thread::JoinHandle<()>> {
        let body = |halt: Arc<Halt>, passed: Arc<AtomicUsize>| {
            move || {
                let reader = halt.reader();
                while halt.pass(&reader) {
                    passed.fetch_add(1, Ordering::Relaxed);
                    thread::yield_now();
                }
            }
        };
        let threads = (0..3).map(|_| thread::spawn(body(halt.clone(), passed.clone()))).collect();
        while passed.load(Ordering::Relaxed) < 10 || halt.lock().readers < 3 {
            thread::yield_now();
        }
        threads
    }

    #[test]
    fn threads_halt_when_the_jobs_are_done_and_go_on() {
        let (halt, passed) = <(Arc<Halt>, Arc<AtomicUsize>)>::default();
        let pool = Arc::new(Pool::start(2, 0).expect("a thread"));
        halt.watch(Arc::downgrade(&pool));
        let threads = serve(&halt, &passed);
        let needed = passed.clone();
        // A job that needs the threads to go on for some time.
        pool.run(move || {
            let begin = needed.load(Ordering::Relaxed);
            while needed.load(Ordering::Relaxed) < begin + 100 {
                thread::yield_now();
            }
        });
        assert!(halt.stop(|_| ()));
        let before = passed.load(Ordering::Relaxed);
        thread::sleep(Duration::from_millis(20));
        assert_eq!(passed.load(Ordering::Relaxed), before);
        halt.resume();
        while passed.load(Ordering::Relaxed) == before {
            thread::yield_now();
        }
        assert!(halt.stop(|_| ()));
        halt.replace();
        threads.into_iter().for_each(|thread| thread.join().expect("its end"));
        assert!(halt.is_replaced() && !halt.stop(|_| ()));
    }
}
