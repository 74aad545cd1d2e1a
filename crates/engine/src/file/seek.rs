//! Where a file has data, and where holes.

use super::{map, verity};
use crate::bounds::Steps;
use crate::error::{Errno, Result};
use crate::extent::ExtentState;
use crate::inode::Inode;
use crate::store::Store;
use std::sync::Arc;

/// SEEK_DATA (`data`) or SEEK_HOLE from `offset`; ENXIO behind the end. Unwritten blocks are holes,
/// unless a page has data for them. The caller holds `rw`.
pub fn seek(st: &Store, inode: &Arc<Inode>, offset: u64, data: bool) -> Result<u64> {
    let size = map::visible(st, inode);
    if offset >= size {
        return Err(Errno::Nxio.into());
    }
    // A hole in a verified file is damage. Reading reports it, so the search must not skip it.
    if map::is_inline(inode) || verity::applies(inode) {
        return Ok(if data { offset } else { size });
    }
    let mut lblk = map::block_of(st, offset);
    let end = map::block_up(st, size);
    let mut steps = Steps::default();
    while lblk < end {
        steps.next()?;
        let (is_data, next) = piece(st, inode, lblk, end)?;
        if is_data == data {
            return Ok(map::byte(st, lblk).max(offset));
        }
        lblk = next;
    }
    if data { Err(Errno::Nxio.into()) } else { Ok(size) }
}

/// Whether `lblk` has data, and up to where that holds.
fn piece(st: &Store, inode: &Inode, lblk: u32, end: u32) -> Result<(bool, u32)> {
    // Pages first: a writeback in between moves data from the pages to the map, never back.
    let busy = inode.pages.read().next_busy(lblk..end);
    if busy == Some(lblk) {
        return Ok((true, lblk + 1));
    }
    let run = map::lookup(st, inode, lblk..end)?;
    let next = lblk + run.len;
    match run.state {
        ExtentState::Written => Ok((true, next)),
        ExtentState::Hole | ExtentState::Unwritten => {
            Ok((false, busy.map_or(next, |b| b.min(next))))
        }
    }
}
