//! Parts of a pass in parallel, with results in order.
//!
//! Threads take parts by number; one thread takes the results, in the order of the parts, so that
//! everything it does is the same for any number of threads. At most [`AHEAD`] results per thread
//! wait, which bounds memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Results that may wait, per thread.
const AHEAD: usize = 4;

/// The way to work: the number of threads, and the flag that ends the work.
#[derive(Clone, Copy, Debug)]
pub struct Workers<'a> {
    pub threads: usize,
    pub stop: &'a AtomicBool,
}

impl Workers<'_> {
    /// Returns whether the work is to end. Relaxed: the flag publishes nothing else.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Calls `work` for the parts 0 to `count` - 1 and `take` for each result in order. Ends early
    /// once the flag is set.
    pub fn run<R: Send>(
        &self,
        count: usize,
        work: impl Fn(usize) -> R + Sync,
        mut take: impl FnMut(usize, R),
    ) {
        let threads = self.threads.min(count);
        if threads <= 1 {
            for part in (0..count).take_while(|_| !self.stopped()) {
                take(part, work(part));
            }
            return;
        }
        let queue = Queue::new(count, threads.saturating_mul(AHEAD));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let _end = EndOnPanic(&queue);
                    while let Some(part) = queue.next_part() {
                        queue.put(part, work(part));
                    }
                });
            }
            // Taking ends the queue for the threads in every case, since the scope waits for them.
            let _end = EndOnDrop(&queue);
            for part in 0..count {
                match queue.result(part) {
                    Some(result) if !self.stopped() => take(part, result),
                    _ => break,
                }
            }
        });
    }
}

struct State<R> {
    next: usize,
    taken: usize,
    ended: bool,
    ready: BTreeMap<usize, R>,
    /// Threads that wait until a result is taken.
    waiting: usize,
    /// The taker waits for the next result.
    wanted: bool,
}

/// Waking a thread is a system call, which is left out where none waits.
struct Queue<R> {
    count: usize,
    ahead: usize,
    state: Mutex<State<R>>,
    /// There is room for results, or the work has ended.
    room: Condvar,
    /// The next result is there, or the work has ended.
    result: Condvar,
}

impl<R> Queue<R> {
    fn new(count: usize, ahead: usize) -> Queue<R> {
        let ready = BTreeMap::new();
        let state = State { next: 0, taken: 0, ended: false, ready, waiting: 0, wanted: false };
        let (room, result) = (Condvar::new(), Condvar::new());
        Queue { count, ahead, state: Mutex::new(state), room, result }
    }

    fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next part to work on. Waits while too many results wait.
    fn next_part(&self) -> Option<usize> {
        let mut state = self.lock();
        while !state.ended
            && state.next < self.count
            && state.next >= state.taken.saturating_add(self.ahead)
        {
            state.waiting = state.waiting.saturating_add(1);
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting = state.waiting.saturating_sub(1);
        }
        if state.ended || state.next >= self.count {
            return None;
        }
        let part = state.next;
        state.next = part.saturating_add(1);
        Some(part)
    }

    fn put(&self, part: usize, result: R) {
        let mut state = self.lock();
        state.ready.insert(part, result);
        let wanted = state.wanted && part == state.taken;
        drop(state);
        if wanted {
            self.result.notify_one();
        }
    }

    /// Waits for the result of a part; `None` if the work has ended without it.
    fn result(&self, part: usize) -> Option<R> {
        let mut state = self.lock();
        while !state.ended && !state.ready.contains_key(&part) {
            state.wanted = true;
            state = self.result.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.wanted = false;
        let result = state.ready.remove(&part);
        state.taken = part.saturating_add(1);
        let waiting = state.waiting > 0;
        drop(state);
        if waiting {
            self.room.notify_all();
        }
        result
    }

    fn end(&self) {
        self.lock().ended = true;
        self.room.notify_all();
        self.result.notify_all();
    }
}

struct EndOnDrop<'q, R>(&'q Queue<R>);

impl<R> Drop for EndOnDrop<'_, R> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Ends the work when a thread panics, so that no other one waits for its result.
struct EndOnPanic<'q, R>(&'q Queue<R>);

impl<R> Drop for EndOnPanic<'_, R> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order() {
        for threads in [1, 2, 5] {
            let stop = AtomicBool::new(false);
            let workers = Workers { threads, stop: &stop };
            let mut taken = Vec::new();
            workers.run(1000, |part| part * 2, |part, result| taken.push((part, result)));
            let expected: Vec<_> = (0..1000).map(|part| (part, part * 2)).collect();
            assert_eq!(taken, expected, "{threads} threads");
        }
    }

    #[test]
    fn the_flag_ends_the_work() {
        for threads in [1, 3] {
            let stop = AtomicBool::new(false);
            let workers = Workers { threads, stop: &stop };
            let mut taken = 0;
            workers.run(
                1000,
                |part| part,
                |part, _| {
                    taken += 1;
                    stop.store(part == 9, Ordering::Relaxed);
                },
            );
            assert_eq!(taken, 10, "{threads} threads");
        }
    }
}
