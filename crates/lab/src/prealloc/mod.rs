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
mod race;
mod sides;
mod text;
mod trials;

use crate::scratch;
use crate::sheet::Name;
use crate::stored::Results as _;
use clap::Args as ClapArgs;
use serde::{Deserialize, Serialize};
use sides::{Disk, Mode, Side};
use std::io;
use trials::{Outcome, Scale, TESTS, Test};

/// Arguments of `extant-lab prealloc`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Less work of each kind, for a quick look.
    #[arg(long)]
    quick: bool,
    /// Only the comparison of designs, without file systems; needs no privileges.
    #[arg(long)]
    designs: bool,
    /// Only the tests of these names (T1 to T6), divided by commas.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only the engine: for profiles, not for ratios.
    #[arg(long)]
    engine: bool,
    /// One JSON document with every measured value, in place of tables.
    #[arg(long)]
    json: bool,
    /// Only this mode, delayed or immediate.
    #[arg(long)]
    mode: Option<Mode>,
    /// Size of the sparse file of T1, in GiB.
    #[arg(long)]
    sparse: Option<u64>,
}

/// Results of `extant-lab prealloc`.
#[derive(Debug, Deserialize, Serialize)]
pub struct Results {
    /// The designs alone.
    designs: Vec<race::Row>,
    /// The tests on file systems.
    tests: Vec<Row>,
}

/// A test in one mode.
#[derive(Debug, Deserialize, Serialize)]
struct Row {
    /// The name of the test, T1 to T6.
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
    let mut scale = if args.quick { Scale::QUICK } else { Scale::FULL };
    if let Some(gib) = args.sparse {
        scale.sparse_bytes = gib.max(1) << 30;
    }
    let designs = if args.only.is_empty() { race::rows(args.quick) } else { Vec::new() };
    let tests = if args.designs { Vec::new() } else { tests(args, &scale)? };
    let results = Results { designs, tests };
    results.print(args.json)?;
    Ok(results.tests.iter().all(|row| row.reached() != Some(false)))
}

fn tests(args: &Args, scale: &Scale) -> io::Result<Vec<Row>> {
    let disk = Disk::new()?;
    let mut rows = Vec::new();
    let wanted =
        |test: &&Test| args.only.is_empty() || args.only.iter().any(|name| name == test.name);
    for test in TESTS.iter().filter(wanted) {
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
