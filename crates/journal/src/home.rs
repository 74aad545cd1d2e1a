//! Writes to the file system's device.

use crate::error::{Error, Result};
use crate::shared::Core;
use crate::stats::count;
use extant_blocks::{Plug, PlugStats};
use extant_sync::Arc;

impl Core {
    /// Writes copies to the file system's device, sorted and merged.
    ///
    /// # Errors
    /// [`Error::NoSpace`], after which the caller may write them again; those of the device.
    pub fn write_home<'a>(&self, copies: impl Iterator<Item = (u64, &'a Arc<[u8]>)>) -> Result<()> {
        self.check_crash()?;
        let size = self.cache.block_size() as u64;
        let mut plug = Plug::new(&**self.home.device());
        for (nr, bytes) in copies {
            plug.add(nr.saturating_mul(size), &bytes[..]);
        }
        if plug.is_empty() {
            return Ok(());
        }
        self.count_plug(&plug.finish().map_err(Error::of_write)?);
        self.home.note_write();
        Ok(())
    }

    /// Counts the writes of a plug.
    pub fn count_plug(&self, work: &PlugStats) {
        let counters = self.counters.local();
        count(&counters.writes, work.pieces);
        count(&counters.requests, work.requests);
    }

    /// Flushes the file system's device.
    pub fn flush_home(&self) -> Result<()> {
        self.check_crash()?;
        self.home.flush()
    }
}
