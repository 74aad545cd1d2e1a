//! Changes of mapped extents that allocate no data: their state and their place in the file.

use super::MapEnv;
use super::budget;
use super::insert::changing;
use super::io::Writer;
use super::owner::Kind;
use super::tree;
use crate::error::{Errno, Result};
use crate::inode::{Inode, Step};
use extant_format::error::Corrupt;
use extant_format::extent::Leaf;
use std::ops::Range;
use std::sync::Arc;

/// Turns unwritten blocks of the range into written ones, from its start as far as the handle's
/// credits allow. Returns where it stopped: when that is `range.end`, all is done; else restart the
/// handle and call again from there. A range within one run is done at once if the handle was
/// started with [`credits`](super::credits) for it.
///
/// # Errors
/// ENOSPC where a split needs a block, `Corrupt`, `Io`. Nothing has changed then: after an error
/// behind the first run the call returns where it stopped, and the next one meets the error.
pub fn mark_written(
    env: &MapEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    range: Range<u32>,
) -> Result<u32> {
    match Kind::of(inode) {
        Kind::Tree => mark(env, step, inode, range, false),
        Kind::Indirect | Kind::Inline => Ok(range.end),
    }
}

/// Turns written blocks of the range into unwritten ones (zero range). Restartable as
/// [`mark_written`].
///
/// # Errors
/// EOPNOTSUPP for a map without unwritten blocks (see [`has_unwritten`]), otherwise as
/// [`mark_written`].
pub fn mark_unwritten(
    env: &MapEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    range: Range<u32>,
) -> Result<u32> {
    match Kind::of(inode) {
        Kind::Tree => mark(env, step, inode, range, true),
        Kind::Indirect | Kind::Inline => Err(Errno::OpNotSupp.into()),
    }
}

/// Whether the inode's kind of map knows unwritten blocks (extent trees do, indirect blocks do
/// not).
pub fn has_unwritten(inode: &Inode) -> bool {
    Kind::of(inode) == Kind::Tree
}

fn mark(
    env: &MapEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    range: Range<u32>,
    unwritten: bool,
) -> Result<u32> {
    if range.is_empty() {
        return Ok(range.end);
    }
    let mut map = inode.map.write();
    let reached = changing(step, inode, &mut map, |step| {
        convert_runs(env, step, inode, range.clone(), unwritten)
    })?;
    map.forget(range.start.into()..reached.into());
    Ok(reached)
}

fn convert_runs(
    env: &MapEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    range: Range<u32>,
    unwritten: bool,
) -> Result<u32> {
    let mut at = range.start;
    let mut nodes = Writer::new(env, step, inode, env.alloc.inode_goal(inode.ino));
    while at < range.end {
        let needed = budget::edit(env, budget::depth(inode));
        if !budget::may_go_on(nodes.step, needed, at == range.start)? {
            break;
        }
        let before = nodes.step.credits_left();
        let next = match tree::convert(&mut nodes, at..range.end, unwritten) {
            // What was converted before counts.
            Err(_) if at > range.start => break,
            next => next?,
        };
        budget::assert_used(before, nodes.step, needed);
        at = u32::try_from(next).unwrap_or(range.end).clamp(at + 1, range.end);
    }
    Ok(at)
}

/// Sees to it that no extent goes across the border before block `at`, so that a later [`shift`]
/// from there needs no space.
///
/// # Errors
/// ENOSPC, `Corrupt`, `Io`; the mapping is the same in any case.
pub fn split_at(env: &MapEnv, step: &mut Step<'_>, inode: &Arc<Inode>, at: u32) -> Result<()> {
    let mut map = inode.map.write();
    changing(step, inode, &mut map, |step| {
        tree::split_at(&mut Writer::new(env, step, inode, env.alloc.inode_goal(inode.ino)), at)
    })
}

