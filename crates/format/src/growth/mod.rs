//! Layout of larger file systems: the new superblock, and the groups that are added.
//!
//! Everything here is computed from the present superblock; nothing is read or written. For
//! example, a file system of two groups, of which the second has 5,000 of 32,768 blocks, grows to
//! four groups: [`Growth`] is its new size, [`NewGroups`] has the descriptors and bitmaps of groups
//! 2 and 3, and [`KeptBlocks`] the lists of the resize inode afterwards.
#![expect(clippy::arithmetic_side_effects, reason = "numbers of a verified geometry")]

mod groups;
mod kept;

pub use groups::NewGroups;
pub use kept::KeptBlocks;

use crate::error::Corrupt;
use crate::features::{Compat, Incompat};
use crate::geometry::Geometry;
use crate::superblock::Superblock;
use crate::types::GroupNr;
use std::fmt::{self, Display, Formatter};

/// A larger size of a file system. Counts of free blocks and inodes are those of the present size.
#[derive(Clone, Debug)]
pub struct Growth {
    /// The superblock of that size.
    pub superblock: Superblock,
    /// Its geometry.
    pub geometry: Geometry,
}

/// Places of descriptor blocks that the present ones have no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorPlaces {
    /// The groups that they describe: the file system gets `meta_bg`, and the blocks that the
    /// resize inode keeps become free.
    NewGroups,
    /// The blocks that the resize inode keeps. Without that inode they lie in the groups that they
    /// describe. No other block changes its use, so that a mounted file system can grow.
    KeptBlocks,
}

/// The reason why a file system cannot have a size.
#[derive(Debug)]
#[non_exhaustive]
pub enum GrowthError {
    /// A size beyond a limit of the format.
    Limit {
        /// The largest size, in bytes.
        bytes: u64,
        /// The limit.
        why: &'static str,
    },
    /// Further descriptor blocks have no place.
    Descriptors {
        /// Groups of the size.
        groups: u64,
        /// Blocks of descriptors that have places.
        blocks: u32,
        /// The reason.
        why: &'static str,
    },
    /// The groups are too small for their own bitmaps and tables.
    SmallGroups,
    /// The resize inode cannot list the copies of the superblock.
    Copies,
    /// The superblock contradicts itself.
    Corrupt(Corrupt),
}

impl Display for GrowthError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            GrowthError::Limit { bytes, why } => {
                write!(f, "it cannot have more than {bytes} bytes: {why}")
            }
            GrowthError::Descriptors { groups, blocks, why } => write!(
                f,
                "it would have {groups} groups, with more than {blocks} blocks of descriptors; \
                 {why}"
            ),
            GrowthError::SmallGroups => {
                f.write_str("its groups are too small for their bitmaps and inode tables")
            }
            GrowthError::Copies => {
                f.write_str("its resize inode cannot list so many copies of the superblock")
            }
            GrowthError::Corrupt(corrupt) => corrupt.fmt(f),
        }
    }
}

impl std::error::Error for GrowthError {}

impl From<Corrupt> for GrowthError {
    fn from(corrupt: Corrupt) -> Self {
        GrowthError::Corrupt(corrupt)
    }
}

impl Growth {
    /// Finds the largest size of at most `blocks` blocks, and at least the present one: whole
    /// clusters, without a last group that would be too short for its own tables.
    ///
    /// # Errors
    /// A size beyond the limits of the format, or one whose descriptors have no place.
    pub fn new(
        superblock: &Superblock,
        geometry: &Geometry,
        blocks: u64,
        places: DescriptorPlaces,
    ) -> Result<Growth, GrowthError> {
        // The present end may lie within a cluster.
        let cut = blocks >> geometry.cluster_bits << geometry.cluster_bits;
        let mut blocks = cut.max(geometry.blocks_count);
        loop {
            check_limits(geometry, blocks)?;
            let growth = Growth::of(superblock, geometry, blocks, places)?;
            let last = GroupNr(growth.geometry.groups_count - 1);
            let is_new = last.0 >= geometry.groups_count;
            let short = u64::from(growth.geometry.blocks_in_group(last));
            if !is_new || short >= least_blocks(&growth.geometry) {
                return Ok(growth);
            }
            blocks = growth.geometry.first_block_of_group(last).0.max(geometry.blocks_count);
        }
    }

    fn of(
        superblock: &Superblock,
        geometry: &Geometry,
        blocks: u64,
        places: DescriptorPlaces,
    ) -> Result<Growth, GrowthError> {
        let mut superblock = superblock.clone();
        let groups = group_count(geometry, blocks);
        set_size(&mut superblock, geometry, blocks);
        place_descriptors(&mut superblock, geometry, groups, places)?;
        let geometry = Geometry::new(&superblock)?;
        Ok(Growth { superblock, geometry })
    }

