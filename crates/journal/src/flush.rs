//! Flushes of one device, shared by all who need one.
//!
//! # Invariants
//! `flushed` is at most `written`; every write counted in `flushed` was complete before a flush began that succeeded.
//! After a failed flush nothing is ever flushed again: see "What is assumed of the medium" in `docs/journal.md`.

use crate::error::{Error, Result};
use crate::stats::{Counters, count};
use extant_blocks::BlockDevice;
use extant_sync::atomic::{AtomicU64, Ordering::SeqCst};
use extant_sync::{Arc, Level, Mutex};

pub(crate) struct Flusher {
    device: Arc<dyn BlockDevice>,
    counters: Arc<Counters>,
    /// Counts completed writes.
    written: AtomicU64,
    /// The writes that the last successful flush covered.
    flushed: AtomicU64,
    /// Held while flushing; the failure, once there was one.
    failed: Mutex<Option<Error>>,
}

impl Flusher {
    pub fn new(device: Arc<dyn BlockDevice>, counters: Arc<Counters>) -> Flusher {
        Flusher {
            device,
            counters,
            // What was written before the session began is not known to be flushed.
            written: AtomicU64::new(1),
            flushed: AtomicU64::new(0),
            failed: Mutex::new(Level::JournalList, None),
        }
    }

    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Notes that a write is complete, and in want of a flush.
    pub fn note_write(&self) {
        self.written.fetch_add(1, SeqCst);
    }

    /// Makes every noted write durable, by a flush of this or another thread.
    pub fn flush(&self) -> Result<()> {
        let target = self.written.load(SeqCst);
        let mut failed = self.failed.lock();
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        if self.flushed.load(SeqCst) >= target {
            count(&self.counters.flushes_shared, 1);
            return Ok(());
        }
        let covered = self.written.load(SeqCst);
        if let Err(error) = self.device.flush() {
            let error = Error::from(error);
            *failed = Some(error.clone());
            return Err(error);
        }
        count(&self.counters.flushes, 1);
        self.flushed.store(covered, SeqCst);
        Ok(())
    }
}

impl std::fmt::Debug for Flusher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (written, flushed) = (self.written.load(SeqCst), self.flushed.load(SeqCst));
        f.debug_struct("Flusher").field("written", &written).field("flushed", &flushed).finish_non_exhaustive()
    }
}
