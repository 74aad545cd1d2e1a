//! Free space.

use super::Inspector;
use extant_format::{GroupNr, bitmap};
use std::ops::Range;

/// The free space of a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeRunCounts {
    /// Number of free runs.
    pub runs: u64,
    /// Free blocks.
    pub blocks: u64,
    /// Blocks of the shortest and of the longest run; 0 without one.
    pub shortest: u64,
    /// Blocks of the longest run.
    pub longest: u64,
    /// For each power of two, the number of runs of so many blocks or more, and less than the next
    /// one, and their blocks.
    pub histogram: Vec<(u64, u64)>,
    /// Groups whose bitmap cannot be read, in words.
    pub problems: Vec<String>,
}

impl FreeRunCounts {
    fn add(&mut self, run: &Range<u64>) {
        let len = run.end.saturating_sub(run.start);
        let Some(class) = len.checked_ilog2() else { return };
        self.runs = self.runs.saturating_add(1);
        self.blocks = self.blocks.saturating_add(len);
        self.longest = self.longest.max(len);
        self.shortest = if self.shortest == 0 { len } else { self.shortest.min(len) };
        let wanted = (class as usize).saturating_add(1).max(self.histogram.len());
        self.histogram.resize(wanted, (0, 0));
        if let Some((runs, blocks)) = self.histogram.get_mut(class as usize) {
            *runs = runs.saturating_add(1);
            *blocks = blocks.saturating_add(len);
        }
    }
}

impl Inspector {
    /// Counts the free runs by the bitmaps. A run may go on in the next group.
    pub fn free_space(&self) -> FreeRunCounts {
        let mut found = FreeRunCounts::default();
        let mut last = 0..0;
        for group in (0..self.group_count()).map(GroupNr) {
            let bitmap = match self.block_bitmap(group) {
                Ok(bitmap) => bitmap,
                Err(error) => {
                    found.problems.push(error.to_string());
                    continue;
                }
            };
            let (mut next, end) = (0usize, bitmap.len as usize);
            while let Some(run) = bitmap::next_zero_run(&bitmap.bits, next, end) {
                let block = |bit: usize| self.geometry.block_of_bit(group, bit as u32).0;
                let blocks = block(run.start)..block(run.end).min(self.geometry.blocks_count);
                if last.end == blocks.start {
                    last.end = blocks.end;
                } else {
                    found.add(&last);
                    last = blocks;
                }
                next = run.end;
            }
        }
        found.add(&last);
        found
    }
}
