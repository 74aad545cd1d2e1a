//! The cached runs of one inode's map: plain data, maintained by `extent`.
//!
//! # Invariants
//! - Runs are sorted, not empty, and do not overlap. Adjacent runs that continue each other are
//!   one.
//! - A run agrees with the map. Blocks without a run are unknown.
//! - There are at most [`MAX_RUNS`] runs: beyond that, those farthest from the newest are dropped.
//!
//! # Locking
//! Guarded by the inode's map lock. A reader fills the cache in two steps: it walks the map under
//! the read lock and reads [`MapCache::epoch`]; then it stores the runs under the write lock if the
//! epoch is still the same.

use extant_format::types::BlockNr;
use std::ops::Range;

/// The most runs that are kept for one inode: 3 KiB.
const MAX_RUNS: usize = 128;

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentState {
    /// Nothing mapped.
    Hole,
    /// Mapped and written.
    Written,
    /// Mapped, reads as zeros.
    Unwritten,
}

/// Logical blocks in one state, physically contiguous if mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First logical block.
    pub lblk: u32,
    /// Blocks.
    pub len: u32,
    /// First physical block; meaningless for a hole.
    pub pblk: BlockNr,
    /// State.
    pub state: ExtentState,
}

impl Run {
    /// Whether the run has physical blocks.
    pub fn is_mapped(&self) -> bool {
        self.state != ExtentState::Hole
    }

    /// First logical block behind the run.
    pub fn end(&self) -> u64 {
        u64::from(self.lblk) + u64::from(self.len)
    }

    /// The part of the run within `range`, if any.
    pub fn cut(&self, range: Range<u64>) -> Option<Run> {
        let start = range.start.max(u64::from(self.lblk));
        let end = range.end.min(self.end());
        if start >= end {
            return None;
        }
        let skipped = start - u64::from(self.lblk);
        let pblk = match self.state {
            ExtentState::Hole => self.pblk,
            _ => BlockNr(self.pblk.0.saturating_add(skipped)),
        };
        Some(Run { lblk: start as u32, len: (end - start) as u32, pblk, state: self.state })
    }

    /// Whether `next` continues this run in the same state.
    fn continued_by(&self, next: &Run) -> bool {
        let joined = self.end() == u64::from(next.lblk) && self.state == next.state;
        let fits = self.len.checked_add(next.len).is_some();
        let adjacent = self.state == ExtentState::Hole
            || self.pblk.0.checked_add(u64::from(self.len)) == Some(next.pblk.0);
        joined && fits && adjacent
    }
}

/// Cached runs of the map.
#[derive(Debug, Default)]
pub struct MapCache {
    runs: Vec<Run>,
    epoch: u64,
}

impl MapCache {
    /// Returns the cached run from `lblk` on, cut to `max` blocks.
    #[inline]
    pub fn get(&self, lblk: u32, max: u32) -> Option<Run> {
        let at = self.runs.partition_point(|run| run.lblk <= lblk).checked_sub(1)?;
        let start = u64::from(lblk);
        self.runs.get(at)?.cut(start..start + u64::from(max))
    }

