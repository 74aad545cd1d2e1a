//! Threads for requests that wait for a commit, so that other threads can receive. As many callers
//! of fsync as there are threads share one commit.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

type Job = Box<dyn FnOnce() + Send>;

/// A fixed number of threads.
#[derive(Debug)]
pub struct Pool {
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
    /// Number of callers of [`Pool::run_waiting`] that may still wait themselves.
    places: AtomicUsize,
}

impl Pool {
    /// Starts `count` threads. Up to `callers` callers may wait themselves: fewer than there are,
    /// so that the others receive.
    pub fn start(count: usize, callers: usize) -> std::io::Result<Pool> {
        let (jobs, queue) = channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        let threads = (0..count)
            .map(|i| {
                let queue = queue.clone();
                Builder::new().name(format!("extant-wait-{i}")).spawn(move || serve(&queue))
            })
            .collect::<std::io::Result<_>>()?;
        Ok(Pool { jobs: Some(jobs), threads, places: AtomicUsize::new(callers) })
    }

    /// Runs `job` on one of the threads, or on this thread if they have ended.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let Some(jobs) = &self.jobs else { return job() };
        if let Err(refused) = jobs.send(Box::new(job)) {
            (refused.0)();
        }
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

    /// Waits until all jobs are done.
    pub fn stop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a waiting thread had panicked");
            }
        }
    }
}

fn serve(queue: &Mutex<Receiver<Job>>) {
    loop {
        // A poisoned queue is valid: no code panics while it holds the lock.
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match next {
            Ok(job) => job(),
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
}
