//! Preallocations of a file in a tree, in a list, and in a capped list, under the whole engine.
//!
//! Blocks are written at random places of a large file, past the engine's pages, so that each write
//! searches for a preallocation and makes one.

use super::{Chosen, Grid};
use crate::side::make_sparse;
use crate::target::{Engine, How, Target};
use extant_blocks::SparseDevice;
use extant_engine::design::{RUNS, RunsDesign};
use extant_engine::{Fs, OpenOptions};
use extant_measure::options::Options;
use extant_sync::SplitMix64;
use std::io;
use std::sync::Arc;
use std::time::Instant;

const DESIGNS: [(&str, RunsDesign); 3] = [
    ("tree", RunsDesign::Tree),
    ("list capped at 512", RunsDesign::CappedList),
    ("list", RunsDesign::List),
];

/// Bytes of the device: space for a window around each block that is written.
const DEVICE: u64 = 1 << 40;

/// Blocks of 4 KiB in the file: 64 GiB.
const BLOCKS: u64 = 1 << 24;
const BLOCK: u64 = 4096;

/// Values of a design.
const ROWS: [&str; 5] = [
    "time of a write, ns",
    "looked at by a write",
    "locks of a write",
    "preallocations at the end",
    "writes",
];

pub fn grids(options: &Options) -> io::Result<Vec<Grid>> {
    let _chosen = Chosen::hold();
    let writes = if options.quick { 4_000 } else { 30_000 };
    let names = DESIGNS.map(|(name, _)| name);
    let mut all = Grid::new("preallocations of sparse writes", "see rows", &names, 0).less();
    let base = make_sparse(DEVICE, true)?;
    let [time, rest @ ..] = ROWS;
    let mut grid = all.clone();
    options.fill(&mut grid, &[(time.to_owned(), ())], |(), design| {
        RUNS.set(DESIGNS[design].1);
        let values = write(&base, writes)?;
        rest.iter().zip(&values[1..]).for_each(|(row, value)| all.add(row, design, *value));
        Ok(values[0])
    })?;
    grid.rows.append(&mut all.rows);
    Ok(vec![grid])
}

/// Returns the values of [`ROWS`].
fn write(base: &SparseDevice, writes: u64) -> io::Result<[f64; 5]> {
    let engine = Engine::direct(Fs::open_device(Arc::new(base.fork()), &OpenOptions::new())?);
    engine.create(b"file")?;
    let file = engine.open(b"file", How::Write)?;
    let mut random = SplitMix64::new(1);
    let start = Instant::now();
    (0..writes)
        .try_for_each(|_| file.write_at(random.below(BLOCKS) * BLOCK, &[1; BLOCK as usize]))?;
    let nanos = start.elapsed().as_nanos() as f64;
    let stats = engine.fs().stats().prealloc;
    drop(file);
    engine.unmount()?;
    // Each search takes the lock of all, and in a list that of each preallocation on its way.
    let locks = if RUNS.get() == RunsDesign::Tree { 0 } else { stats.visited } + stats.searches;
    let each = |all: f64| all / writes as f64;
    let [time, visited, locks] = [nanos, stats.visited as f64, locks as f64].map(each);
    Ok([time, visited, locks, stats.live as f64, writes as f64])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_look_at_many_and_the_tree_at_few() {
        let grids = grids(&Options::least(&[])).expect("no error");
        let row = |at: usize| grids[0].rows[at].1.iter().map(|runs| runs[0]).collect::<Vec<_>>();
        let [looked, left] = [row(1), row(3)];
        assert!(looked[0] < 5.0 && looked[1] > 100.0 && looked[2] > looked[1], "{looked:?}");
        assert!(left[0] > 1000.0 && left[1] <= 640.0 && left[2] > 1000.0, "{left:?}");
    }
}
