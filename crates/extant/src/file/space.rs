//! Space for data: reservations, claims, and what is tried before giving up.

use super::ahead::{self, Ahead, Growth};
use crate::alloc::{Claim, Purpose, Request, Small};
use crate::error::{Errno, Error, Result};
use crate::extent::{self, MapShape};
use crate::inode::{Inode, Work};
use crate::store::Store;
use extant_format::features::Incompat;

/// Whether the error is a lack of space, or of space that the owners may use: what was done before
/// it counts.
pub(super) fn no_space(error: &Error) -> bool {
    error.is(Errno::NoSpc) || error.is(Errno::DQuot)
}

/// How often an operation that lacks space waits for frees to become durable. Other threads may
/// take what became free, so once is not enough; the bound ends it where they take and free space
/// without end.
pub const MAX_WAITS_FOR_SPACE: usize = 16;

/// Runs `f`, and again as long as it lacks space that can be had. No handle is open.
pub(super) fn with_room<R>(st: &Store, mut f: impl FnMut() -> Result<R>) -> Result<R> {
    for _ in 0..MAX_WAITS_FOR_SPACE {
        // What was pending before may have become free since, too late for `f`.
        let pending = st.alloc.pending() > 0;
        match f() {
            Err(e) if e.is(Errno::NoSpc) && (make_room(st) || pending) => {}
            done => return done,
        }
    }
    f()
}

/// Lets frees become durable. False if there is nothing to wait for.
fn make_room(st: &Store) -> bool {
    st.alloc.pending() > 0 && st.journal.wait(st.journal.running_tid()).is_ok()
}

/// Sets `blocks` aside for delayed allocation, and what the map may need for the pages that are
/// pinned, which end before the block `end`.
pub(super) fn reserve(st: &Store, inode: &Inode, blocks: u32, end: u32) -> Result<()> {
    let shape = MapShape::of(st, inode).reaching(end);
    let share = inode.pages.read().share_missing(|pages| shape.needs(pages));
    if blocks > 0 || share > 0 {
        promised(st, inode, blocks, || {
            with_room(st, || st.alloc.reserve(blocks, share, st.pool.may_use_reserve()))
        })?;
    }
    if share > 0 {
        inode.pages.add_to_share(share);
    }
    Ok(())
}

/// Gives back what is set aside for the map beyond the need of the pages that still wait.
pub(super) fn release_share(st: &Store, inode: &Inode) {
    if inode.pages.never_used() || *inode.pages.write().share() == 0 {
        return;
    }
    let shape = MapShape::of(st, inode);
    let left = inode.pages.write().share_left(|pages| shape.needs(pages));
    if left > 0 {
        st.alloc.unreserve(left.saturating_mul(st.geo.cluster_ratio()));
    }
}

/// After the map was changed for something else than pages: those that wait may need more than
/// before, which may come from the margin.
pub(super) fn renew_share(st: &Store, inode: &Inode) {
    if !inode.pages.busy() {
        return;
    }
    let shape = MapShape::of(st, inode);
    let missing = inode.pages.read().share_missing(|pages| shape.needs(pages));
    if missing > 0 && st.alloc.reserve(0, missing, true).is_ok() {
        inode.pages.add_to_share(missing);
    }
}

/// Gives a reservation back.
pub(super) fn unreserve(st: &Store, inode: &Inode, blocks: u32) {
    if blocks > 0 {
        st.alloc.unreserve(blocks);
        st.quota.forgo(inode, blocks.into());
    }
}

/// Runs `f`, which finds space for `blocks` blocks, if the owners' limits allow them.
pub(super) fn promised<R>(
    st: &Store,
    inode: &Inode,
    blocks: u32,
    f: impl FnOnce() -> Result<R>,
) -> Result<R> {
    st.quota.promise(inode, blocks)?;
    f().inspect_err(|_| st.quota.forgo(inode, blocks.into()))
}

/// A wish for data blocks at a hole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    /// First logical block, at a cluster's start.
    pub lblk: u32,
    /// Blocks needed, in whole clusters.
    pub need: u32,
    /// May wait for freed space to become usable.
    pub patient: bool,
}

/// Claims a cluster for the first block of an inode that has no map yet.
pub(super) fn claim_first(st: &Store, inode: &Inode) -> Result<Claim> {
    let ratio = st.geo.cluster_ratio();
    let request = Request {
        goal: st.alloc.inode_goal(inode.ino),
        len: ratio,
        min: ratio,
        purpose: Purpose::Data,
        privileged: st.pool.may_use_reserve(),
        reserved: false,
        low: !st.geo.incompat(Incompat::EXTENTS),
    };
    promised(st, inode, ratio, || match st.alloc.claim_small(Small::File, &request) {
        Some(claim) => Ok(claim),
        None => with_room(st, || st.alloc.claim(&request)),
    })
}

/// Gives back what was set aside for blocks that have their space from elsewhere.
pub(super) fn settle(st: &Store, claim: &Claim, reserved: &mut u32) {
    let used = claim.len.min(*reserved);
    if used > 0 {
        st.alloc.unreserve(used);
    }
    *reserved -= used;
}

/// Claims up to `want.need` blocks, and may preallocate more around them. Draws on `reserved`
/// blocks set aside before. The claim may be shorter than needed.
pub(super) fn claim(
    st: &Store,
    inode: &Inode,
    work: &mut Work,
    want: Want,
    growth: Growth,
    reserved: &mut u32,
) -> Result<Claim> {
    let _of =
        tracing::trace_span!(target: "extant::frsp", "data", inode = inode.ino.0, lblk = want.lblk)
            .entered();
    let need = match ahead::take(st, inode, work, want, growth)? {
        Ahead::Claim(claim) => {
            settle(st, &claim, reserved);
            return Ok(claim);
        }
        Ahead::Only(blocks) => blocks,
        Ahead::Nothing => want.need,
    };
    exactly(st, inode, Want { need, ..want }, reserved)
}

/// Claims up to `want.need` blocks and no more.
fn exactly(st: &Store, inode: &Inode, want: Want, reserved: &mut u32) -> Result<Claim> {
    let goal = extent::goal(st, inode, want.lblk)?;
    let low = !extent::has_unwritten(inode);
    let min = st.geo.cluster_ratio();
    let request = |len: u32, reserved: bool| Request {
        goal,
        len: len.max(min),
        min,
        purpose: Purpose::Data,
        privileged: st.pool.may_use_reserve(),
        reserved,
        low,
    };
    if *reserved >= min
        && let Ok(claim) = st.alloc.claim(&request(want.need.min(*reserved), true))
    {
        *reserved = reserved.saturating_sub(claim.len);
        return Ok(claim);
    }
    match want.patient {
        true => with_room(st, || st.alloc.claim(&request(want.need, false))),
        false => st.alloc.claim(&request(want.need, false)),
    }
}
