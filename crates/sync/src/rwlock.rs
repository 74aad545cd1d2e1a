//! Reader-writer locks with a level: one that lies inside its object, and one whose guards own
//! their lock.

use crate::Arc;
use crate::levels::{Held, Level, Order, Tag};
use core::fmt;
use core::ops::{Deref, DerefMut};
use parking_lot::RawRwLock;
use smallvec::SmallVec;

/// A lock that many threads may hold for reading or one for writing. A waiting writer blocks new
/// readers, so a thread must not take it for reading twice. Panics do not poison it.
pub struct RwLock<T: ?Sized> {
    tag: Tag,
    inner: parking_lot::RwLock<T>,
}

/// Shared access to the value of a [`RwLock`], until dropped.
#[must_use]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    // Fields drop in this order: the lock is released before the level.
    inner: parking_lot::RwLockReadGuard<'a, T>,
    _held: Held,
}

/// Exclusive access to the value of a [`RwLock`], until dropped.
#[must_use]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    inner: parking_lot::RwLockWriteGuard<'a, T>,
    held: Held,
}

impl<T> RwLock<T> {
    /// Makes an unlocked lock of the given level.
    pub const fn new(level: Level, value: T) -> Self {
        RwLock { tag: Tag::new(level), inner: parking_lot::RwLock::new(value) }
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits for shared access.
    #[cfg_attr(feature = "contention", track_caller)]
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let (inner, held) = self.tag.take(
            Order::Inward,
            self.place(),
            || self.inner.try_read(),
            || self.inner.read(),
        );
        RwLockReadGuard { inner, _held: held }
    }

    /// Waits for exclusive access.
    #[cfg_attr(feature = "contention", track_caller)]
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let (inner, held) = self.tag.take(
            Order::Inward,
            self.place(),
            || self.inner.try_write(),
            || self.inner.write(),
        );
        RwLockWriteGuard { inner, held }
    }

    /// As [`RwLock::read`], while a lock of the same level is held. The caller must argue why the
    /// order among the two is the same everywhere.
    #[cfg_attr(feature = "contention", track_caller)]
    #[inline]
    pub fn read_nested(&self) -> RwLockReadGuard<'_, T> {
        let (inner, held) = self.tag.take(
            Order::Nested,
            self.place(),
            || self.inner.try_read(),
            || self.inner.read(),
        );
        RwLockReadGuard { inner, _held: held }
    }

    /// As [`RwLock::write`], while a lock of the same level is held. The caller must argue why the
    /// order among the two is the same everywhere.
    #[cfg_attr(feature = "contention", track_caller)]
    #[inline]
    pub fn write_nested(&self) -> RwLockWriteGuard<'_, T> {
        let (inner, held) = self.tag.take(
            Order::Nested,
            self.place(),
            || self.inner.try_write(),
            || self.inner.write(),
        );
        RwLockWriteGuard { inner, held }
    }

    /// Takes shared access if that needs no waiting.
    #[cfg_attr(feature = "contention", track_caller)]
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let inner = self.inner.try_read()?;
        Some(RwLockReadGuard { inner, _held: self.tag.taken(self.place()) })
    }

    /// Takes exclusive access if that needs no waiting.
    #[cfg_attr(feature = "contention", track_caller)]
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let inner = self.inner.try_write()?;
        Some(RwLockWriteGuard { inner, held: self.tag.taken(self.place()) })
    }

    /// Returns exclusive access to the value, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    /// Returns the address of the lock's word.
    #[inline]
    fn place(&self) -> *const () {
        core::ptr::from_ref(&self.inner).cast()
    }
}

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// Turns exclusive into shared access without letting another writer in between.
    pub fn downgrade(self) -> RwLockReadGuard<'a, T> {
        let RwLockWriteGuard { inner, held } = self;
        RwLockReadGuard { inner: parking_lot::RwLockWriteGuard::downgrade(inner), _held: held }
    }
}

