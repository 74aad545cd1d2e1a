//! Timing and measured values.

use crate::sheet::Name;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Operations between two looks at the clock.
const LOOK_EVERY: u64 = 16;

/// When a measurement ends: after so many operations of each thread, or after so long, whichever is
/// first.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Operations of each thread.
    pub ops: u64,
    /// Time.
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

/// Runs `op` for each number below `count`, shared out among threads.
pub fn share_out<F>(threads: usize, count: usize, op: F) -> io::Result<Done>
where
    F: Fn(usize) -> io::Result<()> + Sync,
{
    let next = AtomicU64::new(0);
    together(threads, |_| {
        let mut done = 0;
        loop {
            // Relaxed: the number itself is all that is shared.
            let n = next.fetch_add(1, Ordering::Relaxed) as usize;
            if n >= count {
                return Ok(done);
            }
            op(n)?;
            done += 1;
        }
    })
}

/// Runs `work` on threads that start together; it returns how many operations it did. The time is
/// from the first start to the last end, as the threads themselves see it.
fn together<F>(threads: usize, work: F) -> io::Result<Done>
where
    F: Fn(usize) -> io::Result<u64> + Sync,
{
    let barrier = Barrier::new(threads);
    let (work, barrier) = (&work, &barrier);
    let one = move |thread| {
        barrier.wait();
        let start = Instant::now();
        let ops = work(thread)?;
        io::Result::Ok((ops, start, Instant::now()))
    };
    let ended = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(panicked()))
        };
        running.into_iter().map(join).collect::<io::Result<Vec<_>>>()
    })?;
    let start = ended.iter().map(|(_, start, _)| *start).min();
    let end = ended.iter().map(|(_, _, end)| *end).max();
    let elapsed = start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start);
    Ok(Done { ops: ended.into_iter().map(|(ops, ..)| ops).collect(), elapsed })
}

fn panicked() -> io::Error {
    io::Error::other("a thread panicked")
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

/// A line of the table: a workload with a number of threads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub struct Row {
    /// Name of the workload.
    pub workload: Name,
    /// By how many threads.
    pub threads: usize,
}

/// Unit of a measurement; more is better in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Unit {
    /// Operations per second.
    #[serde(rename = "ops/s")]
    Ops,
    /// 10^6 bytes per second.
    #[serde(rename = "MB/s")]
    Megabytes,
}

/// Measured values of one row: for each side, one of each run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Values {
    /// Their unit.
    pub unit: Unit,
    /// By the name of the side.
    pub sides: BTreeMap<String, Vec<f64>>,
}

/// Everything measured, rows in the order in which they were first measured.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Record {
    rows: Vec<(Row, Values)>,
}

impl Record {
    /// Adds a value.
    pub fn add(&mut self, side: &str, row: Row, unit: Unit, value: f64) {
        let at = self.rows.iter().position(|(r, _)| *r == row).unwrap_or_else(|| {
            self.rows.push((row, Values { unit, sides: BTreeMap::new() }));
            self.rows.len() - 1
        });
        self.rows[at].1.sides.entry(side.to_owned()).or_default().push(value);
    }

    /// Returns all rows.
    pub fn rows(&self) -> &[(Row, Values)] {
        &self.rows
    }

    /// Returns the values of a side in a row.
    pub fn values(&self, row: &Row, side: &str) -> Option<&[f64]> {
        let (_, values) = self.rows.iter().find(|(r, _)| r == row)?;
        values.sides.get(side).map(Vec::as_slice)
    }

    /// Returns the median of a side in a row.
    pub fn median(&self, row: &Row, side: &str) -> Option<f64> {
        self.values(row, side).and_then(median)
    }

    /// Median, least and greatest of the ratios of two sides, run by run.
    pub fn ratio(&self, row: &Row, side: &str, to: &str) -> Option<Spread> {
        let (ours, theirs) = (self.values(row, side)?, self.values(row, to)?);
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
        Spread::of(&ratios)
    }
}

/// Median and extremes.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Spread {
    /// The median.
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
    fn ratios_are_taken_run_by_run() {
        let mut record = Record::default();
        let row = Row { workload: "w".into(), threads: 1 };
        for (ours, theirs) in [(10.0, 5.0), (30.0, 10.0), (8.0, 8.0)] {
            record.add("a", row.clone(), Unit::Ops, ours);
            record.add("b", row.clone(), Unit::Ops, theirs);
        }
        let spread = record.ratio(&row, "a", "b").expect("both were measured");
        assert_eq!(spread, Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert!(record.ratio(&row, "a", "c").is_none());
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
