//! Cost of a sync of the engine while many inodes are in memory.

use crate::jobs::{self, Crowd, SYNCERS, Watch};
use crate::measure::beside;
use crate::options::Options;
use crate::pairs::Meter;
use crate::side::{Setup, make_device};
use crate::tables::designs::{Grid, open};
use crate::target::{Engine, Target};
use extant_engine::OpenOptions;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Threads that make files.
pub const CREATORS: usize = 2;

/// An unrelated file that is looked at.
const LOOKED_AT: &[u8] = b"looked-at";

/// Returns all tables.
pub fn grids(options: &Options, inodes: usize) -> io::Result<Vec<Grid>> {
    let engine = clean(inodes)?;
    let mut grids = vec![times(options, &engine)?, others(options, &engine)?];
    grids.push(memory(&engine));
    engine.unmount()?;
    Ok(grids)
}

/// Returns an engine with so many clean inodes in memory.
pub fn clean(inodes: usize) -> io::Result<Engine> {
    let setup = Setup::for_inodes(inodes as u64);
    let usual = OpenOptions::new();
    let options = setup.memory.map_or(usual.clone(), |bytes| usual.memory(bytes));
    let engine = open(&make_device(&setup)?, &options)?;
    jobs::fill(&engine, "clean", inodes, CREATORS)?;
    engine.create(LOOKED_AT)?;
    engine.sync()?;
    Ok(engine)
}

/// Wall and processor time of syncs.
fn times(options: &Options, engine: &Engine) -> io::Result<Grid> {
    let mut grid = Grid::new("syncs of a clean engine", "s", &["wall", "processor"], 0).plain();
    let cached = engine.fs().stats().inodes_cached;
    let row = |what: &str| format!("{what}, {cached} inodes");
    let meter = Meter::new();
    for _ in 0..options.runs(9, 2) {
        for (what, callers) in [("one sync", 1), ("100 syncs at once", SYNCERS)] {
            engine.sync()?;
            let wall = if callers == 1 {
                meter.start();
                let start = Instant::now();
                engine.sync()?;
                let wall = start.elapsed();
                meter.stop();
                wall
            } else {
                jobs::sync_crowd(engine, "crowd", Crowd { calls: 1, creators: 0 }, &meter)?.0
            };
            grid.add(&row(what), 0, wall.as_secs_f64());
            grid.add(&row(what), 1, meter.cost().time.as_secs_f64());
        }
    }
    Ok(grid)
}

/// Effect of syncs on other threads: creators, and a stat of an unrelated file.
fn others(options: &Options, engine: &Engine) -> io::Result<Grid> {
    let columns = ["none syncing", "100 syncing"];
    let mut grid = Grid::new("what others notice of syncs", "see rows", &columns, 1).plain();
    for _ in 0..options.runs(9, 2) {
        for (column, syncing) in [(0, 0), (1, SYNCERS)] {
            let idle = under_load(engine, options.window(), (0, syncing))?;
            grid.add("p99 of an unrelated stat, us", column, idle.p99);
            let busy = under_load(engine, options.window(), (CREATORS, syncing))?;
            grid.add("p99 of an unrelated stat, files being made, us", column, busy.p99);
            grid.add("files made in a second", column, busy.created);
        }
    }
    Ok(grid)
}

pub struct Noticed {
    /// Microseconds.
    pub p99: f64,
    /// In a second.
    pub created: f64,
}

/// Looks at a file for some time while some threads make files, and others call sync again and
/// again.
pub fn under_load(
    engine: &Engine,
    window: Duration,
    (creators, syncing): (usize, usize),
) -> io::Result<Noticed> {
    let keep_syncing = |_, over: &AtomicBool| {
        while !over.load(Ordering::Relaxed) {
            engine.sync()?;
        }
        Ok(())
    };
    let work = || {
        let start = Instant::now();
        let p99 = beside(syncing, keep_syncing, |_| look(engine, window))?;
        Ok((p99, start.elapsed().as_secs_f64()))
    };
    let ((p99, seconds), made) = jobs::beside_creators(engine, "load", creators, work)?;
    Ok(Noticed { p99, created: made as f64 / seconds.max(1e-9) })
}

/// Returns the 99th percentile of the time of a stat, in microseconds; one stat every 50
/// microseconds.
fn look(engine: &Engine, window: Duration) -> io::Result<f64> {
    let start = Instant::now();
    let mut times = Vec::new();
    while start.elapsed() < window.max(Duration::from_millis(20)) {
        let begin = Instant::now();
        engine.stat(LOOKED_AT)?;
        times.push(begin.elapsed());
        std::thread::sleep(Duration::from_micros(50));
    }
    times.sort_unstable();
    let at = (times.len() * 99 / 100).min(times.len().saturating_sub(1));
    Ok(times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e6))
}

/// Returns the process's memory for each inode in memory, everything else counted in.
fn memory(engine: &Engine) -> Grid {
    let mut grid = Grid::new("memory", "bytes", &["this process"], 0).plain();
    let resident = crate::huge::resident().unwrap_or(0) as f64;
    let inodes = engine.fs().stats().inodes_cached.max(1);
    grid.add(&format!("resident, for each of {inodes} inodes"), 0, resident / inodes as f64);
    grid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_made_beside_syncs() {
        let engine = clean(10).expect("a file system");
        under_load(&engine, Duration::ZERO, (CREATORS, SYNCERS)).expect("no error");
        // Each creator has a directory, and removes its files in the end.
        let left = |thread: usize| engine.list(format!("load/c{thread}").as_bytes());
        (0..CREATORS).for_each(|thread| assert!(left(thread).expect("a directory").is_empty()));
        engine.unmount().expect("a clean end");
    }
}
