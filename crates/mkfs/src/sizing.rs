//! The numbers of a file system: block size, groups, inodes, reserved descriptor blocks, journal.

use super::error::{Error, Result};
use super::options::{Length, Options};
use extant_format::geometry::has_super;
use extant_format::jbd2::{MAX_JOURNAL_BLOCKS, MIN_JOURNAL_BLOCKS, default_journal_blocks};
use extant_format::{Compat, Feature, Features, Incompat, RoCompat, orphan};

/// The sizes from which the superblock is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sizes {
    pub features: Features,
    pub block_size: u32,
    /// Blocks of a cluster; 1 without `bigalloc`.
    pub cluster_ratio: u32,
    pub blocks: u64,
    pub first_data_block: u32,
    pub clusters_per_group: u32,
    pub inode_size: u16,
    pub inodes_per_group: u32,
    pub groups: u32,
    pub reserved_gdt_blocks: u16,
    pub reserved_blocks: u64,
    /// Groups of a flexible group as a power of two.
    pub flex_bits: u8,
    /// Blocks of the journal without the fast-commit area; 0 for none.
    pub journal_blocks: u32,
    pub fast_commit_blocks: u32,
    /// Blocks of the orphan file; 0 for none.
    pub orphan_blocks: u32,
}

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// Maximum number of clusters, and of inodes, of a group: descriptors count free ones in 16 bits.
const MAX_PER_GROUP: u32 = 65528;

/// Minimum number of blocks of a group.
const FEWEST_IN_GROUP: u32 = 256;

/// Minimum number of blocks of a last group after its own metadata; a smaller one is left out.
const MIN_LAST_GROUP: u64 = 50;

/// Returns the default bytes per inode and block size for a device of this size.
fn by_size(bytes: u64) -> (u64, u32) {
    match bytes {
        _ if bytes < 3 * MIB => (8192, 1024),
        _ if bytes < 512 * MIB => (4096, 1024),
        _ if bytes < 4 * TIB => (16384, 4096),
        _ if bytes < 16 * TIB => (32768, 4096),
        _ => (65536, 4096),
    }
}

/// Returns the block size of a file system of `bytes` bytes where options have none.
pub fn default_block_size(bytes: u64) -> u32 {
    by_size(bytes).1
}

impl Sizes {
    /// Computes the sizes for a device of `device_len` bytes. A last group is kept if it is large
    /// enough for mke2fs, or with `packed`, if it is large enough for its metadata.
    pub(super) fn new(
        options: &Options,
        features: Features,
        device_len: u64,
        packed: bool,
    ) -> Result<Sizes> {
        let bytes = options.size.unwrap_or(device_len);
        if bytes > device_len {
            return Error::too_small(format_args!("{bytes} bytes asked for, {device_len} there"));
        }
        let block_size = block_size_for(options, bytes)?;
        let cluster_ratio = cluster_ratio(options, features, block_size)?;
        let mut sizes = Sizes {
            features,
            block_size,
            cluster_ratio,
            blocks: bytes / u64::from(block_size),
            first_data_block: u32::from(
                block_size == 1024 && cluster_ratio == 1 && !bigalloc(features),
            ),
            clusters_per_group: group_clusters(options, features, block_size)?,
            inode_size: inode_size(options, features, block_size)?,
            inodes_per_group: 0,
            groups: 0,
            reserved_gdt_blocks: 0,
            reserved_blocks: 0,
            flex_bits: flex_bits(options, features)?,
            journal_blocks: 0,
            fast_commit_blocks: 0,
            orphan_blocks: 0,
        };
        sizes.check_blocks(options)?;
        sizes.divide(options, bytes, packed)?;
        sizes.reserved_blocks = reserved(options, sizes.blocks)?;
        sizes.journal(options)?;
        sizes.orphan_file(options)?;
        Ok(sizes)
    }

    /// Returns the number of blocks of a full group.
    pub(super) fn blocks_per_group(&self) -> u64 {
        u64::from(self.clusters_per_group) * u64::from(self.cluster_ratio)
    }

    fn inodes_per_block(&self) -> u32 {
        self.block_size / u32::from(self.inode_size)
    }

    /// Returns the number of bytes of a group descriptor.
    pub(super) fn desc_size(&self) -> u16 {
        if self.features.incompat.contains(Incompat::BIT64) { 64 } else { 32 }
    }

    fn descs_per_block(&self) -> u64 {
        u64::from(self.block_size) / u64::from(self.desc_size())
    }

