//! Making one file durable.

use super::writeback;
use crate::error::{Result, lost};
use crate::inode::Inode;
use crate::store::Store;
use extant_journal::Tid;
use extant_sync::atomic::Ordering;
use std::sync::Arc;

/// Makes data and metadata of one file durable. `datasync` leaves out metadata that is not needed
/// to read the data. Returns errors of this writeback only; `inode.pages.check_error` returns those
/// of earlier ones to each open file.
pub fn fsync(st: &Store, inode: &Arc<Inode>, datasync: bool) -> Result<()> {
    let written = writeback::writeback(st, inode, 0, u64::MAX);
    // Also after an error that stopped all changes: overwritten data may still wait for its flush.
    let tid = if datasync { &inode.datasync_tid } else { &inode.sync_tid };
    // One flush covers the commit and the data: whichever needs it last. A file that is durable
    // already costs none, even while others wait for one.
    let committed = st.journal.wait(Tid(tid.load(Ordering::Acquire)));
    let durable = committed.and_then(|()| st.journal.flush_since(inode.pages.written()));
    written.and(durable.map_err(lost))
}
