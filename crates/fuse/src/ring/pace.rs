//! How long requests take, by kind: what takes long does not keep others waiting.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Requests whose kind takes longer than this do not keep others waiting.
const LONG: Duration = Duration::from_micros(300);

/// A request's share in what its kind takes: one part of so many.
const WEIGHT: u64 = 16;

/// What the scheduler tells of a thread: time on a processor, time that it waited for one
/// (nanoseconds), turns.
const SCHEDULED: &str = "/proc/thread-self/schedstat";

/// How long requests take, by kind, in nanoseconds. Only hints: threads may overwrite each other's.
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

    /// Whether requests of a kind took long lately.
    pub fn is_long(&self, opcode: u32) -> bool {
        // Relaxed, here and below: nothing else hangs on the number.
        self.of(opcode).load(Ordering::Relaxed) > LONG.as_nanos() as u64
    }

    /// A request of a kind took so long.
    pub fn took(&self, opcode: u32, time: Duration) {
        let mean = self.of(opcode);
        let old = mean.load(Ordering::Relaxed);
        // One alone does not make its kind long.
        let time = (time.as_nanos() as u64).min(4 * WEIGHT * LONG.as_nanos() as u64 / 5);
        mean.store(old - old / WEIGHT + time / WEIGHT, Ordering::Relaxed);
    }
}

/// Measures one request.
#[derive(Debug)]
pub struct Watch(Instant);

impl Watch {
    /// It begins.
    pub fn start() -> Watch {
        Watch(Instant::now())
    }

    /// What it took, without the time that the thread waited for a processor: on a busy machine
    /// that would make each kind long. The scheduler is asked only where it matters, so the first
    /// such request of a thread may seem shorter than it was.
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
    static WAITS: RefCell<Waits> = RefCell::new(Waits { told: File::open(SCHEDULED).ok(), seen: 0 });
}

impl Waits {
    /// What came since the last look; nothing where the kernel does not tell.
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
    use crate::wire::structs::op;

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