    fn check_blocks(&mut self, options: &Options) -> Result<()> {
        if self.blocks <= u64::from(self.first_data_block) {
            return Error::too_small(format_args!("{} blocks", self.blocks));
        }
        if u32::try_from(self.blocks_per_group()).is_err() {
            return Error::invalid("clusters of this size make groups of more than 2^32 blocks");
        }
        if self.blocks >= 1 << 48 {
            return Error::invalid("more than 2^48 blocks");
        }
        let sparse = self.features.ro_compat.contains(RoCompat::SPARSE_SUPER);
        if !sparse && !self.features.compat.contains(Compat::SPARSE_SUPER2) {
            self.without_resize_inode(options, "superblock copies in all groups")?;
        }
        // With these options, descriptors follow the first superblock at another distance from the
        // group's start than the copies, and the resize inode would list wrong blocks.
        if self.block_size == 1024 && bigalloc(self.features) {
            self.without_resize_inode(options, "clusters and blocks of 1 KiB")?;
        }
        if self.blocks <= u64::from(u32::MAX) {
            return Ok(());
        }
        if !self.features.incompat.contains(Incompat::BIT64) {
            return Error::invalid("more than 2^32 blocks need the feature 64bit");
        }
        // The resize inode maps blocks with 32-bit numbers.
        self.without_resize_inode(options, "more than 2^32 blocks")
    }

    /// Drops the resize inode if it was a default, and refuses it if it was requested.
    fn without_resize_inode(&mut self, options: &Options, why: &str) -> Result<()> {
        if options.asked(Feature::Compat(Compat::RESIZE_INODE)) == Some(true) {
            return Error::invalid(format!("resize_inode cannot be had with {why}"));
        }
        self.features.compat.remove(Compat::RESIZE_INODE);
        Ok(())
    }

    /// Computes groups and inodes. A last group with too few blocks after its metadata is left out,
    /// and then everything is computed again.
    fn divide(&mut self, options: &Options, bytes: u64, packed: bool) -> Result<()> {
        loop {
            let data = self.blocks.saturating_sub(self.first_data_block.into());
            let groups = data.div_ceil(self.blocks_per_group());
            self.groups = u32::try_from(groups)
                .map_err(|_| Error::Invalid("more than 2^32 groups".into()))?;
            self.inodes_per_group = self.inodes(options, bytes)?;
            self.reserved_gdt_blocks = self.reserved_descriptors(options)?;
            let last = data % self.blocks_per_group();
            let overhead = self.group_overhead();
            let least = if packed { self.least_group(options) } else { overhead + MIN_LAST_GROUP };
            if groups > 0 && (last == 0 || last >= least) {
                return Ok(());
            }
            if groups <= 1 {
                return Error::too_small(format_args!("{data} blocks, metadata takes {overhead}"));
            }
            self.blocks -= last;
        }
    }

    /// Returns the number of blocks that the last group must have for the metadata that lies there.
    fn least_group(&self, options: &Options) -> u64 {
        let last = self.groups.saturating_sub(1);
        let backups = backup_groups(options.backup_superblocks, self.groups);
        // The tables of a flexible group lie in it, from its first group on.
        let tables = if !last.is_multiple_of(1 << self.flex_bits.min(31)) {
            1
        } else {
            2 + u64::from(self.inodes_per_group.div_ceil(self.inodes_per_block()))
        };
        let copy = has_super(&self.features, backups, last);
        if self.features.incompat.contains(Incompat::META_BG) {
            return tables + 2;
        }
        let descriptors = u64::from(self.groups).div_ceil(self.descs_per_block());
        let copied = 1 + descriptors + u64::from(self.reserved_gdt_blocks);
        tables + if copy { copied } else { 0 }
    }

    /// Returns an upper bound of the blocks of a group's own metadata.
    fn group_overhead(&self) -> u64 {
        let table = u64::from(self.inodes_per_group.div_ceil(self.inodes_per_block()));
        let descriptors = if self.features.incompat.contains(Incompat::META_BG) {
            1
        } else {
            u64::from(self.groups).div_ceil(self.descs_per_block())
                + u64::from(self.reserved_gdt_blocks)
        };
        2 + table + 1 + descriptors
    }

