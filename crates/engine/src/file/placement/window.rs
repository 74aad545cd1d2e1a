//! Preallocation: space for a window of the file around a write, so that later writes before or
//! behind it get adjacent blocks on the device.
//!
//! # Placement
//! - A file of a few blocks, which has none yet or has no writer: exactly its blocks, near the
//!   thread's other small files.
//! - A file that is open for writing, or grows: a window, by its size. A file that grows by small
//!   writes has a window of at least [`GROWING_BYTES`], so that its first blocks are not scattered
//!   among those of other files.
//! - Distant blocks of one file in one writeback: one run, in the file's order.
//! - Everything else, and when space is scarce: the needed blocks, near their neighbors in the
//!   file.
//!
//! For example, a file of 1 MiB that is open for writing gets its next block together with a window
//! behind it. The following writes take their blocks from that window.
//!
//! # Locking
//! The caller must hold the inode's `work`, except to return preallocations when space is short.

use crate::alloc::{Claim, Purpose, Request, Small, Taken};
use crate::error::Result;
use crate::extent::{self, Around};
use crate::file::map;
use crate::file::space::AllocRequest;
use crate::inode::{Inode, Work};
use crate::store::Store;
use crate::volume::SpaceRights;
use extant_format::types::BlockNr;
use extant_space::prealloc::{Ask, place};
use std::ops::Range;

/// Files up to so many blocks are small.
const SMALL_BLOCKS: u64 = 16;

/// The least window of a file that has blocks and grows, in bytes and in clusters.
const GROWING_BYTES: u64 = 128 << 10;
const GROWING_CLUSTERS: u64 = 32;

/// How a write changes its file.
#[derive(Clone, Copy, Debug)]
pub(in crate::file) struct Growth {
    /// Size in bytes afterwards.
    pub size: u64,
    /// The write itself makes the file longer.
    pub grows: bool,
}

/// The space that a file has for one of its blocks.
#[derive(Debug)]
pub(in crate::file) enum WindowSpace {
    /// The blocks, or the first of them.
    Claim(Claim),
    /// Only so many are to be claimed, without more.
    Only(u32),
    /// Nothing.
    Nothing,
}

/// Returns all preallocations of the file.
pub(in crate::file) fn discard(work: &mut Work) {
    if let Some(own) = work.take() {
        own.discard();
    }
}

/// Returns all preallocations of a file that is not open for writing.
pub(in crate::file) fn discard_of_closed(inode: &Inode, work: &mut Work) {
    if work.is_some() && !inode.pages.has_writers() {
        discard(work);
    }
}

/// Blocks from `lblk` on that the file has preallocated, if it has.
pub(in crate::file) fn kept(inode: &Inode, work: &Work, lblk: u32, blocks: u32) -> Option<Claim> {
    match work.as_ref()?.take(lblk, blocks, !extent::has_unwritten(inode)) {
        Taken::Claim(claim) => Some(claim),
        Taken::Spent(_) | Taken::Nothing => None,
    }
}

/// Takes blocks for `want` from the file's preallocations, or preallocates them now.
pub(in crate::file) fn take(
    st: &Store,
    inode: &Inode,
    work: &mut Work,
    want: AllocRequest,
) -> Result<WindowSpace> {
    let growth = want.growth;
    let low = !extent::has_unwritten(inode);
    if let Some(own) = work {
        match own.take(want.lblk, want.need, low) {
            Taken::Claim(claim) => return Ok(WindowSpace::Claim(claim)),
            Taken::Spent(blocks) => return Ok(WindowSpace::Only(blocks.min(want.need))),
            Taken::Nothing => {}
        }
    }
    let open = growth.grows || inode.pages.has_writers();
    let small = growth.size.div_ceil(st.geo.block_size.into()) <= SMALL_BLOCKS;
    if !(open || small) {
        return Ok(WindowSpace::Nothing);
    }
    let around = extent::around(st, inode, want.lblk)?;
    let found = if small && (around.is_alone() || !open) {
        small_file(st, inode, want, &around, low)
    } else {
        window(st, inode, work, want, &around)
    };
    Ok(found.map_or(WindowSpace::Nothing, WindowSpace::Claim))
}

/// A request for data that need not be granted.
fn request(goal: BlockNr, len: u32, low: bool) -> Request {
    Request { goal, len, min: 1, purpose: Purpose::Data, privileged: false, reserved: false, low }
}

fn small_file(
    st: &Store,
    inode: &Inode,
    want: AllocRequest,
    around: &Around,
    low: bool,
) -> Option<Claim> {
    let lblk = u64::from(want.lblk);
    let goal = around.goal(&(lblk..lblk + u64::from(want.need)));
    let goal = goal.unwrap_or_else(|| st.alloc.inode_goal(inode.ino));
    st.alloc.claim_small(Small::File, &request(goal, want.need, low))
}

