//! The project's bars: the required rate of each workload beside another side.

use crate::huge::Huge;
use crate::side::Side;
use extant_measure::grid::{Grid, row_name};
use extant_measure::interval::{Interval, Verdict};

/// How many times fuse2fs a workload has to be.
const TIMES_FUSE2FS: [(&str, f64); 10] = [
    ("stat every file of a tree, cold", 10.0),
    ("stat every file of a tree, warm", 10.0),
    ("untar", 10.0),
    ("rm -rf", 10.0),
    ("create empty files", 5.0),
    ("create 4 KiB files", 5.0),
    ("unlink", 5.0),
    ("delete 4 KiB files", 5.0),
    ("sequential read, cold", 2.0),
    ("sequential write and fsync", 3.0),
];

/// The share of a null server's rate that workloads on names and attributes have to reach.
const OF_NULL: f64 = 0.85;

/// The share that workloads on content have to reach: the null server moves none.
const OF_NULL_CONTENT: f64 = 2.0 / 3.0;

/// Workloads on content.
const CONTENT: [&str; 4] = [
    "sequential write and fsync",
    "sequential read, cold",
    "random 4 KiB read, cold",
    "append 4 KiB and fsync",
];

/// Workloads whose rate in process must equal that through the kernel's system calls.
const LIKE_KERNEL: [&str; 3] = ["create empty files", "unlink", "stat files of one directory"];

/// Seconds that opening a file system of 60 TiB may take.
const HUGE_SECONDS: f64 = 0.5;

/// Bytes that it may take.
const HUGE_BYTES: u64 = 200_000_000;

/// Returns all bars for which there are figures.
pub fn judge(rates: &Grid, huge: Option<&Huge>) -> Vec<Verdict> {
    let through =
        |ours, null| rates.by_threads().filter_map(move |row| through_fuse(rates, row, ours, null));
    let device = through(Side::ExtantFuse, Side::Null);
    let rings = through(Side::ExtantRings, Side::NullRings);
    let kernel = rates.by_threads().filter_map(|row| like_kernel(rates, row));
    let threads = LIKE_KERNEL.iter().filter_map(|work| many_threads(rates, work));
    let huge = huge.into_iter().flat_map(large_mount);
    device.chain(rings).chain(kernel).chain(threads).chain(huge).collect()
}

fn ratio(rates: &Grid, row: usize, ours: Side, theirs: Side) -> Option<Interval> {
    rates.gain_of(row, rates.column(&ours.name())?, rates.column(&theirs.name())?)
}

/// Beside fuse2fs and the null server; where both say something, the lower of the two counts.
fn through_fuse(
    rates: &Grid,
    (row, work, threads): (usize, &str, usize),
    ours: Side,
    null: Side,
) -> Option<Verdict> {
    let times = TIMES_FUSE2FS.iter().find(|(name, _)| *name == work);
    let share = if CONTENT.contains(&work) { OF_NULL_CONTENT } else { OF_NULL };
    let bars = times.map(|(_, times)| (*times, Side::Fuse2fs)).into_iter().chain([(share, null)]);
    let verdict = |(bar, side): (f64, Side)| {
        let ratio = ratio(rates, row, ours, side)?;
        Some(Verdict::of(format!("{bar:.2} of {}", side.name()), ratio, bar))
    };
    let verdicts: Vec<Verdict> = bars.filter_map(verdict).collect();
    let standing = verdicts.iter().map(|verdict| verdict.standing).min()?;
    let lower = if verdicts.len() > 1 { " (the lower)" } else { "" };
    let all = |part: fn(&Verdict) -> &str| verdicts.iter().map(part).collect::<Vec<_>>();
    let bars = all(|verdict| &verdict.what).join(" or ");
    let found = all(|verdict| &verdict.found).join("; ");
    let what = format!("{}, {work}, {threads} threads, {bars}{lower}", ours.name());
    Some(Verdict::new(what, found, standing))
}

fn like_kernel(rates: &Grid, (row, work, threads): (usize, &str, usize)) -> Option<Verdict> {
    if !LIKE_KERNEL.contains(&work) || threads > 2 {
        return None;
    }
    let what = format!("in process, {work}, {threads} threads, as the kernel's system calls");
    Some(Verdict::of(what, ratio(rates, row, Side::Engine, Side::Ext4)?, 1.0))
}

/// 16 threads beside 2.
fn many_threads(rates: &Grid, work: &str) -> Option<Verdict> {
    let column = rates.column(&Side::Engine.name())?;
    let values = |threads| {
        let row = rates.row(&row_name(work, threads))?;
        Some(rates.rows[row].1[column].as_slice())
    };
    let what = format!("in process, {work}, 16 threads no slower than 2");
    Some(Verdict::of(what, Interval::of_pairs(values(16)?, values(2)?)?, 1.0))
}

fn large_mount(huge: &Huge) -> [Verdict; 2] {
    let Huge { seconds, bytes } = huge;
    let megabytes = |bytes: u64| format!("{:.0} MB", bytes as f64 / 1e6);
    let time = format!("mounting 60 TiB within {HUGE_SECONDS} s");
    let memory = format!("mounting 60 TiB within {}", megabytes(HUGE_BYTES));
    [
        Verdict::new(time, format!("{seconds} s"), seconds.median < HUGE_SECONDS),
        Verdict::new(memory, megabytes(*bytes), *bytes < HUGE_BYTES),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_measure::interval::Standing;

    #[test]
    fn the_lower_of_two_bars_counts() {
        let sides = [Side::ExtantFuse, Side::Fuse2fs, Side::Null].map(Side::name);
        let mut rates = Grid::new("rates", "", &sides, 0);
        for (work, theirs) in [("untar", [2.0, 8.0]), ("rm -rf", [2.0, 20.0])] {
            for (column, rate) in [(0, 9.0), (1, theirs[0]), (2, theirs[1])] {
                (0..3).for_each(|_| rates.add(&row_name(work, 1), column, rate));
            }
        }
        let verdicts = judge(&rates, None);
        let standings: Vec<_> = verdicts.iter().map(|verdict| verdict.standing).collect();
        assert_eq!(standings, [Standing::Reached, Standing::Missed], "{verdicts:?}");
    }
}
