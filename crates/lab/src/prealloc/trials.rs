//! The four tests that the tree of preallocations was published with, and two of many files that
//! grow at once.

use crate::target::{How, OpenFile, Put, Target};
use extant_engine::PreallocStats;
use extant_measure::timing::in_threads;
use extant_sync::SplitMix64;
use std::io;
use std::time::Instant;

/// Prefix of the names of files whose pieces are counted.
pub const FILE: &str = "pieces";

/// How much is done.
pub struct Scale {
    sparse_writes: u64,
    sparse_bytes: u64,
    fill_bytes: u64,
    files: u64,
    /// Of each of the files that grow at once.
    grown_bytes: u64,
}

impl Scale {
    /// As published where the machine allows: 200,000 sparse writes; 1 GiB filled in place of 5;
    /// 200,000 small files in place of 8 GB.
    pub const FULL: Scale = Scale {
        sparse_writes: 200_000,
        sparse_bytes: 100 << 30,
        fill_bytes: 1 << 30,
        files: 200_000,
        grown_bytes: 16 << 20,
    };
    /// A quick look.
    pub const QUICK: Scale = Scale {
        sparse_writes: 40_000,
        sparse_bytes: 20 << 30,
        fill_bytes: 128 << 20,
        files: 40_000,
        grown_bytes: 4 << 20,
    };
}

/// Result of a test.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// MB/s or files/s.
    pub rate: f64,
    /// Work in the unit of the rate, without its second, and the least bytes of data that the
    /// device got for it.
    pub done: f64,
    pub device_bytes: u64,
    /// The part of the time that passed before the sync at the end.
    pub in_calls: f64,
    /// Pieces of the files [`FILE`].
    pub pieces: Option<u64>,
    /// The engine's counters.
    pub prealloc: Option<PreallocStats>,
}

pub struct Test {
    pub name: &'static str,
    pub what: &'static str,
    /// How many times the kernel's rate it should reach with delayed allocation.
    pub rate_bar: f64,
    /// How many times fewer pieces.
    pub pieces_bar: Option<f64>,
    pub run: fn(&dyn Target, &Scale) -> io::Result<Outcome>,
}

const fn test(
    (name, what): (&'static str, &'static str),
    rate_bar: f64,
    pieces_bar: Option<f64>,
    run: fn(&dyn Target, &Scale) -> io::Result<Outcome>,
) -> Test {
    Test { name, what, rate_bar, pieces_bar, run }
}

/// The tests in order.
pub const TESTS: [Test; 6] = [
    test(("T1", "sparse random 1 KiB"), 7.0, Some(20.0), sparse),
    test(("T2", "random fill"), 3.0, None, |f, s| fill(f, s, 1)),
    test(("T3", "random fill, 4 sequential"), 2.7, None, |f, s| fill(f, s, 4)),
    test(("T4", "2 KiB files, 64 threads"), 3.0, None, files),
    test(("T5", "64 appenders"), 1.1, Some(1.0), append),
    test(("T6", "64 fallocate containers"), 1.0, Some(1.0), allocate),
];

const WRITE: u64 = 1024;

/// Bytes of an append and of a preallocation, and the number of times that each container is
/// emptied.
const APPENDED: u64 = 4096;
const ALLOCATED: u64 = 64 << 10;
const ROUNDS: u64 = 4;

const THREADS: u64 = 64;

/// Returns a permutation of `0..count`, which is a power of two.
fn scattered(i: u64, count: u64) -> u64 {
    let mixed = i.wrapping_mul(0x9E37_79B1) ^ 0x5bd1_e995;
    let mixed = (mixed ^ ((mixed & (count - 1)) >> (count.ilog2() / 2))).wrapping_mul(0x85EB_CA6B);
    mixed & (count - 1)
}

/// Bytes of a block.
const BLOCK: u64 = 4096;

/// Runs the calls and then the sync that ends them.
fn measured(
    done: f64,
    device_bytes: u64,
    calls: impl FnOnce() -> io::Result<()>,
    sync: impl FnOnce() -> io::Result<()>,
) -> io::Result<Outcome> {
    let start = Instant::now();
    calls()?;
    let called = start.elapsed().as_secs_f64();
    sync()?;
    let seconds = start.elapsed().as_secs_f64();
    let (rate, in_calls) = (done / seconds, called / seconds);
    Ok(Outcome { rate, done, device_bytes, in_calls, pieces: None, prealloc: None })
}

