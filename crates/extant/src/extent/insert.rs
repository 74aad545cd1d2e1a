//! Maps holes.

use super::budget;
use super::indirect;
use super::io::Writer;
use super::lookup::{goal_locked, implied_locked, lookup_locked, unowned_locked};
use super::owner::{Kind, charge, purpose};
use super::tree;
use crate::alloc::{Claim, Purpose, Request, Small};
use crate::error::{Errno, Result};
use crate::inode::{Inode, MapCache, Run, State};
use crate::store::Store;
use extant_format::error::Corrupt;
use extant_format::extent::Leaf;
use extant_format::types::{BlockNr, FileType};
use extant_journal::Handle;
use extant_sync::atomic::Ordering;
use std::sync::Arc;

/// Claims, books and maps up to `len` blocks at the hole `lblk` within `h` (directories, symlinks, fallocate).
/// Returns the run that is mapped at `lblk` afterwards, at least one block. On bigalloc a cluster that the file
/// already owns is used.
///
/// # Errors
/// EOPNOTSUPP for unwritten blocks in a map that does not know them, ENOSPC, EDQUOT, `Corrupt`, `Io`.
pub fn allocate(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>, lblk: u32, len: u32, state: State) -> Result<Run> {
    let mut map = inode.map.write();
    let found = lookup_locked(st, inode, &map, lblk, len.max(1))?;
    if found.is_mapped() {
        return Ok(found);
    }
    if let Some(pblk) = implied_locked(st, inode, lblk)? {
        let run = Run { pblk, state, len: found.len.min(to_cluster_end(st, lblk)), lblk };
        changing(h, inode, &mut map, |h| insert_owned(st, h, inode, run))?;
        map.put(run);
        return Ok(run);
    }
    let len = unowned_locked(st, inode, &map, lblk, len)?.max(1);
    let offset = lblk % st.geo.cluster_ratio();
    let wanted = (offset + len).next_multiple_of(st.geo.cluster_ratio());
    st.quota.promise(inode, wanted)?;
    let mapped = allocate_at(st, h, inode, &mut map, Hole { lblk, offset, len, state });
    let booked = mapped.as_ref().map_or(0, |run| (offset + run.len).next_multiple_of(st.geo.cluster_ratio()));
    st.quota.forgo(inode, wanted.saturating_sub(booked).into());
    mapped
}

/// Where blocks are wanted: `offset` blocks into the first cluster.
struct Hole {
    lblk: u32,
    offset: u32,
    len: u32,
    state: State,
}

fn allocate_at(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>, map: &mut MapCache, hole: Hole) -> Result<Run> {
    let Hole { lblk, offset, len, state } = hole;
    let mut claim = claim(st, inode, lblk, offset, len)?;
    let len = len.min(claim.len.saturating_sub(offset));
    let run = Run { lblk, len, pblk: BlockNr(claim.start.0 + u64::from(offset)), state };
    changing(h, inode, map, |h| insert_claimed(st, h, inode, run, &mut claim, offset))?;
    map.put(run);
    Ok(run)
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
    // Relaxed: a switch that guards nothing.
    let privileged = purpose == Purpose::Data && st.pool.use_reserve.load(Ordering::Relaxed);
    Ok(Request { goal, len, min, purpose, privileged, reserved: false, low })
}

