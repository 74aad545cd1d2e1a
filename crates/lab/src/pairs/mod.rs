//! The engine beside the kernel's ext4 in pairs: both are open at once, each workload is run on the
//! one and at once on the other, the order changes from run to run, and ratios are taken pair by
//! pair.

mod cost;

use crate::jobs::{self, Crowd, KINDS, Kind, SYNCERS, Size};
use crate::side::{Running, Setup, Side};
use extant_measure::grid::{Grid, row_name};
use extant_measure::interval::{Interval, Verdict, judged};
use extant_measure::options::{Options, invalid};
use extant_measure::sheet::Sheet;
use extant_measure::stored::Results;
use extant_measure::timing::median;
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;

pub use cost::Meter;

/// Numbers of threads.
pub const THREADS: [usize; 4] = [1, 2, 4, 16];

/// The two sides, and the columns of tables.
const SIDES: [Side; 2] = [Side::Ext4, Side::Engine];
pub const EXT4: usize = 0;
pub const ENGINE: usize = 1;

/// Threads that create files while others call sync.
const CREATORS: usize = 2;

/// Rows of simultaneous callers of sync: name, callers, and the required multiple of the kernel's
/// rate.
const SYNCS: [(&str, Crowd, f64); 2] = [
    ("100 syncs, clean inodes", Crowd { calls: 200, creators: 0 }, 10.0),
    ("100 syncs, files being made", Crowd { calls: 10, creators: CREATORS }, 8.0),
];

/// Rows of creators, with an unrelated stat beside them: name, and threads that call sync all the
/// time.
const LOADS: [(&str, usize); 2] =
    [("files made without syncs", 0), ("files made beside 100 syncs", SYNCERS)];

/// Work of a row with many clean inodes in memory.
enum Work {
    Syncs(Crowd),
    /// Creators, with so many threads that call sync all the time.
    Load(usize),
}

/// Share of their rate that creators must keep beside syncs.
const KEPT: f64 = 0.5;

/// Processor time of an operation by one thread, at most, in microseconds, where the kernel cuts
/// six pieces about 100,000 times a second.
const AT_MOST: [(&str, f64); 3] =
    [("create empty files", 3.2), ("unlink", 2.8), ("creat_clo, unlink each time", 3.2)];

/// Least rate of stats as a user, relative to those as root.
const AS_USER: f64 = 0.9;

/// Arguments of `extant-lab pairs`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// Next to nothing of each kind, for tests.
    #[arg(long, hide = true)]
    tiny: bool,
}

/// Returns empty tables of rates, processor time, instructions and latencies.
fn tables() -> [Grid; 4] {
    let sides = SIDES.map(Side::name);
    [
        Grid::new("pairs", "operations/s", &sides, ENGINE),
        Grid::new("processor time", "us", &sides, ENGINE).less().plain(),
        Grid::new("instructions", "each", &sides, ENGINE).less().plain(),
        Grid::new("an unrelated stat, 99th percentile", "us", &sides, ENGINE).less().plain(),
    ]
}

pub fn run(args: &Args) -> io::Result<bool> {
    let options = &args.options;
    let (size, clean_inodes) = match (args.tiny, options.quick) {
        (true, _) => (Size::TINY, 500),
        (_, true) => (Size::QUICK, 50_000),
        _ => (Size::FULL, 1_000_000),
    };
    let mut grids = tables();
    operations(options, &size, &mut grids)?;
    syncs(options, (clean_inodes, size.window), &mut grids)?;
    if grids[0].rows.is_empty() {
        return Err(invalid("`--only` names no row"));
    }
    Pairs(grids.into()).report(options)
}

fn operations(options: &Options, size: &Size, grids: &mut [Grid; 4]) -> io::Result<()> {
    let kinds = KINDS.iter().filter(|kind| options.wants(kind.name));
    let of = |kind: &'static Kind| {
        let threads = options.threads(&THREADS).iter();
        threads.map(move |threads| (row_name(kind.name, *threads), (kind, *threads)))
    };
    let rows: Vec<_> = kinds.flat_map(of).collect();
    let nothing = |_: &Running| Ok(());
    let [grids @ .., _] = grids;
    play(options, (&Setup::default(), nothing), &rows, |name, (kind, threads), side, meter| {
        let done = kind.play(side.1.target(), (*threads, u64::MAX), size, meter)?;
        add(grids, (name, side.0), (done.ops.iter().sum(), done.elapsed), meter);
        Ok(())
    })
}

