//! The order of all locks of Extant, and the check that it is kept.
//!
//! # Invariants
//! A thread takes a lock only if its level is strictly greater (further inward) than every level
//! that the thread holds. Two locks of one level are taken only through the functions that sort
//! them ([`crate::lock_two`], [`crate::write_two`], [`crate::write_all_arc`]) or, for a child below
//! its held parent, through the `*_nested` methods, whose caller must argue the order. All threads
//! follow one total order, so no cycle of waiting threads can form.
//!
//! For example, a thread that holds a `Map` lock may take a `Group` lock. Taking a `Directory` lock
//! then panics in a build with debug assertions.
//!
//! A `try_*` acquisition cannot wait, so its order is not checked. Once it has succeeded, its level
//! counts as held.
//!
//! The check exists only with debug assertions. Otherwise `Tag` and `Held` are empty types, unless
//! the feature `contention` counts the use of locks.

pub use crate::level::{ALL, Level};

use core::marker::PhantomData;

/// The level of a lock. Empty without debug assertions and without the feature `contention`.
#[derive(Clone, Copy)]
pub(crate) struct Tag {
    #[cfg(any(debug_assertions, feature = "contention"))]
    level: Level,
}

/// Proof that a level is counted as held by this thread. It must stay on the thread that made it.
#[must_use]
pub(crate) struct Held {
    #[cfg(debug_assertions)]
    level: Level,
    #[cfg(feature = "contention")]
    hold: Option<crate::contention::Hold>,
    /// Makes the type `Sync` but not `Send`, as the guards of the standard library are.
    _not_send: PhantomData<std::sync::MutexGuard<'static, ()>>,
}

/// How strictly an acquisition is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Strictly inward of all held levels.
    Inward,
    /// Inward of, or equal to, the innermost held level: the caller must argue the order among
    /// equals.
    Nested,
    /// Not checked: the acquisition does not wait.
    Try,
}

impl Tag {
    #[inline]
    pub(crate) const fn new(level: Level) -> Self {
        #[cfg(not(any(debug_assertions, feature = "contention")))]
        let _ = level;
        Tag {
            #[cfg(any(debug_assertions, feature = "contention"))]
            level,
        }
    }

    /// Checks the order and counts the level as held. Must be called before waiting for the lock.
    #[inline]
    pub(crate) fn acquire(self, order: Order) -> Held {
        #[cfg(debug_assertions)]
        tracking::acquire(self.level, order);
        #[cfg(not(debug_assertions))]
        let _ = order;
        Held {
            #[cfg(debug_assertions)]
            level: self.level,
            #[cfg(feature = "contention")]
            hold: None,
            _not_send: PhantomData,
        }
    }

    /// Takes the lock at `address` by `wait`. `now` tries to take it without waiting, for the count
    /// of contention.
    #[cfg_attr(feature = "contention", track_caller)]
    #[inline]
    pub(crate) fn take<G>(
        self,
        order: Order,
        address: *const (),
        now: impl FnOnce() -> Option<G>,
        wait: impl FnOnce() -> G,
    ) -> (G, Held) {
        let held = self.acquire(order);
        #[cfg(feature = "contention")]
        return held.counted(self.level, address, now, wait);
        #[cfg(not(feature = "contention"))]
        {
            let _ = (address, now);
            (wait(), held)
        }
    }

    /// Counts the lock at `address` as held, after an acquisition without waiting.
    #[cfg_attr(feature = "contention", track_caller)]
    #[inline]
    pub(crate) fn taken(self, address: *const ()) -> Held {
        let held = self.acquire(Order::Try);
        #[cfg(feature = "contention")]
        return held.counted(self.level, address, || Some(()), || ()).1;
        #[cfg(not(feature = "contention"))]
        {
            let _ = address;
            held
        }
    }
}

impl Held {
    #[cfg(feature = "contention")]
    #[track_caller]
    fn counted<G>(
        mut self,
        level: Level,
        address: *const (),
        now: impl FnOnce() -> Option<G>,
        wait: impl FnOnce() -> G,
    ) -> (G, Held) {
        let place = core::panic::Location::caller();
        let (guard, hold) =
            crate::contention::Hold::take((level, address.addr(), place), now, wait);
        self.hold = Some(hold);
        (guard, self)
    }

    /// Pauses the hold during a wait on a condition. Must be followed by [`Held::resume`].
    #[inline]
    pub(crate) fn pause(&self) {
        #[cfg(feature = "contention")]
        self.hold.iter().for_each(crate::contention::Hold::pause);
    }

    /// Resumes the hold once the lock is taken again.
    #[inline]
    pub(crate) fn resume(&mut self) {
        #[cfg(feature = "contention")]
        self.hold.iter_mut().for_each(crate::contention::Hold::resume);
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        tracking::release(self.level);
    }
}