    /// Returns the number of inodes of a group: whole blocks of the table, and a multiple of 8 for
    /// the bitmap.
    fn inodes(&self, options: &Options, bytes: u64) -> Result<u32> {
        let per_block = u64::from(self.inodes_per_block());
        // Both are powers of two, so the larger one is a multiple of the other.
        let unit = per_block.max(8);
        let groups = u64::from(self.groups.max(1));
        let down = |count: u64| count - count % unit;
        let most = down((self.block_size * 8).min(MAX_PER_GROUP).into());
        let wanted = match options.inode_count {
            Some(count) => count,
            None => {
                self.blocks.saturating_mul(self.block_size.into())
                    / self.inode_ratio(options, bytes)?
            }
        };
        let per_group = wanted.min(u64::from(u32::MAX)).div_ceil(groups);
        if per_group > most && options.inode_count.is_some() {
            return Error::invalid(format!("{wanted} inodes are too many for {groups} groups"));
        }
        let fewest = FEWEST_INODES.div_ceil(groups).next_multiple_of(unit);
        let cap = most.min(down(u64::from(u32::MAX) / groups));
        Ok(down(per_group.next_multiple_of(per_block)).clamp(fewest.min(cap), cap) as u32)
    }

    fn inode_ratio(&self, options: &Options, bytes: u64) -> Result<u64> {
        let smallest = u64::from(self.block_size) * u64::from(self.cluster_ratio);
        match options.inode_ratio {
            Some(ratio) if !(1024..=1 << 26).contains(&ratio) => {
                Error::invalid(format!("{ratio} bytes per inode: must be 1 KiB to 64 MiB"))
            }
            Some(ratio) => Ok(ratio.max(self.block_size.into())),
            None => Ok(by_size(bytes).0.max(smallest)),
        }
    }

    /// Returns the number of additional descriptor blocks for growth up to the limit.
    fn reserved_descriptors(&self, options: &Options) -> Result<u16> {
        if !self.features.compat.contains(Compat::RESIZE_INODE) {
            return Ok(0);
        }
        let limit = match options.resize_limit {
            Some(Length::Bytes(bytes)) => bytes / u64::from(self.block_size),
            Some(Length::Blocks(blocks)) => blocks,
            None => self.blocks.saturating_mul(1024),
        };
        if options.resize_limit.is_some() && limit <= self.blocks {
            return Error::invalid("the limit for growing is not above the size");
        }
        let limit = limit.min(u32::MAX.into()) - u64::from(self.first_data_block);
        let blocks = limit.div_ceil(self.blocks_per_group()).div_ceil(self.descs_per_block());
        let there = u64::from(self.groups).div_ceil(self.descs_per_block());
        // As the resize inode lists, and not all of a small group.
        let most = u64::from(self.block_size / 4).min(self.blocks_per_group() / 4);
        Ok(blocks.saturating_sub(there).min(most) as u16)
    }

    fn journal(&mut self, options: &Options) -> Result<()> {
        if !self.features.compat.contains(Compat::HAS_JOURNAL) {
            return Ok(());
        }
        let asked = options.journal_size.map(|bytes| bytes / u64::from(self.block_size));
        let blocks = match asked {
            Some(blocks) => self.check_journal(blocks)?,
            None => default_journal_blocks(self.blocks),
        };
        if blocks == 0 {
            // As with mke2fs, a tiny file system gets no journal, without an error.
            self.features
                .compat
                .remove(Compat::HAS_JOURNAL | Compat::FAST_COMMIT | Compat::ORPHAN_FILE);
            return Ok(());
        }
        self.journal_blocks = blocks;
        if self.features.compat.contains(Compat::FAST_COMMIT) {
            self.fast_commit_blocks = match options.fast_commit_size {
                Some(bytes) => {
                    u32::try_from(bytes / u64::from(self.block_size)).unwrap_or(u32::MAX)
                }
                None => blocks / 64,
            };
            self.check_journal(u64::from(blocks) + u64::from(self.fast_commit_blocks))?;
        }
        Ok(())
    }

    fn check_journal(&self, blocks: u64) -> Result<u32> {
        let (min, max) = (u64::from(MIN_JOURNAL_BLOCKS), u64::from(MAX_JOURNAL_BLOCKS));
        if !(min..=max).contains(&blocks) {
            return Error::invalid(format!("a journal of {blocks} blocks: must be {min} to {max}"));
        }
        if blocks > self.blocks / 2 {
            return Error::too_small(format_args!(
                "a journal of {blocks} blocks takes more than half of {}",
                self.blocks
            ));
        }
        Ok(blocks as u32)
    }

    fn orphan_file(&mut self, options: &Options) -> Result<()> {
        const MAX_BLOCKS: u64 = 512;
        if !self.features.compat.contains(Compat::ORPHAN_FILE) {
            return Ok(());
        }
        let blocks = match options.orphan_file_size {
            Some(Length::Bytes(bytes)) => bytes.div_ceil(self.block_size.into()),
            Some(Length::Blocks(blocks)) => blocks,
            None => orphan::default_blocks(self.blocks, self.cluster_ratio),
        };
        let ratio = self.cluster_ratio.into();
        let blocks = blocks.checked_next_multiple_of(ratio).unwrap_or(u64::MAX);
        if blocks == 0 || blocks > MAX_BLOCKS.next_multiple_of(ratio) {
            return Error::invalid(format!(
                "an orphan file of {blocks} blocks: must be 1 to {MAX_BLOCKS}"
            ));
        }
        self.orphan_blocks = blocks as u32;
        Ok(())
    }
}

