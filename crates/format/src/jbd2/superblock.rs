//! The journal's superblock.
//!
//! # Invariants
//! All 1024 bytes are kept. A parsed superblock has a valid block size, and `first` and `start`
//! within the journal.

use super::{BlockType, ChecksumMode, JBD2_MAGIC, JournalFormat};
use crate::checksum::{CRC32C_INIT, crc32c_with_hole};
use crate::error::{Corrupt, Result};
use bitflags::bitflags;
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the journal's superblock.
pub const JOURNAL_SUPERBLOCK_SIZE: usize = 1024;

/// Blocks of the fast-commit area if the superblock's field is 0.
pub const DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;

/// Minimum size of a journal in blocks, without the fast-commit area.
pub const MIN_JOURNAL_BLOCKS: u32 = 1024;

/// Maximum number of blocks of a journal that the ext4 tools make.
pub const MAX_JOURNAL_BLOCKS: u32 = 10_240_000;

/// Returns the journal's default size for a file system of `blocks` blocks; 0 if it is too small
/// for a journal.
pub fn default_journal_blocks(blocks: u64) -> u32 {
    const STEPS: [(u64, u32); 8] = [
        (2048, 0),
        (32 << 10, 1 << 10),
        (256 << 10, 4 << 10),
        (512 << 10, 8 << 10),
        (4 << 20, 16 << 10),
        (8 << 20, 32 << 10),
        (16 << 20, 64 << 10),
        (32 << 20, 128 << 10),
    ];
    STEPS.iter().find(|(below, _)| blocks < *below).map_or(256 << 10, |(_, journal)| *journal)
}

const STRUCTURE: &str = "journal superblock";
const CHECKSUM_OFFSET: usize = 0xFC;
const CHECKSUM_TYPE_CRC32C: u8 = 4;

/// Returns the block of an external journal device that holds the journal's superblock, behind the
/// ext4 one.
pub const fn external_journal_block(block_size: u32) -> u64 {
    if block_size == 1024 { 2 } else { 1 }
}

bitflags! {
    /// Features that may be ignored.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct JournalCompat: u32 {
        /// Commit blocks carry a checksum (version 1).
        const CHECKSUM = 0x1;
    }
}

bitflags! {
    /// Features that must be known.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct JournalIncompat: u32 {
        /// There are revoke blocks.
        const REVOKE = 0x1;
        /// Block numbers have 64 bits.
        const BIT64 = 0x2;
        /// Commit blocks are written without waiting for the rest.
        const ASYNC_COMMIT = 0x4;
        /// Checksums of version 2.
        const CSUM_V2 = 0x8;
        /// Checksums of version 3.
        const CSUM_V3 = 0x10;
        /// There is a fast-commit area.
        const FAST_COMMIT = 0x20;
    }
}

impl JournalIncompat {
    /// Returns the names of the set bits as the ext4 tools print them.
    pub fn names(self) -> Vec<String> {
        const NAMES: [&str; 6] = [
            "journal_incompat_revoke",
            "journal_64bit",
            "journal_async_commit",
            "journal_checksum_v2",
            "journal_checksum_v3",
            "fast_commit",
        ];
        (0..32usize)
            .filter(|n| self.bits() & (1 << n) != 0)
            .map(|n| NAMES.get(n).map_or_else(|| format!("FEATURE_I{n}"), ToString::to_string))
            .collect()
    }
}

/// All 1024 bytes of the journal's superblock.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the fields have the names that the format's documentation gives them"
)]
pub struct RawJournalSuperblock {
    pub magic: U32,
    pub block_type: U32,
    pub header_sequence: U32,
    pub block_size: U32,
    pub max_len: U32,
    pub first: U32,
    pub sequence: U32,
    pub start: U32,
    pub errno: U32,
    pub feature_compat: U32,
    pub feature_incompat: U32,
    pub feature_ro_compat: U32,
    pub uuid: [u8; 16],
    pub nr_users: U32,
    pub dynsuper: U32,
    pub max_transaction: U32,
    pub max_trans_data: U32,
    pub checksum_type: u8,
    pub padding2: [u8; 3],
    pub num_fc_blks: U32,
    pub head: U32,
    pub padding: [U32; 40],
    pub checksum: U32,
    pub users: [[u8; 16]; 48],
}

const _: () = assert!(size_of::<RawJournalSuperblock>() == JOURNAL_SUPERBLOCK_SIZE);

/// The journal's superblock behind typed getters and setters.
#[derive(Clone)]
pub struct JournalSuperblock {
    raw: Box<RawJournalSuperblock>,
}

