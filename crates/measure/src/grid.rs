//! Measured values by workload and design.

use crate::interval::{Interval, Verdict};
use crate::sheet::{Name, Sheet, figure};
use crate::timing::median;
use serde::{Deserialize, Serialize};

/// A table: rows are workloads, columns designs, each cell has a value of each run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Grid {
    /// The measured quantity.
    pub title: Name,
    /// Unit of the values.
    pub unit: Name,
    /// Whether less is better.
    pub less: bool,
    /// The designs.
    pub columns: Vec<Name>,
    /// The one of them that the others are compared with.
    pub chosen: usize,
    /// Whether the columns are compared.
    pub compared: bool,
    /// A column, and the required gain of the chosen design over it.
    pub bar: Option<(usize, f64)>,
    /// Name and values, column by column.
    pub rows: Vec<(String, Vec<Vec<f64>>)>,
}

impl Grid {
    /// Makes an empty table of values of which more is better.
    pub fn new(
        title: impl Into<Name>,
        unit: &'static str,
        columns: &[impl Clone + Into<Name>],
        chosen: usize,
    ) -> Grid {
        let columns = columns.iter().cloned().map(Into::into).collect();
        Grid {
            title: title.into(),
            unit: unit.into(),
            less: false,
            columns,
            chosen,
            compared: true,
            bar: None,
            rows: Vec::new(),
        }
    }

    /// The same where less is better.
    pub fn less(self) -> Grid {
        Grid { less: true, ..self }
    }

    /// The same without a comparison.
    pub fn plain(self) -> Grid {
        Grid { compared: false, ..self }
    }

    /// Adds a value of the next run to a cell, in a new row if there is none of this name.
    pub fn add(&mut self, row: &str, column: usize, value: f64) {
        let at = self.row(row).unwrap_or_else(|| {
            self.rows.push((row.to_owned(), vec![Vec::new(); self.columns.len()]));
            self.rows.len() - 1
        });
        self.rows[at].1[column].push(value);
    }

    /// Returns the chosen design's gain over another in a row, run by run: above 1 it is better.
    pub fn gain(&self, row: usize, column: usize) -> Option<Interval> {
        self.gain_of(row, self.chosen, column)
    }

    /// The same for the design of any column.
    pub fn gain_of(&self, row: usize, column: usize, over: usize) -> Option<Interval> {
        let (_, cells) = self.rows.get(row)?;
        let (more, less) = if self.less { (over, column) } else { (column, over) };
        Interval::of_pairs(&cells[more], &cells[less])
    }

    /// Returns the rows of a workload with a number of threads: index, workload and number.
    pub fn by_threads(&self) -> impl Iterator<Item = (usize, &str, usize)> {
        self.rows.iter().enumerate().filter_map(|(row, (name, _))| {
            let (work, threads) = parts(name)?;
            Some((row, work, threads))
        })
    }

    /// Returns the index of a row.
    pub fn row(&self, name: &str) -> Option<usize> {
        self.rows.iter().position(|(row, _)| row == name)
    }

    /// Returns the index of a column.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column == name)
    }

    /// Medians, then gains of the chosen design over each of the others.
    pub fn sheets(&self) -> Vec<Sheet> {
        let better = match (self.compared, self.less) {
            (false, _) => "",
            (true, true) => "; less is better",
            (true, false) => "; more is better",
        };
        let title = format!("{} ({}, medians{better})", self.title, self.unit);
        let medians = self.sheet(title, 0..self.columns.len(), |row, column| {
            median(&self.rows[row].1[column]).map(shown)
        });
        let others = (0..self.columns.len()).filter(|column| *column != self.chosen);
        let gains = self.compared.then(|| self.gains(self.chosen, others));
        let mut sheets: Vec<Sheet> = [medians].into_iter().chain(gains).collect();
        if let Some(last) = sheets.last_mut() {
            last.notes = self.verdicts().iter().map(Verdict::line).collect();
        }
        sheets
    }

    /// Returns how each row stands to the bar, if there is one.
    pub fn verdicts(&self) -> Vec<Verdict> {
        let Some((over, bar)) = self.bar else { return Vec::new() };
        let rows = self.rows.iter().enumerate();
        rows.filter_map(|(row, (name, _))| {
            let what = format!("{name}: at least {bar} of {}", self.columns[over]);
            Some(Verdict::of(what, self.gain(row, over)?, bar))
        })
        .collect()
    }

    /// Returns the table of the gains of one column over others.
    pub fn gains(&self, of: usize, over: impl Iterator<Item = usize> + Clone) -> Sheet {
        let title = format!("{}: gain of {} over [95%]", self.title, self.columns[of]);
        let gain = |row, column| self.gain_of(row, of, column).map(|gain| gain.to_string());
        self.sheet(title, over, gain)
    }

    fn sheet(
        &self,
        title: String,
        columns: impl Iterator<Item = usize> + Clone,
        cell: impl Fn(usize, usize) -> Option<String>,
    ) -> Sheet {
        let names = columns.clone().map(|column| self.columns[column].to_string());
        let mut sheet = Sheet::new(title, [String::new()].into_iter().chain(names));
        for (row, (name, _)) in self.rows.iter().enumerate() {
            let cells = columns.clone().map(|at| cell(row, at).unwrap_or_else(|| "-".into()));
            sheet.row([name.clone()].into_iter().chain(cells));
        }
        sheet
    }
}

/// Returns the name of the row of a workload with a number of threads.
pub fn row_name(work: &str, threads: usize) -> String {
    format!("{work}, {threads} threads")
}

/// Returns the workload and the number of threads of a row's name.
pub fn parts(name: &str) -> Option<(&str, usize)> {
    let (work, threads) = name.strip_suffix(" threads")?.rsplit_once(", ")?;
    Some((work, threads.parse().ok()?))
}

/// Four digits or so, of small values too.
pub fn shown(value: f64) -> String {
    if value < 10.0 { format!("{value:.4}") } else { figure(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_are_of_the_chosen_and_above_one_where_it_is_better() {
        let mut rates = Grid::new("t", "ops/s", &["old", "new"], 1);
        let mut times = Grid::new("t", "s", &["old", "new"], 1).less();
        for _ in 0..3 {
            for (column, rate) in [(0, 5.0), (1, 20.0)] {
                rates.add("row", column, rate);
                times.add("row", column, 1.0 / rate);
            }
        }
        for grid in [rates, times] {
            let gain = grid.gain(0, 0).expect("both were measured");
            assert!((gain.mean - 4.0).abs() < 1e-9 && (gain.low - 4.0).abs() < 1e-6, "{gain}");
            let sheets = grid.sheets();
            assert_eq!(sheets[1].rows, [["row".to_owned(), gain.to_string()]], "{sheets:?}");
        }
    }
}
