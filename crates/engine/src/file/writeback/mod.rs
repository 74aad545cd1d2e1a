//! Writeback of the dirty pages of one file: delayed blocks are allocated, and the data written and
//! mapped. `batch` handles many files at a time.
//!
//! # Invariants
//! - Pages are taken as snapshots, so that writers continue meanwhile.
//! - A page whose write failed is dropped and its error recorded, unless it was changed again.
//!
//! # Locking
//! `work` is held from taking pages until they are mapped, so truncation and allocation wait. `rw`
//! is not needed.

pub(super) mod batch;
#[cfg(feature = "designs")]
pub mod designs;
pub(super) mod submit;

use super::map;
use super::plan::{self, After, MapAction, Piece, Pieces, PlanRequest};
use super::space::{self, Waits};
use super::window::{self, Growth, ScatteredAlloc};
use super::{deferred, tail, times};
use crate::bounds::Remark;
use crate::error::{Errno, Result};
use crate::extent::MapShape;
use crate::inode::{Content, Inode, Taken, Work};
use crate::store::Store;
use extant_blocks::Plug;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::thread::panicking;

/// Bytes written in one batch.
const BATCH_BYTES: usize = 32 << 20;

/// From so many pages on, spread over more than so many times as many blocks, pages share one run.
const PACK_PAGES: u32 = 16;
const PACK_SPREAD: u64 = 2;

/// Pages under writeback, which must be settled. If a panic drops them before that, they are given
/// up, as after a failed write: a sync would wait for them without end.
pub(super) struct UnderWriteback<'a> {
    st: &'a Store,
    inode: &'a Arc<Inode>,
    taken: Vec<Taken>,
    /// The thread panicked before the pages were taken.
    panicked: bool,
}

impl<'a> UnderWriteback<'a> {
    pub(super) fn new(st: &'a Store, inode: &'a Arc<Inode>, taken: Vec<Taken>) -> Self {
        UnderWriteback { st, inode, taken, panicked: panicking() }
    }
}

impl Deref for UnderWriteback<'_> {
    type Target = [Taken];

    fn deref(&self) -> &[Taken] {
        &self.taken
    }
}

impl Drop for UnderWriteback<'_> {
    fn drop(&mut self) {
        if panicking() && !self.panicked {
            let _ = settle(self.st, self.inode, self, Err(Errno::Io.into()));
        }
    }
}

/// Writes back the dirty pages of bytes `[start, end)` and waits for them. Errors are also recorded
/// for the open files.
pub fn writeback(st: &Store, inode: &Arc<Inode>, start: u64, end: u64) -> Result<()> {
    if !inode.pages.busy() {
        return Ok(());
    }
    let result = {
        let mut work = inode.pages.work.lock();
        let result = within(st, inode, &mut work, map::blocks(st, start, end));
        window::discard_of_closed(inode, &mut work);
        result
    };
    st.dirty_files.note_clean(inode);
    result
}

/// Writes the dirty pages of some blocks back, under `work`; before them the one in which the size
/// on disk ends, over which they may raise it.
pub(super) fn within(
    st: &Store,
    inode: &Arc<Inode>,
    work: &mut Work,
    blocks: Range<u32>,
) -> Result<()> {
    // A map that cannot be read stops the pages themselves.
    let last = if blocks.start == 0 { None } else { tail::waiting(st, inode).ok().flatten() };
    let before = match last.filter(|last| *last < blocks.start) {
        Some(last) => pages(st, inode, work, last..last + 1),
        None => Ok(()),
    };
    before.and(pages(st, inode, work, blocks))
}

