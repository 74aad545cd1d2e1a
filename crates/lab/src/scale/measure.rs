//! Measured input of the simulation, and checks of its output where this machine can.

use super::Args;
use super::costs::{COSTS, Topology};
use super::model::{Operation, Visits, rate};
use crate::jobs::{Kind, Size};
use crate::pairs::Meter;
use crate::side::{Setup, Side};
use extant_measure::interval::Verdict;
use extant_measure::scratch::contained;
use extant_measure::timing::Done;
use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Counts of a workload, by the counting program.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Counts {
    /// Nanoseconds of an operation while it is counted.
    pub service: f64,
    /// Lines that move between threads, by the place of most writes.
    pub shared: BTreeMap<String, Shared>,
    /// Mean nanoseconds for which locks are held, by place.
    pub holds: BTreeMap<String, f64>,
    /// Acquisitions of each operation, those of the background among them, and mean nanoseconds for
    /// which they hold, by level.
    pub levels: BTreeMap<String, (f64, f64)>,
}

/// Lines that are written from one place.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Shared {
    pub lines: usize,
    /// Moves of each operation.
    pub moves: f64,
}

/// Operations that are counted, all threads together.
const COUNTED: usize = 16_000;

/// Largest difference of a simulated rate from the measured one.
const NEAR: f64 = 0.2;

/// Level of the locks of orphan records.
const ORPHAN: &str = "Orphan";

/// Returns the level of the locks in whose place the design before a work has a single one: that of
/// the list of orphans, or those of the shards of inodes. Lookups take no locks; with the former
/// design they get and put an object that all threads share, each time with its lock.
fn former_lock(kind: &Kind) -> &'static str {
    match kind.word {
        word if word.starts_with("stress") || word.starts_with("creat-") => ORPHAN,
        word if word.starts_with("stat") || word == "open" => "",
        _ => "InodeCacheShard",
    }
}

/// A workload and its measurements.
pub struct Work<'a> {
    pub kind: &'static Kind,
    args: &'a Args,
    /// Service times by shards.
    services: BTreeMap<usize, f64>,
    /// Counts of one thread, whose critical sections no other one interrupts, with the engine's
    /// records of orphans and with those of the design before.
    alone: [Counts; 2],
}

