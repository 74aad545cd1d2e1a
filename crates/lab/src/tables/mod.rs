//! Tables of designs: former ones beside the engine's, on the same workload.
//!
//! The older designs exist here only. Within a table all designs implement one trait.

pub mod dref;
pub mod inodes;
pub mod orphan;
pub mod sync;

pub use crate::grid::Grid;

use std::io;
use std::time::Duration;

/// Arguments that all tables have.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// Measurements of each cell; the designs take turns.
    #[arg(long, default_value_t = 9)]
    pub runs: usize,
    /// Less work and fewer measurements.
    #[arg(long)]
    pub quick: bool,
    /// Numbers of threads, divided by commas, in place of the usual ones.
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub threads: Vec<usize>,
    /// One JSON document with every measured value, in place of tables.
    #[arg(long)]
    pub json: bool,
}

impl Common {
    /// Measurements of each cell.
    pub fn runs(&self) -> usize {
        if self.quick { self.runs.clamp(1, 2) } else { self.runs.max(1) }
    }

    /// How long rows without an end of their own take.
    pub fn window(&self) -> Duration {
        Duration::from_millis(if self.quick { 5 } else { 40 })
    }

    /// Numbers of threads.
    pub fn threads<'a>(&'a self, usual: &'a [usize]) -> &'a [usize] {
        if self.threads.is_empty() { usual } else { &self.threads }
    }
}

/// Rows of a table: names, and workloads with numbers of threads.
type Rows<W> = Vec<(String, (usize, W))>;

impl Common {
    /// Returns a row for each number of threads and each workload.
    pub fn rows<W: Copy, N: std::fmt::Display>(
        &self,
        usual: &[usize],
        works: &[(N, W)],
    ) -> Rows<W> {
        let of = |&threads: &usize| {
            works
                .iter()
                .map(move |(name, work)| (format!("{name}, {threads} threads"), (threads, *work)))
        };
        self.threads(usual).iter().flat_map(of).collect()
    }

    /// Measures every design in every row, run by run; the designs take turns.
    pub fn fill<R>(
        &self,
        grid: &mut Grid,
        rows: &[(String, R)],
        mut cell: impl FnMut(&R, usize) -> io::Result<f64>,
    ) -> io::Result<()> {
        for run in 0..self.runs() {
            for (name, row) in rows {
                for design in turn(run, grid.columns.len()) {
                    let value = cell(row, design);
                    let value = value.map_err(|e| broken(&grid.columns[design], &e.to_string()))?;
                    grid.add(name, design, value);
                }
            }
        }
        Ok(())
    }
}

/// Columns in the order of a run: each second one backwards, so that none always follows the same
/// one.
pub fn turn(run: usize, columns: usize) -> Vec<usize> {
    let forward = 0..columns;
    if run.is_multiple_of(2) { forward.collect() } else { forward.rev().collect() }
}

/// Returns the error for a violated invariant of a design.
pub fn broken(design: &str, what: &str) -> io::Error {
    io::Error::other(format!("{design}: {what}"))
}
