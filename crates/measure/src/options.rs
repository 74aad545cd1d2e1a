//! Options that commands have in common.

use crate::grid::{Grid, row_name};
use crate::sheet::Name;
use crate::timing::turn;
use std::io::{self, IsTerminal};
use std::time::Duration;

/// Rows of a table: names, and workloads with numbers of threads.
pub type Rows<W> = Vec<(String, (usize, W))>;

/// Options of measurements.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Options {
    /// Measurements of each value; sides and designs take turns.
    #[arg(long, value_parser = at_least_one)]
    pub runs: Option<usize>,
    /// Less work of each kind and fewer measurements, for a look.
    #[arg(long)]
    pub quick: bool,
    /// Only rows or parts whose names contain this; may be given several times.
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Numbers of threads, divided by commas, in place of the usual ones.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = at_least_one)]
    pub threads: Vec<usize>,
    /// One JSON document with every measured value, in place of tables.
    #[arg(long)]
    pub json: bool,
    /// End with 1 if a bar is not reached.
    #[arg(long)]
    pub strict: bool,
}

impl Options {
    /// Returns the number of measurements, unless one is asked for.
    pub fn runs(&self, usual: usize, quick: usize) -> usize {
        self.runs.unwrap_or(if self.quick { quick } else { usual })
    }

    /// Refuses those options among `names` that are given: for commands without a use for them.
    pub fn refuse(&self, names: &[&str]) -> io::Result<()> {
        let given = [
            ("runs", self.runs.is_some()),
            ("quick", self.quick),
            ("only", !self.only.is_empty()),
            ("threads", !self.threads.is_empty()),
            ("strict", self.strict),
        ];
        match given.iter().find(|(name, given)| *given && names.contains(name)) {
            Some((name, _)) => Err(invalid(format!("`--{name}` has no effect on this command"))),
            None => Ok(()),
        }
    }

    /// Returns whether a name is selected.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| name.contains(word.as_str()))
    }

    /// Returns the numbers of threads.
    pub fn threads<'a>(&'a self, usual: &'a [usize]) -> &'a [usize] {
        if self.threads.is_empty() { usual } else { &self.threads }
    }

    /// Measures every row on every side, run by run; the sides take turns.
    pub fn measure<R>(
        &self,
        runs: usize,
        rows: &[(String, R)],
        sides: &[impl AsRef<str>],
        mut job: impl FnMut(&str, &R, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        for run in 0..runs {
            if !self.json || io::stderr().is_terminal() {
                eprintln!("run {} of {runs}", run + 1);
            }
            for (name, row) in rows {
                for side in turn(run, sides.len()) {
                    job(name, row, side).map_err(|e| {
                        let side = sides[side].as_ref();
                        io::Error::new(e.kind(), format!("{name} on {side}: {e}"))
                    })?;
                }
            }
        }
        Ok(())
    }

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

    /// Returns one measurement of little.
    pub fn least(threads: &[usize]) -> Options {
        let threads = threads.to_vec();
        Options { runs: Some(1), quick: true, threads, ..Options::default() }
    }
}

/// Parses a number of things of which there must be one.
///
/// # Errors
/// The reason of a refusal, for `clap`.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("the least is 1".into()),
        Ok(number) => Ok(number),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the name of a value on command lines.
pub fn word(value: impl clap::ValueEnum) -> Name {
    value.to_possible_value().map_or("".into(), |value| value.get_name().to_owned().into())
}

/// Returns the error of a wrong argument.
pub fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_done_zero_times() {
        assert_eq!(at_least_one("3"), Ok(3));
        for text in ["0", "-1", "x", ""] {
            at_least_one(text).unwrap_err();
        }
    }

    #[test]
    fn options_without_effect_are_refused_by_name() {
        let options = Options { threads: vec![2], ..Options::default() };
        options.refuse(&["runs", "only"]).unwrap();
        let why = options.refuse(&["only", "threads"]).unwrap_err().to_string();
        assert!(why.contains("`--threads`"), "{why}");
    }
}