/// Returns the groups of the superblock copies with `sparse_super2`: the second and the last.
pub(super) fn backup_groups(wanted: u8, groups: u32) -> [u32; 2] {
    let first = u32::from(wanted >= 1 && groups > 1);
    let last = if wanted >= 2 && groups > 2 { groups - 1 } else { 0 };
    [first, last]
}

/// The reserved inodes, `lost+found`, the orphan file and a few for use.
const FEWEST_INODES: u64 = 16;

fn bigalloc(features: Features) -> bool {
    features.ro_compat.contains(RoCompat::BIGALLOC)
}

/// Returns the block size for a device of this size.
pub(super) fn block_size_for(options: &Options, bytes: u64) -> Result<u32> {
    let size = options.block_size.unwrap_or(default_block_size(bytes));
    check_block_size(size)?;
    Ok(size)
}

fn check_block_size(size: u32) -> Result<()> {
    if size.is_power_of_two() && (1024..=65536).contains(&size) {
        Ok(())
    } else {
        Error::invalid(format!("a block size of {size}: must be a power of two, 1024 to 65536"))
    }
}

fn cluster_ratio(options: &Options, features: Features, block_size: u32) -> Result<u32> {
    if !bigalloc(features) {
        return match options.cluster_size {
            Some(_) => Error::invalid("a cluster size needs the feature bigalloc"),
            None => Ok(1),
        };
    }
    let size = options.cluster_size.unwrap_or(block_size * 16);
    let most = (block_size << 15).min(1 << 29);
    if size.is_power_of_two() && size >= block_size && size <= most {
        Ok(size / block_size)
    } else {
        Error::invalid(format!(
            "a cluster size of {size}: must be a power of two from the block size to {most}"
        ))
    }
}

fn inode_size(options: &Options, features: Features, block_size: u32) -> Result<u16> {
    let size = options.inode_size.unwrap_or(if options.revision == 0 { 128 } else { 256 });
    if options.revision == 0 && size != 128 {
        return Error::invalid(format!("an inode size of {size}: revision 0 has 128 bytes"));
    }
    if !size.is_power_of_two() || size < 128 || u32::from(size) > block_size {
        return Error::invalid(format!(
            "an inode size of {size}: must be a power of two, 128 to the block size"
        ));
    }
    if size == 128 && features.incompat.contains(Incompat::INLINE_DATA) {
        return Error::invalid("inline_data needs inodes of more than 128 bytes");
    }
    if size == 128 && features.ro_compat.contains(RoCompat::PROJECT) {
        return Error::invalid("project needs inodes of more than 128 bytes");
    }
    Ok(size)
}

/// Returns the number of clusters of a full group.
fn group_clusters(options: &Options, features: Features, block_size: u32) -> Result<u32> {
    let most = (block_size * 8).min(MAX_PER_GROUP);
    match options.group_blocks {
        None => Ok(most),
        Some(count) if count.is_multiple_of(8) && (FEWEST_IN_GROUP..=most).contains(&count) => {
            Ok(count)
        }
        Some(count) if bigalloc(features) => Error::invalid(format!(
            "{count} clusters per group: must be a multiple of 8 from {FEWEST_IN_GROUP} to {most}"
        )),
        Some(count) => Error::invalid(format!(
            "{count} blocks per group: must be a multiple of 8 from {FEWEST_IN_GROUP} to {most}"
        )),
    }
}

fn flex_bits(options: &Options, features: Features) -> Result<u8> {
    if !features.incompat.contains(Incompat::FLEX_BG) {
        return Ok(0);
    }
    let size = options.flex_bg_size.unwrap_or(16);
    if size.is_power_of_two() {
        Ok(size.trailing_zeros() as u8)
    } else {
        Error::invalid(format!("flexible groups of {size} groups: must be a power of two"))
    }
}