/// A section of code that is ordered like a lock, such as an open journal handle.
///
/// It belongs to the thread that entered it.
#[must_use]
pub struct Entered {
    _held: Held,
}

/// Enters a section that is ordered like a lock of `level`.
///
/// # Panics
/// With debug assertions, if the thread holds `level` or a level further inward.
#[inline]
pub fn enter(level: Level) -> Entered {
    Entered { _held: Tag::new(level).acquire(Order::Inward) }
}

/// Asserts that the thread could take a lock of `level` now, without taking one. Used before waits
/// that depend on threads which need such locks: waiting for a commit depends on the handles of
/// other threads.
///
/// # Panics
/// With debug assertions, if the thread holds `level` or a level further inward.
#[inline]
pub fn assert_may_take(level: Level) {
    #[cfg(debug_assertions)]
    tracking::check(level, Order::Inward);
    #[cfg(not(debug_assertions))]
    let _ = level;
}

/// Returns how many locks and sections this thread has taken, for tests that bound the number of an
/// operation. Always 0 without debug assertions.
pub fn acquired() -> u64 {
    #[cfg(debug_assertions)]
    return tracking::acquired();
    #[cfg(not(debug_assertions))]
    0
}

/// Asserts that the thread holds `level`. Does nothing without debug assertions.
///
/// # Panics
/// With debug assertions, if the thread does not hold `level`.
#[inline]
pub fn assert_held(level: Level) {
    #[cfg(debug_assertions)]
    assert!(tracking::holds(level), "a lock of level {level:?} must be held here");
    #[cfg(not(debug_assertions))]
    let _ = level;
}

#[cfg(debug_assertions)]
mod tracking {
    use super::{Level, Order};
    use std::cell::RefCell;

    const LEVELS: usize = Level::Leaf as usize + 1;

    /// The levels that this thread holds: the number of holds of each, and one bit for each held
    /// level.
    struct HeldLevels {
        mask: u32,
        counts: [u16; LEVELS],
        /// Number of acquisitions so far.
        acquired: u64,
    }

    const _: () = assert!(LEVELS <= 32, "the mask has one bit for each level");

    thread_local! {
        static HELD: RefCell<HeldLevels> = const { RefCell::new(HeldLevels {
            mask: 0, counts: [0; LEVELS], acquired: 0,
        }) };
    }

    /// Runs `f` on the thread's state. Returns `None` for a thread that is being torn down; its
    /// locks are not checked.
    fn with<R>(f: impl FnOnce(&mut HeldLevels) -> R) -> Option<R> {
        HELD.try_with(|held| f(&mut held.borrow_mut())).ok()
    }

    pub(super) fn acquire(level: Level, order: Order) {
        check(level, order);
        with(|held| {
            held.mask |= 1 << level as u32;
            held.counts[level as usize] += 1;
            held.acquired = held.acquired.wrapping_add(1);
        });
    }

    pub(super) fn acquired() -> u64 {
        with(|held| held.acquired).unwrap_or(0)
    }

    pub(super) fn release(level: Level) {
        with(|held| {
            let count = &mut held.counts[level as usize];
            *count = count.saturating_sub(1);
            if *count == 0 {
                held.mask &= !(1 << level as u32);
            }
        });
    }

    pub(super) fn holds(level: Level) -> bool {
        with(|held| held.mask & (1 << level as u32) != 0).unwrap_or(true)
    }

    /// Panics if taking a lock of `level` would violate `order`. Asserts nothing while a panic
    /// unwinds, since a second panic would hide the first.
    pub(super) fn check(level: Level, order: Order) {
        let forbidden = match order {
            Order::Inward => u32::MAX << level as u32,
            Order::Nested => (u32::MAX << level as u32) << 1,
            Order::Try => return,
        };
        let mask = with(|held| held.mask).unwrap_or(0);
        if mask & forbidden != 0 && !std::thread::panicking() {
            panic!("lock order: {level:?} taken while holding {}", names(mask));
        }
    }