/// Preallocates a window around `want` and takes the wanted blocks.
fn window(
    st: &Store,
    inode: &Inode,
    work: &mut Work,
    want: AllocRequest,
    around: &Around,
) -> Option<Claim> {
    let low = !extent::has_unwritten(inode);
    let bits = st.geo.cluster_bits;
    let room = st.alloc.prealloc_capacity() >> bits;
    if room == 0 {
        return None;
    }
    let own = work.get_or_insert_with(|| st.alloc.prealloc());
    let free = own.trim(want.lblk, bounds(st, inode, want, around));
    let at = u64::from(want.lblk >> bits);
    let most = room.max((want.need >> bits).into());
    if !free.contains(&at) {
        return None;
    }
    let goal = if free.end - free.start > most { at..free.end.min(at + most) } else { free };
    let blocks = goal.start << bits..goal.end << bits;
    let near = around.goal(&blocks).filter(|near| st.geo.data_range_valid(*near, 1));
    let near = near.unwrap_or_else(|| st.alloc.inode_goal(inode.ino));
    let len = u32::try_from(blocks.end - blocks.start).ok()?;
    let claim = st.alloc.claim(&request(near, len, low)).ok()?;
    let asked =
        u64::from(want.lblk >> bits)..u64::from(want.lblk >> bits) + u64::from(want.need >> bits);
    let first = place(claim.len >> bits, &goal, &asked);
    if !own.add(u32::try_from(first << bits).ok()?, claim) {
        return None;
    }
    match own.take(want.lblk, want.need, low) {
        Taken::Claim(claim) => Some(claim),
        Taken::Spent(_) | Taken::Nothing => None,
    }
}

/// Returns the window in clusters: by the file's size, without mapped blocks. A request that
/// extends beyond the window extends it.
fn bounds(st: &Store, inode: &Inode, want: AllocRequest, around: &Around) -> Range<u64> {
    let bits = st.geo.cluster_bits;
    let (logical, len) = (want.lblk >> bits, (want.need >> bits).max(1));
    let unit = st.geo.block_size << bits;
    let least =
        if around.is_alone() { 0 } else { GROWING_BYTES.max(GROWING_CLUSTERS * u64::from(unit)) };
    let ask = Ask {
        logical,
        len,
        size: want.growth.size.max(least),
        block: st.geo.block_size,
        unit,
        group: st.geo.clusters_per_group,
        limit: extent::max_blocks(st, inode).min(map::END.into()) >> bits,
    };
    let ideal = ask.window();
    let reach = ideal.end.max(ask.end().min(ideal.start + u64::from(ask.group)));
    let ratio = u64::from(st.geo.cluster_ratio());
    let hole = around.start.div_ceil(ratio)..(around.end >> bits).max(ask.end());
    ideal.start.max(hole.start)..reach.min(hole.end)
}

/// Space for blocks that are written at once, far from each other within the file: one run after
/// the other, as long as they are found.
#[derive(Debug)]
pub(in crate::file) struct ScatteredAlloc {
    /// Blocks that are still to come, at most.
    left: u32,
    /// Where the next run should begin.
    goal: BlockNr,
    low: bool,
    claim: Option<Claim>,
}

impl ScatteredAlloc {
    /// For `blocks` blocks, the first of which is `first`. `None` if space is scarce.
    pub fn new(st: &Store, inode: &Inode, first: u32, blocks: u32) -> Option<ScatteredAlloc> {
        if st.alloc.spare() < u64::from(blocks) {
            return None;
        }
        let goal = extent::goal(st, inode, first).ok()?;
        Some(ScatteredAlloc { left: blocks, goal, low: !extent::has_unwritten(inode), claim: None })
    }

    /// Up to `blocks` blocks.
    pub fn take(&mut self, st: &Store, blocks: u32) -> Option<Claim> {
        if self.claim.as_ref().is_none_or(|claim| claim.len == 0) {
            let want = request(self.goal, self.left.max(blocks), self.low);
            let claim = st
                .alloc
                .claim(&Request {
                    privileged: st.policy.may_use_reserve(SpaceRights::default()),
                    ..want
                })
                .ok()?;
            self.goal = BlockNr(claim.start.0 + u64::from(claim.len));
            self.claim = Some(claim);
        }
        let taken = self.claim.as_mut()?.split(blocks);
        self.left = self.left.saturating_sub(taken.len);
        Some(taken)
    }
}
