//! Former designs of reference counts with a lock, behind the interface of the engine's own.
//!
//! [`REFS`] chooses the design of counts that are made from then on.

use crate::designs::Choice;
use crate::own_lockref::{self as own, note_fallback};
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, Ordering};

/// The way in which references are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefsDesign {
    /// Count and lock in one word, changed together: Linux since 3.12, and the engine.
    Lockref,
    /// The lock is taken for each change: Linux before.
    Lock,
    /// Count and lock are two words, as proposed in 2013: without the lock a count goes up only
    /// from above 1 and down only from above 2, so that a holder's test for 0 or 1 stays true; two
    /// attempts, then the lock.
    Split,
}

/// The chosen design.
pub static REFS: Choice<RefsDesign> = {
    use RefsDesign::*;
    Choice::new(&[Lockref, Lock, Split])
};

/// Attempts to change a split count before the lock is taken.
const ATTEMPTS: usize = 2;

/// The split count of a dead object.
const DEAD: i32 = -128;

/// A count with a lock.
#[derive(Debug)]
pub struct Lockref {
    design: RefsDesign,
    /// Count and lock; the lock alone of a split count.
    own: own::Lockref,
    split: AtomicI32,
}

/// The lock of a [`Lockref`]. Other threads change a split count from 2 on meanwhile.
#[must_use]
#[derive(Debug)]
pub struct LockrefGuard<'a> {
    own: own::LockrefGuard<'a>,
    split: Option<&'a AtomicI32>,
    /// The split count that the holder saw last.
    seen: Cell<i32>,
}

type Step<'a> = &'a dyn Fn(i32) -> Option<i32>;

fn raised(count: i32) -> i32 {
    count.checked_add(1).unwrap_or_else(|| std::process::abort())
}

impl Lockref {
    /// Makes a free lock with this count.
    pub fn new(count: i32) -> Self {
        Lockref { design: REFS.get(), own: own::Lockref::new(count), split: AtomicI32::new(count) }
    }

    /// Returns how many changes had to take the lock.
    pub fn fallbacks() -> u64 {
        own::Lockref::fallbacks()
    }

    /// Returns the count at some recent moment.
    pub fn count(&self) -> i32 {
        match self.design {
            RefsDesign::Split => self.split.load(Ordering::Acquire),
            _ => self.own.count(),
        }
    }

    /// Changes a split count without the lock if it is above `above`. AcqRel: a dropped reference
    /// releases its owner's accesses, and the next one to be dropped acquires them.
    fn attempt(&self, above: i32, step: Step<'_>) -> Option<i32> {
        for _ in 0..ATTEMPTS {
            let seen = self.split.load(Ordering::Relaxed);
            let new = if seen > above { step(seen)? } else { return None };
            let changed =
                self.split.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Relaxed);
            if changed.is_ok() {
                return Some(new);
            }
        }
        None
    }

    /// Changes the count to the result of `step`, without the lock only if it is split and above
    /// `above`. Returns the new count.
    fn change(&self, above: i32, step: Step<'_>) -> Option<i32> {
        let split = self.design == RefsDesign::Split;
        if split && let Some(new) = self.attempt(above, step) {
            return Some(new);
        }
        #[cfg(feature = "contention")]
        crate::contention::event(crate::contention::FELL_BACK);
        // The count of these is of use in tests only if the lock is taken each time.
        if split || cfg!(debug_assertions) {
            note_fallback();
        }
        let mut guard = self.own.lock();
        if split {
            let changed =
                self.split.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).ok()?;
            return step(changed);
        }
        let new = step(guard.count())?;
        guard.set_count(new);
        Some(new)
    }

    /// Takes a reference. The caller must have one already.
    #[inline]
    pub fn get(&self) {
        match self.design {
            RefsDesign::Lockref => self.own.get(),
            _ => drop(self.change(1, &|count| Some(raised(count)))),
        }
    }

    /// Takes a reference if there is one already.
    #[inline]
    pub fn get_not_zero(&self) -> bool {
        match self.design {
            RefsDesign::Lockref => self.own.get_not_zero(),
            _ => self.change(1, &|count| (count > 0).then(|| raised(count))).is_some(),
        }
    }

    /// Takes a reference unless the object is dead.
    #[inline]
    pub fn get_not_dead(&self) -> bool {
        match self.design {
            RefsDesign::Lockref => self.own.get_not_dead(),
            _ => self.change(1, &|count| (count >= 0).then(|| raised(count))).is_some(),
        }
    }

    /// Drops a reference unless it is the last.
    #[inline]
    pub fn put_not_zero(&self) -> bool {
        match self.design {
            RefsDesign::Lockref => self.own.put_not_zero(),
            _ => self.change(2, &|count| (count > 1).then(|| count - 1)).is_some(),
        }
    }

    /// Drops a reference and returns the new count, or -1 with nothing changed.
    #[inline]
    pub fn put_return(&self) -> i32 {
        match self.design {
            RefsDesign::Lockref => self.own.put_return(),
            _ => self.change(2, &|count| (count > 0).then(|| count - 1)).unwrap_or(-1),
        }
    }

    /// Drops a reference unless it is the last, for which the lock is returned.
    pub fn put_or_lock(&self) -> Option<LockrefGuard<'_>> {
        if self.design == RefsDesign::Lockref {
            return self.own.put_or_lock().map(|own| self.guard(own));
        }
        if self.put_not_zero() {
            return None;
        }
        let mut guard = self.lock();
        let count = guard.count();
        if count <= 1 {
            return Some(guard);
        }
        guard.set_count(count - 1);
        None
    }

    fn guard<'a>(&'a self, own: own::LockrefGuard<'a>) -> LockrefGuard<'a> {
        let split = (self.design == RefsDesign::Split).then_some(&self.split);
        LockrefGuard { own, split, seen: Cell::new(self.count()) }
    }

    /// Waits for the lock and takes it.
    #[inline]
    pub fn lock(&self) -> LockrefGuard<'_> {
        self.guard(self.own.lock())
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<LockrefGuard<'_>> {
        self.own.try_lock().map(|own| self.guard(own))
    }
}

