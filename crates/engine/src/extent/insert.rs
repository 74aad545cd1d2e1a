//! Maps holes.

use super::budget;
use super::indirect;
use super::io::Writer;
use super::lookup::{goal_locked, implied_locked, lookup_locked, unowned_locked};
use super::owner::{Kind, charge, purpose};
use super::tree;
use crate::alloc::{Claim, Purpose, Request, Small};
use crate::error::{Errno, Result};
use crate::inode::{ExtentState, Inode, MapCache, Run};
use crate::store::Store;
use extant_format::error::Corrupt;
use extant_format::extent::Leaf;
use extant_format::types::{BlockNr, FileType};
use extant_journal::Handle;
use std::sync::Arc;

/// Claims, books and maps up to `len` blocks at the hole `lblk` within `h` (directories, symlinks,
/// fallocate). Returns the run that is mapped at `lblk` afterwards, at least one block. On bigalloc
/// a cluster that the file already owns is used.
///
/// # Errors
/// EOPNOTSUPP for unwritten blocks in a map that does not know them, ENOSPC, EDQUOT, `Corrupt`,
/// `Io`.
pub fn allocate(
    st: &Store,
    h: &mut Handle<'_>,
    inode: &Arc<Inode>,
    lblk: u32,
    len: u32,
    state: ExtentState,
) -> Result<Run> {
    let mut map = inode.map.write();
    let found = lookup_locked(st, inode, &map, lblk, len.max(1))?;
    if found.is_mapped() {
        return Ok(found);
    }
    if let Some(pblk) = implied_locked(st, inode, lblk)? {
        let run = Run { pblk, state, len: found.len.min(to_cluster_end(st, lblk)), lblk };
        changing(st, h, inode, &mut map, |h| insert_owned(st, h, inode, run))?;
        map.put(run);
        return Ok(run);
    }
    let len = unowned_locked(st, inode, &map, lblk, len)?.max(1);
    let offset = lblk % st.geo.cluster_ratio();
    let wanted = (offset + len).next_multiple_of(st.geo.cluster_ratio());
    st.quota.promise(inode, wanted)?;
    let mapped = allocate_at(st, h, inode, &mut map, Hole { lblk, offset, len, state });
    let booked = mapped
        .as_ref()
        .map_or(0, |run| (offset + run.len).next_multiple_of(st.geo.cluster_ratio()));
    st.quota.release_reservation(inode, wanted.saturating_sub(booked).into());
    mapped
}

/// Where blocks are wanted: `offset` blocks into the first cluster.
struct Hole {
    lblk: u32,
    offset: u32,
    len: u32,
    state: ExtentState,
}

fn allocate_at(
    st: &Store,
    h: &mut Handle<'_>,
    inode: &Arc<Inode>,
    map: &mut MapCache,
    hole: Hole,
) -> Result<Run> {
    let Hole { lblk, offset, len, state } = hole;
    let mut claim = claim(st, inode, lblk, offset, len)?;
    let len = len.min(claim.len.saturating_sub(offset));
    let run = Run { lblk, len, pblk: BlockNr(claim.start.0 + u64::from(offset)), state };
    let (mapped, result) =
        changing(st, h, inode, map, |h| Ok(insert_claimed(st, h, inode, run, &mut claim, offset)))?;
    let run = Run { len: mapped, ..run };
    match result {
        Err(error) if mapped == 0 => {
            map.clear();
            Err(error)
        }
        // The next call meets the error.
        _ => {
            map.put(run);
            Ok(run)
        }
    }
}

fn to_cluster_end(st: &Store, lblk: u32) -> u32 {
    let ratio = st.geo.cluster_ratio();
    ratio - lblk % ratio
}

/// Claims blocks for `lblk`; those of a directory where the thread's other directories have theirs.
fn claim(st: &Store, inode: &Inode, lblk: u32, offset: u32, len: u32) -> Result<Claim> {
    let want = wish(st, inode, lblk, offset, len)?;
    let small = match inode.ftype {
        FileType::Directory => {
            let len = want.len.next_multiple_of(st.geo.cluster_ratio());
            st.alloc.claim_small(Small::Directory, &Request { len, ..want })
        }
        _ => None,
    };
    small.map_or_else(|| st.alloc.claim(&want), Ok)
}

