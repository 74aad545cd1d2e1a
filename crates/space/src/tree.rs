//! The free space of neighbouring groups: the same runs by place and by length.
//!
//! Places are units (clusters) from the first group's first one, so that nothing depends on how a
//! file system numbers its blocks. A tree covers at most 2^32 units; the caller's coordinates are
//! 64 bits wide.
//!
//! # Invariants
//! - Both trees hold the same runs.
//! - Runs are disjoint, within one group each, and maximal in it: two that touch in a group are
//!   one.
//! - `free` is the sum of the runs' lengths.

use crate::Run;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What a run takes in both trees, in bytes, as an estimate: two keys of 8 bytes each in leaves
/// that hold eleven, the heads of leaves and the nodes above them. That makes 23 where leaves are
/// full, as loading leaves them, and 43 where all are half full.
const RUN_BYTES: usize = 32;

/// Runs of a length that a search looks at before it gives the next length a try.
const AVOID_STEPS: usize = 64;

/// Where there are more than so many times as many runs as come, each of these is put in its place
/// by a search.
const SPARSE: usize = 4;

/// See the module's description.
#[derive(Debug, Default)]
pub struct FreeTree {
    /// Units of a full group.
    group_len: u32,
    by_place: BTreeMap<u32, u32>,
    /// The longest first; of one length the first in place first.
    by_len: BTreeSet<(Reverse<u32>, u32)>,
    free: u32,
}

impl FreeTree {
    /// A tree without free space of groups of `group_len` units each, which is not 0.
    pub fn new(group_len: u32) -> FreeTree {
        FreeTree { group_len: group_len.max(1), ..FreeTree::default() }
    }

    /// What the worst tree of `units` units takes in bytes: every second unit is free.
    pub fn worst_bytes(units: u64) -> u64 {
        units.div_ceil(2).saturating_mul(RUN_BYTES as u64)
    }

    /// Adds the free runs of a group that has none in the tree: disjoint, maximal and in order, as
    /// [`free_runs`](crate::free_runs) gives them, and moved to their place.
    pub fn load(&mut self, runs: &[Run]) {
        self.free += runs.iter().map(|run| run.len).sum::<u32>();
        let mut by_place: BTreeMap<u32, u32> =
            runs.iter().map(|run| (run.start, run.len)).collect();
        let mut by_len: BTreeSet<_> =
            runs.iter().map(|run| (Reverse(run.len), run.start)).collect();
        // Appending fills the leaves, inserting would leave them half full.
        self.by_place.append(&mut by_place);
        self.by_len.append(&mut by_len);
    }

    /// Forgets all runs within a range of units that begins and ends with a group.
    pub fn unload(&mut self, units: Range<u32>) {
        while let Some((&start, &len)) = self.by_place.range(units.clone()).next() {
            self.remove(Run { start, len });
        }
    }

    /// Forgets all runs and gives their memory back.
    pub fn clear(&mut self) {
        *self = FreeTree::new(self.group_len);
    }

    fn insert(&mut self, run: Run) {
        if run.len > 0 {
            self.by_place.insert(run.start, run.len);
            self.by_len.insert((Reverse(run.len), run.start));
            self.free += run.len;
        }
    }

    fn remove(&mut self, run: Run) {
        self.by_place.remove(&run.start);
        self.by_len.remove(&(Reverse(run.len), run.start));
        self.free -= run.len;
    }

    fn group_of(&self, unit: u32) -> u32 {
        unit / self.group_len
    }

    /// Makes a run free. False, with nothing changed, if it is empty, spans groups, or a part of it
    /// is free already.
    pub fn add(&mut self, run: Run) -> bool {
        let Some(last) = run.start.checked_add(run.len).and_then(|end| end.checked_sub(1)) else {
            return false;
        };
        if run.len == 0 || self.group_of(run.start) != self.group_of(last) {
            return false;
        }
        let (before, after) = (self.before(run.end()), self.starting_at(run.end()));
        if before.is_some_and(|free| free.end() > run.start) {
            return false;
        }
        let joins = |other: &Run| self.group_of(other.start) == self.group_of(run.start);
        let before = before.filter(|before| before.end() == run.start && joins(before));
        let after = after.filter(joins);
        if let Some(after) = after {
            self.remove(after);
        }
        let len = run.len + after.map_or(0, |after| after.len);
        match before {
            Some(before) => self.lengthen(before, len),
            None => self.insert(Run { start: run.start, len }),
        }
        true
    }

    /// Makes runs free, which are in order, as [`FreeTree::add`] does each; gives those that it
    /// refused. So many that what was there is no more than a few times as much cost no search
    /// each.
    pub fn add_all(&mut self, runs: &[Run]) -> Vec<Run> {
        if runs.len().saturating_mul(SPARSE) < self.runs() {
            return runs.iter().copied().filter(|run| !self.add(*run)).collect();
        }
        let old: Vec<Run> =
            self.by_place.iter().map(|(start, len)| Run { start: *start, len: *len }).collect();
        let (all, refused) = self.merged(&old, runs);
        self.free = all.iter().map(|run| run.len).sum();
        self.by_place = all.iter().map(|run| (run.start, run.len)).collect();
        self.by_len = all.iter().map(|run| (Reverse(run.len), run.start)).collect();
        refused
    }

