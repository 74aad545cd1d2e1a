//! Getters and setters of the superblock's fields.

use super::{DefaultMountOpts, ErrorPolicy, State, SuperFlags, Superblock};
use crate::bytes::{put_text, text};
use crate::features::Incompat;
use crate::types::{BlockNr, InodeNr};
use zerocopy::little_endian::U32;

/// One of the two records of errors.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ErrorRecord {
    /// Seconds since 1970 (40 bits); 0 means no record.
    pub time: u64,
    /// The inode that the error was about, 0 if none.
    pub ino: InodeNr,
    /// The block that the error was about, 0 if none.
    pub block: BlockNr,
    /// Where in the program; at most 32 bytes are stored.
    pub func: String,
    /// The line in the program.
    pub line: u32,
    /// The class of error, a code of the format (1 unknown, 2 I/O, 3 no memory, 4 bad checksum, 5
    /// corrupt …).
    pub errcode: u8,
}

/// The journal inode's block map as the superblock keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalBackup {
    /// The inode's `i_block` area.
    pub i_block: [u8; 60],
    /// The inode's size in bytes.
    pub size: u64,
}

/// The value of `jnl_backup_type` that marks the backup as valid.
const BACKUP_OF_BLOCKS: u8 = 1;

macro_rules! numbers {
    ($($(#[$doc:meta])* $get:ident, $set:ident: $ty:ty;)*) => {
        impl Superblock {
            $(
                $(#[$doc])*
                pub fn $get(&self) -> $ty {
                    self.raw.$get.get()
                }

                #[doc = concat!("Sets [`", stringify!($get), "`](Self::", stringify!($get), ").")]
                pub fn $set(&mut self, value: $ty) {
                    self.raw.$get.set(value);
                }
            )*
        }
    };
}

numbers! {
    /// Number of inodes.
    inodes_count, set_inodes_count: u32;
    /// Free inodes; advisory while mounted.
    free_inodes_count, set_free_inodes_count: u32;
    /// The block that group 0 starts with.
    first_data_block, set_first_data_block: u32;
    /// Block size as a power of two above 1024.
    log_block_size, set_log_block_size: u32;
    /// Cluster size as a power of two above 1024.
    log_cluster_size, set_log_cluster_size: u32;
    /// Blocks per group.
    blocks_per_group, set_blocks_per_group: u32;
    /// Clusters per group.
    clusters_per_group, set_clusters_per_group: u32;
    /// Inodes per group.
    inodes_per_group, set_inodes_per_group: u32;
    /// Mounts since the last check.
    mnt_count, set_mnt_count: u16;
    /// Mounts until the next check; 0xFFFF means no limit.
    max_mnt_count, set_max_mnt_count: u16;
    /// Minor revision.
    minor_rev_level, set_minor_rev_level: u16;
    /// Seconds between checks, 0 for no limit.
    checkinterval, set_checkinterval: u32;
    /// The system that made the file system; 0 is Linux.
    creator_os, set_creator_os: u32;
    /// Revision: 0 has fixed inode sizes, 1 is the dynamic one.
    rev_level, set_rev_level: u32;
    /// The user that may use reserved blocks.
    def_resuid, set_def_resuid: u16;
    /// The group that may use reserved blocks.
    def_resgid, set_def_resgid: u16;
    /// The group of this copy.
    block_group_nr, set_block_group_nr: u16;
    /// Descriptor blocks reserved for growing.
    reserved_gdt_blocks, set_reserved_gdt_blocks: u16;
    /// The number of the journal device, for an external journal.
    journal_dev, set_journal_dev: u32;
    /// The field of the descriptor size; meaningful only with `64bit`.
    desc_size, set_desc_size: u16;
    /// The first meta group with descriptors of the `meta_bg` kind.
    first_meta_bg, set_first_meta_bg: u32;
    /// The extra inode size that every inode has.
    min_extra_isize, set_min_extra_isize: u16;
    /// The extra inode size that new inodes get.
    want_extra_isize, set_want_extra_isize: u16;
    /// RAID chunk size in blocks.
    raid_stride, set_raid_stride: u16;
    /// RAID stripe width in blocks.
    raid_stripe_width, set_raid_stripe_width: u32;
    /// Seconds between updates of the MMP block.
    mmp_update_interval, set_mmp_update_interval: u16;
    /// Number of errors seen.
    error_count, set_error_count: u32;
    /// KiB written in the file system's life.
    kbytes_written, set_kbytes_written: u64;
    /// Clusters that hold metadata made by mkfs; 0 if not known.
    overhead_clusters, set_overhead_clusters: u32;
    /// The stored seed of checksums, for `metadata_csum_seed`.
    checksum_seed, set_checksum_seed: u32;
    /// The encoding of file names, for `casefold`.
    encoding, set_encoding: u16;
    /// Flags of the encoding; bit 0 is strict mode.
    encoding_flags, set_encoding_flags: u16;
}

macro_rules! inodes {
    ($($(#[$doc:meta])* $get:ident, $set:ident;)*) => {
        impl Superblock {
            $(
                $(#[$doc])*
                pub fn $get(&self) -> InodeNr {
                    InodeNr(self.raw.$get.get())
                }

                #[doc = concat!("Sets [`", stringify!($get), "`](Self::", stringify!($get), ").")]
                pub fn $set(&mut self, value: InodeNr) {
                    self.raw.$get.set(value.0);
                }
            )*
        }
    };
}

inodes! {
    /// The inode of the internal journal, 0 if none.
    journal_inum, set_journal_inum;
    /// The head of the orphan list, 0 if empty.
    last_orphan, set_last_orphan;
    /// The orphan file, for `orphan_file`.
    orphan_file_inum, set_orphan_file_inum;
    /// The user quota file, for `quota`.
    usr_quota_inum, set_usr_quota_inum;
    /// The group quota file, for `quota`.
    grp_quota_inum, set_grp_quota_inum;
    /// The project quota file, for `quota` and `project`.
    prj_quota_inum, set_prj_quota_inum;
    /// `lost+found`, 0 if not recorded.
    lpf_ino, set_lpf_ino;
}

macro_rules! bytes {
    ($($(#[$doc:meta])* $get:ident, $set:ident: $ty:ty;)*) => {
        impl Superblock {
            $(
                $(#[$doc])*
                pub fn $get(&self) -> $ty {
                    self.raw.$get
                }

                #[doc = concat!("Sets [`", stringify!($get), "`](Self::", stringify!($get), ").")]
                pub fn $set(&mut self, value: $ty) {
                    self.raw.$get = value;
                }
            )*
        }
    };
}

bytes! {
    /// UUID of the volume.
    uuid, set_uuid: [u8; 16];
    /// UUID of the external journal.
    journal_uuid, set_journal_uuid: [u8; 16];
    /// The hash of new directories: 0 legacy, 1 half MD4, 2 TEA, 6 SipHash.
    def_hash_version, set_def_hash_version: u8;
    /// Kind of the journal backup; 1 if it is meaningful.
    jnl_backup_type, set_jnl_backup_type: u8;
    /// Groups of a flexible group, as a power of two.
    log_groups_per_flex, set_log_groups_per_flex: u8;
    /// Checksum algorithm; 1 is CRC-32C.
    checksum_type, set_checksum_type: u8;
    /// Encryption algorithms allowed.
    encrypt_algos, set_encrypt_algos: [u8; 4];
    /// Salt of encryption passwords.
    encrypt_pw_salt, set_encrypt_pw_salt: [u8; 16];
    /// Blocks to preallocate for files (never used).
    prealloc_blocks, set_prealloc_blocks: u8;
    /// Blocks to preallocate for directories (never used).
    prealloc_dir_blocks, set_prealloc_dir_blocks: u8;
}

macro_rules! texts {
    ($($(#[$doc:meta])* $get:ident, $set:ident;)*) => {
        impl Superblock {
            $(
                $(#[$doc])*
                pub fn $get(&self) -> String {
                    text(&self.raw.$get)
                }

                #[doc = concat!("Sets [`", stringify!($get), "`](Self::", stringify!($get), "),")]
                /// cut to the field.
                pub fn $set(&mut self, value: &[u8]) {
                    put_text(&mut self.raw.$get, value);
                }
            )*
        }
    };
}

texts! {
    /// Label of the volume, at most 16 bytes.
    volume_name, set_volume_name;
    /// Directory of the last mount, at most 64 bytes.
    last_mounted, set_last_mounted;
    /// Mount options to apply, at most 64 bytes.
    mount_opts, set_mount_opts;
}

macro_rules! times {
    ($($(#[$doc:meta])* $get:ident, $set:ident, $hi:ident;)*) => {
        impl Superblock {
            $(
                $(#[$doc])*
                pub fn $get(&self) -> u64 {
                    join_time(self.raw.$get.get(), self.raw.$hi)
                }

                #[doc = concat!("Sets [`", stringify!($get), "`](Self::", stringify!($get), ").")]
                pub fn $set(&mut self, seconds: u64) {
                    let (lo, hi) = split_time(seconds);
                    self.raw.$get.set(lo);
                    self.raw.$hi = hi;
                }
            )*
        }
    };
}

times! {
    /// Last mount, in seconds since 1970.
    mtime, set_mtime, mtime_hi;
    /// Last write, in seconds since 1970.
    wtime, set_wtime, wtime_hi;
    /// Last check, in seconds since 1970.
    lastcheck, set_lastcheck, lastcheck_hi;
    /// When the file system was made, in seconds since 1970.
    mkfs_time, set_mkfs_time, mkfs_time_hi;
}

fn join_time(lo: u32, hi: u8) -> u64 {
    u64::from(hi) << 32 | u64::from(lo)
}

/// Returns the two parts of a 40-bit time; later times stay at the end of the range.
fn split_time(seconds: u64) -> (u32, u8) {
    let seconds = seconds.min((1 << 40) - 1);
    (seconds as u32, (seconds >> 32) as u8)
}

impl Superblock {
    fn join_count(&self, lo: U32, hi: U32) -> u64 {
        let hi = if self.incompat().contains(Incompat::BIT64) { u64::from(hi.get()) } else { 0 };
        hi << 32 | u64::from(lo.get())
    }

    /// Returns the high half to store, and none if this file system has no high halves.
    fn high_half(&self, value: u64) -> Option<u32> {
        self.incompat().contains(Incompat::BIT64).then_some((value >> 32) as u32)
    }

    /// Returns the number of blocks.
    pub fn blocks_count(&self) -> u64 {
        self.join_count(self.raw.blocks_count_lo, self.raw.blocks_count_hi)
    }

    /// Sets the number of blocks; set the features first.
    pub fn set_blocks_count(&mut self, value: u64) {
        self.raw.blocks_count_lo.set(value as u32);
        if let Some(high) = self.high_half(value) {
            self.raw.blocks_count_hi.set(high);
        }
    }

    /// Returns the number of blocks reserved for the super-user.
    pub fn r_blocks_count(&self) -> u64 {
        self.join_count(self.raw.r_blocks_count_lo, self.raw.r_blocks_count_hi)
    }

    /// Sets the number of reserved blocks; set the features first.
    pub fn set_r_blocks_count(&mut self, value: u64) {
        self.raw.r_blocks_count_lo.set(value as u32);
        if let Some(high) = self.high_half(value) {
            self.raw.r_blocks_count_hi.set(high);
        }
    }

    /// Free blocks (blocks, not clusters, also with `bigalloc`); advisory while mounted.
    pub fn free_blocks_count(&self) -> u64 {
        self.join_count(self.raw.free_blocks_count_lo, self.raw.free_blocks_count_hi)
    }

    /// Sets the number of free blocks; set the features first.
    pub fn set_free_blocks_count(&mut self, value: u64) {
        self.raw.free_blocks_count_lo.set(value as u32);
        if let Some(high) = self.high_half(value) {
            self.raw.free_blocks_count_hi.set(high);
        }
    }

    /// Sets the bytes of an inode slot.
    pub fn set_inode_size(&mut self, value: u16) {
        self.raw.inode_size.set(value);
    }

    /// Sets the first inode number that is not reserved.
    pub fn set_first_ino(&mut self, value: u32) {
        self.raw.first_ino.set(value);
    }

    /// Returns the location of the MMP block.
    pub fn mmp_block(&self) -> BlockNr {
        BlockNr(self.raw.mmp_block.get())
    }

    /// Sets the location of the MMP block.
    pub fn set_mmp_block(&mut self, block: BlockNr) {
        self.raw.mmp_block.set(block.0);
    }

    /// State bits.
    pub fn state(&self) -> State {
        State::from_bits_retain(self.raw.state.get())
    }

    /// Sets the state bits.
    pub fn set_state(&mut self, state: State) {
        self.raw.state.set(state.bits());
    }

    /// Returns the reaction to errors.
    pub fn error_policy(&self) -> ErrorPolicy {
        ErrorPolicy::from_raw(self.raw.errors.get())
    }

    /// Sets the reaction to errors.
    pub fn set_error_policy(&mut self, policy: ErrorPolicy) {
        self.raw.errors.set(policy.to_raw());
    }

    /// Flags.
    pub fn flags(&self) -> SuperFlags {
        SuperFlags::from_bits_retain(self.raw.flags.get())
    }

    /// Sets the flags.
    pub fn set_flags(&mut self, flags: SuperFlags) {
        self.raw.flags.set(flags.bits());
    }

    /// Default mount options.
    pub fn default_mount_opts(&self) -> DefaultMountOpts {
        DefaultMountOpts::from_bits_retain(self.raw.default_mount_opts.get())
    }

    /// Sets the default mount options.
    pub fn set_default_mount_opts(&mut self, opts: DefaultMountOpts) {
        self.raw.default_mount_opts.set(opts.bits());
    }

    /// Returns the seed of directory hashes, as the four words that the hash uses.
    pub fn hash_seed(&self) -> [u32; 4] {
        self.raw.hash_seed.map(U32::get)
    }

    /// Sets the seed of directory hashes.
    pub fn set_hash_seed(&mut self, seed: [u32; 4]) {
        self.raw.hash_seed = seed.map(U32::new);
    }

    /// Sets the seed of directory hashes from the bytes of a UUID.
    pub fn set_hash_seed_uuid(&mut self, uuid: [u8; 16]) {
        for (n, word) in self.raw.hash_seed.iter_mut().enumerate() {
            word.set(crate::bytes::le32(&uuid, n.saturating_mul(4)));
        }
    }

    /// Returns the groups of superblock copies with `sparse_super2`, 0 for none.
    pub fn backup_bgs(&self) -> [u32; 2] {
        self.raw.backup_bgs.map(U32::get)
    }

    /// Sets the groups of superblock copies with `sparse_super2`.
    pub fn set_backup_bgs(&mut self, groups: [u32; 2]) {
        self.raw.backup_bgs = groups.map(U32::new);
    }

    /// Returns the backup of the journal inode's block map, if there is one.
    pub fn journal_backup(&self) -> Option<JournalBackup> {
        if self.raw.jnl_backup_type != BACKUP_OF_BLOCKS {
            return None;
        }
        let words = self.raw.jnl_blocks.map(U32::get);
        let mut i_block = [0; 60];
        for (n, word) in words.iter().take(15).enumerate() {
            crate::bytes::put_le32(&mut i_block, n.saturating_mul(4), *word);
        }
        Some(JournalBackup { i_block, size: u64::from(words[15]) << 32 | u64::from(words[16]) })
    }

    /// Sets or clears the backup of the journal inode's block map.
    pub fn set_journal_backup(&mut self, backup: Option<&JournalBackup>) {
        let mut words = [U32::ZERO; 17];
        if let Some(backup) = backup {
            for (n, word) in words.iter_mut().take(15).enumerate() {
                word.set(crate::bytes::le32(&backup.i_block, n.saturating_mul(4)));
            }
            words[15].set((backup.size >> 32) as u32);
            words[16].set(backup.size as u32);
        }
        self.raw.jnl_blocks = words;
        self.raw.jnl_backup_type = if backup.is_some() { BACKUP_OF_BLOCKS } else { 0 };
    }

    /// Returns the record of the first error, if any.
    pub fn first_error(&self) -> Option<ErrorRecord> {
        let raw = &self.raw.first_error;
        let record = ErrorRecord {
            time: join_time(raw.time.get(), self.raw.first_error_time_hi),
            ino: InodeNr(raw.ino.get()),
            block: BlockNr(raw.block.get()),
            func: text(&raw.func),
            line: raw.line.get(),
            errcode: self.raw.first_error_errcode,
        };
        (record.time != 0).then_some(record)
    }

    /// Sets the record of the first error.
    pub fn set_first_error(&mut self, record: &ErrorRecord) {
        let (lo, hi) = split_time(record.time);
        let raw = &mut self.raw.first_error;
        raw.time.set(lo);
        raw.ino.set(record.ino.0);
        raw.block.set(record.block.0);
        put_text(&mut raw.func, record.func.as_bytes());
        raw.line.set(record.line);
        self.raw.first_error_time_hi = hi;
        self.raw.first_error_errcode = record.errcode;
    }

    /// Returns the record of the last error, if any.
    pub fn last_error(&self) -> Option<ErrorRecord> {
        let raw = &self.raw.last_error;
        let record = ErrorRecord {
            time: join_time(raw.time.get(), self.raw.last_error_time_hi),
            ino: InodeNr(raw.ino.get()),
            block: BlockNr(raw.block.get()),
            func: text(&raw.func),
            line: raw.line.get(),
            errcode: self.raw.last_error_errcode,
        };
        (record.time != 0).then_some(record)
    }

    /// Sets the record of the last error.
    pub fn set_last_error(&mut self, record: &ErrorRecord) {
        let (lo, hi) = split_time(record.time);
        let raw = &mut self.raw.last_error;
        raw.time.set(lo);
        raw.ino.set(record.ino.0);
        raw.block.set(record.block.0);
        put_text(&mut raw.func, record.func.as_bytes());
        raw.line.set(record.line);
        self.raw.last_error_time_hi = hi;
        self.raw.last_error_errcode = record.errcode;
    }

    /// Records an error: sets the state, counts it, and stores the last record, and the first one
    /// if there is none yet.
    pub fn record_error(&mut self, record: &ErrorRecord) {
        self.set_state(self.state() | State::ERROR);
        self.set_error_count(self.error_count().saturating_add(1));
        if self.first_error().is_none() {
            self.set_first_error(record);
        }
        self.set_last_error(record);
    }

    /// Clears all error records, as a check does.
    pub fn clear_errors(&mut self) {
        self.set_error_count(0);
        self.set_first_error(&ErrorRecord::default());
        self.set_last_error(&ErrorRecord::default());
        self.set_state(self.state().difference(State::ERROR));
    }

    /// Returns whether directory hashes use unsigned characters, or `None` if neither flag is set.
    pub fn unsigned_hash(&self) -> Option<bool> {
        let flags = self.flags();
        if flags.contains(SuperFlags::UNSIGNED_HASH) {
            Some(true)
        } else {
            flags.contains(SuperFlags::SIGNED_HASH).then_some(false)
        }
    }
}
