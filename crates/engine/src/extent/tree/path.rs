//! The way from the root to a leaf.

use super::nodes::{At, Expect, LOGICAL_END, Nodes};
use super::plan::cut;
use crate::error::Result;
use extant_format::error::Corrupt;
use extant_format::extent::{Leaf, Node};
use smallvec::SmallVec;
use std::ops::Range;

/// One node on the way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub at: At,
    pub expect: Expect,
    /// In an index: the child taken. In a leaf: the number of extents that begin at or before the
    /// wanted block.
    pub index: usize,
    pub entries: usize,
    pub max: usize,
}

/// The way to the leaf where a logical block belongs.
#[derive(Clone, Debug)]
pub(in crate::extent) struct Path {
    /// From the root to the leaf; never empty.
    pub(super) steps: SmallVec<[Step; 2]>,
    /// The leaf's last extent that begins at or before the block.
    pub left: Option<Leaf>,
    /// The extent before that one in the leaf.
    pub before: Option<Leaf>,
    /// The leaf's first extent that begins behind the block.
    pub right: Option<Leaf>,
    lblk: u32,
}

impl Path {
    /// Returns the leaf's level and its step.
    pub(super) fn leaf(&self) -> (usize, Step) {
        let level = self.steps.len() - 1;
        (level, self.steps[level])
    }

    /// Returns the number of levels below the root.
    pub(in crate::extent) fn depth(&self) -> usize {
        self.steps.len() - 1
    }

    /// Returns the extent that contains the wanted block.
    pub(in crate::extent) fn hit(&self) -> Option<Leaf> {
        self.left.filter(|e| e.contains(self.lblk))
    }

    /// Returns a bound of the hole at the wanted block: no block before it is mapped.
    pub(in crate::extent) fn next_mapped(&self) -> u64 {
        let leaf_end = self.leaf().1.expect.end;
        self.right.map_or(leaf_end, |e| u64::from(e.lblk).min(leaf_end))
    }

    /// Returns the number of new blocks that an edit needs to add `extra` extents to the leaf.
    pub(in crate::extent) fn blocks_to_split(&self, extra: usize) -> usize {
        let (level, leaf) = self.leaf();
        if leaf.entries + extra <= leaf.max {
            return 0;
        }
        let full = self.steps[..level].iter().rev().take_while(|s| s.entries >= s.max).count();
        1 + full
    }
}

/// The result of a search for the wanted block in one node.
enum Turn {
    Down { step: Step, child: At, expect: Expect },
    Leaf { step: Step, left: Option<Leaf>, before: Option<Leaf>, right: Option<Leaf> },
}

/// Finds the leaf where `lblk` belongs. The depth of the root bounds the walk.
pub(in crate::extent) fn find(nodes: &impl Nodes, lblk: u32) -> Result<Path> {
    let mut steps = SmallVec::new();
    let (mut at, mut expect) = (At::Root, Expect::ROOT);
    loop {
        match nodes.view(at, expect, |node| turn(at, expect, node, lblk))?? {
            Turn::Down { step, child, expect: below } => {
                steps.push(step);
                (at, expect) = (child, below);
            }
            Turn::Leaf { step, left, before, right } => {
                steps.push(step);
                return Ok(Path { steps, left, before, right, lblk });
            }
        }
    }
}

fn turn(at: At, expect: Expect, node: Node<'_>, lblk: u32) -> Result<Turn> {
    let index = node.search(lblk);
    let step =
        |index| Step { at, expect, index, entries: node.len(), max: node.header().max.into() };
    if node.is_leaf() {
        let index = index.map_or(0, |i| i + 1);
        let extent = |back: usize| index.checked_sub(back).and_then(|i| node.leaf(i));
        let (left, before, right) = (extent(1), extent(2), extent(0));
        return Ok(Turn::Leaf { step: step(index), left, before, right });
    }
    let index = index.unwrap_or(0);
    let (child, expect) = child(&node, expect, index)?;
    Ok(Turn::Down { step: step(index), child, expect })
}

