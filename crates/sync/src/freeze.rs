//! The lock of a freeze, and changes that wait for its end with no lock held.
//!
//! # Mechanism
//! A freeze sets a flag, and then takes and releases the lock of each object in memory. A change
//! takes its first locks and then looks at the flag. If the flag is set, it releases them, waits
//! for the end of the freeze, and begins again.
//!
//! For example, a create that locked its directory before the freeze came there sees no flag, opens
//! its handle and ends, and the freeze waits for that lock. One that comes later sees the flag. So
//! when the freeze stops handles, no change holds the lock of an object while it waits for one.
//!
//! # Invariants
//! - The flag is set and cleared under the lock of the freeze, so a freeze never clears the flag of
//!   the next one.
//! - After [`FreezeLock::halt_changes`] no change holds a lock that it took by
//!   [`FreezeLock::lock_change`], until the result is dropped.
//!
//! # Memory order
//! A change and the freeze take the same object's lock. If the change comes first, the freeze waits
//! for its end. If the freeze comes first, its unlocking of the object makes the flag visible to
//! the change. The same holds for the lock of a table: an object that the freeze did not find there
//! came after the flag was set.

use crate::atomic::{AtomicBool, Ordering};
use crate::levels::{self, Level};
use crate::{Mutex, MutexGuard};

/// The lock of a freeze. See the module's documentation.
#[derive(Debug)]
pub struct FreezeLock {
    one: Mutex<()>,
    /// Changes wait with no lock held.
    halted: AtomicBool,
}

/// The time in which changes wait, until this is dropped.
#[must_use]
#[derive(Debug)]
pub struct HaltedChanges<'a> {
    of: &'a FreezeLock,
    /// Released after the flag was cleared: waiting changes then go on, or the next freeze begins.
    _one: MutexGuard<'a, ()>,
}

impl Default for FreezeLock {
    fn default() -> Self {
        FreezeLock { one: Mutex::new(Level::FsState, ()), halted: AtomicBool::new(false) }
    }
}

impl FreezeLock {
    /// Waits until no freeze lasts, and lets none begin until the result is dropped.
    pub fn exclude(&self) -> MutexGuard<'_, ()> {
        self.one.lock()
    }

    /// Begins a freeze when no other one lasts: lets changes wait, and returns when none holds a
    /// lock that it took before. `pass_all` must take and release, for writing, the lock of each
    /// object that was in memory before the call.
    pub fn halt_changes(&self, pass_all: impl FnOnce()) -> HaltedChanges<'_> {
        let one = self.one.lock();
        self.halted.store(true, Ordering::Release);
        let halted = HaltedChanges { of: self, _one: one };
        pass_all();
        halted
    }

    /// Takes the first locks of a change by `lock`. During a freeze, waits without them. The caller
    /// must hold no lock.
    #[inline]
    pub fn lock_change<G>(&self, lock: impl Fn() -> G) -> G {
        levels::assert_may_take(Level::FsState);
        loop {
            let guard = lock();
            if !self.is_halted() {
                return guard;
            }
            drop(guard);
            self.wait();
        }
    }

    /// Returns whether changes must release their locks and [`FreezeLock::wait`]. The caller must
    /// have taken its first locks before.
    #[inline]
    pub fn is_halted(&self) -> bool {
        self.halted.load(Ordering::Acquire)
    }

    /// Waits until a freeze has ended. The caller must hold no lock.
    #[cold]
    pub fn wait(&self) {
        drop(self.exclude());
    }
}

impl Drop for HaltedChanges<'_> {
    fn drop(&mut self) {
        self.of.halted.store(false, Ordering::Release);
    }
}
