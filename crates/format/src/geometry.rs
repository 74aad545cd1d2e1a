//! Facts about a file system that follow from its superblock, and change only with its size.
//!
//! # Invariants
//! A [`Geometry`] exists only if the numbers agree with each other: no divisor is zero, block and
//! inode numbers fit their types, the group count follows from the block count, and the descriptors
//! fit group 0.

use crate::checksum::inode_seed;
use crate::error::{Corrupt, Result};
use crate::features::{Compat, Features, Incompat, RoCompat};
use crate::superblock::{CHECKSUM_TYPE_CRC32C, SuperFlags, Superblock};
use crate::types::{GroupNr, InodeNr};

mod layout;
#[cfg(test)]
mod tests;

pub use layout::{BaseMeta, SuperGroups, has_super};

/// Flag of an encoding: names must be valid text in the encoding.
const STRICT_NAMES: u16 = 1;

/// The facts of a file system of one size; cheap to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a block: 1024 to 65536.
    pub block_size: u32,
    /// Block size as a power of two.
    pub block_bits: u32,
    /// Blocks of a cluster as a power of two; 0 without `bigalloc`.
    pub cluster_bits: u32,
    /// Blocks of the file system.
    pub blocks_count: u64,
    /// The block that group 0 starts with.
    pub first_data_block: u32,
    /// Blocks of a full group.
    pub blocks_per_group: u32,
    /// Clusters of a full group.
    pub clusters_per_group: u32,
    /// Inodes of a group.
    pub inodes_per_group: u32,
    /// Inodes of the file system.
    pub inodes_count: u32,
    /// Bytes of an inode slot, a power of two.
    pub inode_size: u16,
    /// The first inode number that is not reserved.
    pub first_ino: u32,
    /// Number of groups.
    pub groups_count: u32,
    /// Bytes of a group descriptor.
    pub desc_size: u16,
    /// Number of descriptor blocks.
    pub desc_blocks: u32,
    /// Descriptor blocks reserved for growing.
    pub reserved_gdt_blocks: u16,
    /// The first meta group with descriptors of the `meta_bg` kind.
    pub first_meta_bg: u32,
    /// Groups of a flexible group, as a power of two; 0 without `flex_bg`.
    pub flex_bits: u32,
    /// The groups of superblock copies with `sparse_super2`.
    pub backup_bgs: [u32; 2],
    /// The extra inode size that new inodes get.
    pub want_extra_isize: u16,
    /// The features.
    pub features: Features,
    /// UUID of the volume.
    pub uuid: [u8; 16],
    /// The seed of the file system's checksums.
    pub csum_seed: u32,
    /// Seed of the hashes of names.
    pub hash_seed: [u32; 4],
    /// The superblock's hash version, for directories that get an index.
    pub hash_version: u8,
    /// Hashes treat the bytes of names as unsigned. Without a flag in the superblock the bytes are
    /// signed.
    pub hash_unsigned: bool,
    /// Encoding of names, for `casefold`.
    pub encoding: u16,
    /// Case-folded directories refuse names that are not valid text in that encoding.
    pub strict_names: bool,
    /// All metadata has CRC-32C checksums.
    pub metadata_csum: bool,
    /// Group descriptors have CRC-16 checksums (never together with `metadata_csum`).
    pub gdt_csum: bool,
}

const STRUCTURE: &str = "superblock";

/// Block numbers have 48 bits in extents and inodes.
const MAX_BLOCKS: u64 = 1 << 48;

fn bad(field: &'static str, found: impl Into<u64>) -> Corrupt {
    Corrupt::new(STRUCTURE).field(field).found(found)
}

fn check(ok: bool, field: &'static str, found: impl Into<u64>) -> Result<()> {
    if ok { Ok(()) } else { Err(bad(field, found)) }
}

