//! Space for data: reservations, claims, and the retries before ENOSPC.

use crate::alloc::{Claim, Purpose, Request, Small};
use crate::error::{Errno, Error, Result};
use crate::extent::{self, MapShape};
use crate::file::batch;
use crate::file::window::{self, Growth, WindowSpace};
use crate::inode::{Inode, PageMap, Work};
use crate::store::{Alone, CallerStore, Store};
use crate::volume::SpaceRights;
use extant_format::features::Incompat;
use extant_sync::{Level, levels};

/// Returns whether the error is ENOSPC or EDQUOT, before which a part of the work may be done.
pub(in crate::file) fn no_space(error: &Error) -> bool {
    error.is(Errno::NoSpc) || error.is(Errno::DQuot)
}

/// The number of times that an operation without space waits for frees to become durable. Other
/// threads may take the freed space, so one wait is not enough; the bound ends the waits if they
/// take and free space forever.
pub const MAX_WAITS_FOR_SPACE: usize = 16;

/// The waits that a caller can afford.
#[derive(Clone, Copy, Debug)]
pub(in crate::file) struct Waits(usize);

impl Waits {
    /// The operation can do without.
    pub const NONE: Waits = Waits(0);
    /// No other thread takes the freed space: all writers wait for the one that is [`alone`].
    pub const ALONE: Waits = Waits(1);
    /// Other threads may take the freed space.
    pub const MAX: Waits = Waits(MAX_WAITS_FOR_SPACE);
}

/// Runs `f`, and again as long as it lacks space that can be had. No handle is open.
pub(in crate::file) fn with_space<R>(
    st: &Store,
    waits: Waits,
    mut f: impl FnMut() -> Result<R>,
) -> Result<R> {
    for _ in 0..waits.0 {
        // Pending frees may have completed since, too late for `f`.
        let pending = st.alloc.pending() > 0;
        match f() {
            Err(e) if e.is(Errno::NoSpc) && (await_frees(st) || pending) => {}
            done => return done,
        }
    }
    f()
}

/// Writes all pages while no writer sets space aside: nothing is reserved then that is not needed.
/// Writers wait until the result is dropped. The caller may hold a file's `rw` and ranges of it, no
/// `work`, and must not set space aside.
pub(in crate::file) fn alone(st: &Store) -> Alone<'_> {
    let alone = st.dirty_files.set_aside.alone();
    // Errors are noted for fsync.
    let _ = batch::writeback_all(st);
    alone
}

/// Frees space that is reserved and not needed. The caller must hold no lock of a file.
pub fn release_reserved(st: &Store) {
    drop(alone(st));
}

/// Runs `f`, which claims space with these waits, and if it lacks some, runs it again [`alone`].
pub(in crate::file) fn before_others<R>(
    st: &Store,
    mut f: impl FnMut(Waits) -> Result<R>,
) -> Result<R> {
    match f(Waits::MAX) {
        Err(e) if e.is(Errno::NoSpc) => {
            let _alone = alone(st);
            f(Waits::ALONE)
        }
        done => done,
    }
}

/// Lets frees become durable. False if there is nothing to wait for.
fn await_frees(st: &Store) -> bool {
    st.alloc.pending() > 0 && st.journal.wait(st.journal.running_tid()).is_ok()
}

/// Reserves `blocks` for delayed allocation, and the blocks that the map may need for the pinned
/// pages. The caller must hold `set_aside`, shared or exclusive.
pub(in crate::file) fn reserve(st: &CallerStore<'_>, inode: &Inode, blocks: u32) -> Result<()> {
    levels::assert_held(Level::SetAside);
    let share = share_missing(inode, || MapShape::of(st, inode));
    if blocks > 0 || share > 0 {
        let waits = if st.dirty_files.set_aside.is_alone() { Waits::ALONE } else { Waits::MAX };
        promised(st, inode, (blocks, st.rights), || {
            with_space(st, waits, || st.alloc.reserve(blocks, share, st.may_use_reserve()))
        })?;
    }
    if share > 0 {
        inode.pages.add_to_share(share);
    }
    Ok(())
}

