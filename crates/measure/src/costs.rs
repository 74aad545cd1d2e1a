//! Times and memory of whole programs, and how they stand to their bars.

use crate::grid::Grid;
use crate::interval::{Verdict, judged};
use crate::sheet::Sheet;
use crate::stored::Results;
use crate::timing::median;
use serde::{Deserialize, Serialize};

/// Columns of all tables; the first one has bars. `floor` moves or reads the same bytes only.
pub const COST_COLUMNS: [&str; 7] =
    ["extant", "floor", "e2fsprogs", "genext2fs", "kernel", "cp", "qemu"];

/// Measured times and memory.
#[derive(Debug, Deserialize, Serialize)]
pub struct Costs {
    times: Grid,
    memory: Grid,
    bars: Vec<CostBar>,
}

/// A bar for the first column in a row.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub enum CostBar {
    /// So many times the time of another column.
    Times {
        /// Row.
        row: String,
        /// Other column.
        column: String,
        /// Factor.
        times: f64,
    },
    /// So many seconds.
    Seconds {
        /// Row.
        row: String,
        /// Seconds.
        seconds: f64,
    },
    /// So many bytes at once.
    Bytes {
        /// Row.
        row: String,
        /// Bytes.
        bytes: u64,
    },
}

impl Costs {
    /// Begins without values.
    pub fn new(bars: Vec<CostBar>) -> Costs {
        let grid = |title, unit| Grid::new(title, unit, &COST_COLUMNS, 0).less();
        Costs { times: grid("time", "ms"), memory: grid("memory", "MB").plain(), bars }
    }

    /// Adds a run of a row: seconds, and bytes if they are known.
    pub fn add(&mut self, row: &str, column: usize, seconds: f64, bytes: Option<u64>) {
        self.times.add(row, column, seconds * 1e3);
        if let Some(bytes) = bytes {
            self.memory.add(row, column, bytes as f64 / 1e6);
        }
    }

    fn verdict(&self, bar: &CostBar) -> Option<Verdict> {
        let median = |grid: &Grid, row: &str| {
            let (_, cells) = &grid.rows[grid.row(row)?];
            median(&cells[0])
        };
        Some(match bar {
            CostBar::Times { row, column, times } => {
                let gain = self.times.gain(self.times.row(row)?, self.times.column(column)?)?;
                let bar = 1.0 / times;
                let what = format!("{row}: {bar:.2} times the speed of {column} or more");
                Verdict::of(what, gain, bar)
            }
            CostBar::Seconds { row, seconds } => {
                let found = median(&self.times, row)? / 1e3;
                let what = format!("{row}: within {:.0} ms", seconds * 1e3);
                Verdict::new(what, format!("{:.1} ms", found * 1e3), found <= *seconds)
            }
            CostBar::Bytes { row, bytes } => {
                let found = median(&self.memory, row)? * 1e6;
                let what = format!("{row}: within {:.0} MB", *bytes as f64 / 1e6);
                Verdict::new(what, format!("{:.0} MB", found / 1e6), found <= *bytes as f64)
            }
        })
    }
}

impl Results for Costs {
    fn sheets(&self) -> Vec<Sheet> {
        let mut sheets = self.times.sheets();
        sheets.extend(self.memory.sheets());
        sheets.push(judged(&self.verdicts()));
        sheets
    }

    fn verdicts(&self) -> Vec<Verdict> {
        self.bars.iter().filter_map(|bar| self.verdict(bar)).collect()
    }
}
