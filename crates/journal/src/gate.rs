//! The entry of handles into the running transaction with their credits: a [`sync::Gate`], and the
//! threads that wait at it.
//!
//! # Invariants
//! 1. While a stopping thread is past [`Gate::stop`], no handle is open and none opens.
//! 2. The reserved credits are at most the limit at any time. They count the blocks that handles
//!    may still add, the credits that shards of threads keep for their next handles, and the
//!    content of the transaction.
//!
//! # Locking
//! The mutex is taken only if a thread waits: entering and leaving change only a word of the
//! thread's shard.
//!
//! [`sync::Gate`]: extant_sync::Gate

use extant_sync::atomic::{AtomicU64, Ordering::SeqCst};
use extant_sync::{Condvar, Level, Mutex};
use std::time::Duration;

pub(crate) use extant_sync::Refused;

/// The longest wait of a starting handle before it tries and requests space again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Gate {
    inner: extant_sync::Gate,
    /// Incremented when waiting threads must look again.
    epoch: AtomicU64,
    /// Number of threads that have stopped the gate. The mutex is held by waiting threads, and by
    /// changes of the state that they wait for.
    stops: Mutex<u32>,
    drained: Condvar,
    opened: Condvar,
}

impl Gate {
    pub fn new(limit: u32) -> Gate {
        Gate {
            inner: extant_sync::Gate::new(limit),
            epoch: AtomicU64::new(0),
            stops: Mutex::new(Level::JournalList, 0),
            drained: Condvar::new(),
            opened: Condvar::new(),
        }
    }

    /// Enters through a shard with `credits`, without waiting.
    #[inline]
    pub fn try_enter(&self, shard: usize, credits: u32) -> Result<(), Refused> {
        let entered = self.inner.enter(shard, credits);
        if entered == Err(Refused::NoRoom) {
            self.leave(shard, 0);
        }
        entered
    }

    /// Leaves through the shard of the entry and returns the unused credits.
    #[inline]
    pub fn leave(&self, shard: usize, unused: u32) {
        if self.inner.leave(shard, unused) {
            let _stops = self.stops.lock();
            self.drained.notify_all();
        }
    }

    /// Takes more credits for an open handle, without waiting.
    #[inline]
    pub fn reserve(&self, shard: usize, credits: u32) -> bool {
        self.inner.reserve(shard, credits)
    }

    /// Returns the credits reserved or used by handles, and the limit.
    pub fn reserved_and_limit(&self) -> (u32, u32) {
        (self.inner.reserved(), self.inner.drawn_and_bound().1)
    }

    /// Returns the epoch. Must be read before an attempt that may have to wait.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(SeqCst)
    }

    /// Waits until another attempt to enter with `credits`, or another request for space, makes
    /// sense: the state has changed since `epoch`, which the caller must have read before the
    /// failed attempt. A handle that leaves notifies no one, so the wait is short: otherwise
    /// credits that were taken and returned meanwhile might leave no thread to end it.
    /// Returns true if the time was up.
    pub fn wait_to_enter(&self, credits: u32, epoch: u64) -> bool {
        let mut stops = self.stops.lock();
        while self.epoch() == epoch && !self.may_enter(*stops, credits) {
            if self.opened.wait_for(&mut stops, LOOK_AGAIN).timed_out() {
                return true;
            }
        }
        false
    }

    fn may_enter(&self, stops: u32, credits: u32) -> bool {
        let (reserved, limit) = self.reserved_and_limit();
        let fits = reserved.checked_add(credits).is_some_and(|sum| sum <= limit);
        self.is_closed() || (stops == 0 && fits)
    }

    /// Refuses entries and waits until all handles have left. Pairs with [`Gate::resume`].
    pub fn stop(&self) {
        let mut stops = self.stops.lock();
        *stops += 1;
        if *stops == 1 {
            self.inner.shut();
        }
        self.drained.wait_while(&mut stops, |_| !self.inner.is_drained());
    }

    /// Undoes one [`Gate::stop`].
    pub fn resume(&self) {
        let mut stops = self.stops.lock();
        *stops = stops.saturating_sub(1);
        if *stops == 0 {
            self.inner.open();
        }
        self.tell();
    }

    /// Resets the credits for a new transaction. Must be called between [`Gate::stop`] and
    /// [`Gate::resume`].
    pub fn reset(&self, limit: u32) {
        self.inner.reset(limit);
    }

    /// Raises the limit of the running transaction after space in the log became free. If it
    /// returns true, [`Gate::wake`] must follow.
    pub fn raise(&self, limit: u32) -> bool {
        self.inner.raise(limit)
    }

    /// Refuses all entries for good, and wakes waiting threads.
    pub fn close(&self) {
        self.inner.close();
        self.wake();
    }

    pub fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }

    /// Lets waiting threads look again.
    pub fn wake(&self) {
        let _stops = self.stops.lock();
        self.tell();
    }

    /// Lets waiting threads look again. The caller must hold the mutex.
    fn tell(&self) {
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
        assert_eq!(gate.try_enter(0, 6), Ok(()));
        assert_eq!(gate.try_enter(1, 5), Err(Refused::NoRoom));
        assert_eq!(gate.try_enter(1, 4), Ok(()));
        gate.leave(1, 4);
        gate.leave(0, 1);
        assert_eq!(gate.reserved_and_limit(), (5, 10));
        assert_eq!(gate.try_enter(7, 5), Ok(()), "credits are found in other shards");
        gate.leave(7, 5);
        gate.stop();
        assert_eq!(gate.try_enter(0, 1), Err(Refused::Stopped));
        gate.reset(3);
        gate.resume();
        assert_eq!(gate.try_enter(0, 3), Ok(()));
        gate.close();
        assert_eq!(gate.try_enter(0, 0), Err(Refused::Closed));
    }

    #[test]
    fn two_threads_may_stop_the_gate() {
        let gate = Gate::new(10);
        gate.stop();
        gate.stop();
        gate.resume();
        assert_eq!(gate.try_enter(0, 1), Err(Refused::Stopped));
        gate.resume();
        assert_eq!(gate.try_enter(0, 1), Ok(()));
    }

    #[test]
    fn a_stopper_never_meets_a_handle() {
        let gate = Gate::new(1_000_000);
        let (inside, rounds) = (AtomicU64::new(0), 2000);
        std::thread::scope(|scope| {
            for shard in 0..3 {
                let (gate, inside) = (&gate, &inside);
                scope.spawn(move || {
                    for _ in 0..rounds {
                        let mut epoch = gate.epoch();
                        while gate.try_enter(shard, 1).is_err() {
                            gate.wait_to_enter(1, epoch);
                            epoch = gate.epoch();
                        }
                        inside.fetch_add(1, SeqCst);
                        inside.fetch_sub(1, SeqCst);
                        gate.leave(shard, 1);
                    }
                });
            }
            for _ in 0..200 {
                gate.stop();
                assert_eq!(inside.load(SeqCst), 0);
                gate.resume();
            }
        });
        assert_eq!(gate.reserved_and_limit().0, 0);
    }
}