    /// Old and new runs in order, those that touch in a group as one; and the new ones that are no
    /// runs of a group, or not wholly new.
    fn merged(&self, old: &[Run], new: &[Run]) -> (Vec<Run>, Vec<Run>) {
        let (mut all, mut refused) = (Vec::<Run>::with_capacity(old.len() + new.len()), Vec::new());
        let mut old = old.iter().copied().peekable();
        for run in new {
            while let Some(before) = old.next_if(|old| old.start <= run.start) {
                self.append(&mut all, before);
            }
            let last = run.start.checked_add(run.len).and_then(|end| end.checked_sub(1));
            let in_group = last
                .is_some_and(|last| run.len > 0 && self.group_of(run.start) == self.group_of(last));
            let new = in_group
                && all.last().is_none_or(|before| before.end() <= run.start)
                && old.peek().is_none_or(|behind| run.end() <= behind.start);
            if new { self.append(&mut all, *run) } else { refused.push(*run) }
        }
        old.for_each(|run| self.append(&mut all, run));
        (all, refused)
    }

    fn append(&self, all: &mut Vec<Run>, run: Run) {
        match all.last_mut().filter(|last| {
            last.end() == run.start && self.group_of(last.start) == self.group_of(run.start)
        }) {
            Some(last) => last.len += run.len,
            None => all.push(run),
        }
    }

    /// Makes a run longer by `more`.
    fn lengthen(&mut self, run: Run, more: u32) {
        self.by_place.insert(run.start, run.len + more);
        self.by_len.remove(&(Reverse(run.len), run.start));
        self.by_len.insert((Reverse(run.len + more), run.start));
        self.free += more;
    }

    /// Takes a run out. False, with nothing changed, if it is empty or not wholly free.
    pub fn take(&mut self, run: Run) -> bool {
        let Some(whole) = self.at(run.start) else { return false };
        if run.len == 0 || run.end() > whole.end() {
            return false;
        }
        self.remove(whole);
        self.insert(Run { start: whole.start, len: run.start - whole.start });
        self.insert(Run { start: run.end(), len: whole.end() - run.end() });
        true
    }

    /// Whether a part of the run is free.
    pub fn overlaps(&self, run: Run) -> bool {
        let before = self.before(run.end());
        run.len > 0 && before.is_some_and(|free| free.end() > run.start)
    }

    /// The last run that starts before `unit`.
    fn before(&self, unit: u32) -> Option<Run> {
        self.by_place.range(..unit).next_back().map(|(start, len)| Run { start: *start, len: *len })
    }

    /// The free run that begins with the unit.
    fn starting_at(&self, unit: u32) -> Option<Run> {
        self.by_place.get(&unit).map(|len| Run { start: unit, len: *len })
    }

    /// The free run that has the unit.
    pub fn at(&self, unit: u32) -> Option<Run> {
        let (start, len) = self.by_place.range(..=unit).next_back()?;
        let run = Run { start: *start, len: *len };
        (run.end() > unit).then_some(run)
    }

    /// Free runs within a range of units in order, cut off at its ends.
    pub fn within(&self, units: Range<u32>) -> impl Iterator<Item = Run> {
        let first = self.at(units.start).filter(|run| run.start < units.start);
        let first = first.map(|run| Run { start: units.start, len: run.end() - units.start });
        let rest = units.start..units.end.max(units.start);
        let rest = self.by_place.range(rest).map(|(start, len)| Run { start: *start, len: *len });
        let cut =
            move |run: Run| Run { len: run.end().min(units.end).saturating_sub(run.start), ..run };
        first.into_iter().chain(rest).map(cut).filter(|run| run.len > 0)
    }

    /// The longest run; of several the first in place.
    pub fn longest(&self) -> Option<Run> {
        self.by_len.first().map(|(len, start)| Run { start: *start, len: len.0 })
    }

    /// The shortest run of at least `want` units that starts at or behind unit `avoid`; of several
    /// the one at or behind `near`, else the first. Costs O(log n), unless the shortest ones all
    /// start before `avoid`.
    pub fn best_fit(&self, want: u32, near: u32, avoid: u32) -> Option<Run> {
        let mut bound = (Reverse(want.max(1)), u32::MAX);
        for _ in 0..AVOID_STEPS {
            let (Reverse(len), _) = *self.by_len.range(..=bound).next_back()?;
            let of_len = |from: u32| {
                self.by_len.range((Reverse(len), from)..=(Reverse(len), u32::MAX)).next()
            };
            if let Some((_, start)) = of_len(near.max(avoid)).or_else(|| of_len(avoid)) {
                return Some(Run { start: *start, len });
            }
            bound = (Reverse(len.checked_add(1)?), u32::MAX);
        }
        None
    }

    /// The longest run that starts at or behind unit `avoid`, among the few longest.
    pub fn longest_from(&self, avoid: u32) -> Option<Run> {
        let found = self.by_len.iter().take(AVOID_STEPS).find(|(_, start)| *start >= avoid);
        found.map(|(len, start)| Run { start: *start, len: len.0 })
    }

    /// All runs, the longest first.
    pub fn by_length(&self) -> impl Iterator<Item = Run> {
        self.by_len.iter().map(|(len, start)| Run { start: *start, len: len.0 })
    }

    /// Number of runs.
    pub fn runs(&self) -> usize {
        self.by_place.len()
    }

    /// Free units.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Bytes of memory that so many runs take in a tree.
    pub fn bytes_of(runs: u64) -> u64 {
        runs.saturating_mul(RUN_BYTES as u64)
    }
}

#[cfg(test)]
mod tests;
