//! The engine beside the kernel's ext4 in pairs: both are open at once, each workload is run on the
//! one and at once on the other, the order changes from run to run, and ratios are taken pair by
//! pair.

mod cost;
mod judge;
mod text;

use crate::interval::{Interval, Standing};
use crate::jobs::{self, Crowd, KINDS, Kind, SYNCERS, Size};
use crate::measure::Done;
use crate::scratch;
use crate::side::{Running, Setup, Side};
use crate::stored::Results;
use cost::Cost;
use std::io;
use std::time::Duration;

pub use cost::{Meter, Metered};
pub use judge::{Verdict, judge};

/// Numbers of threads.
pub const THREADS: [usize; 4] = [1, 2, 4, 16];

/// The two sides; ratios are of the first to the second.
const SIDES: [Side; 2] = [Side::Engine, Side::Ext4];

/// Threads that create files while others call sync.
const CREATORS: usize = 2;

/// Rows of simultaneous callers of sync: name, callers, and the required multiple of the kernel's
/// rate.
const SYNCS: [(&str, Crowd, f64); 2] = [
    ("100 syncs, clean inodes", Crowd { calls: 200, creators: 0 }, 10.0),
    ("100 syncs, files being made", Crowd { calls: 10, creators: CREATORS }, 20.0),
];

/// Arguments of `extant-lab pairs`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Pairs of each row.
    #[arg(long, default_value_t = 15)]
    pub runs: usize,
    /// Less work of each kind and fewer pairs.
    #[arg(long)]
    pub quick: bool,
    /// Next to nothing of each kind, for tests.
    #[arg(long, hide = true)]
    pub tiny: bool,
    /// Only rows whose names contain this; may be given several times.
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// One JSON document with every measured value, in place of tables.
    #[arg(long)]
    pub json: bool,
    /// End with 1 if a bar is not reached.
    #[arg(long)]
    pub strict: bool,
}

/// How much is done.
struct Plan<'a> {
    args: &'a Args,
    runs: usize,
    size: Size,
    clean_inodes: usize,
}

impl Plan<'_> {
    fn new(args: &Args) -> Plan<'_> {
        match args.quick {
            _ if args.tiny => {
                Plan { args, runs: args.runs.clamp(1, 5), size: Size::TINY, clean_inodes: 500 }
            }
            true => {
                Plan { args, runs: args.runs.clamp(1, 5), size: Size::QUICK, clean_inodes: 50_000 }
            }
            false => {
                Plan { args, runs: args.runs.max(1), size: Size::FULL, clean_inodes: 1_000_000 }
            }
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.args.only.is_empty() || self.args.only.iter().any(|word| name.contains(word.as_str()))
    }

    fn tell(&self, what: std::fmt::Arguments<'_>) {
        if !self.args.json {
            eprintln!("{what}");
        }
    }
}

/// Values of one side in a row, one for each pair.
#[derive(Clone, Debug, Default, serde::Deserialize, serde::Serialize)]
pub struct Values {
    /// Operations per second.
    pub rate: Vec<f64>,
    /// Microseconds of processor time for each operation.
    pub cpu: Vec<f64>,
    /// Instructions for each operation, where they are counted.
    pub instructions: Vec<f64>,
}

impl Values {
    fn add(&mut self, ops: u64, elapsed: Duration, cost: Cost) {
        let ops = ops.max(1) as f64;
        self.rate.push(ops / elapsed.as_secs_f64().max(1e-9));
        self.cpu.push(cost.time.as_secs_f64() * 1e6 / ops);
        self.instructions.extend(cost.instructions.map(|n| n as f64 / ops));
    }
}

/// A row: a workload with a number of threads.
#[derive(Clone, Debug, serde::Deserialize, serde::Serialize)]
pub struct Row {
    /// The workload.
    pub name: String,
    /// Its threads.
    pub threads: usize,
    /// How many times the kernel's rate it has to be.
    pub bar: Option<f64>,
    /// Ours and the kernel's.
    pub sides: [Values; 2],
}