fn wish(st: &Store, inode: &Inode, lblk: u32, offset: u32, len: u32) -> Result<Request> {
    let goal = goal_locked(st, inode, lblk)?;
    let low = Kind::of(inode) == Kind::Indirect;
    let min = offset + 1;
    let len = len.saturating_add(offset);
    let purpose = purpose(st, inode);
    let privileged = purpose == Purpose::Data && st.policy.may_use_reserve();
    Ok(Request { goal, len, min, purpose, privileged, reserved: false, low })
}

/// Books the first `len` blocks of `claim` and maps them at `lblk` (data before mapping: the data
/// are on their way to the device already). `offset_in_claim` is not zero only on bigalloc, where
/// `lblk` may lie inside its cluster: the claim begins with the cluster then. Returns how many
/// blocks are mapped, and why not all if so: blocks that could not be mapped are free again.
///
/// # Errors
/// EAGAIN if one of the clusters is the file's already (see [`unowned`](super::unowned));
/// EOPNOTSUPP for unwritten blocks in a map that does not know them; EINVAL for a claim that is too
/// short or lies wrong; ENOSPC, `Corrupt`, `Io`.
#[expect(clippy::too_many_arguments, reason = "a run, a claim, and where they meet")]
pub fn insert_claim(
    st: &Store,
    h: &mut Handle<'_>,
    inode: &Arc<Inode>,
    lblk: u32,
    claim: &mut Claim,
    offset_in_claim: u32,
    len: u32,
    state: ExtentState,
) -> (u32, Result<()>) {
    let fits = offset_in_claim.checked_add(len).is_some_and(|end| end <= claim.len);
    if len == 0 || !fits || offset_in_claim != lblk % st.geo.cluster_ratio() {
        return (0, Err(Errno::Inval.into()));
    }
    let run = Run { lblk, len, pblk: BlockNr(claim.start.0 + u64::from(offset_in_claim)), state };
    let mut map = inode.map.write();
    if st.geo.cluster_ratio() > 1 {
        match unowned_locked(st, inode, &map, lblk, len) {
            Ok(free) if free < len => return (0, Err(Errno::Again.into())),
            Ok(_) => {}
            Err(error) => return (0, Err(error)),
        }
    }
    let done = changing(st, h, inode, &mut map, |h| {
        Ok(insert_claimed(st, h, inode, run, claim, offset_in_claim))
    });
    match done {
        Ok((mapped, result)) if mapped > 0 => {
            map.put(Run { len: mapped, ..run });
            (mapped, result)
        }
        Ok((_, result)) => {
            map.clear();
            (0, result)
        }
        Err(error) => (0, Err(error)),
    }
}

/// Books `claim` whole and maps it, written, in parts: each of `parts`, a logical block and how
/// many from there, gets the next blocks of the claim. For extent trees without clusters. Returns
/// how many of the claim's blocks are mapped, and why not all if so: the others are free again.
///
/// # Errors
/// EINVAL if the parts are not as long as the claim; otherwise as [`insert_claim`].
pub fn insert_scattered(
    st: &Store,
    h: &mut Handle<'_>,
    inode: &Arc<Inode>,
    claim: &mut Claim,
    parts: &[(u32, u32)],
) -> (u32, Result<()>) {
    if let [(lblk, len)] = *parts {
        return insert_claim(st, h, inode, lblk, claim, 0, len, ExtentState::Written);
    }
    let sum: u64 = parts.iter().map(|(_, len)| u64::from(*len)).sum();
    if sum != claim.len.into()
        || parts.is_empty()
        || st.geo.cluster_ratio() > 1
        || Kind::of(inode) != Kind::Tree
    {
        return (0, Err(Errno::Inval.into()));
    }
    let mut map = inode.map.write();
    let done = changing(st, h, inode, &mut map, |h| Ok(insert_each(st, h, inode, claim, parts)));
    for (lblk, len) in parts {
        map.forget(u64::from(*lblk)..u64::from(*lblk) + u64::from(*len));
    }
    done.unwrap_or_else(|error| (0, Err(error)))
}

