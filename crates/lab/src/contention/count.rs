//! Counting, and verdicts about the counts.

use super::Args;
use crate::jobs::{Kind, Size, Watch};
use crate::scale::{Counts, Shared};
use crate::side::{Setup, Side};
use extant_measure::interval::Verdict;
use extant_measure::sheet::Sheet;
use extant_measure::timing::Done;
use extant_sync::contention::{self, LevelReport, Line, Report};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

/// Below so many for each operation something counts as done once in a while, not by each
/// operation.
const SELDOM: f64 = 0.01;

/// Below so many writes for each operation a line is one of many that are chosen by a hash or a
/// number, not one that all meet on.
const SPREAD: f64 = 0.1;

/// Workloads that must take no lock and write no line that others write.
const LOOKUPS: &str = "stat-path stat-path-as stat-up stat-files";

/// Workloads in which no line may be written by every thread.
const CHANGES: &str = "create unlink creat-clo creat-clo-unlink stress-orphan stress-orphan-blocks \
                       stress-orphan-pieces";

/// Counts of a workload.
pub struct Counted {
    /// The workload.
    pub kind: &'static Kind,
    pub threads: usize,
    /// Operations and time.
    pub done: Done,
    /// The report of the counting types.
    pub report: Report,
}

/// Counts while a job runs.
#[derive(Default)]
pub struct Counter {
    report: Mutex<Report>,
}

impl Counter {
    /// Returns the report of the counting types.
    pub fn into_report(self) -> Report {
        self.report.into_inner()
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
        *self.report.lock() = contention::stop();
    }

    fn by_turns(&self) -> bool {
        true
    }
}

