//! Allocated blocks as runs: a new file system has few runs, whatever its size.
//!
//! # Invariants
//! Runs are disjoint, not empty, and never touch: neighbours are merged.

use std::collections::BTreeMap;
use std::ops::Range;

/// The allocated blocks.
#[derive(Debug, Default, Clone)]
pub(super) struct Taken {
    /// First block to the block after the last one.
    runs: BTreeMap<u64, u64>,
}

impl Taken {
    /// Allocates a range. The whole range must be free.
    pub(super) fn take(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        debug_assert!(self.first_overlap(&range).is_none(), "taken twice: {range:?}");
        let (mut start, mut end) = (range.start, range.end);
        if let Some((before, last)) = self.runs.range(..start).next_back().map(|(a, b)| (*a, *b))
            && last >= start
        {
            start = before;
            end = end.max(last);
        }
        if let Some(after) = self.runs.remove(&end) {
            end = after;
        }
        self.runs.insert(start, end);
    }

    /// Returns the end of the first run that has a block in `range`.
    fn first_overlap(&self, range: &Range<u64>) -> Option<u64> {
        let first = self.within(range.clone()).next()?;
        self.runs.range(..=first.start).next_back().map(|(_, end)| *end)
    }

    /// Returns the parts of the runs that lie in `range`, ascending.
    pub(super) fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first =
            self.runs.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let Range { start, end } = range;
        self.runs
            .range(first..end.max(first))
            .map(move |(a, b)| (*a).max(start)..(*b).min(end))
            .filter(|part| !part.is_empty())
    }

    /// Returns the number of blocks taken in `range`.
    pub(super) fn count(&self, range: Range<u64>) -> u64 {
        self.within(range).map(|part| part.end - part.start).sum()
    }

    /// Returns the number of clusters of 2^`bits` blocks, counted from the start of `range`, with
    /// at least one allocated block.
    pub(super) fn clusters(&self, range: Range<u64>, bits: u32) -> u64 {
        let start = range.start;
        let mut next = 0;
        let mut count = 0;
        for part in self.within(range) {
            let first = ((part.start - start) >> bits).max(next);
            next = ((part.end - 1 - start) >> bits) + 1;
            count += next.saturating_sub(first);
        }
        count
    }

    /// Returns the first free range of `len` blocks in `bounds`, its start a multiple of `align`
    /// behind `base`. For `align` > 1 no aligned piece that the range touches has a taken block.
    pub(super) fn find(&self, bounds: Range<u64>, len: u64, align: Align) -> Option<u64> {
        let mut at = align.up(bounds.start);
        loop {
            let end = align.up(at.checked_add(len)?);
            if at.checked_add(len)? > bounds.end {
                return None;
            }
            match self.first_overlap(&(at..end)) {
                None => return Some(at),
                Some(taken) => at = align.up(taken),
            }
        }
    }

    /// Free ranges of `bounds` in order, cut to whole aligned pieces at their start, at most `len`
    /// blocks together; `None` if there are fewer.
    pub(super) fn gather(
        &self,
        bounds: Range<u64>,
        len: u64,
        align: Align,
    ) -> Option<Vec<Range<u64>>> {
        let mut found = Vec::new();
        let (mut at, mut left) = (align.up(bounds.start), len);
        while left > 0 {
            at = self.find(at..bounds.end, align.step.min(left), align)?;
            let next = self.within(at..bounds.end).next().map_or(bounds.end, |run| run.start);
            let whole = if next == bounds.end { next } else { align.down(next) };
            let end = whole.min(at + left);
            found.push(at..end);
            left -= end - at;
            at = align.up(end);
        }
        Some(found)
    }
}

/// Alignment of allocations: multiples of `step` counted from `base`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Align {
    /// The first aligned block.
    pub base: u64,
    /// Blocks from one aligned block to the next, at least 1.
    pub step: u64,
}

impl Align {
    /// Any block.
    pub(super) const NONE: Align = Align { base: 0, step: 1 };

    fn up(self, block: u64) -> u64 {
        let offset = block.saturating_sub(self.base);
        self.base.saturating_add(offset.div_ceil(self.step).saturating_mul(self.step))
    }

    fn down(self, block: u64) -> u64 {
        let offset = block.saturating_sub(self.base);
        self.base + offset / self.step * self.step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: Align = Align { base: 0, step: 4 };

    fn taken(ranges: &[Range<u64>]) -> Taken {
        let mut taken = Taken::default();
        ranges.iter().for_each(|range| taken.take(range.clone()));
        taken
    }

    #[test]
    fn neighbours_are_merged() {
        let taken = taken(&[10..20, 30..40, 20..30, 0..5]);
        assert_eq!(taken.runs.into_iter().collect::<Vec<_>>(), [(0, 5), (10, 40)]);
    }

    #[test]
    fn parts_are_cut_to_the_range() {
        let taken = taken(&[10..20, 30..40]);
        assert_eq!(taken.within(15..35).collect::<Vec<_>>(), [15..20, 30..35]);
        assert_eq!(taken.count(0..100), 20);
        assert_eq!(taken.count(20..30), 0);
    }

    #[test]
    fn clusters_are_counted_once() {
        let taken = taken(&[0..1, 3..5, 6..7, 20..21]);
        assert_eq!(taken.clusters(0..100, 2), 3);
        assert_eq!(taken.clusters(0..100, 0), 5);
        assert_eq!(taken.clusters(2..100, 2), 3);
    }

    #[test]
    fn free_ranges_are_found() {
        let taken = taken(&[0..10, 12..20]);
        assert_eq!(taken.find(0..100, 2, Align::NONE), Some(10));
        assert_eq!(taken.find(0..100, 3, Align::NONE), Some(20));
        assert_eq!(taken.find(0..22, 3, Align::NONE), None);
        assert_eq!(taken.find(0..100, 2, FOUR), Some(20));
        assert_eq!(taken.find(21..100, 2, FOUR), Some(24));
    }

    #[test]
    fn a_long_run_is_one_step() {
        let taken = taken(&[1..2, 2..1 << 50]);
        assert_eq!(taken.find(1..1 << 60, 1, Align::NONE), Some(1 << 50));
        assert_eq!(taken.find(1 << 49..1 << 60, 8, FOUR), Some(1 << 50));
    }

    #[test]
    fn aligned_pieces_are_not_shared() {
        let taken = taken(&[0..1, 6..7]);
        assert_eq!(taken.find(0..100, 1, FOUR), Some(8));
        assert_eq!(taken.find(0..9, 1, FOUR), Some(8));
    }

    #[test]
    fn pieces_are_gathered() {
        let taken = taken(&[0..10, 12..20, 25..30]);
        assert_eq!(taken.gather(0..100, 9, Align::NONE).unwrap(), [10..12, 20..25, 30..32]);
        assert_eq!(taken.gather(0..100, 9, FOUR).unwrap(), [20..24, 32..37]);
        assert!(taken.gather(0..31, 9, Align::NONE).is_none());
    }
}
