//! Sleep and wakeup of threads by the address of a word.

#[cfg(loom)]
pub(crate) use table::be_fair;
pub(crate) use table::{sleep, wake_one};

/// The result of waking a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Woken {
    /// Whether a thread was woken.
    pub one: bool,
    /// Whether more threads are sleeping.
    pub more: bool,
    /// Whether waiting threads are to get the lock before others.
    pub fair: bool,
}

/// The process's table of sleeping threads, by the address of the word.
#[cfg(not(loom))]
#[expect(unsafe_code, reason = "parking by address, as parking_lot does")]
mod table {
    use super::Woken;
    use crate::atomic::AtomicU64;
    use parking_lot_core::{DEFAULT_PARK_TOKEN, DEFAULT_UNPARK_TOKEN, ParkResult, UnparkToken};

    /// The lock was passed on without becoming free.
    const PASSED: UnparkToken = UnparkToken(1);

    fn key(word: &AtomicU64) -> usize {
        std::ptr::from_ref(word).addr()
    }

    /// Sleeps if `wanted` returns true. Returns true if the lock was passed to this thread.
    pub(crate) fn sleep(word: &AtomicU64, wanted: impl FnOnce() -> bool) -> bool {
        // SAFETY: the word is borrowed, so no other word has its address. The closures neither
        // panic nor call into parking_lot.
        let result = unsafe {
            parking_lot_core::park(key(word), wanted, || (), |_, _| (), DEFAULT_PARK_TOKEN, None)
        };
        matches!(result, ParkResult::Unparked(PASSED))
    }

    /// Wakes one thread. `passes` returns whether that thread gets the lock.
    pub(crate) fn wake_one(word: &AtomicU64, passes: impl FnOnce(Woken) -> bool) {
        // SAFETY: as for `sleep`.
        let _woken = unsafe {
            parking_lot_core::unpark_one(key(word), |result| {
                let (one, more) = (result.unparked_threads > 0, result.have_more_threads);
                if passes(Woken { one, more, fair: result.be_fair }) {
                    PASSED
                } else {
                    DEFAULT_UNPARK_TOKEN
                }
            })
        };
    }
}

/// The model's replacement of the process's table of sleeping threads. As in the original, one lock
/// covers the decision to sleep and the choice of the state left to the woken thread.
#[cfg(loom)]
mod table {
    use super::Woken;
    use crate::atomic::AtomicU64;
    use loom::sync::{Arc, Condvar, Mutex};
    use std::cell::Cell;

    /// A sleeping thread: whether it was woken, and whether it was passed the lock.
    #[derive(Default)]
    struct Sleeper {
        woken: Mutex<Option<bool>>,
        bell: Condvar,
    }

    loom::lazy_static! {
        static ref SLEEPERS: Mutex<Vec<(usize, Arc<Sleeper>)>> = Mutex::new(Vec::new());
    }

    thread_local! {
        /// Whether locks are passed on. A model is one thread of the process.
        static FAIR: Cell<bool> = const { Cell::new(false) };
    }

    /// Sets whether locks are passed on to waiting threads from now on.
    pub(crate) fn be_fair(fair: bool) {
        FAIR.set(fair);
    }

    fn key(word: &AtomicU64) -> usize {
        std::ptr::from_ref(word).addr()
    }

    pub(crate) fn sleep(word: &AtomicU64, wanted: impl FnOnce() -> bool) -> bool {
        let own = {
            let mut all = SLEEPERS.lock().expect("a model that panics ends");
            if !wanted() {
                return false;
            }
            let own = Arc::new(Sleeper::default());
            all.push((key(word), own.clone()));
            own
        };
        let mut woken = own.woken.lock().expect("a model that panics ends");
        loop {
            match *woken {
                Some(passed) => return passed,
                None => woken = own.bell.wait(woken).expect("a model that panics ends"),
            }
        }
    }

    pub(crate) fn wake_one(word: &AtomicU64, passes: impl FnOnce(Woken) -> bool) {
        let mut all = SLEEPERS.lock().expect("a model that panics ends");
        let at = all.iter().position(|(of_one, _)| *of_one == key(word));
        let first = at.map(|at| all.remove(at).1);
        let more = all.iter().any(|(of_one, _)| *of_one == key(word));
        let passed = passes(Woken { one: first.is_some(), more, fair: FAIR.get() });
        if let Some(sleeper) = first {
            *sleeper.woken.lock().expect("a model that panics ends") = Some(passed);
            sleeper.bell.notify_one();
        }
    }
}