fn insert_each(
    st: &Store,
    h: &mut Handle<'_>,
    inode: &Arc<Inode>,
    claim: &mut Claim,
    parts: &[(u32, u32)],
) -> (u32, Result<()>) {
    let (before, booked) = (h.credits_left(), claim.len);
    let bound = parts
        .iter()
        .fold(0u32, |sum, (_, len)| sum.saturating_add(budget::credits(st, inode, *len)));
    let mut nodes = Writer::new(st, h, inode, claim.start);
    let start = match book(&mut nodes, claim, booked) {
        Ok(start) => start,
        Err(error) => return (0, Err(error)),
    };
    let mut done = 0;
    for (lblk, len) in parts {
        let pblk = BlockNr(start.0 + u64::from(done));
        let (mapped, result) = insert_parts(
            &mut nodes,
            inode,
            Run { lblk: *lblk, len: *len, pblk, state: ExtentState::Written },
        );
        done += mapped;
        if let Err(error) = result {
            give_back(st, nodes.h, inode, start, booked, done);
            return (done, Err(error));
        }
    }
    budget::assert_used(before, nodes.h, bound);
    (done, Ok(()))
}

/// Maps a run whose blocks are booked already, and charges the file for them. The blocks that it is
/// mapped to must be holes, and clusters single blocks. Costs [`credits`](super::credits) for the
/// run.
///
/// # Errors
/// EOPNOTSUPP and EINVAL as [`insert_claim`]; `Corrupt` if a block is mapped, ENOSPC, `Io`.
pub fn insert_booked(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>, run: Run) -> Result<()> {
    if st.geo.cluster_ratio() > 1 {
        return Err(Errno::OpNotSupp.into());
    }
    let mut map = inode.map.write();
    changing(st, h, inode, &mut map, |h| {
        st.step(h, |h| {
            let mut nodes = Writer::new(st, h, inode, run.pblk);
            prepare(&mut nodes, run)?;
            insert_parts(&mut nodes, inode, run).1?;
            charge(st, nodes.h, inode, run.len.into())
        })
    })?;
    map.put(run);
    Ok(())
}

/// Runs a change of the map. This is the one place that makes fsync and fdatasync wait for it: the
/// inode is dirty in the transaction even if the change is in a block outside of the inode, so the
/// ids that they wait for stay in memory with it. What readers found before is stale, and after an
/// error nothing is known any more.
pub(super) fn changing<'j, R>(
    st: &Store,
    h: &mut Handle<'j>,
    inode: &Arc<Inode>,
    map: &mut MapCache,
    change: impl FnOnce(&mut Handle<'j>) -> Result<R>,
) -> Result<R> {
    inode.touch(st, h)?;
    map.changing();
    let result = change(h);
    inode.note_datasync(h);
    if result.is_err() {
        map.clear();
    }
    result
}

/// Books a run's blocks, which are the claim's from `offset` on, and maps them. Returns how many,
/// and why not all if so: the blocks of the others are free again.
fn insert_claimed(
    st: &Store,
    h: &mut Handle<'_>,
    inode: &Arc<Inode>,
    run: Run,
    claim: &mut Claim,
    offset: u32,
) -> (u32, Result<()>) {
    let (before, bound) = (h.credits_left(), budget::credits(st, inode, run.len));
    let mut nodes = Writer::new(st, h, inode, run.pblk);
    let claimed = claim.len;
    let start =
        match prepare(&mut nodes, run).and_then(|()| book(&mut nodes, claim, offset + run.len)) {
            Ok(start) => start,
            Err(error) => return (0, Err(error)),
        };
    let booked = claimed - claim.len;
    let (done, result) = insert_parts(&mut nodes, inode, run);
    budget::assert_used(before, nodes.h, bound);
    if result.is_err() {
        give_back(st, nodes.h, inode, start, booked, if done == 0 { 0 } else { offset + done });
    }
    (done, result)
}