/// Callers of sync at once, and creators beside them, with many clean inodes in memory.
fn syncs(
    options: &Options,
    (inodes, window): (usize, Duration),
    [grids @ .., latencies]: &mut [Grid; 4],
) -> io::Result<()> {
    let syncs = SYNCS.map(|(name, crowd, _)| (row_name(name, SYNCERS), Work::Syncs(crowd)));
    let loads = LOADS.map(|(name, syncing)| (row_name(name, CREATORS), Work::Load(syncing)));
    let rows: Vec<_> =
        syncs.into_iter().chain(loads).filter(|(name, _)| options.wants(name)).collect();
    let fill = |side: &Running| {
        eprintln!("making {inodes} files");
        jobs::fill(side.target(), "clean", inodes, 2)
    };
    let setup = Setup::for_inodes(inodes as u64);
    play(options, (&setup, fill), &rows, |name, row, (side, running), meter| {
        match row {
            Work::Syncs(crowd) => {
                let (elapsed, _) = jobs::sync_crowd(running.target(), "crowd", *crowd, meter)?;
                add(grids, (name, side), (crowd.syncs(), elapsed), meter);
            }
            Work::Load(syncing) => {
                let noticed = jobs::under_load(running.target(), window, (CREATORS, *syncing))?;
                grids[0].add(name, side, noticed.created);
                latencies.add(name, side, noticed.p99);
            }
        }
        Ok(())
    })
}

/// Plays each row on both sides, run by run.
fn play<R>(
    options: &Options,
    (setup, prepare): (&Setup, impl Fn(&Running) -> io::Result<()>),
    rows: &[(String, R)],
    mut job: impl FnMut(&str, &R, (usize, &Running), &Meter) -> io::Result<()>,
) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let meter = Meter::new();
    let sides = SIDES.iter().map(|side| side.start_with(setup)).collect::<io::Result<Vec<_>>>()?;
    sides.iter().try_for_each(prepare)?;
    options.measure(options.runs(15, 5), rows, &SIDES.map(Side::name), |name, row, side| {
        // Work that the last job left is no cost of this one.
        sides.iter().try_for_each(|side| side.target().sync())?;
        job(name, row, (side, &sides[side]), &meter)
    })?;
    sides.into_iter().try_for_each(|side| side.stop())
}

/// Adds the rate and the cost of a job's operations.
fn add(
    [rates, times, instructions]: &mut [Grid; 3],
    (name, side): (&str, usize),
    (ops, elapsed): (u64, Duration),
    meter: &Meter,
) {
    let (ops, cost) = (ops.max(1) as f64, meter.cost());
    rates.add(name, side, ops / elapsed.as_secs_f64().max(1e-9));
    times.add(name, side, cost.time.as_secs_f64() * 1e6 / ops);
    cost.instructions.iter().for_each(|n| instructions.add(name, side, *n as f64 / ops));
}

/// Results of `extant-lab pairs`: rates, costs, and latencies unless the run is an old one.
#[derive(Debug, Deserialize, Serialize)]
pub struct Pairs(Vec<Grid>);

impl Pairs {
    /// Returns the rates of both sides.
    pub fn rates(&self) -> &Grid {
        &self.0[0]
    }

    /// Returns how syncs stand to their bars besides the rate: their processor time and an
    /// unrelated stat beside the kernel's, and creators beside those without syncs.
    fn around_syncs(&self) -> Vec<Verdict> {
        let like_kernel = |grid: usize, name: String, what: &str| {
            let grid = self.0.get(grid)?;
            let gain = grid.gain_of(grid.row(&name)?, ENGINE, EXT4)?;
            Some(Verdict::of(format!("{name}: {what}"), gain, 1.0))
        };
        let syncs = SYNCS.iter().map(|(name, ..)| row_name(name, SYNCERS));
        let times =
            syncs.filter_map(|name| like_kernel(1, name, "no more processor time than ext4"));
        let [alone, beside] = LOADS.map(|(name, _)| row_name(name, CREATORS));
        let made = |name| Some(&self.rates().rows[self.rates().row(name)?].1[ENGINE]);
        let kept = made(&beside).zip(made(&alone));
        let kept = kept.and_then(|(beside, alone)| Interval::of_pairs(beside, alone));
        let kept = kept.map(|found| {
            Verdict::of(format!("{beside}: {KEPT} of the rate without syncs"), found, KEPT)
        });
        let stat =
            like_kernel(3, beside, "an unrelated stat's 99th percentile no later than ext4's");
        times.chain(kept).chain(stat).collect()
    }
}

impl Pairs {
    /// Returns how the processor time of some operations stands to its bars.
    fn costs(&self) -> impl Iterator<Item = Verdict> {
        AT_MOST.iter().filter_map(|(name, bar)| {
            let name = row_name(name, 1);
            let found = median(&self.0[1].rows[self.0[1].row(&name)?].1[ENGINE])?;
            let what = format!("{name}: at most {bar} us of a processor");
            Some(Verdict::new(what, format!("{found:.2} us"), found <= *bar))
        })
    }

    /// Returns how stats as a user stand to those as root.
    fn as_user(&self) -> impl Iterator<Item = Verdict> {
        THREADS.iter().filter_map(|threads| {
            let [root, user] = ["stat one path of depth 6", "stat that path as a user"]
                .map(|name| row_name(name, *threads));
            let rates = |name| Some(&self.rates().rows[self.rates().row(name)?].1[ENGINE]);
            let found = Interval::of_pairs(rates(&user)?, rates(&root)?)?;
            Some(Verdict::of(format!("{user}: {AS_USER} of root's rate"), found, AS_USER))
        })
    }
}

