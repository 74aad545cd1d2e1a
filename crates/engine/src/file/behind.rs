//! Content of small files on its way from a client with a cache of its own, such as the kernel of a
//! FUSE mount: it waits in pages for writeback, which writes many files under one plug. An example:
//! the kernel writes a new file of 4 KiB when it is closed; 500 of them become two requests to the
//! device in place of 500.
//!
//! # Invariants
//! - Space is reserved before the page is accepted, as for any cached write.
//! - Pages are dropped when they are written ([`Pages::settle`](crate::inode::Pages::settle)): the
//!   client has the bytes.
//! - A name that had content leads to the old or the new content after a crash. So a rename over a
//!   name writes the waiting pages first ([`write_waiting`]). A file that was cut to nothing is
//!   written past the pages until it is closed; it is empty only if a commit came before the write.

use super::writeback;
use crate::error::Result;
use crate::inode::Inode;
use crate::store::Store;
use std::sync::Arc;

/// Largest size in bytes of a file whose content waits. A client sends a file of this size in one
/// request, which a device takes about as long to transfer as to accept: merging requests of larger
/// files would save little, and the copy into pages costs more. The bound also limits the pages
/// that wait between two commits.
const MAX_BYTES: u64 = 64 << 10;

/// Whether content of the file up to byte `end` may wait in pages. Certain only while `rw` is held
/// for writing.
pub fn may_wait(inode: &Inode, end: u64) -> bool {
    end.max(inode.pages.size()) <= MAX_BYTES && !inode.pages.is_replaced()
}

/// Writes the waiting pages of a file whose content a client caches. Errors are also recorded for
/// its descriptors. The caller must not hold `work`.
pub fn write_waiting(st: &Store, inode: &Arc<Inode>) -> Result<()> {
    if inode.pages.is_cached_elsewhere() {
        writeback::writeback(st, inode, 0, u64::MAX)
    } else {
        Ok(())
    }
}
