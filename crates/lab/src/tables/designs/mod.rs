//! Former designs beside the engine's, on the same workload.
//!
//! The program of `make designs` has former designs under the engine, and chooses one before each
//! measurement.

mod dref;
mod inodes;
mod orphan;
mod preallocs;
mod sync;

use crate::grid::{Grid, row_name};
use crate::options::Options;
use crate::stored::Results;
use crate::target::Engine;
use extant_blocks::SparseDevice;
use extant_engine::design::{
    FIND, FindWrites, InodeList, InodeLookup, LIST, LOOKUP, ORPHANS, OrphanRecords, PLUG,
    PlugPolicy, REFS, RUNS, RefsDesign, RunsDesign,
};
use extant_engine::{Fs, OpenOptions};
use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::sync::Arc;

/// Commands that compare designs.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Compares ways to count references to shared objects.
    Dref(Options),
    /// Compares lists of inodes, and lookups by number. Needs mke2fs, as the next three do.
    Inodes(Options),
    /// Compares ways to keep orphan records.
    Orphan(Options),
    /// Compares structures of a file's preallocations.
    Preallocs(Options),
    /// Compares ways to find the writes for which a sync must wait, and measures the cost of a sync
    /// of the engine.
    Sync(sync::Args),
}

impl Command {
    pub fn run(&self) -> io::Result<bool> {
        let (options, grids) = match self {
            Command::Dref(options) => (options, dref::grids(options)?),
            Command::Inodes(options) => (options, inodes::grids(options)?),
            Command::Orphan(options) => (options, orphan::grids(options)?),
            Command::Preallocs(options) => (options, preallocs::grids(options)?),
            Command::Sync(args) => (&args.options, sync::grids(args)?),
        };
        grids.report(options)
    }
}

/// The right to choose the designs of the process. Dropped, the engine's own are chosen.
pub struct Chosen(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Chosen {
    /// Waits for other experiments of this process.
    pub fn hold() -> Chosen {
        static ONE: Mutex<()> = Mutex::new(());
        Chosen(ONE.lock())
    }
}

impl Drop for Chosen {
    fn drop(&mut self) {
        LIST.set(InodeList::Table);
        FIND.set(FindWrites::Eager);
        LOOKUP.set(InodeLookup::Epoch);
        RUNS.set(RunsDesign::Tree);
        REFS.set(RefsDesign::Lockref);
        ORPHANS.set(OrphanRecords::File);
        PLUG.set(PlugPolicy::Batch);
    }
}

/// Rows of a table: names, and workloads with numbers of threads.
type Rows<W> = Vec<(String, (usize, W))>;

impl Options {
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
}

/// Opens an engine over a copy of a device.
pub fn open(base: &SparseDevice, options: &OpenOptions) -> io::Result<Engine> {
    Ok(Engine::new(Fs::open_device(Arc::new(base.fork()), options)?))
}
