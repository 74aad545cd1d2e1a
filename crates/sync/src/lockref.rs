//! A reference count and a lock in one word. While the lock is free, a reference is taken or
//! dropped by one compare-and-swap. The holder of the lock sees a stable count.
//!
//! For example, a lookup raises the count of an inode from 1 to 2 by one compare-and-swap. An
//! eviction takes the lock, sees the count 0 and marks the object dead in the same word.
//!
//! # Invariants
//! - The low half of the word is the lock: 0 free, 1 held, 2 held with waiting threads. The high
//!   half is the signed count.
//! - While the low half is not 0, only the holder changes the count. The holder may thus test it
//!   and then act.
//! - A negative count is dead: no operation raises it again. Only the holder of the lock makes it
//!   negative.
//!
//! # Memory order
//! - Taking a reference needs no ordering: its object was found through an acquiring load, or by
//!   another reference.
//! - Dropping a reference releases its owner's accesses to the object. The thread that tears the
//!   object down has taken the lock, whose acquisition acquires. The changes of the word are all
//!   read-modify-writes, so they form one release sequence, and the holder sees the accesses of all
//!   references dropped before.
//! - `put_return` acquires, too, since a caller that reached zero reads the object's flags without
//!   the lock.
//! - Unlocking releases.

use crate::atomic::{AtomicU64, Ordering};

/// Changes of this process that fell back to the lock.
#[cfg(not(loom))]
static FALLBACKS: crate::LazyLock<crate::ShardedCounter> =
    crate::LazyLock::new(|| crate::with_shards(0, crate::ShardedCounter::default));

#[cold]
pub(crate) fn note_fallback() {
    #[cfg(not(loom))]
    FALLBACKS.add(1);
}

/// Compare-and-swaps before the lock is taken instead.
const TRIES: u32 = 100;

const LOCK_MASK: u64 = 0xffff_ffff;
const FREE: u64 = 0;
const HELD: u64 = 1;
const WAITED_FOR: u64 = 2;

/// The count of a dead object.
const DEAD: i32 = -128;

/// A count with a lock. Its owner stores it beside the counted object.
#[derive(Debug)]
pub struct Lockref {
    word: AtomicU64,
}

/// The lock of a [`Lockref`]. The count is stable until it is dropped.
#[must_use]
#[derive(Debug)]
pub struct LockrefGuard<'a> {
    of: &'a Lockref,
    /// The count that dropping the guard stores.
    count: i32,
}

/// The reason why a change without the lock failed.
enum Missed {
    /// The count forbids the change.
    Refused,
    /// The lock is held, or other threads were faster too often.
    Locked,
}

fn count_of(word: u64) -> i32 {
    (word >> 32) as u32 as i32
}

fn pack(count: i32, lock: u64) -> u64 {
    u64::from(count as u32) << 32 | lock
}

/// Returns the count plus one. With two billion references to an object, references must have
/// leaked: the process aborts, as for `Arc`.
fn raised(count: i32) -> i32 {
    match count.checked_add(1) {
        Some(count) => count,
        None => std::process::abort(),
    }
}

impl Lockref {
    /// Makes a free lock with this count.
    #[cfg(not(loom))]
    pub const fn new(count: i32) -> Self {
        Lockref { word: AtomicU64::new((count as u32 as u64) << 32) }
    }

    /// Makes a free lock with this count.
    #[cfg(loom)]
    pub fn new(count: i32) -> Self {
        Lockref { word: AtomicU64::new(pack(count, FREE)) }
    }

    /// Returns how many changes of a count, in the whole process, had to take the lock, or left it
    /// to their caller: it was held, or other threads were faster too often.
    #[cfg(not(loom))]
    pub fn fallbacks() -> u64 {
        u64::try_from(FALLBACKS.sum()).unwrap_or(0)
    }

    /// Returns the count at some recent moment.
    #[inline]
    pub fn count(&self) -> i32 {
        count_of(self.word.load(Ordering::Relaxed))
    }

    /// Changes the count to the result of `step` while the lock is free. Returns the new count.
    #[inline]
    fn change(&self, order: Ordering, step: impl Fn(i32) -> Option<i32>) -> Result<i32, Missed> {
        let mut word = self.word.load(Ordering::Relaxed);
        for _ in 0..TRIES {
            if word & LOCK_MASK != FREE {
                return Err(Missed::Locked);
            }
            let count = step(count_of(word)).ok_or(Missed::Refused)?;
            match self.word.compare_exchange_weak(word, pack(count, FREE), order, Ordering::Relaxed)
            {
                Ok(_) => return Ok(count),
                Err(seen) => word = seen,
            }
        }
        Err(Missed::Locked)
    }

    /// Changes the count, under the lock if necessary. Returns false if `step` returns `None`.
    #[inline]
    fn change_or_lock(&self, order: Ordering, step: impl Fn(i32) -> Option<i32>) -> bool {
        match self.change(order, &step) {
            Ok(_) => true,
            Err(Missed::Refused) => false,
            Err(Missed::Locked) => self.change_locked(step),
        }
    }

