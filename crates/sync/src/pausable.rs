//! A value that many threads use at once, whose changes can be made to wait, such as the device of
//! a file system that is frozen.
//!
//! For example, a thread pauses a device while two others write. It returns when both have ended. A
//! third write finds the flag within its use, ends that use, and sleeps until the device is
//! resumed. Reads go on.
//!
//! # Invariants
//! - After [`Pausable::pause`] no change is in progress, and none begins before
//!   [`Pausable::resume`].
//! - A change that waits holds no lock of this type, but may hold any lock of its caller.
//!   [`Pausable::resume`] takes none of these.
//!
//! # Memory order
//! A change looks at the flag within its use. A use that began before the pause came to its shard
//! is waited for. A later one sees the flag, since [`Revocable::settle`] says so.

use crate::atomic::{AtomicBool, Ordering};
use crate::revocable::Revocable;
use crate::{Condvar, Level, Mutex};

/// A value whose changes can be paused, and which can be taken away. See the module's
/// documentation.
pub struct Pausable<T> {
    value: Revocable<T>,
    paused: AtomicBool,
    /// Held by threads that begin to wait, and by the one that lets them go on.
    waiters: Mutex<()>,
    resumed: Condvar,
}

impl<T: Clone> Pausable<T> {
    /// Makes `value` available to all threads, for changes too.
    pub fn new(value: T) -> Self {
        Pausable {
            value: Revocable::new(value),
            paused: AtomicBool::new(false),
            waiters: Mutex::new(Level::Leaf, ()),
            resumed: Condvar::new(),
        }
    }

    /// Runs a use that changes nothing. Returns `None` if the value was revoked.
    pub fn read<R>(&self, use_it: impl FnOnce(&T) -> R) -> Option<R> {
        self.value.with(use_it)
    }

    /// Runs a change, once changes are not paused. Returns `None` if the value was revoked.
    pub fn change<R>(&self, change: impl Fn(&T) -> R) -> Option<R> {
        loop {
            // Within the use: a pause waits for the changes that found no pause.
            match self.value.with(|value| (!self.is_paused()).then(|| change(value)))? {
                Some(done) => return Some(done),
                None => self.wait(),
            }
        }
    }

    /// Waits for the changes in progress, and lets later ones wait.
    pub fn pause(&self) {
        self.paused.store(true, Ordering::Release);
        self.value.settle();
    }

    /// Lets changes go on.
    pub fn resume(&self) {
        let _waiters = self.waiters.lock();
        self.paused.store(false, Ordering::Release);
        self.resumed.notify_all();
    }

    /// Returns whether changes wait.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// Waits while changes are paused.
    pub fn wait(&self) {
        if self.is_paused() {
            let mut waiters = self.waiters.lock();
            self.resumed.wait_while(&mut waiters, |()| self.is_paused());
        }
    }

    /// Takes the value away once the uses in progress have ended. Changes that wait go on waiting:
    /// [`Pausable::resume`] should follow. Returns the last copy, or `None` if the value was
    /// revoked before.
    pub fn revoke(&self) -> Option<T> {
        self.value.revoke()
    }
}
