//! The superblock as the disk holds it.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size of the superblock in bytes.
pub const SUPERBLOCK_SIZE: usize = 1024;

/// Byte offset of the primary superblock in the volume.
pub const SUPERBLOCK_OFFSET: u64 = 1024;

/// The error record that is written once, for the first error.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the fields have the names that the format's documentation gives them"
)]
pub struct RawFirstError {
    pub time: U32,
    pub ino: U32,
    pub block: U64,
    pub func: [u8; 32],
    pub line: U32,
}

/// The error record that every error overwrites; its members are in another order than those of the
/// first one.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the fields have the names that the format's documentation gives them"
)]
pub struct RawLastError {
    pub time: U32,
    pub ino: U32,
    pub line: U32,
    pub block: U64,
    pub func: [u8; 32],
}

/// All 1024 bytes of the superblock; names are those of the format's documentation without the
/// `s_`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the fields have the names that the format's documentation gives them"
)]
pub struct RawSuperblock {
    pub inodes_count: U32,
    pub blocks_count_lo: U32,
    pub r_blocks_count_lo: U32,
    pub free_blocks_count_lo: U32,
    pub free_inodes_count: U32,
    pub first_data_block: U32,
    pub log_block_size: U32,
    pub log_cluster_size: U32,
    pub blocks_per_group: U32,
    pub clusters_per_group: U32,
    pub inodes_per_group: U32,
    pub mtime: U32,
    pub wtime: U32,
    pub mnt_count: U16,
    pub max_mnt_count: U16,
    pub magic: U16,
    pub state: U16,
    pub errors: U16,
    pub minor_rev_level: U16,
    pub lastcheck: U32,
    pub checkinterval: U32,
    pub creator_os: U32,
    pub rev_level: U32,
    pub def_resuid: U16,
    pub def_resgid: U16,
    pub first_ino: U32,
    pub inode_size: U16,
    pub block_group_nr: U16,
    pub feature_compat: U32,
    pub feature_incompat: U32,
    pub feature_ro_compat: U32,
    pub uuid: [u8; 16],
    pub volume_name: [u8; 16],
    pub last_mounted: [u8; 64],
    pub algorithm_usage_bitmap: U32,
    pub prealloc_blocks: u8,
    pub prealloc_dir_blocks: u8,
    pub reserved_gdt_blocks: U16,
    pub journal_uuid: [u8; 16],
    pub journal_inum: U32,
    pub journal_dev: U32,
    pub last_orphan: U32,
    pub hash_seed: [U32; 4],
    pub def_hash_version: u8,
    pub jnl_backup_type: u8,
    pub desc_size: U16,
    pub default_mount_opts: U32,
    pub first_meta_bg: U32,
    pub mkfs_time: U32,
    pub jnl_blocks: [U32; 17],
    pub blocks_count_hi: U32,
    pub r_blocks_count_hi: U32,
    pub free_blocks_count_hi: U32,
    pub min_extra_isize: U16,
    pub want_extra_isize: U16,
    pub flags: U32,
    pub raid_stride: U16,
    pub mmp_update_interval: U16,
    pub mmp_block: U64,
    pub raid_stripe_width: U32,
    pub log_groups_per_flex: u8,
    pub checksum_type: u8,
    pub encryption_level: u8,
    pub reserved_pad: u8,
    pub kbytes_written: U64,
    pub snapshot_inum: U32,
    pub snapshot_id: U32,
    pub snapshot_r_blocks_count: U64,
    pub snapshot_list: U32,
    pub error_count: U32,
    pub first_error: RawFirstError,
    pub last_error: RawLastError,
    pub mount_opts: [u8; 64],
    pub usr_quota_inum: U32,
    pub grp_quota_inum: U32,
    pub overhead_clusters: U32,
    pub backup_bgs: [U32; 2],
    pub encrypt_algos: [u8; 4],
    pub encrypt_pw_salt: [u8; 16],
    pub lpf_ino: U32,
    pub prj_quota_inum: U32,
    pub checksum_seed: U32,
    pub wtime_hi: u8,
    pub mtime_hi: u8,
    pub mkfs_time_hi: u8,
    pub lastcheck_hi: u8,
    pub first_error_time_hi: u8,
    pub last_error_time_hi: u8,
    pub first_error_errcode: u8,
    pub last_error_errcode: u8,
    pub encoding: U16,
    pub encoding_flags: U16,
    pub orphan_file_inum: U32,
    pub reserved: [U32; 94],
    pub checksum: U32,
}

const _: () = assert!(size_of::<RawSuperblock>() == SUPERBLOCK_SIZE);
