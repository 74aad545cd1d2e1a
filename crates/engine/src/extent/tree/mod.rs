//! The extent tree, independent of the storage of its nodes.
//!
//! An operation finds the path to a leaf, plans the replacement of entries of the leaf, and applies
//! the plan. If the leaf is full, it is split, and the operation starts again. For example, block 5
//! of an extent of blocks 0 to 9 is unmapped: the plan replaces one entry by two, 0 to 4 and 6 to
//! 9.
//!
//! # Invariants
//! See [`splice`]. A tree from an image may violate them: nodes are verified when they are read,
//! walks are bounded by the depth, and no violation causes a panic.

mod merge;
mod nodes;
mod path;
mod plan;
mod splice;
mod split;
#[cfg(test)]
mod tests;

pub(super) use nodes::{At, Expect, LOGICAL_END, Nodes, NodesMut};
pub(super) use path::{Path, Tail, find, first_from, last_before, leaves_from, tail};

use crate::error::Result;
use extant_format::error::Corrupt;
use extant_format::extent::Leaf;
use plan::Edit;
use std::ops::Range;

/// Times that an edit may find its leaf full: once to grow, once to split, and as often again in
/// nodes of the least size.
const MAX_SPLITS: usize = 8;

/// Plans and applies an edit of the leaf where `lblk` belongs. Returns false if there is nothing to
/// plan.
fn edit(
    nodes: &mut impl NodesMut,
    lblk: u32,
    plan: impl Fn(&Path) -> Option<Edit>,
) -> Result<bool> {
    for _ in 0..MAX_SPLITS {
        let path = find(nodes, lblk)?;
        let Some(edit) = plan(&path) else { return Ok(false) };
        splice::prepare(nodes, &path, &edit)?;
        if splice::apply(nodes, &path, &edit)? {
            return Ok(true);
        }
    }
    Err(Corrupt::new("extent tree").field("room in a leaf").into())
}

/// An edit with everything that it needs.
pub(super) struct Prepared {
    path: Path,
    edit: Edit,
}

/// Obtains everything that [`insert`] needs. Returns `None` if a block is mapped. Changes nothing
/// on disk.
pub(super) fn prepare_insert(nodes: &mut impl NodesMut, e: Leaf) -> Result<Option<Prepared>> {
    let path = find(nodes, e.lblk)?;
    let Some(edit) = plan::insert(&path, e) else { return Ok(None) };
    splice::prepare(nodes, &path, &edit)?;
    Ok(Some(Prepared { path, edit }))
}

/// As [`prepare_insert`], for the first of `extents`, which are in order, and for the following
/// ones that the same leaf takes without a split. Returns their number, too.
pub(super) fn prepare_insert_some(
    nodes: &mut impl NodesMut,
    extents: &[Leaf],
) -> Result<Option<(Prepared, usize)>> {
    let (Some(first), Some(last)) = (extents.first(), extents.last()) else { return Ok(None) };
    let path = find(nodes, first.lblk)?;
    let (_, leaf) = path.leaf();
    let later: Vec<Leaf> = nodes.view(leaf.at, leaf.expect, |node| {
        // One more may continue the last extent.
        let count = node.search(last.lblk).map_or(0, |index| index + 2).saturating_sub(leaf.index);
        (leaf.index..).map_while(|index| node.leaf(index)).take(count.max(1)).collect()
    })?;
    let Some((edit, count)) = plan::insert_some(&path, &later, extents) else { return Ok(None) };
    splice::prepare(nodes, &path, &edit)?;
    Ok(Some((Prepared { path, edit }, count)))
}

/// Maps a hole, or several that were prepared together, of which `e` is the first.
pub(super) fn insert(nodes: &mut impl NodesMut, prepared: &Prepared, e: Leaf) -> Result<()> {
    if splice::apply(nodes, &prepared.path, &prepared.edit)? {
        return Ok(());
    }
    // The leaf was split.
    if edit(nodes, e.lblk, |path| plan::insert(path, e))? {
        Ok(())
    } else {
        Err(Corrupt::new("extent tree").field("hole").found(e.lblk).into())
    }
}

/// Sets the state of the blocks of `range` that belong to the extent at its start. Returns the
/// first block behind them, or the next mapped block if the start is a hole.
pub(super) fn convert(
    nodes: &mut impl NodesMut,
    range: Range<u32>,
    unwritten: bool,
) -> Result<u64> {
    let Some(old) = first_from(nodes, range.start)? else { return Ok(range.end.into()) };
    if old.lblk > range.start {
        return Ok(u64::from(old.lblk.min(range.end)));
    }
    let wide = u64::from(range.start)..u64::from(range.end);
    if old.unwritten != unwritten {
        edit(nodes, range.start, |path| plan::convert(path, wide.clone(), unwritten))?;
    }
    Ok(old.end().min(wide.end))
}

/// Unmaps the part of an extent within `range`; `at` is a block of that extent.
fn remove(nodes: &mut impl NodesMut, at: u32, range: Range<u64>) -> Result<bool> {
    edit(nodes, at, |path| plan::remove(path, range.clone()))
}

/// Obtains everything that [`remove_tail`] needs, for a tail that was just found on `path`. Changes
/// nothing on disk.
pub(super) fn prepare_removal(
    nodes: &mut impl NodesMut,
    path: Path,
    tail: &Tail,
) -> Result<Prepared> {
    let remove = path.leaf().1.index.saturating_sub(tail.first);
    let edit = Edit { first: tail.first, remove, new: tail.kept.clone() };
    splice::prepare(nodes, &path, &edit)?;
    Ok(Prepared { path, edit })
}

/// Unmaps the parts of a tail.
pub(super) fn remove_tail(
    nodes: &mut impl NodesMut,
    prepared: &Prepared,
    tail: &Tail,
) -> Result<()> {
    if splice::apply(nodes, &prepared.path, &prepared.edit)? {
        return Ok(());
    }
    // The removal of the middle of one extent leaves two, for which the leaf was split.
    match tail.parts.first() {
        Some(part) => self::remove(nodes, part.lblk, part.lblk.into()..part.end()).map(drop),
        None => Ok(()),
    }
}

/// Splits an extent that crosses the border before `lblk`. The mapping stays the same.
pub(super) fn split_at(nodes: &mut impl NodesMut, lblk: u32) -> Result<()> {
    edit(nodes, lblk, |path| plan::split_at(path, lblk)).map(drop)
}

/// Moves the part at or behind `from` of the extent that holds `at`, by `by` blocks.
pub(super) fn shift(nodes: &mut impl NodesMut, at: u32, from: u64, by: i64) -> Result<bool> {
    edit(nodes, at, |path| plan::shift(path, from, by))
}
