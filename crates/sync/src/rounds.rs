//! Work that many ask for and one does for all.
//!
//! Who asks needs a round that begins after the question. If none is running, he begins one; if one
//! is, it may have begun too early for him, so he waits for the next, which serves all who came
//! meanwhile. However many ask, each waits for two rounds at most, and for what follows.
//!
//! # A crowd
//! Many who were served together mostly ask again, and had best be served together again: so after
//! a round of many, the next begins when as many have come as were there before, or half as long
//! after it as it took, at most [`PATIENCE`].
//!
//! # Invariants
//! - One round works at a time.
//! - `next` is a round that has not begun. Who shares a round took it from `next` after he came.
//! - The first who has to wait for `next` is its heir: he begins it unless somebody else has.
//!   Nobody waits for a round without an heir that has not begun. When no round runs, the heir does
//!   not sleep beyond `until`.
//!
//! # Waking
//! Those who share a round sleep on its result and need no lock when it is there: all can run at
//! once. Where each needs a lock that wakes the next one, a hundred of them take a hundred
//! switches, one after the other, and whoever else wants the processors comes in between.

use crate::thread::{self, Thread};
use crate::{Arc, Level, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// So many are a crowd.
const CROWD: usize = 8;

/// A crowd is waited for at most so long.
const PATIENCE: Duration = Duration::from_millis(1);

/// Rounds of shared work with a result that all who shared it get.
#[derive(Debug)]
pub struct Coalescer<R> {
    state: Mutex<State<R>>,
}

/// A round's result; none if it panicked.
type Outcome<R> = OnceLock<Option<R>>;

#[derive(Debug)]
struct State<R> {
    running: bool,
    heir: Option<Thread>,
    next: Arc<Outcome<R>>,
    /// How many wait for `next`.
    came: usize,
    /// How many the round that runs, or ran last, serves.
    serves: usize,
    /// How many are to come before `next` begins, if it is not yet `until`.
    expected: usize,
    until: Instant,
}

impl<R> State<R> {
    /// Whether `next` may begin.
    fn is_due(&self) -> bool {
        !self.running && (self.came >= self.expected || Instant::now() >= self.until)
    }

    /// A round has ended that took so long.
    fn end(&mut self, took: Duration) {
        self.running = false;
        let crowd = self.serves + self.came;
        self.expected = if crowd < CROWD { 0 } else { crowd };
        self.until = Instant::now() + (took / 2).min(PATIENCE);
    }
}

/// How somebody comes to his round.
enum Joined<R> {
    /// He begins it.
    Begins(Arc<Outcome<R>>),
    /// Somebody else does.
    Shares(Arc<Outcome<R>>),
}

/// A round that runs. Ends when it is dropped, after a panic as well.
struct Running<'a, R> {
    rounds: &'a Coalescer<R>,
    outcome: Arc<Outcome<R>>,
    began: Instant,
    result: Option<R>,
}

impl<R> Drop for Running<'_, R> {
    fn drop(&mut self) {
        let heir = {
            let mut state = self.rounds.state.lock();
            state.end(self.began.elapsed());
            state.heir.clone()
        };
        // First, so that he is at work while the others wake.
        if let Some(heir) = heir {
            heir.unpark();
        }
        // Nobody else sets it.
        let _ = self.outcome.set(self.result.take());
    }
}

impl<R: Clone> Coalescer<R> {
    /// No round has begun. The lock is of `level`; it is not held while the work is done.
    pub fn new(level: Level) -> Self {
        let (next, until) = (Arc::default(), Instant::now());
        let state =
            State { running: false, heir: None, next, came: 0, serves: 0, expected: 0, until };
        Coalescer { state: Mutex::new(level, state) }
    }

    /// The result of a round that begins after the call: of this thread's `work`, or of another's.
    pub fn share(&self, work: impl FnOnce() -> R) -> R {
        let outcome = loop {
            match self.join() {
                Joined::Begins(own) => break own,
                Joined::Shares(others) => {
                    if let Some(result) = others.wait().clone() {
                        return result;
                    }
                    // A panic ended that round.
                }
            }
        };
        let mut running = Running { rounds: self, outcome, began: Instant::now(), result: None };
        let result = work();
        running.result = Some(result.clone());
        result
    }

    fn join(&self) -> Joined<R> {
        let mut state = self.state.lock();
        state.came += 1;
        let own = Arc::clone(&state.next);
        if !state.is_due() {
            if state.heir.is_some() {
                return Joined::Shares(own);
            }
            state.heir = Some(thread::current());
            while !state.is_due() {
                let until = (!state.running).then_some(state.until);
                drop(state);
                sleep(until);
                state = self.state.lock();
                if !Arc::ptr_eq(&state.next, &own) {
                    // Who came last has begun it.
                    return Joined::Shares(own);
                }
            }
        }
        state.heir = None;
        state.running = true;
        state.serves = std::mem::take(&mut state.came);
        state.next = Arc::default();
        Joined::Begins(own)
    }
}

/// Until this thread is woken, or the time has come.
fn sleep(until: Option<Instant>) {
    match until {
        // Models know no time, and are no crowd.
        #[cfg(not(loom))]
        Some(until) => thread::park_timeout(until.saturating_duration_since(Instant::now())),
        _ => thread::park(),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::atomic::{AtomicU64, Ordering::SeqCst};

    #[test]
    fn a_round_begins_after_the_question() {
        let rounds = Coalescer::new(Level::Leaf);
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
        let rounds = Coalescer::new(Level::Leaf);
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
    fn who_shared_a_round_that_panicked_asks_again() {
        let rounds = Coalescer::new(Level::Leaf);
        let (begun, waiting) = (AtomicU64::new(0), AtomicU64::new(0));
        let (rounds, begun, waiting) = (&rounds, &begun, &waiting);
        let one = move || {
            waiting.fetch_add(1, SeqCst);
            rounds.share(|| assert!(begun.fetch_add(1, SeqCst) > 0, "wanted"));
        };
        let outcomes: Vec<bool> = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            rounds.share(|| {
                threads.extend((0..8).map(|_| scope.spawn(one)));
                while waiting.load(SeqCst) < 8 {
                    std::thread::yield_now();
                }
                // They have only to take the lock now.
                std::thread::sleep(std::time::Duration::from_millis(50));
            });
            threads.into_iter().map(|thread| thread.join().is_ok()).collect()
        });
        assert_eq!(
            outcomes.iter().filter(|done| **done).count(),
            7,
            "all but the one who panicked"
        );
        assert!(begun.load(SeqCst) > 1);
    }

    #[test]
    fn a_panic_leaves_nobody_waiting() {
        let rounds = Coalescer::new(Level::Leaf);
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| rounds.share(|| panic!("wanted")));
            assert!(panics.join().is_err());
        });
        assert_eq!(rounds.share(|| 5), 5);
    }
}
