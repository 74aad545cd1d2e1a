//! Splits full nodes, and adds a level to the tree when the root is full.

use super::nodes::{At, Expect, NodesMut};
use super::path::{Path, Step};
use super::plan::Edit;
use super::splice::{Entries, fits};
use crate::error::{Errno, Result};
use extant_format::extent::{Index, MAX_DEPTH, NodeMut};

/// Obtains the blocks that [`split`] needs. Changes nothing.
///
/// # Errors
/// EFBIG if the tree cannot grow, ENOSPC.
pub(super) fn prepare(nodes: &mut impl NodesMut, path: &Path, edit: &Edit) -> Result<()> {
    let (level, _) = path.leaf();
    let grows = path.steps[..level].iter().all(|s| s.entries >= s.max);
    if grows && path.depth() >= usize::from(MAX_DEPTH) {
        return Err(Errno::FBig.into());
    }
    nodes.prepare(path.blocks_to_split(edit.growth()))
}

/// Splits the path's leaf, in one step that was [prepared](prepare). Returns true if that carried
/// the edit out: extents appended behind the last one begin a new leaf.
pub(super) fn split(nodes: &mut impl NodesMut, path: &Path, edit: &Edit) -> Result<bool> {
    let (level, leaf) = path.leaf();
    if level == 0 {
        return nodes.step(grow).map(|_| false);
    }
    let appended = edit.remove == 0 && edit.first == leaf.entries;
    let first = edit.new.first().filter(|_| appended);
    nodes.step(|nodes| {
        let sibling = match first {
            Some(first) => {
                let child = nodes.create()?;
                let all = |mut node: NodeMut<'_>| {
                    edit.new.iter().all(|e| node.insert_leaf(node.len(), e))
                };
                fits(nodes.format(At::Block(child), 0, all)?)?;
                Index { lblk: first.lblk, child }
            }
            None => move_upper_part(nodes, &leaf, leaf.entries / 2)?,
        };
        add_child(nodes, path, level - 1, sibling)
    })?;
    Ok(first.is_some())
}

/// Adds a child behind the path's child at `level`; splits the index, and those above it, if it is
/// full.
fn add_child(nodes: &mut impl NodesMut, path: &Path, level: usize, mut child: Index) -> Result<()> {
    for step in path.steps[..=level].iter().rev() {
        let place = step.index + 1;
        if step.entries < step.max {
            return insert_child(nodes, step.at, place, child);
        }
        if step.at == At::Root {
            let block = grow(nodes)?;
            return insert_child(nodes, block, place, child);
        }
        child = split_index(nodes, step, child)?;
    }
    Ok(())
}

fn insert_child(nodes: &mut impl NodesMut, at: At, place: usize, child: Index) -> Result<()> {
    fits(nodes.change(at, |mut node| node.insert_index(place, &child))?)
}

/// Splits a full index and adds a child behind the taken one, in the half where it belongs. Returns
/// the new half.
fn split_index(nodes: &mut impl NodesMut, step: &Step, child: Index) -> Result<Index> {
    let place = step.index + 1;
    let middle = step.entries / 2;
    if place == step.entries {
        let depth = nodes.view(step.at, step.expect, |node| node.depth())?;
        let block = nodes.create()?;
        fits(nodes.format(At::Block(block), depth, |mut node| node.insert_index(0, &child))?)?;
        return Ok(Index { lblk: child.lblk, child: block });
    }
    let sibling = move_upper_part(nodes, step, middle)?;
    if place <= middle {
        insert_child(nodes, step.at, place, child)?
    } else {
        insert_child(nodes, At::Block(sibling.child), place - middle, child)?
    }
    Ok(sibling)
}

/// Moves the entries from `middle` on into a new node. Returns the entry that its parent must have
/// for it.
fn move_upper_part(nodes: &mut impl NodesMut, step: &Step, middle: usize) -> Result<Index> {
    let upper = nodes.view(step.at, step.expect, |node| Entries::of(&node, middle))?;
    let child = nodes.create()?;
    fits(nodes.format(At::Block(child), upper.depth, |mut node| upper.append_to(&mut node))?)?;
    nodes.change(step.at, |mut node| node.remove(middle..usize::MAX))?;
    Ok(Index { lblk: upper.first_key(), child })
}

/// Moves the root's entries into a new block; the root becomes an index of that child.
fn grow(nodes: &mut impl NodesMut) -> Result<At> {
    let all = nodes.view(At::Root, Expect::ROOT, |node| Entries::of(&node, 0))?;
    let child = nodes.create()?;
    fits(nodes.format(At::Block(child), all.depth, |mut node| all.append_to(&mut node))?)?;
    let entry = Index { lblk: all.first_key(), child };
    fits(nodes.format(At::Root, all.depth + 1, |mut node| node.insert_index(0, &entry))?)?;
    Ok(At::Block(child))
}
