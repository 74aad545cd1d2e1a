//! `extant-lab scale`: operations on more processors than this machine has, *simulated*.
//!
//! This program measures the service time of an operation, and the counting program (`make
//! contention`) its visits to lines that other threads write, with as many threads and shards as
//! there are simulated processors (`measure`). The simulation (`model`) puts both together with a
//! table of latencies (`costs`).

mod costs;
mod curves;
mod measure;
mod model;

use crate::jobs::Kind;
use costs::{COSTS, Topology, numbers};
use extant_measure::grid::Grid;
use extant_measure::interval::Verdict;
use extant_measure::options::Options;
use extant_measure::sheet::Sheet;
use extant_measure::stored::Results;
use measure::Work;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

#[cfg(feature = "contention")]
pub use measure::{Counts, Shared};

/// Arguments of `extant-lab scale`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// Workloads that `extant-lab contention` names; some of them if there are none.
    workloads: Vec<String>,
    /// Processors to simulate, in sockets of ten: numbers, and ranges with the powers of two.
    #[arg(long, default_value = "1..128", value_delimiter = ',')]
    cpus: Vec<String>,
    /// Further machines: sockets, and processors of each.
    #[arg(long, value_name = "1x10,8x10", value_delimiter = ',')]
    topology: Vec<String>,
    /// The program that counts: `make contention`.
    #[arg(long, default_value = "target/contention/release/extant-lab")]
    counted: PathBuf,
}

/// Simulated rates of each workload and their input, and simulated rates beside measured ones.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Simulated {
    rates: Vec<Grid>,
    inputs: Vec<Grid>,
    checks: Vec<Verdict>,
}

impl Results for Simulated {
    fn sheets(&self) -> Vec<Sheet> {
        let mut sheets: Vec<Sheet> =
            self.rates.iter().chain(&self.inputs).flat_map(Grid::sheets).collect();
        let mut checks = Sheet::new("simulated rates beside measured ones", [""; 0]);
        checks.notes = self.checks.iter().map(Verdict::line).collect();
        sheets.extend(curves::errors(&self.rates));
        sheets.push(checks);
        sheets
    }

    fn verdicts(&self) -> Vec<Verdict> {
        self.checks.clone()
    }

    fn grids(self) -> Vec<Grid> {
        self.rates
    }
}

/// Columns of rates and of their input.
const RATES: [&str; 2] = ["before", "engine"];
const INPUTS: [&str; 4] = ["service, ns", "moves of lines", "of them locks", "held, ns"];

/// Processors of a socket, unless a topology is given.
const SOCKET: usize = 10;

/// Workloads that are simulated unless others are named.
const USUAL: [&str; 5] = ["stress-orphan-pieces", "creat-clo-held", "stat-path", "create", "walk"];

pub fn run(args: &Args) -> io::Result<bool> {
    args.options.refuse(&["only", "threads"])?;
    let ranges = args.cpus.iter().map(|range| numbers(range)).collect::<io::Result<Vec<_>>>()?;
    let in_tens =
        |cpus: &usize| (format!("{cpus} threads"), Topology { cpus: *cpus, cores: SOCKET });
    let mut machines: Vec<(String, Topology)> =
        BTreeSet::from_iter(ranges.concat()).iter().map(in_tens).collect();
    for name in &args.topology {
        machines.push((name.clone(), name.parse()?));
    }
    let words: Vec<&str> = args.workloads.iter().map(String::as_str).collect();
    let mut all = Simulated::default();
    for word in if words.is_empty() { &USUAL[..] } else { &words } {
        let mut work = Work::new(Kind::named(word)?, args)?;
        let name = work.kind.name;
        all.checks.extend(work.checks()?);
        let mut rates = Grid::new(format!("simulated: {name}"), "ops/s, simulated", &RATES, 1);
        let mut inputs = Grid::new(format!("input: {name}"), "of an operation", &INPUTS, 0).plain();
        for (machine, topology) in &machines {
            let row = format!("{name}, {machine}");
            for (column, operation) in work.operations(topology.cpus)?.iter().enumerate() {
                rates.add(&row, column, model::rate(operation, *topology, &COSTS));
                let row = format!("{row}, {}", RATES[column]);
                let input = operation.input().into_iter().enumerate();
                input.for_each(|(column, value)| inputs.add(&row, column, value));
            }
        }
        all.rates.push(rates);
        all.inputs.push(inputs);
    }
    all.report(&args.options)
}
