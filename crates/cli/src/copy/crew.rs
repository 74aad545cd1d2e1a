//! A crew of threads that works off tasks, of which each may bring new ones.
//!
//! # Invariants
//! The work is over when no task waits and no thread has one at hand: only then could none come up
//! any more.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Tasks that wait. The newest is taken first, so that a tree is walked in depth and few tasks wait
/// at a time.
#[derive(Debug)]
pub struct Crew<T> {
    state: Mutex<State<T>>,
    wake: Condvar,
}

#[derive(Debug)]
struct State<T> {
    tasks: Vec<T>,
    /// Threads that have a task at hand.
    busy: usize,
}

/// A task at hand; when it is dropped, its thread is free again, even if the task panicked.
struct AtHand<'a, T>(&'a Crew<T>);

impl<T> Drop for AtHand<'_, T> {
    fn drop(&mut self) {
        self.0.lock().busy -= 1;
        self.0.wake.notify_all();
    }
}

impl<T: Send> Crew<T> {
    /// Works off `first` and all that comes of it with `threads` threads; returns when nothing is
    /// left.
    pub fn work(threads: usize, first: Vec<T>, each: impl Fn(T, &Crew<T>) + Sync) {
        let crew =
            Crew { state: Mutex::new(State { tasks: first, busy: 0 }), wake: Condvar::new() };
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| crew.serve(&each));
            }
        });
    }

    fn serve(&self, each: &impl Fn(T, &Crew<T>)) {
        while let Some(task) = self.next() {
            let _at_hand = AtHand(self);
            each(task, self);
        }
    }

    fn next(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.tasks.pop() {
                state.busy += 1;
                return Some(task);
            }
            if state.busy == 0 {
                return None;
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Adds tasks.
    pub fn add(&self, tasks: impl IntoIterator<Item = T>) {
        self.lock().tasks.extend(tasks);
        self.wake.notify_all();
    }
}

impl<T> Crew<T> {
    /// Locks the state. A poisoned state is consistent: no code panics under the lock.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn tasks_that_bring_tasks_are_all_done() {
        for threads in [1, 4] {
            let done = AtomicU64::new(0);
            Crew::work(threads, vec![12u32], |depth, crew| {
                done.fetch_add(1, Ordering::Relaxed);
                if depth > 0 {
                    crew.add([depth - 1, depth - 1]);
                }
            });
            assert_eq!(done.into_inner(), (1 << 13) - 1);
        }
    }
}
