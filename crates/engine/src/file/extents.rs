//! The map of a file as users ask for it (fiemap).

use super::map;
use crate::bounds::Steps;
use crate::error::Result;
use crate::extent::{ExtentState, Run};
use crate::inode::Inode;
use crate::store::Store;
use std::sync::Arc;

/// Properties of an extent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtentFlags {
    /// The last one of the file.
    pub last: bool,
    /// It has no place on the device yet.
    pub delayed: bool,
    /// It reads as zeroes.
    pub unwritten: bool,
    /// It lies in the inode.
    pub inline: bool,
}

/// A part of a file in one place, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where in the file.
    pub logical: u64,
    /// Where on the device; 0 if it has no place or lies in the inode.
    pub physical: u64,
    /// Bytes.
    pub len: u64,
    /// Properties.
    pub flags: ExtentFlags,
}

/// Extents that overlap bytes `[start, start + len)`, in order; stops when `each` returns false.
/// Nothing is written back. The caller holds `rw`.
pub fn fiemap(
    st: &Store,
    inode: &Arc<Inode>,
    start: u64,
    len: u64,
    each: &mut dyn FnMut(&Extent) -> bool,
) -> Result<()> {
    let size = map::visible(st, inode);
    if map::is_inline(inode) {
        let flags = ExtentFlags { last: true, inline: true, ..Default::default() };
        if start < size && len > 0 {
            each(&Extent { logical: 0, physical: 0, len: size, flags });
        }
        return Ok(());
    }
    let blocks = map::blocks(st, start, start.saturating_add(len));
    // One extent is kept back until it is known whether another follows it.
    let mut kept: Option<Extent> = None;
    let (mut lblk, mut steps) = (blocks.start, Steps::default());
    while let Some((extent, next)) = next_extent(st, inode, lblk, &mut steps)? {
        if let Some(before) = kept.take()
            && !each(&before)
        {
            return Ok(());
        }
        if extent.logical >= map::byte(st, blocks.end) {
            return Ok(());
        }
        kept = Some(extent);
        lblk = next;
    }
    if let Some(mut last) = kept {
        last.flags.last = true;
        each(&last);
    }
    Ok(())
}

/// The first extent at or behind `lblk`, and the block behind it.
fn next_extent(
    st: &Store,
    inode: &Inode,
    lblk: u32,
    steps: &mut Steps,
) -> Result<Option<(Extent, u32)>> {
    let busy = inode.pages.read().next_busy(lblk..map::END);
    let mut found = None;
    map::runs(st, inode, lblk..map::END, |run| {
        steps.next()?;
        let delayed = busy.filter(|b| {
            run.state == ExtentState::Hole && (run.lblk..run.lblk + run.len).contains(b)
        });
        found = match (run.state, delayed) {
            (ExtentState::Hole, None) => return Ok(true),
            (ExtentState::Hole, Some(first)) => {
                Some(delayed_extent(st, inode, first, run.lblk + run.len))
            }
            _ => Some((mapped_extent(st, run), run.lblk + run.len)),
        };
        Ok(false)
    })?;
    Ok(found)
}

fn mapped_extent(st: &Store, run: Run) -> Extent {
    let flags =
        ExtentFlags { unwritten: run.state == ExtentState::Unwritten, ..Default::default() };
    let len = u64::from(run.len) << st.geo.block_bits;
    Extent { logical: map::byte(st, run.lblk), physical: map::at(st, run.pblk.0), len, flags }
}

/// Adjacent delayed blocks from `first` on, within a hole that ends at `end`.
fn delayed_extent(st: &Store, inode: &Inode, first: u32, end: u32) -> (Extent, u32) {
    let pages = inode.pages.read();
    let mut next = first.saturating_add(1);
    while next < end && pages.busy_in(next..next.saturating_add(1)) {
        next += 1;
    }
    let flags = ExtentFlags { delayed: true, ..Default::default() };
    let len = u64::from(next - first) << st.geo.block_bits;
    (Extent { logical: map::byte(st, first), physical: 0, len, flags }, next)
}
