//! Ways to find the writes for which a sync must wait.

use super::designs::{Eager, Inode, Lazy, Serial, WalkAll, Written};
use crate::measure::{Limit, run_threads, turn};
use crate::options::Options;
use crate::tables::{Grid, broken};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const DESIGNS: [&str; 6] =
    ["walk all", "walk, serial", "lazy", "lazy, trimmed", "eager", "eager, serial"];

/// The engine's.
const CHOSEN: usize = 4;

/// Callers of sync at once.
const SYNCERS: usize = 100;

/// Threads that write meanwhile, and how long a write takes.
const WRITERS: usize = 2;
const WRITE: Duration = Duration::from_micros(20);

/// Inodes that each writer writes in turn.
const OF_WRITER: usize = 2000;

/// How often a thread comes by and trims.
const PERIOD: Duration = Duration::from_millis(5);

fn design(column: usize, inodes: &[Arc<Inode>]) -> Box<dyn Written> {
    inodes.iter().for_each(|inode| inode.forget());
    match column {
        0 => Box::new(WalkAll::new(inodes)),
        1 => Box::new(Serial::new(WalkAll::new(inodes))),
        2 => Box::new(Lazy::new(false)),
        3 => Box::new(Lazy::new(true)),
        4 => Box::new(Eager::new()),
        _ => Box::new(Serial::new(Eager::new())),
    }
}

/// Time of the syncs, and rate of writers during endless syncs.
pub fn grids(options: &Options) -> io::Result<Vec<Grid>> {
    let sizes: &[usize] =
        if options.quick { &[1000, 10_000] } else { &[10_000, 100_000, 1_000_000] };
    let mut times = Grid::new("100 syncs at once", "s", &DESIGNS, CHOSEN).less();
    let mut rates = Grid::new(
        "inodes written while two threads sync all the time",
        "inodes/s",
        &DESIGNS,
        CHOSEN,
    );
    let mut kept =
        Grid::new("inodes remembered after all were written once", "inodes", &DESIGNS, CHOSEN)
            .plain();
    for &size in sizes {
        let inodes: Vec<Arc<Inode>> =
            (0..size.max(WRITERS * OF_WRITER)).map(|_| Arc::default()).collect();
        for run in 0..options.runs(9, 2) {
            for column in turn(run, DESIGNS.len()) {
                for (name, writers) in [("nothing written", 0), ("two writers", WRITERS)] {
                    let design = design(column, &inodes);
                    let time = crowd(&*design, &inodes, writers)
                        .map_err(|e| broken(DESIGNS[column], &e.to_string()))?;
                    times.add(&format!("{size} inodes, {name}"), column, time.as_secs_f64());
                }
                let design = design(column, &inodes);
                rates.add(
                    &format!("{size} inodes"),
                    column,
                    while_syncing(&*design, &inodes, options.window())?,
                );
                kept.add(&format!("{size} inodes"), column, remembered(column, &inodes) as f64);
            }
        }
    }
    Ok(vec![times, rates, kept])
}

/// Runs `work` while threads write inodes of their own, and one thread trims. `latest` has the
/// sequence of each writer, odd during a write.
fn writing<R: Send>(
    design: &dyn Written,
    inodes: &[Arc<Inode>],
    writers: usize,
    work: impl FnOnce(&[AtomicU64], &[AtomicU64]) -> R + Send,
) -> R {
    let over = AtomicBool::new(false);
    let counts = || (0..writers).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let (latest, written) = (counts(), counts());
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let (over, latest, written) = (&over, &latest[writer], &written[writer]);
            scope.spawn(move || {
                let own = &inodes[writer * OF_WRITER..(writer + 1) * OF_WRITER];
                for inode in own.iter().cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
                    // An odd sequence lies within the write: a sync that saw it must wait for the
                    // write.
                    design.start(inode);
                    latest.fetch_add(1, Ordering::AcqRel);
                    pause(WRITE);
                    latest.fetch_add(1, Ordering::AcqRel);
                    design.end(inode);
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                design.trim();
                std::thread::sleep(PERIOD);
            }
        });
        let outcome = work(&latest, &written);
        over.store(true, Ordering::Relaxed);
        outcome
    })
}

fn pause(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::thread::yield_now();
    }
}

/// Runs all syncers once; each must return after the writes that were in progress at its start.
fn crowd(design: &dyn Written, inodes: &[Arc<Inode>], writers: usize) -> io::Result<Duration> {
    writing(design, inodes, writers, |latest, _| {
        let once = Limit { ops: 1, time: Duration::MAX };
        run_threads(SYNCERS, once, |_, _| {
            let before: Vec<u64> = latest.iter().map(|l| l.load(Ordering::Acquire)).collect();
            design.sync();
            let outlasted = |(writer, before): (&AtomicU64, &u64)| {
                before % 2 == 0 || writer.load(Ordering::Acquire) > *before
            };
            if latest.iter().zip(&before).all(outlasted) {
                Ok(())
            } else {
                Err(io::Error::other("a sync ended before the writes that it had to wait for"))
            }
        })
        .map(|done| done.elapsed)
    })
}

/// How many inodes writers write in a second while two threads sync all the time.
fn while_syncing(design: &dyn Written, inodes: &[Arc<Inode>], window: Duration) -> io::Result<f64> {
    writing(design, inodes, WRITERS, |_, written| {
        let total = || written.iter().map(|w| w.load(Ordering::Relaxed)).sum::<u64>();
        let before = total();
        let done = run_threads(2, Limit::time(window), |_, _| {
            design.sync();
            Ok(())
        })?;
        // At least one, so that a rate of nothing can be compared.
        Ok((total() - before).max(1) as f64 / done.elapsed.as_secs_f64().max(1e-9))
    })
}

/// Returns the number of inodes that a design keeps after all writes have ended.
fn remembered(column: usize, inodes: &[Arc<Inode>]) -> usize {
    let fresh: Vec<Arc<Inode>> = (0..inodes.len().min(10_000)).map(|_| Arc::default()).collect();
    let design = design(column, &fresh);
    fresh.iter().for_each(|inode| {
        design.start(inode);
        design.end(inode);
    });
    design.trim();
    design.remembered()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A design with a defect: its sync waits for nothing.
    struct Hasty;

    impl Written for Hasty {
        fn started(&self, _: &Arc<Inode>) {}

        fn ended(&self, _: &Arc<Inode>) {}

        fn sync(&self) {}

        fn remembered(&self) -> usize {
            0
        }
    }

    #[test]
    fn a_sync_that_ends_before_its_writes_is_refused() {
        let inodes: Vec<Arc<Inode>> = (0..WRITERS * OF_WRITER).map(|_| Arc::default()).collect();
        let hasty = (0..20).any(|_| crowd(&Hasty, &inodes, WRITERS).is_err());
        assert!(hasty, "no sync was found to be too early");
    }
}
