//! Reference counts: a get and a put alone, and the whole engine with each design of counts.
//!
//! A path walk of the engine takes no reference, so the system calls of the published workload do
//! not show the cost of a count here. The first table therefore has the counts without an engine;
//! they are the same types that are under the engine in the second one.

use super::{Chosen, Grid, open};
use crate::jobs::{Kind, Size, Watch};
use crate::side::{Setup, make_device};
use extant_engine::OpenOptions;
use extant_engine::design::{REFS, RefsDesign};
use extant_measure::options::Options;
use extant_measure::timing::{Done, Limit, beside, run_threads};
use extant_sync::CachePadded;
use extant_sync::atomic::{AtomicI32, Ordering};
use extant_sync::lockref::Lockref;
use std::io;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The designs; the last one exists alone only.
const DESIGNS: [&str; 4] = ["lock", "cas_split", "lockref", "atomic"];
const REFERENCES: [RefsDesign; 3] = [RefsDesign::Lock, RefsDesign::Split, RefsDesign::Lockref];

/// The engine's.
const CHOSEN: usize = 2;

const THREADS: [usize; 4] = [1, 2, 4, 16];

/// Times a second that a holder takes the lock of each shared object.
const RATES: [u64; 3] = [1_000, 10_000, 100_000];

/// How long a holder holds it.
const HOLD: Duration = Duration::from_nanos(500);

/// Shared objects.
const SHARED: usize = 2;

/// Gets and puts of one operation, so that the clock is looked at seldom.
const BATCH: u64 = 64;

/// References that each object has all the time, as a parent has from its children.
const BASE: i32 = 10;

/// Workloads of the whole engine that take references.
const WORKLOADS: [&str; 2] = ["open", "stat-up"];

#[cfg(feature = "contention")]
pub fn grids(options: &Options) -> io::Result<Vec<Grid>> {
    Ok(vec![counted::grid(options)?])
}

#[cfg(not(feature = "contention"))]
pub fn grids(options: &Options) -> io::Result<Vec<Grid>> {
    Ok(vec![alone(options)?, whole(options)?])
}

/// A count of references.
enum Count {
    /// With a lock, in the design that was chosen when it was made.
    Locked(Lockref),
    /// Without one: only for counts that no thread tests before it acts.
    Atomic(AtomicI32),
}

impl Count {
    fn new(design: usize) -> Count {
        let Some(design) = REFERENCES.get(design) else {
            return Count::Atomic(AtomicI32::new(BASE));
        };
        REFS.set(*design);
        Count::Locked(Lockref::new(BASE))
    }

    #[inline]
    fn get_and_put(&self) {
        match self {
            Count::Locked(count) => {
                count.get();
                if count.put_return() < 0 {
                    // The lock is held.
                    let mut guard = count.lock();
                    let left = guard.count() - 1;
                    guard.set_count(left);
                }
            }
            // Relaxed: the second reference is made from one that the caller has.
            Count::Atomic(count) => {
                count.fetch_add(1, Ordering::Relaxed);
                count.fetch_sub(1, Ordering::Release);
            }
        }
    }

    fn count(&self) -> i32 {
        match self {
            Count::Locked(count) => count.count(),
            Count::Atomic(count) => count.load(Ordering::Acquire),
        }
    }

    /// Holds the lock for a while, if there is one.
    fn hold(&self) {
        if let Count::Locked(count) = self {
            let _guard = count.lock();
            let start = Instant::now();
            while start.elapsed() < HOLD {
                std::hint::spin_loop();
            }
        }
    }
}

/// Assignment of objects to threads.
#[derive(Clone, Copy)]
enum Use {
    /// All threads the same few.
    Shared,
    /// Each thread its own.
    Own,
    /// All threads use the same few, and another thread takes their locks so many times a second.
    Held(u64),
    /// As users of AIM7's `short`: a working directory's four parents, two files that all open, one
    /// of each user's own.
    Users,
}

fn uses() -> Vec<(String, Use)> {
    let fixed =
        [("shared objects", Use::Shared), ("own objects", Use::Own), ("users' paths", Use::Users)];
    let held =
        RATES.into_iter().map(|rate| (format!("shared, lock taken {rate}/s"), Use::Held(rate)));
    fixed.into_iter().map(|(name, how)| (name.to_owned(), how)).chain(held).collect()
}

/// Measures the counts alone.
#[cfg(any(test, not(feature = "contention")))]
fn alone(options: &Options) -> io::Result<Grid> {
    let _chosen = Chosen::hold();
    let mut grid = Grid::new("references: a get and a put", "pairs/s", &DESIGNS, CHOSEN);
    let rows = options.rows(&THREADS, &uses());
    options.fill(&mut grid, &rows, |(threads, how), design| {
        Ok(measure(design, *how, (*threads, options.window()), &())?.rate())
    })?;
    Ok(grid)
}

