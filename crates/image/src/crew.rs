//! Threads that share the items of one job.

use crate::error::Result;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The numbers of the items that no thread has taken yet.
#[derive(Debug)]
pub(crate) struct Turn {
    next: AtomicUsize,
    items: usize,
    failed: AtomicBool,
}

impl Turn {
    /// Takes the next item, unless a thread has failed.
    ///
    /// Relaxed: the items were made before the threads, and the results are read after their end.
    pub fn take(&self) -> Option<usize> {
        if self.failed.load(Ordering::Relaxed) {
            return None;
        }
        Some(self.next.fetch_add(1, Ordering::Relaxed)).filter(|item| *item < self.items)
    }

    fn run<R>(&self, work: impl Fn(&Turn) -> Result<R>) -> Result<R> {
        let result = work(self);
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result
    }
}

/// Runs `work` on `threads` threads, of which one is the caller's, and returns all results. Each
/// must take items until none is left. After a failure, the others get no more.
pub(crate) fn run_on_threads<R: Send>(
    threads: usize,
    items: usize,
    work: impl Fn(&Turn) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let turn = Turn { next: AtomicUsize::new(0), items, failed: AtomicBool::new(false) };
    let run = || turn.run(&work);
    let results: Vec<Result<R>> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let own = run();
        let joined = others
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        std::iter::once(own).chain(joined.collect::<Vec<_>>()).collect()
    });
    results.into_iter().collect()
}