impl<'a> Work<'a> {
    pub fn new(kind: &'static Kind, args: &'a Args) -> io::Result<Work<'a>> {
        let (services, alone) = (BTreeMap::new(), Default::default());
        let mut work = Work { kind, args, services, alone };
        work.alone = [work.counts(1, false)?, work.counts(1, former_lock(kind) == ORPHAN)?];
        Ok(work)
    }

    /// Returns the operation on so many processors, with the design before and that of the engine.
    /// Both have the same service time: they differ in lines that threads share.
    pub fn operations(&mut self, cpus: usize) -> io::Result<[Operation; 2]> {
        let service = self.service(cpus)?;
        let counts = self.counts(cpus, false)?;
        // Counting makes critical sections as much longer as the rest, so their share is kept.
        let slower = self.alone[0].service / service;
        let holds = |place| self.alone[0].holds.get(place).or(counts.holds.get(place));
        let visits = counts.shared.iter().map(|(place, shared)| Visits {
            lines: shared.lines,
            each: shared.moves,
            hold: holds(place).map_or(0.0, |hold| hold / slower),
        });
        let engine = Operation { service, visits: visits.collect() };
        let level = former_lock(self.kind);
        let mut before = engine.clone();
        let measured = |(each, hold): &(f64, f64)| (*each, hold * service / self.alone[1].service);
        let (each, hold) = match level {
            "" => (2.0, 2.0 * COSTS.local),
            level => self.alone[1].levels.get(level).map_or((0.0, 0.0), measured),
        };
        before.service += if level.is_empty() { each * hold } else { 0.0 };
        before.visits.push(Visits { lines: 1, each, hold });
        Ok([before, engine])
    }

    /// Returns the least processor time of an operation by one thread, background work included.
    fn service(&mut self, cpus: usize) -> io::Result<f64> {
        let shards = cpus.next_power_of_two();
        if let Some(known) = self.services.get(&shards) {
            return Ok(*known);
        }
        let setup = Setup { shards, ..Setup::default() };
        let times =
            self.play(1, &setup, |done, time| time.as_nanos() as f64 / done.ops[0].max(1) as f64)?;
        let least = times.into_iter().fold(f64::INFINITY, f64::min);
        self.services.insert(shards, least);
        Ok(least)
    }

    /// Runs the counting program with a thread and a shard for each processor.
    fn counts(&self, cpus: usize, orphan_list: bool) -> io::Result<Counts> {
        let program = &self.args.counted;
        let mut command = Command::new(program);
        let ops = (COUNTED / cpus).max(1);
        command.args(["contention", self.kind.word, "--json"]);
        for (option, value) in [("--threads", cpus), ("--shards", cpus), ("--ops", ops)] {
            command.args([option, &value.to_string()]);
        }
        command.args(orphan_list.then_some("--orphan-list"));
        let failed = |e: &dyn std::fmt::Display| {
            io::Error::other(format!("{}: {e} (`make contention` builds it)", program.display()))
        };
        let output = contained(command.stdin(Stdio::null()), Signal::TERM);
        serde_json::from_slice(&output.map_err(|e| failed(&e))?.stdout).map_err(|e| failed(&e))
    }

    /// Compares simulated rates with measured ones on as many processors as there are, at most two.
    pub fn checks(&mut self) -> io::Result<Vec<Verdict>> {
        let mine = sched_getaffinity(None)?;
        let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| mine.is_set(*cpu)).collect();
        let mut verdicts = Vec::new();
        for cpus in 1..=usable.len().min(2) {
            let simulated = rate(&self.operations(cpus)?[1], Topology { cpus, cores: 2 }, &COSTS);
            // The threads of the engine inherit these processors.
            let mut these = CpuSet::new();
            usable.iter().take(cpus).for_each(|cpu| these.set(*cpu));
            sched_setaffinity(None, &these)?;
            let measured = self.measured(cpus);
            sched_setaffinity(None, &mine)?;
            let measured = measured?;
            let error = simulated / measured - 1.0;
            let found = format!(
                "measured {measured:.0} operations/s, simulated {simulated:.0}, error {:+.1}%",
                error * 100.0
            );
            let what = format!("{}, {cpus} processors: within 20%", self.kind.name);
            verdicts.push(Verdict::new(what, found, error.abs() <= NEAR));
        }
        Ok(verdicts)
    }

    /// Returns the greatest rate of as many threads, as if no other program used processors: their
    /// own time, or that of all threads of the process if it is longer, divided by the processors.
    fn measured(&self, cpus: usize) -> io::Result<f64> {
        let rates =
            self.play(cpus, &Setup { shards: cpus, ..Setup::default() }, |done, time| {
                let time = time.max(done.own.iter().sum()) / cpus as u32;
                done.ops.iter().sum::<u64>() as f64 / time.as_secs_f64().max(1e-9)
            })?;
        Ok(rates.into_iter().fold(0.0, f64::max))
    }

    /// Plays the workload as often as asked for. Returns a value of each run, from its operations
    /// and the processor time of the process.
    fn play(
        &self,
        threads: usize,
        setup: &Setup,
        value: impl Fn(&Done, Duration) -> f64,
    ) -> io::Result<Vec<f64>> {
        let (options, meter) = (&self.args.options, Meter::new());
        let size = if options.quick { Size::QUICK } else { Size::FULL };
        let side = Side::EngineMemory.start_with(setup)?;
        let values = (0..options.runs(9, 3)).map(|_| {
            let done = self.kind.play(side.target(), (threads, u64::MAX), &size, &meter)?;
            Ok(value(&done, meter.cost().time))
        });
        let values = values.collect::<io::Result<_>>()?;
        side.stop()?;
        Ok(values)
    }
}
