//! Freezing: while it lasts nothing changes, and the device holds a clean file system, so that a
//! copy of it needs no recovery.

use super::{Fs, marks};
use crate::error::{Errno, Result};
use crate::ops::Operations;
use extant_blocks::{BlockDevice, MountedDevice};
use extant_journal::UpdatesLock;
use extant_sync::HaltedChanges;

/// A frozen file system; operations that change it wait, and no byte of its devices changes. It
/// thaws when this is dropped, or by [`Frozen::thaw`], which tells errors.
#[derive(Debug)]
pub struct Frozen<'a> {
    fs: &'a Fs,
    updates: Option<UpdatesLock<'a>>,
    _halted: HaltedChanges<'a>,
}

impl Fs {
    /// Writes everything, marks the file system clean on the device and lets nothing change until
    /// the result is dropped. Writes that are in memory only when it begins are written; later ones
    /// wait in memory. Files without a name that are in use stay, as orphan records.
    ///
    /// # Errors
    /// EROFS; those of the writeback, of the commit and of the device. The file system is not
    /// frozen then. If it may be marked as clean on the device all the same, nothing can be changed
    /// any more.
    pub fn freeze(&self) -> Result<Frozen<'_>> {
        let ops: &Operations = self.operations();
        let st = ops.st();
        st.writable()?;
        // Before handles are stopped: a change must not wait for one with the lock of an inode.
        let halted = ops.halt_changes();
        // Only files that are in use stay orphans, which the next opening of a copy frees.
        ops.reap();
        ops.write_back_all()?;
        st.journal.sync()?;
        let updates = st.journal.lock_updates();
        // One that was aborted before is still writing that; later ones wait for the thaw.
        st.writable()?;
        if st.journal.is_aborted() {
            return Err(Errno::RoFs.into());
        }
        st.journal.checkpoint_all()?;
        // From here on an error thaws, which marks the file system as in use again: the mark may
        // have reached the device although it failed.
        let frozen = Frozen { fs: self, updates: Some(updates), _halted: halted };
        marks::mark_clean(st, self.clean_state)?;
        // Data that are written in place need no handle: these writes, and all others, wait from
        // here on.
        self.devices().for_each(MountedDevice::freeze);
        self.devices().try_for_each(|device| device.flush())?;
        Ok(frozen)
    }
}

impl Frozen<'_> {
    /// Lets changes go on.
    ///
    /// # Errors
    /// If the superblock could not be marked as in use. Nothing can be changed any more then: a
    /// crash would lose it, since the next opening drops a log that the superblock does not name.
    pub fn thaw(mut self) -> Result<()> {
        self.resume()
    }

    fn resume(&mut self) -> Result<()> {
        let Some(updates) = self.updates.take() else { return Ok(()) };
        self.fs.devices().for_each(MountedDevice::thaw);
        let st = self.fs.operations().st();
        // Before the first change of metadata: recovery may be needed again.
        let marked = marks::mark_in_use(st);
        drop(updates);
        marked
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(e) = self.resume() {
            tracing::error!("thawing failed: {e}");
        }
    }
}
