//! Flushes of one device, shared by all threads that need one.
//!
//! # Stamps
//! Flushes are numbered as they begin. A write's stamp is the number of the last flush that had
//! begun when the write was complete, so every later flush that succeeds has made it durable. A
//! stamp costs one read of a word that changes only with flushes: writers share no line that each
//! of them writes.
//!
//! For example, flush 4 has begun when a write completes: the write's stamp is 4, since flush 4 may
//! miss the write. Flush 5 covers it.
//!
//! # Invariants
//! `flushed` is the number of the last flush that succeeded, and at most `begun`. `noted` is the
//! newest stamp, and at most `begun`. After a failed flush the device is never flushed again: see
//! "Assumptions about the medium" in `docs/design/journal.md`.

use crate::error::{Error, Result};
use crate::stats::{Counters, count};
use extant_blocks::BlockDevice;
use extant_sync::atomic::{AtomicU64, Ordering::SeqCst};
use extant_sync::{Arc, CachePadded, Level, Mutex};

/// The time at which a write was complete, measured by the flushes begun before. Stamps never
/// decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteStamp(pub u64);

impl WriteStamp {
    /// The stamp without any write.
    pub const NONE: WriteStamp = WriteStamp(0);
}

pub(crate) struct Flusher {
    device: Arc<dyn BlockDevice>,
    counters: Arc<Counters>,
    /// The number of the flush that began last.
    begun: CachePadded<AtomicU64>,
    /// The stamp of the newest write.
    noted: AtomicU64,
    /// The number of the last flush that succeeded.
    flushed: AtomicU64,
    /// Held during a flush. Contains the error after a failure.
    failed: Mutex<Option<Error>>,
}

impl Flusher {
    pub fn new(device: Arc<dyn BlockDevice>, counters: Arc<Counters>) -> Flusher {
        Flusher {
            device,
            counters,
            // Writes before the session may not have been flushed.
            begun: CachePadded::new(AtomicU64::new(1)),
            noted: AtomicU64::new(1),
            flushed: AtomicU64::new(0),
            failed: Mutex::new(Level::JournalList, None),
        }
    }

    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Notes that a write is complete and needs a flush. Returns its stamp.
    pub fn note_write(&self) -> WriteStamp {
        // Read after the write: a flush that begins later has a greater number.
        let stamp = self.begun.load(SeqCst);
        if self.noted.load(SeqCst) < stamp {
            self.noted.fetch_max(stamp, SeqCst);
        }
        WriteStamp(stamp)
    }

    /// Returns whether every noted write is durable.
    pub fn is_clean(&self) -> bool {
        self.covers(self.newest())
    }

    /// Makes every noted write durable, by a flush of this or another thread.
    pub fn flush(&self) -> Result<()> {
        self.flush_since(self.newest())
    }

    /// Returns the stamp of the newest noted write.
    pub fn newest(&self) -> WriteStamp {
        WriteStamp(self.noted.load(SeqCst))
    }

    fn covers(&self, stamp: WriteStamp) -> bool {
        stamp == WriteStamp::NONE || self.flushed.load(SeqCst) > stamp.0
    }

    /// Makes the writes with this stamp or an earlier one durable.
    pub fn flush_since(&self, stamp: WriteStamp) -> Result<()> {
        if self.covers(stamp) {
            return Ok(());
        }
        let mut failed = self.failed.lock();
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        if self.covers(stamp) {
            count(&self.counters.local().flushes_shared, 1);
            return Ok(());
        }
        // The number must be taken before the flush begins: a write that completes during the flush
        // gets this number as its stamp, and needs the next flush.
        let number = self.begun.fetch_add(1, SeqCst) + 1;
        if let Err(error) = self.device.flush() {
            let error = Error::from(error);
            *failed = Some(error.clone());
            return Err(error);
        }
        count(&self.counters.local().flushes, 1);
        self.flushed.store(number, SeqCst);
        Ok(())
    }
}

impl std::fmt::Debug for Flusher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (noted, flushed) = (self.noted.load(SeqCst), self.flushed.load(SeqCst));
        f.debug_struct("Flusher")
            .field("noted", &noted)
            .field("flushed", &flushed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_blocks::{MemDevice, RecordingDevice};

    fn flusher() -> (Arc<RecordingDevice<MemDevice>>, Flusher) {
        let device = Arc::new(RecordingDevice::new(MemDevice::new(4096)));
        (device.clone(), Flusher::new(device, Arc::default()))
    }

    #[test]
    fn a_write_wants_a_flush_that_begins_later() {
        let (device, flusher) = flusher();
        assert!(!flusher.is_clean());
        flusher.flush().unwrap();
        assert!(flusher.is_clean());
        let (early, late) = (flusher.note_write(), flusher.note_write());
        assert!(early == late && !flusher.is_clean());
        flusher.flush_since(early).unwrap();
        flusher.flush_since(late).unwrap();
        flusher.flush_since(WriteStamp::NONE).unwrap();
        assert_eq!(device.log().len(), 2);
        let after = flusher.note_write();
        assert!(after > late && flusher.covers(late) && !flusher.covers(after));
    }
}