/// Counts each kind on a file system in memory, after having run it once to warm up.
pub fn count(kinds: &[&'static Kind], args: &Args) -> io::Result<Vec<Counted>> {
    let setup = Setup { shards: args.shards, orphan_list: args.orphan_list, ..Setup::default() };
    let running = Side::EngineMemory.start_with(&setup)?;
    let size = Size { window: Duration::from_secs(5), ..Size::FULL };
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

    /// Returns a line of JSON: [`Counts`].
    pub fn json(&self) -> io::Result<String> {
        let held = |time: Duration, taken: u64| time.as_nanos() as f64 / taken.max(1) as f64;
        let mut shared: BTreeMap<String, Shared> = BTreeMap::new();
        let mut locks: BTreeMap<String, (Duration, u64)> = BTreeMap::new();
        for line in &self.report.lines {
            let place = || line.places.first().map_or("", |(place, _)| place).to_owned();
            if line.transfers > 0 {
                let shared = shared.entry(place()).or_default();
                shared.moves += self.each(line.transfers);
                shared.lines += 1;
            }
            if line.taken > 0 {
                let lock = locks.entry(place()).or_default();
                *lock = (lock.0 + line.held, lock.1 + line.taken);
            }
        }
        let mut levels: BTreeMap<String, (u64, Duration)> = BTreeMap::new();
        for LevelReport { level, taken, held, .. } in
            self.report.levels.iter().chain(&self.report.background)
        {
            let sum = levels.entry(format!("{level:?}")).or_default();
            *sum = (sum.0 + taken, sum.1 + *held);
        }
        let level = |(taken, time)| (self.each(taken), held(time, taken));
        let counts = Counts {
            service: self.done.elapsed.as_nanos() as f64 / self.ops() as f64,
            shared,
            holds: locks
                .into_iter()
                .map(|(place, (time, taken))| (place, held(time, taken)))
                .collect(),
            levels: levels.into_iter().map(|(name, sums)| (name, level(sums))).collect(),
        };
        Ok(format!("{}\n", serde_json::to_string(&counts)?))
    }

    /// Returns the verdicts about this workload.
    pub fn verdicts(&self) -> Vec<Verdict> {
        let (locks, shared) =
            (self.each(self.report.locks()), self.each(self.report.shared_writes()));
        let rule = |rule| format!("{}: {rule}", self.kind.word);
        let mut verdicts = Vec::new();
        if LOOKUPS.split(' ').any(|word| word == self.kind.word) {
            let found = format!("{locks:.2} locks, {shared:.2} writes to shared lines each");
            let holds = locks < SELDOM && shared < SELDOM;
            let what = rule("takes no lock and writes no shared line");
            verdicts.push(Verdict::new(what, found, holds));
        }
        if CHANGES.split(' ').any(|word| word == self.kind.word) && self.threads > 1 {
            let common = self.common();
            let found = format!("{} such lines", common.len());
            let what = rule("no line is written by every thread");
            verdicts.push(Verdict::new(what, found, common.is_empty()));
        }
        verdicts
    }
}

/// Lines of memory and places in the source to print.
const MOST: usize = 20;

pub fn text(counted: &Counted) -> String {
    let tables = [levels(counted), sites(counted), lines(counted)];
    let mut out = head(counted) + &tables.map(|sheet| sheet.text()).join("\n");
    for verdict in counted.verdicts() {
        out += &format!("{}\n", verdict.line());
    }
    out + "\n"
}

fn head(counted: &Counted) -> String {
    let (report, each) = (&counted.report, |count| format!("{:.2}", counted.each(count)));
    let mut out = format!(
        "{}: {} threads, {} operations; for each of them {} locks taken, {} writes by locks and \
         atomics, {} of them to lines that several threads write, {:.3} failed exchanges\n",
        counted.kind.name,
        counted.threads,
        counted.ops(),
        each(report.locks()),
        each(report.writes()),
        each(report.shared_writes()),
        counted.each(report.failed()),
    );
    let events = report.events.iter();
    events.for_each(|(name, count)| out += &format!("{:.3} {name}\n", counted.each(*count)));
    out
}

fn levels(counted: &Counted) -> Sheet {
    let time = counted.done.elapsed.as_secs_f64() * counted.threads as f64;
    let share =
        |part: std::time::Duration| format!("{:.2}%", 100.0 * part.as_secs_f64() / time.max(1e-9));
    let head = ["level", "taken", "waited for", "held", "waiting"];
    let mut sheet = Sheet::new("locks", head);
    for level in &counted.report.levels {
        let [taken, waited] = [level.taken, level.contended].map(|count| counted.each(count));
        let counts = [format!("{:?}", level.level), format!("{taken:.3}"), format!("{waited:.4}")];
        sheet.row(counts.into_iter().chain([share(level.held), share(level.waited)]));
    }
    sheet
}

fn sites(counted: &Counted) -> Sheet {
    let head = ["place", "lock or atomic", "all", "shared", "failed"];
    let mut sheet = Sheet::new("writes", head);
    for site in counted.report.sites.iter().take(MOST) {
        let kind = site.level.map_or("atomic".into(), |level| format!("{level:?}"));
        let counts = [site.writes, site.shared, site.failed];
        let counts = counts.map(|count| format!("{:.3}", counted.each(count)));
        sheet.row([site.place.to_string(), kind].into_iter().chain(counts));
    }
    sheet
}

fn lines(counted: &Counted) -> Sheet {
    let shared: Vec<&Line> = counted.report.lines.iter().filter(|line| line.is_shared()).collect();
    let title = format!(
        "{} lines that several threads write; {} by every thread all the time",
        shared.len(),
        counted.common().len()
    );
    let mut sheet = Sheet::new(title, ["writes", "threads", "in the background", "places"]);
    for line in shared.iter().take(MOST) {
        let places: Vec<&str> =
            line.places.iter().take(3).map(|(place, _)| place.as_str()).collect();
        let counts = [line.workers.to_string(), line.others.to_string(), places.join(", ")];
        sheet.row([format!("{:.3}", counted.each(line.writes))].into_iter().chain(counts));
    }
    sheet
}
