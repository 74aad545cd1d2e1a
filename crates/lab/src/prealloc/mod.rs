//! `extant-lab prealloc`: the engine's preallocation beside that of the kernel's ext4.
//!
//! The four tests are those that the kernel's tree of preallocations was published with: sparse
//! random writes of 1 KiB; filling a file by random writes of 1 KiB; the same with four sequential
//! writes before each jump; making files of 2 KiB by 64 threads. Each runs with delayed and with
//! immediate allocation: for the kernel that is a mount option, for the engine whether writes go
//! past its pages. Both sides are in one run over the same kind of image on tmpfs, and the pieces
//! of the files are counted by the same program on both, `filefrag`.

mod sides;
mod trials;

use crate::side::Side;
use extant_measure::grid::Grid;
use extant_measure::interval::Verdict;
use extant_measure::options::{Options, word};
use extant_measure::sheet::Sheet;
use extant_measure::stored::Results;
use extant_measure::timing::turn;
use serde::{Deserialize, Serialize};
use sides::{Disk, Mode};
use std::io;
use trials::{Outcome, Scale, TESTS, Test};

/// Arguments of `extant-lab prealloc`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// Only the engine: for profiles, not for ratios.
    #[arg(long)]
    engine: bool,
    /// Only this mode, delayed or immediate.
    #[arg(long)]
    mode: Option<Mode>,
}

/// Results of `extant-lab prealloc`: rates, pieces, times of calls, bounds, and counters of the
/// engine.
#[derive(Debug, Deserialize, Serialize)]
pub struct Tests(Vec<Grid>);

/// The sides, the engine last.
const SIDES: [&str; 2] = ["ext4", "engine"];
const KERNEL: usize = 0;
const ENGINE: usize = 1;

/// Tests with a bar for immediate allocation, too.
const IMMEDIATE: [(&str, f64); 1] = [("T2", 1.2)];

/// Runs it and prints tables; true if every bar is reached.
pub fn run(args: &Args) -> io::Result<bool> {
    args.options.refuse(&["threads"])?;
    let scale = if args.options.quick { &Scale::QUICK } else { &Scale::FULL };
    tests(args, scale)?.report(&args.options)
}

fn tests(args: &Args, scale: &Scale) -> io::Result<Tests> {
    let bounds = ["blocks alone", "copied and written"];
    let counters =
        ["made", "given back", "searches", "looked at", "claims that shared runs had", "claims"];
    let mut tests = Tests(vec![
        Grid::new("tests", "MB/s or k/s", &SIDES, ENGINE),
        Grid::new("pieces of the files", "pieces", &SIDES, ENGINE).less(),
        Grid::new("calls before the sync", "share of the time", &SIDES, ENGINE).plain(),
        Grid::new("bounds of the rates", "MB/s or k/s", &bounds, 0).plain(),
        Grid::new("preallocations of the engine", "each", &counters, 0).plain(),
    ]);
    let wanted = TESTS.iter().filter(|test| args.options.wants(test.name));
    let disk = Disk::new()?;
    let modes = [Mode::Delayed, Mode::Immediate].into_iter();
    let modes = modes.filter(|mode| args.mode.is_none_or(|wanted| wanted == *mode));
    let rows: Vec<_> =
        wanted.flat_map(|test| modes.clone().map(move |mode| (test, mode))).collect();
    for run in 0..args.options.runs(3, 1) {
        for (test, mode) in &rows {
            eprintln!("run {}: {} {}, {} allocation", run + 1, test.name, test.what, word(*mode));
            let sides: &[_] = if args.engine { &[ENGINE] } else { &[KERNEL, ENGINE] };
            let sides = turn(run, sides.len()).into_iter().map(|at| sides[at]);
            tests.measure(&disk, (test, *mode), scale, sides)?;
        }
    }
    Ok(tests)
}

fn row_name(test: &Test, mode: Mode) -> String {
    format!("{}, {}", test.name, word(mode))
}

impl Tests {
    /// Measures a test on sides, by their columns.
    fn measure(
        &mut self,
        disk: &Disk,
        (test, mode): (&Test, Mode),
        scale: &Scale,
        sides: impl Iterator<Item = usize>,
    ) -> io::Result<()> {
        let row = row_name(test, mode);
        let [rates, pieces, calls, bounds, counters] = &mut self.0[..] else { return Ok(()) };
        let mut of_engine = None;
        for column in sides {
            let side = if column == ENGINE { Side::Engine } else { Side::Ext4 };
            let done = disk.measure(side, mode, |files| (test.run)(files, scale))?;
            rates.add(&row, column, done.rate);
            done.pieces.iter().for_each(|n| pieces.add(&row, column, *n as f64));
            calls.add(&row, column, done.in_calls);
            of_engine = if column == ENGINE { Some(done) } else { of_engine };
        }
        let Some(Outcome { done, device_bytes, prealloc, .. }) = of_engine else { return Ok(()) };
        if device_bytes > 0 {
            let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
            bounds.add(&row, 0, done / disk.plainly(device_bytes)?);
            bounds.add(&row, 1, done / disk.copied(device_bytes, threads)?);
        }
        let Some(stats) = prealloc else { return Ok(()) };
        let claims = stats.small_hits + stats.small_misses;
        let values = [stats.created, stats.discarded, stats.searches, stats.visited];
        let values = values.into_iter().chain([stats.small_hits, claims]);
        values.enumerate().for_each(|(column, value)| counters.add(&row, column, value as f64));
        Ok(())
    }
}

impl Results for Tests {
    fn sheets(&self) -> Vec<Sheet> {
        let mut sheets = self.0.sheets();
        if let Some(last) = sheets.last_mut() {
            last.notes = self.verdicts().iter().map(Verdict::line).collect();
        }
        sheets
    }

    /// Returns how tests stand to their bars, in rate and pieces.
    fn verdicts(&self) -> Vec<Verdict> {
        let verdict = |grid: usize, (test, mode): (&Test, Mode), bar: f64, what: &str| {
            let (grid, row) = (&self.0[grid], row_name(test, mode));
            let gain = grid.gain(grid.row(&row)?, KERNEL)?;
            Some(Verdict::of(format!("{row}, {}: {bar} times {what}", test.what), gain, bar))
        };
        let of = |test: &Test| {
            let delayed = (test, Mode::Delayed);
            let pieces = test.pieces_bar.and_then(|bar| verdict(1, delayed, bar, "fewer pieces"));
            let immediate = IMMEDIATE.iter().find(|(name, _)| *name == test.name);
            let immediate = immediate.map(|(_, bar)| ((test, Mode::Immediate), *bar));
            let rates = [(delayed, test.rate_bar)].into_iter().chain(immediate);
            let rates = rates.map(|(row, bar)| verdict(0, row, bar, "the kernel's rate"));
            rates.chain([pieces]).flatten().collect::<Vec<_>>()
        };
        TESTS.iter().flat_map(of).collect()
    }

    fn grids(self) -> Vec<Grid> {
        self.0
    }
}
