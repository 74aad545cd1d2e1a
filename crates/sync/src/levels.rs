//! The order of every lock of Extant, and the check that it is kept.
//!
//! # Invariants
//! A thread takes a lock only when its level is strictly greater (further inward) than every level
//! it holds. Two locks of one level are taken only through the helpers that sort them
//! ([`crate::lock_two`], [`crate::write_two`], [`crate::write_all_arc`]) or, for a child below its
//! held parent, through the `*_nested` methods, whose caller argues the order. Since all threads
//! follow one total order, no cycle of waiting threads can form.
//!
//! A `try_*` acquisition cannot wait, so it is not checked; once it succeeded its level counts as
//! held.
//!
//! The check exists with debug assertions only. Elsewhere `Tag` and `Held` are empty types, unless
//! the feature `contention` counts what locks do.

pub use crate::level::{ALL, Level};

use core::marker::PhantomData;

/// What a lock remembers of its level: nothing without debug assertions and the count of
/// contention.
#[derive(Clone, Copy)]
pub(crate) struct Tag {
    #[cfg(any(debug_assertions, feature = "contention"))]
    level: Level,
}

/// Proof that a level is counted as held by this thread. It stays on the thread that made it.
#[must_use]
pub(crate) struct Held {
    #[cfg(debug_assertions)]
    level: Level,
    #[cfg(feature = "contention")]
    hold: Option<crate::contention::Hold>,
    /// Not to be sent to another thread, but to be shared with one, as the guards of the standard
    /// library.
    _not_send: PhantomData<std::sync::MutexGuard<'static, ()>>,
}

/// How strictly an acquisition is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Strictly inward of all held levels.
    Inward,
    /// Inward, or of the innermost held level: the caller argues the order among equals.
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

    /// Counts the level as held, after checking its order. Called before the lock is waited for.
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

    /// Takes a lock that lies at `address`, by `wait`; `now` takes it only if that needs no
    /// waiting.
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

    /// Counts a lock that lies at `address` as held, which did not have to be waited for.
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

    /// The lock is let go for a while, by a wait on a condition: told before [`Held::resume`].
    #[inline]
    pub(crate) fn pause(&self) {
        #[cfg(feature = "contention")]
        self.hold.iter().for_each(crate::contention::Hold::pause);
    }

    /// The lock is held again.
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

/// A stretch of code that is ordered like a lock, such as an open journal handle.
///
/// It belongs to the thread that entered it.
#[must_use]
pub struct Entered {
    _held: Held,
}

/// Enters a stretch that is ordered like a lock of `level`.
///
/// # Panics
/// With debug assertions, if the thread holds `level` or anything further inward.
#[inline]
pub fn enter(level: Level) -> Entered {
    Entered { _held: Tag::new(level).acquire(Order::Inward) }
}

/// Asserts that the thread could take a lock of `level` now, without taking one: for waits that
/// depend on threads which need such locks, as waiting for a commit depends on the handles of
/// others.
///
/// # Panics
/// With debug assertions, if the thread holds `level` or anything further inward.
#[inline]
pub fn assert_may_take(level: Level) {
    #[cfg(debug_assertions)]
    tracking::check(level, Order::Inward);
    #[cfg(not(debug_assertions))]
    let _ = level;
}

/// Asserts that the thread holds something of `level`. Without debug assertions it does nothing.
///
/// # Panics
/// With debug assertions, if it does not.
#[inline]
pub fn assert_held(level: Level) {
    #[cfg(debug_assertions)]
    assert!(tracking::holds(level), "a lock of level {level:?} has to be held here");
    #[cfg(not(debug_assertions))]
    let _ = level;
}

#[cfg(debug_assertions)]
mod tracking {
    use super::{Level, Order};
    use std::cell::RefCell;

    const LEVELS: usize = Level::Leaf as usize + 1;

    /// The levels this thread holds: how often each, and one bit for each that is held at all.
    struct HeldLevels {
        mask: u32,
        counts: [u16; LEVELS],
    }

    const _: () = assert!(LEVELS <= 32, "the mask has one bit for each level");

    thread_local! {
        static HELD: RefCell<HeldLevels> = const { RefCell::new(HeldLevels { mask: 0, counts: [0; LEVELS] }) };
    }

    /// Runs `f` on the thread's state; a thread being torn down no longer has one and is not
    /// checked.
    fn with<R>(f: impl FnOnce(&mut HeldLevels) -> R) -> Option<R> {
        HELD.try_with(|held| f(&mut held.borrow_mut())).ok()
    }

    pub(super) fn acquire(level: Level, order: Order) {
        check(level, order);
        with(|held| {
            held.mask |= 1 << level as u32;
            held.counts[level as usize] += 1;
        });
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

    /// While a panic unwinds nothing is asserted, since a second panic would hide the first.
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
        fn the_message_names_what_is_held() {
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

        /// Takes a lock, does something, and lets go.
        type Take<'a> = (&'static str, Box<dyn Fn(&dyn Fn()) + 'a>);

        fn take<'a, G>(name: &'static str, lock: impl Fn() -> G + 'a) -> Take<'a> {
            let held = move |within: &dyn Fn()| {
                let _guard = lock();
                within();
            };
            (name, Box::new(held))
        }

        fn is_refused(what: impl Fn()) -> bool {
            catch_unwind(std::panic::AssertUnwindSafe(what)).is_err()
        }

        /// Every way to take a lock of the level `Group`: whether it is refused further inward and
        /// within its own level, and that it counts as held until it goes.
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
