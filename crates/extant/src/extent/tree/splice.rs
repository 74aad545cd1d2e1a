//! Applies an edit to a leaf and keeps the nodes above true.
//!
//! # Invariants
//! - After each edit the first key of a child equals its parent's key for it, no node but the root is empty, and an
//!   empty root has depth 0.
//! - What may fail for lack of space is prepared before the first change.

use super::nodes::{At, NodesMut};
use super::path::{Path, Step};
use super::plan::Edit;
use super::{merge, split};
use crate::error::Result;
use extant_format::error::Corrupt;
use extant_format::extent::{Index, Node, NodeMut};

/// Carries the edit out. False if the leaf had to be split first: find the path and plan the edit again.
pub(super) fn apply(nodes: &mut impl NodesMut, path: &Path, edit: &Edit) -> Result<bool> {
    let (level, leaf) = path.leaf();
    if leaf.entries + edit.growth() > leaf.max {
        split::split(nodes, path, edit)?;
        return Ok(false);
    }
    fits(nodes.change(leaf.at, |mut node| replace(&mut node, edit))?)?;
    let left = (leaf.entries + edit.new.len()).saturating_sub(edit.remove);
    if left == 0 {
        prune(nodes, path)?;
    } else if edit.first == 0 && level > 0 {
        rekey(nodes, path, level)?;
    }
    if left > 0 && edit.new.len() < edit.remove {
        merge::merge_up(nodes, path, left)?;
    }
    // A level that is not needed has a leaf with few entries, now or before.
    if level > 0 && left <= (leaf.max / 4).max(merge::ROOM) {
        merge::pull_up(nodes)?;
    }
    Ok(true)
}

/// Exchanges entries, as many as possible in place. False if they do not fit.
fn replace(node: &mut NodeMut<'_>, edit: &Edit) -> bool {
    let kept = edit.remove.min(edit.new.len());
    let fits = edit.new.iter().enumerate().all(|(i, e)| match i < kept {
        true => node.set_leaf(edit.first + i, e),
        false => node.insert_leaf(edit.first + i, e),
    });
    node.remove(edit.first + kept..edit.first + edit.remove);
    fits
}

/// An error where entries did not fit into a node that had room for them: one block is two nodes of a hostile tree.
pub(super) fn fits(done: bool) -> Result<()> {
    match done {
        true => Ok(()),
        false => Err(Corrupt::new("extent tree").field("block in two places").into()),
    }
}

/// Corrects the keys above the node at `level`, whose first key may have changed.
fn rekey(nodes: &mut impl NodesMut, path: &Path, level: usize) -> Result<()> {
    let Step { at, expect, .. } = path.steps[level];
    let Some(key) = nodes.view(at, expect, |node| node.key(0))? else { return Ok(()) };
    for step in path.steps[..level].iter().rev() {
        let old = nodes.view(step.at, step.expect, |node| node.index(step.index))?;
        let Some(old) = old.filter(|old| old.lblk != key) else { return Ok(()) };
        nodes.change(step.at, |mut node| node.set_index(step.index, &Index { lblk: key, ..old }))?;
        if step.index != 0 {
            return Ok(());
        }
    }
    Ok(())
}

/// The leaf is empty: takes it out, and all nodes above that become empty by that.
fn prune(nodes: &mut impl NodesMut, path: &Path) -> Result<()> {
    for (level, step) in path.steps.iter().enumerate().skip(1).rev() {
        let At::Block(block) = step.at else { break };
        nodes.release(block)?;
        let parent = path.steps[level - 1];
        if parent.entries > 1 {
            nodes.change(parent.at, |mut node| node.remove(parent.index..parent.index + 1))?;
            return if parent.index == 0 { rekey(nodes, path, level - 1) } else { Ok(()) };
        }
    }
    nodes.format(At::Root, 0, |_| ())
}

/// The entries of a node from `start` on, in memory.
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
