//! Runs: every scenario on every side, turn about, several times.

use crate::bars;
use crate::huge::{self, Huge};
use crate::side::Side;
use crate::workload::{SCENARIOS, Scale, Scenario, Stage};
use extant_fuse::Transport;
use extant_measure::grid::Grid;
use extant_measure::interval::{Verdict, judged};
use extant_measure::options::{Options, invalid};
use extant_measure::sheet::Sheet;
use extant_measure::stored::Results;
use extant_measure::timing::Awake;
use serde::{Deserialize, Serialize};
use std::io::{self, IsTerminal};

/// Arguments of `extant-lab bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// Sides, divided by commas, in place of the usual ones.
    #[arg(long, value_delimiter = ',')]
    sides: Vec<Side>,
}

/// Sides that are measured unless others are asked for.
const USUAL: [Side; 5] = [Side::Engine, Side::Ext4, Side::ExtantFuse, Side::Fuse2fs, Side::Null];

/// Sides whose rates are divided by those of others.
const COMPARED: [(Side, &[Side]); 5] = [
    (Side::Engine, &[Side::Ext4]),
    (Side::ExtantFuse, &[Side::Ext4, Side::Fuse2fs, Side::Null, Side::Tmpfs]),
    (Side::ExtantFast, &[Side::Ext4, Side::ExtantFuse, Side::Null]),
    (Side::ExtantRings, &[Side::ExtantFuse, Side::Fuse2fs, Side::NullRings]),
    (Side::NullRings, &[Side::Null]),
];

impl Args {
    /// Returns the wanted sides, or the usual ones; through io_uring, too, where the kernel has
    /// that on.
    fn sides(&self) -> Vec<Side> {
        if !self.sides.is_empty() {
            return self.sides.clone();
        }
        let rings = [Side::ExtantRings, Side::NullRings];
        let rings = rings.into_iter().filter(|_| Transport::IoUring.missing().is_none());
        USUAL.into_iter().chain(rings).collect()
    }
}

pub fn run(args: &Args) -> io::Result<bool> {
    let (options, sides) = (&args.options, args.sides());
    options.refuse(&["threads"])?;
    let scenarios: Vec<_> = SCENARIOS.iter().filter(|s| options.wants(s.name)).collect();
    let large = options.wants("huge");
    if scenarios.is_empty() && !large {
        return Err(invalid("`--only` names no scenario"));
    }
    let rates = measured(options, &scenarios, &sides)?;
    let huge = if large { Some(huge::run(options.runs(5, 5))?) } else { None };
    Bench { rates, huge }.report(options)
}

fn measured(options: &Options, scenarios: &[&Scenario], sides: &[Side]) -> io::Result<Grid> {
    let _awake = Awake::hold();
    let scale = if options.quick { Scale::QUICK } else { Scale::FULL };
    let names: Vec<_> = sides.iter().map(|side| side.name()).collect();
    let mut rates = Grid::new("rates", "operations/s or MB/s", &names, 0).plain();
    let rows: Vec<_> = scenarios.iter().map(|s| (s.name.to_owned(), s.run)).collect();
    options.measure(options.runs(5, 5), &rows, &names, |name, run, column| {
        if !options.json || io::stderr().is_terminal() {
            eprintln!("{name} on {}", names[column]);
        }
        let mut running = sides[column].start()?;
        run(&mut Stage::new(&mut running, column, scale, &mut rates))?;
        running.stop()
    })?;
    Ok(rates)
}

/// Results of `extant-lab bench`.
#[derive(Debug, Deserialize, Serialize)]
pub struct Bench {
    /// By workload and side.
    rates: Grid,
    /// The opening of a very large file system, if it was measured.
    huge: Option<Huge>,
}

impl Results for Bench {
    fn sheets(&self) -> Vec<Sheet> {
        let column = |side: &Side| self.rates.column(&side.name());
        let mut sheets = self.rates.sheets();
        for (ours, theirs) in COMPARED {
            let theirs: Vec<usize> = theirs.iter().filter_map(column).collect();
            let ours = column(&ours).filter(|_| !theirs.is_empty());
            sheets.extend(ours.map(|ours| self.rates.gains(ours, theirs.iter().copied())));
        }
        sheets.retain(|sheet| !sheet.rows.is_empty());
        sheets.push(judged(&self.verdicts()));
        sheets
    }

    fn verdicts(&self) -> Vec<Verdict> {
        bars::judge(&self.rates, self.huge.as_ref())
    }
}
