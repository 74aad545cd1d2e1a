//! Work that many threads request and one thread does for all of them.
//!
//! A request needs a round of the work that begins after the request. If no round is running, the
//! requesting thread begins one. If one is running, it may have begun too early, so the thread
//! waits for the next round, which serves all requests made meanwhile. Each thread waits for at
//! most two rounds and the pause before the second, however many threads there are.
//!
//! For example, thread A syncs when B and C ask for a sync. B and C share the next sync: B runs it
//! when A's has ended, and C gets B's result.
//!
//! # Crowds
//! Many threads that request again and again would leave other threads of the machine little, since
//! a scheduler gives each thread the same share of the processors. They are a *crowd*. After its
//! rounds with work the next one begins after a rest of twice the duration of the work, at most
//! [`PATIENCE`]. The others work meanwhile, and the crowd gathers for the next round.
//!
//! For the same reason a thread whose request needs no work returns at once only if there is no
//! crowd. In a crowd it takes part in the next round: threads that ask without a pause keep the
//! processors from those that would change something. A crowd ends when there was no work for
//! [`LINGER`].
//!
//! A crowd is at least [`CROWD`] threads that wait for a round or share it; or that requested
//! lately, if some of them met in a round: with few processors most of them do not run at the same
//! time, so that a round sees few. Threads whose requests never meet do not keep each other from
//! anything, such as those of a pool that serves a single caller.
//!
//! # Invariants
//! - One round runs at a time.
//! - `next` is a round that has not begun. A thread that shares a round took it from `next` after
//!   its request.
//! - The first thread that has to wait for `next` is its heir: it begins the round unless another
//!   thread has. No thread waits for a round that has neither begun nor an heir. While no round
//!   runs, the heir does not sleep beyond `until`.
//!
//! # Waking
//! The threads that share a round sleep on its result and need no lock once the result is there, so
//! all can run at once. If each needed a lock that wakes the next one, a hundred threads would take
//! a hundred context switches, one after the other, with other threads of the machine in between.

use crate::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::thread::{self, Thread};
use crate::{Arc, Level, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// The number of threads that make a crowd.
const CROWD: usize = 8;

/// The longest rest between two rounds of a crowd.
const PATIENCE: Duration = Duration::from_millis(1);

/// How long a crowd lasts without work.
const LINGER: Duration = Duration::from_millis(10);

/// How long the threads that requested are counted together.
const LATELY: Duration = Duration::from_millis(50);

/// Rounds of shared work, whose result all requesting threads get.
#[derive(Debug)]
pub struct Coalescer<R> {
    state: Mutex<State<R>>,
    /// Whether there is a crowd. A hint: no order with other words.
    crowded: AtomicBool,
    /// [`State::running`]; changes under its lock.
    running: AtomicBool,
    /// Threads that requested since [`State::counted`], a bit for each number of a thread. A hint,
    /// too.
    lately: AtomicU64,
}

/// The result of a round, `None` if the round panicked; the result of its work, `None` if there was
/// none.
type Outcome<R> = OnceLock<Option<Option<R>>>;

#[derive(Debug)]
struct State<R> {
    running: bool,
    heir: Option<Thread>,
    next: Arc<Outcome<R>>,
    /// Number of threads that wait for `next`.
    came: usize,
    /// Number of threads that the running round serves, or the last round served.
    serves: usize,
    /// The end of the last round with work.
    worked: Instant,
    /// Since when the threads that request are counted.
    counted: Instant,
    /// When threads last met in a round.
    met: Option<Instant>,
    /// When `next` may begin.
    until: Instant,
}

impl<R> State<R> {
    fn new(now: Instant) -> Self {
        State {
            running: false,
            heir: None,
            next: Arc::default(),
            came: 0,
            serves: 0,
            worked: now,
            counted: now,
            met: None,
            until: now,
        }
    }

    /// Returns whether `next` may begin.
    fn is_due(&self) -> bool {
        !self.running && Instant::now() >= self.until
    }

    /// Records the end of a round and the duration of its work. Returns whether there is a crowd:
    /// `lately` threads that requested since [`State::counted`], or those of the round.
    fn end(&mut self, now: Instant, worked: Option<Duration>, lately: usize) -> bool {
        let is_late = |then: Instant| now.saturating_duration_since(then) > 2 * LATELY;
        let here = self.serves + self.came;
        self.running = false;
        self.worked = if worked.is_some() { now } else { self.worked };
        self.met = if here > 1 { Some(now) } else { self.met.filter(|met| !is_late(*met)) };
        let lately = if self.met.is_some() && !is_late(self.counted) { lately } else { 0 };
        let many = lately.max(here) >= CROWD;
        let crowded = many && now.saturating_duration_since(self.worked) < LINGER;
        let rest = worked.map_or(PATIENCE, |took| (took * 2).min(PATIENCE));
        self.until = now + if crowded { rest } else { Duration::ZERO };
        crowded
    }
}

/// The part of a thread in its round.
enum Joined<R> {
    /// The thread begins the round.
    Begins(Arc<Outcome<R>>),
    /// Another thread begins the round.
    Shares(Arc<Outcome<R>>),
}

/// A running round. Ends when it is dropped, also by a panic.
struct Running<'a, R> {
    rounds: &'a Coalescer<R>,
    outcome: Arc<Outcome<R>>,
    began: Instant,
    result: Option<Option<R>>,
}

