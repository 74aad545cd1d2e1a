//! Summaries of the free space of groups that are not in memory: the longest free run, and the
//! approximate number of runs of each length, in 16 bytes for each group.
//!
//! Summaries are hints: they were correct when the bitmap was scanned, or when the group's tree
//! left memory. A caller must look at the group itself before allocating. For example, a summary
//! with a longest run of 64 units tells a search for 100 units to skip the group.

use crate::{Run, free_runs};
use extant_sync::GrowingTable;
use extant_sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of powers of two among the lengths of runs: up to a group of 8 * 64 KiB units.
pub const ORDERS: usize = 20;
/// Orders in a word, four bits each.
const PER_WORD: usize = ORDERS / 2;
const LONGEST_BITS: usize = 24;
const KNOWN: u64 = 1 << 63;

/// The free runs of a group by length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Length of the longest run in units.
    pub longest: u32,
    /// For each power of two, the number of runs that are at least that long and less than twice as
    /// long.
    pub runs: [u32; ORDERS],
}

impl Summary {
    /// Counts one run.
    pub fn add(&mut self, len: u32) {
        if let Some(order) = len.checked_ilog2() {
            self.runs[(order as usize).min(ORDERS - 1)] += 1;
            self.longest = self.longest.max(len);
        }
    }

    /// Makes the summary of these runs.
    pub fn of(runs: impl IntoIterator<Item = Run>) -> Summary {
        let mut summary = Summary::default();
        runs.into_iter().for_each(|run| summary.add(run.len));
        summary
    }

    /// Makes the summary of a bitmap's clear bits.
    pub fn of_bitmap(bitmap: &[u8], len: u32) -> Summary {
        let mut summary = Summary::default();
        free_runs(bitmap, len, |run| summary.add(run.len));
        summary
    }

    /// Adds the counts of another summary.
    pub fn merge(&mut self, other: &Summary) {
        self.longest = self.longest.max(other.longest);
        self.runs.iter_mut().zip(other.runs).for_each(|(count, more)| *count += more);
    }
}

/// Encodes a count in four bits: 0 for none, otherwise one more than its binary logarithm.
fn rough(count: u32) -> u64 {
    count.checked_ilog2().map_or(0, |log| u64::from(log + 1).min(15))
}

/// Returns the smallest count with this encoding.
fn count(rough: u64) -> u32 {
    if rough == 0 { 0 } else { 1 << (rough - 1) }
}

fn pack(orders: &[u32]) -> u64 {
    orders.iter().rev().fold(0, |word, runs| word << 4 | rough(*runs))
}

/// The summaries of all groups. A reader may see the halves of two summaries of one group; each
/// half is a hint as well.
#[derive(Debug)]
pub struct Summaries {
    words: GrowingTable<[AtomicU64; 2]>,
}

impl Summaries {
    /// Makes empty summaries of `groups` groups.
    pub fn new(groups: u32) -> Summaries {
        Summaries { words: (0..groups).map(|_| Default::default()).collect() }
    }

    /// Returns the number of groups.
    pub fn len(&self) -> u32 {
        self.words.len() as u32
    }

    /// Returns whether there are no groups.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Appends groups of which nothing is known. No two threads may append at once.
    pub fn append(&self, groups: u32) {
        self.words.append((0..groups).map(|_| Default::default()));
    }

    /// Stores the summary of a group.
    pub fn set(&self, group: u32, summary: &Summary) {
        let Some([low, high]) = self.words.get(group as usize) else { return };
        let (front, back) = summary.runs.split_at(PER_WORD);
        low.store(
            pack(front) << LONGEST_BITS | u64::from(summary.longest) & ((1 << LONGEST_BITS) - 1),
            Relaxed,
        );
        high.store(pack(back) | KNOWN, Relaxed);
    }

    /// Returns the summary of a group, with the numbers of runs rounded down to powers of two.
    /// Returns `None` if none was stored.
    pub fn get(&self, group: u32) -> Option<Summary> {
        let [low, high] = self.words.get(group as usize)?;
        let (low, high) = (low.load(Relaxed), high.load(Relaxed));
        let mut summary =
            Summary { longest: (low & ((1 << LONGEST_BITS) - 1)) as u32, ..Summary::default() };
        let (front, back) = summary.runs.split_at_mut(PER_WORD);
        for (word, orders) in [(low >> LONGEST_BITS, front), (high, back)] {
            orders
                .iter_mut()
                .enumerate()
                .for_each(|(order, runs)| *runs = count(word >> (4 * order) & 15));
        }
        (high & KNOWN != 0).then_some(summary)
    }

    /// Returns the longest free run of a group. Returns `None` if no summary was stored.
    pub fn longest(&self, group: u32) -> Option<u32> {
        let [low, high] = self.words.get(group as usize)?;
        let known = high.load(Relaxed) & KNOWN != 0;
        known.then(|| (low.load(Relaxed) & ((1 << LONGEST_BITS) - 1)) as u32)
    }

    /// Notes that a run of `len` units became free in a group that is not in memory.
    pub fn freed(&self, group: u32, len: u32) {
        if self.longest(group).is_some_and(|longest| longest < len)
            && let Some(summary) = self.get(group)
        {
            let mut grown = summary;
            grown.add(len);
            self.set(group, &grown);
        }
    }

    /// Returns the bytes of memory used.
    pub fn bytes(&self) -> usize {
        self.words.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keeps_the_longest_exactly_and_counts_roughly(lens in prop::collection::vec(
            0u32..(1 << 20),
            0..300,
        )) {
            let all = Summaries::new(3);
            prop_assert_eq!((all.get(1), all.longest(1)), (None, None));
            let exact = Summary::of(lens.iter().map(|len| Run { start: 0, len: *len }));
            all.set(1, &exact);
            let kept = all.get(1).unwrap();
            prop_assert_eq!((kept.longest, all.longest(1)), (exact.longest, Some(exact.longest)));
            prop_assert_eq!(exact.longest, lens.iter().copied().max().unwrap_or(0));
            for (kept, exact) in kept.runs.iter().zip(exact.runs) {
                prop_assert!(*kept <= exact && exact < (*kept * 2).max(1));
            }
            prop_assert_eq!((all.get(0), all.get(3)), (None, None));
            all.freed(0, 9);
            prop_assert_eq!(all.get(0), None);
            all.freed(1, 1 << 20);
            prop_assert_eq!(all.longest(1), Some(1 << 20));
        }
    }

    #[test]
    fn takes_sixteen_bytes_a_group() {
        assert_eq!(Summaries::new(491_520).bytes(), 491_520 * 16);
    }

    #[test]
    fn a_bitmap_tells_its_runs() {
        let mut bitmap = [0xFF; 4096];
        bitmap[8..16].fill(0);
        bitmap[100] = 0b1010_1010;
        let summary = Summary::of_bitmap(&bitmap, 32768);
        assert_eq!((summary.longest, summary.runs[6], summary.runs[0]), (64, 1, 4));
    }
}
