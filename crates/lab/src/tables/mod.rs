//! Tables of designs: former ones beside the engine's, on the same workload.
//!
//! The program of `make designs` has former designs under the engine, and chooses one before each
//! measurement. [`aim7`] compares no designs.

pub mod aim7;
#[cfg(feature = "designs")]
pub mod dref;
#[cfg(feature = "designs")]
pub mod inodes;
#[cfg(feature = "designs")]
pub mod orphan;
#[cfg(feature = "designs")]
pub mod preallocs;
#[cfg(feature = "designs")]
pub mod sync;

pub use crate::grid::Grid;

use crate::options::Options;
use std::io;
use std::time::Duration;

/// Commands that compare designs under the engine.
pub const DESIGNS: [&str; 5] = ["dref", "inodes", "orphan", "preallocs", "sync"];

impl Options {
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
}

#[cfg(feature = "designs")]
pub use chosen::{Chosen, open};

#[cfg(feature = "designs")]
mod chosen {
    use crate::grid::row_name;
    use crate::options::Options;
    use crate::target::{Engine, io_error};
    use extant_blocks::SparseDevice;
    use extant_engine::design::{
        FIND, FindWrites, InodeList, InodeLookup, LIST, LOOKUP, ORPHANS, OrphanRecords, PLUG,
        PlugPolicy, REFS, RUNS, RefsDesign, RunsDesign,
    };
    use extant_engine::{Fs, OpenOptions};
    use parking_lot::{Mutex, MutexGuard};
    use std::io;
    use std::sync::Arc;

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
        Fs::open_device(Arc::new(base.fork()), options).map(Engine::new).map_err(io_error)
    }
}
