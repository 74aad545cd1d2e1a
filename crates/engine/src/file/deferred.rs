//! Zeroes behind a cut, which wait for the commit. A cut inside a block must zero the block's rest
//! on the device before the smaller size is durable, but not at once: a file that is cut byte by
//! byte needs one write for each transaction.
//!
//! For example, transaction 7 cuts a file of one block to 1000 bytes and then to 900. Both cuts
//! only note the range, from 900 on. The commit writes it behind the gate; the flush before the
//! commit record covers it.
//!
//! # Invariants
//! - An inode has pending zeroes of one transaction at most, in one block. They begin at the
//!   smallest size of that transaction. A cut of the successor writes them first: its own zeroes
//!   may lie over bytes that the older transaction keeps.
//! - Pending zeroes are written, or their transaction is never durable.
//! - Nothing else is written to the block while zeroes are pending: a thread that writes data of
//!   the inode, raises its size on disk, or changes its map calls [`settle`] before. No zeroes are
//!   added between that and the end of its writes, since a cut holds `rw` for writing and `work`.
//! - A block with pending zeroes is not freed. So they never reach a block of another file.
//!
//! # Locking
//! [`Pages::pending_zeroes`](crate::inode::Pages::pending_zeroes) is held during the write. So the
//! commit waits for a thread that writes them, and that thread for the commit. Neither waits for
//! anything but the device.

use super::zero;
use crate::error::Result;
use crate::inode::{Inode, PendingZeroes};
use crate::store::Store;
use extant_journal::Tid;
use std::ops::Range;
use std::sync::Arc;

/// Writes pending zeroes. The caller holds `work`, or `rw`.
///
/// # Errors
/// The device's. The zeroes stay pending then.
pub(super) fn settle(st: &Store, inode: &Inode) -> Result<()> {
    if st.writable().is_err() {
        // Nothing becomes durable any more, nor is anything else written.
        return Ok(());
    }
    write_unless(st, inode, |_| false)
}

/// Before a cut in `tid` that leaves `bytes` of the device to be zeroed, if any: writes those that
/// [`add`] cannot join. The caller holds `rw` for writing and `work`.
pub(super) fn prepare(
    st: &Store,
    inode: &Inode,
    tid: Tid,
    bytes: Option<&Range<u64>>,
) -> Result<()> {
    let block = |bytes: &Range<u64>| bytes.start >> st.geo.block_bits;
    write_unless(st, inode, |zeroes| {
        zeroes.tid == tid && bytes.is_some_and(|bytes| block(bytes) == block(&zeroes.bytes))
    })
}

/// Notes that `bytes` of the device become zero before `tid` is durable. The caller has called
/// [`prepare`], has a handle of `tid`, and has made the inode dirty in it.
pub(super) fn add(inode: &Inode, tid: Tid, bytes: Range<u64>) {
    let mut pending = inode.pages.pending_zeroes.lock();
    let bytes = match &*pending {
        Some(zeroes) => bytes.start.min(zeroes.bytes.start)..bytes.end.max(zeroes.bytes.end),
        None => bytes,
    };
    *pending = Some(PendingZeroes { bytes, tid });
}

/// Writes the pending zeroes of a frozen transaction. Those of its successor stay: they may lie
/// over bytes that this transaction keeps.
///
/// # Errors
/// The first of the device: the transaction must not become durable before another call for it has
/// written the rest.
pub fn write_pending_zeroes(st: &Store, tid: Tid) -> Result<()> {
    let mut inodes: Vec<Arc<Inode>> = st.dirty.take_unzeroed();
    while let Some(inode) = inodes.last() {
        if let Err(error) = write_unless(st, inode, |zeroes| zeroes.tid > tid) {
            st.dirty.return_unzeroed(inodes);
            return Err(error);
        }
        inodes.pop();
    }
    Ok(())
}

/// Writes pending zeroes, unless they may stay.
fn write_unless(
    st: &Store,
    inode: &Inode,
    may_stay: impl FnOnce(&PendingZeroes) -> bool,
) -> Result<()> {
    let Some(pending) = inode.pages.pending_zeroes.get() else { return Ok(()) };
    let mut pending = pending.lock();
    let Some(zeroes) = pending.as_ref().filter(|zeroes| !may_stay(zeroes)) else { return Ok(()) };
    zero::on_device(st, inode, zeroes.bytes.clone())?;
    *pending = None;
    Ok(())
}
