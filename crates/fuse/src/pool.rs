//! Threads for requests that wait for a commit, so that those which receive never do: as many callers of fsync as there are threads share one
//! commit.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

type Job = Box<dyn FnOnce() + Send>;

/// A fixed number of threads.
#[derive(Debug)]
pub struct Pool {
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts `count` threads.
    pub fn start(count: usize) -> std::io::Result<Pool> {
        let (jobs, queue) = channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        let threads = (0..count)
            .map(|i| {
                let queue = queue.clone();
                Builder::new().name(format!("extant-wait-{i}")).spawn(move || serve(&queue))
            })
            .collect::<std::io::Result<_>>()?;
        Ok(Pool { jobs: Some(jobs), threads })
    }

    /// Runs `job` on one of the threads, or here if they are gone.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let Some(jobs) = &self.jobs else { return job() };
        if let Err(refused) = jobs.send(Box::new(job)) {
            (refused.0)();
        }
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
        // A poisoned queue is whole: nothing panics while it is locked.
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match next {
            Ok(job) => job(),
            Err(_) => return,
        }
    }
}
