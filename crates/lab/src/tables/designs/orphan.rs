//! Orphan records: the list, the file with a lock, the file without, and none at all, each under
//! the whole engine.

use super::{Chosen, Grid, open};
use crate::jobs::{Kind, Size};
use crate::side::{Setup, make_device};
use crate::target::Engine;
use extant_engine::OpenOptions;
use extant_engine::design::{ORPHANS, OrphanRecords};
use extant_measure::options::Options;
use std::io;
use std::time::{Duration, Instant};

const DESIGNS: [(&str, OrphanRecords); 4] = [
    ("list", OrphanRecords::List),
    ("locked file", OrphanRecords::LockedFile),
    ("lockless file", OrphanRecords::File),
    ("off", OrphanRecords::Off),
];

/// The engine's own, and none at all.
const CHOSEN: usize = 2;
const OFF: usize = 3;

/// Threads of stress-orphan, as its author had them.
const STRESS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Clients of creat_clo, as its author had them.
const CLIENTS: [usize; 16] = [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31];

/// Workloads and their threads.
const WORKLOADS: [(&str, &[usize]); 6] = [
    ("stress-orphan", &STRESS),
    ("stress-orphan-blocks", &STRESS),
    ("stress-orphan-pieces", &STRESS),
    ("creat-clo", &CLIENTS),
    ("creat-clo-unlink", &CLIENTS),
    ("creat-clo-held", &CLIENTS),
];

/// Bound on the time in which the engine frees the last closed files.
const REAPED: Duration = Duration::from_secs(30);

/// Least time of a measurement: jobs of few threads, which end sooner, are repeated.
const MEASURED: Duration = Duration::from_millis(50);

/// Required rate of the engine's design, relative to no records.
const OF_OFF: f64 = 0.97;

/// Rates, then records added and removed for each operation.
pub fn grids(options: &Options) -> io::Result<Vec<Grid>> {
    let names = DESIGNS.map(|(name, _)| name);
    let mut rates = Grid::new("orphan records", "operations/s", &names, CHOSEN);
    rates.bar = Some((OFF, OF_OFF));
    let plain = |title: &'static str| Grid::new(title, "records", &names, CHOSEN).plain();
    let mut added = plain("records added by an operation");
    let mut removed = plain("records removed by an operation");
    let engines = start()?;
    for (word, threads) in WORKLOADS {
        let kind = Kind::named(word)?;
        let rows = options.rows(threads, &[(kind.name, ())]);
        options.fill(&mut rates, &rows, |(threads, ()), design| {
            let row = format!("{}, {threads} threads", kind.name);
            let [rate, records, cleared] = play(kind, &engines[design], *threads, options.quick)?;
            added.add(&row, design, records);
            removed.add(&row, design, cleared);
            Ok(rate)
        })?;
    }
    finish(engines)?;
    Ok(vec![rates, added, removed])
}

fn start() -> io::Result<Vec<Engine>> {
    let _chosen = Chosen::hold();
    let base = make_device(&Setup::default())?;
    let opened = DESIGNS.iter().map(|(_, design)| {
        ORPHANS.set(*design);
        open(&base, &OpenOptions::new())
    });
    opened.collect()
}

/// Returns the rate, and the records added and removed by an operation. The time ends when the
/// engine has freed all files, which it does in the background.
fn play(kind: &Kind, engine: &Engine, threads: usize, quick: bool) -> io::Result<[f64; 3]> {
    let size = if quick {
        Size { cuts: 20, rounds: 20, ..Size::QUICK }
    } else {
        Size { cuts: 200, rounds: 1000, ..Size::FULL }
    };
    let before = engine.fs().stats().orphans;
    let (mut ops, mut elapsed) = (0, Duration::ZERO);
    while elapsed.is_zero() || !quick && elapsed < MEASURED {
        let done = kind.play(engine, (threads, u64::MAX), &size, &())?;
        elapsed += done.elapsed + reaped(engine)?;
        ops += done.ops.iter().sum::<u64>();
    }
    let after = engine.fs().stats().orphans;
    let records = [after.added - before.added, after.removed - before.removed];
    let ops = ops.max(1) as f64;
    let [added, removed] = records.map(|count| count as f64 / ops);
    Ok([ops / elapsed.as_secs_f64(), added, removed])
}

/// Returns how long it takes until all records are removed, by a sync: the background rests for a
/// while before it frees the last files.
fn reaped(engine: &Engine) -> io::Result<Duration> {
    let start = Instant::now();
    engine.fs().sync()?;
    let is_reaped = || {
        let stats = engine.fs().stats().orphans;
        stats.added == stats.removed
    };
    while !is_reaped() {
        if start.elapsed() > REAPED {
            return Err(io::Error::other("records were left"));
        }
        std::thread::yield_now();
    }
    Ok(start.elapsed())
}

/// Closes the engines.
fn finish(engines: Vec<Engine>) -> io::Result<()> {
    engines.into_iter().try_for_each(Engine::unmount)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_made_where_a_cut_or_an_open_file_needs_them() {
        let options = Options::least(&[1, 3]);
        let grids = grids(&options).expect("every design leaves a clean file system");
        let records = |word: &str| {
            let rows = grids[1].rows.iter().filter(|(name, _)| name.starts_with(word));
            rows.flat_map(|(_, cells)| cells.iter().map(|cell| cell[0])).collect::<Vec<f64>>()
        };
        // In every design, with one thread and with three.
        for word in ["stress-orphan, pieces", "creat_clo, unlink while open"] {
            let each = records(word);
            assert!(each.len() == 8 && each.iter().all(|n| *n >= 0.9), "{word}: {each:?}");
        }
        assert_eq!(grids[1].rows, grids[2].rows, "all records are removed while the clock runs");
        // One transaction cuts these files.
        for word in ["stress-orphan, byte", "stress-orphan, block", "creat_clo, unlink each"] {
            let each = records(word);
            assert!(each.len() == 8 && each.iter().all(|n| *n <= 0.1), "{word}: {each:?}");
        }
    }
}
