//! The workloads. A *scenario* starts on an empty file system and measures several rows one after
//! the other.

mod content;
pub mod tree;

use crate::jobs::{KINDS, Kind, SMALL, Size};
use crate::side::Running;
use crate::target::Target;
use extant_measure::grid::{Grid, row_name};
use extant_measure::timing::Done;
use extant_sync::SplitMix64;
use std::io;
use std::time::Duration;

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Size of the workloads of one operation; its window is also that of the large file's.
    pub size: Size,
    /// Regular files of the tree.
    pub tree_files: usize,
    /// Bytes of the large file.
    pub large: u64,
}

impl Scale {
    /// The scale for bars.
    pub const FULL: Scale = Scale {
        size: Size { files: 16_000, window: Duration::from_millis(500), ..Size::FULL },
        tree_files: 30_000,
        large: 512 << 20,
    };

    /// A look that takes little time.
    pub const QUICK: Scale = Scale {
        size: Size { files: 4_000, window: Duration::from_millis(200), ..Size::QUICK },
        tree_files: 2_000,
        large: 128 << 20,
    };
}

/// Where a scenario runs.
pub struct Stage<'a> {
    running: &'a mut Running,
    /// The side's column in the table.
    column: usize,
    scale: Scale,
    rates: &'a mut Grid,
}

impl<'a> Stage<'a> {
    /// Makes a stage on a file system that was just made.
    pub fn new(running: &'a mut Running, column: usize, scale: Scale, rates: &'a mut Grid) -> Self {
        Stage { running, column, scale, rates }
    }

    fn target(&self) -> &dyn Target {
        self.running.target()
    }

    fn add(&mut self, workload: &str, threads: usize, done: &Done) {
        self.rates.add(&row_name(workload, threads), self.column, done.rate());
    }

    /// Bytes moved in a time, by one thread.
    fn add_bytes(&mut self, workload: &str, bytes: u64, time: Duration) {
        let rate = bytes as f64 / 1e6 / time.as_secs_f64().max(1e-9);
        self.rates.add(&row_name(workload, 1), self.column, rate);
    }

    /// Workloads of one operation.
    fn play<'k>(
        &mut self,
        kinds: impl IntoIterator<Item = &'k Kind>,
        threads: &[usize],
    ) -> io::Result<()> {
        for kind in kinds {
            for &threads in threads {
                let size = self.scale.size;
                let done = kind.play(self.target(), (threads, u64::MAX), &size, &())?;
                self.add(kind.name, threads, &done);
            }
        }
        Ok(())
    }
}

pub struct Scenario {
    /// Its name, for `--only`.
    pub name: &'static str,
    /// Measures its rows.
    pub run: fn(&mut Stage<'_>) -> io::Result<()>,
}

/// All scenarios, in order.
pub const SCENARIOS: [Scenario; 5] = [
    Scenario { name: "files", run: files },
    Scenario { name: "small", run: |stage| stage.play(&SMALL, &[1, 16]) },
    Scenario { name: "paths", run: |stage| stage.play(Kind::named("stat-path"), &[1, 2, 16]) },
    Scenario { name: "tree", run: tree::run },
    Scenario { name: "content", run: content::run },
];

fn files(stage: &mut Stage<'_>) -> io::Result<()> {
    let words = ["create", "creat-clo", "stat-files", "open", "unlink"];
    stage.play(KINDS.iter().filter(|kind| words.contains(&kind.word)), &[1, 2, 16])
}

/// Returns bytes that are not zeroes.
fn filler(len: usize) -> Vec<u8> {
    let mut random = SplitMix64::new(len as u64);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next_u64().to_ne_bytes());
    }
    bytes.truncate(len);
    bytes
}
