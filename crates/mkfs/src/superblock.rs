//! The superblock of a new file system, without fields that depend on allocation.

use super::error::{Error, Result};
use super::options::Options;
use super::sizing::{Sizes, backup_groups};
use extant_format::checksum::uuid_seed;
use extant_format::superblock::{CHECKSUM_TYPE_CRC32C, DefaultMountOpts, State, SuperFlags};
use extant_format::{Compat, Features, Incompat, InodeNr, RoCompat, Superblock, Timestamp};
use extant_sync::SplitMix64;
use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

/// Identity of a file system: UUID and hash seed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity {
    pub uuid: [u8; 16],
    pub hash_seed: [u8; 16],
    pub time: Timestamp,
}

impl Identity {
    pub(super) fn new(options: &Options) -> Identity {
        let mut words = Words::new(options.seed);
        // Both are always drawn, so that a given value of one does not change the other.
        let (uuid, hash_seed) = (words.uuid(), words.uuid());
        Identity {
            uuid: options.uuid.unwrap_or(uuid),
            hash_seed: options.hash_seed.unwrap_or(hash_seed),
            time: options.time.unwrap_or_else(now),
        }
    }

    /// Sets the identity in options, so that it does not change any more.
    pub(super) fn fix(self, options: &mut Options) {
        options.uuid = Some(self.uuid);
        options.hash_seed = Some(self.hash_seed);
        options.time = Some(self.time);
    }

    fn seconds(&self) -> u64 {
        u64::try_from(self.time.sec).unwrap_or(0)
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::new(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), 0)
}

/// Random words: from a seed, or from the keys that the system gives each hasher.
struct Words {
    seeded: Option<SplitMix64>,
    drawn: u64,
}

impl Words {
    fn new(seed: Option<u64>) -> Self {
        Self { seeded: seed.map(SplitMix64::new), drawn: 0 }
    }

    fn next(&mut self) -> u64 {
        self.drawn += 1;
        match &mut self.seeded {
            Some(numbers) => numbers.next_u64(),
            None => RandomState::new().hash_one((self.drawn, SystemTime::now())),
        }
    }

    /// A random UUID: version 4, variant 1.
    fn uuid(&mut self) -> [u8; 16] {
        let random = u128::from(self.next()) << 64 | u128::from(self.next());
        let version = random & !(0xF << 76) | 4 << 76;
        let variant = version & !(3 << 62) | 2 << 62;
        std::array::from_fn(|n| (variant >> (120 - 8 * n)) as u8)
    }
}

/// Hash version of new directories: half MD4.
const HALF_MD4: u8 = 1;

/// Bytes of inodes unless options say otherwise.
const DEFAULT_INODE_SIZE: u16 = 256;

/// Bytes of further fields of inodes.
const EXTRA_ISIZE: u16 = 32;

/// The only encoding of names.
const UTF8_12_1: u16 = 1;

/// Encryption by AES-256 in the modes XTS and CTS, which contents and names of files may have.
const ENCRYPTION: [u8; 4] = [1, 4, 0, 0];

/// Mount counts are not checked.
const NO_MAX_MOUNTS: u16 = u16::MAX;

/// Builds the superblock without fields that depend on allocation: free counts, overhead, numbers
/// of special inodes.
pub(super) fn build(options: &Options, sizes: &Sizes, identity: &Identity) -> Result<Superblock> {
    check_label(options)?;
    let mut sb = Superblock::empty();
    sb.set_rev_level(options.revision);
    sb.set_features(sizes.features);
    sb.set_uuid(identity.uuid);
    sb.set_volume_name(&options.label);
    groups(&mut sb, sizes);
    inodes(&mut sb, sizes);
    layout(&mut sb, options, sizes);
    policy(&mut sb, options, identity);
    if sizes.features.incompat.contains(Incompat::ENCRYPT) {
        sb.set_encrypt_algos(ENCRYPTION);
    }
    if sizes.features.incompat.contains(Incompat::CASEFOLD) {
        sb.set_encoding(UTF8_12_1);
        sb.set_encoding_flags(u16::from(options.strict_names));
    }
    checksums(&mut sb, sizes.features, &identity.uuid);
    Ok(sb)
}

