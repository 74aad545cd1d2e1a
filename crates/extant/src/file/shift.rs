//! Taking a range out of a file, and pushing a file apart, without moving data.
//!
//! A crash between the transactions of one operation leaves a file of which a part has been moved, as on any
//! implementation of the format; its structures are sound at each commit.

use super::limits;
use super::{ahead, falloc, map, times, truncate, writeback, zero};
use crate::error::{Errno, Result};
use crate::extent;
use crate::inode::{Inode, Work};
use crate::store::Store;
use std::ops::Range;
use std::sync::Arc;

/// Removes bytes `[offset, offset + len)`: what follows moves down. Both must be multiples of a cluster, and the range
/// must end before the file does; EINVAL otherwise.
pub(super) fn collapse(st: &Store, inode: &Arc<Inode>, offset: u64, len: u64) -> Result<()> {
    aligned(st, offset, len)?;
    let size = inode.pages.size();
    let end = offset.saturating_add(len);
    if end >= size {
        return Err(Errno::Inval.into());
    }
    writeback::writeback(st, inode, offset, u64::MAX)?;
    let mut work = inode.pages.work.lock();
    clear(st, inode, &mut work, offset)?;
    let (first, last) = (map::block_of(st, offset), map::block_of(st, end));
    let mut h = truncate::start_removal(st, inode)?;
    truncate::remove(st, &mut h, inode, first, last.into())?;
    drop(h);
    let by = i64::from(last - first);
    shift(st, inode, last.into()..extent::max_blocks(st, inode), -by)?;
    resize(st, inode, size - len)
}

/// Pushes what lies at `offset` and behind up by `len`, leaving a hole. Both must be multiples of a cluster, `offset`
/// within the file; EINVAL otherwise. EFBIG if the file would be too large.
pub(super) fn insert(st: &Store, inode: &Arc<Inode>, offset: u64, len: u64) -> Result<()> {
    aligned(st, offset, len)?;
    let size = inode.pages.size();
    if offset >= size {
        return Err(Errno::Inval.into());
    }
    let grown = size.checked_add(len).filter(|grown| *grown <= limits::max_size(st, inode)).ok_or(Errno::FBig)?;
    writeback::writeback(st, inode, offset, u64::MAX)?;
    let mut work = inode.pages.work.lock();
    clear(st, inode, &mut work, offset)?;
    let (first, by) = (map::block_of(st, offset), map::block_of(st, len));
    let end = extent::max_blocks(st, inode);
    // What is allocated behind the end has to fit, too.
    if last_mapped(st, inode, first)?.is_some_and(|last| u64::from(last) + u64::from(by) >= end) {
        return Err(Errno::FBig.into());
    }
    zero::within_block(st, inode, times::tail(st, size))?;
    // The size comes first, so that nothing ever lies behind the end of the file.
    resize(st, inode, grown)?;
    shift(st, inode, first.into()..end, by.into())
}

fn aligned(st: &Store, offset: u64, len: u64) -> Result<()> {
    let mask = (u64::from(st.geo.cluster_ratio()) << st.geo.block_bits) - 1;
    match (offset | len) & mask {
        0 => Ok(()),
        _ => Err(Errno::Inval.into()),
    }
}

/// No page and no preallocation is left from `offset` on; nothing there is dirty any more.
fn clear(st: &Store, inode: &Arc<Inode>, work: &mut Work, offset: u64) -> Result<()> {
    ahead::discard(work);
    falloc::drop_pages(st, inode, work, map::block_of(st, offset)..map::END)
}

fn resize(st: &Store, inode: &Arc<Inode>, size: u64) -> Result<()> {
    let mut h = st.start(times::CREDITS)?;
    times::set_disk_size(st, &mut h, inode, size)?;
    times::stamp(st, &mut *inode.edit(st, &mut h)?, false);
    inode.pages.set_size(size);
    Ok(())
}

fn shift(st: &Store, inode: &Arc<Inode>, range: Range<u64>, by: i64) -> Result<()> {
    let credits = times::CREDITS + 2 * extent::credits(st, inode, 1 << 15);
    let mut left = range;
    let mut h = st.start(credits)?;
    loop {
        left = extent::shift(st, &mut h, inode, left.clone(), by)?;
        inode.touch(st, &mut h)?;
        inode.note_datasync(&h);
        if left.is_empty() {
            return Ok(());
        }
        h.restart(credits)?;
    }
}

/// The last mapped block at or behind `from`.
fn last_mapped(st: &Store, inode: &Inode, from: u32) -> Result<Option<u32>> {
    let mut last = None;
    map::runs(st, inode, from..map::END, |run| {
        if run.state != extent::State::Hole {
            last = Some(run.lblk + run.len - 1);
        }
        Ok(true)
    })?;
    Ok(last)
}