impl Geometry {
    /// Derives and validates the facts.
    ///
    /// # Errors
    /// [`Corrupt`] with the invalid field.
    pub fn new(sb: &Superblock) -> Result<Geometry> {
        let features = sb.features();
        check_features(sb, features)?;
        let block_bits = checked_log_block_size(sb)?.saturating_add(10);
        let cluster_bits = cluster_bits(sb, features)?;
        let metadata_csum = features.ro_compat.contains(RoCompat::METADATA_CSUM);
        let mut geometry = Geometry {
            block_size: 1 << block_bits,
            block_bits,
            cluster_bits,
            blocks_count: sb.blocks_count(),
            first_data_block: sb.first_data_block(),
            blocks_per_group: sb.blocks_per_group(),
            clusters_per_group: sb.blocks_per_group() >> cluster_bits,
            inodes_per_group: sb.inodes_per_group(),
            inodes_count: sb.inodes_count(),
            inode_size: sb.inode_size(),
            first_ino: sb.first_ino(),
            groups_count: 0,
            desc_size: desc_size(sb, features)?,
            desc_blocks: 0,
            reserved_gdt_blocks: sb.reserved_gdt_blocks(),
            first_meta_bg: sb.first_meta_bg(),
            flex_bits: flex_bits(sb, features),
            backup_bgs: sb.backup_bgs(),
            want_extra_isize: sb.want_extra_isize(),
            features,
            uuid: sb.uuid(),
            csum_seed: sb.fs_seed(),
            hash_seed: sb.hash_seed(),
            hash_version: sb.def_hash_version(),
            encoding: sb.encoding(),
            strict_names: sb.encoding_flags() & STRICT_NAMES != 0,
            hash_unsigned: sb.flags().contains(SuperFlags::UNSIGNED_HASH),
            metadata_csum,
            gdt_csum: !metadata_csum && features.ro_compat.contains(RoCompat::GDT_CSUM),
        };
        geometry.check_groups(sb)?;
        geometry.check_inodes()?;
        geometry.count_groups()?;
        geometry.check_descriptors()?;
        Ok(geometry)
    }

    fn check_groups(&self, sb: &Superblock) -> Result<()> {
        let bits = u64::from(self.block_size) * 8;
        let per_group = self.blocks_per_group;
        let clusters = u64::from(self.clusters_per_group);
        check(clusters > 0 && clusters <= bits, "blocks per group", per_group)?;
        check(per_group.is_multiple_of(1 << self.cluster_bits), "blocks per group", per_group)?;
        if self.has_bigalloc() {
            check(
                sb.clusters_per_group() == self.clusters_per_group,
                "clusters per group",
                sb.clusters_per_group(),
            )?;
        }
        let first = u32::from(self.block_size == 1024 && !self.has_bigalloc());
        if self.first_data_block != first {
            return Err(bad("first data block", self.first_data_block).expected(first));
        }
        let count = self.blocks_count;
        check(count > u64::from(first) && count <= MAX_BLOCKS, "blocks count", count)
    }

    fn check_inodes(&self) -> Result<()> {
        let size = u32::from(self.inode_size);
        let size_ok = size >= 128 && size <= self.block_size && size.is_power_of_two();
        check(size_ok, "inode size", self.inode_size)?;
        let per_group = self.inodes_per_group;
        let bits = self.block_size.saturating_mul(8);
        check(
            per_group >= self.inodes_per_block() && per_group <= bits,
            "inodes per group",
            per_group,
        )?;
        check(self.first_ino >= InodeNr::FIRST_ORDINARY.0, "first inode", self.first_ino)
    }

    fn count_groups(&mut self) -> Result<()> {
        let data = self.blocks_count.saturating_sub(self.first_data_block.into());
        let groups = data.div_ceil(u64::from(self.blocks_per_group));
        let per_block = u64::from(self.descs_per_block());
        let fits = groups <= u64::from(u32::MAX).saturating_sub(per_block);
        check(fits, "blocks count", self.blocks_count)?;
        let inodes = groups.saturating_mul(self.inodes_per_group.into());
        if inodes != u64::from(self.inodes_count) {
            return Err(bad("inodes count", self.inodes_count).expected(inodes));
        }
        self.groups_count = groups as u32;
        self.desc_blocks = groups.div_ceil(per_block) as u32;
        Ok(())
    }

    fn check_descriptors(&self) -> Result<()> {
        check(
            u32::from(self.reserved_gdt_blocks) <= self.block_size / 4,
            "reserved descriptor blocks",
            self.reserved_gdt_blocks,
        )?;
        if self.has_meta_bg() {
            check(self.first_meta_bg <= self.desc_blocks, "first meta group", self.first_meta_bg)?;
        }
        let base = self.base_meta(GroupNr(0)).blocks(self.first_data_block.into());
        let room = u64::from(self.blocks_in_group(GroupNr(0)));
        if base > room {
            return Err(bad("descriptor blocks", base).expected(room));
        }
        Ok(())
    }

    /// Returns the number of blocks of a cluster.
    pub const fn cluster_ratio(&self) -> u32 {
        1 << self.cluster_bits
    }

    /// Returns the number of groups of a flexible group; 1 without `flex_bg`.
    pub const fn flex_size(&self) -> u32 {
        1 << self.flex_bits
    }

