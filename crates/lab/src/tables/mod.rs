//! Tables of designs: former ones beside the engine's, on the same workload.
//!
//! The older designs exist here only. Within a table all designs implement one trait.

pub mod aim7;
pub mod dref;
pub mod inodes;
#[cfg(feature = "designs")]
pub mod orphan;
pub mod sync;

pub use crate::grid::Grid;

use crate::grid::row_name;
use crate::measure::turn;
use crate::options::Options;
use std::io;
use std::time::Duration;

/// Rows of a table: names, and workloads with numbers of threads.
type Rows<W> = Vec<(String, (usize, W))>;

impl Options {
    /// Returns how long rows without an end of their own take.
    pub fn window(&self) -> Duration {
        Duration::from_millis(if self.quick { 5 } else { 40 })
    }

    /// Returns a row for each number of threads and each workload.
    pub fn rows<W: Copy, N: AsRef<str>>(&self, usual: &[usize], works: &[(N, W)]) -> Rows<W> {
        let of = |&threads: &usize| {
            works
                .iter()
                .map(move |(name, work)| (row_name(name.as_ref(), threads), (threads, *work)))
        };
        let rows = self.threads(usual).iter().flat_map(of);
        rows.filter(|(name, _)| self.wants(name)).collect()
    }

    /// Measures every design in every row, run by run; the designs take turns.
    pub fn fill<R>(
        &self,
        grid: &mut Grid,
        rows: &[(String, R)],
        mut cell: impl FnMut(&R, usize) -> io::Result<f64>,
    ) -> io::Result<()> {
        for run in 0..self.runs(9, 2) {
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

/// Returns the error for a violated invariant of a design.
pub fn broken(design: &str, what: &str) -> io::Error {
    io::Error::other(format!("{design}: {what}"))
}
