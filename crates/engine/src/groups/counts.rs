//! Totals of the file system and of its flexible groups, kept beside the descriptors.

use crate::error::Result;
use extant_format::Geometry;
use extant_format::error::Corrupt;
use extant_format::group_desc::GroupDesc;
use extant_format::types::GroupNr;
use extant_sync::atomic::{AtomicI64, Ordering::Relaxed};
use extant_sync::{CachePadded, GrowingTable, ShardedCounter};

/// The counts of a flexible group at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flex {
    /// Free clusters.
    pub free_clusters: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Directories.
    pub directories: u64,
}

#[derive(Debug, Default)]
struct FlexCounts {
    free_clusters: AtomicI64,
    free_inodes: AtomicI64,
    directories: AtomicI64,
}

/// Sums over all groups.
#[derive(Debug)]
pub(super) struct Totals {
    free_clusters: ShardedCounter,
    free_inodes: ShardedCounter,
    directories: ShardedCounter,
    flex: GrowingTable<CachePadded<FlexCounts>>,
}

/// Number of flexible groups of so many groups.
fn flex_groups(geo: &Geometry, groups: usize) -> usize {
    groups.div_ceil(1usize.checked_shl(geo.flex_bits).unwrap_or(usize::MAX))
}

fn delta(before: u32, after: u32) -> i64 {
    i64::from(after) - i64::from(before)
}

fn positive(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

fn add(counter: &ShardedCounter, flex: &AtomicI64, by: i64) {
    if by != 0 {
        counter.add(by);
        flex.fetch_add(by, Relaxed);
    }
}

impl Totals {
    pub fn new(geo: &Geometry, descs: &[GroupDesc]) -> Totals {
        let totals = Totals {
            free_clusters: ShardedCounter::new(0),
            free_inodes: ShardedCounter::new(0),
            directories: ShardedCounter::new(0),
            flex: (0..flex_groups(geo, descs.len())).map(|_| CachePadded::default()).collect(),
        };
        totals.count(geo, 0, descs);
        totals
    }

    /// Adds the counts of groups from `first` on, which are the last ones.
    pub fn append(&self, geo: &Geometry, first: u32, descs: &[GroupDesc]) {
        let flex = flex_groups(geo, first as usize + descs.len());
        let new = flex.saturating_sub(self.flex.len());
        self.flex.append((0..new).map(|_| CachePadded::default()));
        self.count(geo, first, descs);
    }

    fn count(&self, geo: &Geometry, first: u32, descs: &[GroupDesc]) {
        for (g, desc) in (first..).zip(descs) {
            self.moved(geo, GroupNr(g), &GroupDesc::default(), desc);
        }
    }

    /// A descriptor changed.
    pub fn moved(&self, geo: &Geometry, g: GroupNr, before: &GroupDesc, after: &GroupDesc) {
        let Some(flex) = self.flex.get(geo.flex_group_of(g) as usize) else { return };
        add(
            &self.free_clusters,
            &flex.free_clusters,
            delta(before.free_clusters, after.free_clusters),
        );
        add(&self.free_inodes, &flex.free_inodes, delta(before.free_inodes, after.free_inodes));
        add(&self.directories, &flex.directories, delta(before.used_dirs, after.used_dirs));
    }

    /// A number was taken or freed in memory; the flexible group learns of it with the descriptor.
    pub fn count_inode(&self, taken: bool) {
        self.free_inodes.add(if taken { -1 } else { 1 });
    }

    /// A descriptor learned of numbers that were counted before.
    pub fn booked_inodes(&self, geo: &Geometry, g: GroupNr, by: i64) {
        if let Some(flex) = self.flex.get(geo.flex_group_of(g) as usize) {
            flex.free_inodes.fetch_add(by, Relaxed);
        }
    }

    pub fn free_clusters(&self) -> u64 {
        positive(self.free_clusters.sum())
    }

    pub fn free_inodes(&self) -> u64 {
        positive(self.free_inodes.sum())
    }

    pub fn directories(&self) -> u64 {
        positive(self.directories.sum())
    }

    pub fn flex(&self, flex: u32) -> Flex {
        let Some(counts) = self.flex.get(flex as usize) else { return Flex::default() };
        Flex {
            free_clusters: positive(counts.free_clusters.load(Relaxed)),
            free_inodes: positive(counts.free_inodes.load(Relaxed)),
            directories: positive(counts.directories.load(Relaxed)),
        }
    }

    pub fn flex_count(&self) -> u32 {
        self.flex.len() as u32
    }
}

/// Lowers a count of a group's descriptor.
///
/// # Errors
/// `Corrupt` naming the group, if the count would go below zero.
pub fn less(count: &mut u32, by: u32, field: &'static str, g: GroupNr) -> Result<()> {
    let under =
        || Corrupt::new("group descriptor").field(field).found(*count).expected(by).at_group(g);
    *count = count.checked_sub(by).ok_or_else(under)?;
    Ok(())
}

/// Raises a count of a group's descriptor.
///
/// # Errors
/// `Corrupt` naming the group, if the count would go beyond `most`.
pub fn more(count: &mut u32, by: u32, most: u32, g: GroupNr) -> Result<()> {
    let sum = count.saturating_add(by);
    if sum > most {
        let error = Corrupt::new("group descriptor").field("free clusters").found(sum);
        return Err(error.expected(most).at_group(g).into());
    }
    *count = sum;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_underflow_names_its_group() {
        let mut count = 3;
        assert!(less(&mut count, 3, "free inodes", GroupNr(7)).is_ok());
        let error = less(&mut count, 1, "free inodes", GroupNr(7)).unwrap_err();
        assert!(error.to_string().contains("group 7"), "{error}");
        assert_eq!(count, 0);
    }
}
