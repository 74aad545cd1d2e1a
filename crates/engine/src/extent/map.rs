//! Maps blocks to holes: allocations, claims of writeback, and blocks of fast commits.

use super::MapEnv;
use super::budget;
use super::indirect;
use super::lookup::{goal_locked, implied_locked, lookup_locked, unowned_locked};
use super::nodes::Writer;
use super::owner::{Kind, charge_checked, check_charge, purpose};
use super::tree;
use crate::alloc::{Claim, Purpose, Request, Small};
use crate::error::{Errno, Result};
use crate::inode::{ExtentState, Inode, MapCache, Run, Step};
use crate::volume::SpaceRights;
use extant_format::error::Corrupt;
use extant_format::extent::Leaf;
use extant_format::types::{BlockNr, FileType};
use std::ops::Range;
use std::sync::Arc;

/// Claims, books and maps the first of `blocks`, which begin with a hole (directories, symlinks,
/// fallocate). Returns the run that is mapped there afterwards, at least one block. On bigalloc
/// a cluster that the file already owns is used.
///
/// # Errors
/// EOPNOTSUPP for unwritten blocks in a map that does not know them, ENOSPC, EDQUOT, `Corrupt`,
/// `Io`.
pub fn allocate(
    env: &MapEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    blocks: Range<u32>,
    state: ExtentState,
) -> Result<Run> {
    let (lblk, len) = (blocks.start, blocks.end.saturating_sub(blocks.start));
    let mut map = inode.map.write();
    let found = lookup_locked(env, inode, &map, lblk, len.max(1))?;
    if found.is_mapped() {
        return Ok(found);
    }
    if let Some(pblk) = implied_locked(env, inode, lblk)? {
        let run = Run { pblk, state, len: found.len.min(to_cluster_end(env, lblk)), lblk };
        let run = changing(step, inode, &mut map, |step| insert_owned(env, step, inode, run))?;
        map.put(run);
        return Ok(run);
    }
    let len = unowned_locked(env, inode, &map, lblk, len)?.max(1);
    let offset = lblk % env.geo.cluster_ratio();
    let wanted = (offset + len).next_multiple_of(env.geo.cluster_ratio());
    let rights = step.rights();
    // Limits before space: nothing has changed when they refuse.
    env.quota.promise(inode, wanted, !rights.ignore_limits)?;
    let mapped = allocate_at(env, step, inode, &mut map, Hole { lblk, offset, len, state });
    let booked = mapped
        .as_ref()
        .map_or(0, |run| (offset + run.len).next_multiple_of(env.geo.cluster_ratio()));
    env.quota.release_reservation(inode, wanted.saturating_sub(booked).into());
    mapped
}

/// A hole to be mapped; it begins `offset` blocks into its first cluster.
#[derive(Clone, Copy)]
struct Hole {
    lblk: u32,
    offset: u32,
    len: u32,
    state: ExtentState,
}

fn allocate_at(
    env: &MapEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    map: &mut MapCache,
    hole: Hole,
) -> Result<Run> {
    let Hole { lblk, offset, len, state } = hole;
    let mut claim = claim(env, inode, &hole, step.rights())?;
    let len = len.min(claim.len.saturating_sub(offset));
    let run = Run { lblk, len, pblk: BlockNr(claim.start.0 + u64::from(offset)), state };
    let mapped =
        changing(step, inode, map, |step| insert_claimed(env, step, inode, run, &mut claim))?;
    map.put(mapped);
    Ok(mapped)
}

fn to_cluster_end(env: &MapEnv, lblk: u32) -> u32 {
    let ratio = env.geo.cluster_ratio();
    ratio - lblk % ratio
}

/// Claims blocks for `lblk`; blocks of a directory near those of the thread's other directories.
fn claim(env: &MapEnv, inode: &Inode, hole: &Hole, rights: SpaceRights) -> Result<Claim> {
    let want = wish(env, inode, hole, rights)?;
    let small = match inode.ftype {
        FileType::Directory => {
            let len = want.len.next_multiple_of(env.geo.cluster_ratio());
            env.alloc.claim_small(Small::Directory, &Request { len, ..want })
        }
        _ => None,
    };
    small.map_or_else(|| env.alloc.claim(&want), Ok)
}