impl<R> Drop for Running<'_, R> {
    fn drop(&mut self) {
        let heir = {
            let mut state = self.rounds.state.lock();
            let worked = matches!(self.result, Some(Some(_)));
            let (now, lately) = (Instant::now(), self.rounds.lately.load(Ordering::Relaxed));
            let took = worked.then(|| now.saturating_duration_since(self.began));
            let crowded = state.end(now, took, lately.count_ones() as usize);
            self.rounds.crowded.store(crowded, Ordering::Relaxed);
            self.rounds.running.store(false, Ordering::Release);
            // Models have no time: a run that the machine holds up must have no further step.
            #[cfg(not(loom))]
            if now.saturating_duration_since(state.counted) > LATELY {
                state.counted = now;
                self.rounds.lately.store(0, Ordering::Relaxed);
            }
            state.heir.clone()
        };
        // The heir is woken first: it begins the next round, or knows now when to.
        if let Some(heir) = heir {
            heir.unpark();
        }
        // Only the thread that began the round sets its outcome.
        let _ = self.outcome.set(self.result.take());
    }
}

impl<R: Clone> Coalescer<R> {
    /// Makes a coalescer without a round. Its lock is of `level` and is not held during the work.
    pub fn new(level: Level) -> Self {
        Coalescer {
            state: Mutex::new(level, State::new(Instant::now())),
            crowded: AtomicBool::new(false),
            running: AtomicBool::new(false),
            lately: AtomicU64::new(0),
        }
    }

    /// Counts this thread among those that requested lately.
    fn count(&self) {
        // Models have no crowds.
        #[cfg(not(loom))]
        {
            let own = 1 << (crate::shard_index() % u64::BITS as usize);
            if self.lately.load(Ordering::Relaxed) & own != 0 {
                return;
            }
            let (mut state, now) = (self.state.lock(), Instant::now());
            if now.saturating_duration_since(state.counted) > LATELY {
                state.counted = now;
                self.lately.store(own, Ordering::Relaxed);
            } else {
                self.lately.fetch_or(own, Ordering::Relaxed);
            }
        }
    }

    /// Returns the result of a round that begins after the call: of this thread's `work`, or of
    /// another thread's. `None` if there was no work: `wanted` returned false, in this call or when
    /// the round began. When it returns, no round runs that began before the call.
    pub fn share(&self, wanted: impl Fn() -> bool, work: impl FnOnce() -> R) -> Option<R> {
        self.count();
        // A round that took the work before `wanted` looked was running by then.
        let in_crowd = self.crowded.load(Ordering::Relaxed);
        if !in_crowd && !wanted() && !self.running.load(Ordering::Acquire) {
            return None;
        }
        let outcome = loop {
            match self.join() {
                Joined::Begins(own) => break own,
                Joined::Shares(others) => {
                    if let Some(result) = others.wait().clone() {
                        return result;
                    }
                    // That round ended by a panic: request again.
                }
            }
        };
        let mut running = Running { rounds: self, outcome, began: Instant::now(), result: None };
        let result = wanted().then(work);
        running.result = Some(result.clone());
        result
    }

