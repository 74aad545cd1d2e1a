//! Measured values by workload and design.

use crate::measure::median;
use crate::pairs::Interval;
use crate::report::figure;
use serde::Serialize;
use std::fmt::Write;

/// A table: rows are workloads, columns designs, each cell has a value of each run.
#[derive(Clone, Debug, Serialize)]
pub struct Grid {
    /// The measured quantity.
    pub title: &'static str,
    /// Unit of the values.
    pub unit: &'static str,
    /// Whether less is better.
    pub less: bool,
    /// The designs.
    pub columns: Vec<&'static str>,
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
        title: &'static str,
        unit: &'static str,
        columns: &[&'static str],
        chosen: usize,
    ) -> Grid {
        Grid {
            title,
            unit,
            less: false,
            columns: columns.to_vec(),
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

    /// Adds a bar: the required gain of the chosen design over another.
    pub fn with_bar(self, over: usize, gain: f64) -> Grid {
        Grid { bar: Some((over, gain)), ..self }
    }

    /// Adds a value.
    pub fn add(&mut self, row: &str, column: usize, value: f64) {
        let at = self.rows.iter().position(|(name, _)| name == row).unwrap_or_else(|| {
            self.rows.push((row.to_owned(), vec![Vec::new(); self.columns.len()]));
            self.rows.len() - 1
        });
        self.rows[at].1[column].push(value);
    }

    /// Returns the chosen design's gain over another in a row, run by run: above 1 it is better.
    pub fn gain(&self, row: usize, column: usize) -> Option<Interval> {
        let (_, cells) = self.rows.get(row)?;
        if self.less {
            Interval::of_pairs(&cells[column], &cells[self.chosen])
        } else {
            Interval::of_pairs(&cells[self.chosen], &cells[column])
        }
    }

    /// Medians, then gains of the chosen design over each of the others.
    pub fn text(&self) -> String {
        let better = match (self.compared, self.less) {
            (false, _) => "",
            (true, true) => "; less is better",
            (true, false) => "; more is better",
        };
        let mut out = format!("{} ({}, medians{better})\n{:<44}", self.title, self.unit, "");
        self.columns.iter().for_each(|name| {
            let _ = write!(out, " {name:>14}");
        });
        for (name, cells) in &self.rows {
            let _ = write!(out, "\n{name:<44}");
            for cell in cells {
                let shown = median(cell).map_or("-".into(), shown);
                let _ = write!(out, " {shown:>14}");
            }
        }
        out.push('\n');
        if self.compared {
            self.gains(&mut out);
        }
        self.verdicts(&mut out);
        out
    }

    fn verdicts(&self, out: &mut String) {
        let Some((over, bar)) = self.bar else { return };
        for (row, (name, _)) in self.rows.iter().enumerate() {
            if let Some(gain) = self.gain(row, over) {
                let word = gain.beside(bar).word();
                let _ = writeln!(
                    out,
                    "{word:<8} {name}: at least {bar} of {}: {gain}",
                    self.columns[over]
                );
            }
        }
    }

    fn gains(&self, out: &mut String) {
        let others = || (0..self.columns.len()).filter(|column| *column != self.chosen);
        let _ = write!(out, "{:<44}", format!("gain of {} over [95%]", self.columns[self.chosen]));
        others().for_each(|column| {
            let _ = write!(out, " {:>24}", self.columns[column]);
        });
        for (row, (name, _)) in self.rows.iter().enumerate() {
            let _ = write!(out, "\n{name:<44}");
            for column in others() {
                let gain = self.gain(row, column).map_or("-".into(), |gain| gain.to_string());
                let _ = write!(out, " {gain:>24}");
            }
        }
        out.push('\n');
    }
}

/// Four digits or so, of small values too.
fn shown(value: f64) -> String {
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
            assert!(grid.text().lines().count() == 5, "{}", grid.text());
        }
    }
}