macro_rules! numbers {
    ($($(#[$doc:meta])* $get:ident, $set:ident;)*) => {
        $(
            $(#[$doc])*
            pub fn $get(&self) -> u32 {
                self.raw.$get.get()
            }

            #[doc = concat!("Sets [`", stringify!($get), "`](Self::", stringify!($get), ").")]
            pub fn $set(&mut self, value: u32) {
                self.raw.$get.set(value);
            }
        )*
    };
}

impl JournalSuperblock {
    /// The superblock of an empty journal: version 2, sequence 1, start 0, one user, log from
    /// block 1.
    pub fn new(block_size: u32, max_len: u32, uuid: [u8; 16]) -> JournalSuperblock {
        let mut raw = Box::new(RawJournalSuperblock::new_zeroed());
        raw.magic.set(JBD2_MAGIC);
        raw.block_type.set(BlockType::SuperblockV2.to_raw());
        raw.block_size.set(block_size);
        raw.max_len.set(max_len);
        raw.first.set(1);
        raw.sequence.set(1);
        raw.uuid = uuid;
        raw.nr_users.set(1);
        JournalSuperblock { raw }
    }

    /// Reads and verifies a superblock: magic, version, checksum, ranges.
    ///
    /// # Errors
    /// [`Corrupt`] with the invalid field. Unknown features are no error here: see
    /// [`unknown_incompat`](Self::unknown_incompat).
    pub fn parse(bytes: &[u8]) -> Result<JournalSuperblock> {
        let sb = JournalSuperblock::parse_unverified(bytes)?;
        sb.verify_checksum()?;
        sb.check_ranges()?;
        Ok(sb)
    }

    /// Reads a superblock and verifies its size, magic and version only.
    ///
    /// # Errors
    /// Too few bytes, a wrong magic, a block that is no superblock.
    pub fn parse_unverified(bytes: &[u8]) -> Result<JournalSuperblock> {
        let (raw, _) = RawJournalSuperblock::read_from_prefix(bytes)
            .map_err(|_| Corrupt::new(STRUCTURE).field("size").found(bytes.len() as u64))?;
        if raw.magic.get() != JBD2_MAGIC {
            return Err(Corrupt::new(STRUCTURE)
                .field("magic")
                .found(raw.magic.get())
                .expected(JBD2_MAGIC));
        }
        match BlockType::from_raw(raw.block_type.get()) {
            BlockType::SuperblockV1 | BlockType::SuperblockV2 => {
                Ok(JournalSuperblock { raw: Box::new(raw) })
            }
            other => Err(Corrupt::new(STRUCTURE)
                .field("block type")
                .found(other.to_raw())
                .expected(4u32)),
        }
    }

    fn check_ranges(&self) -> Result<()> {
        let fail = |field, found: u32| Err(Corrupt::new(STRUCTURE).field(field).found(found));
        let size = self.block_size();
        if !(1024..=65536).contains(&size) || !size.is_power_of_two() {
            return fail("block size", size);
        }
        if self.first() == 0 || self.first() >= self.max_len() {
            return fail("first block", self.first());
        }
        if self.start() != 0 && (self.start() < self.first() || self.start() >= self.log_end()) {
            return fail("start", self.start());
        }
        let v1 = self.compat().contains(JournalCompat::CHECKSUM);
        let v2 = self.incompat().contains(JournalIncompat::CSUM_V2);
        let v3 = self.incompat().contains(JournalIncompat::CSUM_V3);
        if [v1, v2, v3].into_iter().filter(|has| *has).count() > 1 {
            return fail("checksum features", self.incompat().bits());
        }
        Ok(())
    }

    fn has_checksum(&self) -> bool {
        self.incompat().intersects(JournalIncompat::CSUM_V2 | JournalIncompat::CSUM_V3)
    }

    fn computed_checksum(&self) -> u32 {
        crc32c_with_hole(CRC32C_INIT, self.raw.as_bytes(), CHECKSUM_OFFSET, 4)
    }

    /// Verifies the checksum, where there is one.
    ///
    /// # Errors
    /// An unknown algorithm, or a mismatch.
    pub fn verify_checksum(&self) -> Result<()> {
        if !self.has_checksum() {
            return Ok(());
        }
        let error = Corrupt::new(STRUCTURE);
        if self.raw.checksum_type != CHECKSUM_TYPE_CRC32C {
            return Err(error.field("checksum type").found(self.raw.checksum_type));
        }
        let (found, expected) = (self.raw.checksum.get(), self.computed_checksum());
        if found != expected {
            return Err(error.field("checksum").found(found).expected(expected));
        }
        Ok(())
    }

    /// Returns the bytes with a new checksum, which this superblock takes too.
    pub fn seal(&mut self) -> [u8; JOURNAL_SUPERBLOCK_SIZE] {
        if self.has_checksum() {
            self.raw.checksum_type = CHECKSUM_TYPE_CRC32C;
            let checksum = self.computed_checksum();
            self.raw.checksum.set(checksum);
        }
        crate::bytes::array(self.raw.as_bytes(), 0)
    }

    /// Returns the bytes with a new checksum.
    pub fn encode(&self) -> [u8; JOURNAL_SUPERBLOCK_SIZE] {
        self.clone().seal()
    }

    /// Returns the fields as they lie on the disk.
    pub fn raw(&self) -> &RawJournalSuperblock {
        &self.raw
    }

    /// Returns the fields as they lie on the disk, to change one that has no setter.
    pub fn raw_mut(&mut self) -> &mut RawJournalSuperblock {
        &mut self.raw
    }

    /// Returns whether it is a superblock of version 2, which alone has features.
    pub fn is_v2(&self) -> bool {
        self.raw.block_type.get() == BlockType::SuperblockV2.to_raw()
    }

    /// Returns whether a field is set that only version 2 has.
    pub fn has_v2_fields(&self) -> bool {
        let raw = &self.raw;
        let words = [raw.feature_compat, raw.feature_incompat, raw.feature_ro_compat, raw.nr_users];
        words.iter().any(|word| word.get() != 0)
    }

    /// Compatible features.
    pub fn compat(&self) -> JournalCompat {
        let bits = if self.is_v2() { self.raw.feature_compat.get() } else { 0 };
        JournalCompat::from_bits_retain(bits)
    }

    /// Incompatible features.
    pub fn incompat(&self) -> JournalIncompat {
        let bits = if self.is_v2() { self.raw.feature_incompat.get() } else { 0 };
        JournalIncompat::from_bits_retain(bits)
    }

    /// Returns the unknown incompatible features. The caller must refuse a journal that has any.
    pub fn unknown_incompat(&self) -> u32 {
        self.incompat().bits() & !JournalIncompat::all().bits()
    }

    /// Sets the compatible features.
    pub fn set_compat(&mut self, features: JournalCompat) {
        self.raw.feature_compat.set(features.bits());
    }

    /// Sets the incompatible features.
    pub fn set_incompat(&mut self, features: JournalIncompat) {
        self.raw.feature_incompat.set(features.bits());
    }

    numbers! {
        /// Bytes of a block.
        block_size, set_block_size;
        /// Blocks of the journal, this superblock's included.
        max_len, set_max_len;
        /// The first block of the log.
        first, set_first;
        /// The first transaction that is expected in the log.
        sequence, set_sequence;
        /// The block where the log starts; 0 if the log is empty.
        start, set_start;
        /// Number of file systems that use the journal.
        nr_users, set_nr_users;
        /// Blocks of the fast-commit area, 0 for the default.
        num_fc_blks, set_num_fc_blks;
        /// The block where the next transaction of a clean log begins.
        head, set_head;
    }

    /// Returns the error that the journal was aborted with; 0 for none.
    pub fn errno(&self) -> i32 {
        self.raw.errno.get() as i32
    }

    /// Sets the error that the journal was aborted with.
    pub fn set_errno(&mut self, errno: i32) {
        self.raw.errno.set(errno as u32);
    }

    /// UUID of the journal.
    pub fn uuid(&self) -> [u8; 16] {
        self.raw.uuid
    }

    /// Sets the UUID of the journal.
    pub fn set_uuid(&mut self, uuid: [u8; 16]) {
        self.raw.uuid = uuid;
    }

    /// UUIDs of the file systems that use an external journal.
    pub fn users(&self) -> &[[u8; 16]] {
        let count = (self.nr_users() as usize).min(self.raw.users.len());
        self.raw.users.get(..count).unwrap_or(&self.raw.users)
    }

    /// Returns the number of blocks of the fast-commit area; 0 if there is none or the journal is
    /// too small for it.
    pub fn fast_commit_blocks(&self) -> u32 {
        if !self.incompat().contains(JournalIncompat::FAST_COMMIT) {
            return 0;
        }
        let blocks = match self.num_fc_blks() {
            0 => DEFAULT_FAST_COMMIT_BLOCKS,
            count => count,
        };
        match self.max_len().checked_sub(blocks) {
            Some(rest) if rest >= MIN_JOURNAL_BLOCKS => blocks,
            _ => 0,
        }
    }

    /// Returns the block after the last one of the ordinary log, where it wraps to
    /// [`first`](Self::first).
    pub fn log_end(&self) -> u32 {
        self.max_len().saturating_sub(self.fast_commit_blocks())
    }

    /// Returns the blocks of the fast-commit area, if there is one. The block at
    /// [`log_end`](Self::log_end) stays unused.
    pub fn fast_commit_area(&self) -> Option<std::ops::Range<u32>> {
        let blocks = self.fast_commit_blocks();
        (blocks > 1).then(|| self.log_end().saturating_add(1)..self.max_len())
    }

    /// Returns the format of this journal's blocks.
    pub fn format(&self) -> JournalFormat {
        let checksums = if self.incompat().contains(JournalIncompat::CSUM_V3) {
            ChecksumMode::V3
        } else if self.incompat().contains(JournalIncompat::CSUM_V2) {
            ChecksumMode::V2
        } else if self.compat().contains(JournalCompat::CHECKSUM) {
            ChecksumMode::V1
        } else {
            ChecksumMode::None
        };
        let bit64 = self.incompat().contains(JournalIncompat::BIT64);
        JournalFormat::new(self.block_size(), checksums, bit64, self.uuid())
    }
}

impl std::fmt::Debug for JournalSuperblock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JournalSuperblock")
            .field("max_len", &self.max_len())
            .field("first", &self.first())
            .field("sequence", &self.sequence())
            .field("start", &self.start())
            .field("incompat", &self.incompat())
            .finish_non_exhaustive()
    }
}
