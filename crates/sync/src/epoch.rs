//! Reclamation by epochs: memory that is read without a lock is freed only once no reader can be
//! using it.
//!
//! A reader [`pin`]s the epoch while it looks at a structure. A writer that unlinks an object
//! passes it to `Guard::retire`; the object is dropped when every thread that was pinned at that
//! time has unpinned.
//!
//! For example, a lookup pins and finds an entry, and a remover unlinks and retires the entry. The
//! lookup can use the entry until it unpins.

/// Proof that this thread is pinned: objects that it finds meanwhile are not freed.
#[derive(Debug)]
pub struct Guard {
    #[cfg(not(loom))]
    inner: crossbeam_epoch::Guard,
    #[cfg(loom)]
    _inner: model::Pinned,
}

/// Pins this thread: objects found from now on stay in memory until the guard is dropped. Cheap,
/// and cheaper while another guard of the thread exists. A thread that sleeps with a guard delays
/// the reclamation of the whole process.
#[inline]
pub fn pin() -> Guard {
    #[cfg(not(loom))]
    return Guard { inner: crossbeam_epoch::pin() };
    #[cfg(loom)]
    Guard { _inner: model::pin() }
}

impl Guard {
    /// Drops the box once no thread can be using it.
    ///
    /// # Safety
    /// `unlinked` must come from [`Box::into_raw`] and must be retired only once. Threads that pin
    /// from now on must be unable to find it.
    #[expect(unsafe_code, reason = "reclamation by epoch")]
    pub(crate) unsafe fn retire<T: Send + 'static>(&self, unlinked: *mut T) {
        let unlinked = Retired(unlinked);
        let give_back = move || {
            let retired = unlinked;
            // SAFETY: by the caller's promise; no pinned thread is left that could have found the
            // object.
            drop(unsafe { Box::from_raw(retired.0) });
        };
        #[cfg(not(loom))]
        // SAFETY: the closure may run on any thread: it drops a `Send` value. It borrows nothing:
        // `T` is `'static`.
        unsafe {
            self.inner.defer_unchecked(give_back);
        }
        #[cfg(loom)]
        model::defer(Box::new(give_back));
    }
}

/// A pointer on its way to the thread that drops the object.
struct Retired<T>(*mut T);

// SAFETY: only the owner of the box sends the pointer, and only for dropping: `T: Send` permits
// that.
#[expect(unsafe_code, reason = "a box on its way to another thread")]
unsafe impl<T: Send> Send for Retired<T> {}

/// The simplest correct reclamation: retired objects are dropped when no thread is pinned.
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
