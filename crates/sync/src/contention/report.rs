//! The report over the logs of all threads.

use super::log::{Log, Writes};
use crate::level::{ALL, Level};
use std::collections::BTreeMap;
use std::time::Duration;

/// The writes from one place in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// File and line.
    pub place: String,
    /// The level of the lock that is taken there; `None` for an atomic.
    pub level: Option<Level>,
    /// Writes by workers.
    pub writes: u64,
    /// Failed exchanges among the writes.
    pub failed: u64,
    /// Writes that went to lines written by several threads.
    pub shared: u64,
}

/// A cache line that was written.
#[derive(Clone, Debug)]
pub struct Line {
    /// Writes by workers.
    pub writes: u64,
    /// Failed exchanges among the writes.
    pub failed: u64,
    /// Writes after which another thread, a worker or not, was the last writer.
    pub transfers: u64,
    /// Acquisitions of locks on the line.
    pub taken: u64,
    /// Sum of the durations for which they were held.
    pub held: Duration,
    /// Workers that wrote it.
    pub workers: usize,
    /// Other threads that wrote it.
    pub others: usize,
    /// The places of the workers' writes with the number of writes, most first.
    pub places: Vec<(String, u64)>,
}

impl Line {
    /// Whether several threads wrote it.
    pub fn is_shared(&self) -> bool {
        self.workers + self.others > 1
    }
}

/// The use that workers made of the locks of one level.
#[derive(Clone, Copy, Debug)]
pub struct LevelReport {
    /// The level.
    pub level: Level,
    /// Number of acquisitions.
    pub taken: u64,
    /// Number of acquisitions that had to wait.
    pub contended: u64,
    /// Sum of the waits.
    pub waited: Duration,
    /// Sum of the durations for which the locks were held.
    pub held: Duration,
}

/// All counts of one run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Number of threads marked as workers.
    pub workers: usize,
    /// Lines that workers wrote, most writes first.
    pub lines: Vec<Line>,
    /// Places of the workers' writes, most writes first.
    pub sites: Vec<Site>,
    /// Levels of the locks that workers took, outermost first.
    pub levels: Vec<LevelReport>,
    /// The same of all other threads, which work in the background.
    pub background: Vec<LevelReport>,
    /// Named events of workers.
    pub events: BTreeMap<&'static str, u64>,
}

impl Report {
    pub(super) fn of(logs: impl Iterator<Item = Log>) -> Report {
        let (workers, others): (Vec<_>, Vec<_>) = logs.partition(|log| log.worker);
        let mut lines = lines(&workers, &others);
        let sites = sites(&workers, &lines);
        lines.retain(|_, line| line.workers > 0);
        let mut lines: Vec<_> = lines.into_values().collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.writes));
        let mut events = BTreeMap::new();
        for (name, count) in workers.iter().flat_map(|log| &log.events) {
            *events.entry(*name).or_default() += count;
        }
        let [levels, background] = [&workers, &others].map(|logs| levels(logs));
        Report { workers: workers.len(), lines, sites, levels, background, events }
    }

    /// Writes by workers to lines that several threads wrote.
    pub fn shared_writes(&self) -> u64 {
        self.lines.iter().filter(|line| line.is_shared()).map(|line| line.writes).sum()
    }

    /// Writes by workers to any line.
    pub fn writes(&self) -> u64 {
        self.lines.iter().map(|line| line.writes).sum()
    }

    /// Locks taken by workers.
    pub fn locks(&self) -> u64 {
        self.levels.iter().map(|level| level.taken).sum()
    }

    /// Exchanges of workers that failed.
    pub fn failed(&self) -> u64 {
        self.lines.iter().map(|line| line.failed).sum()
    }
}

fn name(writes: &Writes) -> String {
    let file = writes.place.file();
    // Omits the path before the crate's name.
    let file = file.rsplit_once("crates/").map_or(file, |(_, rest)| rest);
    format!("{}:{}", file.replace("/src/", "/"), writes.place.line())
}

fn lines(workers: &[Log], others: &[Log]) -> BTreeMap<usize, Line> {
    let mut lines = BTreeMap::new();
    for log in workers {
        for (number, places) in by_line(log) {
            let line = lines.entry(number).or_insert_with(no_line);
            line.workers += 1;
            for writes in places {
                line.writes += writes.writes;
                line.failed += writes.failed;
                line.transfers += writes.transfers;
                line.held += writes.held;
                // A lock is written when taken and when released.
                line.taken += writes.level.map_or(0, |_| writes.writes / 2);
                add_place(&mut line.places, name(writes), writes.writes);
            }
        }
    }
    for log in others {
        by_line(log)
            .into_keys()
            .for_each(|number| lines.entry(number).or_insert_with(no_line).others += 1);
    }
    lines
        .values_mut()
        .for_each(|line| line.places.sort_by_key(|(_, writes)| std::cmp::Reverse(*writes)));
    lines
}

fn no_line() -> Line {
    Line {
        writes: 0,
        failed: 0,
        transfers: 0,
        taken: 0,
        held: Duration::ZERO,
        workers: 0,
        others: 0,
        places: Vec::new(),
    }
}

fn by_line(log: &Log) -> BTreeMap<usize, Vec<&Writes>> {
    let mut lines: BTreeMap<usize, Vec<&Writes>> = BTreeMap::new();
    log.writes.iter().for_each(|((line, _), writes)| lines.entry(*line).or_default().push(writes));
    lines
}

fn add_place(places: &mut Vec<(String, u64)>, place: String, writes: u64) {
    match places.iter_mut().find(|(known, _)| *known == place) {
        Some((_, count)) => *count += writes,
        None => places.push((place, writes)),
    }
}

fn sites(workers: &[Log], lines: &BTreeMap<usize, Line>) -> Vec<Site> {
    let mut sites: BTreeMap<(String, Option<Level>), Site> = BTreeMap::new();
    for ((line, _), writes) in workers.iter().flat_map(|log| &log.writes) {
        let shared = lines.get(line).is_some_and(Line::is_shared);
        let place = name(writes);
        let none =
            Site { place: place.clone(), level: writes.level, writes: 0, failed: 0, shared: 0 };
        let site = sites.entry((place, writes.level)).or_insert(none);
        site.writes += writes.writes;
        site.failed += writes.failed;
        site.shared += if shared { writes.writes } else { 0 };
    }
    let mut sites: Vec<_> = sites.into_values().collect();
    sites.sort_by_key(|site| std::cmp::Reverse((site.shared, site.writes)));
    sites
}

fn levels(logs: &[Log]) -> Vec<LevelReport> {
    let sum = |level: Level| {
        let mut sum = LevelReport {
            level,
            taken: 0,
            contended: 0,
            waited: Duration::ZERO,
            held: Duration::ZERO,
        };
        for lock in logs.iter().map(|log| &log.locks[level as usize]) {
            sum.taken += lock.taken;
            sum.contended += lock.contended;
            sum.waited += lock.waited;
            sum.held += lock.held;
        }
        sum
    };
    ALL.into_iter().map(sum).filter(|level| level.taken > 0).collect()
}
