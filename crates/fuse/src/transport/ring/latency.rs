//! Recent latency of requests by kind. Kinds with a long latency must not delay other requests.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Latency of a kind from which on other threads serve its requests.
const LONG: Duration = Duration::from_micros(300);

/// Weight of the mean: one request contributes one part in this number.
const WEIGHT: u64 = 16;

/// Statistics of the scheduler for a thread: time on a processor and time of waiting for one, in
/// nanoseconds, and number of turns.
const SCHEDULED: &str = "/proc/thread-self/schedstat";

/// Mean latencies by kind, in nanoseconds. These are hints: threads may overwrite each other's
/// updates.
#[derive(Debug)]
pub struct Pace([AtomicU64; 64]);

impl Default for Pace {
    fn default() -> Self {
        Pace(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Pace {
    fn of(&self, opcode: u32) -> &AtomicU64 {
        &self.0[opcode as usize % self.0.len()]
    }

    /// Returns whether requests of a kind had a long latency recently.
    pub fn is_long(&self, opcode: u32) -> bool {
        // Relaxed, here and below: the number orders no other access.
        self.of(opcode).load(Ordering::Relaxed) > LONG.as_nanos() as u64
    }

    /// Adds the latency of a request to the mean of its kind.
    pub fn took(&self, opcode: u32, time: Duration) {
        let mean = self.of(opcode);
        let old = mean.load(Ordering::Relaxed);
        // The bound keeps a single request from making its kind long.
        let time = (time.as_nanos() as u64).min(4 * WEIGHT * LONG.as_nanos() as u64 / 5);
        mean.store(old - old / WEIGHT + time / WEIGHT, Ordering::Relaxed);
    }
}

/// Measures the latency of one request.
#[derive(Debug)]
pub struct Watch(Instant);

impl Watch {
    /// Starts the measurement.
    pub fn start() -> Watch {
        Watch(Instant::now())
    }

    /// Returns the latency without the thread's waits for a processor, which would make each kind
    /// long on a busy machine. The statistics are read only for long requests, so the first one of
    /// a thread may seem shorter than it was.
    pub fn time(&self) -> Duration {
        let time = self.0.elapsed();
        if time > LONG { time.saturating_sub(WAITS.with_borrow_mut(Waits::newer)) } else { time }
    }
}

/// A thread's waits for a processor.
struct Waits {
    told: Option<File>,
    seen: u64,
}

thread_local! {
    static WAITS: RefCell<Waits> = RefCell::new(Waits {
        told: File::open(SCHEDULED).ok(),
        seen: 0,
    });
}

impl Waits {
    /// Returns the waits since the last call; zero if the kernel has no statistics.
    fn newer(&mut self) -> Duration {
        let mut text = [0; 64];
        let len = self.told.as_ref().and_then(|told| told.read_at(&mut text, 0).ok());
        let Some(now) = len.and_then(|len| waited(text.get(..len)?)) else { return Duration::ZERO };
        let newer = now.saturating_sub(self.seen);
        self.seen = now;
        Duration::from_nanos(newer)
    }
}

fn waited(line: &[u8]) -> Option<u64> {
    std::str::from_utf8(line).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::abi::op;

    #[test]
    fn a_kind_is_long_when_it_was_so_for_a_while() {
        let pace = Pace::default();
        pace.took(op::FSYNC, Duration::from_secs(1));
        assert!(!pace.is_long(op::FSYNC), "one alone says nothing");
        (0..20).for_each(|_| pace.took(op::FSYNC, Duration::from_millis(5)));
        assert!(pace.is_long(op::FSYNC));
        assert!(!pace.is_long(op::READ));
        (0..200).for_each(|_| pace.took(op::FSYNC, Duration::from_micros(20)));
        assert!(!pace.is_long(op::FSYNC));
    }

    #[test]
    fn the_scheduler_is_understood() {
        assert_eq!(waited(b"46203 1207 9\n"), Some(1207));
        assert_eq!(waited(b"46203"), None);
        let mut waits = Waits { told: None, seen: 0 };
        assert_eq!(waits.newer(), Duration::ZERO, "a kernel that does not tell");
    }
}
