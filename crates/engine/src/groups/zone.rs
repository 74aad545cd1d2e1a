//! Blocks that belong to the file system itself: bitmaps, inode tables, and the log.
//!
//! No file may own such a block: a user with a right to write that file could write inodes.

use extant_format::Geometry;
use extant_format::group_desc::GroupDesc;
use extant_sync::GrowingTable;
use std::ops::Range;

/// The file system's own blocks, except superblocks and descriptors, which the geometry determines.
#[derive(Debug, Default)]
pub struct Zone {
    /// In order and apart from each other.
    ranges: Box<[Range<u64>]>,
    /// Those of groups that were added later, behind all others and in order.
    later: GrowingTable<Range<u64>>,
    /// As `ranges`, of the log.
    pub(super) log: Box<[Range<u64>]>,
}

impl Zone {
    pub(super) fn new(geo: &Geometry, descs: &[GroupDesc]) -> Zone {
        Zone { ranges: ranges_of(geo, descs), later: GrowingTable::default(), log: Box::default() }
    }

    /// Adds groups, whose bitmaps and tables lie behind those of all others.
    pub(super) fn append(&self, geo: &Geometry, descs: &[GroupDesc]) {
        self.later.append(ranges_of(geo, descs));
    }

    /// Whether any of the blocks is the file system's own, by its bitmaps and inode tables.
    pub fn holds_metadata(&self, blocks: Range<u64>) -> bool {
        touches(&self.ranges, blocks.clone()) || self.holds_later(blocks)
    }

    fn holds_later(&self, blocks: Range<u64>) -> bool {
        let (mut first, mut end) = (0, self.later.len());
        // The first range that ends behind the first block.
        while first < end {
            let middle = first + (end - first) / 2;
            match self.later.get(middle) {
                Some(range) if range.end <= blocks.start => first = middle + 1,
                _ => end = middle,
            }
        }
        self.later.get(first).is_some_and(|range| range.start < blocks.end)
    }

    /// Whether any of the blocks is the log's.
    pub fn holds_log(&self, blocks: Range<u64>) -> bool {
        touches(&self.log, blocks)
    }
}

fn ranges_of(geo: &Geometry, descs: &[GroupDesc]) -> Box<[Range<u64>]> {
    let table = u64::from(geo.inode_table_blocks());
    let mut ranges: Vec<Range<u64>> = Vec::new();
    // Bitmaps and tables of neighbors lie one behind the other: as few ranges as possible are kept
    // at any time.
    let places: [fn(&GroupDesc) -> u64; 3] =
        [|desc| desc.block_bitmap, |desc| desc.inode_bitmap, |desc| desc.inode_table];
    for (place, len) in places.into_iter().zip([1, 1, table]) {
        for start in descs.iter().map(place) {
            add(&mut ranges, start..start.saturating_add(len));
        }
    }
    merged(ranges)
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
    fn ranges_of_later_groups_are_found() {
        let zone = Zone::default();
        assert!(!zone.holds_metadata(0..u64::MAX));
        zone.later.append([100..105, 110..120]);
        zone.later.append(std::iter::once(300..301));
        let held: Vec<u64> = (90..310).filter(|nr| zone.holds_metadata(*nr..*nr + 1)).collect();
        assert_eq!(held, (100..105).chain(110..120).chain(300..301).collect::<Vec<_>>());
        assert!(zone.holds_metadata(0..101) && zone.holds_metadata(120..301));
        assert!(!zone.holds_metadata(105..110) && !zone.holds_metadata(301..u64::MAX));
    }

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
