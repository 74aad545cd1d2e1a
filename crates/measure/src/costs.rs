//! Times, memory and transfers of whole programs, and how they stand to their bars.

use crate::grid::Grid;
use crate::interval::{Verdict, judged};
use crate::sheet::{Sheet, figure};
use crate::stored::Results;
use crate::timing;
use serde::{Deserialize, Serialize};

/// Columns of all tables; the first one has bars. `floor` moves or reads the same bytes only.
pub const COST_COLUMNS: [&str; 7] =
    ["extant", "floor", "e2fsprogs", "genext2fs", "kernel", "cp", "qemu"];

/// Measured times, memory and transfers.
#[derive(Debug, Deserialize, Serialize)]
pub struct Costs {
    times: Grid,
    memory: Grid,
    /// Bytes of system calls that read and write, in rows about them.
    reads: Grid,
    writes: Grid,
    bars: Vec<CostBar>,
}

/// The cost of a run. Memory and transfers are unknown for work without a process of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunCost {
    /// Seconds.
    pub seconds: f64,
    /// The most bytes of memory at once.
    pub bytes: Option<u64>,
    /// Bytes read and written by system calls.
    pub transfers: Option<(u64, u64)>,
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
    /// So many objects in a second.
    Rate {
        /// Row.
        row: String,
        /// Objects of the row.
        count: u64,
        /// Objects in a second.
        rate: f64,
    },
    /// So many bytes read.
    Read {
        /// Row.
        row: String,
        /// Bytes.
        bytes: u64,
    },
    /// So many bytes written.
    Written {
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
        let plain = |title| grid(title, "MB").plain();
        let (times, memory) = (grid("time", "ms"), plain("memory"));
        Costs { times, memory, reads: plain("bytes read"), writes: plain("bytes written"), bars }
    }

    /// Adds a run of a row.
    pub fn add(&mut self, row: &str, column: usize, cost: RunCost) {
        self.times.add(row, column, cost.seconds * 1e3);
        let add = |grid: &mut Grid, bytes| grid.add(row, column, bytes as f64 / 1e6);
        if let Some(bytes) = cost.bytes {
            add(&mut self.memory, bytes);
        }
        if let Some((read, written)) = cost.transfers {
            add(&mut self.reads, read);
            add(&mut self.writes, written);
        }
    }

    fn verdict(&self, bar: &CostBar) -> Option<Verdict> {
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
            CostBar::Rate { row, count, rate } => {
                let found = *count as f64 / (median(&self.times, row)? / 1e3);
                let what = format!("{row}: {} a second", figure(*rate));
                Verdict::new(what, figure(found), found >= *rate)
            }
            CostBar::Bytes { row, bytes } => megabytes(&self.memory, row, "memory", *bytes)?,
            CostBar::Read { row, bytes } => megabytes(&self.reads, row, "reads", *bytes)?,
            CostBar::Written { row, bytes } => megabytes(&self.writes, row, "writes", *bytes)?,
        })
    }
}

/// Returns the median of the first column in a row.
fn median(grid: &Grid, row: &str) -> Option<f64> {
    let (_, cells) = &grid.rows[grid.row(row)?];
    timing::median(&cells[0])
}

fn megabytes(grid: &Grid, row: &str, of: &str, bytes: u64) -> Option<Verdict> {
    let (found, bar) = (median(grid, row)?, bytes as f64 / 1e6);
    let (what, shown) = (format!("{row}: {of} within {bar:.0} MB"), format!("{found:.0} MB"));
    Some(Verdict::new(what, shown, found <= bar))
}

impl Results for Costs {
    fn sheets(&self) -> Vec<Sheet> {
        let mut sheets = self.times.sheets();
        sheets.extend(self.memory.sheets());
        let transfers =
            [&self.reads, &self.writes].into_iter().filter(|grid| !grid.rows.is_empty());
        sheets.extend(transfers.flat_map(Grid::sheets));
        sheets.push(judged(&self.verdicts()));
        sheets
    }

    fn verdicts(&self) -> Vec<Verdict> {
        self.bars.iter().filter_map(|bar| self.verdict(bar)).collect()
    }
}
