//! The workloads. A *scenario* starts on an empty file system and measures several rows one after
//! the other.

mod archive;
mod content;
mod files;
mod paths;
mod tree;

use crate::measure::{Done, Record, Row, Unit};
use crate::side::{Running, Side};
use crate::target::Target;
use extant_sync::SplitMix64;
use std::io;
use std::time::Duration;

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Files of the scenarios that make and delete files, all threads together.
    pub files: usize,
    /// The longest that one of their rows may take.
    pub cap: Duration,
    /// How long rows without an end of their own take.
    pub window: Duration,
    /// Regular files of the tree.
    pub tree_files: usize,
    /// Bytes of the large file.
    pub large: u64,
}

impl Scale {
    /// The scale for bars.
    pub const FULL: Scale = Scale {
        files: 60_000,
        cap: Duration::from_secs(2),
        window: Duration::from_millis(500),
        tree_files: 30_000,
        large: 512 << 20,
    };

    /// A look that takes little time.
    pub const QUICK: Scale = Scale {
        files: 16_000,
        cap: Duration::from_millis(500),
        window: Duration::from_millis(200),
        tree_files: 2_000,
        large: 128 << 20,
    };
}

/// Where a scenario runs.
pub struct Stage<'a> {
    running: &'a mut dyn Running,
    side: Side,
    scale: Scale,
    record: &'a mut Record,
}

impl<'a> Stage<'a> {
    /// Makes a stage on a file system that was just made.
    pub fn new(
        running: &'a mut dyn Running,
        side: Side,
        scale: Scale,
        record: &'a mut Record,
    ) -> Self {
        Stage { running, side, scale, record }
    }

    fn target(&self) -> &dyn Target {
        self.running.target()
    }

    fn add(&mut self, workload: &'static str, threads: usize, done: &Done) {
        self.record.add(
            self.side.name(),
            Row { workload: workload.into(), threads },
            Unit::Ops,
            done.rate(),
        );
    }

    /// Bytes moved in a time.
    fn add_bytes(&mut self, workload: &'static str, bytes: u64, time: Duration) {
        let rate = bytes as f64 / 1e6 / time.as_secs_f64().max(1e-9);
        self.record.add(
            self.side.name(),
            Row { workload: workload.into(), threads: 1 },
            Unit::Megabytes,
            rate,
        );
    }
}

/// A scenario.
pub struct Scenario {
    /// Its name, for `--only`.
    pub name: &'static str,
    /// The work of the row.
    pub run: fn(&mut Stage<'_>) -> io::Result<()>,
}

/// All scenarios, in order.
pub const SCENARIOS: [Scenario; 5] = [
    Scenario { name: "files", run: files::empty },
    Scenario { name: "small", run: files::small },
    Scenario { name: "paths", run: paths::run },
    Scenario { name: "tree", run: tree::run },
    Scenario { name: "content", run: content::run },
];

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
