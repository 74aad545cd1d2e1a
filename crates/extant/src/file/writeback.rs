//! Dirty pages go to the device, and delayed blocks get their places.
//!
//! # Invariants
//! - Pages are taken as snapshots; writers go on meanwhile.
//! - A page whose writing failed is dropped and its error noted, unless it was changed again.
//!
//! # Locking
//! `work` is held from taking pages until they are mapped, so truncation and allocation wait. `rw` is not needed.

use super::ahead::{self, Growth};
use super::map;
use super::plan::{self, After, How, Need, Piece};
use super::{space, times};
use crate::alloc::Claim;
use crate::error::Result;
use crate::inode::{Inode, Taken, Work};
use crate::store::Store;
use extant_blocks::Plug;
use std::ops::Range;
use std::sync::Arc;

/// Bytes written in one batch.
const BATCH_BYTES: usize = 32 << 20;

/// Inodes taken from the list of those with dirty pages at a time.
const CHUNK: usize = 256;

/// From so many pages on, spread over more than so many times as many blocks, pages share one run.
const PACK_PAGES: u32 = 16;
const PACK_SPREAD: u64 = 2;

/// Writes dirty pages of bytes `[start, end)` back and waits for them. What fails is noted for the open files as well.
pub fn writeback(st: &Store, inode: &Arc<Inode>, start: u64, end: u64) -> Result<()> {
    if !inode.pages.busy() {
        return Ok(());
    }
    let result = {
        let mut work = inode.pages.work.lock();
        let result = within(st, inode, &mut work, map::blocks(st, start, end));
        ahead::discard_of_closed(inode, &mut work);
        result
    };
    st.pool.note_clean(inode);
    result
}

/// Writes the dirty pages of all files back, and waits for those that others are writing. Gives the first error of its
/// own writing; each is noted for the files' openers.
pub fn writeback_all(st: &Store) -> Result<()> {
    let mut result = Ok(());
    let mut walk = st.pool.dirty_inodes();
    loop {
        let inodes = walk.next(CHUNK);
        if inodes.is_empty() {
            break;
        }
        result = inodes.iter().map(|inode| writeback(st, inode, 0, u64::MAX)).fold(result, Result::and);
    }
    st.pool.wait_for_writeback();
    result
}

/// Writes back until the pool is within its bounds, beginning with `inode`. The caller may hold `rw`, not `work`.
pub(super) fn throttle(st: &Store, inode: &Arc<Inode>) {
    st.pool.shrink();
    if !st.pool.too_dirty() {
        return;
    }
    // Errors are noted for fsync.
    let _ = writeback(st, inode, 0, u64::MAX);
    let mut walk = st.pool.dirty_inodes();
    while st.pool.too_dirty() {
        let Some(other) = walk.next(1).pop() else { break };
        let _ = writeback(st, &other, 0, u64::MAX);
    }
    st.pool.shrink();
}

/// Writes the dirty pages of some blocks back, under `work`.
pub(super) fn within(st: &Store, inode: &Arc<Inode>, work: &mut Work, blocks: Range<u32>) -> Result<()> {
    let most = (BATCH_BYTES / st.block_size()).max(1);
    let bits = st.geo.cluster_bits;
    let mut result = Ok(());
    let mut from = blocks.start;
    while from < blocks.end {
        let (taken, reserved) = inode.pages.change(&st.pool, |pages| pages.take(from..blocks.end, most, bits));
        let Some(last) = taken.last() else { break };
        from = last.lblk.saturating_add(1);
        result = result.and(batch(st, inode, work, &taken, reserved));
    }
    result
}

/// Writes pages; after a failure one by one, so that only those are lost that cannot be written.
fn batch(st: &Store, inode: &Arc<Inode>, work: &mut Work, taken: &[Taken], mut reserved: u32) -> Result<()> {
    let mut result = st.writable().and_then(|()| write(st, inode, work, taken, &mut reserved));
    match (&result, taken) {
        (Err(_), [_, _, ..]) if st.writable().is_ok() => {
            result = taken
                .chunks(1)
                .map(|one| settle(st, inode, one, write(st, inode, work, one, &mut reserved)))
                .fold(Ok(()), Result::and);
        }
        _ => result = settle(st, inode, taken, result),
    }
    space::unreserve(st, reserved);
    if result.is_err() {
        // The pages that would have raised it are gone. If this fails, nothing can be changed any more.
        let _ = raise_size(st, inode);
    }
    result
}