/// Returns the child at `index` with its expected properties.
pub(super) fn child(node: &Node<'_>, expect: Expect, index: usize) -> Result<(At, Expect)> {
    let Some(taken) = node.index(index) else {
        return Err(Corrupt::new("extent index").field("entries").found(node.len() as u64).into());
    };
    let next = node.key(index + 1).map_or(expect.end, |key| expect.end.min(key.into()));
    let below = Expect { depth: node.depth().checked_sub(1), first: Some(taken.lblk), end: next };
    Ok((At::Block(taken.child), below))
}

/// The extent that holds `lblk`, else the next one behind it.
pub(in crate::extent) fn first_from(nodes: &impl Nodes, lblk: u32) -> Result<Option<Leaf>> {
    let path = find(nodes, lblk)?;
    if let Some(found) = path.hit().or(path.right) {
        return Ok(Some(found));
    }
    let next = path.next_mapped();
    if next >= LOGICAL_END || next <= u64::from(lblk) {
        return Ok(None);
    }
    let path = find(nodes, next as u32)?;
    Ok(path.hit().or(path.right))
}

/// The last extent that begins below `end`.
pub(in crate::extent) fn last_before(nodes: &impl Nodes, end: u64) -> Result<Option<Path>> {
    match end.min(LOGICAL_END).checked_sub(1) {
        Some(last) => Ok(Some(find(nodes, last as u32)?).filter(|path| path.left.is_some())),
        None => Ok(None),
    }
}

/// Returns the extents of the path's leaf from the wanted block on, `max` at most, and the end of
/// the range that they and the holes between them cover.
pub(in crate::extent) fn leaves_from(
    nodes: &impl Nodes,
    path: &Path,
    max: usize,
) -> Result<(SmallVec<[Leaf; 16]>, u64)> {
    let (_, step) = path.leaf();
    let first = step.index - usize::from(path.hit().is_some()).min(step.index);
    nodes.view(step.at, step.expect, |node| {
        let leaves = (first..).map_while(|i| node.leaf(i)).take(max).collect();
        let end = node.leaf(first + max).map_or(step.expect.end, |e| u64::from(e.lblk));
        (leaves, end)
    })
}

/// The last extents of a leaf, as far as they lie in a range.
#[derive(Clone, Debug)]
pub(in crate::extent) struct Tail {
    /// The parts of the extents within the range, in order.
    pub parts: SmallVec<[Leaf; 8]>,
    /// Index of the first of them in the leaf.
    pub(super) first: usize,
    /// The part of the first extent before the range, and of the last one behind it.
    pub(super) kept: SmallVec<[Leaf; 5]>,
    /// Nothing else of the range is mapped, as far as the leaf's own range shows.
    pub whole: bool,
}

/// The extents that begin before the path's block and reach into `range`, which ends with that
/// block: the last ones of the leaf, `most` at most, `long` blocks of each at most.
pub(in crate::extent) fn tail(
    nodes: &impl Nodes,
    path: &Path,
    range: Range<u64>,
    most: usize,
    long: u64,
) -> Result<Tail> {
    let (_, step) = path.leaf();
    nodes.view(step.at, step.expect, |node| {
        let mut found =
            Tail { parts: SmallVec::new(), first: step.index, kept: SmallVec::new(), whole: false };
        while found.parts.len() < most
            && let Some(e) = found.first.checked_sub(1).and_then(|before| node.leaf(before))
            && let Some(part) = cut(&e, range.clone())
            && let Some(part) = cut(&part, part.end().saturating_sub(long)..range.end)
        {
            // Only the last one may reach beyond the range, and only the first one begin before it.
            found.kept.insert_many(
                0,
                cut(&e, 0..part.lblk.into()).into_iter().chain(cut(&e, range.end..u64::MAX)),
            );
            found.parts.push(part);
            found.first -= 1;
            if u64::from(part.lblk) > u64::from(e.lblk) {
                break;
            }
        }
        let next = found.first.checked_sub(1).map(|before| node.leaf(before));
        let begins_before =
            |part: &Leaf| found.kept.first().is_some_and(|kept| kept.lblk < part.lblk);
        found.whole = match (next, found.parts.last()) {
            (_, Some(part)) if u64::from(part.lblk) <= range.start => true,
            // Too long for one step: the rest of it is mapped still.
            (_, Some(part)) if begins_before(part) => false,
            (Some(Some(e)), _) => e.end() <= range.start,
            (Some(None), _) => false,
            (None, _) => path.depth() == 0,
        };
        found.parts.reverse();
        found
    })
}
