//! Work by several threads whose results are used in the order of the tasks.
//!
//! The calling thread finds the tasks and uses the results; other threads turn each task into its
//! result ahead of that. An archive therefore has the same bytes for any number of threads.
//!
//! # Invariants
//! Results are used in the order in which the tasks were pushed. Tasks whose results were not used
//! yet cost the given limit together, or are those of one batch: memory is bounded. Tasks come in
//! batches, since a wakeup of a thread costs as much as a small task.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Tasks of one batch, at most.
const BATCH: usize = 32;

/// Parts of the limit that one batch may cost.
const BATCHES: u64 = 16;

/// A batch from its first push to the use of its results.
enum Stage<T, R> {
    Waiting(Vec<T>),
    Working,
    Done(Vec<R>),
}

struct State<T, R> {
    /// Batches in their order. The first one is next to be used.
    batches: VecDeque<Stage<T, R>>,
    /// Number of the first batch.
    first: u64,
    /// Number of the first batch that waits for a thread.
    next: u64,
    /// No task comes any more.
    closed: bool,
    /// Work on a task panicked.
    panicked: bool,
}

struct Queue<T, R> {
    state: Mutex<State<T, R>>,
    task: Condvar,
    result: Condvar,
}

impl<T, R> Queue<T, R> {
    fn new() -> Queue<T, R> {
        let (first, next) = (0, 0);
        let state = State { batches: VecDeque::new(), first, next, closed: false, panicked: false };
        Queue { state: Mutex::new(state), task: Condvar::new(), result: Condvar::new() }
    }

    /// Locks the state. A poisoned state is consistent: no code panics under the lock.
    fn lock(&self) -> MutexGuard<'_, State<T, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works off batches until the queue is closed.
    fn serve(&self, work: &impl Fn(T) -> R) {
        let mut state = self.lock();
        loop {
            let (next, first) = (state.next, state.first);
            let place = usize::try_from(next - first).unwrap_or(usize::MAX);
            if let Some(stage) = state.batches.get_mut(place) {
                let taken = std::mem::replace(stage, Stage::Working);
                state.next += 1;
                drop(state);
                let Stage::Waiting(tasks) = taken else { return };
                let results = tasks.into_iter().map(work).collect();
                state = self.lock();
                // The batch is still there: only finished ones are removed.
                let place = usize::try_from(next - state.first).unwrap_or(usize::MAX);
                if let Some(stage) = state.batches.get_mut(place) {
                    *stage = Stage::Done(results);
                }
                self.result.notify_one();
            } else if state.closed {
                return;
            } else {
                state = self.task.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Waits for the results of the first batch. `None` if work panicked.
    fn take(&self) -> Option<Vec<R>> {
        let mut state = self.lock();
        loop {
            if state.panicked {
                return None;
            }
            if let Some(Stage::Done(results)) = state.batches.front_mut() {
                let results = std::mem::take(results);
                state.batches.pop_front();
                state.first += 1;
                return Some(results);
            }
            state = self.result.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Wakes the calling thread when a thread ends, also by a panic.
struct Ending<'a, T, R>(&'a Queue<T, R>);

impl<T, R> Drop for Ending<'_, T, R> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().panicked = true;
            self.0.result.notify_one();
        }
    }
}

/// Ends the threads when the calling thread leaves, also by a panic or an error.
struct Closing<'a, T, R>(&'a Queue<T, R>);

impl<T, R> Drop for Closing<'_, T, R> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        // Tasks without a thread are dropped; the loop above may only have removed finished ones.
        state.closed = true;
        let (next, first) = (state.next, state.first);
        state.batches.truncate(usize::try_from(next - first).unwrap_or(usize::MAX));
        drop(state);
        self.0.task.notify_all();
    }
}

/// The calling thread's side: it pushes tasks, and thereby uses results.
pub struct Pusher<'a, T, R, C> {
    queue: &'a Queue<T, R>,
    consume: C,
    batch: Vec<T>,
    batch_cost: u64,
    /// The cost of each batch in the queue.
    costs: VecDeque<u64>,
    /// Their sum.
    cost: u64,
    limit: u64,
}

