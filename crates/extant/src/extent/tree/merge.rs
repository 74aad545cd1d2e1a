//! Keeps the tree small: joins nodes that are nearly empty with a sibling, and takes levels away that are not needed.

use super::nodes::{At, Expect, Nodes, NodesMut};
use super::path::{self, Path, Step};
use super::splice::{Entries, fits};
use crate::error::Result;
use extant_format::extent::{ROOT_SIZE, capacity};

/// Entries that fit into the root.
pub(super) const ROOM: usize = capacity(ROOT_SIZE) as usize;

/// The leaf has only `left` entries now: joins it with a sibling if both fit well into one node, and then its parent
/// likewise.
pub(super) fn merge_up(nodes: &mut impl NodesMut, path: &Path, left: usize) -> Result<()> {
    let mut entries = left;
    for level in (1..path.steps.len()).rev() {
        if entries * 4 > path.steps[level].max || !merge_with_sibling(nodes, &path.steps[level - 1])? {
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
        let (low, low_len, max) = child(nodes, parent, first)?;
        let (high, high_len, _) = child(nodes, parent, first + 1)?;
        if (low_len + high_len) * 4 <= max * 3 {
            join(nodes, parent, first, low, high)?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// A child of a node, its number of entries and how many it has room for.
fn child(nodes: &impl Nodes, parent: &Step, index: usize) -> Result<((At, Expect), usize, usize)> {
    let (at, expect) = nodes.view(parent.at, parent.expect, |node| path::child(&node, parent.expect, index))??;
    let (len, max) = nodes.view(at, expect, |node| (node.len(), node.header().max.into()))?;
    Ok(((at, expect), len, max))
}

/// Moves the entries of the child behind `first` into that one.
fn join(nodes: &mut impl NodesMut, parent: &Step, first: usize, low: (At, Expect), high: (At, Expect)) -> Result<()> {
    let moved = nodes.view(high.0, high.1, |node| Entries::of(&node, 0))?;
    fits(nodes.change(low.0, |mut node| moved.append_to(&mut node))?)?;
    nodes.change(parent.at, |mut node| node.remove(first + 1..first + 2))?;
    match high.0 {
        At::Block(block) => nodes.release(block),
        At::Root => Ok(()),
    }
}

/// While the root has one child whose entries fit into the root, they move there.
pub(super) fn pull_up(nodes: &mut impl NodesMut) -> Result<()> {
    while let Some((at, expect)) = only_child(nodes)? {
        let entries = nodes.view(at, expect, |node| (node.len() <= ROOM).then(|| Entries::of(&node, 0)))?;
        let Some(entries) = entries else { return Ok(()) };
        fits(nodes.format(At::Root, entries.depth, |mut node| entries.append_to(&mut node))?)?;
        if let At::Block(block) = at {
            nodes.release(block)?;
        }
    }
    Ok(())
}

fn only_child(nodes: &impl Nodes) -> Result<Option<(At, Expect)>> {
    nodes.view(At::Root, Expect::ROOT, |node| match node.is_leaf() || node.len() != 1 {
        true => Ok(None),
        false => path::child(&node, Expect::ROOT, 0).map(Some),
    })?
}
