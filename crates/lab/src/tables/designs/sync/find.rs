//! Ways to find the writes for which a sync must wait, under the whole engine.

use super::engine::{CREATORS, clean};
use crate::jobs::{self, Crowd};
use crate::pairs::Meter;
use crate::tables::designs::{Chosen, Grid};
use crate::target::{Engine, How, Target};
use extant_engine::design::{FIND, FindWrites, InodeList, LIST};
use extant_measure::options::Options;
use std::io;

const DESIGNS: [(&str, FindWrites); 6] = [
    ("walk all", FindWrites::Walk),
    ("walk, serial", FindWrites::WalkSerial),
    ("lazy", FindWrites::Lazy),
    ("lazy, trimmed", FindWrites::LazyTrimmed),
    ("eager", FindWrites::Eager),
    ("eager, serial", FindWrites::EagerSerial),
];

/// The engine's.
const CHOSEN: usize = 4;

/// Files that are written one after the other.
pub const WRITTEN: usize = 500;

/// Time of syncs, files that are made beside them, inodes that designs remember, and processor time
/// of syncs.
pub fn grids(options: &Options) -> io::Result<Vec<Grid>> {
    let _chosen = Chosen::hold();
    let sizes: &[usize] =
        if options.quick { &[1000, 10_000] } else { &[10_000, 100_000, 1_000_000] };
    let names = DESIGNS.map(|(name, _)| name);
    let mut times = Grid::new("100 syncs at once", "s", &names, CHOSEN).less();
    let mut costs = Grid::new("processor time of 100 syncs", "s", &names, CHOSEN).less();
    let meter = Meter::new();
    let title = "inodes written while two threads sync all the time";
    let mut rates = Grid::new(title, "inodes/s", &names, CHOSEN);
    let title = format!("inodes remembered after {WRITTEN} files were written");
    let mut kept = Grid::new(title, "inodes", &names, CHOSEN).plain();
    // Inodes are on the list that is walked from their beginning.
    LIST.set(InodeList::PerFs);
    for &size in sizes {
        let engine = clean(size)?;
        let works = [("nothing written", 0), ("two writers", CREATORS)];
        let works = works.map(|(name, creators)| (format!("{size} inodes, {name}"), creators));
        let row = [(format!("{size} inodes"), ())];
        options.fill(&mut times, &works, |creators, column| {
            choose(&engine, column)?;
            let crowd = Crowd { calls: 1, creators: *creators };
            let time = jobs::sync_crowd(&engine, "crowd", crowd, &meter)?.0.as_secs_f64();
            if *creators == 0 {
                let row = format!("{size} inodes, nothing written");
                costs.add(&row, column, meter.cost().time.as_secs_f64());
            }
            Ok(time)
        })?;
        options.fill(&mut rates, &row, |(), column| {
            choose(&engine, column)?;
            Ok(jobs::under_load(&engine, options.window(), (CREATORS, 2))?.created)
        })?;
        options.fill(&mut kept, &row, |(), column| {
            choose(&engine, column)?;
            Ok(remembered(&engine)? as f64)
        })?;
        choose(&engine, CHOSEN)?;
        engine.unmount()?;
    }
    Ok(vec![times, rates, kept, costs])
}

/// Chooses a design while nothing is under writeback.
fn choose(engine: &Engine, column: usize) -> io::Result<()> {
    engine.sync()?;
    FIND.set(DESIGNS[column].1);
    Ok(())
}

/// Writes files, each with an fsync, and returns the number of inodes that the design remembers.
fn remembered(engine: &Engine) -> io::Result<usize> {
    for n in 0..WRITTEN {
        let name = format!("clean/written{n}").into_bytes();
        jobs::ensure_file(engine, &name)?;
        let file = engine.open(&name, How::Write)?;
        file.write_at(0, &[7; 4096])?;
        file.fsync()?;
    }
    Ok(engine.fs().stats().pages.writeback_files)
}
