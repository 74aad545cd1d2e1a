//! Places of blocks: content takes the free blocks in order, from the first one on.
//!
//! Nothing is allocated one by one. The place of a file's first block determines the places of all,
//! so one number for each file is the whole layout, and any thread can compute the rest.
//!
//! # Invariants
//! Free runs begin and end at borders of clusters, but for the last one, which has no end: blocks
//! behind the end of the file system are those that are missing. A cluster that the end cuts is
//! missing, too: the end of a file that fills it would lie behind the file system.

use extant_mkfs::{FsLayout, MappedRun};
use std::ops::Range;

/// Blocks of a file, by their logical numbers, ascending and disjoint.
pub(crate) type LogicalRuns = Vec<Range<u64>>;

/// Returns the logical blocks of a file without holes.
pub(crate) fn from_start(blocks: u64) -> LogicalRuns {
    std::iter::once(0..blocks).filter(|run| !run.is_empty()).collect()
}

/// The free space of a layout without content.
#[derive(Debug)]
pub(crate) struct FreeRuns {
    runs: Vec<Range<u64>>,
    base: u64,
    ratio: u64,
    /// End of the last whole cluster.
    end: u64,
}

/// A place in the free space.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor {
    run: usize,
    /// Next block.
    pub at: u64,
}

impl FreeRuns {
    pub(crate) fn new(layout: &FsLayout) -> FreeRuns {
        let geo = layout.geometry();
        let (base, end) = (u64::from(geo.first_data_block), geo.blocks_count);
        let mut free = FreeRuns { runs: Vec::new(), base, ratio: geo.cluster_ratio().into(), end };
        free.end = free.down(end);
        let mut at = base;
        for used in layout.used(base..end) {
            let run = at..free.down(used.start);
            if !run.is_empty() {
                free.runs.push(run);
            }
            at = free.up(used.end);
        }
        free.runs.push(at..u64::MAX);
        free
    }

    fn up(&self, block: u64) -> u64 {
        self.base + (block - self.base).next_multiple_of(self.ratio)
    }

    fn down(&self, block: u64) -> u64 {
        block - (block - self.base) % self.ratio
    }

    /// Returns the first place.
    pub(crate) fn first(&self) -> Cursor {
        self.cursor(0)
    }

    /// Returns the place of a block that is free.
    pub(crate) fn cursor(&self, block: u64) -> Cursor {
        let run = self.runs.partition_point(|run| run.end <= block);
        let start = self.runs.get(run).map_or(block, |run| run.start);
        Cursor { run, at: block.max(start) }
    }

    /// Takes the next block, and with it the rest of its cluster.
    pub(crate) fn take_one(&self, cursor: &mut Cursor) -> u64 {
        self.skip_used(cursor);
        let block = cursor.at;
        cursor.at += self.ratio;
        block
    }

    fn skip_used(&self, cursor: &mut Cursor) {
        while self.runs.get(cursor.run).is_some_and(|run| cursor.at >= run.end) {
            cursor.run += 1;
            cursor.at = self.runs.get(cursor.run).map_or(cursor.at, |run| run.start);
        }
    }

    /// Takes blocks for these logical ones. Each logical run must begin at the border of a cluster.
    pub(crate) fn take(&self, cursor: &mut Cursor, runs: &[Range<u64>]) -> Vec<MappedRun> {
        let mut mapped = Vec::with_capacity(runs.len());
        for run in runs {
            let mut logical = run.start;
            while logical < run.end {
                self.skip_used(cursor);
                let left = self.runs.get(cursor.run).map_or(u64::MAX, |run| run.end) - cursor.at;
                let len = left.min(run.end - logical);
                push_joined(&mut mapped, logical, cursor.at..cursor.at + len);
                logical += len;
                cursor.at += len;
            }
            cursor.at = self.up(cursor.at);
        }
        mapped
    }

    /// Returns the free blocks from block `start` to a place behind it.
    pub(crate) fn between(&self, start: u64, end: Cursor) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.cursor(start).run;
        let runs = self.runs.iter().skip(first).take_while(move |run| run.start < end.at);
        runs.map(move |run| run.start.max(start)..run.end.min(end.at)).filter(|run| !run.is_empty())
    }

    /// Returns the end of the last whole cluster of the file system.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the number of free blocks in whole clusters from this place on.
    pub(crate) fn left(&self, cursor: Cursor) -> u64 {
        let runs = self.runs.iter().skip(cursor.run);
        let cut = runs.map(|run| run.start.max(cursor.at)..run.end.min(self.end));
        cut.map(|run| run.end.saturating_sub(run.start)).sum()
    }

    /// Returns the number of blocks behind the last whole cluster before this place.
    pub(crate) fn missing(&self, cursor: Cursor) -> u64 {
        cursor.at.saturating_sub(self.end)
    }
}

/// Adds a run, joined with the last one if both are one piece.
fn push_joined(mapped: &mut Vec<MappedRun>, logical: u64, blocks: Range<u64>) {
    if let Some((first, last)) = mapped.last_mut()
        && last.end == blocks.start
        && *first + (last.end - last.start) == logical
    {
        last.end = blocks.end;
        return;
    }
    mapped.push((logical, blocks));
}
