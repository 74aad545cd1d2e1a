//! `extant-lab prealloc`: preallocation against the designs before it, and against the kernel's
//! ext4.
//!
//! The four tests are those that the kernel's tree of preallocations was published with: sparse
//! random writes of 1 KiB; filling a file by random writes of 1 KiB; the same with four sequential
//! writes before each jump; making files of 2 KiB by 64 threads. Each runs with delayed and with
//! immediate allocation: for the kernel that is a mount option, for the engine whether writes go
//! past its pages. Both sides are in one run over the same kind of image on tmpfs, and the pieces
//! of the files are counted by the same program on both, `filefrag`.

mod designs;
mod sides;
mod trials;

use crate::grid::{Grid, Values};
use crate::interval::Standing;
use crate::options::Options;
use crate::scratch;
use crate::sheet::{Name, Sheet};
use crate::side::Side;
use crate::stored::Results as _;
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

/// Results of `extant-lab prealloc`.
#[derive(Debug, Deserialize, Serialize)]
pub struct Results {
    /// The designs alone.
    designs: Option<Grid>,
    /// The tests on file systems.
    tests: Vec<Row>,
}

/// A test in one mode.
#[derive(Debug, Deserialize, Serialize)]
struct Row {
    test: Name,
    mode: Mode,
    engine: Outcome,
    kernel: Option<Outcome>,
    /// Rates in the unit of the test; none if the test gives no data to the device.
    bounds: Option<Bounds>,
}

/// Rates that no file system exceeds.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Bounds {
    /// Writes the blocks alone.
    plainly: f64,
    /// Copies the bytes into new memory and writes them from there, by a thread for each processor.
    copied: f64,
}

/// Runs it and prints tables; true if every bar is reached.
pub fn run(args: &Args) -> io::Result<bool> {
    scratch::catch_signals()?;
    let options = &args.options;
    let scale = if options.quick { Scale::QUICK } else { Scale::FULL };
    let designs = options.wants("designs").then(|| designs::grid(options.quick));
    let tests = tests(args, &scale)?;
    let results = Results { designs, tests };
    results.print(options.json)?;
    Ok(!options.strict || results.tests.iter().all(|row| row.reached() != Some(false)))
}

fn tests(args: &Args, scale: &Scale) -> io::Result<Vec<Row>> {
    let wanted: Vec<&Test> = TESTS.iter().filter(|test| args.options.wants(test.name)).collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let disk = Disk::new()?;
    let mut rows = Vec::new();
    for test in wanted {
        for mode in [Mode::Delayed, Mode::Immediate] {
            if args.mode.is_none_or(|wanted| wanted == mode) {
                eprintln!("{} {}, {} allocation", test.name, test.what, mode.name());
                rows.push(row(&disk, (test, mode), scale, args.engine)?);
            }
        }
    }
    Ok(rows)
}

fn row(
    disk: &Disk,
    (test, mode): (&Test, Mode),
    scale: &Scale,
    engine_alone: bool,
) -> io::Result<Row> {
    let measure = |side| disk.measure(side, mode, |files| (test.run)(files, scale));
    let kernel = if engine_alone { None } else { Some(measure(Side::Ext4)?) };
    let engine = measure(Side::Engine)?;
    let bounds = match engine.device_bytes {
        0 => None,
        bytes => {
            let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
            let plainly = engine.done / disk.plainly(bytes)?;
            Some(Bounds { plainly, copied: engine.done / disk.copied(bytes, threads)? })
        }
    };
    Ok(Row { test: test.name.into(), mode, engine, kernel, bounds })
}

const HEAD: [&str; 12] = [
    "",
    "allocation",
    "unit",
    "engine",
    "ext4",
    "ratio",
    "bar",
    "pieces",
    "ext4",
    "in calls",
    "blocks alone",
    "copied and written",
];

impl crate::stored::Results for Results {
    fn sheets(&self) -> Vec<Sheet> {
        let mut sheets: Vec<Sheet> = self.designs.iter().map(designs::sheet).collect();
        if !self.tests.is_empty() {
            let mut sheet = Sheet::new("the engine beside the kernel's ext4", HEAD);
            for (row, test) in self.tests.iter().filter_map(|row| Some((row, row.test()?))) {
                sheet.row(row.cells(test));
            }
            sheet.notes = self.tests.iter().filter_map(Row::counters).collect();
            sheets.push(sheet);
        }
        sheets
    }
}

impl Values for Results {
    fn grids(self) -> Vec<Grid> {
        let mut tests = Grid::new("tests", "MB/s or k/s", &["ext4", "engine"], 1);
        for row in self.tests {
            let name = format!("{}, {}", row.test, row.mode.name());
            row.kernel.iter().for_each(|kernel| tests.add(&name, 0, kernel.rate));
            tests.add(&name, 1, row.engine.rate);
        }
        self.designs.into_iter().chain([tests]).collect()
    }
}

impl Row {
    fn test(&self) -> Option<&'static Test> {
        TESTS.iter().find(|test| test.name == self.test)
    }

    fn ratio(&self) -> Option<f64> {
        Some(self.engine.rate / self.kernel?.rate)
    }

    /// Returns whether the bars are reached, in rate and pieces; None without a bar, as immediate
    /// allocation is.
    pub fn reached(&self) -> Option<bool> {
        let (test, ratio) = (self.test()?, self.ratio()?);
        let theirs = self.kernel.and_then(|kernel| kernel.pieces);
        let fewer = match (self.engine.pieces, theirs, test.pieces_bar) {
            (Some(ours), Some(theirs), Some(bar)) => ours as f64 <= theirs as f64 / bar,
            _ => true,
        };
        (self.mode == Mode::Delayed).then_some(ratio >= test.rate_bar && fewer)
    }

    fn cells(&self, test: &Test) -> [String; HEAD.len()] {
        let rate = |rate: f64| format!("{rate:.1}");
        let or_none = |cell: Option<String>| cell.unwrap_or_else(|| "-".into());
        let pieces = |outcome: &Outcome| or_none(outcome.pieces.map(|pieces| pieces.to_string()));
        let kernel = self.kernel.as_ref();
        let standing = self
            .reached()
            .map(|reached| format!("{}: {}", test.rate_bar, Standing::from(reached).word()));
        [
            format!("{} {}", test.name, test.what),
            self.mode.name().into(),
            test.unit.into(),
            rate(self.engine.rate),
            or_none(kernel.map(|kernel| rate(kernel.rate))),
            or_none(self.ratio().map(|ratio| format!("{ratio:.2}"))),
            or_none(standing),
            pieces(&self.engine),
            or_none(kernel.map(pieces)),
            format!("{:.0}%", self.engine.in_calls * 100.0),
            or_none(self.bounds.map(|bounds| rate(bounds.plainly))),
            or_none(self.bounds.map(|bounds| rate(bounds.copied))),
        ]
    }

    /// Returns a line about the engine's preallocations.
    fn counters(&self) -> Option<String> {
        let counters = self.engine.prealloc?;
        let looked = counters.visited as f64 / counters.searches.max(1) as f64;
        Some(format!(
            "{}, {}: {} preallocations made, {} given back, {} searches, {looked:.2} looked at for \
             each; shared runs had {} of {} claims",
            self.test,
            self.mode.name(),
            counters.created,
            counters.discarded,
            counters.searches,
            counters.small_hits,
            counters.small_hits + counters.small_misses,
        ))
    }
}