impl Row {
    /// Our rate to the kernel's.
    pub fn ratio(&self) -> Option<Interval> {
        Interval::of_pairs(&self.sides[0].rate, &self.sides[1].rate)
    }
}

/// Returns a row, which is made at its first use.
fn row<'a>(rows: &'a mut Vec<Row>, name: &str, threads: usize, bar: Option<f64>) -> &'a mut Row {
    let known = rows.iter().position(|row| row.name == name && row.threads == threads);
    let at = known.unwrap_or_else(|| {
        rows.push(Row { name: name.to_owned(), threads, bar, sides: Default::default() });
        rows.len() - 1
    });
    &mut rows[at]
}

/// Runs the command; whether every bar is reached.
pub fn run(args: &Args) -> io::Result<bool> {
    let meter = Meter::new();
    scratch::catch_signals()?;
    let plan = Plan::new(args);
    let mut rows = Vec::new();
    operations(&plan, &meter, &mut rows)?;
    syncs(&plan, &meter, &mut rows)?;
    if rows.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "`--only` names no row"));
    }
    rows.print(args.json)?;
    Ok(!args.strict || judge(&rows).iter().all(|v| v.standing == Standing::Reached))
}

fn start(setup: &Setup) -> io::Result<Vec<Box<dyn Running>>> {
    SIDES.iter().map(|side| side.start_with(setup)).collect()
}

/// Returns the sides in the order of this turn.
fn order(turn: usize) -> [usize; 2] {
    if turn.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

fn operations(plan: &Plan<'_>, meter: &Meter, rows: &mut Vec<Row>) -> io::Result<()> {
    let kinds: Vec<&Kind> = KINDS.iter().filter(|kind| plan.wants(kind.name)).collect();
    if kinds.is_empty() {
        return Ok(());
    }
    let sides = start(&Setup::default())?;
    for run in 0..plan.runs {
        plan.tell(format_args!("pair {} of {}", run + 1, plan.runs));
        for kind in &kinds {
            for threads in THREADS {
                let row = row(rows, kind.name, threads, kind.bar);
                for side in order(run) {
                    let (done, cost) = metered(kind, &*sides[side], threads, &plan.size, meter)?;
                    row.sides[side].add(done.ops.iter().sum(), done.elapsed, cost);
                }
            }
        }
    }
    sides.into_iter().try_for_each(|side| side.stop())
}

fn metered(
    kind: &Kind,
    side: &dyn Running,
    threads: usize,
    size: &Size,
    meter: &Meter,
) -> io::Result<(Done, Cost)> {
    let metered = Metered::new(meter);
    let done = kind
        .play(side.target(), (threads, u64::MAX), size, &metered)
        .map_err(|e| io::Error::new(e.kind(), format!("{}, {threads} threads: {e}", kind.name)))?;
    Ok((done, metered.cost()))
}

/// Callers of sync at once, with many clean inodes in memory.
fn syncs(plan: &Plan<'_>, meter: &Meter, rows: &mut Vec<Row>) -> io::Result<()> {
    let wanted: Vec<_> = SYNCS.iter().filter(|(name, ..)| plan.wants(name)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    plan.tell(format_args!("making {} files on each side", plan.clean_inodes));
    let sides = start(&Setup::for_inodes(plan.clean_inodes as u64))?;
    sides.iter().try_for_each(|side| jobs::fill(side.target(), "clean", plan.clean_inodes, 2))?;
    for run in 0..plan.runs {
        plan.tell(format_args!("pair {} of {}", run + 1, plan.runs));
        for (name, crowd, bar) in &wanted {
            let row = row(rows, name, SYNCERS, Some(*bar));
            for side in order(run) {
                let metered = Metered::new(meter);
                let (elapsed, _) =
                    jobs::sync_crowd(sides[side].target(), "crowd", *crowd, &metered)?;
                row.sides[side].add(crowd.syncs(), elapsed, metered.cost());
            }
        }
    }
    sides.into_iter().try_for_each(|side| side.stop())
}