/// Builds the superblock of a device with a journal and nothing else.
pub(super) fn journal_device(
    options: &Options,
    block_size: u32,
    blocks: u32,
) -> Result<Superblock> {
    check_label(options)?;
    let identity = Identity::new(options);
    let log = u64::from(block_size).trailing_zeros().saturating_sub(10);
    let per_group = block_size.saturating_mul(8);
    let mut sb = Superblock::empty();
    sb.set_rev_level(1);
    let features = Features { incompat: Incompat::JOURNAL_DEV, ..Features::default() };
    sb.set_features(features);
    sb.set_uuid(identity.uuid);
    sb.set_volume_name(&options.label);
    sb.set_log_block_size(log);
    sb.set_log_cluster_size(log);
    sb.set_first_data_block(u32::from(block_size == 1024));
    sb.set_blocks_count(blocks.into());
    sb.set_blocks_per_group(per_group);
    sb.set_clusters_per_group(per_group);
    sb.set_inode_size(DEFAULT_INODE_SIZE);
    sb.set_first_ino(InodeNr::FIRST_ORDINARY.0);
    sb.set_min_extra_isize(EXTRA_ISIZE);
    sb.set_want_extra_isize(EXTRA_ISIZE);
    policy(&mut sb, options, &identity);
    // A journal has no directories.
    sb.set_flags(SuperFlags::empty());
    sb.set_state(State::VALID);
    Ok(sb)
}

fn check_label(options: &Options) -> Result<()> {
    if options.label.len() > 16 {
        return Error::invalid("the label is longer than 16 bytes");
    }
    Ok(())
}

fn groups(sb: &mut Superblock, sizes: &Sizes) {
    let log = |bytes: u64| bytes.trailing_zeros().saturating_sub(10);
    sb.set_log_block_size(log(sizes.block_size.into()));
    sb.set_log_cluster_size(log(u64::from(sizes.block_size) * u64::from(sizes.cluster_ratio)));
    sb.set_first_data_block(sizes.first_data_block);
    sb.set_blocks_count(sizes.blocks);
    sb.set_r_blocks_count(sizes.reserved_blocks);
    // At most 2^32 - 1: checked with the sizes.
    sb.set_blocks_per_group(sizes.blocks_per_group() as u32);
    sb.set_clusters_per_group(sizes.clusters_per_group);
}

fn inodes(sb: &mut Superblock, sizes: &Sizes) {
    sb.set_inodes_per_group(sizes.inodes_per_group);
    sb.set_inodes_count(sizes.inodes_per_group.saturating_mul(sizes.groups));
    sb.set_inode_size(sizes.inode_size);
    sb.set_first_ino(InodeNr::FIRST_ORDINARY.0);
    if sizes.inode_size > 128 {
        sb.set_min_extra_isize(EXTRA_ISIZE);
        sb.set_want_extra_isize(EXTRA_ISIZE);
    }
}

fn layout(sb: &mut Superblock, options: &Options, sizes: &Sizes) {
    if sizes.features.incompat.contains(Incompat::BIT64) {
        sb.set_desc_size(sizes.desc_size());
    }
    sb.set_reserved_gdt_blocks(sizes.reserved_gdt_blocks);
    sb.set_log_groups_per_flex(sizes.flex_bits);
    sb.set_raid_stride(options.stride);
    sb.set_raid_stripe_width(options.stripe_width);
    if sizes.features.compat.contains(Compat::SPARSE_SUPER2) {
        sb.set_backup_bgs(backup_groups(options.backup_superblocks, sizes.groups));
    }
}

fn policy(sb: &mut Superblock, options: &Options, identity: &Identity) {
    sb.set_error_policy(options.errors);
    sb.set_max_mnt_count(NO_MAX_MOUNTS);
    // Attributes need a feature.
    if options.revision > 0 {
        sb.set_default_mount_opts(DefaultMountOpts::XATTR_USER | DefaultMountOpts::ACL);
    }
    sb.set_flags(SuperFlags::SIGNED_HASH);
    sb.set_def_hash_version(HALF_MD4);
    sb.set_hash_seed_uuid(identity.hash_seed);
    sb.set_mkfs_time(identity.seconds());
    sb.set_wtime(identity.seconds());
    sb.set_lastcheck(identity.seconds());
}

fn checksums(sb: &mut Superblock, features: Features, uuid: &[u8; 16]) {
    if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
        sb.set_checksum_type(CHECKSUM_TYPE_CRC32C);
    }
    if features.incompat.contains(Incompat::CSUM_SEED) {
        sb.set_checksum_seed(uuid_seed(uuid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_identities() {
        let options = Options { seed: Some(7), ..Options::default() };
        let (a, b) = (Identity::new(&options), Identity::new(&options));
        assert_eq!((a.uuid, a.hash_seed), (b.uuid, b.hash_seed));
        assert_ne!(a.uuid, a.hash_seed);
        assert_eq!((a.uuid[6] >> 4, a.uuid[8] >> 6), (4, 2));
        let random = Options::default();
        assert_ne!(Identity::new(&random).uuid, Identity::new(&random).uuid);
    }
}
