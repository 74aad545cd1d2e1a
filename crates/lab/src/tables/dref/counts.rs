//! Writes and locks of a get and a put on memory that threads share.

use super::{CHOSEN, DESIGNS, THREADS, measure, uses};
use crate::contention::Counter;
use crate::options::Options;
use crate::tables::Grid;
use extant_sync::contention::FELL_BACK;
use std::io;

/// Counts for each pair of a get and a put.
pub fn grid(options: &Options) -> io::Result<Grid> {
    let mut grid =
        Grid::new("references: what a get and a put do", "see rows", &DESIGNS, CHOSEN).plain();
    for &threads in options.threads(&THREADS) {
        for (name, how) in uses() {
            for design in 0..DESIGNS.len() {
                let counter = Counter::default();
                let done = measure(design, how, (threads, options.window()), &counter)?;
                let pairs = done.ops.iter().sum::<u64>().max(1) as f64;
                let report = counter.into_report();
                let fell = report.events.get(FELL_BACK).copied().unwrap_or(0);
                for (what, count) in [
                    ("writes", report.writes()),
                    ("failed exchanges", report.failed()),
                    ("locks, falls back", report.locks() + fell),
                ] {
                    grid.add(
                        &format!("{name}, {threads} threads: {what}"),
                        design,
                        count as f64 / pairs,
                    );
                }
            }
        }
    }
    Ok(grid)
}