fn pages(st: &Store, inode: &Arc<Inode>, work: &mut Work, blocks: Range<u32>) -> Result<()> {
    let most = (BATCH_BYTES / st.block_size()).max(1);
    let bits = st.geo.cluster_bits;
    let mut result = Ok(());
    let mut from = blocks.start;
    while from < blocks.end {
        let (taken, reserved) =
            inode.pages.change(&st.pages, |pages| pages.take(from..blocks.end, most, bits));
        let taken = UnderWriteback::new(st, inode, taken);
        let Some(last) = taken.last() else { break };
        from = last.lblk.saturating_add(1);
        result = result.and(alone(st, inode, work, &taken, reserved));
    }
    result
}

/// Writes pages of one file; after a failure one by one, so that only those are lost that cannot be
/// written.
pub(super) fn alone(
    st: &Store,
    inode: &Arc<Inode>,
    work: &mut Work,
    taken: &[Taken],
    mut reserved: u32,
) -> Result<()> {
    let result = st.writable().and_then(|()| write(st, inode, work, taken, &mut reserved));
    // The rest of the reservation goes back before the pages leave the list of those under
    // writeback: a writer that lacks space waits for that.
    let result = match (&result, taken) {
        (Err(_), [_, _, ..]) if st.writable().is_ok() => {
            let each = taken.chunks(1);
            let written: Vec<_> =
                each.clone().map(|one| write(st, inode, work, one, &mut reserved)).collect();
            give_back(st, inode, reserved);
            each.zip(written)
                .map(|(one, result)| settle(st, inode, one, result))
                .fold(Ok(()), Result::and)
        }
        _ => {
            give_back(st, inode, reserved);
            settle(st, inode, taken, result)
        }
    };
    if result.is_err() {
        // The pages that would have raised it are gone. If this fails, nothing can be changed any
        // more.
        let _ = raise_size(st, inode);
    }
    result
}

/// Returns the rest of the reservation of pages.
pub(super) fn give_back(st: &Store, inode: &Inode, reserved: u32) {
    space::unreserve(st, inode, reserved);
}

/// Raises the size on disk to the one that users see.
fn raise_size(st: &Store, inode: &Arc<Inode>) -> Result<()> {
    st.begin(times::CREDITS)?
        .step(|step| times::grow_disk_size(st, step, inode, inode.pages.size()).map(drop))
}

/// Notes the outcome in the pages, under `work`.
pub(super) fn settle(
    st: &Store,
    inode: &Arc<Inode>,
    taken: &[Taken],
    result: Result<()>,
) -> Result<()> {
    if let Err(e) = &result {
        if st.remarks.tells(Remark::Writeback) {
            tracing::warn!("inode {}: writing back failed: {e}", inode.ino);
        }
        // Before the pages leave the lists: a sync that finds nothing there looks for losses
        // afterwards.
        st.dirty_files.note_failed(inode, e.errno());
    }
    let lblks = taken.iter().map(|t| t.lblk);
    let shape = space::has_share(inode).then(|| MapShape::of(st, inode));
    inode.pages.change(&st.pages, |pages| {
        if result.is_ok() {
            inode.pages.settle(pages, lblks)
        } else {
            pages.failed(lblks)
        }
        if let Some(shape) = shape {
            space::release_share_of(st, inode, shape, pages);
        }
    });
    result
}

/// Pages that can be placed together. Of two pages of one cluster with a gap between them the
/// second finds its place when the first is mapped.
pub(super) fn groups<'a>(st: &Store, taken: &'a [Taken]) -> impl Iterator<Item = &'a [Taken]> {
    let bits = st.geo.cluster_bits;
    taken.chunk_by(move |a, b| a.lblk + 1 == b.lblk || a.lblk >> bits != b.lblk >> bits)
}

/// Writes pages and maps them.
fn write(
    st: &Store,
    inode: &Arc<Inode>,
    work: &mut Work,
    taken: &[Taken],
    reserved: &mut u32,
) -> Result<()> {
    deferred::settle(st, inode)?;
    groups(st, taken).try_for_each(|group| {
        let how = Placing { reserved: &mut *reserved, waits: Waits::MAX };
        let mut pieces = place(st, inode, work, group, how)?.into();
        let result = write_group(st, inode, &mut pieces, group);
        // Pages that were not written or mapped are tried again, so their space stays reserved.
        *reserved += plan::unplace(pieces);
        result
    })
}