/// Measures the whole engine, whose inodes have counts of each design.
#[cfg(any(test, not(feature = "contention")))]
fn whole(options: &Options) -> io::Result<Grid> {
    let _chosen = Chosen::hold();
    let base = make_device(&Setup::default())?;
    let mut engines = Vec::new();
    for design in REFERENCES {
        REFS.set(design);
        engines.push(open(&base, &OpenOptions::new())?);
    }
    let names = &DESIGNS[..REFERENCES.len()];
    let mut grid = Grid::new("references: the whole engine", "operations/s", names, CHOSEN);
    let named = |word: &&str| Kind::named(word).map(|kind| (kind.name, kind));
    let works = WORKLOADS.iter().map(named).collect::<io::Result<Vec<_>>>()?;
    let size = Size { window: options.window(), ..Size::QUICK };
    options.fill(&mut grid, &options.rows(&THREADS, &works), |(threads, kind), design| {
        // For inodes that are made now.
        REFS.set(REFERENCES[design]);
        Ok(kind.play(&engines[design], (*threads, u64::MAX), &size, &())?.rate())
    })?;
    engines.into_iter().try_for_each(|engine| engine.unmount())?;
    Ok(grid)
}

/// Objects that a user's round visits, and how many of them all users share.
const ROUND: usize = 7;
const ROUND_SHARED: usize = 6;

/// Pairs of a get and a put that threads make.
fn measure(
    design: usize,
    how: Use,
    (threads, window): (usize, Duration),
    watch: &dyn Watch,
) -> io::Result<Done> {
    let shared = if matches!(how, Use::Users) { ROUND_SHARED } else { SHARED };
    let objects: Vec<CachePadded<Count>> =
        (0..shared + threads).map(|_| CachePadded::new(Count::new(design))).collect();
    let at = |thread: usize, n: u64| match how {
        Use::Shared | Use::Held(_) => n as usize % SHARED,
        Use::Own => shared + thread,
        Use::Users => match n as usize % ROUND {
            own if own == ROUND_SHARED => shared + thread,
            common => common,
        },
    };
    let rate = if let Use::Held(rate) = how { rate } else { 0 };
    let holder = |_, over: &AtomicBool| {
        hold(&objects[..shared], rate, over);
        Ok(())
    };
    let done = beside(usize::from(rate > 0), holder, |_| {
        watch.start();
        let done = run_threads(threads, Limit::time(window), |thread, n| {
            if n == 0 {
                watch.thread();
            }
            (0..BATCH).for_each(|i| objects[at(thread, n * BATCH + i)].get_and_put());
            Ok(())
        });
        watch.stop();
        done
    })?;
    if objects.iter().all(|object| object.count() == BASE) {
        Ok(Done { ops: done.ops.iter().map(|ops| ops * BATCH).collect(), ..done })
    } else {
        Err(io::Error::other("references were lost"))
    }
}

/// Takes the objects' locks `rate` times a second each, and holds them for a while, until `over`.
fn hold(objects: &[CachePadded<Count>], rate: u64, over: &AtomicBool) {
    let start = Instant::now();
    let mut taken = 0;
    while !over.load(Ordering::Relaxed) {
        if start.elapsed().as_secs_f64() * rate as f64 >= f64::from(taken) {
            objects.iter().for_each(|object| object.hold());
            taken += 1;
        } else {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Writes and locks of a get and a put on memory that threads share.
#[cfg(feature = "contention")]
mod counted {
    use super::*;
    use crate::contention::Counter;
    use extant_sync::contention::FELL_BACK;

    /// Counts for each pair of a get and a put.
    pub fn grid(options: &Options) -> io::Result<Grid> {
        let title = "references: what a get and a put do";
        let mut grid = Grid::new(title, "see rows", &DESIGNS, CHOSEN).plain();
        for (name, (threads, how)) in options.rows(&THREADS, &uses()) {
            for design in 0..DESIGNS.len() {
                let counter = Counter::default();
                let done = measure(design, how, (threads, options.window()), &counter)?;
                let pairs = done.ops.iter().sum::<u64>().max(1) as f64;
                let report = counter.into_report();
                let fell = report.events.get(FELL_BACK).copied().unwrap_or(0);
                let locks = report.locks() + fell;
                let counts = [report.writes(), report.failed(), locks].map(|n| n as f64 / pairs);
                for (what, count) in
                    ["writes", "failed exchanges", "locks, falls back"].into_iter().zip(counts)
                {
                    grid.add(&format!("{name}: {what}"), design, count);
                }
            }
        }
        Ok(grid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_design_loses_references() {
        let options = Options::least(&[3]);
        for grid in [alone(&options), whole(&options)] {
            let rows = grid.expect("counts are right").rows;
            assert!(rows.iter().flat_map(|(_, cells)| cells.iter().flatten()).all(|r| *r > 0.0));
        }
    }
}
