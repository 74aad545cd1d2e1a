//! Former designs beside the engine's, on the same workload.
//!
//! The program of `make designs` has former designs under the engine, and chooses one before each
//! measurement.

mod dref;
mod inodes;
mod orphan;
mod preallocs;
mod sync;

use crate::target::Engine;
use extant_blocks::SparseDevice;
use extant_engine::design::{
    FIND, FindWrites, InodeList, InodeLookup, LIST, LOOKUP, ORPHANS, OrphanRecords, PLUG, Plugged,
    REFS, RUNS, RefsDesign, RunsDesign,
};
use extant_engine::{Fs, OpenOptions};
use extant_measure::grid::Grid;
use extant_measure::options::Options;
use extant_measure::stored::Results;
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
        PLUG.set(Plugged::Batch);
    }
}

/// Opens an engine over a copy of a device.
pub fn open(base: &SparseDevice, options: &OpenOptions) -> io::Result<Engine> {
    Ok(Engine::new(Fs::open_device(Arc::new(base.fork()), options)?))
}