    #[cold]
    fn change_locked(&self, step: impl Fn(i32) -> Option<i32>) -> bool {
        note_fallback();
        #[cfg(feature = "contention")]
        crate::contention::event(crate::contention::FELL_BACK);
        let mut guard = self.lock();
        let Some(count) = step(guard.count) else { return false };
        guard.count = count;
        true
    }

    /// Takes a reference. The caller must have one already.
    #[inline]
    pub fn get(&self) {
        self.change_or_lock(Ordering::Relaxed, |count| Some(raised(count)));
    }

    /// Takes a reference if there is one already. Returns whether it did.
    #[inline]
    pub fn get_not_zero(&self) -> bool {
        self.change_or_lock(Ordering::Relaxed, |count| (count > 0).then(|| raised(count)))
    }

    /// Takes a reference unless the object is dead. Returns whether it did.
    #[inline]
    pub fn get_not_dead(&self) -> bool {
        self.change_or_lock(Ordering::Relaxed, |count| (count >= 0).then(|| raised(count)))
    }

    /// Drops a reference unless it is the last. Returns false, with nothing changed, if it is the
    /// last.
    #[inline]
    pub fn put_not_zero(&self) -> bool {
        self.change_or_lock(Ordering::Release, |count| (count > 1).then(|| count - 1))
    }

    /// Drops a reference without the lock and returns the new count. Returns -1, with nothing
    /// changed, if the lock is held or the count is not positive: the caller must then take the
    /// lock and drop the reference under it.
    #[inline]
    pub fn put_return(&self) -> i32 {
        match self.change(Ordering::AcqRel, |count| (count > 0).then(|| count - 1)) {
            Ok(count) => count,
            Err(Missed::Refused) => -1,
            Err(Missed::Locked) => {
                note_fallback();
                -1
            }
        }
    }

    /// Drops a reference unless it is the last. Returns the lock, with the count unchanged, if it
    /// is the last.
    #[inline]
    pub fn put_or_lock(&self) -> Option<LockrefGuard<'_>> {
        match self.change(Ordering::Release, |count| (count > 1).then(|| count - 1)) {
            Ok(_) => None,
            Err(Missed::Refused) => self.put_locked(),
            Err(Missed::Locked) => {
                note_fallback();
                self.put_locked()
            }
        }
    }

    #[cold]
    fn put_locked(&self) -> Option<LockrefGuard<'_>> {
        #[cfg(feature = "contention")]
        crate::contention::event(crate::contention::FELL_BACK);
        let mut guard = self.lock();
        if guard.count <= 1 {
            return Some(guard);
        }
        guard.count -= 1;
        None
    }

    /// Waits for the lock and takes it. It is an innermost lock: its holder only tries other locks,
    /// or takes leaf locks.
    #[inline]
    pub fn lock(&self) -> LockrefGuard<'_> {
        self.try_lock().unwrap_or_else(|| self.lock_slow())
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<LockrefGuard<'_>> {
        let mut word = self.word.load(Ordering::Relaxed);
        while word & LOCK_MASK == FREE {
            let held = word | HELD;
            match self.word.compare_exchange_weak(word, held, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return Some(LockrefGuard { of: self, count: count_of(word) }),
                Err(seen) => word = seen,
            }
        }
        None
    }

    #[cold]
    fn lock_slow(&self) -> LockrefGuard<'_> {
        #[cfg(feature = "contention")]
        crate::contention::event("references whose lock was waited for");
        park::lock(self)
    }
}

impl LockrefGuard<'_> {
    /// Returns the count. Only this guard can change it.
    pub fn count(&self) -> i32 {
        self.count
    }

    /// Sets the count. A dead count stays dead.
    pub fn set_count(&mut self, count: i32) {
        if self.count >= 0 {
            self.count = count;
        }
    }

    /// Marks the object dead: no reference is granted any more.
    pub fn mark_dead(&mut self) {
        self.count = DEAD;
    }

    /// Returns whether the object is dead.
    pub fn is_dead(&self) -> bool {
        self.count < 0
    }
}

impl Drop for LockrefGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        let mut word = self.of.word.load(Ordering::Relaxed);
        while word & LOCK_MASK == HELD {
            let free = pack(self.count, FREE);
            match self.of.word.compare_exchange_weak(
                word,
                free,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(seen) => word = seen,
            }
        }
        park::unlock(self.of, self.count);
    }
}

/// Waiting for the lock.
mod park {
    use super::{
        FREE, HELD, LOCK_MASK, Lockref, LockrefGuard, Ordering, WAITED_FOR, count_of, pack,
    };
    use crate::parking;

    /// Looks at the word before sleeping. The lock is held only for some instructions.
    const SPINS: u32 = if cfg!(loom) { 0 } else { 40 };

