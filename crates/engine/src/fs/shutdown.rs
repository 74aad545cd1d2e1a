//! A stop of a file system in use that acts as a power cut (FS_IOC_SHUTDOWN), for tests of
//! recovery.

use crate::error::{Errno, Error, Result};
use crate::ops::Operations;
use extant_sync::atomic::Ordering;

impl Operations {
    /// Aborts the journal and refuses changes from now on, after a panic of code that used the file
    /// system: a change may be half-done, and is not to become durable.
    pub fn stop_changes(&self, why: &str) {
        self.st().abort(&Error::Io(std::io::Error::other(why.to_owned())));
    }

    /// Commits all changes so far, then stops: no later write reaches the device, not even that of
    /// the unmount, and the next opening recovers. From then on changes and syncs fail with EIO.
    /// Content that is only in pages is lost. Does nothing if nothing may be changed anyway.
    ///
    /// # Errors
    /// Those of the commit; the file system is stopped nevertheless.
    pub fn shut_down(&self) -> Result<()> {
        self.alive()?;
        let st = self.st();
        if st.writable().is_err() {
            return Ok(());
        }
        let committed = st.journal.sync();
        tracing::warn!("the file system is shut down: nothing more is written");
        // In this order, so that no caller sees the file system read-only for another reason.
        st.shut_down.store(true, Ordering::Release);
        st.read_only.store(true, Ordering::Release);
        st.journal.crash();
        Ok(committed?)
    }

    /// Fails with EIO if the file system was shut down: uncommitted changes are lost.
    pub(crate) fn may_sync(&self) -> Result<()> {
        if self.st().is_shut_down() { Err(Errno::Io.into()) } else { Ok(()) }
    }
}