/// Takes two locks for writing in the order of their keys. Returns the guards in the order of the
/// arguments.
///
/// The keys must differ and must order the locks the same way everywhere.
pub fn write_two<'a, K: Ord + fmt::Debug, T: ?Sized, U: ?Sized>(
    (key_a, a): (K, &'a RwLock<T>),
    (key_b, b): (K, &'a RwLock<U>),
) -> (RwLockWriteGuard<'a, T>, RwLockWriteGuard<'a, U>) {
    debug_assert!(key_a != key_b, "two locks of one level with the same key {key_a:?}");
    if key_a < key_b {
        let first = a.write();
        (first, b.write_nested())
    } else {
        let first = b.write();
        (a.write_nested(), first)
    }
}

/// A reader-writer lock that its handles share. Guards may outlive the object with the handle, as
/// those of an inode's lock do.
pub struct ArcRwLock<T> {
    tag: Tag,
    inner: Arc<parking_lot::RwLock<T>>,
}

/// Shared access that keeps its [`ArcRwLock`] alive.
#[must_use]
pub struct ArcReadGuard<T> {
    inner: parking_lot::ArcRwLockReadGuard<RawRwLock, T>,
    _held: Held,
}

/// Exclusive access that keeps its [`ArcRwLock`] alive.
#[must_use]
pub struct ArcWriteGuard<T> {
    inner: parking_lot::ArcRwLockWriteGuard<RawRwLock, T>,
    held: Held,
}

impl<T> ArcRwLock<T> {
    /// Makes an unlocked lock of the given level.
    pub fn new(level: Level, value: T) -> Self {
        ArcRwLock { tag: Tag::new(level), inner: Arc::new(parking_lot::RwLock::new(value)) }
    }

    /// Waits for shared access.
    #[cfg_attr(feature = "contention", track_caller)]
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let (inner, held) = self.tag.take(
            Order::Inward,
            self.place(),
            || self.inner.try_read(),
            || self.inner.read(),
        );
        RwLockReadGuard { inner, _held: held }
    }

    /// Waits for exclusive access.
    #[cfg_attr(feature = "contention", track_caller)]
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let (inner, held) = self.tag.take(
            Order::Inward,
            self.place(),
            || self.inner.try_write(),
            || self.inner.write(),
        );
        RwLockWriteGuard { inner, held }
    }

    /// Takes shared access if that needs no waiting.
    #[cfg_attr(feature = "contention", track_caller)]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let inner = self.inner.try_read()?;
        Some(RwLockReadGuard { inner, _held: self.tag.taken(self.place()) })
    }

    /// Takes exclusive access if that needs no waiting.
    #[cfg_attr(feature = "contention", track_caller)]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let inner = self.inner.try_write()?;
        Some(RwLockWriteGuard { inner, held: self.tag.taken(self.place()) })
    }

    /// Waits for shared access by a guard that owns its lock.
    #[cfg_attr(feature = "contention", track_caller)]
    pub fn read_arc(&self) -> ArcReadGuard<T> {
        let now = || parking_lot::RwLock::try_read_arc(&self.inner);
        let wait = || parking_lot::RwLock::read_arc(&self.inner);
        let (inner, held) = self.tag.take(Order::Inward, self.place(), now, wait);
        ArcReadGuard { inner, _held: held }
    }

    /// Waits for exclusive access by a guard that owns its lock.
    #[cfg_attr(feature = "contention", track_caller)]
    pub fn write_arc(&self) -> ArcWriteGuard<T> {
        self.write_arc_in(Order::Inward)
    }

    /// As [`ArcRwLock::write_arc`], while a lock of the same level is held. The caller must argue
    /// why the order among the two is the same everywhere (a child below its locked parent, for
    /// example).
    #[cfg_attr(feature = "contention", track_caller)]
    pub fn write_arc_nested(&self) -> ArcWriteGuard<T> {
        self.write_arc_in(Order::Nested)
    }

    #[cfg_attr(feature = "contention", track_caller)]
    fn write_arc_in(&self, order: Order) -> ArcWriteGuard<T> {
        let now = || parking_lot::RwLock::try_write_arc(&self.inner);
        let wait = || parking_lot::RwLock::write_arc(&self.inner);
        let (inner, held) = self.tag.take(order, self.place(), now, wait);
        ArcWriteGuard { inner, held }
    }

    /// Takes shared access by a guard that owns its lock, if that needs no waiting.
    #[cfg_attr(feature = "contention", track_caller)]
    pub fn try_read_arc(&self) -> Option<ArcReadGuard<T>> {
        let inner = parking_lot::RwLock::try_read_arc(&self.inner)?;
        Some(ArcReadGuard { inner, _held: self.tag.taken(self.place()) })
    }

    /// Takes exclusive access by a guard that owns its lock, if that needs no waiting.
    #[cfg_attr(feature = "contention", track_caller)]
    pub fn try_write_arc(&self) -> Option<ArcWriteGuard<T>> {
        let inner = parking_lot::RwLock::try_write_arc(&self.inner)?;
        Some(ArcWriteGuard { inner, held: self.tag.taken(self.place()) })
    }

    /// Returns the address of the lock's word.
    #[inline]
    fn place(&self) -> *const () {
        Arc::as_ptr(&self.inner).cast()
    }

    /// Returns whether two handles are of one lock.
    pub fn same_lock(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl<T> ArcWriteGuard<T> {
    /// Turns exclusive into shared access without letting another writer in between.
    pub fn downgrade(self) -> ArcReadGuard<T> {
        let ArcWriteGuard { inner, held } = self;
        ArcReadGuard { inner: parking_lot::ArcRwLockWriteGuard::downgrade(inner), _held: held }
    }
}

/// As [`write_two`], for locks whose guards own them.
pub fn write_two_arc<K: Ord + fmt::Debug, T, U>(
    (key_a, a): (K, &ArcRwLock<T>),
    (key_b, b): (K, &ArcRwLock<U>),
) -> (ArcWriteGuard<T>, ArcWriteGuard<U>) {
    debug_assert!(key_a != key_b, "two locks of one level with the same key {key_a:?}");
    if key_a < key_b {
        let first = a.write_arc();
        (first, b.write_arc_nested())
    } else {
        let first = b.write_arc();
        (a.write_arc_nested(), first)
    }
}

/// Takes any number of locks for writing, each key once, in the order of the keys. Returns the
/// guards in the same order. A few need no memory from the heap.
pub fn write_all_arc<'a, K: Ord, T: 'a>(
    locks: impl IntoIterator<Item = (K, &'a ArcRwLock<T>)>,
) -> SmallVec<[(K, ArcWriteGuard<T>); 4]> {
    let mut locks: SmallVec<[_; 4]> = locks.into_iter().collect();
    locks.sort_by(|a, b| a.0.cmp(&b.0));
    locks.dedup_by(|a, b| a.0 == b.0);
    let mut order = Order::Inward;
    let mut guards = SmallVec::with_capacity(locks.len());
    for (key, lock) in locks {
        guards.push((key, lock.write_arc_in(order)));
        order = Order::Nested;
    }
    guards
}

impl<T> Clone for ArcRwLock<T> {
    fn clone(&self) -> Self {
        ArcRwLock { tag: self.tag, inner: Arc::clone(&self.inner) }
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T> Deref for ArcReadGuard<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> Deref for ArcWriteGuard<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for ArcWriteGuard<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: fmt::Debug> fmt::Debug for ArcRwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn readers_share_and_writers_exclude() {
        let lock = RwLock::new(Level::Leaf, 1);
        let reader = lock.read();
        assert!(lock.try_read().is_some());
        assert!(lock.try_write().is_none());
        drop(reader);
        let mut writer = lock.write();
        *writer = 2;
        assert!(lock.try_read().is_none());
        let reader = writer.downgrade();
        assert_eq!(*reader, 2);
        assert!(lock.try_read().is_some());
    }

    #[test]
    fn owned_guards_outlive_their_handle() {
        let lock = ArcRwLock::new(Level::Inode, 5);
        let other = lock.clone();
        assert!(lock.same_lock(&other));
        let mut guard = lock.write_arc();
        drop(lock);
        *guard += 1;
        assert!(other.try_read_arc().is_none());
        drop(guard);
        assert_eq!(*other.read_arc(), 6);
    }

    #[test]
    fn two_come_in_the_order_of_the_arguments() {
        let (a, b) = (ArcRwLock::new(Level::Inode, 'a'), ArcRwLock::new(Level::Inode, 'b'));
        for keys in [(1, 2), (2, 1)] {
            let (ga, gb) = write_two_arc((keys.0, &a), (keys.1, &b));
            assert_eq!((*ga, *gb), ('a', 'b'));
        }
    }

    #[test]
    fn many_are_sorted_and_taken_once() {
        let locks: Vec<_> = (0..3).map(|n| ArcRwLock::new(Level::Directory, n)).collect();
        let guards = write_all_arc([2, 0, 2, 1].map(|n: usize| (n, &locks[n])));
        assert_eq!(
            guards.iter().map(|(key, guard)| (*key, **guard)).collect::<Vec<_>>(),
            [(0, 0), (1, 1), (2, 2)]
        );
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_second_read_by_one_thread_is_refused() {
        let lock = RwLock::new(Level::Map, ());
        let _reader = lock.read();
        assert!(
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(lock.read()))).is_err()
        );
    }
}
