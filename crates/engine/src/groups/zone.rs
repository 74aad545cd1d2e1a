//! Blocks that belong to the file system itself: bitmaps, inode tables, and the log.
//!
//! No file may own such a block: a user with a right to write that file could write inodes.

use extant_format::Geometry;
use extant_format::group_desc::GroupDesc;
use std::ops::Range;

/// The file system's own blocks, except superblocks and descriptors, which the geometry determines.
#[derive(Debug, Default)]
pub struct Zone {
    /// In order and apart from each other.
    ranges: Box<[Range<u64>]>,
    /// As `ranges`, of the log.
    pub(super) log: Box<[Range<u64>]>,
}

impl Zone {
    pub(super) fn new(geo: &Geometry, descs: &[GroupDesc]) -> Zone {
        let table = u64::from(geo.inode_table_blocks());
        let mut ranges: Vec<Range<u64>> = Vec::new();
        // Bitmaps and tables of neighbors lie one behind the other: as few ranges as possible are
        // kept at any time.
        let places: [fn(&GroupDesc) -> u64; 3] =
            [|desc| desc.block_bitmap, |desc| desc.inode_bitmap, |desc| desc.inode_table];
        for (place, len) in places.into_iter().zip([1, 1, table]) {
            for start in descs.iter().map(place) {
                add(&mut ranges, start..start.saturating_add(len));
            }
        }
        Zone { ranges: merged(ranges), log: Box::default() }
    }

    /// Whether any of the blocks is the file system's own, by its bitmaps and inode tables.
    pub fn holds_metadata(&self, blocks: Range<u64>) -> bool {
        touches(&self.ranges, blocks)
    }

    /// Whether any of the blocks is the log's.
    pub fn holds_log(&self, blocks: Range<u64>) -> bool {
        touches(&self.log, blocks)
    }
}

fn add(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

fn merged(mut ranges: Vec<Range<u64>>) -> Box<[Range<u64>]> {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, kept| {
        let joins = next.start <= kept.end;
        if joins {
            kept.end = kept.end.max(next.end);
        }
        joins
    });
    ranges.into_boxed_slice()
}

fn touches(ranges: &[Range<u64>], blocks: Range<u64>) -> bool {
    let behind = ranges.partition_point(|range| range.end <= blocks.start);
    ranges.get(behind).is_some_and(|range| range.start < blocks.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_meet_are_one() {
        let ranges = merged(vec![30..40, 5..7, 7..9, 6..8, 40..41]);
        assert_eq!(*ranges, [5..9, 30..41]);
        let touched: Vec<u64> =
            (0..50).filter(|block| touches(&ranges, *block..*block + 1)).collect();
        assert_eq!(touched, (5..9).chain(30..41).collect::<Vec<_>>());
        assert!(
            touches(&ranges, 0..6)
                && touches(&ranges, 8..100)
                && !touches(&ranges, 9..30)
                && !touches(&ranges, 41..99)
        );
    }
}