fn wish(env: &MapEnv, inode: &Inode, hole: &Hole, rights: SpaceRights) -> Result<Request> {
    let Hole { lblk, offset, len, .. } = *hole;
    let goal = goal_locked(env, inode, lblk)?;
    let low = Kind::of(inode) == Kind::Indirect;
    let min = offset + 1;
    let len = len.saturating_add(offset);
    let purpose = purpose(env, inode);
    let privileged = purpose == Purpose::Data && env.policy.may_use_reserve(rights);
    Ok(Request { goal, len, min, purpose, privileged, reserved: false, low })
}

/// The blocks of a file that a claim is mapped to.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    /// The first logical block.
    pub lblk: u32,
    /// Blocks of the claim before the first one that is mapped: not zero only on bigalloc, where
    /// `lblk` may lie inside its cluster.
    pub offset: u32,
    /// Blocks that are mapped.
    pub len: u32,
}

/// Books the first blocks of `claim` and maps them, written, at the start of `at`, as many as one
/// step can obtain everything for (data before mapping: the data are on their way to the device
/// already). Returns their number, at least one. Costs [`credits`](super::credits) for all of `at`
/// together.
///
/// # Errors
/// EAGAIN if one of the clusters is the file's already (see [`unowned`](super::unowned));
/// EOPNOTSUPP for block pointers on bigalloc; EINVAL for a claim that is too short or lies wrong;
/// ENOSPC, `Corrupt`, `Io`.
pub fn insert_claim(
    env: &MapEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    at: Placement,
    claim: &mut Claim,
) -> Result<u32> {
    let Placement { lblk, offset, len } = at;
    let fits = offset.checked_add(len).is_some_and(|end| end <= claim.len);
    if len == 0 || !fits || offset != lblk % env.geo.cluster_ratio() {
        return Err(Errno::Inval.into());
    }
    let (pblk, state) = (BlockNr(claim.start.0 + u64::from(offset)), ExtentState::Written);
    let run = Run { lblk, len, pblk, state };
    let mut map = inode.map.write();
    if env.geo.cluster_ratio() > 1 && unowned_locked(env, inode, &map, lblk, len)? < len {
        return Err(Errno::Again.into());
    }
    let mapped =
        changing(step, inode, &mut map, |step| insert_claimed(env, step, inode, run, claim))?;
    map.put(mapped);
    Ok(mapped.len)
}

/// Books the first blocks of `claim` and maps them, written, in parts: each of `parts`, a logical
/// block and how many from there, gets the next blocks of the claim. The parts must be in order and
/// as long as the claim. One step maps the first part, and the following ones for which the same
/// leaf has space. Returns their number. For extent trees without clusters.
///
/// # Errors
/// EINVAL if the parts are not as long as the claim; otherwise as [`insert_claim`].
pub fn insert_scattered(
    env: &MapEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    claim: &mut Claim,
    parts: &[(u32, u32)],
) -> Result<usize> {
    let sum: u64 = parts.iter().map(|(_, len)| u64::from(*len)).sum();
    let longest = Leaf::max_len(false).into();
    if sum != u64::from(claim.len)
        || parts.iter().any(|(_, len)| *len == 0 || *len > longest)
        || env.geo.cluster_ratio() > 1
        || Kind::of(inode) != Kind::Tree
    {
        return Err(Errno::Inval.into());
    }
    let mut map = inode.map.write();
    let count =
        changing(step, inode, &mut map, |step| insert_some(env, step, inode, claim, parts))?;
    for (lblk, len) in parts.iter().take(count) {
        map.forget(u64::from(*lblk)..u64::from(*lblk) + u64::from(*len));
    }
    Ok(count)
}

