//! Counters of the plugs that file content is written under.

use extant_blocks::PlugStats;
use extant_sync::Sharded;
use extant_sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters by threads; each plug counts once, when its requests have ended.
#[derive(Debug, Default)]
pub struct PlugCounts(Sharded<Part>);

#[derive(Debug, Default)]
struct Part {
    pieces: AtomicU64,
    requests: AtomicU64,
    bytes: AtomicU64,
    files: AtomicU64,
}

impl PlugCounts {
    /// Adds the work of a plug with content of so many files.
    pub fn add(&self, work: &PlugStats, files: u64) {
        let part = self.0.local();
        part.pieces.fetch_add(work.pieces, Relaxed);
        part.requests.fetch_add(work.requests, Relaxed);
        part.bytes.fetch_add(work.bytes, Relaxed);
        part.files.fetch_add(files, Relaxed);
    }

    /// Returns the files of all plugs so far; a file counts once for each plug.
    pub fn files(&self) -> u64 {
        self.0.iter().map(|part| part.files.load(Relaxed)).sum()
    }

    /// Returns the work of all plugs so far.
    pub fn sum(&self) -> PlugStats {
        let mut all = PlugStats::default();
        for part in self.0.iter() {
            all.pieces += part.pieces.load(Relaxed);
            all.requests += part.requests.load(Relaxed);
            all.bytes += part.bytes.load(Relaxed);
        }
        all
    }
}
