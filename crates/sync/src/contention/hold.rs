//! Durations for which locks are waited for and held.

use super::log::{self, Place, written};
use crate::level::Level;
use std::time::{Duration, Instant};

/// A held lock, as the log of its thread records it.
#[derive(Debug)]
pub(crate) struct Hold {
    level: Level,
    address: usize,
    place: Place,
    since: Instant,
}

impl Hold {
    /// Takes a lock: by `now` if that succeeds, otherwise by `wait`, whose duration is recorded.
    pub(crate) fn take<G>(
        (level, address, place): (Level, usize, Place),
        now: impl FnOnce() -> Option<G>,
        wait: impl FnOnce() -> G,
    ) -> (G, Hold) {
        let start = Instant::now();
        if let Some(guard) = now() {
            return (guard, Hold::begin((level, address, place), None));
        }
        let guard = wait();
        (guard, Hold::begin((level, address, place), Some(start.elapsed())))
    }

    /// Records an acquisition and the duration of the wait (`None`: the lock was free).
    pub(crate) fn begin(
        (level, address, place): (Level, usize, Place),
        waited: Option<Duration>,
    ) -> Hold {
        written(address, Some(level), place, 2, 0);
        log::with(|log| {
            let lock = &mut log.locks[level as usize];
            lock.taken += 1;
            lock.contended += u64::from(waited.is_some());
            lock.waited += waited.unwrap_or_default();
        });
        Hold { level, address, place, since: Instant::now() }
    }

    /// Ends the hold for the duration of a wait on a condition.
    pub(crate) fn pause(&self) {
        let held = self.since.elapsed();
        log::with(|log| {
            log.locks[self.level as usize].held += held;
            log.entry(self.address, Some(self.level), self.place).held += held;
        });
    }

    /// Begins the hold again after the wait.
    pub(crate) fn resume(&mut self) {
        // `pause` has recorded the end of the earlier hold, so only the new one is counted.
        let again = Hold::begin((self.level, self.address, self.place), None);
        self.since = again.since;
        std::mem::forget(again);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.pause();
    }
}
