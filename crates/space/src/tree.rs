//! The free space of neighboring groups: the same runs by position and by length.
//!
//! Positions are units (clusters) counted from the first unit of the first group, so they do not
//! depend on the block numbers of the file system. A tree covers at most 2^32 units; the caller's
//! coordinates have 64 bits.
//!
//! For example, units 100 to 107 and 200 to 203 are free. An allocation of 4 units takes the run at
//! 200, the shortest that fits. Freeing units 108 to 111 makes one run of 100 to 111.
//!
//! # Invariants
//! - Both trees hold the same runs.
//! - Runs are disjoint, each is within one group, and maximal in it: adjacent runs of a group are
//!   merged.
//! - `free` is the sum of the runs' lengths.

use crate::Run;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Bytes of a run in both trees, as measured of a process with many trees (`tests/it`): with full
/// leaves, as loading makes them, and after at least as many single insertions as there are runs,
/// which split leaves.
const PACKED_BYTES: usize = 22;
const WORN_BYTES: usize = 33;

/// Runs of one length that a search examines before it tries the next length.
const AVOID_STEPS: usize = 64;

/// An addition of many runs searches the position of each only if there are more than this many
/// times as many runs in the tree.
const SPARSE: usize = 4;

/// The free space of neighboring groups. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct FreeTree {
    /// Units of a full group.
    group_len: u32,
    by_place: BTreeMap<u32, u32>,
    /// The longest first; among equal lengths, the lowest position first.
    by_len: BTreeSet<(Reverse<u32>, u32)>,
    free: u32,
    /// Single insertions since all leaves were full.
    worn: usize,
}

impl FreeTree {
    /// Makes a tree without free space of groups of `group_len` units, which must not be 0.
    pub fn new(group_len: u32) -> FreeTree {
        FreeTree { group_len: group_len.max(1), ..FreeTree::default() }
    }

    /// Returns the bytes of the largest tree of `units` units, in which every second unit is free.
    pub fn worst_bytes(units: u64) -> u64 {
        units.div_ceil(2).saturating_mul(WORN_BYTES as u64)
    }

    /// Adds the free runs of a group that has none in the tree. They must be disjoint, maximal and
    /// in order, as [`free_runs`](crate::free_runs) returns them, and moved to the group's
    /// position.
    pub fn load(&mut self, runs: &[Run]) {
        self.free += runs.iter().map(|run| run.len).sum::<u32>();
        let mut by_place: BTreeMap<u32, u32> =
            runs.iter().map(|run| (run.start, run.len)).collect();
        let mut by_len: BTreeSet<_> =
            runs.iter().map(|run| (Reverse(run.len), run.start)).collect();
        // Appending fills the leaves; inserting would leave them half full.
        self.by_place.append(&mut by_place);
        self.by_len.append(&mut by_len);
        self.worn = 0;
    }

    /// Removes all runs within a range of units that begins and ends at group boundaries.
    pub fn unload(&mut self, units: Range<u32>) {
        while let Some((&start, &len)) = self.by_place.range(units.clone()).next() {
            self.remove(Run { start, len });
        }
    }

    /// Removes all runs and frees their memory.
    pub fn clear(&mut self) {
        *self = FreeTree::new(self.group_len);
    }

    fn insert(&mut self, run: Run) {
        if run.len > 0 {
            self.by_place.insert(run.start, run.len);
            self.by_len.insert((Reverse(run.len), run.start));
            self.free += run.len;
            self.worn += 1;
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

    /// Adds a free run. Returns false, with nothing changed, if it is empty, spans groups, or is
    /// partly free already.
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

    /// Adds free runs, which must be in order, as [`FreeTree::add`] does for each. Returns those
    /// that were refused. For many runs, one pass over the tree replaces the searches.
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
        self.worn = 0;
        refused
    }

    /// Merges old and new runs in order, joining adjacent ones of a group. Also returns the refused
    /// new runs: those not within one group, and those that overlap another run.
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

    /// Lengthens a run by `more` units.
    fn lengthen(&mut self, run: Run, more: u32) {
        self.by_place.insert(run.start, run.len + more);
        self.by_len.remove(&(Reverse(run.len), run.start));
        self.by_len.insert((Reverse(run.len + more), run.start));
        self.free += more;
    }

    /// Removes a run from the free space. Returns false, with nothing changed, if it is empty or
    /// not wholly free.
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

    /// Returns whether a part of the run is free.
    pub fn overlaps(&self, run: Run) -> bool {
        let before = self.before(run.end());
        run.len > 0 && before.is_some_and(|free| free.end() > run.start)
    }

    /// Returns the last run that starts before `unit`.
    fn before(&self, unit: u32) -> Option<Run> {
        self.by_place.range(..unit).next_back().map(|(start, len)| Run { start: *start, len: *len })
    }

    /// Returns the free run that begins at the unit.
    fn starting_at(&self, unit: u32) -> Option<Run> {
        self.by_place.get(&unit).map(|len| Run { start: unit, len: *len })
    }

    /// Returns the free run that contains the unit.
    pub fn at(&self, unit: u32) -> Option<Run> {
        let (start, len) = self.by_place.range(..=unit).next_back()?;
        let run = Run { start: *start, len: *len };
        (run.end() > unit).then_some(run)
    }

    /// Returns the free runs within a range of units in order, cut at the range's ends.
    pub fn within(&self, units: Range<u32>) -> impl Iterator<Item = Run> {
        let first = self.at(units.start).filter(|run| run.start < units.start);
        let first = first.map(|run| Run { start: units.start, len: run.end() - units.start });
        let rest = units.start..units.end.max(units.start);
        let rest = self.by_place.range(rest).map(|(start, len)| Run { start: *start, len: *len });
        let cut =
            move |run: Run| Run { len: run.end().min(units.end).saturating_sub(run.start), ..run };
        first.into_iter().chain(rest).map(cut).filter(|run| run.len > 0)
    }

    /// Returns the longest run; among equals, the first in position.
    pub fn longest(&self) -> Option<Run> {
        self.by_len.first().map(|(len, start)| Run { start: *start, len: len.0 })
    }

    /// Returns the shortest run of at least `want` units that starts at or behind unit `avoid`;
    /// among equals, the one at or behind `near`, otherwise the first. Costs O(log n), unless the
    /// shortest runs all start before `avoid`.
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

    /// Returns the longest run that starts at or behind unit `avoid`, among the few longest.
    pub fn longest_from(&self, avoid: u32) -> Option<Run> {
        let found = self.by_len.iter().take(AVOID_STEPS).find(|(_, start)| *start >= avoid);
        found.map(|(len, start)| Run { start: *start, len: len.0 })
    }

    /// Returns all runs, the longest first.
    pub fn by_length(&self) -> impl Iterator<Item = Run> {
        self.by_len.iter().map(|(len, start)| Run { start: *start, len: len.0 })
    }

    /// Returns the number of runs.
    pub fn runs(&self) -> usize {
        self.by_place.len()
    }

    /// Returns the number of free units.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Returns the bytes of memory of the runs: those measured, in proportion to the insertions
    /// since the leaves were full.
    pub fn bytes(&self) -> usize {
        let worn = self.worn.min(self.runs());
        self.runs() * PACKED_BYTES + worn * (WORN_BYTES - PACKED_BYTES)
    }

    /// Returns the bytes of memory of `runs` runs in a tree that many were inserted into.
    pub fn bytes_of(runs: u64) -> u64 {
        runs.saturating_mul(WORN_BYTES as u64)
    }
}

#[cfg(test)]
mod tests;
