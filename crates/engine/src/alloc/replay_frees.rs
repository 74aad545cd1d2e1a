//! Frees during the replay of fast commits. The order of the records is arbitrary: a block may be
//! assigned to another file before or after its owner loses it, and more than once. Until all
//! records are applied, freed blocks are only listed; then those without an owner are freed at
//! once.

use super::Alloc;
use crate::error::Result;
use crate::groups::Kind;
use extant_format::bitmap;
use extant_format::error::Corrupt;
use extant_format::types::BlockNr;
use extant_journal::Handle;
use extant_space::Run;
use extant_sync::{Level, Mutex, OnceLock};
use std::ops::Range;

/// The listed blocks, while frees are deferred.
#[derive(Debug, Default)]
pub(super) struct ReplayFrees(OnceLock<Mutex<Vec<Range<u64>>>>);

impl ReplayFrees {
    /// Lists blocks that would be freed. Returns false, and lists nothing, unless frees are
    /// deferred.
    pub fn defer(&self, blocks: Range<u64>) -> bool {
        let Some(list) = self.0.get() else { return false };
        list.lock().push(blocks);
        true
    }
}

impl Alloc {
    /// Defers frees: freed blocks stay booked until [`Self::free_used`] frees them.
    pub fn defer_frees(&self) {
        self.replay_frees.0.get_or_init(|| Mutex::new(Level::Leaf, Vec::new()));
    }

    /// Returns the deferred frees, in order and each block once.
    pub fn take_deferred_frees(&self) -> Vec<Range<u64>> {
        let list = self.replay_frees.0.get().map(|list| std::mem::take(&mut *list.lock()));
        in_order(list.unwrap_or_default())
    }

    /// Frees those of a file's blocks that are in use, whether or not freeing is put off. Costs
    /// [`Self::credits`].
    ///
    /// # Errors
    /// `Corrupt` if a block belongs to the file system's own metadata, or does not exist; `Io`.
    pub fn free_used(&self, h: &mut Handle<'_>, start: BlockNr, len: u32) -> Result<()> {
        let (mut at, end) = (start.0, start.0 + u64::from(len));
        while at < end {
            let part = self.part_in_group(at, end)?;
            let (g, run) = self
                .space
                .place(BlockNr(at), part)
                .ok_or_else(|| Corrupt::new("freed blocks").found(at))?;
            let used = self.groups.bitmap(g, Kind::Blocks)?.with(|bits| {
                let within = run.start as usize..run.end() as usize;
                used_runs(bits, within)
            });
            for used in used {
                self.space.free_clusters(
                    h,
                    g,
                    Run { start: used.start as u32, len: used.len() as u32 },
                )?;
            }
            at += u64::from(part);
        }
        Ok(())
    }
}

/// Runs of ones, in order.
fn used_runs(bits: &[u8], within: Range<usize>) -> Vec<Range<usize>> {
    let (mut runs, mut at) = (Vec::new(), within.start);
    while let Some(start) = bitmap::find_next_one(bits, at, within.end) {
        at = bitmap::find_next_zero(bits, start, within.end).unwrap_or(within.end);
        runs.push(start..at);
    }
    runs
}

/// Ranges by their beginning, those that touch or overlap as one.
pub fn in_order(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut whole: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match whole.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => whole.push(range),
        }
    }
    whole
}

/// Returns `ranges` without `taken`. Both must be in order and without overlaps.
pub fn without(ranges: &[Range<u64>], taken: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    for range in ranges {
        let first = taken.partition_point(|taken| taken.end <= range.start);
        let mut at = range.start;
        for taken in taken
            .get(first..)
            .unwrap_or_default()
            .iter()
            .take_while(|taken| taken.start < range.end)
        {
            if at < taken.start {
                left.push(at..taken.start);
            }
            at = taken.end;
        }
        if at < range.end {
            left.push(at..range.end);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_one_where_they_meet() {
        assert_eq!(in_order(vec![7..9, 1..3, 3..4, 2..4, 20..21]), [1..4, 7..9, 20..21]);
    }

    #[test]
    fn taken_runs_are_left_out() {
        let left = without(&[0..10, 20..30, 40..50], &[0..2, 5..6, 9..22, 25..27, 29..60]);
        assert_eq!(left, [2..5, 6..9, 22..25, 27..29]);
        assert_eq!(without(&[3..8, 9..10], &[]), [3..8, 9..10]);
        assert_eq!(without(&[3..8, 9..12], &[0..1, 3..8]), vec![9..12]);
    }

    #[test]
    fn used_runs_are_runs_of_ones() {
        assert_eq!(used_runs(&[0b1110_0110, 0b0000_0001], 1..16), [1..3, 5..9]);
        assert_eq!(used_runs(&[0xFF], 2..5), vec![2..5]);
    }
}
