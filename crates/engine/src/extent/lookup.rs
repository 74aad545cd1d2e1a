//! Finds blocks, in the cache of runs or in the map.

use super::MapEnv;
use super::indirect;
use super::nodes::Reader;
use super::owner::{Kind, max_blocks};
use super::tree::{self, LOGICAL_END, Path};
use crate::bounds::{Steps, Walk};
use crate::error::Result;
use crate::inode::{ExtentState, Inode, MapCache, Run};
use extant_format::extent::Leaf;
use extant_format::indirect::pointers_per_block;
use extant_format::types::BlockNr;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// The number of extents that a walk caches.
const TAKEN_ALONG: usize = 16;

type Runs = SmallVec<[Run; 2]>;

/// Returns the run that contains `lblk`, from `lblk` on, cut to `max` blocks. For a hole, `len` is
/// the known length of the hole, up to `max`.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn lookup(env: &MapEnv, inode: &Inode, lblk: u32, max: u32) -> Result<Run> {
    let map = inode.map.read();
    if let Some(run) = map.get(lblk, max) {
        return Ok(run);
    }
    let runs = walk(env, inode, lblk)?;
    let epoch = map.epoch();
    drop(map);
    remember(inode, epoch, &runs);
    Ok(cut_from(&runs, lblk, max))
}

/// As [`lookup`], for callers that hold the map lock.
pub(super) fn lookup_locked(
    env: &MapEnv,
    inode: &Inode,
    map: &MapCache,
    lblk: u32,
    max: u32,
) -> Result<Run> {
    match map.get(lblk, max) {
        Some(run) => Ok(run),
        None => Ok(cut_from(&walk(env, inode, lblk)?, lblk, max)),
    }
}

/// Returns the first extents behind `from`, at most `most`, as the map has them: several of them
/// may be one run of [`lookup`]. For a map of pointers, a run has at most as many blocks as a
/// pointer block has pointers.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn pieces(env: &MapEnv, inode: &Inode, from: u32, most: usize) -> Result<Pieces> {
    let map = inode.map.read();
    if map.get(from, u32::MAX).is_some_and(|run| !run.is_mapped() && run.end() >= LOGICAL_END) {
        return Ok(Pieces::new());
    }
    let nodes = Reader::new(env, inode);
    let found = match Kind::of(inode) {
        Kind::Tree => tree_pieces(&nodes, from, most)?,
        Kind::Indirect => pointer_pieces(env, &nodes, from, most)?,
        Kind::Inline => Pieces::new(),
    };
    let epoch = map.epoch();
    drop(map);
    if found.is_empty() && most > 0 {
        remember(inode, epoch, &smallvec![hole(from, LOGICAL_END)]);
    }
    Ok(found)
}

/// Some extents of a map.
pub type Pieces = SmallVec<[Run; 8]>;

fn tree_pieces(nodes: &Reader<'_>, from: u32, most: usize) -> Result<Pieces> {
    let (mut found, mut at) = (Pieces::new(), u64::from(from));
    while found.len() < most && at < LOGICAL_END {
        let path = tree::find(nodes, at as u32)?;
        let (leaves, end) = tree::leaves_from(nodes, &path, most - found.len())?;
        found.extend(leaves.iter().map(run_of));
        if end <= at {
            break;
        }
        at = end;
    }
    Ok(found)
}

fn pointer_pieces(env: &MapEnv, nodes: &Reader<'_>, from: u32, most: usize) -> Result<Pieces> {
    let (mut found, mut at) = (Pieces::new(), u64::from(from));
    while found.len() < most
        && let Some(lblk) = u32::try_from(at).ok().filter(|_| at < max_blocks(env, nodes.inode))
        && let Some(piece) = next_pointers(env, nodes, lblk)?
    {
        at = u64::from(piece.lblk) + u64::from(piece.len);
        found.push(piece);
    }
    Ok(found)
}

fn next_pointers(env: &MapEnv, nodes: &Reader<'_>, lblk: u32) -> Result<Option<Run>> {
    let mut at = u64::from(lblk);
    let end = max_blocks(env, nodes.inode);
    while at < end {
        let (first, len) = indirect::lookup(nodes, at as u32, end - at)?;
        if let Some(first) = first {
            nodes.check_data(first.into(), len)?;
            let len = len.min(pointers_per_block(env.geo.block_size).into()) as u32;
            return Ok(Some(Run {
                lblk: at as u32,
                len,
                pblk: BlockNr(first.into()),
                state: ExtentState::Written,
            }));
        }
        at += len.max(1);
    }
    Ok(None)
}