/// Books the first `len` blocks of `claim` and maps them at `lblk` (data before mapping: the data are on their way
/// to the device already). `offset_in_claim` is not zero only on bigalloc, where `lblk` may lie inside its cluster:
/// the claim begins with the cluster then.
///
/// # Errors
/// EAGAIN if one of the clusters is the file's already (see [`unowned`](super::unowned)); EOPNOTSUPP for unwritten
/// blocks in a map that does not know them; EINVAL for a claim that is too short or lies wrong; ENOSPC, `Corrupt`,
/// `Io`. Blocks that could not be mapped are free again.
#[expect(clippy::too_many_arguments, reason = "a run, a claim, and where they meet")]
pub fn insert_claim(
    st: &Store,
    h: &mut Handle<'_>,
    inode: &Arc<Inode>,
    lblk: u32,
    claim: &mut Claim,
    offset_in_claim: u32,
    len: u32,
    state: State,
) -> Result<()> {
    let fits = offset_in_claim.checked_add(len).is_some_and(|end| end <= claim.len);
    if len == 0 || !fits || offset_in_claim != lblk % st.geo.cluster_ratio() {
        return Err(Errno::Inval.into());
    }
    let run = Run { lblk, len, pblk: BlockNr(claim.start.0 + u64::from(offset_in_claim)), state };
    let mut map = inode.map.write();
    if st.geo.cluster_ratio() > 1 && unowned_locked(st, inode, &map, lblk, len)? < len {
        return Err(Errno::Again.into());
    }
    changing(h, inode, &mut map, |h| insert_claimed(st, h, inode, run, claim, offset_in_claim))?;
    map.put(run);
    Ok(())
}

/// Books `claim` whole and maps it, written, in parts: each of `parts`, a logical block and how many from there, gets the
/// next blocks of the claim. For extent trees without clusters.
///
/// # Errors
/// EINVAL if the parts are not as long as the claim; otherwise as [`insert_claim`]. After an error the first parts may be
/// mapped; the blocks of the others are free again.
pub fn insert_scattered(
    st: &Store,
    h: &mut Handle<'_>,
    inode: &Arc<Inode>,
    claim: &mut Claim,
    parts: &[(u32, u32)],
) -> Result<()> {
    if let [(lblk, len)] = *parts {
        return insert_claim(st, h, inode, lblk, claim, 0, len, State::Written);
    }
    let sum: u64 = parts.iter().map(|(_, len)| u64::from(*len)).sum();
    if sum != claim.len.into() || parts.is_empty() || st.geo.cluster_ratio() > 1 || Kind::of(inode) != Kind::Tree {
        return Err(Errno::Inval.into());
    }
    let mut map = inode.map.write();
    changing(h, inode, &mut map, |h| insert_each(st, h, inode, claim, parts))?;
    for (lblk, len) in parts {
        map.forget(u64::from(*lblk)..u64::from(*lblk) + u64::from(*len));
    }
    Ok(())
}

fn insert_each(
    st: &Store,
    h: &mut Handle<'_>,
    inode: &Arc<Inode>,
    claim: &mut Claim,
    parts: &[(u32, u32)],
) -> Result<()> {
    let (before, booked) = (h.credits_left(), claim.len);
    let bound = parts.iter().fold(0u32, |sum, (_, len)| sum.saturating_add(budget::credits(st, inode, *len)));
    let mut nodes = Writer::new(st, h, inode, claim.start);
    let start = book(&mut nodes, claim, booked)?;
    let mut done = 0;
    for (lblk, len) in parts {
        let pblk = BlockNr(start.0 + u64::from(done));
        let (mapped, result) =
            insert_parts(&mut nodes, inode, Run { lblk: *lblk, len: *len, pblk, state: State::Written });
        done += mapped;
        if let Err(error) = result {
            give_back(st, nodes.h, inode, start, booked, done)?;
            return Err(error);
        }
    }
    budget::assert_used(before, nodes.h, bound);
    Ok(())
}

/// Maps a run whose blocks are booked already, and charges the file for them. The blocks that it is mapped to must be
/// holes, and clusters single blocks. Costs [`credits`](super::credits) for the run.
///
/// # Errors
/// EOPNOTSUPP and EINVAL as [`insert_claim`]; `Corrupt` if a block is mapped, ENOSPC, `Io`.
pub fn insert_booked(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>, run: Run) -> Result<()> {
    if st.geo.cluster_ratio() > 1 {
        return Err(Errno::OpNotSupp.into());
    }
    let mut map = inode.map.write();
    changing(h, inode, &mut map, |h| {
        insert_owned(st, h, inode, run)?;
        charge(st, h, inode, run.len.into())
    })?;
    map.put(run);
    Ok(())
}

