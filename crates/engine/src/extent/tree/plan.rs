//! Plans edits of a leaf: pure functions from a path to the entries that replace others.

use super::path::Path;
use extant_format::extent::Leaf;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// A replacement of entries of one leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::extent) struct Edit {
    /// Index of the first removed entry.
    pub first: usize,
    /// Number of removed entries.
    pub remove: usize,
    /// The entries that replace them.
    pub new: Entries,
}

/// A few extents in order.
pub(in crate::extent) type Entries = SmallVec<[Leaf; 5]>;

impl Edit {
    /// Returns the number of entries that the leaf gains.
    pub fn growth(&self) -> usize {
        self.new.len().saturating_sub(self.remove)
    }
}

/// The part of an extent within `range`, if any.
pub(in crate::extent) fn cut(e: &Leaf, range: Range<u64>) -> Option<Leaf> {
    let start = range.start.max(e.lblk.into());
    let end = range.end.min(e.end());
    if start >= end {
        return None;
    }
    let pblk = e.pblk.saturating_add(start - u64::from(e.lblk));
    Some(Leaf { lblk: start as u32, len: (end - start) as u16, pblk, unwritten: e.unwritten })
}

/// Appends an extent: joined with the last one if it continues it, in parts if it is too long for
/// its state.
fn push(list: &mut Entries, e: Leaf) {
    if let Some(last) = list.last_mut().filter(|last| last.can_join(&e)) {
        last.len += e.len;
        return;
    }
    let split = u64::from(e.lblk) + u64::from(Leaf::max_len(e.unwritten));
    list.extend(cut(&e, 0..split));
    list.extend(cut(&e, split..u64::MAX));
}

/// Replaces `remove` entries from `first` on by `parts`, joined with `before` and `after`, their
/// neighbours, where those continue each other.
fn join(
    first: usize,
    remove: usize,
    before: Option<Leaf>,
    parts: Entries,
    after: Option<Leaf>,
) -> Edit {
    let before = before.filter(|b| parts.first().is_some_and(|p| b.can_join(p)));
    let after = after.filter(|a| parts.last().is_some_and(|p| p.can_join(a)));
    let mut new = Entries::new();
    before.into_iter().chain(parts).chain(after).for_each(|e| push(&mut new, e));
    let first = first - usize::from(before.is_some());
    Edit {
        first,
        remove: remove + usize::from(before.is_some()) + usize::from(after.is_some()),
        new,
    }
}

/// Puts `e` into the hole that the path leads to. `None` if that is no hole, or too small.
pub(in crate::extent) fn insert(path: &Path, e: Leaf) -> Option<Edit> {
    let free = path.hit().is_none() && e.end() <= path.next_mapped();
    free.then(|| join(path.leaf().1.index, 0, path.left, smallvec![e], path.right))
}

/// Puts the first of `extents`, which are in order, into the hole that the path leads to, and with
/// it the following ones that the leaf takes without a split. `later` are the leaf's extents behind
/// that hole. Returns the number of extents that the edit maps. `None` if the hole is none, or too
/// small.
pub(in crate::extent) fn insert_some(
    path: &Path,
    later: &[Leaf],
    extents: &[Leaf],
) -> Option<(Edit, usize)> {
    let (first, others) = extents.split_first()?;
    let alone = insert(path, *first)?;
    let (_, leaf) = path.leaf();
    let space = leaf.max.saturating_sub(leaf.entries);
    if others.is_empty() || space <= 1 {
        return Some((alone, 1));
    }
    let left = path.left.filter(|left| left.can_join(first));
    let (kept, mut passed, mut count) = (usize::from(left.is_some()), 0, 1);
    let mut new: Entries = left.into_iter().collect();
    push(&mut new, *first);
    for e in others {
        let rest = later.get(passed..).unwrap_or_default();
        let (before, after) = rest.split_at(rest.partition_point(|next| next.lblk < e.lblk));
        let start = before.last().or(new.last()).map_or(0, Leaf::end);
        let end =
            after.first().map_or(leaf.expect.end, |next| leaf.expect.end.min(next.lblk.into()));
        // Entries that were joined leave more space than is counted here.
        let fits = new.len() < space + kept + passed;
        if !fits || start > e.lblk.into() || e.end() > end {
            break;
        }
        before.iter().chain([e]).for_each(|e| push(&mut new, *e));
        (passed, count) = (passed + before.len(), count + 1);
    }
    let after = later.get(passed).filter(|next| new.last().is_some_and(|e| e.can_join(next)));
    after.into_iter().for_each(|next| push(&mut new, *next));
    let remove = kept + passed + usize::from(after.is_some());
    Some((Edit { first: leaf.index - kept, remove, new }, count))
}

/// Gives the part of the found extent within `range` another state.
pub(in crate::extent) fn convert(path: &Path, range: Range<u64>, unwritten: bool) -> Option<Edit> {
    let old = path.hit()?;
    let middle = cut(&old, range.clone())?;
    let mut parts = Entries::new();
    parts.extend(cut(&old, 0..range.start));
    parts.push(Leaf { unwritten, ..middle });
    parts.extend(cut(&old, range.end..u64::MAX));
    let index = path.leaf().1.index.checked_sub(1)?;
    Some(join(index, 1, path.before, parts, path.right))
}

/// Takes the part within `range` out of the left extent.
pub(in crate::extent) fn remove(path: &Path, range: Range<u64>) -> Option<Edit> {
    let old = path.left?;
    cut(&old, range.clone())?;
    let new = cut(&old, 0..range.start).into_iter().chain(cut(&old, range.end..u64::MAX)).collect();
    Some(Edit { first: path.leaf().1.index.checked_sub(1)?, remove: 1, new })
}

/// Makes two extents of the found one where `lblk` is not its first block.
pub(in crate::extent) fn split_at(path: &Path, lblk: u32) -> Option<Edit> {
    let old = path.hit().filter(|old| old.lblk < lblk)?;
    let new =
        cut(&old, 0..lblk.into()).into_iter().chain(cut(&old, lblk.into()..u64::MAX)).collect();
    Some(Edit { first: path.leaf().1.index.checked_sub(1)?, remove: 1, new })
}

/// Moves the part of the left extent at or behind `from` by `by` blocks. The caller made sure that
/// there is room. `None` if nothing would move, or to where no logical block is.
pub(in crate::extent) fn shift(path: &Path, from: u64, by: i64) -> Option<Edit> {
    let old = path.left?;
    let moved = cut(&old, from..u64::MAX)?;
    let lblk = u32::try_from(i64::from(moved.lblk).checked_add(by)?).ok()?;
    let moved = Leaf { lblk, ..moved };
    if moved.end() > super::LOGICAL_END {
        return None;
    }
    let mut parts = Entries::new();
    parts.extend(cut(&old, 0..from));
    parts.push(moved);
    let index = path.leaf().1.index.checked_sub(1)?;
    Some(join(index, 1, path.before, parts, path.right))
}
