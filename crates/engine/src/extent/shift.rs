//! Moves mapped extents within the file.

use super::MapEnv;
use super::budget;
use super::map::changing;
use super::nodes::Writer;
use super::owner::Kind;
use super::tree;
use crate::error::{Errno, Result};
use crate::inode::{Inode, Step};
use extant_format::error::Corrupt;
use extant_format::extent::Leaf;
use std::ops::Range;
use std::sync::Arc;

/// Splits an extent that crosses the border before block `at`, so that a later [`shift`] from there
/// needs no space.
///
/// # Errors
/// ENOSPC, `Corrupt`, `Io`; the mapping is the same in any case.
pub fn split_at(env: &MapEnv, step: &mut Step<'_>, inode: &Arc<Inode>, at: u32) -> Result<()> {
    let mut map = inode.map.write();
    changing(step, inode, &mut map, |step| {
        tree::split_at(&mut Writer::new(env, step, inode, env.alloc.inode_goal(inode.ino)), at)
    })
}

/// Moves every mapping within `range` by `by` logical blocks. A negative `by` collapses: so many
/// blocks before `range` must be unmapped. A positive `by` inserts: `range` must extend to the end.
/// Returns the range that is left to do. If it is not empty, restart the handle and call again with
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
        if by < 0 {
            shift_down(&mut nodes, range.clone(), by)
        } else {
            shift_up(&mut nodes, range.clone(), by)
        }
    });
    map.clear();
    left
}

/// Returns whether the handle has credits to move another extent.
fn may_move(nodes: &mut Writer<'_, '_, '_>, first: bool) -> Result<bool> {
    let needed = budget::edit(nodes.env, budget::depth(nodes.inode));
    budget::may_go_on(nodes.step, needed, first)
}

/// Moves extents from the first to the last, so that each moves into the space that its predecessor
/// left.
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

/// Returns the first extent that ends behind `from`.
fn next(nodes: &Writer<'_, '_, '_>, from: u64) -> Result<Option<Leaf>> {
    match u32::try_from(from).ok().filter(|from| u64::from(*from) < tree::LOGICAL_END) {
        Some(from) => tree::first_from(nodes, from),
        None => Ok(None),
    }
}

/// Moves extents from the last to the first.
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
    if moved {
        Ok(())
    } else {
        Err(Corrupt::new("extent")
            .field("logical block")
            .found(e.lblk)
            .at_inode(nodes.inode.ino)
            .into())
    }
}