fn insert_some(
    env: &MapEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    claim: &mut Claim,
    parts: &[(u32, u32)],
) -> Result<usize> {
    let before = step.credits_left();
    let bound = parts
        .iter()
        .fold(0u32, |sum, (_, len)| sum.saturating_add(budget::credits(env, inode, *len)));
    let mut nodes = Writer::new(env, step, inode, claim.start);
    let extents = extents_of(claim.start, parts);
    let (Some(first), Some(last)) = (extents.first(), extents.last()) else { return Ok(0) };
    if last.end() > tree::LOGICAL_END {
        return Err(Errno::FBig.into());
    }
    // The leaf, the bitmaps and the block count are read and checked before the step: behind the
    // booking an error would abort the journal.
    let prepared = tree::prepare_insert_some(&mut nodes, &extents)?;
    let (edit, count) = prepared.ok_or_else(|| mapped_twice(inode, first.lblk))?;
    let blocks = parts.iter().take(count).map(|(_, len)| len).sum();
    prepare_book(&mut nodes, claim, blocks)?;
    nodes.in_step(|nodes| {
        book(nodes, claim, blocks)?;
        tree::insert(nodes, &edit, *first)
    })?;
    budget::assert_used(before, nodes.step, bound);
    Ok(count)
}

/// Returns written extents for these parts of a file, one after the other on the device.
fn extents_of(start: BlockNr, parts: &[(u32, u32)]) -> Vec<Leaf> {
    let mut next = start;
    let extent = |(lblk, len): &(u32, u32)| {
        let run = Run { lblk: *lblk, len: *len, pblk: next, state: ExtentState::Written };
        next.0 += u64::from(*len);
        leaf(run)
    };
    parts.iter().map(extent).collect()
}

fn mapped_twice(inode: &Inode, lblk: u32) -> Corrupt {
    Corrupt::new("extent").field("block mapped twice").found(lblk).at_inode(inode.ino)
}

/// Maps the first part of a run of booked blocks, as much as one step can obtain everything for,
/// and charges the file for it. Returns its length. The logical blocks must be holes, and a cluster
/// must be one block. Costs [`credits`](super::credits) for the run.
///
/// # Errors
/// EOPNOTSUPP for unwritten blocks in a map that does not know them, and on bigalloc; EINVAL for
/// inline data; `Corrupt` if a block is mapped, ENOSPC, `Io`.
pub fn insert_booked(
    env: &MapEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    run: Run,
) -> Result<u32> {
    if env.geo.cluster_ratio() > 1 {
        return Err(Errno::OpNotSupp.into());
    }
    let mut map = inode.map.write();
    let mapped = changing(step, inode, &mut map, |step| {
        let mut nodes = Writer::new(env, step, inode, run.pblk);
        let part = Part::prepare(&mut nodes, run)?;
        let (mapped, blocks) = (part.run, i64::from(part.run.len));
        check_charge(env, inode, blocks + nodes.claimed())?;
        nodes.in_step(|nodes| {
            part.map(nodes)?;
            charge_checked(env, nodes.step, inode, blocks)
        })?;
        Ok(mapped)
    })?;
    map.put(mapped);
    Ok(mapped.len)
}

/// Runs a change of the map. This is the one place that makes fsync and fdatasync wait for it: the
/// inode becomes dirty in the transaction even if the change is in a block outside the inode, so
/// the ids that they wait for stay in memory with it. Runs that readers found before are stale, and
/// an error empties the cache of runs.
pub(super) fn changing<'j, R>(
    step: &mut Step<'j>,
    inode: &Arc<Inode>,
    map: &mut MapCache,
    change: impl FnOnce(&mut Step<'j>) -> Result<R>,
) -> Result<R> {
    step.touch(inode)?;
    map.changing();
    let result = change(step);
    // After an error, too: a part may have changed. If none has, an fsync waits for nothing worse
    // than this commit.
    inode.note_datasync(step);
    if result.is_err() {
        map.clear();
    }
    result
}

/// Books the first blocks of a run, which the claim begins with, and maps them, in one step. The
/// claim may begin before the run, within its first cluster. Returns the mapped part of the run.
fn insert_claimed(
    env: &MapEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    run: Run,
    claim: &mut Claim,
) -> Result<Run> {
    let (before, bound) = (step.credits_left(), budget::credits(env, inode, run.len));
    let mut nodes = Writer::new(env, step, inode, run.pblk);
    let part = Part::prepare(&mut nodes, run)?;
    let end = run.pblk.0 + u64::from(part.run.len);
    let booked = end.saturating_sub(claim.start.0) as u32;
    prepare_book(&mut nodes, claim, booked)?;
    nodes.in_step(|nodes| {
        book(nodes, claim, booked)?;
        part.map(nodes)
    })?;
    budget::assert_used(before, nodes.step, bound);
    Ok(part.run)
}