impl Results for Pairs {
    fn sheets(&self) -> Vec<Sheet> {
        let tables = self.0.sheets().into_iter().filter(|sheet| !sheet.rows.is_empty());
        tables.chain([judged(&self.verdicts())]).collect()
    }

    fn verdicts(&self) -> Vec<Verdict> {
        let mut verdicts = judge(self.rates());
        verdicts.extend(self.around_syncs());
        verdicts.extend(self.costs());
        verdicts.extend(self.as_user());
        verdicts
    }

    fn grids(self) -> Vec<Grid> {
        self.0
    }
}

/// Required rate with the most threads, relative to the best number of threads.
const OF_BEST: f64 = 0.95;

/// Returns the required multiple of the kernel's rate.
fn bar(work: &str) -> Option<f64> {
    let kinds = KINDS.iter().map(|kind| (kind.name, kind.bar));
    let mut all = kinds.chain(SYNCS.map(|(name, _, bar)| (name, Some(bar))));
    all.find(|(name, _)| *name == work)?.1
}

/// Returns all bars for which there are figures.
fn judge(rates: &Grid) -> Vec<Verdict> {
    let beside_kernel = rates.by_threads().filter_map(|(row, work, threads)| {
        let bar = bar(work)?;
        let what = format!("{}: {bar} times ext4", row_name(work, threads));
        Some(Verdict::of(what, rates.gain_of(row, ENGINE, EXT4)?, bar))
    });
    // The most threads beside the number of threads whose median rate is greatest.
    let most = rates.by_threads().filter(|(.., threads)| *threads == THREADS[THREADS.len() - 1]);
    let many = most.filter_map(|(row, work, threads)| {
        let values = |row: usize| &rates.rows[row].1[ENGINE];
        let rate = |row| median(values(row)).unwrap_or(0.0);
        let same = rates.by_threads().filter(|(_, name, _)| *name == work);
        let (best, _, least) = same.max_by(|a, b| rate(a.0).total_cmp(&rate(b.0)))?;
        let found = Interval::of_pairs(values(row), values(best))?;
        let what = format!("{work}: {threads} threads at {OF_BEST} of the best, which is {least}");
        Some(Verdict::of(what, found, OF_BEST))
    });
    beside_kernel.chain(many).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pairs::tables;
    use extant_measure::interval::Standing::{self, Missed, Reached};

    fn standings(rows: &[(usize, f64, f64)]) -> Vec<Standing> {
        let [mut rates, ..] = tables();
        for (threads, ours, theirs) in rows {
            for (side, rate) in [(ENGINE, ours), (EXT4, theirs)] {
                (0..3).for_each(|_| rates.add(&row_name("unlink", *threads), side, *rate));
            }
        }
        judge(&rates).iter().map(|verdict| verdict.standing).collect()
    }

    #[test]
    fn rows_are_judged_beside_the_kernel_and_beside_their_best() {
        // The bar of unlink is 2.
        let rows = [(1, 10.0, 4.0), (2, 20.0, 11.0), (16, 18.0, 1.0)];
        assert_eq!(standings(&rows), [Reached, Missed, Reached, Missed]);
        let rows = [(1, 10.0, 1.0), (16, 18.0, 1.0)];
        assert_eq!(standings(&rows), [Reached, Reached, Reached], "the best is its own measure");
    }

    #[test]
    fn processor_time_and_stats_of_users_are_judged() {
        let standings = |cost: f64, user: f64| {
            let [mut rates, mut times, rest @ ..] = tables();
            times.add(&row_name("unlink", 1), ENGINE, cost);
            for (name, rate) in
                [("stat one path of depth 6", 10.0), ("stat that path as a user", user)]
            {
                (0..3).for_each(|_| rates.add(&row_name(name, 2), ENGINE, rate));
            }
            let pairs = Pairs([rates, times].into_iter().chain(rest).collect());
            let found = pairs.costs().chain(pairs.as_user()).map(|verdict| verdict.standing);
            found.collect::<Vec<_>>()
        };
        assert_eq!(standings(2.8, 9.1), [Reached, Reached]);
        assert_eq!(standings(2.9, 8.9), [Missed, Missed]);
    }

    #[test]
    fn creators_beside_syncs_keep_their_rate_and_stats_are_in_time() {
        let standings = |made: f64, stat: f64| {
            let [mut rates, times, instructions, mut latencies] = tables();
            for (side, stat) in [(EXT4, 2.0), (ENGINE, stat)] {
                for ((name, _), made) in LOADS.iter().zip([100.0, made]) {
                    (0..3).for_each(|_| rates.add(&row_name(name, CREATORS), side, made));
                    (0..3).for_each(|_| latencies.add(&row_name(name, CREATORS), side, stat));
                }
            }
            let verdicts = Pairs(vec![rates, times, instructions, latencies]).verdicts();
            verdicts.iter().map(|verdict| verdict.standing).collect::<Vec<_>>()
        };
        assert_eq!(standings(60.0, 1.0), [Reached, Reached]);
        assert_eq!(standings(40.0, 3.0), [Missed, Missed]);
    }
}
