//! The journal's calls of the file system: freeze, durable, aborted.

use crate::error::Errno;
use crate::store::Store;
use extant_format::types::Timestamp;
use extant_journal::{Client, Error, Freezer, Tid};
use extant_sync::atomic::Ordering;
use std::io;
use std::sync::Arc;

/// The engine as the journal sees it.
#[derive(Debug)]
pub struct StoreClient(pub Arc<Store>);

impl Client for StoreClient {
    /// Freezes orphan records first, then the usage of owners, then inodes, then frees of blocks
    /// and bitmaps of inodes, then descriptors with the checksums of bitmaps, then the superblock:
    /// each may change the following ones.
    fn freeze(&self, tid: Tid, out: &mut Freezer<'_>) -> Result<(), Error> {
        let st = &*self.0;
        let frozen = st
            .orphans
            .freeze(st, out)
            .and_then(|()| st.quota.freeze(out))
            .and_then(|()| st.dirty.freeze(st, out))
            .and_then(|()| st.alloc.freeze(out))
            .and_then(|()| st.groups.freeze(tid, out));
        frozen.map_err(client_error)
    }

    fn write_ordered(&self, tid: Tid) -> Result<(), Error> {
        crate::file::write_pending_zeroes(&self.0, tid).map_err(|error| {
            if error.errno() == Errno::NoSpc as i32 {
                let error = io::Error::new(io::ErrorKind::StorageFull, error.to_string());
                return Error::NoSpace(error.into());
            }
            client_error(error)
        })
    }

    /// Has the writeback task run now: content that was written before the deadline of a commit is
    /// mapped by it, as far as the device is fast enough.
    fn prepare(&self) -> bool {
        !self.0.dirty_files.is_empty() && self.0.dirty_files.writeback_bell.hurry()
    }

    fn committed(&self, tid: Tid) {
        self.0.alloc.committed(tid);
        self.0.dirty.committed();
        // Bytes were written: their count may have to be recorded.
        self.0.dirty_files.writeback_bell.ring();
    }

    fn aborted(&self, why: &Error) {
        tracing::error!("journal aborted, the file system is read-only from now on: {why}");
        self.0.read_only.store(true, Ordering::Release);
    }

    fn now(&self) -> Option<Timestamp> {
        Some(self.0.clock.now())
    }
}

fn client_error(error: crate::error::Error) -> Error {
    Error::Client { errno: error.errno(), message: error.to_string() }
}