/// Blocks that are still to be set aside for the map. `shape` reads the map's shape. Pages that are
/// mapped after that, and take free entries of it, must still count.
fn share_missing(inode: &Inode, shape: impl Fn() -> MapShape) -> u32 {
    loop {
        let settled = inode.pages.settled();
        let shape = shape();
        let pages = inode.pages.read();
        if inode.pages.settled() == settled {
            return pages.share_missing(|pages| shape.needs(pages, inode.pages.size()));
        }
    }
}

/// Returns blocks reserved for the map beyond the need of the remaining dirty pages. The caller
/// must hold `work`, so that the map does not change.
pub(in crate::file) fn release_share(st: &Store, inode: &Inode) {
    if has_share(inode) {
        let shape = MapShape::of(st, inode);
        release_share_of(st, inode, shape, &mut inode.pages.write());
    }
}

/// Whether anything is set aside for the map.
pub(in crate::file) fn has_share(inode: &Inode) -> bool {
    !inode.pages.never_used() && *inode.pages.write().share() > 0
}

/// As [`release_share`], with the pages locked. `shape` is the map's.
pub(in crate::file) fn release_share_of(
    st: &Store,
    inode: &Inode,
    shape: MapShape,
    pages: &mut PageMap,
) {
    let left = pages.share_left(|pages| shape.needs(pages, inode.pages.size()));
    if left > 0 {
        st.alloc.unreserve(left.saturating_mul(st.geo.cluster_ratio()));
    }
}

/// After the map was changed for something else than pages: those that wait may need more than
/// before, which may come from the margin.
pub(in crate::file) fn renew_share(st: &Store, inode: &Inode) {
    if !inode.pages.busy() {
        return;
    }
    let missing = share_missing(inode, || MapShape::of(st, inode));
    if missing > 0 && st.alloc.reserve(0, missing, true).is_ok() {
        inode.pages.add_to_share(missing);
    }
}

/// Gives a reservation back.
pub(in crate::file) fn unreserve(st: &Store, inode: &Inode, blocks: u32) {
    if blocks > 0 {
        st.alloc.unreserve(blocks);
        st.quota.release_reservation(inode, blocks.into());
    }
}

/// Runs `f`, which finds space for `blocks` blocks, if the owners' limits allow them to a caller
/// with these rights.
pub(in crate::file) fn promised<R>(
    st: &Store,
    inode: &Inode,
    (blocks, rights): (u32, SpaceRights),
    f: impl FnOnce() -> Result<R>,
) -> Result<R> {
    st.quota.promise(inode, blocks, !rights.ignore_limits)?;
    f().inspect_err(|_| st.quota.release_reservation(inode, blocks.into()))
}

/// A wish for data blocks at a hole.
#[derive(Clone, Copy, Debug)]
pub(in crate::file) struct AllocRequest {
    /// First logical block, at a cluster's start.
    pub lblk: u32,
    /// Blocks needed, in whole clusters.
    pub need: u32,
    /// How the file grows by the write.
    pub growth: Growth,
    pub waits: Waits,
    /// Rights of the caller whose content it is.
    pub rights: SpaceRights,
}

/// Claims a cluster for the first block of an inode that has no map yet.
pub(in crate::file) fn claim_first(st: &CallerStore<'_>, inode: &Inode) -> Result<Claim> {
    let ratio = st.geo.cluster_ratio();
    let request = Request {
        goal: st.alloc.inode_goal(inode.ino),
        len: ratio,
        min: ratio,
        purpose: Purpose::Data,
        privileged: st.may_use_reserve(),
        reserved: false,
        low: !st.geo.incompat(Incompat::EXTENTS),
    };
    promised(st, inode, (ratio, st.rights), || match st.alloc.claim_small(Small::File, &request) {
        Some(claim) => Ok(claim),
        None => with_space(st, Waits::MAX, || st.alloc.claim(&request)),
    })
}

/// Returns the reservation of blocks that got their space from elsewhere.
pub(in crate::file) fn settle(st: &Store, claim: &Claim, reserved: &mut u32) {
    let used = claim.len.min(*reserved);
    if used > 0 {
        st.alloc.unreserve(used);
    }
    *reserved -= used;
}