/// Runs a change of the map: what readers found before is stale, and after an error nothing is known any more.
pub(super) fn changing<'j, R>(
    h: &mut Handle<'j>,
    inode: &Arc<Inode>,
    map: &mut MapCache,
    change: impl FnOnce(&mut Handle<'j>) -> Result<R>,
) -> Result<R> {
    map.changing();
    let result = change(h);
    inode.note_datasync(h);
    if result.is_err() {
        map.clear();
    }
    result
}

/// Books a run's blocks, which are the claim's from `offset` on, and maps them.
fn insert_claimed(
    st: &Store,
    h: &mut Handle<'_>,
    inode: &Arc<Inode>,
    run: Run,
    claim: &mut Claim,
    offset: u32,
) -> Result<()> {
    check_state(st, inode, run.state)?;
    let (before, bound) = (h.credits_left(), budget::credits(st, inode, run.len));
    let mut nodes = Writer::new(st, h, inode, run.pblk);
    if Kind::of(inode) == Kind::Tree {
        tree::prepare_insert(&mut nodes, run.lblk)?;
    }
    let claimed = claim.len;
    let start = book(&mut nodes, claim, offset + run.len)?;
    let booked = claimed - claim.len;
    let (done, result) = insert_parts(&mut nodes, inode, run);
    budget::assert_used(before, nodes.h, bound);
    match result {
        Ok(()) => Ok(()),
        Err(error) => {
            give_back(st, nodes.h, inode, start, booked, if done == 0 { 0 } else { offset + done })?;
            Err(error)
        }
    }
}

/// Charges the file for the first `len` blocks of a claim, in whole clusters, and books them. After an error nothing is booked,
/// and the claim is as it was.
fn book(nodes: &mut Writer<'_, '_, '_>, claim: &mut Claim, len: u32) -> Result<BlockNr> {
    let (st, inode) = (nodes.st, nodes.inode);
    let blocks = i64::from(len.next_multiple_of(st.geo.cluster_ratio()));
    charge(st, nodes.h, inode, blocks)?;
    let booked = st.alloc.book(nodes.h, claim, len);
    if booked.is_err() {
        charge(st, nodes.h, inode, -blocks)?;
    }
    booked
}

/// Frees the booked blocks of which no cluster is mapped: only the first `used` are.
fn give_back(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>, start: BlockNr, booked: u32, used: u32) -> Result<()> {
    let used = used.next_multiple_of(st.geo.cluster_ratio()).min(booked);
    if used < booked {
        charge(st, h, inode, -i64::from(booked - used))?;
        st.alloc.free(h, BlockNr(start.0 + u64::from(used)), booked - used, purpose(st, inode))?;
    }
    Ok(())
}

/// Maps blocks of a cluster that the file owns.
fn insert_owned(st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>, run: Run) -> Result<()> {
    check_state(st, inode, run.state)?;
    insert_parts(&mut Writer::new(st, h, inode, run.pblk), inode, run).1
}

fn check_state(st: &Store, inode: &Inode, state: State) -> Result<()> {
    match (Kind::of(inode), state) {
        (Kind::Inline, _) | (_, State::Hole) => Err(Errno::Inval.into()),
        (Kind::Indirect, State::Unwritten) => Err(Errno::OpNotSupp.into()),
        (Kind::Indirect, State::Written) if st.geo.cluster_ratio() > 1 => Err(Errno::OpNotSupp.into()),
        _ => Ok(()),
    }
}

/// Maps a run, extent by extent. Returns how many blocks were mapped, and why not all if so.
fn insert_parts(nodes: &mut Writer<'_, '_, '_>, inode: &Inode, run: Run) -> (u32, Result<()>) {
    if Kind::of(inode) == Kind::Indirect {
        return indirect::insert(nodes, run.lblk, run.pblk.0, run.len);
    }
    let unwritten = run.state == State::Unwritten;
    let mut done = 0;
    while done < run.len {
        let len = (run.len - done).min(Leaf::max_len(unwritten).into());
        let part = run.cut(u64::from(run.lblk) + u64::from(done)..u64::from(run.lblk) + u64::from(done + len));
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
        false => Err(Corrupt::new("extent").field("block mapped twice").found(leaf.lblk).at_inode(inode.ino).into()),
    }
}
