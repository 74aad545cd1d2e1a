//! Work that many ask for and one does for all.
//!
//! Who asks needs a round that begins after the question. If none is running, he begins one; if one is, it may have
//! begun too early for him, so he waits for the next, which serves all who came meanwhile. However many ask, each waits
//! for two rounds at most.
//!
//! # Invariants
//! - One round runs at a time.
//! - `next` is a round that has not begun. Who waits for a round took it from `next` after he came.
//! - Those who wait sleep by the parity of their round: the end of a round wakes all who shared it, and of the others one,
//!   who begins the next.

use crate::{Arc, Condvar, Level, Mutex, OnceLock};

/// Rounds of shared work with a result that all who shared it get.
#[derive(Debug)]
pub struct Rounds<R> {
    state: Mutex<State<R>>,
    ended: [Condvar; 2],
}

#[derive(Debug)]
struct State<R> {
    running: bool,
    /// The number of `next`.
    number: usize,
    next: Arc<OnceLock<R>>,
}

/// Ends a round, after a panic as well.
struct Running<'a, R>(&'a Rounds<R>, usize);

impl<R> Drop for Running<'_, R> {
    fn drop(&mut self) {
        self.0.state.lock().running = false;
        self.0.ended[self.1 & 1].notify_all();
        self.0.ended[!self.1 & 1].notify_one();
    }
}

impl<R: Clone> Rounds<R> {
    /// No round has begun. The lock is of `level`; it is not held while the work is done.
    pub fn new(level: Level) -> Self {
        let state = State { running: false, number: 0, next: Arc::default() };
        Rounds { state: Mutex::new(level, state), ended: [Condvar::new(), Condvar::new()] }
    }

    /// The result of a round that begins after the call: of this thread's `work`, or of another's.
    pub fn share(&self, work: impl FnOnce() -> R) -> R {
        let mut state = self.state.lock();
        let (mut own, mut number) = (Arc::clone(&state.next), state.number);
        loop {
            if let Some(result) = own.get() {
                return result.clone();
            }
            if number + usize::from(state.running) < state.number {
                // A panic ended his round.
                (own, number) = (Arc::clone(&state.next), state.number);
            }
            if !state.running {
                break;
            }
            self.ended[number & 1].wait(&mut state);
        }
        state.running = true;
        let own = std::mem::take(&mut state.next);
        state.number += 1;
        drop(state);
        let _running = Running(self, number);
        own.get_or_init(work).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::{AtomicU64, Ordering::SeqCst};

    #[test]
    fn a_round_begins_after_the_question() {
        let rounds = Rounds::new(Level::Leaf);
        let (clock, begun) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let asked = clock.fetch_add(1, SeqCst);
                        let seen = rounds.share(|| {
                            begun.fetch_add(1, SeqCst);
                            let at = clock.fetch_add(1, SeqCst);
                            std::thread::yield_now();
                            at
                        });
                        assert!(seen > asked);
                    }
                });
            }
        });
        assert!(begun.load(SeqCst) <= 4000);
    }

    #[test]
    fn those_who_come_during_a_round_share_the_next() {
        let rounds = Rounds::new(Level::Leaf);
        let (begun, waiting) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            rounds.share(|| {
                begun.fetch_add(1, SeqCst);
                for _ in 0..20 {
                    scope.spawn(|| {
                        waiting.fetch_add(1, SeqCst);
                        rounds.share(|| begun.fetch_add(1, SeqCst))
                    });
                }
                while waiting.load(SeqCst) < 20 {
                    std::thread::yield_now();
                }
                // They have only to take the lock now.
                std::thread::sleep(std::time::Duration::from_millis(100));
                0
            });
        });
        assert!(begun.load(SeqCst) < 20, "{begun:?} rounds for 21 questions");
    }

    #[test]
    fn a_panic_leaves_nobody_waiting() {
        let rounds = Rounds::new(Level::Leaf);
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| rounds.share(|| panic!("wanted")));
            assert!(panics.join().is_err());
        });
        assert_eq!(rounds.share(|| 5), 5);
    }
}