    /// Changes the fields of another superblock that the size determines. Counts of free blocks and
    /// inodes, states and times stay.
    pub fn apply_to(&self, superblock: &mut Superblock) {
        let mut features = superblock.features();
        features.compat.set(Compat::RESIZE_INODE, self.geometry.compat(Compat::RESIZE_INODE));
        features.incompat.set(Incompat::META_BG, self.geometry.has_meta_bg());
        superblock.set_features(features);
        superblock.set_blocks_count(self.superblock.blocks_count());
        superblock.set_inodes_count(self.superblock.inodes_count());
        superblock.set_r_blocks_count(self.superblock.r_blocks_count());
        superblock.set_first_meta_bg(self.superblock.first_meta_bg());
        superblock.set_reserved_gdt_blocks(self.superblock.reserved_gdt_blocks());
        superblock.set_overhead_clusters(self.superblock.overhead_clusters());
    }

    /// Adds the structures of the new groups to the overhead, where the superblock has it.
    /// `clusters` of it become free.
    pub fn count_overhead(&mut self, groups: &NewGroups, clusters: u64) {
        let overhead = u64::from(self.superblock.overhead_clusters());
        if overhead > 0 {
            let overhead = overhead + groups.clusters() - groups.free_clusters();
            let overhead = overhead.saturating_sub(clusters);
            self.superblock.set_overhead_clusters(u32::try_from(overhead).unwrap_or(0));
        }
    }
}

/// Sets the numbers of blocks and inodes, and the reserved blocks to the same share of all.
pub fn set_size(superblock: &mut Superblock, present: &Geometry, blocks: u64) {
    let groups = group_count(present, blocks);
    superblock.set_blocks_count(blocks);
    superblock.set_inodes_count((groups * u64::from(present.inodes_per_group)) as u32);
    let share = u128::from(superblock.r_blocks_count()) * u128::from(blocks);
    let share = share / u128::from(present.blocks_count);
    superblock.set_r_blocks_count(share.min(u128::from(blocks)) as u64);
}

/// Returns the number of groups of so many blocks.
pub fn group_count(geometry: &Geometry, blocks: u64) -> u64 {
    let data = blocks - u64::from(geometry.first_data_block);
    data.div_ceil(geometry.blocks_per_group.into())
}

/// Blocks that are free in a short last group of a new file system, at least.
const MIN_FREE: u64 = 50;

/// Returns the least number of blocks of the last group: those of its own metadata and some free
/// ones, wherever its tables lie.
pub fn least_blocks(geometry: &Geometry) -> u64 {
    let base = geometry.base_meta(GroupNr(geometry.groups_count - 1));
    let meta = u64::from(base.superblock.is_some())
        + (base.descriptors.end - base.descriptors.start)
        + (base.reserved.end - base.reserved.start);
    meta + 2 + u64::from(geometry.inode_table_blocks()) + MIN_FREE
}

fn check_limits(geometry: &Geometry, blocks: u64) -> Result<(), GrowthError> {
    let refuse = |most: u64, why: &'static str| {
        let bytes = most.saturating_mul(geometry.block_size.into());
        Err(GrowthError::Limit { bytes, why })
    };
    if !geometry.incompat(Incompat::BIT64) && blocks > u64::from(u32::MAX) {
        return refuse(u32::MAX.into(), "more than 2^32 blocks need the feature 64bit");
    }
    let groups = u64::from(u32::MAX / geometry.inodes_per_group);
    let most = u64::from(geometry.first_data_block) + groups * u64::from(geometry.blocks_per_group);
    if blocks > most {
        return refuse(most, "it would have more than 2^32 inodes");
    }
    Ok(())
}

