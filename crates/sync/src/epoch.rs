//! Memory that readers look at without a lock is given back only when all who may be looking have
//! stopped.
//!
//! A reader [`pin`]s the epoch while it looks; who takes something out of a structure
//! `Guard::retire`s it, and it is dropped when every thread that was pinned then has unpinned.

/// Proof that nothing this thread finds meanwhile is given back.
#[derive(Debug)]
pub struct Guard {
    #[cfg(not(loom))]
    inner: crossbeam_epoch::Guard,
    #[cfg(loom)]
    _inner: model::Pinned,
}

/// Keeps what is found from here on in memory until the guard is dropped. Cheap, and cheaper within
/// another's lifetime. A thread that sleeps with a guard keeps all garbage of the process.
#[inline]
pub fn pin() -> Guard {
    #[cfg(not(loom))]
    return Guard { inner: crossbeam_epoch::pin() };
    #[cfg(loom)]
    Guard { _inner: model::pin() }
}

impl Guard {
    /// Drops the box when nobody can be looking at it any more.
    ///
    /// # Safety
    /// `unlinked` came from [`Box::into_raw`], is retired once, and nobody who pins from now on can
    /// find it.
    #[expect(unsafe_code, reason = "reclamation by epoch")]
    pub(crate) unsafe fn retire<T: Send + 'static>(&self, unlinked: *mut T) {
        let unlinked = Retired(unlinked);
        let give_back = move || {
            let retired = unlinked;
            // SAFETY: the caller's promise; no pinned thread is left that could have found it.
            drop(unsafe { Box::from_raw(retired.0) });
        };
        #[cfg(not(loom))]
        // SAFETY: the closure may run on any thread: what it drops is `Send`. It borrows nothing:
        // `T` is `'static`.
        unsafe {
            self.inner.defer_unchecked(give_back);
        }
        #[cfg(loom)]
        model::defer(Box::new(give_back));
    }
}

/// A pointer on its way to whoever drops what it points to.
struct Retired<T>(*mut T);

// SAFETY: only the box's owner sends it, and only to be dropped: `T: Send` makes that right.
#[expect(unsafe_code, reason = "a box on its way to another thread")]
unsafe impl<T: Send> Send for Retired<T> {}

/// The simplest reclamation that keeps the promise: garbage goes when nobody is pinned.
#[cfg(loom)]
mod model {
    use loom::sync::Mutex;

    type Garbage = Vec<Box<dyn FnOnce() + Send>>;

    loom::lazy_static! {
        static ref STATE: Mutex<(usize, Garbage)> = Mutex::new((0, Vec::new()));
    }

    #[derive(Debug)]
    pub(super) struct Pinned;

    pub(super) fn pin() -> Pinned {
        STATE.lock().expect("no model panics here").0 += 1;
        Pinned
    }

    pub(super) fn defer(give_back: Box<dyn FnOnce() + Send>) {
        STATE.lock().expect("no model panics here").1.push(give_back);
    }

    impl Drop for Pinned {
        fn drop(&mut self) {
            let garbage = {
                let mut state = STATE.lock().expect("no model panics here");
                state.0 -= 1;
                if state.0 == 0 { std::mem::take(&mut state.1) } else { Vec::new() }
            };
            garbage.into_iter().for_each(|give_back| give_back());
        }
    }
}
