//! Cost of a sync of the engine while many inodes are in memory.

use crate::jobs::{self, Crowd, SYNCERS, Watch};
use crate::pairs::Meter;
use crate::side::{Setup, make_device};
use crate::tables::designs::{Grid, open};
use crate::target::{Engine, Target};
use extant_engine::OpenOptions;
use extant_measure::options::Options;
use std::io;
use std::time::Instant;

/// Threads that make files.
pub const CREATORS: usize = 2;

/// Returns all tables.
pub fn grids(options: &Options, inodes: usize) -> io::Result<Vec<Grid>> {
    let engine = clean(inodes)?;
    let grids = vec![times(options, &engine)?, memory(&engine)];
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

/// Returns the process's memory for each inode in memory, everything else counted in.
fn memory(engine: &Engine) -> Grid {
    let mut grid = Grid::new("memory", "bytes", &["this process"], 0).plain();
    let resident = crate::huge::resident().unwrap_or(0) as f64;
    let inodes = engine.fs().stats().inodes_cached.max(1);
    grid.add(&format!("resident, for each of {inodes} inodes"), 0, resident / inodes as f64);
    grid
}
