//! A mutex with a level.

use crate::levels::{Held, Level, Order, Tag};
use core::fmt;
use core::ops::{Deref, DerefMut};

/// A mutual exclusion lock. Panics do not poison it.
pub struct Mutex<T: ?Sized> {
    tag: Tag,
    inner: parking_lot::Mutex<T>,
}

/// Access to the value of a [`Mutex`], until dropped.
#[must_use]
pub struct MutexGuard<'a, T: ?Sized> {
    // Fields drop in this order: the lock is released before the level.
    pub(crate) inner: parking_lot::MutexGuard<'a, T>,
    pub(crate) held: Held,
}

impl<T> Mutex<T> {
    /// Makes an unlocked mutex of the given level.
    pub const fn new(level: Level, value: T) -> Self {
        Mutex { tag: Tag::new(level), inner: parking_lot::Mutex::new(value) }
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock and takes it.
    #[cfg_attr(feature = "contention", track_caller)]
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.lock_in(Order::Inward)
    }

    /// As [`Mutex::lock`], while a lock of the same level is held. The caller must argue why the
    /// order among the two is the same everywhere.
    #[cfg_attr(feature = "contention", track_caller)]
    #[inline]
    pub fn lock_nested(&self) -> MutexGuard<'_, T> {
        self.lock_in(Order::Nested)
    }

    #[cfg_attr(feature = "contention", track_caller)]
    #[inline]
    fn lock_in(&self, order: Order) -> MutexGuard<'_, T> {
        let (inner, held) =
            self.tag.take(order, self.place(), || self.inner.try_lock(), || self.inner.lock());
        MutexGuard { inner, held }
    }

    /// Takes the lock if it is free.
    #[cfg_attr(feature = "contention", track_caller)]
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        Some(MutexGuard { inner, held: self.tag.taken(self.place()) })
    }

    /// Returns the address of the lock's word.
    #[inline]
    fn place(&self) -> *const () {
        core::ptr::from_ref(&self.inner).cast()
    }

    /// Returns exclusive access to the value, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    /// Returns whether a thread holds the lock at this moment.
    pub fn is_locked(&self) -> bool {
        self.inner.is_locked()
    }
}

/// Locks two mutexes of one level in the order of their keys. Returns the guards in the order of
/// the arguments.
///
/// The keys must differ and must order the locks the same way everywhere.
pub fn lock_two<'a, K: Ord + fmt::Debug, T: ?Sized, U: ?Sized>(
    (key_a, a): (K, &'a Mutex<T>),
    (key_b, b): (K, &'a Mutex<U>),
) -> (MutexGuard<'a, T>, MutexGuard<'a, U>) {
    debug_assert!(key_a != key_b, "two locks of one level with the same key {key_a:?}");
    if key_a < key_b {
        let first = a.lock();
        (first, b.lock_nested())
    } else {
        let first = b.lock();
        (a.lock_nested(), first)
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn excludes_and_releases() {
        let lock = Mutex::new(Level::Leaf, 1);
        let mut guard = lock.lock();
        *guard += 1;
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert_eq!(*lock.lock(), 2);
        assert_eq!(lock.into_inner(), 2);
    }

    #[test]
    fn two_of_one_level_come_in_the_order_of_the_arguments() {
        let (a, b) = (Mutex::new(Level::Group, 'a'), Mutex::new(Level::Group, 'b'));
        let (ga, gb) = lock_two((2, &a), (1, &b));
        assert_eq!((*ga, *gb), ('a', 'b'));
        drop((ga, gb));
        let (ga, gb) = lock_two((1, &a), (2, &b));
        assert_eq!((*ga, *gb), ('a', 'b'));
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_second_lock_of_the_level_is_refused() {
        let (a, b) = (Mutex::new(Level::Group, ()), Mutex::new(Level::Group, ()));
        let _a = a.lock();
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(b.lock()))).is_err());
        assert!(b.try_lock().is_some());
    }

    #[cfg(not(any(debug_assertions, feature = "contention")))]
    #[test]
    fn levels_take_no_memory() {
        assert_eq!(size_of::<Mutex<u64>>(), size_of::<parking_lot::Mutex<u64>>());
    }
}
