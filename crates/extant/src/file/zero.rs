//! Zeroes within a block: behind the end of a file, and at the edges of holes.

use super::logged;
use super::map;
use crate::error::Result;
use crate::extent::State;
use crate::inode::{Cover, Inode, PageMap};
use crate::store::Store;
use std::ops::Range;
use std::sync::Arc;

/// Zeroes bytes that lie within one block, on the device or in its page. A hole stays a hole. The caller holds `rw` for
/// writing and `work`, so that no page is being written.
pub(super) fn within_block(st: &Store, inode: &Arc<Inode>, bytes: Range<u64>) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let lblk = map::block_of(st, bytes.start);
    let first = (bytes.start - map::byte(st, lblk)) as usize;
    let within = first..first.saturating_add((bytes.end - bytes.start) as usize).min(st.block_size());
    if zero_page(st, inode, lblk, within.clone()) {
        return Ok(());
    }
    let run = map::lookup(st, inode, lblk..lblk.saturating_add(1))?;
    match run.state {
        State::Hole | State::Unwritten => Ok(()),
        State::Written if inode.logs_data(st) => logged::zero(st, inode, run.pblk.0, within),
        State::Written => {
            let at = map::at(st, run.pblk.0).saturating_add(within.start as u64);
            st.dev.write_at(&vec![0; within.len()], at)?;
            inode.pages.note_written(st.journal.note_data_write());
            Ok(())
        }
    }
}

/// Zeroes within a cached page, which is then written back; false if it is not cached, or may lie over a hole and is
/// clean.
fn zero_page(st: &Store, inode: &Arc<Inode>, lblk: u32, within: Range<usize>) -> bool {
    if !inode.pages.any() {
        return false;
    }
    let zeroed = inode.pages.change(&st.pool, |pages| in_page(st, pages, lblk, within)) != InPage::Elsewhere;
    if zeroed && inode.pages.busy() {
        st.pool.note(inode, true);
    }
    zeroed
}

/// Where bytes are that become zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InPage {
    /// In a page, which waits for being written now.
    Zeroed,
    /// In a page that has zeroes there already.
    Clean,
    /// Not in a page, or in a clean one that may lie over a hole.
    Elsewhere,
}

/// Zeroes bytes of a block in its page, if it is cached.
pub(super) fn in_page(st: &Store, pages: &mut PageMap, lblk: u32, within: Range<usize>) -> InPage {
    let Some(page) = pages.get(lblk) else { return InPage::Elsewhere };
    if page.is_zero(within.clone()) {
        return match pages.cover(lblk, st.geo.cluster_bits) {
            Cover::Covered => InPage::Clean,
            Cover::Unknown | Cover::Absent => InPage::Elsewhere,
        };
    }
    pages.dirty(lblk, |page| page.clear(&st.pool.frames, within));
    InPage::Zeroed
}
