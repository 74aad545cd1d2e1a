//! The project's bars: the required rate of each workload beside another side.

use crate::huge::Huge;
use crate::measure::{Record, Row, Spread};
use crate::side::Side;
use serde::Serialize;

/// Verdict about a bar, with its figures.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The bar.
    pub bar: String,
    /// Whether it is reached.
    pub reached: bool,
    /// The figures of this run.
    pub found: String,
}

/// How many times fuse2fs a workload has to be.
const TIMES_FUSE2FS: [(&str, f64); 10] = [
    ("stat every file of a tree, cold", 10.0),
    ("stat every file of a tree, warm", 10.0),
    ("untar", 10.0),
    ("rm -rf", 10.0),
    ("create empty files", 5.0),
    ("create 4 KiB files", 5.0),
    ("delete empty files", 5.0),
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
const LIKE_KERNEL: [&str; 3] = ["create empty files", "delete empty files", "stat files, warm"];

/// Seconds that opening a file system of 60 TiB may take.
const HUGE_SECONDS: f64 = 0.5;

/// Bytes that it may take.
const HUGE_BYTES: u64 = 200_000_000;

/// Returns all bars for which there are figures.
pub fn judge(record: &Record, huge: Option<&Huge>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for (ours, null) in [(Side::ExtantFuse, Side::Null), (Side::ExtantRings, Side::NullRings)] {
        verdicts.extend(
            record.rows().iter().filter_map(|(row, _)| through_fuse(record, row, ours, null)),
        );
    }
    for (row, _) in record.rows() {
        verdicts.extend(like_kernel(record, row));
    }
    verdicts.extend(LIKE_KERNEL.iter().filter_map(|w| many_threads(record, w)));
    verdicts.extend(huge.into_iter().flat_map(large_mount));
    verdicts
}

fn name(row: &Row) -> String {
    let plural = if row.threads == 1 { "" } else { "s" };
    format!("{}, {} thread{plural}", row.workload, row.threads)
}

/// Beside fuse2fs and the null server; where both say something, the lower of the two counts.
fn through_fuse(record: &Record, row: &Row, side: Side, null: Side) -> Option<Verdict> {
    let ours = side.name();
    let times = TIMES_FUSE2FS
        .iter()
        .find(|(workload, _)| *workload == row.workload)
        .map(|(_, times)| *times);
    let beside_fuse2fs =
        times.and_then(|t| Some((t, record.ratio(row, ours, Side::Fuse2fs.name())?)));
    let beside_null = record.ratio(row, ours, null.name());
    let mut bar = Vec::new();
    let mut found = Vec::new();
    let mut reached = false;
    if let Some((times, ratio)) = beside_fuse2fs {
        bar.push(format!("{times:.0} times fuse2fs"));
        found.push(format!("{ratio} times fuse2fs"));
        reached |= ratio.median >= times;
    }
    if let Some(ratio) = beside_null {
        let share = if CONTENT.contains(&&*row.workload) { OF_NULL_CONTENT } else { OF_NULL };
        bar.push(format!("{share:.2} of a null server"));
        found.push(format!("{ratio} of null"));
        reached |= ratio.median >= share;
    }
    if bar.is_empty() {
        return None;
    }
    let lower = if bar.len() > 1 { " (the lower)" } else { "" };
    let way = if side == Side::ExtantRings { "io_uring" } else { "FUSE" };
    Some(Verdict {
        bar: format!("through {way}, {}, {}{lower}", name(row), bar.join(" or ")),
        reached,
        found: found.join("; "),
    })
}

fn like_kernel(record: &Record, row: &Row) -> Option<Verdict> {
    if !LIKE_KERNEL.contains(&&*row.workload) || row.threads > 2 {
        return None;
    }
    let ratio = record.ratio(row, Side::Engine.name(), Side::Ext4.name())?;
    Some(Verdict {
        bar: format!("in process, {}, as the kernel's system calls", name(row)),
        reached: ratio.median >= 1.0,
        found: format!("{ratio} times ext4"),
    })
}

/// 16 threads beside 2.
fn many_threads(record: &Record, workload: &'static str) -> Option<Verdict> {
    let rates =
        |threads| record.values(&Row { workload: workload.into(), threads }, Side::Engine.name());
    let ratios: Vec<f64> = rates(16)?.iter().zip(rates(2)?).map(|(many, two)| many / two).collect();
    let ratio = Spread::of(&ratios)?;
    Some(Verdict {
        bar: format!("in process, {workload}, 16 threads no slower than 2"),
        reached: ratio.median >= 1.0,
        found: format!("{ratio} times the rate of 2 threads"),
    })
}

fn large_mount(huge: &Huge) -> Vec<Verdict> {
    let time = Verdict {
        bar: format!("mounting 60 TiB within {HUGE_SECONDS} s"),
        reached: huge.seconds.median < HUGE_SECONDS,
        found: format!("{} s", huge.seconds),
    };
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let memory = Verdict {
        bar: format!("mounting 60 TiB within {:.0} MB", megabytes(HUGE_BYTES)),
        reached: huge.process_bytes < HUGE_BYTES,
        found: format!("{:.0} MB, the whole process", megabytes(huge.process_bytes)),
    };
    vec![time, memory]
}
