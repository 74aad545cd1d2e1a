//! Runs: every scenario on every side, turn about, several times.

mod results;

use crate::awake::Awake;
use crate::measure::Record;
use crate::side::Side;
use crate::workload::{SCENARIOS, Scale, Scenario, Stage};
use std::io;

pub(crate) use results::Bench;

/// Plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How often.
    pub runs: usize,
    /// How much.
    pub scale: Scale,
    /// On which sides.
    pub sides: Vec<Side>,
    /// Scenarios whose names contain one of these; all if there are none.
    pub only: Vec<String>,
    /// Whether progress is told on standard error.
    pub progress: bool,
}

impl Plan {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| name.contains(word.as_str()))
    }

    /// Returns the scenarios that are wanted.
    pub fn scenarios(&self) -> impl Iterator<Item = &'static Scenario> {
        SCENARIOS.iter().filter(|s| self.wants(s.name))
    }

    /// Returns whether the mount of a very large file system is wanted.
    pub fn wants_huge(&self) -> bool {
        self.wants("huge")
    }
}

/// Runs the plan. In every other run the sides take their turns in the opposite order, so that none
/// always follows the same one.
pub fn run(plan: &Plan) -> io::Result<Record> {
    let _awake = Awake::hold();
    let mut record = Record::default();
    for run in 0..plan.runs {
        for scenario in plan.scenarios() {
            let mut sides = plan.sides.clone();
            if run % 2 == 1 {
                sides.reverse();
            }
            for side in sides {
                if plan.progress {
                    eprintln!(
                        "run {} of {}: {} on {}",
                        run + 1,
                        plan.runs,
                        scenario.name,
                        side.name()
                    );
                }
                play(scenario, side, plan.scale, &mut record)
                    .map_err(|e| within(scenario, side, &e))?;
            }
        }
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