    fn join(&self) -> Joined<R> {
        let mut state = self.state.lock();
        state.came += 1;
        // `own` has not begun, so it satisfies the request, whichever thread runs it.
        let own = Arc::clone(&state.next);
        if !state.is_due() {
            if state.heir.is_some() {
                return Joined::Shares(own);
            }
            // The first waiting thread becomes the heir. It sleeps without the lock until the round
            // is due.
            state.heir = Some(thread::current());
            while !state.is_due() {
                let until = (!state.running).then_some(state.until);
                drop(state);
                sleep(until);
                state = self.state.lock();
                if !Arc::ptr_eq(&state.next, &own) {
                    // A thread that came later has begun the round.
                    return Joined::Shares(own);
                }
            }
        }
        state.heir = None;
        state.running = true;
        // Relaxed: a thread that sees the effects of the work sees this, which comes before it.
        self.running.store(true, Ordering::Relaxed);
        state.serves = std::mem::take(&mut state.came);
        state.next = Arc::default();
        Joined::Begins(own)
    }
}

/// Sleeps until this thread is unparked or `until` is reached.
fn sleep(until: Option<Instant>) {
    match until {
        // Models have neither time nor crowds.
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
        let clock = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let asked = clock.fetch_add(1, SeqCst);
                        let seen = rounds.share(
                            || true,
                            || {
                                let at = clock.fetch_add(1, SeqCst);
                                std::thread::yield_now();
                                at
                            },
                        );
                        assert!(seen.is_some_and(|seen| seen > asked));
                    }
                });
            }
        });
    }

    #[test]
    fn requests_during_a_round_share_the_next() {
        let rounds = Coalescer::new(Level::Leaf);
        let (begun, waiting) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            rounds.share(
                || true,
                || {
                    begun.fetch_add(1, SeqCst);
                    for _ in 0..20 {
                        scope.spawn(|| {
                            waiting.fetch_add(1, SeqCst);
                            rounds.share(|| true, || begun.fetch_add(1, SeqCst))
                        });
                    }
                    while waiting.load(SeqCst) < 20 {
                        std::thread::yield_now();
                    }
                    // All threads are about to take the lock.
                    std::thread::sleep(std::time::Duration::from_millis(100));
                    0
                },
            );
        });
        assert!(begun.load(SeqCst) < 20, "{begun:?} rounds for 21 questions");
    }

    #[test]
    fn threads_that_shared_a_panicked_round_retry() {
        let rounds = Coalescer::new(Level::Leaf);
        let (begun, waiting) = (AtomicU64::new(0), AtomicU64::new(0));
        let (rounds, begun, waiting) = (&rounds, &begun, &waiting);
        let one = move || {
            waiting.fetch_add(1, SeqCst);
            rounds.share(|| true, || assert!(begun.fetch_add(1, SeqCst) > 0, "wanted"));
        };
        let outcomes: Vec<bool> = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            rounds.share(
                || true,
                || {
                    threads.extend((0..8).map(|_| scope.spawn(one)));
                    while waiting.load(SeqCst) < 8 {
                        std::thread::yield_now();
                    }
                    // All threads are about to take the lock.
                    std::thread::sleep(std::time::Duration::from_millis(50));
                },
            );
            threads.into_iter().map(|thread| thread.join().is_ok()).collect()
        });
        assert_eq!(
            outcomes.iter().filter(|done| **done).count(),
            7,
            "all but the thread that panicked"
        );
        assert!(begun.load(SeqCst) > 1);
    }

    #[test]
    fn a_crowd_rests_and_lasts_while_there_is_work() {
        let begin = Instant::now();
        let mut state = State::<()>::new(begin);
        let at = |millis| begin + Duration::from_millis(millis);
        let short = Some(Duration::from_micros(100));
        assert!(!state.end(at(0), short, 1), "one thread");
        assert_eq!(state.until, at(0));
        assert!(!state.end(at(0), short, CROWD), "threads that never met");
        state.came = 1;
        state.serves = 1;
        assert!(state.end(at(1), short, CROWD), "threads that requested lately");
        assert_eq!(state.until, at(1) + Duration::from_micros(200));
        (state.came, state.serves) = (0, 1);
        assert!(state.end(at(1), short, CROWD), "they met lately");
        state.serves = CROWD;
        assert!(state.end(at(2), Some(PATIENCE), 1), "threads of the round");
        assert_eq!(state.until, at(2) + PATIENCE);
        assert!(state.end(at(11), None, 1));
        assert_eq!(state.until, at(11) + PATIENCE);
        assert!(!state.end(at(12), None, 1), "no work for a long time");
        assert_eq!(state.until, at(12));
        state.serves = 1;
        assert!(!state.end(at(200), short, CROWD), "they were counted long ago");
        state.counted = at(300);
        assert!(!state.end(at(300), short, CROWD), "they met long ago");
    }

    #[test]
    fn threads_that_request_lately_are_a_crowd_if_some_met() {
        let rounds = Coalescer::new(Level::Leaf);
        let many = || rounds.lately.load(Ordering::Relaxed).count_ones();
        // On a busy machine they may not all request in time.
        let request = || {
            while many() < CROWD as u32 {
                let one = || assert_eq!(rounds.share(|| false, || 1), None);
                std::thread::scope(|scope| scope.spawn(one).join()).expect("no panic");
                rounds.count();
            }
        };
        request();
        assert!(!rounds.crowded.load(Ordering::Relaxed), "no request had work");
        assert_eq!(rounds.share(|| true, || 1), Some(1));
        assert!(!rounds.crowded.load(Ordering::Relaxed), "one at a time");
        // On a busy machine that may be long ago by then.
        let becomes_crowd = || {
            rounds.state.lock().met = Some(Instant::now());
            request();
            assert_eq!(rounds.share(|| true, || 1), Some(1));
            rounds.crowded.load(Ordering::Relaxed)
        };
        assert!((0..100).any(|_| becomes_crowd()));
    }

    #[test]
    fn a_request_waits_for_the_round_that_took_its_work() {
        let rounds = Coalescer::new(Level::Leaf);
        let (left, over) = (AtomicU64::new(1), AtomicBool::new(false));
        let (rounds, left, over) = (&rounds, &left, &over);
        std::thread::scope(|scope| {
            rounds.share(
                || true,
                || {
                    left.store(0, SeqCst);
                    scope.spawn(|| {
                        assert_eq!(rounds.share(|| left.load(SeqCst) > 0, || ()), None);
                        assert!(over.load(SeqCst), "the round was not over");
                    });
                    // Enough for a request that does not wait.
                    std::thread::sleep(Duration::from_millis(50));
                    over.store(true, SeqCst);
                },
            );
        });
    }

    #[test]
    fn a_crowd_without_work_ends() {
        let rounds = Coalescer::new(Level::Leaf);
        let next = || Arc::as_ptr(&rounds.state.lock().next);
        rounds.crowded.store(true, Ordering::Relaxed);
        let before = next();
        assert_eq!(rounds.share(|| false, || 2), None);
        assert_ne!(next(), before, "a request of a crowd takes part in a round");
        let ended = || {
            let before = next();
            assert_eq!(rounds.share(|| false, || 2), None);
            next() == before
        };
        while !ended() {}
    }

    #[test]
    fn a_panic_leaves_no_thread_waiting() {
        let rounds = Coalescer::new(Level::Leaf);
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| rounds.share(|| true, || panic!("wanted")));
            assert!(panics.join().is_err());
        });
        assert_eq!(rounds.share(|| true, || 5), Some(5));
    }
}