/// Before anything is booked: the run may be mapped, and there is space for nodes.
fn prepare(nodes: &mut Writer<'_, '_, '_>, run: Run) -> Result<()> {
    check_state(nodes.st, nodes.inode, run.state)?;
    match Kind::of(nodes.inode) {
        Kind::Tree => tree::prepare_insert(nodes, run.lblk),
        Kind::Indirect => indirect::prepare_insert(nodes, run.lblk),
        Kind::Inline => Ok(()),
    }
}

/// Charges the file for the first `len` blocks of a claim, in whole clusters, and books them. After
/// an error nothing is booked, and the claim is as it was, or the journal is aborted.
fn book(nodes: &mut Writer<'_, '_, '_>, claim: &mut Claim, len: u32) -> Result<BlockNr> {
    let (st, inode) = (nodes.st, nodes.inode);
    let blocks = i64::from(len.next_multiple_of(st.geo.cluster_ratio()));
    nodes.hold_bitmaps(claim.start, len)?;
    charge(st, nodes.h, inode, blocks)?;
    let booked = st.step(nodes.h, |h| st.alloc.book(h, claim, len));
    if booked.is_err() {
        charge(st, nodes.h, inode, -blocks).inspect_err(|e| st.give_up(e))?;
    }
    booked
}

/// Frees the booked blocks of which no cluster is mapped: only the first `used` are. If that fails
/// the journal is aborted.
fn give_back(
    st: &Store,
    h: &mut Handle<'_>,
    inode: &Arc<Inode>,
    start: BlockNr,
    booked: u32,
    used: u32,
) {
    let used = used.next_multiple_of(st.geo.cluster_ratio()).min(booked);
    if used < booked {
        let (first, len) = (BlockNr(start.0 + u64::from(used)), booked - used);
        let freed = charge(st, h, inode, -i64::from(len))
            .and_then(|()| st.alloc.free(h, first, len, purpose(st, inode)));
        let _ = freed.inspect_err(|e| st.give_up(e));
    }
}

/// Maps blocks of a cluster that the file owns.
fn insert_owned(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>, run: Run) -> Result<()> {
    check_state(st, inode, run.state)?;
    insert_parts(&mut Writer::new(st, h, inode, run.pblk), inode, run).1
}

fn check_state(st: &Store, inode: &Inode, state: ExtentState) -> Result<()> {
    match (Kind::of(inode), state) {
        (Kind::Inline, _) | (_, ExtentState::Hole) => Err(Errno::Inval.into()),
        (Kind::Indirect, ExtentState::Unwritten) => Err(Errno::OpNotSupp.into()),
        (Kind::Indirect, ExtentState::Written) if st.geo.cluster_ratio() > 1 => {
            Err(Errno::OpNotSupp.into())
        }
        _ => Ok(()),
    }
}

/// Maps a run, extent by extent. Returns how many blocks were mapped, and why not all if so.
fn insert_parts(nodes: &mut Writer<'_, '_, '_>, inode: &Inode, run: Run) -> (u32, Result<()>) {
    if Kind::of(inode) == Kind::Indirect {
        return indirect::insert(nodes, run.lblk, run.pblk.0, run.len);
    }
    let unwritten = run.state == ExtentState::Unwritten;
    let mut done = 0;
    while done < run.len {
        let len = (run.len - done).min(Leaf::max_len(unwritten).into());
        let part = run.cut(
            u64::from(run.lblk) + u64::from(done)..u64::from(run.lblk) + u64::from(done + len),
        );
        let Some(part) = part else { break };
        let leaf = Leaf { lblk: part.lblk, len: len as u16, pblk: part.pblk.0, unwritten };
        if let Err(error) = insert_leaf(nodes, inode, leaf) {
            return (done, Err(error));
        }
        done += len;
    }
    (done, Ok(()))
}

fn insert_leaf(nodes: &mut Writer<'_, '_, '_>, inode: &Inode, leaf: Leaf) -> Result<()> {
    if leaf.end() > tree::LOGICAL_END {
        return Err(Errno::FBig.into());
    }
    match tree::insert(nodes, leaf)? {
        true => Ok(()),
        false => Err(Corrupt::new("extent")
            .field("block mapped twice")
            .found(leaf.lblk)
            .at_inode(inode.ino)
            .into()),
    }
}