/// Obtains everything that [`book`] needs. Changes nothing.
fn prepare_book(nodes: &mut Writer<'_, '_, '_>, claim: &Claim, len: u32) -> Result<()> {
    let blocks = i64::from(len.next_multiple_of(nodes.env.geo.cluster_ratio()));
    check_charge(nodes.env, nodes.inode, blocks + nodes.claimed())?;
    nodes.hold_bitmaps(claim.start, len)
}

/// Books the first `len` blocks of a claim, in whole clusters, and charges the file for them,
/// within a step. The booking comes first: a block that is used already, or a bitmap that cannot be
/// read, leaves everything unchanged. A later error (a wrong count in the descriptor, an owner that
/// cannot be read) aborts the journal.
fn book(nodes: &mut Writer<'_, '_, '_>, claim: &mut Claim, len: u32) -> Result<BlockNr> {
    let (env, inode) = (nodes.env, nodes.inode);
    let blocks = i64::from(len.next_multiple_of(env.geo.cluster_ratio()));
    let start = env.alloc.book(nodes.step.handle(), claim, len)?;
    charge_checked(env, nodes.step, inode, blocks)?;
    Ok(start)
}

/// Maps the first part of blocks of a cluster that the file owns, in one step.
fn insert_owned(env: &MapEnv, step: &mut Step<'_>, inode: &Arc<Inode>, run: Run) -> Result<Run> {
    let mut nodes = Writer::new(env, step, inode, run.pblk);
    let part = Part::prepare(&mut nodes, run)?;
    nodes.in_step(|nodes| part.map(nodes))?;
    Ok(part.run)
}

fn check_state(env: &MapEnv, inode: &Inode, state: ExtentState) -> Result<()> {
    match (Kind::of(inode), state) {
        (Kind::Inline, _) | (_, ExtentState::Hole) => Err(Errno::Inval.into()),
        (Kind::Indirect, ExtentState::Unwritten) => Err(Errno::OpNotSupp.into()),
        (Kind::Indirect, ExtentState::Written) if env.geo.cluster_ratio() > 1 => {
            Err(Errno::OpNotSupp.into())
        }
        _ => Ok(()),
    }
}

/// The part of a run that one step maps, with everything that the step needs.
struct Part {
    run: Run,
    /// `None` for block pointers.
    edit: Option<tree::Prepared>,
}

impl Part {
    /// Obtains everything that the first part of a run needs. Changes nothing.
    fn prepare(nodes: &mut Writer<'_, '_, '_>, rest: Run) -> Result<Part> {
        check_state(nodes.env, nodes.inode, rest.state)?;
        if Kind::of(nodes.inode) == Kind::Indirect {
            let len = indirect::prepare_insert(nodes, rest.lblk, rest.pblk.0, rest.len)?;
            return Ok(Part { run: Run { len, ..rest }, edit: None });
        }
        let run = Run { len: longest(nodes.env, rest), ..rest };
        if leaf(run).end() > tree::LOGICAL_END {
            return Err(Errno::FBig.into());
        }
        let edit = tree::prepare_insert(nodes, leaf(run))?;
        let edit = edit.ok_or_else(|| mapped_twice(nodes.inode, run.lblk))?;
        Ok(Part { run, edit: Some(edit) })
    }

    /// Maps it, within a step.
    fn map(&self, nodes: &mut Writer<'_, '_, '_>) -> Result<()> {
        match &self.edit {
            Some(edit) => tree::insert(nodes, edit, leaf(self.run)),
            None => indirect::insert(nodes, self.run.lblk, self.run.pblk.0, self.run.len),
        }
    }
}

/// Blocks of a run that its first extent takes. Where that is not all it ends with a cluster.
fn longest(env: &MapEnv, run: Run) -> u32 {
    let most = Leaf::max_len(run.state == ExtentState::Unwritten).into();
    if run.len > most {
        most - run.lblk.wrapping_add(most) % env.geo.cluster_ratio()
    } else {
        run.len
    }
}

/// A run that is not longer than an extent, as one.
fn leaf(run: Run) -> Leaf {
    let unwritten = run.state == ExtentState::Unwritten;
    Leaf { lblk: run.lblk, len: run.len as u16, pblk: run.pblk.0, unwritten }
}
