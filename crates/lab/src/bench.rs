//! Runs: every scenario on every side, turn about, several times.

mod results;

use crate::awake::Awake;
use crate::measure::Record;
use crate::side::{SIDES, Side};
use crate::stored::Results;
use crate::workload::{SCENARIOS, Scale, Scenario, Stage};
use crate::{huge, scratch};
use extant_fuse::Transport;
use results::Bench;
use std::io::{self, IsTerminal};

/// Arguments of `extant-lab bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Runs; the sides take turns in each.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Less work of each kind, for a quick look.
    #[arg(long)]
    quick: bool,
    /// Only scenarios whose names contain this (files, small, paths, tree, content, huge); may be
    /// given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Sides, divided by commas, in place of the usual ones.
    #[arg(long, value_name = "SIDES", value_delimiter = ',')]
    sides: Vec<String>,
    /// One JSON document with every measured value, in place of tables.
    #[arg(long)]
    json: bool,
    /// End with 1 if a bar is missed.
    #[arg(long)]
    strict: bool,
}

/// Sides that are measured unless others are asked for.
const USUAL: [Side; 5] = [Side::Engine, Side::Ext4, Side::ExtantFuse, Side::Fuse2fs, Side::Null];

impl Args {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| name.contains(word.as_str()))
    }

    /// Returns the wanted sides, or the usual ones; through io_uring, too, where the kernel has
    /// that on.
    fn sides(&self) -> io::Result<Vec<Side>> {
        let named = self.sides.iter().map(|name| side(name)).collect::<io::Result<Vec<_>>>()?;
        let rings = [Side::ExtantRings, Side::NullRings];
        let rings = rings.into_iter().filter(|_| Transport::IoUring.missing().is_none());
        Ok(if named.is_empty() { USUAL.into_iter().chain(rings).collect() } else { named })
    }
}

fn side(name: &str) -> io::Result<Side> {
    Side::named(name).ok_or_else(|| {
        let all = SIDES.map(Side::name).join(", ");
        let why = format!("there is no side `{name}`; there are {all}");
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })
}

/// Runs the command; whether every bar is reached, if that was asked.
///
/// # Errors
/// `InvalidInput` for unknown names; those of the sides and of the workloads.
pub fn run(args: &Args) -> io::Result<bool> {
    let sides = args.sides()?;
    let scenarios: Vec<_> = SCENARIOS.iter().filter(|s| args.wants(s.name)).collect();
    if scenarios.is_empty() && !args.wants("huge") {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "`--only` names no scenario"));
    }
    scratch::catch_signals()?;
    let record = measured(args, &scenarios, sides)?;
    let huge = if args.wants("huge") { Some(huge::run(args.runs.max(1))?) } else { None };
    let results = Bench { record, huge };
    results.print(args.json)?;
    Ok(!args.strict || results.verdicts().iter().all(|v| v.reached))
}

/// Runs the scenarios. In every other run the sides take their turns in the opposite order, so that
/// none always follows the same one.
fn measured(args: &Args, scenarios: &[&Scenario], mut sides: Vec<Side>) -> io::Result<Record> {
    let _awake = Awake::hold();
    let scale = if args.quick { Scale::QUICK } else { Scale::FULL };
    let runs = args.runs.max(1);
    let mut record = Record::default();
    for run in 1..=runs {
        for scenario in scenarios {
            for side in &sides {
                if !args.json || io::stderr().is_terminal() {
                    eprintln!("run {run} of {runs}: {} on {}", scenario.name, side.name());
                }
                play(scenario, *side, scale, &mut record)
                    .map_err(|e| within(scenario, *side, &e))?;
            }
        }
        sides.reverse();
    }
    Ok(record)
}

fn play(scenario: &Scenario, side: Side, scale: Scale, record: &mut Record) -> io::Result<()> {
    let mut running = side.start()?;
    (scenario.run)(&mut Stage::new(&mut *running, side, scale, record))?;
    running.stop()
}

fn within(scenario: &Scenario, side: Side, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{} on {}: {e}", scenario.name, side.name()))
}