impl LockrefGuard<'_> {
    /// Returns the count.
    pub fn count(&self) -> i32 {
        let Some(split) = self.split else { return self.own.count() };
        self.seen.set(split.load(Ordering::Acquire));
        self.seen.get()
    }

    /// Changes the count by the difference to the one that was returned last. A dead count stays
    /// dead.
    pub fn set_count(&mut self, count: i32) {
        match self.split {
            None => self.own.set_count(count),
            Some(_) if self.seen.get() < 0 => {}
            Some(split) => {
                split.fetch_add(count - self.seen.get(), Ordering::AcqRel);
                self.seen.set(count);
            }
        }
    }

    /// Marks the object dead: no reference is granted any more. The count must be 0.
    pub fn mark_dead(&mut self) {
        match self.split {
            None => self.own.mark_dead(),
            Some(split) => split.store(DEAD, Ordering::Release),
        }
    }

    /// Returns whether the object is dead.
    pub fn is_dead(&self) -> bool {
        match self.split {
            None => self.own.is_dead(),
            Some(_) => self.count() < 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(design: RefsDesign, count: i32) -> Lockref {
        Lockref { design, ..Lockref::new(count) }
    }

    #[test]
    fn designs_take_the_lock_as_they_are_described() {
        // Other tests only add to the count of the process.
        let takes_lock = |design, count, change: fn(&Lockref)| {
            let (of, before) = (made(design, count), Lockref::fallbacks());
            change(&of);
            Lockref::fallbacks() > before
        };
        assert!(takes_lock(RefsDesign::Lock, 5, Lockref::get));
        assert!(takes_lock(RefsDesign::Lock, 5, |of| _ = of.put_return()));
        assert!(takes_lock(RefsDesign::Split, 1, Lockref::get));
        assert!(takes_lock(RefsDesign::Split, 2, |of| _ = of.put_return()));
        // A larger split count changes while the lock is held.
        let of = made(RefsDesign::Split, 5);
        let held = of.lock();
        of.get();
        assert_eq!((held.count(), of.put_return()), (6, 5));
    }

    /// Drops a reference as the engine does.
    fn put(of: &Lockref) {
        if of.put_return() < 0 {
            let mut guard = of.lock();
            let count = guard.count();
            guard.set_count(count - 1);
        }
    }

    #[test]
    fn references_are_counted_right() {
        for design in [RefsDesign::Lockref, RefsDesign::Lock, RefsDesign::Split] {
            let of = made(design, 1);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for n in 0..crate::times(2000) {
                            of.get();
                            if n % 50 == 0 {
                                let mut guard = of.lock();
                                let count = guard.count();
                                guard.set_count(count + 1);
                                drop(guard);
                                assert!(of.get_not_zero() && of.put_not_zero());
                                assert!(of.put_or_lock().is_none());
                            }
                            put(&of);
                        }
                    });
                }
            });
            let mut last = of.put_or_lock().expect("one reference is left");
            assert_eq!(last.count(), 1, "{design:?}");
            last.set_count(0);
            last.mark_dead();
            assert!(last.is_dead());
            drop(last);
            assert!(!of.get_not_dead() && of.put_return() == -1, "{design:?}");
        }
    }
}
