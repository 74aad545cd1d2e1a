//! Keeps the tree small: joins nearly empty nodes with a sibling, and removes superfluous levels.
//!
//! Each join is a step of its own, after the edit that made it possible. A tree that is larger than
//! necessary is valid. A sibling that cannot be read is therefore left alone, since the edit has
//! succeeded without it, and so is a join that fails before its first change.

use super::nodes::{At, Expect, Nodes, NodesMut};
use super::path::{self, Path, Step};
use super::splice::{Entries, fits, prepare_release};
use crate::error::Result;
use extant_format::extent::{ROOT_SIZE, capacity};

/// The number of entries that fit into the root.
pub(super) const ROOM: usize = capacity(ROOT_SIZE) as usize;

/// The leaf has only `left` entries now: joins it with a sibling if both fit well into one node,
/// and then its parent likewise.
pub(super) fn merge_up(nodes: &mut impl NodesMut, path: &Path, left: usize) -> Result<()> {
    let mut entries = left;
    for level in (1..path.steps.len()).rev() {
        if entries * 4 > path.steps[level].max
            || !merge_with_sibling(nodes, &path.steps[level - 1])?
        {
            break;
        }
        entries = path.steps[level - 1].entries - 1;
    }
    Ok(())
}

/// Joins the taken child of `parent` with the one before or behind it.
fn merge_with_sibling(nodes: &mut impl NodesMut, parent: &Step) -> Result<bool> {
    let behind = (parent.index + 1 < parent.entries).then_some(parent.index);
    for first in behind.into_iter().chain(parent.index.checked_sub(1)) {
        let Some((low, high)) = if_readable(pair(nodes, parent, first)) else { continue };
        if (low.len + high.len) * 4 <= low.max * 3 {
            return nodes.optional_step(|nodes| join(nodes, parent, first, low, high));
        }
    }
    Ok(false)
}

/// Returns the nodes, or `None` if one cannot be read.
fn if_readable<T>(found: Result<T>) -> Option<T> {
    // An operation that needs the node reports the damage.
    found.inspect_err(|e| tracing::debug!("an extent tree stays larger than it must be: {e}")).ok()
}

/// A child of a node, its number of entries and how many it has room for.
#[derive(Clone, Copy)]
struct Child {
    at: At,
    expect: Expect,
    len: usize,
    max: usize,
}

/// Reads two adjacent children of a node, and everything that a join of them needs.
fn pair(nodes: &mut impl NodesMut, parent: &Step, first: usize) -> Result<(Child, Child)> {
    nodes.hold(parent.at, parent.expect)?;
    let (low, high) = (child(nodes, parent, first)?, child(nodes, parent, first + 1)?);
    prepare_release(nodes, high.at)?;
    Ok((low, high))
}

fn child(nodes: &mut impl NodesMut, parent: &Step, index: usize) -> Result<Child> {
    let (at, expect) =
        nodes.view(parent.at, parent.expect, |node| path::child(&node, parent.expect, index))??;
    nodes.hold(at, expect)?;
    let (len, max) = nodes.view(at, expect, |node| (node.len(), node.header().max.into()))?;
    Ok(Child { at, expect, len, max })
}

/// Moves the entries of the child behind `first` into the child at `first`.
fn join(
    nodes: &mut impl NodesMut,
    parent: &Step,
    first: usize,
    low: Child,
    high: Child,
) -> Result<()> {
    let moved = nodes.view(high.at, high.expect, |node| Entries::of(&node, 0))?;
    fits(nodes.change(low.at, |mut node| moved.append_to(&mut node))?)?;
    nodes.change(parent.at, |mut node| node.remove(first + 1..first + 2))?;
    match high.at {
        At::Block(block) => nodes.release(block),
        At::Root => Ok(()),
    }
}

/// Moves the entries of the root's only child into the root, as long as they fit.
pub(super) fn pull_up(nodes: &mut impl NodesMut) -> Result<()> {
    while let Some((at, entries)) = if_readable(small_child(nodes)).flatten() {
        let done = nodes.optional_step(|nodes| {
            fits(nodes.format(At::Root, entries.depth, |mut node| entries.append_to(&mut node))?)?;
            match at {
                At::Block(block) => nodes.release(block),
                At::Root => Ok(()),
            }
        })?;
        if !done {
            break;
        }
    }
    Ok(())
}

/// The only child of the root with its entries, if these fit into the root, and all that it takes
/// to move them there.
fn small_child(nodes: &mut impl NodesMut) -> Result<Option<(At, Entries)>> {
    let Some((at, expect)) = only_child(nodes)? else { return Ok(None) };
    let entries =
        nodes.view(at, expect, |node| (node.len() <= ROOM).then(|| Entries::of(&node, 0)))?;
    if entries.is_some() {
        prepare_release(nodes, at)?;
    }
    Ok(entries.map(|entries| (at, entries)))
}

fn only_child(nodes: &impl Nodes) -> Result<Option<(At, Expect)>> {
    nodes.view(At::Root, Expect::ROOT, |node| {
        if node.is_leaf() || node.len() != 1 {
            Ok(None)
        } else {
            path::child(&node, Expect::ROOT, 0).map(Some)
        }
    })?
}
