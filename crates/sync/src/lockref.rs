//! A reference count and a lock in one word: references come and go by one compare-and-swap while
//! nobody holds the lock, and whoever holds it sees a count that stands still.
//!
//! # Invariants
//! - The low half of the word is the lock: 0 free, 1 held, 2 held and others wait. The high half is
//!   the count, signed.
//! - While the low half is not 0 only the holder changes the count. So a holder may test it and
//!   then act.
//! - A negative count is dead: no operation raises it again. Only a holder of the lock makes it so.
//!
//! # Memory order
//! - A reference that comes needs no order: what it refers to was found through an acquiring load,
//!   or by another reference.
//! - A reference that goes releases what its owner did with the object. Whoever tears the object
//!   down has taken the lock, whose acquisition acquires: the word's changes are all
//!   read-modify-writes, so they are one release sequence, and the holder sees what every reference
//!   did that went before.
//! - `put_return` acquires, too, since a caller that came to zero looks at the object's flags
//!   without the lock.
//! - Unlocking releases.

use crate::atomic::{AtomicU64, Ordering};

/// Tries by compare-and-swap before the lock is taken.
const TRIES: u32 = 100;

const LOCK_MASK: u64 = 0xffff_ffff;
const FREE: u64 = 0;
const HELD: u64 = 1;
const WAITED_FOR: u64 = 2;

/// The count of a dead object.
const DEAD: i32 = -128;

/// A count with a lock. It does not say what it counts references to: its owner keeps it beside the
/// object.
#[derive(Debug)]
pub struct Lockref {
    word: AtomicU64,
}

/// The lock of a [`Lockref`]; the count stands still until it is dropped.
#[must_use]
#[derive(Debug)]
pub struct LockrefGuard<'a> {
    of: &'a Lockref,
    /// The count that dropping the guard stores.
    count: i32,
}

/// Why a change without the lock did not happen.
enum Missed {
    /// The count forbids it.
    Refused,
    /// The lock is held, or others were quicker too often.
    Locked,
}

fn count_of(word: u64) -> i32 {
    (word >> 32) as u32 as i32
}

fn pack(count: i32, lock: u64) -> u64 {
    u64::from(count as u32) << 32 | lock
}

/// One more. A process that has two billion references to an object has lost them; as with `Arc`,
/// it ends.
fn raised(count: i32) -> i32 {
    match count.checked_add(1) {
        Some(count) => count,
        None => std::process::abort(),
    }
}

impl Lockref {
    /// A free lock and this count.
    #[cfg(not(loom))]
    pub const fn new(count: i32) -> Self {
        Lockref { word: AtomicU64::new((count as u32 as u64) << 32) }
    }

    /// A free lock and this count.
    #[cfg(loom)]
    pub fn new(count: i32) -> Self {
        Lockref { word: AtomicU64::new(pack(count, FREE)) }
    }

    /// The count a moment ago.
    #[inline]
    pub fn count(&self) -> i32 {
        count_of(self.word.load(Ordering::Relaxed))
    }

    /// Changes the count while the lock is free: `step` says to what, or refuses. Gives the new
    /// count.
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

    /// Changes the count, with the lock if it cannot be done without; false if `step` refuses.
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
        #[cfg(feature = "contention")]
        crate::contention::event(crate::contention::FELL_BACK);
        let mut guard = self.lock();
        let Some(count) = step(guard.count) else { return false };
        guard.count = count;
        true
    }

    /// One more reference, made from one that the caller has.
    #[inline]
    pub fn get(&self) {
        self.change_or_lock(Ordering::Relaxed, |count| Some(raised(count)));
    }

    /// One more reference, if there is one already.
    #[inline]
    pub fn get_not_zero(&self) -> bool {
        self.change_or_lock(Ordering::Relaxed, |count| (count > 0).then(|| raised(count)))
    }

    /// One more reference, if the object is not dead.
    #[inline]
    pub fn get_not_dead(&self) -> bool {
        self.change_or_lock(Ordering::Relaxed, |count| (count >= 0).then(|| raised(count)))
    }

    /// One reference less, unless it is the last; false if so, and nothing has changed.
    #[inline]
    pub fn put_not_zero(&self) -> bool {
        self.change_or_lock(Ordering::Release, |count| (count > 1).then(|| count - 1))
    }

    /// One reference less, without the lock: the new count. -1, and nothing has changed, if the
    /// lock is held (or the count is not positive): the caller takes the lock and does it again.
    #[inline]
    pub fn put_return(&self) -> i32 {
        self.change(Ordering::AcqRel, |count| (count > 0).then(|| count - 1)).unwrap_or(-1)
    }

    /// One reference less, unless it is the last: then the lock, the count being what it was.
    #[inline]
    pub fn put_or_lock(&self) -> Option<LockrefGuard<'_>> {
        match self.change(Ordering::Release, |count| (count > 1).then(|| count - 1)) {
            Ok(_) => None,
            Err(_) => self.put_locked(),
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

    /// Waits for the lock. Innermost: whoever has it takes nothing but by trying, and leaf locks.
    #[inline]
    pub fn lock(&self) -> LockrefGuard<'_> {
        self.try_lock().unwrap_or_else(|| self.lock_slow())
    }

    /// Takes the lock if nobody has it.
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
    /// The count. It does not change but by this guard.
    pub fn count(&self) -> i32 {
        self.count
    }

    /// Sets the count. A dead one stays dead.
    pub fn set_count(&mut self, count: i32) {
        if self.count >= 0 {
            self.count = count;
        }
    }

    /// The object is being torn down: no reference comes any more.
    pub fn mark_dead(&mut self) {
        self.count = DEAD;
    }

    /// Whether the object is dead.
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

    /// Looks before sleeping; the lock is held for some instructions only.
    const SPINS: u32 = if cfg!(loom) { 0 } else { 40 };

    pub(super) fn lock(of: &Lockref) -> LockrefGuard<'_> {
        let mut spins = 0;
        // Who has slept may not be the only one who did: the next unlocking has to look.
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

    /// Frees a lock that others wait for and wakes one; passes it on if somebody has waited for
    /// long.
    pub(super) fn unlock(of: &Lockref, count: i32) {
        parking::wake_one(&of.word, |woken| {
            // The holder is the only one to change a word that says 2.
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

    proptest! {
        #[test]
        fn words_keep_their_halves(count in any::<i32>(), lock in 0..3u64) {
            let word = pack(count, lock);
            prop_assert_eq!(count_of(word), count);
            prop_assert_eq!(word & LOCK_MASK, lock);
            prop_assert_eq!(Lockref::new(count).count(), count);
        }

        /// Every operation against its table: what it needs, what it leaves.
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
                        // Not one read-modify-write: only the lock keeps it whole.
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
