//! Requests of operations and programs to servers of FUSE, and the system calls with which a server
//! answers them.

use super::programs::Inputs;
use super::trace::{Counted, Trace};
use super::{Args, files, root, wanted};
use crate::jobs::{KINDS, Kind, SMALL, Size, Watch};
use crate::side::{Running, Side};
use crate::workload::tree::{Archive, remove, unpack};
use extant_fuse::Transport;
use extant_measure::grid::Grid;
use extant_measure::options::{Options, invalid};
use extant_measure::stored::Results;
use parking_lot::Mutex;
use std::io;
use std::path::PathBuf;

/// Sides that are counted unless others are asked for; through io_uring, too, where the kernel has
/// that on.
const USUAL: [Side; 3] = [Side::ExtantFuse, Side::Fuse2fs, Side::Null];

/// Kinds of jobs, by their words.
const JOBS: [&str; 7] = ["create", "open", "stat-files", "unlink", "write", "rename", "creat-clo"];

/// Files of the tree.
const TREE: usize = 1000;

/// Counts the requests of each operation and of each program.
pub fn run(args: &Args) -> io::Result<bool> {
    let options = &args.options;
    options.refuse(&["runs", "quick", "threads"])?;
    let rings = [Side::ExtantRings, Side::NullRings];
    let rings = rings.into_iter().filter(|_| Transport::IoUring.missing().is_none());
    let usual: Vec<Side> = USUAL.into_iter().chain(rings).collect();
    let sides = if args.sides.is_empty() { &usual } else { &args.sides };
    let names: Vec<_> = sides.iter().map(|side| side.name()).collect();
    let (trace, inputs) =
        (Trace::new()?, Inputs::new(files(&Options { quick: true, ..options.clone() }))?);
    let mut tables = Tables {
        requests: Grid::new("requests", "each operation", &names, 0).plain(),
        calls: Grid::new("system calls of the server", "each request", &names, 0).plain(),
        kinds: Grid::new("requests by kind", "each operation", &names, 0).plain(),
    };
    for (column, side) in sides.iter().enumerate() {
        let running = side.start()?;
        let mut counting = Counting {
            trace: &trace,
            running: &running,
            dir: root(&running)?,
            column,
            tables: &mut tables,
        };
        counting.jobs(options);
        counting.tree(options)?;
        // The null server has no content.
        if !matches!(side, Side::Null | Side::NullRings) {
            counting.programs(options, &inputs);
        }
        running.stop()?;
    }
    if tables.requests.rows.is_empty() {
        return Err(invalid("`--only` names no operation and no program"));
    }
    vec![tables.requests, tables.calls, tables.kinds].report(options)
}

/// By operation or program and side.
struct Tables {
    requests: Grid,
    calls: Grid,
    kinds: Grid,
}

/// Counts on one side.
struct Counting<'a> {
    trace: &'a Trace,
    running: &'a Running,
    dir: PathBuf,
    column: usize,
    tables: &'a mut Tables,
}

impl Counting<'_> {
    fn jobs(&mut self, options: &Options) {
        let kinds = KINDS.iter().filter(|kind| JOBS.contains(&kind.word)).chain(&SMALL);
        for kind in kinds.filter(|kind| options.wants(kind.name)) {
            match self.job(kind) {
                Ok((ops, counted)) => self.add(kind.name, ops, &counted),
                Err(why) => self.lacks(kind.name, &why),
            }
        }
    }

    /// Counts while the job runs, not while it is prepared and cleared away.
    fn job(&self, kind: &Kind) -> io::Result<(u64, Counted)> {
        let watch = Watching { trace: self.trace, result: Mutex::default() };
        self.trace.aim(&self.dir, self.running.server())?;
        let done = kind.play(self.running.target(), (1, 500), &Size::QUICK, &watch)?;
        let counted = watch.result.into_inner().unwrap_or_else(|| Err(invalid("no job ran")))?;
        Ok((done.ops.iter().sum(), counted))
    }

    fn tree(&mut self, options: &Options) -> io::Result<()> {
        let archive = Archive::new("tree", TREE);
        let (target, entries) = (self.running.target(), archive.entries.len() as u64);
        let unpacked = self.count(|| unpack(target, &archive))?;
        let removed = self.count(|| remove(target, b"tree"))?;
        for (name, counted) in [("untar, each entry", unpacked), ("rm -rf, each entry", removed)] {
            if options.wants(name) {
                self.add(name, entries, &counted);
            }
        }
        Ok(())
    }

    fn programs(&mut self, options: &Options, inputs: &Inputs) {
        for (name, program) in wanted(options) {
            match program.play(&self.dir, inputs, |program| self.count(program)) {
                Ok(counted) => self.add(&name, 1, &counted),
                Err(why) => self.lacks(&name, &why),
            }
        }
    }

    /// Tells why a side has no value in a row.
    fn lacks(&self, row: &str, why: &io::Error) {
        eprintln!("{row} on {}: {why}", self.tables.requests.columns[self.column]);
    }

    fn count(&self, work: impl FnOnce() -> io::Result<()>) -> io::Result<Counted> {
        self.trace.aim(&self.dir, self.running.server())?;
        self.trace.start()?;
        work()?;
        self.trace.stop()
    }

    fn add(&mut self, row: &str, ops: u64, counted: &Counted) {
        let all = counted.all() as f64;
        let Tables { requests, calls, kinds } = &mut *self.tables;
        requests.add(row, self.column, all / ops as f64);
        if counted.calls > 0 {
            calls.add(row, self.column, counted.calls as f64 / all.max(1.0));
        }
        for (kind, count) in &counted.requests {
            kinds.add(&format!("{row}: {kind}"), self.column, *count as f64 / ops as f64);
        }
    }
}

/// Counts while a job runs.
struct Watching<'a> {
    trace: &'a Trace,
    result: Mutex<Option<io::Result<Counted>>>,
}

impl Watch for Watching<'_> {
    fn start(&self) {
        if let Err(e) = self.trace.start() {
            *self.result.lock() = Some(Err(e));
        }
    }

    fn stop(&self) {
        let mut result = self.result.lock();
        if result.is_none() {
            *result = Some(self.trace.stop());
        }
    }
}
