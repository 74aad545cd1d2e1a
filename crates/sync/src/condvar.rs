//! Waits for a condition under a [`Mutex`](crate::Mutex).

use crate::mutex::MutexGuard;
use std::time::{Duration, Instant};

/// A condition variable. A wait may end without a notification, so the condition must be checked in
/// a loop.
#[derive(Debug, Default)]
pub struct Condvar {
    inner: parking_lot::Condvar,
}

/// Whether a wait ended by its timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Returns true if the time ran out before a notification.
    pub fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    /// Makes a condition variable without waiters.
    pub const fn new() -> Self {
        Condvar { inner: parking_lot::Condvar::new() }
    }

    /// Releases the lock, waits for a notification and takes the lock again.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.held.pause();
        self.inner.wait(&mut guard.inner);
        guard.held.resume();
    }

    /// Waits as long as `condition` holds.
    pub fn wait_while<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) {
        while condition(guard) {
            self.wait(guard);
        }
    }

    /// As [`Condvar::wait`], for at most `timeout`.
    pub fn wait_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        timeout: Duration,
    ) -> WaitTimeoutResult {
        guard.held.pause();
        let outcome = self.inner.wait_for(&mut guard.inner, timeout);
        guard.held.resume();
        WaitTimeoutResult(outcome.timed_out())
    }

    /// As [`Condvar::wait`], at most until `deadline`.
    pub fn wait_until<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        deadline: Instant,
    ) -> WaitTimeoutResult {
        guard.held.pause();
        let outcome = self.inner.wait_until(&mut guard.inner, deadline);
        guard.held.resume();
        WaitTimeoutResult(outcome.timed_out())
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.inner.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.inner.notify_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Level, Mutex};

    #[test]
    fn a_notification_wakes_a_waiter() {
        let (lock, condvar) = (Mutex::new(Level::Leaf, false), Condvar::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                *lock.lock() = true;
                condvar.notify_all();
            });
            let mut ready = lock.lock();
            condvar.wait_while(&mut ready, |ready| !*ready);
            assert!(*ready);
        });
    }

    #[test]
    fn a_wait_ends_in_time() {
        let (lock, condvar) = (Mutex::new(Level::Leaf, ()), Condvar::new());
        let mut guard = lock.lock();
        assert!(condvar.wait_for(&mut guard, Duration::from_millis(1)).timed_out());
    }
}