    pub(super) fn lock(of: &Lockref) -> LockrefGuard<'_> {
        let mut spins = 0;
        // After a sleep, other threads may be sleeping as well, so the next unlock must look for
        // them.
        let mut mine = HELD;
        loop {
            let word = of.word.load(Ordering::Relaxed);
            if word & LOCK_MASK == FREE {
                let held = word | mine;
                if of
                    .word
                    .compare_exchange_weak(word, held, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
                {
                    return LockrefGuard { of, count: count_of(word) };
                }
                continue;
            }
            if spins < SPINS && word & LOCK_MASK == HELD {
                spins += 1;
                std::hint::spin_loop();
                continue;
            }
            if word & LOCK_MASK == HELD {
                // Announce the sleep before sleeping, so that the unlock looks for sleeping
                // threads. The table checks the word again under its own lock, so an unlock in
                // between is not missed.
                let waited = word & !LOCK_MASK | WAITED_FOR;
                if of
                    .word
                    .compare_exchange_weak(word, waited, Ordering::Relaxed, Ordering::Relaxed)
                    .is_err()
                {
                    continue;
                }
            }
            mine = WAITED_FOR;
            if parking::sleep(&of.word, || {
                of.word.load(Ordering::Relaxed) & LOCK_MASK == WAITED_FOR
            }) {
                let count = count_of(of.word.load(Ordering::Acquire));
                return LockrefGuard { of, count };
            }
        }
    }

    /// Frees a lock with waiting threads and wakes one of them. Passes the lock on if a thread has
    /// waited for long.
    pub(super) fn unlock(of: &Lockref, count: i32) {
        parking::wake_one(&of.word, |woken| {
            // Only the holder changes a word with the low half 2.
            let pass = woken.one && woken.fair;
            let lock = match (pass, woken.more) {
                (false, _) => FREE,
                (true, false) => HELD,
                (true, true) => WAITED_FOR,
            };
            of.word.store(pack(count, lock), Ordering::Release);
            pass
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Other tests only add to the count of the process.
    #[test]
    fn changes_under_a_held_lock_are_counted() {
        let of = Lockref::new(2);
        let guard = of.lock();
        let before = Lockref::fallbacks();
        assert_eq!(of.put_return(), -1);
        assert!(Lockref::fallbacks() > before);
        let before = Lockref::fallbacks();
        std::thread::scope(|scope| {
            scope.spawn(|| of.get());
            // The thread is counted before it waits for the lock.
            while Lockref::fallbacks() == before {
                std::thread::yield_now();
            }
            drop(guard);
        });
        assert_eq!(of.count(), 3);
    }

    proptest! {
        #[test]
        fn words_keep_their_halves(count in any::<i32>(), lock in 0..3u64) {
            let word = pack(count, lock);
            prop_assert_eq!(count_of(word), count);
            prop_assert_eq!(word & LOCK_MASK, lock);
            prop_assert_eq!(Lockref::new(count).count(), count);
        }

        /// Checks each operation's condition and its effect on the count.
        #[test]
        fn operations_obey_their_conditions(count in -3..4i32) {
            let one = |op: fn(&Lockref) -> bool| {
                let of = Lockref::new(count);
                (op(&of), of.count())
            };
            let when = |done: bool, delta: i32| (done, count + if done { delta } else { 0 });
            prop_assert_eq!(one(Lockref::get_not_zero), when(count > 0, 1));
            prop_assert_eq!(one(Lockref::get_not_dead), when(count >= 0, 1));
            prop_assert_eq!(one(Lockref::put_not_zero), when(count > 1, -1));
            prop_assert_eq!(one(|of| of.put_or_lock().is_none()), when(count > 1, -1));
            let of = Lockref::new(count);
            prop_assert_eq!(of.put_return(), if count > 0 { count - 1 } else { -1 });
            let of = Lockref::new(count);
            {
                let mut guard = of.lock();
                prop_assert_eq!(guard.count(), count);
                guard.set_count(7);
            }
            prop_assert_eq!(of.count(), if count < 0 { count } else { 7 });
        }
    }

    #[test]
    fn a_held_lock_keeps_the_count() {
        let of = Lockref::new(1);
        let mut guard = of.lock();
        assert!(of.try_lock().is_none());
        assert_eq!(of.put_return(), -1);
        std::thread::scope(|scope| {
            let get = scope.spawn(|| of.get_not_dead());
            let dead = scope.spawn(|| of.get_not_zero());
            guard.mark_dead();
            assert!(guard.is_dead());
            drop(guard);
            assert!(!get.join().unwrap() && !dead.join().unwrap());
        });
        assert_eq!(of.count(), DEAD);
    }

    #[test]
    fn threads_that_wait_all_come_in() {
        let (of, mut inside) = (Lockref::new(0), 0u64);
        let cell = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for n in 0..crate::times(5000) {
                        let mut guard = of.lock();
                        // Not a single read-modify-write: only the lock makes it atomic.
                        cell.store(cell.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                        let count = guard.count();
                        guard.set_count(count + 1);
                        if n % 64 == 0 {
                            std::thread::yield_now();
                        }
                        drop(guard);
                        while !of.put_not_zero() && of.count() > 1 {}
                    }
                });
            }
        });
        inside += cell.load(Ordering::Relaxed);
        assert_eq!(inside, 8 * u64::from(crate::times(5000)));
        assert!(of.lock().count() >= 1);
    }
}
