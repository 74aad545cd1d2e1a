//! Zeroes within a block: behind the end of a file, and at the edges of holes.

use super::{deferred, logged, map, times};
use crate::error::Result;
use crate::extent::ExtentState;
use crate::inode::{Cover, Inode, PageMap, Step};
use crate::store::Store;
use std::ops::Range;
use std::sync::Arc;

/// Zeroes bytes that lie within one block, on the device or in its page. A hole stays a hole. The
/// caller holds `rw` for writing and `work`, so that no page is being written.
pub(super) fn within_block(st: &Store, inode: &Arc<Inode>, bytes: Range<u64>) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let lblk = map::block_of(st, bytes.start);
    let first = (bytes.start - map::byte(st, lblk)) as usize;
    let within =
        first..first.saturating_add((bytes.end - bytes.start) as usize).min(st.block_size());
    if zero_page(st, inode, lblk, within.clone()) {
        return Ok(());
    }
    let run = map::lookup(st, inode, lblk..lblk.saturating_add(1))?;
    match run.state {
        ExtentState::Hole | ExtentState::Unwritten => Ok(()),
        ExtentState::Written if inode.logs_data(st) => logged::zero(st, inode, run.pblk.0, within),
        ExtentState::Written => on_device(st, inode, bytes_of(st, run.pblk.0, within)),
    }
}

/// Bytes of the device in a block.
fn bytes_of(st: &Store, pblk: u64, within: Range<usize>) -> Range<u64> {
    let start = map::at(st, pblk).saturating_add(within.start as u64);
    start..start.saturating_add(within.len() as u64)
}

/// Zeroes bytes of the device within one block.
pub(super) fn on_device(st: &Store, inode: &Inode, bytes: Range<u64>) -> Result<()> {
    let zeroes = vec![0; bytes.end.saturating_sub(bytes.start) as usize];
    st.dev.write_all_at(&zeroes, bytes.start)?;
    inode.pages.note_written(st.journal.note_data_write());
    Ok(())
}

/// Bytes of a written block that a cut leaves behind the end of the file: those up to the old end,
/// behind which the device has zeroes.
#[derive(Debug)]
pub(super) struct CutTail {
    pblk: u64,
    within: Range<usize>,
}

impl CutTail {
    /// Credits of [`CutTail::clear`], beside the inode's.
    pub const CREDITS: u32 = 1;

    /// Those of a file that is cut to `size`; `None` if it ends with a block, or has no written
    /// block there.
    pub fn find(st: &Store, inode: &Inode, size: u64) -> Result<Option<CutTail>> {
        if times::tail(st, size).is_empty() {
            return Ok(None);
        }
        let last = map::block_of(st, size);
        let run = map::lookup(st, inode, last..last.saturating_add(1))?;
        let start = map::byte(st, last);
        let block_end = start.saturating_add(st.block_size() as u64);
        // A recovered cut has its new size already.
        let old = Some(inode.pages.size()).filter(|&old| old > size).unwrap_or(block_end);
        let within = (size - start) as usize..(old.min(block_end) - start) as usize;
        Ok((run.state == ExtentState::Written).then_some(CutTail { pblk: run.pblk.0, within }))
    }

    /// Prepares the cut, before its step changes anything: logged data are zeroed now, and the
    /// remaining bytes are to be given to [`deferred::add`] when the size has changed. The caller
    /// holds `work`.
    pub fn prepare(
        this: Option<CutTail>,
        st: &Store,
        step: &mut Step<'_>,
        inode: &Arc<Inode>,
    ) -> Result<Option<Range<u64>>> {
        match this {
            Some(tail) if inode.logs_data(st) => {
                logged::zero_in(st, step, inode, tail.pblk, tail.within).map(|()| None)
            }
            tail => {
                let bytes = tail.map(|tail| bytes_of(st, tail.pblk, tail.within));
                deferred::prepare(st, inode, step.tid(), bytes.as_ref())?;
                Ok(bytes)
            }
        }
    }
}

/// Zeroes within a cached page, which is then written back; false if it is not cached, or may lie
/// over a hole and is clean.
fn zero_page(st: &Store, inode: &Arc<Inode>, lblk: u32, within: Range<usize>) -> bool {
    if !inode.pages.any() {
        return false;
    }
    let zeroed = inode.pages.change(&st.pages, |pages| in_page(st, pages, lblk, within))
        != InPage::Elsewhere;
    if zeroed && inode.pages.busy() {
        st.note_dirty(inode);
    }
    zeroed
}

/// Where bytes are that become zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InPage {
    /// In a page, which waits for being written now.
    Zeroed,
    /// In a page that has zeroes there already.
    Clean,
    /// Not in a page, or in a clean one that may lie over a hole.
    Elsewhere,
}

/// Zeroes bytes of a block in its page, if it is cached.
fn in_page(st: &Store, pages: &mut PageMap, lblk: u32, within: Range<usize>) -> InPage {
    let Some(page) = pages.get(lblk) else { return InPage::Elsewhere };
    if page.is_zero(within.clone()) {
        return match pages.cover(lblk, st.geo.cluster_bits) {
            Cover::Covered => InPage::Clean,
            Cover::Unknown | Cover::Absent => InPage::Elsewhere,
        };
    }
    pages.dirty(lblk, |page| page.clear(&st.pages.frames, within));
    InPage::Zeroed
}
