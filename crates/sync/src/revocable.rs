//! A value that many threads use at once, and that can be taken away from all of them.
//!
//! Each shard has a copy of the value under a lock of its own. A use holds its shard's lock for
//! reading, so threads of different shards write no common cache line. [`Revocable::revoke`] takes
//! each shard's lock for writing in turn: it waits for the uses in progress, and each later use
//! gets `None`.
//!
//! # Locking
//! The locks have no level: during a use, a thread takes no other lock of this type, and waits for
//! nothing but the value's own work. [`Revocable::revoke`] and [`Revocable::settle`] hold one
//! shard's lock at a time and take no lock inside it. A use must not call them.

use crate::Sharded;
#[cfg(loom)]
use crate::{Level, RwLock};
#[cfg(not(loom))]
use parking_lot::RwLock;

/// A value that can be revoked.
pub struct Revocable<T> {
    shards: Sharded<RwLock<Option<T>>>,
}

impl<T: Clone> Revocable<T> {
    /// Makes `value` available to all threads.
    pub fn new(value: T) -> Self {
        #[cfg(not(loom))]
        let lock = RwLock::new;
        #[cfg(loom)]
        let lock = |copy| RwLock::new(Level::Leaf, copy);
        Revocable { shards: Sharded::new(|_| lock(Some(value.clone()))) }
    }

    /// Runs `use_it` on the value. Returns `None` if the value was revoked.
    pub fn with<R>(&self, use_it: impl FnOnce(&T) -> R) -> Option<R> {
        self.shards.local().read().as_ref().map(use_it)
    }

    /// Waits until each use that began before this call has ended. A use that begins afterwards
    /// sees all writes that the caller made before the call.
    pub fn settle(&self) {
        self.shards.iter().for_each(|shard| drop(shard.write()));
    }

    /// Takes the value away once the uses in progress have ended. Returns the last copy, or `None`
    /// if the value was revoked before.
    pub fn revoke(&self) -> Option<T> {
        let mut last = None;
        for shard in self.shards.iter() {
            let copy = shard.write().take();
            last = copy.or(last);
        }
        last
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
    use std::sync::{Arc, Barrier};

    #[test]
    fn a_revoked_value_is_dropped_and_refused() {
        let value = Arc::new(7);
        let place = Revocable::new(value.clone());
        assert_eq!(place.with(|value| **value), Some(7));
        assert_eq!(place.revoke().as_deref(), Some(&7));
        assert_eq!(place.with(|value| **value), None);
        assert_eq!(place.revoke(), None);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn a_revocation_waits_for_uses_that_run() {
        let place = Revocable::new(());
        let (running, ended, begun) =
            (AtomicUsize::new(0), AtomicBool::new(false), Barrier::new(4));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    begun.wait();
                    let step = || {
                        running.fetch_add(1, SeqCst);
                        assert!(!ended.load(SeqCst), "a use runs after the revocation");
                        std::thread::yield_now();
                        running.fetch_sub(1, SeqCst);
                    };
                    while place.with(|()| step()).is_some() {}
                });
            }
            begun.wait();
            place.settle();
            place.revoke();
            assert_eq!(running.load(SeqCst), 0);
            ended.store(true, SeqCst);
        });
    }
}