    /// Returns whether blocks are allocated in clusters.
    pub const fn has_bigalloc(&self) -> bool {
        self.features.ro_compat.contains(RoCompat::BIGALLOC)
    }

    /// Returns whether descriptor blocks may lie in their meta group.
    pub const fn has_meta_bg(&self) -> bool {
        self.features.incompat.contains(Incompat::META_BG)
    }

    /// Returns whether the compatible feature is set.
    pub const fn compat(&self, feature: Compat) -> bool {
        self.features.compat.contains(feature)
    }

    /// Returns whether the incompatible feature is set.
    pub const fn incompat(&self, feature: Incompat) -> bool {
        self.features.incompat.contains(feature)
    }

    /// Returns whether the read-only compatible feature is set.
    pub const fn ro_compat(&self, feature: RoCompat) -> bool {
        self.features.ro_compat.contains(feature)
    }

    /// Returns whether group descriptors have checksums, so that the flags of lazy initialisation
    /// hold.
    pub const fn has_group_checksums(&self) -> bool {
        self.metadata_csum || self.gdt_csum
    }

    /// Returns whether directory entries carry file types.
    pub const fn has_filetype(&self) -> bool {
        self.features.incompat.contains(Incompat::FILETYPE)
    }

    /// Returns whether directories may have more links than are counted.
    pub const fn has_dir_nlink(&self) -> bool {
        self.features.ro_compat.contains(RoCompat::DIR_NLINK)
    }

    /// Returns the seed of an inode's checksums.
    pub fn inode_seed(&self, ino: InodeNr, generation: u32) -> u32 {
        inode_seed(self.csum_seed, ino, generation)
    }

    /// Returns the number of 512-byte sectors of a block, the unit of an inode's block count.
    pub const fn sectors_per_block(&self) -> u32 {
        self.block_size >> 9
    }
}

/// Here since ranges are checked by the geometry, which is above the superblock.
impl Superblock {
    /// Reads and verifies a superblock: magic, checksum, ranges (those of [`Geometry`], except on a
    /// journal device).
    ///
    /// # Errors
    /// [`Corrupt`] with the invalid field.
    pub fn parse(bytes: &[u8]) -> Result<Superblock> {
        let sb = Superblock::parse_unverified(bytes)?;
        sb.verify_checksum()?;
        if !sb.incompat().contains(Incompat::JOURNAL_DEV) {
            Geometry::new(&sb)?;
        }
        Ok(sb)
    }
}

fn check_features(sb: &Superblock, features: Features) -> Result<()> {
    let bigalloc = features.ro_compat.contains(RoCompat::BIGALLOC);
    let extents = features.incompat.contains(Incompat::EXTENTS);
    check(!bigalloc || extents, "bigalloc without extents", features.incompat.bits())?;
    let meta_bg = features.incompat.contains(Incompat::META_BG);
    let resize = features.compat.contains(Compat::RESIZE_INODE);
    check(!(meta_bg && resize), "meta_bg with resize_inode", features.compat.bits())?;
    if features.ro_compat.contains(RoCompat::METADATA_CSUM)
        && sb.checksum_type() != CHECKSUM_TYPE_CRC32C
    {
        return Err(bad("checksum type", sb.checksum_type()).expected(CHECKSUM_TYPE_CRC32C));
    }
    Ok(())
}

fn checked_log_block_size(sb: &Superblock) -> Result<u32> {
    let log = sb.log_block_size();
    check(log <= 6, "block size", log)?;
    Ok(log)
}

fn cluster_bits(sb: &Superblock, features: Features) -> Result<u32> {
    let (block, cluster) = (sb.log_block_size(), sb.log_cluster_size());
    let bits =
        cluster.checked_sub(block).ok_or_else(|| bad("cluster size", cluster).expected(block))?;
    let allowed = if features.ro_compat.contains(RoCompat::BIGALLOC) { 20 } else { 0 };
    check(bits <= allowed, "cluster size", cluster)?;
    Ok(bits)
}

fn desc_size(sb: &Superblock, features: Features) -> Result<u16> {
    if !features.incompat.contains(Incompat::BIT64) {
        return Ok(32);
    }
    let size = sb.desc_size();
    check((64..=1024).contains(&size) && size.is_power_of_two(), "descriptor size", size)?;
    Ok(size)
}

/// Returns the logarithm of the flex group's size. A size beyond 32 bits is treated as no flex
/// groups.
fn flex_bits(sb: &Superblock, features: Features) -> u32 {
    match u32::from(sb.log_groups_per_flex()) {
        bits @ 1..=31 if features.incompat.contains(Incompat::FLEX_BG) => bits,
        _ => 0,
    }
}
