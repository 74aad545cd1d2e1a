//! Which group a new inode goes to.
//!
//! Directories below the root (or below one marked as a top directory) are spread over the flexible
//! groups that have more than the average of free inodes and blocks; the others stay near their
//! parent until its groups have had their share of directories. Files go to their parent's group,
//! or near it.

use crate::groups::{Flex, Groups};
use extant_format::Geometry;
use extant_format::types::GroupNr;
use extant_space::Index;

/// Flexible groups that are looked at for a directory to be spread, and groups for one to stay
/// near.
const SPREAD_TRIES: u32 = 64;
const NEAR_TRIES: u32 = 128;

/// The inputs of the choice.
pub(super) struct View<'a> {
    pub geo: &'a Geometry,
    pub groups: &'a Groups,
    /// Free inodes of each group.
    pub free: &'a Index,
}

/// The average over all flexible groups.
fn average(groups: &Groups) -> Flex {
    let count = u64::from(groups.flex_count()).max(1);
    Flex {
        free_clusters: groups.free_clusters() / count,
        free_inodes: groups.free_inodes() / count,
        directories: groups.directories() / count,
    }
}

impl View<'_> {
    /// A group for a directory that has nothing to do with its neighbours: of the flexible groups
    /// looked at from a random one on, that with the fewest directories among those with enough
    /// space.
    pub fn spread(&self, random: u32) -> Option<GroupNr> {
        let count = self.groups.flex_count();
        let average = average(self.groups);
        let start = random.checked_rem(count)?;
        let enough = |flex: &Flex| {
            flex.free_inodes > 0
                && flex.free_inodes >= average.free_inodes
                && flex.free_clusters >= average.free_clusters
        };
        let flexes = (0..count.min(SPREAD_TRIES))
            .map(|step| (u64::from(start) + u64::from(step)) % u64::from(count));
        let fit = flexes
            .map(|flex| (flex as u32, self.groups.flex(flex as u32)))
            .filter(|(_, counts)| enough(counts));
        let (flex, _) = fit.min_by_key(|(_, counts)| counts.directories)?;
        self.within(flex, random)
    }

    /// The group of a flexible group with the fewest directories.
    fn within(&self, flex: u32, random: u32) -> Option<GroupNr> {
        let range = flex_range(self.geo, GroupNr(flex << self.geo.flex_bits));
        let len = range.end - range.start;
        let turn = random.checked_rem(len)?;
        let groups = (0..len.min(SPREAD_TRIES)).map(|step| range.start + (turn + step) % len);
        let fit = groups.filter(|g| self.free.get(*g) > 0);
        fit.min_by_key(|g| self.groups.with(GroupNr(*g), |desc| desc.used_dirs)).map(GroupNr)
    }

    /// A group for a directory that belongs to its parent: the first from the parent's on that has
    /// not had its share.
    pub fn near(&self, home: GroupNr) -> Option<GroupNr> {
        let count = self.groups.count();
        let share = self.share();
        let near = (0..count.min(NEAR_TRIES))
            .map(|step| (u64::from(home.0) + u64::from(step)) % u64::from(count));
        near.map(|g| GroupNr(g as u32)).find(|g| self.has_room(*g, &share))
    }

    fn share(&self) -> Share {
        let count = u64::from(self.groups.count()).max(1);
        let inodes = u64::from(self.geo.inodes_per_group);
        let clusters = u64::from(self.geo.clusters_per_group);
        Share {
            directories: self.groups.directories() / count + inodes / 16,
            free_inodes: (self.groups.free_inodes() / count).saturating_sub(inodes / 4).max(1),
            free_clusters: (self.groups.free_clusters() / count).saturating_sub(clusters / 4),
        }
    }

    fn has_room(&self, g: GroupNr, share: &Share) -> bool {
        u64::from(self.free.get(g.0)) >= share.free_inodes
            && self.groups.with(g, |desc| {
                u64::from(desc.used_dirs) < share.directories.max(1)
                    && u64::from(desc.free_clusters) >= share.free_clusters
            })
    }
}

/// The most directories and the fewest free things of a group that still takes a directory.
struct Share {
    directories: u64,
    free_inodes: u64,
    free_clusters: u64,
}

/// The groups of a group's flexible group.
fn flex_range(geo: &Geometry, g: GroupNr) -> std::ops::Range<u32> {
    let first = geo.flex_group_of(g) << geo.flex_bits;
    first
        ..first
            .saturating_add(1u32.checked_shl(geo.flex_bits).unwrap_or(u32::MAX))
            .min(geo.groups_count)
}

/// Groups to try for a file when `home` has no inode left: those behind and before it in its
/// flexible group, then some at growing distances.
pub(super) fn probes(geo: &Geometry, home: GroupNr, count: u32) -> impl Iterator<Item = GroupNr> {
    let flex = flex_range(geo, home);
    let near = (home.0.saturating_add(1)..flex.end).chain(flex.start..home.0);
    let jumps = (0..u32::BITS)
        .map_while(move |bit| 1u64.checked_shl(bit).filter(|jump| *jump < u64::from(count)));
    let far = jumps.scan(u64::from(home.0), move |at, jump| {
        *at = (*at + jump) % u64::from(count).max(1);
        Some(*at as u32)
    });
    near.chain(far).map(GroupNr)
}
