//! Counting, and verdicts about the counts.

use super::Args;
use crate::jobs::{Kind, Size, Watch};
use crate::measure::Done;
use crate::side::Side;
use extant_sync::contention::{self, Line, Report};
use std::io;
use std::sync::Mutex;

/// Below so many for each operation something counts as done once in a while, not by each
/// operation.
const SELDOM: f64 = 0.01;

/// Below so many writes for each operation a line is one of many that are chosen by a hash or a
/// number, not one that all meet on.
const SPREAD: f64 = 0.1;

/// Workloads that must take no lock and write no line that others write.
const LOOKUPS: [&str; 3] = ["stat-path", "stat-path-as", "stat-files"];

/// Workloads in which no line may be written by every thread.
const CHANGES: [&str; 7] = [
    "create",
    "unlink",
    "creat-clo",
    "creat-clo-unlink",
    "stress-orphan",
    "stress-orphan-blocks",
    "stress-orphan-pieces",
];

/// Counts of a workload.
pub struct Counted {
    /// The workload.
    pub kind: &'static Kind,
    /// Threads.
    pub threads: usize,
    /// Operations and time.
    pub done: Done,
    /// The report of the counting types.
    pub report: Report,
}

/// One of the things that have to hold.
pub struct Verdict {
    /// Which.
    pub rule: &'static str,
    /// Whether it holds.
    pub passed: bool,
    /// The figure.
    pub found: String,
}

/// Counts while a job runs.
#[derive(Default)]
pub struct Counter {
    report: Mutex<Report>,
}

impl Counter {
    /// Returns the report of the counting types.
    pub fn into_report(self) -> Report {
        self.report.into_inner().unwrap_or_default()
    }
}

impl Watch for Counter {
    fn start(&self) {
        contention::start();
    }

    fn thread(&self) {
        contention::worker();
    }

    fn stop(&self) {
        *self.report.lock().expect("no thread panics with it") = contention::stop();
    }
}

/// Counts each kind on a file system in memory, after having run it once to warm up.
pub fn count(kinds: &[&'static Kind], args: &Args) -> io::Result<Vec<Counted>> {
    let running = Side::EngineMemory.start()?;
    let size = Size { window: std::time::Duration::from_secs(5), ..Size::FULL };
    let how = (args.threads.max(1), args.ops.max(1));
    let one = |kind: &&'static Kind| {
        kind.play(running.target(), how, &size, &())?;
        let counter = Counter::default();
        let done = kind.play(running.target(), how, &size, &counter)?;
        Ok(Counted { kind, threads: how.0, done, report: counter.into_report() })
    };
    let counted = kinds.iter().map(one).collect::<io::Result<_>>()?;
    running.stop()?;
    Ok(counted)
}

impl Counted {
    /// Operations of all threads.
    pub fn ops(&self) -> u64 {
        self.done.ops.iter().sum::<u64>().max(1)
    }

    /// So many for each operation.
    pub fn each(&self, count: u64) -> f64 {
        count as f64 / self.ops() as f64
    }

    /// Lines that every thread writes all the time.
    pub fn common(&self) -> Vec<&Line> {
        let common =
            |line: &&Line| line.workers == self.threads && self.each(line.writes) >= SPREAD;
        self.report.lines.iter().filter(common).collect()
    }

    /// Returns the verdicts about this workload.
    pub fn verdicts(&self) -> Vec<Verdict> {
        let (locks, shared) =
            (self.each(self.report.locks()), self.each(self.report.shared_writes()));
        let mut verdicts = Vec::new();
        if LOOKUPS.contains(&self.kind.word) {
            let found = format!("{locks:.2} locks, {shared:.2} writes to shared lines each");
            let passed = locks < SELDOM && shared < SELDOM;
            verdicts.push(Verdict {
                rule: "takes no lock and writes no shared line",
                passed,
                found,
            });
        }
        if CHANGES.contains(&self.kind.word) && self.threads > 1 {
            let common = self.common();
            let found = format!("{} such lines", common.len());
            verdicts.push(Verdict {
                rule: "no line is written by every thread",
                passed: common.is_empty(),
                found,
            });
        }
        verdicts
    }
}
