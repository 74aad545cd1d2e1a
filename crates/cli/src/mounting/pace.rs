//! How often a server that is killed is started again.
//!
//! An image, or a request, may kill its server each time, for lack of memory perhaps. Servers that
//! end at once are started after longer and longer pauses, and [`MAX_BRIEF`] of them in a row are
//! the last ones. So are [`MAX_YOUNG`] in a row that work for a moment only. A server that was
//! killed from outside has worked for some time before.

use std::time::Duration;

/// A server that had mounted for a shorter time ended at once.
const BRIEF: Duration = Duration::from_millis(250);

/// The number of servers in a row that may end at once.
const MAX_BRIEF: u32 = 16;

/// A server that had mounted for a shorter time ended soon.
const YOUNG: Duration = Duration::from_secs(10);

/// The number of servers in a row that may end soon.
const MAX_YOUNG: u32 = 100;

/// Pause before the start of a server after the first one that ended at once; it doubles each time.
const PAUSE: Duration = Duration::from_millis(10);

/// The number of times that it doubles.
const MAX_DOUBLINGS: u32 = 6;

/// The ends of the servers of a mount.
#[derive(Debug, Default)]
pub struct Pace {
    brief: u32,
    young: u32,
}

impl Pace {
    /// Returns the pause before the next server, after one that had mounted for a time, or never.
    /// `None`: no other one shall be started.
    pub fn after(&mut self, served: Option<Duration>) -> Option<Duration> {
        let served = served.unwrap_or_default();
        self.young = if served < YOUNG { self.young + 1 } else { 0 };
        self.brief = if served < BRIEF { self.brief + 1 } else { 0 };
        if self.brief > MAX_BRIEF || self.young > MAX_YOUNG {
            return None;
        }
        let doublings = self.brief.checked_sub(1);
        Some(
            doublings.map_or(Duration::ZERO, |number| PAUSE * 2_u32.pow(number.min(MAX_DOUBLINGS))),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_end_at_once_are_not_started_forever() {
        let mut pace = Pace::default();
        let pauses: Vec<Duration> = std::iter::from_fn(|| pace.after(None)).collect();
        assert_eq!(pauses.len(), 16);
        assert!(pauses.is_sorted() && pauses[0] == PAUSE, "{pauses:?}");
        assert!(pauses.iter().sum::<Duration>() < Duration::from_secs(10), "{pauses:?}");
    }

    /// One request of a program that repeats it may kill each server after a moment.
    #[test]
    fn servers_that_end_soon_are_not_started_forever() {
        for served in [BRIEF, YOUNG - Duration::from_millis(1)] {
            let mut pace = Pace::default();
            let pauses = std::iter::from_fn(|| pace.after(Some(served))).take(1000);
            assert_eq!(pauses.count(), 100, "{served:?}");
        }
    }

    #[test]
    fn a_server_that_worked_is_started_at_once() {
        let mut pace = Pace::default();
        for _ in 0..1000 {
            assert_eq!(pace.after(Some(Duration::ZERO)), Some(PAUSE));
            assert_eq!(pace.after(Some(YOUNG)), Some(Duration::ZERO));
        }
    }
}
