//! Who may enter the running transaction, and with how many credits.
//!
//! # Invariants
//! 1. While a stopper is past [`Gate::stop`], no handle is open and none opens.
//! 2. `reserved` is at most `limit` after each successful entry; it counts what handles may still add and what the
//!    transaction holds.
//!
//! # The protocol
//! Entering increments `handles`, then looks at `stops`; stopping increments `stops`, then looks at `handles`. All four
//! are sequentially consistent, so at least one side sees the other: the entrant retreats or the stopper waits. Nobody
//! takes a mutex unless the other side is there.

use extant_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use extant_sync::{CachePadded, Condvar, Level, Mutex};

#[derive(Debug)]
pub(crate) struct Gate {
    handles: CachePadded<AtomicU64>,
    reserved: CachePadded<AtomicU32>,
    stops: CachePadded<AtomicU32>,
    /// Most credits that the running transaction may have now.
    limit: AtomicU32,
    /// Nobody enters any more.
    closed: AtomicBool,
    /// Counts the times that those who wait were told to look again.
    epoch: AtomicU64,
    /// Entered by those who wait, and by those who change what they wait for.
    waiting: Mutex<()>,
    drained: Condvar,
    opened: Condvar,
}

/// Why a handle cannot start at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The transaction is locked.
    Stopped,
    /// The credits do not fit.
    NoRoom,
    /// The journal was aborted or shut down.
    Closed,
}

impl Gate {
    pub fn new(limit: u32) -> Gate {
        Gate {
            handles: CachePadded::new(AtomicU64::new(0)),
            reserved: CachePadded::new(AtomicU32::new(0)),
            stops: CachePadded::new(AtomicU32::new(0)),
            limit: AtomicU32::new(limit),
            closed: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            waiting: Mutex::new(Level::JournalList, ()),
            drained: Condvar::new(),
            opened: Condvar::new(),
        }
    }

    /// Enters with `credits`, without waiting.
    #[inline]
    pub fn try_enter(&self, credits: u32) -> Result<(), Refused> {
        self.handles.fetch_add(1, SeqCst);
        let refused = if self.closed.load(SeqCst) {
            Refused::Closed
        } else if self.stops.load(SeqCst) != 0 {
            Refused::Stopped
        } else if !self.reserve(credits) {
            Refused::NoRoom
        } else {
            return Ok(());
        };
        self.leave(0);
        Err(refused)
    }

    /// Leaves, giving back the credits that were not used.
    #[inline]
    pub fn leave(&self, unused: u32) {
        self.give_back(unused);
        if self.handles.fetch_sub(1, SeqCst) == 1 && self.stops.load(SeqCst) != 0 {
            let _waiting = self.waiting.lock();
            self.drained.notify_all();
        }
    }

    /// Takes more credits, without waiting.
    #[inline]
    pub fn reserve(&self, credits: u32) -> bool {
        let mut now = self.reserved.load(SeqCst);
        loop {
            let Some(then) = now.checked_add(credits).filter(|&sum| sum <= self.limit.load(SeqCst)) else {
                return credits == 0;
            };
            match self.reserved.compare_exchange_weak(now, then, SeqCst, SeqCst) {
                Ok(_) => return true,
                Err(changed) => now = changed,
            }
        }
    }

    /// Gives back credits.
    #[inline]
    pub fn give_back(&self, credits: u32) {
        if credits != 0 {
            self.reserved.fetch_sub(credits, SeqCst);
        }
    }

    /// The credits reserved and the most there may be.
    pub fn room(&self) -> (u32, u32) {
        (self.reserved.load(SeqCst), self.limit.load(SeqCst))
    }

    /// To be read before an attempt that may have to wait.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(SeqCst)
    }

    /// Waits until it makes sense to try again to enter with `credits`, or to ask again for room: something has changed
    /// since `epoch`, which was read before the attempt that failed.
    pub fn wait_to_enter(&self, credits: u32, epoch: u64) {
        let mut waiting = self.waiting.lock();
        self.opened.wait_while(&mut waiting, |()| self.epoch() == epoch && !self.may_enter(credits));
    }

    fn may_enter(&self, credits: u32) -> bool {
        let (reserved, limit) = self.room();
        let fits = reserved.checked_add(credits).is_some_and(|sum| sum <= limit);
        self.closed.load(SeqCst) || (self.stops.load(SeqCst) == 0 && fits)
    }

    /// Lets nobody enter and waits until all have left. Pairs with [`Gate::resume`].
    pub fn stop(&self) {
        self.stops.fetch_add(1, SeqCst);
        let mut waiting = self.waiting.lock();
        self.drained.wait_while(&mut waiting, |()| self.handles.load(SeqCst) != 0);
    }

    /// Undoes one [`Gate::stop`].
    pub fn resume(&self) {
        self.stops.fetch_sub(1, SeqCst);
        self.wake();
    }

    /// Begins to count for a new transaction. Called between [`Gate::stop`] and [`Gate::resume`].
    pub fn reset(&self, limit: u32) {
        self.reserved.store(0, SeqCst);
        self.limit.store(limit, SeqCst);
    }

    /// Sets how many credits the running transaction may have, if that is more than before, since space in the log
    /// became free. [`Gate::wake`] is to follow if this says so.
    pub fn raise(&self, limit: u32) -> bool {
        self.limit.fetch_max(limit, SeqCst) < limit
    }

    /// Lets nobody enter for ever; those who wait are told.
    pub fn close(&self) {
        self.closed.store(true, SeqCst);
        self.wake();
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    /// Lets those who wait look again.
    pub fn wake(&self) {
        let _waiting = self.waiting.lock();
        self.epoch.fetch_add(1, SeqCst);
        self.opened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_sync::atomic::AtomicU64;

    #[test]
    fn credits_are_bounded_and_come_back() {
        let gate = Gate::new(10);
        assert_eq!(gate.try_enter(6), Ok(()));
        assert_eq!(gate.try_enter(5), Err(Refused::NoRoom));
        assert_eq!(gate.try_enter(4), Ok(()));
        gate.leave(4);
        gate.leave(1);
        assert_eq!(gate.room(), (5, 10));
        gate.stop();
        assert_eq!(gate.try_enter(1), Err(Refused::Stopped));
        gate.reset(3);
        gate.resume();
        assert_eq!(gate.try_enter(3), Ok(()));
        gate.close();
        assert_eq!(gate.try_enter(0), Err(Refused::Closed));
    }

    #[test]
    fn a_stopper_never_meets_a_handle() {
        let gate = Gate::new(1_000_000);
        let (inside, rounds) = (AtomicU64::new(0), 2000);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        let mut epoch = gate.epoch();
                        while gate.try_enter(1).is_err() {
                            gate.wait_to_enter(1, epoch);
                            epoch = gate.epoch();
                        }
                        inside.fetch_add(1, SeqCst);
                        inside.fetch_sub(1, SeqCst);
                        gate.leave(1);
                    }
                });
            }
            for _ in 0..200 {
                gate.stop();
                assert_eq!(inside.load(SeqCst), 0);
                gate.resume();
            }
        });
        assert_eq!(gate.room().0, 0);
    }
}