/// Finds places for the descriptors of so many groups.
fn place_descriptors(
    superblock: &mut Superblock,
    old: &Geometry,
    groups: u64,
    places: DescriptorPlaces,
) -> Result<(), GrowthError> {
    let needed = groups.div_ceil(old.descs_per_block().into());
    let has_inode = old.compat(Compat::RESIZE_INODE);
    // Pointers of the resize inode have 32 bits.
    let wide = has_inode && superblock.blocks_count() > u64::from(u32::MAX);
    if old.has_meta_bg() || needed == u64::from(old.desc_blocks) && !wide {
        return Ok(());
    }
    let refuse = |blocks, why| Err(GrowthError::Descriptors { groups, blocks, why });
    let kept = old.reserved_gdt_blocks;
    if places == DescriptorPlaces::KeptBlocks && (has_inode || kept > 0) {
        let more = needed - u64::from(old.desc_blocks);
        let left = u64::from(kept).checked_sub(more).filter(|_| has_inode && !wide);
        let Some(left) = left else {
            return refuse(
                old.desc_blocks + u32::from(kept),
                "no more are kept for them while it is mounted",
            );
        };
        superblock.set_reserved_gdt_blocks(left as u16);
        return Ok(());
    }
    if old.has_bigalloc() && (has_inode || kept > 0) {
        return refuse(old.desc_blocks, "this is not supported with bigalloc and resize_inode");
    }
    let mut features = superblock.features();
    features.compat.remove(Compat::RESIZE_INODE);
    features.incompat.insert(Incompat::META_BG);
    superblock.upgrade_revision();
    superblock.set_features(features);
    superblock.set_first_meta_bg(old.desc_blocks);
    superblock.set_reserved_gdt_blocks(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bitmap;
    use crate::features::{Features, RoCompat};

    /// Groups of 1 MiB in blocks of 1 KiB, 16 descriptors in a block.
    fn superblock(groups: u32, compat: Compat, kept: u16) -> Superblock {
        let mut sb = Superblock::empty();
        sb.set_features(Features {
            compat,
            incompat: Incompat::EXTENTS | Incompat::BIT64 | Incompat::FLEX_BG,
            ro_compat: RoCompat::SPARSE_SUPER | RoCompat::METADATA_CSUM,
        });
        sb.set_checksum_type(1);
        sb.set_desc_size(64);
        sb.set_log_groups_per_flex(2);
        sb.set_first_data_block(1);
        sb.set_blocks_count(1 + u64::from(groups) * 1024);
        sb.set_blocks_per_group(1024);
        sb.set_clusters_per_group(1024);
        sb.set_inodes_per_group(64);
        sb.set_inodes_count(groups * 64);
        sb.set_inode_size(256);
        sb.set_first_ino(11);
        sb.set_reserved_gdt_blocks(kept);
        sb.set_r_blocks_count(500);
        sb
    }

    fn grown(
        sb: &Superblock,
        groups: u64,
        places: DescriptorPlaces,
    ) -> Result<Growth, GrowthError> {
        let geometry = Geometry::new(sb).unwrap();
        Growth::new(sb, &geometry, 1 + groups * 1024, places)
    }

    #[test]
    fn kept_blocks_are_used_one_after_the_other() {
        let sb = superblock(10, Compat::RESIZE_INODE, 2);
        for (groups, left) in [(16, 2), (17, 1), (40, 0)] {
            let growth = grown(&sb, groups, DescriptorPlaces::KeptBlocks).unwrap();
            assert_eq!(growth.superblock.reserved_gdt_blocks(), left, "{groups} groups");
            assert_eq!(growth.superblock.r_blocks_count(), 500 * (1 + groups * 1024) / 10_241);
            let kept = KeptBlocks::of(&growth.geometry);
            assert_eq!(kept.places().count(), usize::from(left));
        }
        let error = grown(&sb, 49, DescriptorPlaces::KeptBlocks).unwrap_err();
        assert!(matches!(error, GrowthError::Descriptors { groups: 49, blocks: 3, .. }), "{error}");
        for (sb, places) in [
            (sb, DescriptorPlaces::NewGroups),
            (superblock(10, Compat::empty(), 0), DescriptorPlaces::KeptBlocks),
        ] {
            let growth = grown(&sb, 49, places).unwrap();
            assert!(growth.geometry.has_meta_bg() && growth.geometry.first_meta_bg == 1);
            let mut other = sb.clone();
            growth.apply_to(&mut other);
            assert_eq!(other.encode(), growth.superblock.encode());
        }
    }

    #[test]
    fn a_last_group_without_space_for_its_tables_is_left_out() {
        let sb = superblock(10, Compat::empty(), 0);
        let geometry = Geometry::new(&sb).unwrap();
        let short = Growth::new(&sb, &geometry, 10_241 + 60, DescriptorPlaces::KeptBlocks).unwrap();
        assert_eq!(short.geometry.blocks_count, 10_241);
        assert!(grown(&sb, 1 << 40, DescriptorPlaces::KeptBlocks).is_err());
    }

    #[test]
    fn bitmaps_have_all_structures_of_new_groups() {
        let sb = superblock(10, Compat::RESIZE_INODE, 2);
        let growth = grown(&sb, 30, DescriptorPlaces::KeptBlocks).unwrap();
        let groups = NewGroups::new(growth.geometry, 10).unwrap();
        assert_eq!(groups.numbers(), 10..30);
        let table = u64::from(growth.geometry.inode_table_blocks());
        let base: u64 =
            (10..30).map(|g| u64::from(growth.geometry.base_meta_blocks(GroupNr(g)))).sum();
        assert_eq!(groups.clusters() - groups.free_clusters(), 20 * (2 + table) + base);
        for g in groups.numbers() {
            let desc = groups.descriptor(g).unwrap();
            for (_, bits) in groups.bitmaps(g) {
                assert_eq!(bitmap::count_zeros(&bits, 0..1024) as u32, desc.free_clusters, "{g}");
            }
        }
    }
}