/// Verifies that no physical block is mapped twice in the file before logical block `end`.
///
/// # Errors
/// `Corrupt`, `Io`, EINTR.
pub fn check_distinct(env: &MapEnv, inode: &Inode, end: u32) -> Result<()> {
    let (mut walk, mut steps) = (Walk::of(inode.ino), Steps::default());
    let (mut at, end) = (0, u64::from(end).min(max_blocks(env, inode)));
    while at < end {
        steps.next()?;
        let run = lookup(env, inode, at as u32, (end - at) as u32)?;
        if run.is_mapped() {
            walk.enter_all(run.pblk.0..run.pblk.0.saturating_add(run.len.into()))?;
        }
        at += u64::from(run.len).max(1);
    }
    Ok(())
}

/// Caches runs that were found in the map as of `epoch`, unless the map has changed or its lock is
/// held.
fn remember(inode: &Inode, epoch: u64, runs: &Runs) {
    if let Some(mut map) = inode.map.try_write()
        && map.epoch() == epoch
    {
        runs.iter().for_each(|run| map.put(*run));
    }
}

fn cut_from(runs: &Runs, lblk: u32, max: u32) -> Run {
    let start = u64::from(lblk);
    let found = runs.iter().find_map(|run| run.cut(start..start + u64::from(max)));
    found.unwrap_or(Run { lblk, len: max, pblk: BlockNr(0), state: ExtentState::Hole })
}

/// Walks the map. Returns the run of `lblk` and a few that follow it.
fn walk(env: &MapEnv, inode: &Inode, lblk: u32) -> Result<Runs> {
    let nodes = Reader::new(env, inode);
    match Kind::of(inode) {
        Kind::Tree => tree_runs(&nodes, lblk),
        Kind::Indirect => pointer_run(&nodes, lblk),
        Kind::Inline => Ok(smallvec![hole(lblk, LOGICAL_END)]),
    }
}

/// Returns a hole from `lblk` up to `end`.
pub(super) fn hole(lblk: u32, end: u64) -> Run {
    let len = end.saturating_sub(lblk.into()).min(u32::MAX.into()) as u32;
    Run { lblk, len, pblk: BlockNr(0), state: ExtentState::Hole }
}

/// Returns an extent as a run.
pub(super) fn run_of(leaf: &Leaf) -> Run {
    let state = if leaf.unwritten { ExtentState::Unwritten } else { ExtentState::Written };
    Run { lblk: leaf.lblk, len: leaf.len.into(), pblk: BlockNr(leaf.pblk), state }
}

fn tree_runs(nodes: &Reader<'_>, lblk: u32) -> Result<Runs> {
    let path = tree::find(nodes, lblk)?;
    let (leaves, end) = tree::leaves_from(nodes, &path, TAKEN_ALONG)?;
    let mut runs = Runs::new();
    let mut at = path.left.map_or(u64::from(lblk), |e| e.end().min(lblk.into()));
    for leaf in leaves {
        if at < leaf.lblk.into() {
            runs.push(hole(at as u32, leaf.lblk.into()));
        }
        runs.push(run_of(&leaf));
        at = leaf.end();
    }
    if at < end {
        runs.push(hole(at as u32, end));
    }
    Ok(runs)
}

fn pointer_run(nodes: &Reader<'_>, lblk: u32) -> Result<Runs> {
    let (first, len) = indirect::lookup(nodes, lblk, LOGICAL_END.saturating_sub(lblk.into()))?;
    let Some(first) = first else { return Ok(smallvec![hole(lblk, u64::from(lblk) + len)]) };
    nodes.check_data(first.into(), len)?;
    Ok(smallvec![Run {
        lblk,
        len: len as u32,
        pblk: BlockNr(first.into()),
        state: ExtentState::Written
    }])
}

/// Returns the best physical block for `lblk`: after its left neighbor, before its right one, else
/// in the inode's group.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn goal(env: &MapEnv, inode: &Inode, lblk: u32) -> Result<BlockNr> {
    let _map = inode.map.read();
    goal_locked(env, inode, lblk)
}

/// As [`goal`], for callers that hold the map lock.
pub(super) fn goal_locked(env: &MapEnv, inode: &Inode, lblk: u32) -> Result<BlockNr> {
    let near = match Kind::of(inode) {
        Kind::Tree => goal_in_tree(&tree::find(&Reader::new(env, inode), lblk)?, lblk),
        Kind::Indirect => goal_after(env, inode, lblk)?,
        Kind::Inline => None,
    };
    let inside = near.filter(|goal| env.geo.data_range_valid(BlockNr(*goal), 1));
    Ok(inside.map_or_else(|| env.alloc.inode_goal(inode.ino), BlockNr))
}

fn goal_in_tree(path: &Path, lblk: u32) -> Option<u64> {
    let lblk = u64::from(lblk);
    let after = path.left.map(|e| e.pblk + (lblk - u64::from(e.lblk)));
    after.or_else(|| path.right.and_then(|e| e.pblk.checked_sub(u64::from(e.lblk) - lblk)))
}

/// The surroundings of a hole.
#[derive(Clone, Copy, Debug, Default)]
pub struct Around {
    /// One behind the last mapped block before the hole, and its place on the device.
    pub left: Option<(u64, u64)>,
    /// The first mapped block behind it, and its place.
    pub right: Option<(u64, u64)>,
    /// Nothing is mapped from here ...
    pub start: u64,
    /// ... to here, as far as is known.
    pub end: u64,
}

