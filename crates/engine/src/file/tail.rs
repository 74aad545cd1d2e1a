//! The bytes of a file's last block behind the end of the file.
//!
//! # Invariants
//! - In memory they are zero. On the device they may have any value until the file grows: other
//!   programs may have left bytes there, and a page may have been changed again. A cut zeroes them
//!   on the device before its transaction commits.
//! - The size on disk does not grow over bytes that are older on the device than in memory. An
//!   operation that raises it must have written the page of the block in which the file ended:
//!   writeback goes from the first page to the last and writes that one before any behind it; all
//!   others call [`settle`]. The commit flushes before its record, so a power cut shows the zeroes
//!   with the size.

use super::{deferred, map, writeback};
use crate::error::Result;
use crate::extent::ExtentState;
use crate::inode::{Inode, Work};
use crate::store::Store;
use std::sync::Arc;

/// Before the size on disk grows: writes the page of the block in which it ends, if that waits.
pub(super) fn settle(st: &Store, inode: &Arc<Inode>, work: &mut Work) -> Result<()> {
    deferred::settle(st, inode)?;
    match waiting(st, inode)? {
        Some(last) => writeback::within(st, inode, work, last..last + 1),
        None => Ok(()),
    }
}

/// The block in which the size on disk ends, if its page waits for being written and the device has
/// old bytes in its place.
pub(super) fn waiting(st: &Store, inode: &Inode) -> Result<Option<u32>> {
    if inode.pages.never_used() {
        return Ok(None);
    }
    let size = inode.body().size;
    let last = map::block_of(st, size)..map::block_up(st, size);
    if last.is_empty() || !inode.pages.read().has_dirty(last.clone()) {
        return Ok(None);
    }
    // A page without a block yet is left to writeback.
    let written = map::lookup(st, inode, last.clone())?.state == ExtentState::Written;
    Ok(written.then_some(last.start))
}
