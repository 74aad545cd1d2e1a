//! Units that a bitmap shows as free but that must not be allocated, such as claimed units.
//!
//! When the free space of a group is rebuilt from a bitmap, these runs are subtracted. They stay in
//! memory while they are held, so the free-space tree itself may be evicted at any time. For
//! example, a writeback claims blocks 100 to 107. Until it books them they are held, and a tree
//! built from the bitmap does not contain them.
//!
//! # Invariants
//! Runs are disjoint, and adjacent runs are merged.

use crate::Run;
use std::collections::BTreeMap;
use std::ops::Range;

/// A removal of many runs searches for each of them only if there are more than this many times as
/// many held runs.
const SPARSE: usize = 4;

/// Runs that are excluded from free space. See the module's documentation.
#[derive(Debug, Default)]
pub struct Held {
    runs: BTreeMap<u32, u32>,
}

impl Held {
    fn last_before(&self, unit: u32) -> Option<Run> {
        self.runs.range(..unit).next_back().map(|(start, len)| Run { start: *start, len: *len })
    }

    /// Holds a run. Returns false, with nothing changed, if it is empty or partly held already.
    pub fn add(&mut self, run: Run) -> bool {
        if run.len == 0 || run.start.checked_add(run.len).is_none() {
            return false;
        }
        let before = self.last_before(run.end());
        if before.is_some_and(|held| held.end() > run.start) {
            return false;
        }
        let len = run.len + self.runs.remove(&run.end()).unwrap_or(0);
        match before.filter(|held| held.end() == run.start) {
            Some(held) => self.runs.insert(held.start, held.len + len),
            None => self.runs.insert(run.start, len),
        };
        true
    }

    /// Releases a run. Returns false, with nothing changed, if it is empty or not wholly held.
    pub fn remove(&mut self, run: Run) -> bool {
        let before = self.last_before(run.start.saturating_add(1));
        let Some(whole) = before.filter(|whole| run.len > 0 && run.end() <= whole.end()) else {
            return false;
        };
        match run.start - whole.start {
            0 => self.runs.remove(&whole.start),
            len => self.runs.insert(whole.start, len),
        };
        if run.end() < whole.end() {
            self.runs.insert(run.end(), whole.end() - run.end());
        }
        true
    }

    /// Releases runs, which must be in order, as [`Held::remove`] does for each. Returns those that
    /// were refused. For many runs, one pass over all held runs replaces the searches.
    pub fn remove_all(&mut self, runs: &[Run]) -> Vec<Run> {
        if runs.len().saturating_mul(SPARSE) < self.runs.len() {
            return runs.iter().copied().filter(|run| !self.remove(*run)).collect();
        }
        let mut old =
            std::mem::take(&mut self.runs).into_iter().map(|(start, len)| Run { start, len });
        // Merge the two ordered lists: `whole` is the rest of the held run at the present position.
        let (mut left, mut refused, mut whole) =
            (Vec::with_capacity(old.len()), Vec::new(), old.next());
        for run in runs {
            while let Some(before) = whole.filter(|whole| whole.end() <= run.start) {
                left.extend((before.len > 0).then_some((before.start, before.len)));
                whole = old.next();
            }
            match whole
                .filter(|whole| run.len > 0 && whole.start <= run.start && run.end() <= whole.end())
            {
                Some(held) => {
                    left.extend(
                        (held.start < run.start).then(|| (held.start, run.start - held.start)),
                    );
                    whole = Some(Run { start: run.end(), len: held.end() - run.end() });
                }
                None => refused.push(*run),
            }
        }
        let rest = whole.into_iter().chain(old).filter(|run| run.len > 0);
        self.runs = left.into_iter().chain(rest.map(|run| (run.start, run.len))).collect();
        refused
    }

    /// Returns whether a part of the run is held.
    pub fn overlaps(&self, run: Run) -> bool {
        run.len > 0 && self.last_before(run.end()).is_some_and(|held| held.end() > run.start)
    }

    /// Returns the number of held units within a range.
    pub fn count(&self, units: Range<u32>) -> u32 {
        let mut sum = 0;
        self.each_within(units, |run| sum += run.len);
        sum
    }

    fn each_within(&self, units: Range<u32>, mut each: impl FnMut(Run)) {
        let cut = |run: Run| {
            let (start, end) = (run.start.max(units.start), run.end().min(units.end));
            Run { start, len: end.saturating_sub(start) }
        };
        let first = self.last_before(units.start).map(cut);
        let rest = self.runs.range(units.start..units.end.max(units.start));
        let rest = rest.map(|(start, len)| cut(Run { start: *start, len: *len }));
        first.into_iter().chain(rest).filter(|run| run.len > 0).for_each(&mut each);
    }

    /// Subtracts the held runs from free runs, which must be disjoint and in order.
    pub fn subtract(&self, free: Vec<Run>) -> Vec<Run> {
        let (Some(first), Some(last)) = (free.first(), free.last()) else { return free };
        if !self.overlaps(Run { start: first.start, len: last.end() - first.start }) {
            return free;
        }
        let mut left = Vec::with_capacity(free.len());
        for run in free {
            let mut at = run.start;
            self.each_within(run.start..run.end(), |held| {
                left.extend((held.start > at).then(|| Run { start: at, len: held.start - at }));
                at = held.end();
            });
            left.extend((run.end() > at).then(|| Run { start: at, len: run.end() - at }));
        }
        left
    }

    /// Returns the number of runs.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Units;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn remove_all_equals_single_removals(
            held in prop::collection::vec(
                (0u32..200, 1u32..20),
                0..40,
            ), gone in prop::collection::vec((0u32..220, 0u32..6), 0..40),
        ) {
            let (mut one, mut many) = (Held::default(), Held::default());
            for (start, len) in held {
                prop_assert_eq!(one.add(Run { start, len }), many.add(Run { start, len }));
            }
            let mut gone: Vec<Run> = gone.into_iter().map(|(start, len)| Run {
                start, len,
            }).collect();
            gone.sort_unstable_by_key(|run| run.start);
            let refused: Vec<Run> = gone.iter().copied().filter(|run| !one.remove(*run)).collect();
            prop_assert_eq!(many.remove_all(&gone), refused);
            prop_assert_eq!(one.runs, many.runs);
        }

        #[test]
        fn behaves_as_single_units_do(
            steps in prop::collection::vec(
                (any::<bool>(), 0u32..200, 0u32..40),
                0..80,
            ), from in 0u32..220, len in 0u32..220,
        ) {
            let (mut held, mut model) = (Held::default(), Units::new(256));
            for (add, start, len) in steps {
                let run = Run { start, len };
                prop_assert_eq!(held.overlaps(run), len > 0 && !model.all(run, false));
                let possible = len > 0 && model.all(run, !add);
                prop_assert_eq!(if add { held.add(run) } else { held.remove(run) }, possible);
                if possible {
                    model.set(run, add);
                }
                prop_assert_eq!(held.runs(), model.runs(256).len());
            }
            let (end, all) = (
                from + len,
                [Run { start: from, len }, Run { start: from + len + 3, len: 20 }],
            );
            prop_assert_eq!(
                held.count(from..end),
                (from..end).filter(|unit| model.has(*unit)).count() as u32,
            );
            let left = held.subtract(all.into_iter().filter(|run| run.len > 0).collect());
            let units: Vec<u32> = left.iter().flat_map(|run| run.start..run.end()).collect();
            let plain =
                all.iter().flat_map(|run| run.start..run.end()).filter(|unit| !model.has(*unit));
            prop_assert_eq!(units, plain.collect::<Vec<_>>());
        }
    }
}