impl Around {
    /// Returns whether nothing near is mapped.
    pub fn is_alone(&self) -> bool {
        self.left.is_none() && self.right.is_none()
    }

    /// Returns the physical block that the neighbors suggest for blocks `window` of the hole: next
    /// to the left neighbor, or to the right one if the window reaches only that; else at the same
    /// distance from the left neighbor as in the file.
    pub fn goal(&self, window: &Range<u64>) -> Option<BlockNr> {
        let len = window.end.saturating_sub(window.start);
        let right =
            self.right.and_then(|(lblk, pblk)| pblk.checked_sub(lblk.checked_sub(window.start)?));
        let left =
            self.left.map(|(end, pblk)| pblk.saturating_add(window.start.saturating_sub(end)));
        match (self.left, self.right) {
            (Some((end, _)), Some((lblk, _)))
                if end < window.start && window.start + len == lblk =>
            {
                right.or(left)
            }
            _ => left.or(right),
        }
        .map(BlockNr)
    }
}

/// Returns the surroundings of the hole that contains `lblk`. In an indirect map, only the block
/// directly before `lblk` is examined on the left.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn around(env: &MapEnv, inode: &Inode, lblk: u32) -> Result<Around> {
    let map = inode.map.read();
    if Kind::of(inode) == Kind::Tree {
        let path = tree::find(&Reader::new(env, inode), lblk)?;
        let left = path.left.map(|e| (e.end(), e.pblk + u64::from(e.len)));
        let right = path.right.map(|e| (u64::from(e.lblk), e.pblk));
        let start = left.map_or(0, |(end, _)| end);
        return Ok(Around { left, right, start, end: path.next_mapped() });
    }
    let left = goal_after(env, inode, lblk)?.map(|pblk| (u64::from(lblk), pblk));
    let hole = lookup_locked(env, inode, &map, lblk, u32::MAX)?;
    Ok(Around { left, right: None, start: lblk.into(), end: hole.end() })
}

fn goal_after(env: &MapEnv, inode: &Inode, lblk: u32) -> Result<Option<u64>> {
    let Some(before) = lblk.checked_sub(1) else { return Ok(None) };
    let (found, _) = indirect::lookup(&Reader::new(env, inode), before, 1)?;
    Ok(found.map(|p| u64::from(p) + 1))
}

/// Returns the physical block that `lblk` must get if another block of its cluster is mapped
/// (bigalloc).
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn implied(env: &MapEnv, inode: &Inode, lblk: u32) -> Result<Option<BlockNr>> {
    let _map = inode.map.read();
    implied_locked(env, inode, lblk)
}

/// As [`implied`], for callers that hold the map lock.
pub(super) fn implied_locked(env: &MapEnv, inode: &Inode, lblk: u32) -> Result<Option<BlockNr>> {
    let ratio = env.geo.cluster_ratio();
    if ratio == 1 || Kind::of(inode) != Kind::Tree {
        return Ok(None);
    }
    let start = lblk - lblk % ratio;
    let found = tree::first_from(&Reader::new(env, inode), start)?;
    let found = found.filter(|e| u64::from(e.lblk) < u64::from(start) + u64::from(ratio));
    let place = |e: Leaf| (e.pblk + u64::from(lblk)).checked_sub(e.lblk.into()).map(BlockNr);
    Ok(found.and_then(place))
}

/// Returns the number of blocks from `lblk` on, at most `max`, that are unmapped and whose clusters
/// the file does not own: so many may be mapped from a new claim. With bigalloc the claim begins
/// with the cluster of `lblk`. Returns 0 if `lblk` is mapped or its place is implied.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn unowned(env: &MapEnv, inode: &Inode, lblk: u32, max: u32) -> Result<u32> {
    let map = inode.map.read();
    unowned_locked(env, inode, &map, lblk, max)
}

/// As [`unowned`], for callers that hold the map lock.
pub(super) fn unowned_locked(
    env: &MapEnv,
    inode: &Inode,
    map: &MapCache,
    lblk: u32,
    max: u32,
) -> Result<u32> {
    let mut len = 0;
    while len < max {
        let run = lookup_locked(env, inode, map, lblk.saturating_add(len), max - len)?;
        if run.is_mapped() || run.len == 0 {
            break;
        }
        len += run.len;
    }
    let ratio = env.geo.cluster_ratio();
    if ratio == 1 || len == 0 {
        return Ok(len);
    }
    if implied_locked(env, inode, lblk)?.is_some() {
        return Ok(0);
    }
    let end = lblk.saturating_add(len);
    let shared = len < max || implied_locked(env, inode, end - 1)?.is_some();
    Ok(if shared { (end - end % ratio).saturating_sub(lblk) } else { len })
}
