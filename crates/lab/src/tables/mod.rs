//! Tables of workloads in rows, with a side or a design in each column.

pub mod aim7;
#[cfg(feature = "designs")]
pub mod designs;

pub use crate::grid::Grid;

use crate::options::Options;
use std::io;
use std::time::Duration;

/// Commands that compare designs under the engine.
pub const DESIGNS: [&str; 5] = ["dref", "inodes", "orphan", "preallocs", "sync"];

impl Options {
    /// Returns how long rows without an end of their own take.
    pub fn window(&self) -> Duration {
        Duration::from_millis(if self.quick { 5 } else { 40 })
    }

    /// Measures every design in every row, run by run; the designs take turns.
    pub fn fill<R>(
        &self,
        grid: &mut Grid,
        rows: &[(String, R)],
        mut cell: impl FnMut(&R, usize) -> io::Result<f64>,
    ) -> io::Result<()> {
        let designs = grid.columns.clone();
        self.measure(self.runs(9, 2), rows, &designs, |name, row, design| {
            grid.add(name, design, cell(row, design)?);
            Ok(())
        })
    }
}