impl<T, R, E, C: FnMut(R) -> Result<(), E>> Pusher<'_, T, R, C> {
    /// Adds a task of a cost in bytes. Uses results of earlier tasks if the limit is reached.
    ///
    /// # Errors
    /// Those of the use of a result.
    pub fn push(&mut self, task: T, cost: u64) -> Result<(), E> {
        self.batch.push(task);
        self.batch_cost = self.batch_cost.saturating_add(cost);
        if self.batch.len() >= BATCH || self.batch_cost >= self.limit / BATCHES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), E> {
        if self.batch.is_empty() {
            return Ok(());
        }
        while !self.costs.is_empty() && self.cost.saturating_add(self.batch_cost) > self.limit {
            self.use_first()?;
        }
        self.costs.push_back(self.batch_cost);
        self.cost = self.cost.saturating_add(self.batch_cost);
        self.batch_cost = 0;
        let batch = std::mem::take(&mut self.batch);
        self.queue.lock().batches.push_back(Stage::Waiting(batch));
        self.queue.task.notify_one();
        Ok(())
    }

    fn use_first(&mut self) -> Result<(), E> {
        let cost = self.costs.pop_front().unwrap_or_default();
        self.cost = self.cost.saturating_sub(cost);
        // After a panic there are no results; the scope of the threads passes the panic on.
        self.queue.take().into_iter().flatten().try_for_each(&mut self.consume)
    }

    fn finish(&mut self) -> Result<(), E> {
        self.flush()?;
        while !self.costs.is_empty() {
            self.use_first()?;
        }
        Ok(())
    }
}

/// Calls `produce`, which pushes tasks; `work` for each of them, by `threads` threads; and
/// `consume` for each result in the order of the tasks. Tasks under way cost `limit` bytes at most.
///
/// # Errors
/// The first of `produce` and `consume`.
pub fn run<T: Send, R: Send, E, C: FnMut(R) -> Result<(), E>>(
    (threads, limit): (usize, u64),
    work: impl Fn(T) -> R + Sync,
    consume: C,
    produce: impl FnOnce(&mut Pusher<'_, T, R, C>) -> Result<(), E>,
) -> Result<(), E> {
    let queue = Queue::new();
    std::thread::scope(|scope| {
        let _closing = Closing(&queue);
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let _ending = Ending(&queue);
                queue.serve(&work);
            });
        }
        let (batch, costs) = (Vec::new(), VecDeque::new());
        let mut pusher =
            Pusher { queue: &queue, consume, batch, batch_cost: 0, costs, cost: 0, limit };
        produce(&mut pusher)?;
        pusher.finish()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn squares(threads: usize, limit: u64) -> Vec<u64> {
        let mut found = Vec::new();
        let done: Result<(), ()> = run(
            (threads, limit),
            |n: u64| n * n,
            |square| {
                found.push(square);
                Ok(())
            },
            |pusher| (0..10_000).try_for_each(|n| pusher.push(n, n % 7)),
        );
        assert_eq!(done, Ok(()));
        found
    }

    #[test]
    fn results_keep_the_order_of_their_tasks() {
        let expected: Vec<u64> = (0..10_000).map(|n| n * n).collect();
        for (threads, limit) in [(1, 0), (1, 100), (4, 0), (4, 50), (4, u64::MAX)] {
            assert_eq!(squares(threads, limit), expected, "{threads} threads, limit {limit}");
        }
    }

    #[test]
    fn an_error_ends_all_threads() {
        for bad in [0, 17, 9_999] {
            let done = run(
                (3, 100),
                |n: u64| n,
                |n| if n == bad { Err(n) } else { Ok(()) },
                |pusher| (0..10_000).try_for_each(|n| pusher.push(n, 1)),
            );
            assert_eq!(done, Err(bad));
        }
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn a_panic_of_a_thread_reaches_the_caller() {
        let done: Result<(), ()> = run(
            (2, 10),
            |n: u64| assert_ne!(n, 50),
            |()| Ok(()),
            |pusher| (0..10_000).try_for_each(|n| pusher.push(n, 1)),
        );
        assert_eq!(done, Ok(()));
    }
}