    /// Returns a number that changes with each change of the map, so that runs found before are
    /// recognized as stale.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Begins a change of the map: runs that readers found before must not be stored any more.
    pub fn changing(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Stores a run in place of all cached runs of its blocks.
    pub fn put(&mut self, run: Run) {
        if run.len == 0 {
            return;
        }
        let range = u64::from(run.lblk)..run.end();
        let at = self.clear_range(range);
        let at = self.join(at, run);
        self.bound(at);
    }

    /// Nothing is known of the blocks of `range` any more.
    pub fn forget(&mut self, range: Range<u64>) {
        if range.start < range.end {
            self.clear_range(range);
        }
    }

    /// Nothing is known any more.
    pub fn clear(&mut self) {
        self.runs = Vec::new();
    }

    /// Takes the range out of all runs; returns where a run that starts there belongs.
    fn clear_range(&mut self, range: Range<u64>) -> usize {
        let first = self.runs.partition_point(|run| run.end() <= range.start);
        let last = self.runs.partition_point(|run| u64::from(run.lblk) < range.end);
        if first >= last {
            return first;
        }
        let head = self.runs[first].cut(0..range.start);
        let tail = self.runs[last - 1].cut(range.end..u64::MAX);
        self.runs.splice(first..last, head.into_iter().chain(tail));
        first + usize::from(head.is_some())
    }

    /// Inserts a run at its place, joined with its neighbours where they continue each other.
    fn join(&mut self, at: usize, run: Run) -> usize {
        let left = at.checked_sub(1).filter(|&i| self.runs[i].continued_by(&run));
        let right = self.runs.get(at).copied().filter(|next| run.continued_by(next));
        match (left, right) {
            (Some(i), Some(next)) if self.runs[i].len.checked_add(run.len + next.len).is_some() => {
                self.runs[i].len += run.len + next.len;
                self.runs.remove(at);
                i
            }
            (Some(i), _) => {
                self.runs[i].len += run.len;
                i
            }
            (None, Some(next)) => {
                self.runs[at] = Run { len: run.len + next.len, ..run };
                at
            }
            (None, None) => {
                self.runs.insert(at, run);
                at
            }
        }
    }

    /// Drops the half that is farther from `newest` if there are too many runs.
    fn bound(&mut self, newest: usize) {
        if self.runs.len() <= MAX_RUNS {
            return;
        }
        let half = self.runs.len() / 2;
        if newest < half { self.runs.truncate(half) } else { drop(self.runs.drain(..half)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(lblk: u32, len: u32, pblk: u64, state: ExtentState) -> Run {
        Run { lblk, len, pblk: BlockNr(pblk), state }
    }

    #[test]
    fn neighbours_join() {
        let mut cache = MapCache::default();
        cache.put(run(0, 4, 100, ExtentState::Written));
        cache.put(run(8, 4, 108, ExtentState::Written));
        cache.put(run(4, 4, 104, ExtentState::Written));
        assert_eq!(cache.runs, [run(0, 12, 100, ExtentState::Written)]);
        assert_eq!(cache.get(5, 100), Some(run(5, 7, 105, ExtentState::Written)));
        assert_eq!(cache.get(12, 1), None);
    }

    #[test]
    fn a_new_run_replaces_old_knowledge() {
        let mut cache = MapCache::default();
        cache.put(run(0, 100, 0, ExtentState::Hole));
        cache.put(run(10, 10, 500, ExtentState::Unwritten));
        let parts = [
            run(0, 10, 0, ExtentState::Hole),
            run(10, 10, 500, ExtentState::Unwritten),
            run(20, 80, 0, ExtentState::Hole),
        ];
        assert_eq!(cache.runs, parts);
        cache.forget(5..95);
        assert_eq!(cache.runs, [run(0, 5, 0, ExtentState::Hole), run(95, 5, 0, ExtentState::Hole)]);
    }

    #[test]
    fn the_number_of_runs_is_bounded() {
        let mut cache = MapCache::default();
        for i in 0..5000u32 {
            cache.put(run(i * 2, 1, 7 * u64::from(i), ExtentState::Written));
            assert!(cache.runs.len() <= MAX_RUNS);
            assert!(cache.get(i * 2, 1).is_some());
        }
    }

    #[test]
    fn the_last_blocks_do_not_overflow() {
        let mut cache = MapCache::default();
        cache.put(run(u32::MAX - 1, 1, 5, ExtentState::Written));
        cache.put(run(0, u32::MAX - 1, 0, ExtentState::Hole));
        assert_eq!(cache.get(7, u32::MAX).map(|r| r.len), Some(u32::MAX - 8));
        assert_eq!(cache.get(u32::MAX, 1), None);
        cache.forget(0..u64::from(u32::MAX) + 1);
        assert!(cache.runs.is_empty());
    }
}
