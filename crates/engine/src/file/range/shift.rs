//! Removal of a range from a file (collapse), and insertion of a hole, without moving data.
//!
//! One transaction does all of it, unless the map has too many extents. A crash between several
//! transactions leaves a file of which a part has moved: its structures are valid at each commit,
//! the blocks before the range are unchanged, and each remaining block is at its old or its new
//! position.

use crate::error::{Errno, Result};
use crate::extent::{self, Run};
use crate::file::limits;
use crate::file::{deferred, falloc, map, times, truncate, window, writeback, zero};
use crate::inode::{Inode, Tx, Work};
use crate::store::Store;
use std::ops::Range;
use std::sync::Arc;

/// Removes bytes `[offset, offset + len)` and moves the following ones down. Both must be multiples
/// of a cluster, and the range must end before the end of the file; EINVAL otherwise.
pub(in crate::file) fn collapse(
    st: &Store,
    inode: &Arc<Inode>,
    offset: u64,
    len: u64,
) -> Result<()> {
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
    let mut tx = begin(st, inode, first..last)?;
    // Only the first part of the removal may lack space, and nothing has changed then.
    tx.sequence(|tx| {
        truncate::remove(st, tx, inode, first, last.into())?;
        shift(st, tx, inode, last.into()..extent::max_blocks(st, inode), -i64::from(last - first))?;
        resize(st, tx, inode, size - len)
    })
}

/// Moves the bytes from `offset` on up by `len`, which leaves a hole. Both must be multiples of a
/// cluster, and `offset` must be within the file; EINVAL otherwise. EFBIG if the file would be too
/// large.
pub(in crate::file) fn insert(st: &Store, inode: &Arc<Inode>, offset: u64, len: u64) -> Result<()> {
    aligned(st, offset, len)?;
    let size = inode.pages.size();
    if offset >= size {
        return Err(Errno::Inval.into());
    }
    let grown = size
        .checked_add(len)
        .filter(|grown| *grown <= limits::max_size(st, inode))
        .ok_or(Errno::FBig)?;
    writeback::writeback(st, inode, offset, u64::MAX)?;
    let mut work = inode.pages.work.lock();
    clear(st, inode, &mut work, offset)?;
    let (first, by) = (map::block_of(st, offset), map::block_of(st, len));
    let end = extent::max_blocks(st, inode);
    // Blocks allocated behind the end must fit, too.
    if last_mapped(st, inode, first)?.is_some_and(|last| u64::from(last) + u64::from(by) >= end) {
        return Err(Errno::FBig.into());
    }
    zero::within_block(st, inode, times::tail(st, size))?;
    let mut tx = begin(st, inode, first..first)?;
    // So that no later step lacks space.
    tx.step(|step| extent::split_at(st, step, inode, first))?;
    tx.sequence(|tx| {
        // The size comes first, so that nothing ever lies behind the end of the file.
        resize(st, tx, inode, grown)?;
        shift(st, tx, inode, first.into()..end, by.into())
    })
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
    window::discard(work);
    deferred::settle(st, inode)?;
    falloc::drop_pages(st, inode, work, map::block_of(st, offset)..map::END)
}

/// Opens a handle that can remove the blocks `removed` and move everything behind, if those are
/// not too many extents; else one that does a part, and goes on in other transactions.
fn begin<'a>(st: &'a Store, inode: &Inode, removed: Range<u32>) -> Result<Tx<'a>> {
    let most = st.journal.max_credits() / 2;
    let step = extent::credits(st, inode, 1);
    let pieces = extent::pieces(st, inode, removed.start, (most / step.max(1)) as usize + 1)?;
    let each = |piece: &Run| {
        if piece.lblk < removed.end {
            extent::credits(st, inode, piece.len).saturating_add(step)
        } else {
            step
        }
    };
    // The extent that the range begins in is cut, and the last step may find the tree a level
    // higher.
    let all = pieces.iter().map(each).fold(2 * times::CREDITS + 3 * step, u32::saturating_add);
    st.begin(if all <= most { all } else { part(st, inode) })
}

/// Credits for a part.
fn part(st: &Store, inode: &Inode) -> u32 {
    2 * times::CREDITS + 2 * extent::credits(st, inode, extent::most_at_once(st, inode))
}

fn resize(st: &Store, tx: &mut Tx<'_>, inode: &Arc<Inode>, size: u64) -> Result<()> {
    tx.with_credits(times::CREDITS)?;
    tx.step(|step| times::resize(st, step, inode, size))?;
    inode.pages.set_size(size);
    Ok(())
}

fn shift(
    st: &Store,
    tx: &mut Tx<'_>,
    inode: &Arc<Inode>,
    range: Range<u64>,
    by: i64,
) -> Result<()> {
    let mut left = range;
    loop {
        left = tx.step(|step| extent::shift(st, step, inode, left.clone(), by))?;
        if left.is_empty() {
            return Ok(());
        }
        tx.restart(part(st, inode))?;
    }
}

/// The last mapped block at or behind `from`.
fn last_mapped(st: &Store, inode: &Inode, from: u32) -> Result<Option<u32>> {
    let mut last = None;
    map::runs(st, inode, from..map::END, |run| {
        if run.state != extent::ExtentState::Hole {
            last = Some(run.lblk + run.len - 1);
        }
        Ok(true)
    })?;
    Ok(last)
}
