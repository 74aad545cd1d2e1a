//! Rows: pieces of work that several programs do.

use crate::program::Program;
use extant_measure::grid::Grid;
use extant_measure::interval::Verdict;
use extant_measure::options::{Options, invalid};
use extant_measure::scratch::catch_signals;
use extant_measure::sheet::Sheet;
use extant_measure::stored::Results;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of a comparison.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub options: Options,
    /// The program `extant`; beside this one unless it is given.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

impl Args {
    /// Returns the path of the program `extant`.
    pub fn program(&self) -> io::Result<PathBuf> {
        let path = match &self.program {
            Some(path) => path.clone(),
            None => std::env::current_exe()?.with_file_name("extant"),
        };
        if path.is_file() {
            return Ok(path);
        }
        let path = path.display();
        Err(invalid(format!("{path} is missing: `cargo build --release -p extant-cli`")))
    }
}

/// The work of a side in a row.
pub enum Side {
    Program(Program),
    /// Work in this process. It has no memory of its own.
    Here(Box<dyn Fn() -> io::Result<()>>),
}

/// Work, and those that do it.
pub struct Row {
    name: String,
    /// Columns and their work.
    sides: Vec<(&'static str, Side)>,
    /// Columns, and how many times their time Extant may take.
    times: Vec<(&'static str, f64)>,
    /// Seconds that it may take.
    seconds: Option<f64>,
    /// Bytes that it may have at once.
    bytes: Option<u64>,
    /// Files and directories that are removed before each run.
    outputs: Vec<PathBuf>,
}

impl Row {
    pub fn new(name: impl Into<String>, outputs: &[&Path]) -> Row {
        Row {
            name: name.into(),
            sides: Vec::new(),
            times: Vec::new(),
            seconds: None,
            bytes: None,
            outputs: outputs.iter().map(|path| path.to_path_buf()).collect(),
        }
    }

    /// With a program in a column.
    pub fn with(mut self, column: &'static str, program: Program) -> Row {
        self.sides.push((column, Side::Program(program)));
        self
    }

    /// With Extant's library in this process.
    pub fn here(mut self, work: impl Fn() -> io::Result<()> + 'static) -> Row {
        self.sides.push((COLUMNS[0], Side::Here(Box::new(work))));
        self
    }

    /// Extant may take so many times the time of another one.
    pub fn within(mut self, times: f64, column: &'static str) -> Row {
        self.times.push((column, times));
        self
    }

    /// Extant may take so many seconds.
    pub fn seconds(self, seconds: f64) -> Row {
        Row { seconds: Some(seconds), ..self }
    }

    /// Extant may have so many bytes at once.
    pub fn bytes(self, bytes: u64) -> Row {
        Row { bytes: Some(bytes), ..self }
    }

    fn clear(&self) -> io::Result<()> {
        for path in &self.outputs {
            let removed = if path.is_dir() {
                std::fs::remove_dir_all(path)
            } else {
                std::fs::remove_file(path)
            };
            match removed {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Measured times and memory.
#[derive(Debug, Deserialize, Serialize)]
pub struct Measured {
    times: Grid,
    memory: Grid,
    bars: Vec<Bar>,
}

/// A bar for Extant in a row.
#[derive(Clone, Debug, Deserialize, Serialize)]
enum Bar {
    Times { row: String, column: String, times: f64 },
    Seconds { row: String, seconds: f64 },
    Bytes { row: String, bytes: u64 },
}

impl Bar {
    fn all(row: &Row) -> Vec<Bar> {
        let name = || row.name.clone();
        let times = row.times.iter().map(|(column, times)| Bar::Times {
            row: name(),
            column: (*column).to_owned(),
            times: *times,
        });
        let seconds = row.seconds.map(|seconds| Bar::Seconds { row: name(), seconds });
        let bytes = row.bytes.map(|bytes| Bar::Bytes { row: name(), bytes });
        times.chain(seconds).chain(bytes).collect()
    }
}

/// Columns of all tables. `floor` moves or reads the same bytes only.
const COLUMNS: [&str; 6] = ["extant", "floor", "e2fsprogs", "genext2fs", "kernel", "cp"];

/// Measures rows, run by run; the sides of each take turns. A first run of each row touches the
/// memory, and does not count.
pub fn measure(args: &Args, rows: Vec<Row>) -> io::Result<bool> {
    catch_signals()?;
    let options = &args.options;
    let grid = |title, unit| Grid::new(title, unit, &COLUMNS, 0).less();
    let mut measured = Measured {
        times: grid("time", "ms"),
        memory: grid("memory", "MB").plain(),
        bars: rows.iter().flat_map(Bar::all).collect(),
    };
    let rows: Vec<_> = rows.into_iter().map(|row| (row.name.clone(), row)).collect();
    let runs = options.runs(5, 1);
    for counted in [false, true] {
        options.measure(if counted { runs } else { 1 }, &rows, &COLUMNS, |_, row, column| {
            let name = COLUMNS[column];
            let Some((_, side)) = row.sides.iter().find(|(side, _)| *side == name) else {
                return Ok(());
            };
            row.clear()?;
            let (seconds, bytes) = match side {
                Side::Program(program) => {
                    let cost = program.run()?;
                    (cost.seconds, Some(cost.bytes))
                }
                Side::Here(work) => {
                    let start = Instant::now();
                    work()?;
                    (start.elapsed().as_secs_f64(), None)
                }
            };
            row.clear()?;
            if counted {
                measured.times.add(&row.name, column, seconds * 1e3);
                bytes.iter().for_each(|bytes| {
                    measured.memory.add(&row.name, column, *bytes as f64 / 1e6);
                });
            }
            Ok(())
        })?;
    }
    measured.report(options)
}

impl Measured {
    fn verdict(&self, bar: &Bar) -> Option<Verdict> {
        let median = |grid: &Grid, row: &str| {
            let (_, cells) = &grid.rows[grid.row(row)?];
            extant_measure::timing::median(&cells[0])
        };
        Some(match bar {
            Bar::Times { row, column, times } => {
                let gain = self.times.gain(self.times.row(row)?, self.times.column(column)?)?;
                let bar = 1.0 / times;
                let what = format!("{row}: {bar:.2} times the speed of {column} or more");
                Verdict::of(what, gain, bar)
            }
            Bar::Seconds { row, seconds } => {
                let found = median(&self.times, row)? / 1e3;
                let what = format!("{row}: within {:.0} ms", seconds * 1e3);
                Verdict::new(what, format!("{:.1} ms", found * 1e3), found <= *seconds)
            }
            Bar::Bytes { row, bytes } => {
                let found = median(&self.memory, row)? * 1e6;
                let what = format!("{row}: within {:.0} MB", *bytes as f64 / 1e6);
                Verdict::new(what, format!("{:.0} MB", found / 1e6), found <= *bytes as f64)
            }
        })
    }
}

impl Results for Measured {
    fn sheets(&self) -> Vec<Sheet> {
        let mut sheets = self.times.sheets();
        sheets.extend(self.memory.sheets());
        sheets.push(extant_measure::interval::judged(&self.verdicts()));
        sheets
    }

    fn verdicts(&self) -> Vec<Verdict> {
        self.bars.iter().filter_map(|bar| self.verdict(bar)).collect()
    }
}