    fn names(mask: u32) -> String {
        let held = super::ALL.iter().filter(|level| mask & (1 << **level as u32) != 0);
        held.map(|level| format!("{level:?}")).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn all_is_in_order() {
        for (index, level) in ALL.iter().enumerate() {
            assert_eq!(*level as usize, index);
        }
    }

    #[cfg(debug_assertions)]
    mod checked {
        use super::*;
        use crate::{ArcRwLock, Mutex, RwLock, lock_two, write_all_arc, write_two, write_two_arc};
        use std::panic::catch_unwind;

        #[test]
        fn inward_is_allowed_and_outward_is_not() {
            let handle = enter(Level::Handle);
            drop(enter(Level::Map));
            assert!(catch_unwind(|| enter(Level::Inode)).is_err());
            assert!(catch_unwind(|| enter(Level::Handle)).is_err());
            drop(handle);
            drop(enter(Level::Inode));
        }

        #[test]
        fn release_order_does_not_matter() {
            let outer = enter(Level::Directory);
            let inner = enter(Level::Group);
            drop(outer);
            assert!(catch_unwind(|| assert_may_take(Level::Map)).is_err());
            drop(inner);
            assert_may_take(Level::FsState);
        }

        #[test]
        fn the_message_names_the_held_levels() {
            let _map = enter(Level::Map);
            let _buffer = enter(Level::Buffer);
            let payload = catch_unwind(|| enter(Level::Handle))
                .err()
                .and_then(|p| p.downcast::<String>().ok());
            assert_eq!(
                payload.as_deref().map(String::as_str),
                Some("lock order: Handle taken while holding Map, Buffer")
            );
        }

        #[test]
        fn innermost_and_outermost_levels_fit_the_mask() {
            let _leaf = enter(Level::Leaf);
            assert!(catch_unwind(|| enter(Level::Leaf)).is_err());
            assert!(catch_unwind(|| enter(Level::FsState)).is_err());
        }

        /// The name of a way to take a lock, and a function that runs a closure while the lock is
        /// held.
        type Take<'a> = (&'static str, Box<dyn Fn(&dyn Fn()) + 'a>);

        fn take<'a, G>(name: &'static str, lock: impl Fn() -> G + 'a) -> Take<'a> {
            let held = move |within: &dyn Fn()| {
                let _guard = lock();
                within();
            };
            (name, Box::new(held))
        }

        fn is_refused(attempt: impl Fn()) -> bool {
            catch_unwind(std::panic::AssertUnwindSafe(attempt)).is_err()
        }

        /// Checks each way to take a lock of the level `Group`: whether it is refused under an
        /// inner lock and under a lock of its own level, and that the lock counts as held until its
        /// release.
        #[test]
        fn each_way_to_take_a_lock_is_checked() {
            let (mutex, other) = (Mutex::new(Level::Group, ()), Mutex::new(Level::Group, ()));
            let (lock, second) = (RwLock::new(Level::Group, ()), RwLock::new(Level::Group, ()));
            let (arc, last) = (ArcRwLock::new(Level::Group, ()), ArcRwLock::new(Level::Group, ()));
            let inward = [
                take("lock", || mutex.lock()),
                take("lock_two", || lock_two((1, &mutex), (2, &other))),
                take("read", || lock.read()),
                take("write", || lock.write()),
                take("downgrade", || lock.write().downgrade()),
                take("write_two", || write_two((2, &lock), (1, &second))),
                take("read of an Arc", || arc.read()),
                take("write of an Arc", || arc.write()),
                take("read_arc", || arc.read_arc()),
                take("write_arc", || arc.write_arc()),
                take("downgrade of an Arc", || arc.write_arc().downgrade()),
                take("write_two_arc", || write_two_arc((2, &arc), (1, &last))),
                take("write_all_arc", || write_all_arc([(2, &arc), (1, &last)])),
            ];
            let nested = [
                take("lock_nested", || mutex.lock_nested()),
                take("read_nested", || lock.read_nested()),
                take("write_nested", || lock.write_nested()),
                take("write_arc_nested", || arc.write_arc_nested()),
            ];
            let tried = [
                take("try_lock", || mutex.try_lock().expect("free")),
                take("try_read", || lock.try_read().expect("free")),
                take("try_write", || lock.try_write().expect("free")),
                take("try_read of an Arc", || arc.try_read().expect("free")),
                take("try_write of an Arc", || arc.try_write().expect("free")),
                take("try_read_arc", || arc.try_read_arc().expect("free")),
                take("try_write_arc", || arc.try_write_arc().expect("free")),
            ];
            let all = [(&inward[..], true, true), (&nested, true, false), (&tried, false, false)];
            for (ways, refused_inside, refused_beside) in all {
                for (name, take) in ways {
                    for (level, refused) in
                        [(Level::Buffer, refused_inside), (Level::Group, refused_beside)]
                    {
                        let _outer = enter(level);
                        assert_eq!(is_refused(|| take(&|| ())), refused, "{name} within {level:?}");
                    }
                    take(&|| {
                        assert!(is_refused(|| drop(enter(Level::Map))), "{name} counts as held")
                    });
                    drop(enter(Level::Map));
                }
            }
        }

        #[test]
        fn held_levels_are_asserted() {
            assert!(catch_unwind(|| assert_held(Level::Group)).is_err());
            let _group = enter(Level::Group);
            assert_held(Level::Group);
        }
    }
}
