//! Rows: pieces of work that several programs do.

use crate::program::Program;
use extant_measure::costs::{COST_COLUMNS, CostBar, Costs, RunCost};
use extant_measure::options::{Options, invalid};
use extant_measure::scratch::catch_signals;
use extant_measure::stored::Results;
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
    /// Further bars.
    bars: Vec<CostBar>,
    /// Whether bytes read and written are results.
    transfers: bool,
    /// Work before each run, outside of its time.
    before: Option<Box<dyn Fn() -> io::Result<()>>>,
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
            bars: Vec::new(),
            transfers: false,
            before: None,
            outputs: outputs.iter().map(|path| path.to_path_buf()).collect(),
        }
    }

    /// With a program in a column.
    pub fn with(mut self, column: &'static str, program: Program) -> Row {
        self.sides.push((column, Side::Program(program)));
        self
    }

    /// With Extant's library in this process.
    pub fn here(self, work: impl Fn() -> io::Result<()> + 'static) -> Row {
        self.beside(COST_COLUMNS[0], work)
    }

    /// With work of this process in a column.
    pub fn beside(
        mut self,
        column: &'static str,
        work: impl Fn() -> io::Result<()> + 'static,
    ) -> Row {
        self.sides.push((column, Side::Here(Box::new(work))));
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

    /// With work before each run, outside of its time.
    pub fn after(self, work: impl Fn() -> io::Result<()> + 'static) -> Row {
        Row { before: Some(Box::new(work)), ..self }
    }

    /// Extant has to do `count` objects, so many in a second.
    pub fn rate(self, count: u64, rate: f64) -> Row {
        let row = self.name.clone();
        self.bar(CostBar::Rate { row, count, rate })
    }

    /// Extant may read so many bytes.
    pub fn reads(self, bytes: u64) -> Row {
        let row = self.name.clone();
        self.transfers().bar(CostBar::Read { row, bytes })
    }

    /// Extant may write so many bytes.
    pub fn writes(self, bytes: u64) -> Row {
        let row = self.name.clone();
        self.transfers().bar(CostBar::Written { row, bytes })
    }

    /// With bytes read and written among the results.
    pub fn transfers(self) -> Row {
        Row { transfers: true, ..self }
    }

    fn bar(mut self, bar: CostBar) -> Row {
        self.bars.push(bar);
        self
    }

    fn bars(&self) -> Vec<CostBar> {
        let row = || self.name.clone();
        let times = self.times.iter().map(|(column, times)| CostBar::Times {
            row: row(),
            column: (*column).to_owned(),
            times: *times,
        });
        let seconds = self.seconds.map(|seconds| CostBar::Seconds { row: row(), seconds });
        let bytes = self.bytes.map(|bytes| CostBar::Bytes { row: row(), bytes });
        times.chain(seconds).chain(bytes).chain(self.bars.iter().cloned()).collect()
    }

    /// Does the work of a side, between outputs that are removed.
    fn run(&self, side: &Side) -> io::Result<RunCost> {
        self.clear()?;
        self.before.as_ref().map_or(Ok(()), |work| work())?;
        let cost = match side {
            Side::Program(program) => {
                let cost = program.run()?;
                let transfers = self.transfers.then_some((cost.read, cost.written));
                RunCost { seconds: cost.seconds, bytes: Some(cost.bytes), transfers }
            }
            Side::Here(work) => {
                let start = Instant::now();
                work()?;
                RunCost { seconds: start.elapsed().as_secs_f64(), ..RunCost::default() }
            }
        };
        self.clear()?;
        Ok(cost)
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

/// Measures rows, run by run; the sides of each take turns. A run that does not count goes before
/// those of each row: the memory that they need may have been given back by a virtual machine, and
/// the first to touch it again would pay for all.
pub fn measure(args: &Args, rows: Vec<Row>) -> io::Result<bool> {
    catch_signals()?;
    let options = &args.options;
    let mut measured = Costs::new(rows.iter().flat_map(Row::bars).collect());
    let rows: Vec<_> = rows.into_iter().map(|row| (row.name.clone(), row)).collect();
    let mut touched = String::new();
    options.measure(options.runs(5, 1), &rows, &COST_COLUMNS, |row_name, row, column| {
        let name = COST_COLUMNS[column];
        let Some((_, side)) = row.sides.iter().find(|(side, _)| *side == name) else {
            return Ok(());
        };
        if touched != row_name {
            row_name.clone_into(&mut touched);
            row.run(side)?;
        }
        measured.add(&row.name, column, row.run(side)?);
        Ok(())
    })?;
    measured.report(options)
}
