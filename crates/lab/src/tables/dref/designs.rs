//! Ways to count references to an object that also has a lock.

use extant_sync::atomic::{AtomicI32, Ordering};
use extant_sync::{Level, Mutex, lockref};

/// A count of references and a lock.
pub trait Dref: Send + Sync {
    /// So many references.
    fn new(count: i32) -> Self;

    /// One more, made from one that the caller has.
    fn get(&self);

    /// One less; the last one's owner would tear the object down.
    fn put(&self);

    /// Returns the number of references; no other thread may change it.
    fn count(&self) -> i32;

    /// Does something with the lock held.
    fn locked(&self, work: impl FnOnce());
}

/// The lock for each change: Linux before 3.11.
pub struct Locked(Mutex<i32>);

impl Dref for Locked {
    fn new(count: i32) -> Self {
        Locked(Mutex::new(Level::Leaf, count))
    }

    #[inline]
    fn get(&self) {
        *self.0.lock() += 1;
    }

    #[inline]
    fn put(&self) {
        *self.0.lock() -= 1;
    }

    fn count(&self) -> i32 {
        *self.0.lock()
    }

    fn locked(&self, work: impl FnOnce()) {
        let _guard = self.0.lock();
        work();
    }
}

/// Count and lock are two words, as proposed in 2013: without the lock a count goes up only from
/// above 1 and down only from above 2, so that a holder's test for 1 or 2 stays true; two attempts,
/// then the lock. Under the lock the count still changes by atomic operations, since other threads
/// change it without the lock.
pub struct CasSplit {
    count: AtomicI32,
    lock: Mutex<()>,
}

/// Attempts before the lock is taken.
const ATTEMPTS: usize = 2;

impl CasSplit {
    #[inline]
    fn attempt(&self, above: i32, delta: i32) -> bool {
        for _ in 0..ATTEMPTS {
            let seen = self.count.load(Ordering::Relaxed);
            if seen <= above {
                return false;
            }
            // AcqRel: a dropped reference releases its owner's writes, and the next one to be
            // dropped acquires them.
            if self
                .count
                .compare_exchange(seen, seen + delta, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return true;
            }
        }
        false
    }
}

impl Dref for CasSplit {
    fn new(count: i32) -> Self {
        CasSplit { count: AtomicI32::new(count), lock: Mutex::new(Level::Leaf, ()) }
    }

    #[inline]
    fn get(&self) {
        if !self.attempt(1, 1) {
            let _guard = self.lock.lock();
            self.count.fetch_add(1, Ordering::AcqRel);
        }
    }

    #[inline]
    fn put(&self) {
        if !self.attempt(2, -1) {
            let _guard = self.lock.lock();
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn count(&self) -> i32 {
        self.count.load(Ordering::Acquire)
    }

    fn locked(&self, work: impl FnOnce()) {
        let _guard = self.lock.lock();
        work();
    }
}

/// Count and lock in one word: Linux since 3.12, and the engine.
pub struct Lockref(lockref::Lockref);

impl Dref for Lockref {
    fn new(count: i32) -> Self {
        Lockref(lockref::Lockref::new(count))
    }

    #[inline]
    fn get(&self) {
        self.0.get();
    }

    #[inline]
    fn put(&self) {
        if self.0.put_return() < 0 {
            #[cfg(feature = "contention")]
            extant_sync::contention::event(extant_sync::contention::FELL_BACK);
            let mut guard = self.0.lock();
            let count = guard.count();
            guard.set_count(count - 1);
        }
    }

    fn count(&self) -> i32 {
        self.0.count()
    }

    fn locked(&self, work: impl FnOnce()) {
        let _guard = self.0.lock();
        work();
    }
}

/// A counter without a lock: only for counts that no thread tests before it acts. The lock beside
/// it does not exclude changes.
pub struct Atomic {
    count: AtomicI32,
    lock: Mutex<()>,
}

impl Dref for Atomic {
    fn new(count: i32) -> Self {
        Atomic { count: AtomicI32::new(count), lock: Mutex::new(Level::Leaf, ()) }
    }

    #[inline]
    fn get(&self) {
        // Relaxed: made from a reference that the caller has.
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    fn put(&self) {
        // Release: the owner's writes happen before the object is destroyed.
        self.count.fetch_sub(1, Ordering::Release);
    }

    fn count(&self) -> i32 {
        self.count.load(Ordering::Acquire)
    }

    fn locked(&self, work: impl FnOnce()) {
        let _guard = self.lock.lock();
        work();
    }
}