/// Runs the calls of each thread, and then a sync.
fn by_threads(
    files: &dyn Target,
    done: f64,
    device_bytes: u64,
    calls: impl Fn(usize) -> io::Result<()> + Sync,
) -> io::Result<Outcome> {
    let all = || in_threads(THREADS as usize, calls).map(drop);
    measured(done, device_bytes, all, || files.sync())
}

/// Writes of 1 KiB anywhere in a large file, to the end of an fsync.
fn sparse(files: &dyn Target, scale: &Scale) -> io::Result<Outcome> {
    let file = open(files, FILE)?;
    let mut random = SplitMix64::new(42);
    let calls = || {
        (0..scale.sparse_writes).try_for_each(|_| {
            let at = random.below(scale.sparse_bytes / WRITE) * WRITE;
            file.write_at(at, &[1; WRITE as usize])
        })
    };
    measured((scale.sparse_writes * WRITE) as f64 / 1e6, scale.sparse_writes * BLOCK, calls, || {
        file.fsync()
    })
}

/// Fills a file in random order, `together` writes of 1 KiB at a time, to the end of an fsync.
fn fill(files: &dyn Target, scale: &Scale, together: u64) -> io::Result<Outcome> {
    let file = open(files, FILE)?;
    let jumps = scale.fill_bytes / WRITE / together;
    let calls = || {
        (0..jumps).try_for_each(|jump| {
            let first = scattered(jump, jumps) * together;
            (first..first + together)
                .try_for_each(|write| file.write_at(write * WRITE, &[2; WRITE as usize]))
        })
    };
    measured(scale.fill_bytes as f64 / 1e6, scale.fill_bytes, calls, || file.fsync())
}

/// Files of 2 KiB, each thread in its own directory, to the end of a sync.
fn files(files: &dyn Target, scale: &Scale) -> io::Result<Outcome> {
    for thread in 0..THREADS {
        files.mkdir(format!("d{thread}").as_bytes())?;
    }
    let each = scale.files / THREADS;
    let all = each * THREADS;
    let file = Put { data: &[3; 2048], mode: 0o644, mtime: None };
    by_threads(files, all as f64 / 1e3, all * BLOCK, |thread| {
        (0..each).try_for_each(|i| files.put(format!("d{thread}/f{i}").as_bytes(), file))
    })
}

/// Makes a file and opens it for writing.
fn open(files: &dyn Target, name: &str) -> io::Result<Box<dyn OpenFile>> {
    files.create(name.as_bytes())?;
    files.open(name.as_bytes(), How::Write)
}

/// Each thread appends 4 KiB at a time to a file of its own, to the end of a sync.
fn append(files: &dyn Target, scale: &Scale) -> io::Result<Outcome> {
    let bytes = scale.grown_bytes * THREADS;
    by_threads(files, bytes as f64 / 1e6, bytes, |thread| {
        let file = open(files, &format!("{FILE}{thread}"))?;
        (0..scale.grown_bytes / APPENDED)
            .try_for_each(|i| file.write_at(i * APPENDED, &[4; APPENDED as usize]))
    })
}

/// Each thread gives a file of its own space, 64 KiB at a time, and takes it away, but for the last
/// time; to the end of a sync.
fn allocate(files: &dyn Target, scale: &Scale) -> io::Result<Outcome> {
    let calls = scale.grown_bytes / ALLOCATED;
    by_threads(files, (ROUNDS * calls * THREADS) as f64 / 1e3, 0, |thread| {
        let file = open(files, &format!("{FILE}{thread}"))?;
        (0..ROUNDS).try_for_each(|_| {
            file.set_len(0)?;
            (0..calls).try_for_each(|i| file.allocate(i * ALLOCATED, ALLOCATED))
        })
    })
}

#[cfg(test)]
mod checks {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_fill_writes_everything_once() {
        for count in [1u64 << 10, 1 << 17] {
            let all: HashSet<u64> = (0..count).map(|i| scattered(i, count)).collect();
            assert_eq!(all.len() as u64, count);
        }
    }
}