/// Raises the size on disk to the one that users see.
fn raise_size(st: &Store, inode: &Arc<Inode>) -> Result<()> {
    let mut h = st.start(times::CREDITS)?;
    times::grow_disk_size(st, &mut h, inode, inode.pages.size()).map(|_| ())
}

/// Tells the pages what became of them.
fn settle(st: &Store, inode: &Arc<Inode>, taken: &[Taken], result: Result<()>) -> Result<()> {
    let lblks = taken.iter().map(|t| t.lblk);
    inode.pages.change(&st.pool, |pages| if result.is_ok() { pages.written(lblks) } else { pages.failed(lblks) });
    if let Err(e) = &result {
        tracing::warn!("inode {}: writing back failed: {e}", inode.ino);
        st.pool.note_failed(inode, e.errno());
    }
    result
}

/// Writes pages and maps them.
fn write(st: &Store, inode: &Arc<Inode>, work: &mut Work, taken: &[Taken], reserved: &mut u32) -> Result<()> {
    let bits = st.geo.cluster_bits;
    // Pages of one cluster with a gap between them: the second finds its place when the first is mapped.
    let together = |a: &Taken, b: &Taken| a.lblk + 1 == b.lblk || a.lblk >> bits != b.lblk >> bits;
    taken.chunk_by(together).try_for_each(|group| write_group(st, inode, work, group, reserved))
}

fn write_group(st: &Store, inode: &Arc<Inode>, work: &mut Work, taken: &[Taken], reserved: &mut u32) -> Result<()> {
    let size = inode.pages.size();
    let mut pieces = Vec::new();
    let mut pack = pack(st, inode, taken);
    for run in taken.chunk_by(|a, b| a.lblk + 1 == b.lblk) {
        let first = run.first().map_or(0, |page| page.lblk);
        place(st, inode, work, first..first + run.len() as u32, reserved, pack.as_mut(), &mut pieces)?;
    }
    drop(pack);
    write_data(st, inode, &pieces, taken)?;
    plan::apply(st, inode, pieces, After { size, stamp: None })
}

/// One run for pages that lie far from each other: where most of a stretch of the file is not written, keeping its place
/// free would scatter what is.
fn pack(st: &Store, inode: &Inode, taken: &[Taken]) -> Option<Claim> {
    let (first, last) = (taken.first()?.lblk, taken.last()?.lblk);
    let pages = taken.len() as u32;
    let sparse = pages >= PACK_PAGES && u64::from(last - first) > PACK_SPREAD * u64::from(pages);
    if sparse && st.geo.cluster_bits == 0 { ahead::pack(st, inode, first, pages) } else { None }
}

fn place(
    st: &Store,
    inode: &Arc<Inode>,
    work: &mut Work,
    mut blocks: Range<u32>,
    reserved: &mut u32,
    mut pack: Option<&mut Claim>,
    pieces: &mut Vec<Piece>,
) -> Result<()> {
    let growth = Growth { size: inode.pages.size(), grows: false };
    while blocks.start < blocks.end {
        let need = Need { blocks: blocks.clone(), reserved, growth, pack: pack.as_deref_mut() };
        let part = plan::make(st, inode, work, need)?;
        blocks.start = part.last().map_or(blocks.end, Piece::end);
        pieces.extend(part);
    }
    Ok(())
}

/// Writes the pages to their places. Both are in the order of blocks, and the pieces cover the pages exactly.
fn write_data(st: &Store, inode: &Inode, pieces: &[Piece], taken: &[Taken]) -> Result<()> {
    let mut plug = Plug::new(&*st.dev);
    let mut pages = taken.iter();
    for piece in pieces {
        debug_assert!(!matches!(piece.how, How::Map { ref claim, .. } if claim.len < piece.len));
        for (i, page) in (0..piece.len).zip(&mut pages) {
            debug_assert_eq!(piece.lblk + i, page.lblk);
            plug.add(map::at(st, piece.pblk.0.saturating_add(i.into())), page.bytes.clone());
        }
    }
    plug.finish()?;
    inode.pages.note_written(st.journal.note_data_write());
    Ok(())
}
