//! `extant-lab scale`: operations on more processors than this machine has, *simulated*.
//!
//! This program measures the service time of an operation, and the counting program (`make
//! contention`) its visits to lines that other threads write, with as many threads and shards as
//! there are simulated processors. [`model`] puts both together with the latencies of [`costs`].

mod costs;
mod measure;
mod model;

use crate::grid::{Grid, Values};
use crate::interval::Verdict;
use crate::jobs::Kind;
use crate::options::invalid;
use crate::sheet::Sheet;
use crate::stored::Results;
use costs::{COSTS, Topology, numbers};
use measure::Work;
use model::Operation;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

#[cfg(feature = "contention")]
pub use measure::{Counts, Shared};

/// Arguments of `extant-lab scale`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Workloads that `extant-lab contention` names; those of published curves if there are none.
    workloads: Vec<String>,
    /// Processors to simulate, in sockets of ten: a number, or a range of powers of two.
    #[arg(long, value_name = "1..128")]
    cpus: Option<String>,
    /// Machines to simulate, as sockets and processors of each.
    #[arg(long, value_name = "1x10,8x10", value_delimiter = ',')]
    topology: Vec<String>,
    /// The program that counts: `make contention`.
    #[arg(long, default_value = "target/contention/release/extant-lab")]
    counted: PathBuf,
    /// Measurements of each value.
    #[arg(long)]
    runs: Option<usize>,
    /// Less work and fewer measurements, for a look.
    #[arg(long)]
    quick: bool,
    /// One JSON document in place of tables.
    #[arg(long)]
    json: bool,
    /// End with 1 if a measured rate is not met within 20%.
    #[arg(long)]
    strict: bool,
}

/// Everything that is simulated, and its input.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Simulated {
    /// Rates by machine.
    grids: Vec<Grid>,
    inputs: Vec<Input>,
    /// Simulated rates beside measured ones.
    checks: Vec<Verdict>,
}

/// An operation on one machine, as it is simulated.
#[derive(Debug, Deserialize, Serialize)]
pub struct Input {
    row: String,
    design: String,
    /// Service time without other processors, in nanoseconds.
    service: f64,
    /// Moves of lines, and the part of them that lock.
    moves: f64,
    locks: f64,
    /// Nanoseconds for which those locks are held.
    held: f64,
}

impl Input {
    fn of(row: &str, design: &str, operation: &Operation) -> Input {
        let locks = || operation.visits.iter().filter(|visits| visits.hold > 0.0);
        Input {
            row: row.to_owned(),
            design: design.to_owned(),
            service: operation.service,
            moves: operation.visits.iter().map(|visits| visits.each).sum(),
            locks: locks().map(|visits| visits.each).sum(),
            held: locks().map(|visits| visits.each * visits.hold).sum(),
        }
    }
}

impl Results for Simulated {
    fn sheets(&self) -> Vec<Sheet> {
        let title = "input of the simulation, for each operation";
        let head = ["", "design", "service, ns", "moves of lines", "of them locks", "held, ns"];
        let mut inputs = Sheet::new(title, head);
        for Input { row, design, service, moves, locks, held } in &self.inputs {
            let counts = [moves, locks].map(|count| format!("{count:.3}"));
            let [service, held] = [service, held].map(|time| format!("{time:.0}"));
            inputs.row([row, design, &service, &counts[0], &counts[1], &held].map(String::as_str));
        }
        let mut sheets: Vec<Sheet> = self.grids.iter().flat_map(Grid::sheets).collect();
        let mut checks = Sheet::new("simulated beside measured", [""; 0]);
        checks.notes = self.checks.iter().map(Verdict::line).collect();
        sheets.extend([inputs, checks]);
        sheets
    }
}

impl Values for Simulated {
    fn grids(self) -> Vec<Grid> {
        self.grids
    }
}

/// Processors of a socket, unless a topology is given.
const SOCKET: usize = 10;

/// Workloads that are simulated unless others are named.
const USUAL: [&str; 5] = ["stress-orphan-pieces", "creat-clo-held", "stat-path", "create", "walk"];

pub fn run(args: &Args) -> io::Result<bool> {
    let cpus =
        args.cpus.as_deref().unwrap_or(if args.topology.is_empty() { "1..128" } else { "1" });
    let in_tens = |cpus| (format!("{cpus} threads"), Topology { cpus, cores: SOCKET });
    let mut machines: Vec<(String, Topology)> = numbers(cpus)?.into_iter().map(in_tens).collect();
    for name in &args.topology {
        machines.push((name.clone(), name.parse()?));
    }
    let usual = USUAL.map(String::from);
    let words = if args.workloads.is_empty() { &usual[..] } else { &args.workloads };
    let mut all = Simulated::default();
    for word in words {
        let unknown = || invalid(format!("there is no workload `{word}`"));
        let mut work = Work::new(Kind::named(word).ok_or_else(unknown)?, args)?;
        all.checks.extend(work.checks()?);
        let mut grid = Grid::new(
            format!("simulated: {}", work.kind.name),
            "ops/s, simulated",
            &["before", "engine"],
            1,
        );
        for (name, machine) in &machines {
            let row = format!("{}, {name}", work.kind.name);
            for (column, operation) in work.operations(machine.cpus)?.into_iter().enumerate() {
                grid.add(&row, column, model::rate(&operation, *machine, &COSTS));
                all.inputs.push(Input::of(&row, &grid.columns[column].clone(), &operation));
            }
        }
        all.grids.push(grid);
    }
    all.print(args.json)?;
    Ok(!args.strict || crate::interval::all_reached(&all.checks))
}