/// Claims up to `want.need` blocks, and may preallocate more around them. Draws on `reserved`
/// blocks set aside before. The claim may be shorter than needed.
pub(in crate::file) fn claim(
    st: &Store,
    inode: &Inode,
    work: &mut Work,
    want: AllocRequest,
    reserved: &mut u32,
) -> Result<Claim> {
    let _of =
        tracing::trace_span!(target: "extant::frsp", "data", inode = inode.ino.0, lblk = want.lblk)
            .entered();
    let need = match window::take(st, inode, work, want)? {
        WindowSpace::Claim(claim) => {
            settle(st, &claim, reserved);
            return Ok(claim);
        }
        WindowSpace::Only(blocks) => blocks,
        WindowSpace::Nothing => want.need,
    };
    exactly(st, inode, AllocRequest { need, ..want }, reserved)
}

/// Claims up to `want.need` blocks and no more.
fn exactly(st: &Store, inode: &Inode, want: AllocRequest, reserved: &mut u32) -> Result<Claim> {
    let goal = extent::goal(st, inode, want.lblk)?;
    let low = !extent::has_unwritten(inode);
    let min = st.geo.cluster_ratio();
    let request = |len: u32, reserved: bool| Request {
        goal,
        len: len.max(min),
        min,
        purpose: Purpose::Data,
        privileged: st.policy.may_use_reserve(want.rights),
        reserved,
        low,
    };
    if *reserved >= min
        && let Ok(claim) = st.alloc.claim(&request(want.need.min(*reserved), true))
    {
        *reserved = reserved.saturating_sub(claim.len);
        return Ok(claim);
    }
    with_space(st, want.waits, || st.alloc.claim(&request(want.need, false)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::writeback;
    use crate::{Falloc, Fs, NodeKind, OpenFlags, OpenOptions};
    use extant_testkit::{FeatureSet, Memory};
    use std::cell::Cell;
    use std::sync::Arc;

    /// A writer has set space aside for a page far behind the end of its file, which is not dirty
    /// yet, when a writeback of the file ends: the blocks that the page needs stay set aside.
    #[test]
    fn pinned_pages_keep_their_share_of_a_release() {
        let image = FeatureSet::named("ext3").make();
        let device = Arc::new(Memory::from_bytes(&image.bytes()));
        let fs = Fs::open_device(device, &OpenOptions::new()).unwrap();
        let root = fs.root().unwrap();
        let node = fs.create(&root, b"file", 0o644, NodeKind::File).unwrap();
        let (st, inode) = (fs.operations().st(), &node.0);
        inode.pages.change(&st.pages, |pages| pages.pin(100_000..100_001));
        {
            let _share = st.dirty_files.set_aside.share();
            reserve(&st.on_behalf(SpaceRights::default()), inode, 1).unwrap();
        }
        assert_eq!(*inode.pages.write().share(), 3, "a pointer block of each level");
        {
            let _work = inode.pages.work.lock();
            release_share(st, inode);
            assert_eq!(*inode.pages.write().share(), 3);
            inode.pages.write().pin(0..0);
            release_share(st, inode);
        }
        assert_eq!(*inode.pages.write().share(), 0);
        unreserve(st, inode, 1);
        drop((root, node));
        fs.unmount().unwrap();
    }

    /// A writeback ends while a writer computes the need of its page: it takes the free entries of
    /// the root that the writer saw, and its own page does not count any more.
    #[test]
    fn a_writeback_meanwhile_takes_no_entries_from_a_pinned_page() {
        let image = FeatureSet::named("default").make();
        let device = Arc::new(Memory::from_bytes(&image.bytes()));
        let fs = Fs::open_device(device, &OpenOptions::new()).unwrap();
        let node = fs.create(&fs.root().unwrap(), b"file", 0o644, NodeKind::File).unwrap();
        let (st, inode) = (fs.operations().st(), &node.0);
        let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).unwrap();
        let size = st.block_size() as u64;
        file.allocate(Falloc::Allocate, 0, 100 * size).unwrap();
        file.write_at(10 * size, &vec![1; st.block_size()]).unwrap();
        inode.pages.change(&st.pages, |pages| pages.pin(50..51));
        let times = Cell::new(0);
        let missing = share_missing(inode, || {
            let shape = MapShape::of(st, inode);
            if times.replace(times.get() + 1) == 0 {
                writeback::writeback(st, inode, 0, u64::MAX).unwrap();
            }
            shape
        });
        assert_eq!((missing, times.get()), (1, 2));
        inode.pages.write().pin(0..0);
        drop((file, node));
        fs.unmount().unwrap();
    }
}