fn reserved(options: &Options, blocks: u64) -> Result<u64> {
    let percent = options.reserved_percent;
    if (0.0..=50.0).contains(&percent) {
        Ok((blocks as f64 * percent / 100.0) as u64)
    } else {
        Error::invalid(format!("{percent} percent reserved: must be 0 to 50"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::choose;

    fn sizes(list: &str, bytes: u64, edit: impl FnOnce(&mut Options)) -> Result<Sizes> {
        let mut options = Options::default();
        options.apply_features(list)?;
        edit(&mut options);
        Sizes::new(&options, choose(&options)?, bytes, false)
    }

    #[test]
    fn numbers_of_a_gigabyte_are_those_of_mke2fs() {
        let s = sizes("", 1 << 30, |_| ()).unwrap();
        assert_eq!((s.blocks, s.groups, s.inodes_per_group), (262_144, 8, 8192));
        assert_eq!((s.reserved_gdt_blocks, s.reserved_blocks), (127, 13_107));
        assert_eq!((s.journal_blocks, s.orphan_blocks, s.flex_bits), (8192, 64, 4));
    }

    #[test]
    fn small_groups_keep_room_beside_descriptors() {
        for (block_size, bytes) in [(1024, 64 << 20), (4096, 1 << 30)] {
            let edit = |options: &mut Options| {
                options.group_blocks = Some(256);
                options.block_size = Some(block_size);
            };
            let s = sizes("", bytes, edit).unwrap();
            assert_eq!((s.clusters_per_group, s.reserved_gdt_blocks), (256, 64));
            let mut options = Options::default();
            edit(&mut options);
            assert!(crate::preview(bytes, &options).is_ok());
        }
    }

    #[test]
    fn huge_file_systems_have_no_inode_for_growing() {
        let s = sizes("", 60 << 40, |_| ()).unwrap();
        assert_eq!((s.groups, s.inodes_per_group), (491_520, 2048));
        assert!(!s.features.compat.contains(Compat::RESIZE_INODE));
        assert!(sizes("^64bit", 60 << 40, |_| ()).is_err());
    }

    #[test]
    fn small_last_group_is_left_out() {
        let s = sizes("", (128 << 20) + (1 << 20), |o| o.block_size = Some(4096)).unwrap();
        assert_eq!((s.blocks, s.groups), (32768, 1));
    }

    #[test]
    fn absurd_options_are_refused() {
        assert!(sizes("", 100, |_| ()).is_err());
        assert!(sizes("", 1 << 20, |o| o.size = Some(2 << 20)).is_err());
        assert!(sizes("", 1 << 30, |o| o.block_size = Some(3000)).is_err());
        assert!(sizes("", 1 << 30, |o| o.cluster_size = Some(65536)).is_err());
        assert!(sizes("bigalloc", 1 << 30, |o| o.cluster_size = Some(2048)).is_err());
        assert!(sizes("bigalloc", 1 << 30, |o| o.cluster_size = Some(4096)).is_ok());
        assert!(sizes("", 1 << 30, |o| o.inode_size = Some(8192)).is_err());
        assert!(sizes("inline_data", 1 << 30, |o| o.inode_size = Some(128)).is_err());
        assert!(sizes("", 1 << 30, |o| o.reserved_percent = f64::NAN).is_err());
        assert!(sizes("", 1 << 30, |o| o.journal_size = Some(1 << 29)).is_ok());
        assert!(sizes("", 1 << 30, |o| o.journal_size = Some(1 << 30)).is_err());
        assert!(sizes("", 1 << 30, |o| o.inode_count = Some(u64::MAX)).is_err());
        assert!(sizes("", 1 << 30, |o| o.flex_bg_size = Some(3)).is_err());
        assert!(sizes("fast_commit", 1 << 30, |o| o.fast_commit_size = Some(u64::MAX)).is_err());
        assert!(
            sizes("", 1 << 30, |o| o.orphan_file_size = Some(Length::Bytes(u64::MAX))).is_err()
        );
        assert!(
            sizes("", 1 << 30, |o| o.orphan_file_size = Some(Length::Blocks(u64::MAX))).is_err()
        );
        assert!(sizes("", 1 << 30, |o| o.inode_ratio = Some(0)).is_err());
        assert!(sizes("", u64::MAX, |o| o.block_size = Some(1024)).is_err());
        assert_eq!(
            sizes("", 1 << 30, |o| o.resize_limit = Some(Length::Blocks(u64::MAX)))
                .unwrap()
                .reserved_gdt_blocks,
            1024
        );
        assert!(sizes("", 1 << 30, |o| o.resize_limit = Some(Length::Blocks(1))).is_err());
    }

    #[test]
    fn backups_need_groups() {
        assert_eq!(backup_groups(2, 1), [0, 0]);
        assert_eq!(backup_groups(2, 2), [1, 0]);
        assert_eq!(backup_groups(2, 9), [1, 8]);
        assert_eq!(backup_groups(1, 9), [1, 0]);
        assert_eq!(backup_groups(0, 9), [0, 0]);
    }
}