/// Moves every mapping within `range` by `by` logical blocks (negative: collapse, the space before
/// `range` must be unmapped by as much; positive: insert, `range` must reach to the end). Returns
/// what is left to do: when it is empty, all is done; else restart the handle and call again with
/// it.
///
/// # Errors
/// EOPNOTSUPP for indirect maps; EINVAL if the space is not unmapped, or `by` is not a multiple of
/// the cluster (bigalloc); EFBIG if a block would move past the last logical block; ENOSPC,
/// `Corrupt`, `Io`.
pub fn shift(
    env: &MapEnv,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    range: Range<u64>,
    by: i64,
) -> Result<Range<u64>> {
    let aligned = by % i64::from(env.geo.cluster_ratio()) == 0;
    match Kind::of(inode) {
        Kind::Tree if aligned && by != 0 => {}
        Kind::Tree => return Err(Errno::Inval.into()),
        Kind::Indirect | Kind::Inline => return Err(Errno::OpNotSupp.into()),
    }
    let mut map = inode.map.write();
    let left = changing(step, inode, &mut map, |step| {
        let mut nodes = Writer::new(env, step, inode, env.alloc.inode_goal(inode.ino));
        match by < 0 {
            true => shift_down(&mut nodes, range.clone(), by),
            false => shift_up(&mut nodes, range.clone(), by),
        }
    });
    map.clear();
    left
}

/// Whether another extent can be moved within the handle.
fn may_move(nodes: &mut Writer<'_, '_, '_>, first: bool) -> Result<bool> {
    let needed = budget::edit(nodes.env, budget::depth(nodes.inode));
    budget::may_go_on(nodes.step, needed, first)
}

/// From the first to the last, so that each moves into the space that the one before left.
fn shift_down(nodes: &mut Writer<'_, '_, '_>, range: Range<u64>, by: i64) -> Result<Range<u64>> {
    let target = range.start.checked_add_signed(by).ok_or(Errno::Inval)?;
    let mut from = range.start;
    let below = next(nodes, target)?.filter(|e| u64::from(e.lblk) < from);
    if below.is_some() {
        return Err(Errno::Inval.into());
    }
    while let Some(e) = next(nodes, from)?.filter(|e| u64::from(e.lblk) < range.end) {
        if !may_move(nodes, from == range.start)? {
            return Ok(from..range.end);
        }
        move_extent(nodes, &e, from, by)?;
        from = e.end();
    }
    Ok(range.end..range.end)
}

/// The first extent that ends behind `from`.
fn next(nodes: &Writer<'_, '_, '_>, from: u64) -> Result<Option<Leaf>> {
    match u32::try_from(from).ok().filter(|from| u64::from(*from) < tree::LOGICAL_END) {
        Some(from) => tree::first_from(nodes, from),
        None => Ok(None),
    }
}

/// From the last to the first.
fn shift_up(nodes: &mut Writer<'_, '_, '_>, range: Range<u64>, by: i64) -> Result<Range<u64>> {
    let mut end = range.end;
    while let Some(e) = tree::last_before(nodes, end)?.and_then(|path| path.left) {
        if e.end() <= range.start {
            break;
        }
        if e.end().checked_add_signed(by).is_none_or(|end| end > tree::LOGICAL_END) {
            return Err(Errno::FBig.into());
        }
        if !may_move(nodes, end == range.end)? {
            return Ok(range.start..end);
        }
        move_extent(nodes, &e, range.start, by)?;
        end = u64::from(e.lblk).max(range.start);
    }
    Ok(range.start..range.start)
}

fn move_extent(nodes: &mut Writer<'_, '_, '_>, e: &Leaf, from: u64, by: i64) -> Result<()> {
    let (before, bound) =
        (nodes.step.credits_left(), budget::edit(nodes.env, budget::depth(nodes.inode)));
    let moved = tree::shift(nodes, e.lblk, from.max(e.lblk.into()), by)?;
    budget::assert_used(before, nodes.step, bound);
    match moved {
        true => Ok(()),
        false => Err(Corrupt::new("extent")
            .field("logical block")
            .found(e.lblk)
            .at_inode(nodes.inode.ino)
            .into()),
    }
}
