//! Timing and measured values.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::iter;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// Operations between two looks at the clock.
const LOOK_EVERY: u64 = 16;

/// When a measurement ends: after so many operations of each thread, or after so long, whichever is
/// first.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Operations of each thread.
    pub ops: u64,
    /// From the start.
    pub time: Duration,
}

impl Limit {
    /// As many operations as go into `time`.
    pub fn time(time: Duration) -> Limit {
        Limit { ops: u64::MAX, time }
    }
}

/// Operations of threads and their time.
#[derive(Clone, Debug)]
pub struct Done {
    /// Operations of each thread.
    pub ops: Vec<u64>,
    /// From the start of the first to the end of the last.
    pub elapsed: Duration,
    /// Time of each thread without its waits for a processor.
    pub own: Vec<Duration>,
}

impl Done {
    /// Operations of all threads per second.
    pub fn rate(&self) -> f64 {
        let ops: u64 = self.ops.iter().sum();
        ops as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Runs `op(thread, n)` for n = 0, 1, … on `threads` threads that start together, each until the
/// limit.
pub fn run_threads<F>(threads: usize, limit: Limit, op: F) -> io::Result<Done>
where
    F: Fn(usize, u64) -> io::Result<()> + Sync,
{
    together(threads, |thread| until_limit(limit, |n| op(thread, n)))
}

/// Runs `work` once in each of the threads.
pub fn in_threads(
    threads: usize,
    work: impl Fn(usize) -> io::Result<()> + Sync,
) -> io::Result<Done> {
    together(threads, |thread| work(thread).map(|()| 1))
}

/// Runs `op` for each number below `count`, shared out among threads.
pub fn share_out<F>(threads: usize, count: usize, op: F) -> io::Result<Done>
where
    F: Fn(usize) -> io::Result<()> + Sync,
{
    let next = AtomicU64::new(0);
    together(threads, |_| {
        // Relaxed: the number itself is all that is shared.
        let all = iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed) as usize));
        let mut own = all.take_while(|n| *n < count);
        own.try_fold(0, |done, n| op(n).map(|()| done + 1))
    })
}

/// Runs `work` on threads that start together; it returns how many operations it did. The time is
/// from the first start to the last end, as the threads themselves see it.
fn together(threads: usize, work: impl Fn(usize) -> io::Result<u64> + Sync) -> io::Result<Done> {
    let barrier = Barrier::new(threads);
    let (work, barrier) = (&work, &barrier);
    let one = move |thread| {
        barrier.wait();
        let (waited, start) = (processor_waits(), Instant::now());
        let ops = work(thread)?;
        let end = Instant::now();
        let waited = processor_waits().saturating_sub(waited);
        let own = (end - start).saturating_sub(waited);
        io::Result::Ok((ops, start, end, own))
    };
    let ended = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        running.into_iter().map(joined).collect::<io::Result<Vec<_>>>()
    })?;
    let start = ended.iter().map(|(_, start, ..)| *start).min();
    let end = ended.iter().map(|(_, _, end, _)| *end).max();
    let elapsed = start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start);
    let own = ended.iter().map(|(.., own)| *own).collect();
    Ok(Done { ops: ended.into_iter().map(|(ops, ..)| ops).collect(), elapsed, own })
}

/// Returns how long this thread could have run but waited for a processor, so far; nothing where
/// the kernel does not count it.
fn processor_waits() -> Duration {
    let line = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = line.split(' ').nth(1).and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// Waits for the end of a thread, and returns its outcome.
pub fn joined<T>(thread: ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

/// Runs `work` while as many threads run `other` with their numbers, until the flag is set. It is
/// set when the work is done or a thread fails.
pub fn beside<T>(
    threads: usize,
    other: impl Fn(usize, &AtomicBool) -> io::Result<()> + Sync,
    work: impl FnOnce(&AtomicBool) -> io::Result<T>,
) -> io::Result<T> {
    let (other, over) = (&other, &AtomicBool::new(false));
    let one = move |thread| {
        let outcome = other(thread, over);
        over.store(true, Ordering::Relaxed);
        outcome
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        let result = work(over);
        over.store(true, Ordering::Relaxed);
        let ended = running.into_iter().try_for_each(joined);
        result.and_then(|result| ended.map(|()| result))
    })
}

/// Not inlined: `instructions` has callgrind count inside it.
#[inline(never)]
fn until_limit(limit: Limit, op: impl Fn(u64) -> io::Result<()>) -> io::Result<u64> {
    let start = Instant::now();
    let mut n = 0;
    while n < limit.ops {
        if n % LOOK_EVERY == 0 && start.elapsed() >= limit.time {
            break;
        }
        op(n)?;
        n += 1;
    }
    Ok(n)
}

/// Columns in the order of a run: each second one backwards, so that none always follows the same
/// one.
pub fn turn(run: usize, columns: usize) -> Vec<usize> {
    let forward = 0..columns;
    if run.is_multiple_of(2) { forward.collect() } else { forward.rev().collect() }
}

/// Median and extremes.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Spread {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of some values; None if there are none.
    pub fn of(values: &[f64]) -> Option<Spread> {
        let median = median(values)?;
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Spread { median, min, max })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} [{:.2} to {:.2}]", self.median, self.min, self.max)
    }
}

/// Returns the median; None of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mid = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[mid]),
        _ => Some((sorted[mid - 1] + sorted[mid]) / 2.0),
    }
}

/// Where the latency is asked for that a processor may take to wake; it holds as long as the file
/// is open.
const LATENCY: &str = "/dev/cpu_dma_latency";

/// As long as this lives processors that have nothing to do wait without sleeping.
#[derive(Debug)]
pub struct Awake {
    _open: Option<File>,
}

impl Awake {
    /// Asks for it; without the permission, or where there is no such thing, processors sleep as
    /// they do.
    pub fn hold() -> Awake {
        let open = File::options().write(true).open(LATENCY).and_then(|mut file| {
            file.write_all(&0i32.to_ne_bytes())?;
            Ok(file)
        });
        if let Err(e) = &open {
            let program = crate::program();
            eprintln!("{program}: processors may sleep while it measures: {LATENCY}: {e}");
        }
        Awake { _open: open.ok() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_and_no_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn every_number_is_shared_out_once() {
        let sum = AtomicU64::new(0);
        let done = share_out(3, 100, |n| {
            sum.fetch_add(n as u64, Ordering::Relaxed);
            Ok(())
        });
        assert_eq!(done.expect("no error").ops.iter().sum::<u64>(), 100);
        assert_eq!(sum.load(Ordering::Relaxed), 4950);
    }

    #[test]
    fn an_error_of_a_thread_is_the_outcome() {
        let limit = Limit { ops: 5, time: Duration::from_secs(60) };
        let failed = run_threads(2, limit, |thread, n| match (thread, n) {
            (1, 3) => Err(io::Error::other("no")),
            _ => Ok(()),
        });
        assert_eq!(failed.expect_err("one failed").to_string(), "no");
    }
}
