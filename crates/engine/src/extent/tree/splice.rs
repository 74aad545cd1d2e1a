//! Applies an edit to a leaf and keeps the nodes above it consistent.
//!
//! # Invariants
//! - After each edit the first key of a child equals its parent's key for it, no node but the root
//!   is empty, and an empty root has depth 0.
//! - All that an edit reads and allocates is at hand before its first change: it happens as a
//!   whole, or not at all.

use super::nodes::{At, NodesMut};
use super::path::{Path, Step};
use super::plan::Edit;
use super::{merge, split};
use crate::error::Result;
use extant_format::error::Corrupt;
use extant_format::extent::{Index, Node, NodeMut};
use std::ops::Range;

/// Obtains all that [`apply`] needs: nodes in memory, space for new ones, and the bitmaps of those
/// that become empty. Changes nothing.
///
/// # Errors
/// EFBIG if the tree cannot grow, ENOSPC, `Corrupt`, `Io`.
pub(super) fn prepare(nodes: &mut impl NodesMut, path: &Path, edit: &Edit) -> Result<()> {
    path.steps.iter().try_for_each(|step| nodes.hold(step.at, step.expect))?;
    if overflows(path, edit) {
        return split::prepare(nodes, path, edit);
    }
    path.steps[emptied(path, edit)].iter().try_for_each(|step| prepare_release(nodes, step.at))
}

/// Returns whether the entries that the edit adds do not fit into the leaf.
fn overflows(path: &Path, edit: &Edit) -> bool {
    let (_, leaf) = path.leaf();
    leaf.entries + edit.growth() > leaf.max
}

/// Carries out an edit that was [prepared](prepare). False if the leaf was split first, which
/// changes nothing of the mapping: find the path and plan the edit again.
///
/// # Errors
/// Nothing has changed, or the journal is aborted.
pub(super) fn apply(nodes: &mut impl NodesMut, path: &Path, edit: &Edit) -> Result<bool> {
    let (level, leaf) = path.leaf();
    if overflows(path, edit) {
        return split::split(nodes, path, edit);
    }
    let left = left(path, edit);
    nodes.step(|nodes| {
        fits(nodes.change(leaf.at, |mut node| replace(&mut node, edit))?)?;
        if left == 0 {
            prune(nodes, path, emptied(path, edit))
        } else if edit.first == 0 && level > 0 {
            rekey(nodes, path, level)
        } else {
            Ok(())
        }
    })?;
    if left > 0 && edit.new.len() < edit.remove {
        merge::merge_up(nodes, path, left)?;
    }
    // A level can only be superfluous if its leaf has few entries.
    if level > 0 && left <= (leaf.max / 4).max(merge::ROOM) {
        merge::pull_up(nodes)?;
    }
    Ok(true)
}

/// Returns the number of entries of the leaf after the edit.
fn left(path: &Path, edit: &Edit) -> usize {
    (path.leaf().1.entries + edit.new.len()).saturating_sub(edit.remove)
}

/// Replaces entries, as many as possible in place. Returns false if they do not fit.
fn replace(node: &mut NodeMut<'_>, edit: &Edit) -> bool {
    let kept = edit.remove.min(edit.new.len());
    let fits = edit.new.iter().enumerate().all(|(i, e)| {
        if i < kept {
            node.set_leaf(edit.first + i, e)
        } else {
            node.insert_leaf(edit.first + i, e)
        }
    });
    node.remove(edit.first + kept..edit.first + edit.remove);
    fits
}

/// Turns a failed insert into an error. The capacity was checked before, so entries do not fit only
/// if one block is two nodes of a hostile tree.
pub(super) fn fits(done: bool) -> Result<()> {
    if done { Ok(()) } else { Err(Corrupt::new("extent tree").field("block in two places").into()) }
}

/// Corrects the keys above the node at `level` after a change of its first key.
fn rekey(nodes: &mut impl NodesMut, path: &Path, level: usize) -> Result<()> {
    let Step { at, expect, .. } = path.steps[level];
    let Some(key) = nodes.view(at, expect, |node| node.key(0))? else { return Ok(()) };
    for step in path.steps[..level].iter().rev() {
        let old = nodes.view(step.at, step.expect, |node| node.index(step.index))?;
        let Some(old) = old.filter(|old| old.lblk != key) else { return Ok(()) };
        nodes
            .change(step.at, |mut node| node.set_index(step.index, &Index { lblk: key, ..old }))?;
        if step.index != 0 {
            return Ok(());
        }
    }
    Ok(())
}

/// Returns the levels of the nodes below the root that the edit empties: the leaf, and the nodes
/// above it whose only child is emptied.
fn emptied(path: &Path, edit: &Edit) -> Range<usize> {
    let (level, _) = path.leaf();
    if left(path, edit) > 0 {
        return level + 1..level + 1;
    }
    let first = (1..=level).rev().find(|at| path.steps[at - 1].entries > 1).unwrap_or(1);
    first..level + 1
}

pub(super) fn prepare_release(nodes: &mut impl NodesMut, at: At) -> Result<()> {
    match at {
        At::Block(block) => nodes.prepare_release(block),
        At::Root => Ok(()),
    }
}

/// Removes the empty nodes at these levels from the tree.
fn prune(nodes: &mut impl NodesMut, path: &Path, empty: Range<usize>) -> Result<()> {
    let blocks = path.steps[empty.clone()].iter().filter_map(|step| match step.at {
        At::Block(block) => Some(block),
        At::Root => None,
    });
    blocks.rev().try_for_each(|block| nodes.release(block))?;
    let parent = path.steps[empty.start.saturating_sub(1)];
    if empty.is_empty() || parent.entries <= 1 {
        return nodes.format(At::Root, 0, |_| ());
    }
    nodes.change(parent.at, |mut node| node.remove(parent.index..parent.index + 1))?;
    if parent.index == 0 { rekey(nodes, path, empty.start - 1) } else { Ok(()) }
}

/// A copy of the entries of a node from an index on.
pub(super) struct Entries {
    pub depth: u16,
    leaves: Vec<extant_format::extent::Leaf>,
    indexes: Vec<Index>,
}

impl Entries {
    pub fn of(node: &Node<'_>, start: usize) -> Entries {
        Entries {
            depth: node.depth(),
            leaves: node.leaves().skip(start).collect(),
            indexes: node.indexes().skip(start).collect(),
        }
    }

    pub fn first_key(&self) -> u32 {
        let key = self.leaves.first().map(|e| e.lblk);
        key.or(self.indexes.first().map(|e| e.lblk)).unwrap_or(0)
    }

    /// Appends the entries to a node of the same depth. False if they do not fit.
    pub fn append_to(&self, node: &mut NodeMut<'_>) -> bool {
        let leaves = self.leaves.iter().all(|e| node.insert_leaf(node.len(), e));
        leaves && self.indexes.iter().all(|e| node.insert_index(node.len(), e))
    }
}
