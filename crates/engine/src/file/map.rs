//! Blocks and bytes of a file, and walks over its map.

use crate::error::Result;
use crate::extent::{self, ExtentState, Run};
use crate::inode::Inode;
use crate::store::Store;
use extant_format::inode::InodeFlags;
use extant_format::types::FileType;
use std::ops::Range;

/// One more than the last logical block that any map can hold.
pub(super) const END: u32 = u32::MAX;

/// The block that byte `offset` lies in, at most [`END`].
pub(super) fn block_of(st: &Store, offset: u64) -> u32 {
    u32::try_from(offset >> st.geo.block_bits).unwrap_or(END)
}

/// The first block that starts at or behind `offset`, at most [`END`].
pub(super) fn block_up(st: &Store, offset: u64) -> u32 {
    let bits = st.geo.block_bits;
    let up = (offset >> bits) + u64::from(offset & ((1 << bits) - 1) != 0);
    u32::try_from(up).unwrap_or(END)
}

/// The blocks that hold bytes `[start, end)`.
pub(super) fn blocks(st: &Store, start: u64, end: u64) -> Range<u32> {
    let first = block_of(st, start);
    first..block_up(st, end).max(first)
}

/// The blocks that lie wholly within bytes `[start, end)`.
pub(super) fn whole_blocks(st: &Store, start: u64, end: u64) -> Range<u32> {
    let first = block_up(st, start);
    first..block_of(st, end).max(first)
}

/// The blocks grown to whole clusters.
pub(super) fn clusters(st: &Store, range: Range<u32>) -> Range<u32> {
    let mask = st.geo.cluster_ratio() - 1;
    let end = range.end.checked_add(mask).map_or(END, |e| e & !mask);
    (range.start & !mask)..end
}

/// The byte that a logical block starts with.
pub(super) fn byte(st: &Store, lblk: u32) -> u64 {
    u64::from(lblk) << st.geo.block_bits
}

/// Returns the size that users see, limited to the blocks that can be numbered: an image may have
/// any size.
pub(super) fn visible(st: &Store, inode: &Inode) -> u64 {
    inode.pages.size().min(byte(st, END))
}

/// The byte of the device that a physical block starts with. Beyond any device if the number is.
pub(super) fn at(st: &Store, pblk: u64) -> u64 {
    pblk.saturating_mul(st.geo.block_size.into())
}

/// Calls `each` with the runs of `range` in order until it answers false.
pub(super) fn runs(
    st: &Store,
    inode: &Inode,
    range: Range<u32>,
    mut each: impl FnMut(Run) -> Result<bool>,
) -> Result<()> {
    let mut lblk = range.start;
    while lblk < range.end {
        let run = lookup(st, inode, lblk..range.end)?;
        if !each(run)? {
            return Ok(());
        }
        lblk += run.len;
    }
    Ok(())
}

/// Verifies that no block of the device stands in two places of the file. The caller holds `rw`.
pub fn check_map(st: &Store, inode: &Inode) -> Result<()> {
    if is_inline(inode) {
        Ok(())
    } else {
        extent::check_distinct(st, inode, block_up(st, visible(st, inode)))
    }
}

/// Returns the first run of a non-empty range, cut to the range. Blocks beyond the largest that the
/// map can have are a hole.
pub(super) fn lookup(st: &Store, inode: &Inode, range: Range<u32>) -> Result<Run> {
    let most = range.end.saturating_sub(range.start).max(1);
    let room = extent::max_blocks(st, inode);
    if u64::from(range.start) >= room {
        return Ok(Run {
            lblk: range.start,
            len: most,
            pblk: Default::default(),
            state: ExtentState::Hole,
        });
    }
    let max = u64::from(most).min(room - u64::from(range.start)) as u32;
    let run = extent::lookup(st, inode, range.start, max)?;
    Ok(Run { len: run.len.clamp(1, max), ..run })
}

/// Whether the inode has a map of blocks at all.
pub(super) fn has_map(st: &Store, inode: &Inode) -> bool {
    let body = inode.body();
    if body.flags.contains(InodeFlags::INLINE_DATA) {
        return false;
    }
    match inode.ftype {
        FileType::Regular | FileType::Directory => true,
        FileType::Symlink => !body.is_fast_symlink(&st.geo),
        _ => false,
    }
}

/// Where a regular file's content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// In blocks, cached as pages.
    Blocks,
    /// In blocks that go through the journal.
    Logged,
    /// In the inode.
    Inline,
    /// In blocks that are verified when they come into pages, and never written again.
    Verified,
}

/// Where the content is.
pub(super) fn kind(st: &Store, inode: &Inode) -> Kind {
    let flags = inode.flags();
    if flags.contains(InodeFlags::VERITY) {
        Kind::Verified
    } else if flags.contains(InodeFlags::INLINE_DATA) {
        Kind::Inline
    } else if st.policy.log_data || flags.contains(InodeFlags::JOURNAL_DATA) {
        Kind::Logged
    } else {
        Kind::Blocks
    }
}

/// Whether the content lies in the inode.
pub(super) fn is_inline(inode: &Inode) -> bool {
    inode.flags().contains(InodeFlags::INLINE_DATA)
}