fn write_group(st: &Store, inode: &Arc<Inode>, pieces: &mut Pieces, taken: &[Taken]) -> Result<()> {
    let size = inode.pages.size();
    let mut plug = Plug::new(&*st.dev);
    add_data(st, &mut plug, pieces, taken);
    submit::all(st, plug)?;
    inode.pages.note_written(st.journal.note_data_write());
    inode.pages.set_uses_share(true);
    let mut after = After::new(size, None);
    let mapped = space::with_space(st, Waits::MAX, || plan::apply(st, inode, pieces, &mut after));
    inode.pages.set_uses_share(false);
    mapped
}

/// One run for pages that lie far from each other.
fn pack(st: &Store, inode: &Inode, taken: &[Taken]) -> Option<ScatteredAlloc> {
    let (first, last) = (taken.first()?.lblk, taken.last()?.lblk);
    let pages = taken.len() as u32;
    let sparse = pages >= PACK_PAGES && u64::from(last - first) > PACK_SPREAD * u64::from(pages);
    if sparse && st.geo.cluster_bits == 0 {
        ScatteredAlloc::new(st, inode, first, pages)
    } else {
        None
    }
}

/// How places are found.
#[derive(Debug)]
pub(super) struct Placing<'a> {
    /// The number of reserved blocks; claims are subtracted.
    pub reserved: &'a mut u32,
    /// May wait for freed space.
    pub waits: Waits,
}

/// Places for the pages of a group.
pub(super) fn place(
    st: &Store,
    inode: &Arc<Inode>,
    work: &mut Work,
    taken: &[Taken],
    how: Placing<'_>,
) -> Result<Vec<Piece>> {
    let Placing { reserved, waits } = how;
    let growth = Growth { size: inode.pages.size(), grows: false };
    let mut pack = pack(st, inode, taken);
    let mut pieces: Vec<Piece> = Vec::new();
    for run in taken.chunk_by(|a, b| a.lblk + 1 == b.lblk) {
        let first = run.first().map_or(0, |page| page.lblk);
        let mut blocks = first..first + run.len() as u32;
        while blocks.start < blocks.end {
            let need = PlanRequest {
                blocks: blocks.clone(),
                reserved,
                growth,
                pack: pack.as_mut(),
                waits,
                rights: None,
            };
            let part = match plan::make(st, inode, work, need) {
                Ok(part) => part,
                Err(e) => {
                    *reserved += plan::unplace(pieces);
                    return Err(e);
                }
            };
            blocks.start = part.last().map_or(blocks.end, Piece::end);
            pieces.extend(part);
        }
    }
    Ok(pieces)
}

/// Adds the pages to a plug. Both are in the order of blocks, and the pieces cover the pages
/// exactly.
pub(super) fn add_data<'a>(st: &Store, plug: &mut Plug<'a>, pieces: &Pieces, taken: &'a [Taken]) {
    let mut pages = taken.iter();
    for piece in pieces {
        debug_assert!(
            !matches!(piece.how, MapAction::Map { ref claim, .. } if claim.len < piece.len)
        );
        for (i, page) in (0..piece.len).zip(&mut pages) {
            debug_assert_eq!(piece.lblk + i, page.lblk);
            add_page(plug, map::at(st, piece.pblk.0.saturating_add(i.into())), &page.content);
        }
    }
}

fn add_page<'a>(plug: &mut Plug<'a>, at: u64, content: &'a Content) {
    let (first, stored) = content.stored();
    let (before, behind) = content.around();
    plug.add(at, before);
    plug.add(at.saturating_add(first as u64), stored);
    plug.add(at.saturating_add((first + stored.len()) as u64), behind);
}
