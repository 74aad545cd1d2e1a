//! The superblock: typed access to every field.
//!
//! # Invariants
//! All 1024 bytes are kept, so unknown fields survive. The high halves of 64-bit counts are read
//! and written only with the `64bit` feature.

mod fields;
mod raw;

pub use fields::{ErrorRecord, JournalBackup};
pub use raw::{RawFirstError, RawLastError, RawSuperblock, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};

use crate::checksum::{CRC32C_INIT, crc32c_raw, uuid_seed};
use crate::error::{Corrupt, Result};
use crate::features::{Compat, Features, Incompat, RoCompat};
use crate::types::GroupNr;
use bitflags::bitflags;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The magic number of the superblock.
pub const SUPERBLOCK_MAGIC: u16 = 0xEF53;

/// Field name in the error about a wrong magic number: the sign of a device without ext4.
pub const MAGIC_FIELD: &str = "magic";

/// The only checksum algorithm: CRC-32C.
pub const CHECKSUM_TYPE_CRC32C: u8 = 1;

const STRUCTURE: &str = "superblock";
const CHECKSUM_OFFSET: usize = SUPERBLOCK_SIZE - 4;

bitflags! {
    /// State of the file system.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct State: u16 {
        /// Unmounted cleanly (with a journal the bit stays set while mounted).
        const VALID = 0x1;
        /// Errors were seen.
        const ERROR = 0x2;
        /// Orphans are being processed.
        const ORPHANS = 0x4;
        /// A fast commit is being replayed.
        const FC_REPLAY = 0x20;
    }
}

bitflags! {
    /// Flags of the superblock.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct SuperFlags: u32 {
        /// Directory hashes use signed characters.
        const SIGNED_HASH = 0x1;
        /// Directory hashes use unsigned characters.
        const UNSIGNED_HASH = 0x2;
        /// To test development code.
        const TEST_FILESYS = 0x4;
    }
}

bitflags! {
    /// Mount options that hold without being named at mount.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct DefaultMountOpts: u32 {
        /// Print debugging information.
        const DEBUG = 0x1;
        /// New files take the directory's group.
        const BSDGROUPS = 0x2;
        /// User attributes.
        const XATTR_USER = 0x4;
        /// POSIX ACLs.
        const ACL = 0x8;
        /// 16-bit user numbers.
        const UID16 = 0x10;
        /// Journal all data (with `JMODE_ORDERED`: writeback).
        const JMODE_DATA = 0x20;
        /// Ordered data (with `JMODE_DATA`: writeback).
        const JMODE_ORDERED = 0x40;
        /// No flushes.
        const NOBARRIER = 0x100;
        /// Check block numbers against metadata.
        const BLOCK_VALIDITY = 0x200;
        /// Discard freed blocks.
        const DISCARD = 0x400;
        /// No delayed allocation.
        const NODELALLOC = 0x800;
        /// The bits of the journal mode.
        const JMODE = 0x60;
    }
}

const OPTION_NAMES: [(DefaultMountOpts, &str); 9] = [
    (DefaultMountOpts::DEBUG, "debug"),
    (DefaultMountOpts::BSDGROUPS, "bsdgroups"),
    (DefaultMountOpts::XATTR_USER, "user_xattr"),
    (DefaultMountOpts::ACL, "acl"),
    (DefaultMountOpts::UID16, "uid16"),
    (DefaultMountOpts::NOBARRIER, "nobarrier"),
    (DefaultMountOpts::BLOCK_VALIDITY, "block_validity"),
    (DefaultMountOpts::DISCARD, "discard"),
    (DefaultMountOpts::NODELALLOC, "nodelalloc"),
];

const JOURNAL_MODES: [(DefaultMountOpts, &str); 3] = [
    (DefaultMountOpts::JMODE_DATA, "journal_data"),
    (DefaultMountOpts::JMODE_ORDERED, "journal_data_ordered"),
    (DefaultMountOpts::JMODE, "journal_data_writeback"),
];

impl DefaultMountOpts {
    /// Returns the names of the set bits as the ext4 tools print them.
    pub fn names(self) -> Vec<&'static str> {
        let journal = match (self.contains(Self::JMODE_DATA), self.contains(Self::JMODE_ORDERED)) {
            (true, true) => Some("journal_data_writeback"),
            (true, false) => Some("journal_data"),
            (false, true) => Some("journal_data_ordered"),
            (false, false) => None,
        };
        let plain = OPTION_NAMES.iter().filter(|(bit, _)| self.contains(*bit));
        plain.map(|(_, name)| *name).chain(journal).collect()
    }

    /// Returns the options after a list of names to set, or with `^` or `-` to clear, separated by
    /// commas or blanks. Clearing any journal mode clears the mode.
    ///
    /// # Errors
    /// A name that is unknown.
    pub fn edited(self, list: &str) -> std::result::Result<DefaultMountOpts, &str> {
        let mut edited = self;
        for word in list.split([',', ' ']).filter(|word| !word.is_empty()) {
            let cleared = word.strip_prefix(['^', '-']);
            let name = cleared.or_else(|| word.strip_prefix('+')).unwrap_or(word);
            let known = OPTION_NAMES.iter().chain(&JOURNAL_MODES);
            let mut bits = known.filter(|(_, known)| known.eq_ignore_ascii_case(name));
            let (bits, _) = *bits.next().ok_or(word)?;
            let is_mode = Self::JMODE.contains(bits);
            edited.remove(if is_mode { Self::JMODE } else { bits });
            if cleared.is_none() {
                edited.insert(bits);
            }
        }
        Ok(edited)
    }
}

/// Reaction of the file system to an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ErrorPolicy {
    /// Continue.
    #[default]
    Continue,
    /// Become read-only.
    RemountReadOnly,
    /// Stop the system.
    Panic,
}

impl ErrorPolicy {
    /// Decodes the field's value; unknown values give the default.
    pub const fn from_raw(value: u16) -> ErrorPolicy {
        match value {
            2 => ErrorPolicy::RemountReadOnly,
            3 => ErrorPolicy::Panic,
            _ => ErrorPolicy::Continue,
        }
    }

    /// Returns the field's value.
    pub const fn to_raw(self) -> u16 {
        match self {
            ErrorPolicy::Continue => 1,
            ErrorPolicy::RemountReadOnly => 2,
            ErrorPolicy::Panic => 3,
        }
    }
}

/// A superblock: the raw bytes behind typed getters and setters.
#[derive(Clone)]
pub struct Superblock {
    raw: Box<RawSuperblock>,
}

impl Superblock {
    /// Makes the superblock from which mkfs starts: zero except for magic, revision 1 and state
    /// clean.
    pub fn empty() -> Superblock {
        let mut raw = Box::new(RawSuperblock::new_zeroed());
        raw.magic.set(SUPERBLOCK_MAGIC);
        raw.rev_level.set(1);
        raw.state.set(State::VALID.bits());
        raw.errors.set(ErrorPolicy::Continue.to_raw());
        Superblock { raw }
    }

    /// Reads a superblock and verifies its size and magic only.
    ///
    /// # Errors
    /// Too few bytes, or a wrong magic.
    pub fn parse_unverified(bytes: &[u8]) -> Result<Superblock> {
        let (raw, _) = RawSuperblock::read_from_prefix(bytes).map_err(|_| {
            Corrupt::new(STRUCTURE).field("size").found(bytes.len() as u64).expected(1024u64)
        })?;
        if raw.magic.get() != SUPERBLOCK_MAGIC {
            let error = Corrupt::new(STRUCTURE).field(MAGIC_FIELD);
            return Err(error.found(raw.magic.get()).expected(SUPERBLOCK_MAGIC));
        }
        Ok(Superblock { raw: Box::new(raw) })
    }

    /// Returns the fields as they lie on the disk.
    pub fn raw(&self) -> &RawSuperblock {
        &self.raw
    }

    /// Returns the fields as they lie on the disk, to change one that has no setter.
    pub fn raw_mut(&mut self) -> &mut RawSuperblock {
        &mut self.raw
    }

    /// Returns the bytes as they are, without a new checksum.
    pub fn as_bytes(&self) -> &[u8] {
        self.raw.as_bytes()
    }

    /// Returns the bytes with a new checksum, which this superblock takes too.
    pub fn seal(&mut self) -> [u8; SUPERBLOCK_SIZE] {
        if self.has_checksum() {
            let checksum = self.computed_checksum();
            self.raw.checksum.set(checksum);
        }
        crate::bytes::array(self.as_bytes(), 0)
    }

    /// Returns the bytes with a new checksum.
    pub fn encode(&self) -> [u8; SUPERBLOCK_SIZE] {
        self.clone().seal()
    }

    /// Returns the bytes of the copy that lies in `group`.
    pub fn encode_backup(&self, group: u32) -> [u8; SUPERBLOCK_SIZE] {
        let mut copy = self.clone();
        // The field has 16 bits; copies in groups above keep the low ones, as the ext4 tools do.
        copy.set_block_group_nr(group as u16);
        copy.seal()
    }

    /// Returns the bytes of the copy that lies in `group` of a file system in use. As the ext4
    /// tools have it, a copy is never marked as clean, nor as one that needs recovery.
    pub fn encode_copy(&self, group: GroupNr) -> [u8; SUPERBLOCK_SIZE] {
        let mut copy = self.clone();
        copy.set_state(copy.state().difference(State::VALID));
        let mut features = copy.features();
        features.incompat.remove(Incompat::RECOVER);
        copy.set_features(features);
        copy.encode_backup(group.0)
    }

    /// Returns whether the superblock carries a checksum.
    pub fn has_checksum(&self) -> bool {
        self.ro_compat().contains(RoCompat::METADATA_CSUM)
    }

    fn computed_checksum(&self) -> u32 {
        crc32c_raw(CRC32C_INIT, crate::bytes::part(self.as_bytes(), 0, CHECKSUM_OFFSET))
    }

    /// Verifies the checksum, where there is one.
    ///
    /// # Errors
    /// An unknown algorithm, or a mismatch.
    pub fn verify_checksum(&self) -> Result<()> {
        if !self.has_checksum() {
            return Ok(());
        }
        if self.raw.checksum_type != CHECKSUM_TYPE_CRC32C {
            let error = Corrupt::new(STRUCTURE).field("checksum type");
            return Err(error.found(self.raw.checksum_type).expected(CHECKSUM_TYPE_CRC32C));
        }
        let (found, expected) = (self.raw.checksum.get(), self.computed_checksum());
        if found != expected {
            return Err(Corrupt::new(STRUCTURE).field("checksum").found(found).expected(expected));
        }
        Ok(())
    }

    /// Compatible features.
    pub fn compat(&self) -> Compat {
        Compat::from_bits_retain(self.raw.feature_compat.get())
    }

    /// Incompatible features.
    pub fn incompat(&self) -> Incompat {
        Incompat::from_bits_retain(self.raw.feature_incompat.get())
    }

    /// Features that are compatible for reading.
    pub fn ro_compat(&self) -> RoCompat {
        RoCompat::from_bits_retain(self.raw.feature_ro_compat.get())
    }

    /// Returns all features.
    pub fn features(&self) -> Features {
        Features { compat: self.compat(), incompat: self.incompat(), ro_compat: self.ro_compat() }
    }

    /// Gives a file system of revision 0, which has no features, revision 1. Its inodes stay the
    /// same.
    pub fn upgrade_revision(&mut self) {
        if self.rev_level() == 0 {
            let (inode_size, first_ino) = (self.inode_size(), self.first_ino());
            self.set_inode_size(inode_size);
            self.set_first_ino(first_ino);
            self.set_rev_level(1);
        }
    }

    /// Adds features, and with the first ones revision 1.
    pub fn add_features(&mut self, added: Features) {
        if added != Features::default() {
            self.upgrade_revision();
        }
        let old = self.features();
        self.set_features(Features {
            compat: old.compat | added.compat,
            incompat: old.incompat | added.incompat,
            ro_compat: old.ro_compat | added.ro_compat,
        });
    }

    /// Sets all features.
    pub fn set_features(&mut self, features: Features) {
        self.raw.feature_compat.set(features.compat.bits());
        self.raw.feature_incompat.set(features.incompat.bits());
        self.raw.feature_ro_compat.set(features.ro_compat.bits());
    }

    /// Changes the UUID, and keeps the seed of checksums: with `metadata_csum` it is stored.
    pub fn replace_uuid(&mut self, uuid: [u8; 16]) {
        let seed = self.fs_seed();
        if self.has_checksum() {
            let mut features = self.features();
            features.incompat.insert(Incompat::CSUM_SEED);
            self.set_features(features);
            self.set_checksum_seed(seed);
        }
        self.set_uuid(uuid);
    }

    /// Names the parts of the file system that depend on its UUID, beside the seed of
    /// `metadata_csum`: with one of them the UUID cannot be changed alone.
    pub fn uuid_dependant(&self) -> Option<&'static str> {
        let has_seed = self.ro_compat().contains(RoCompat::METADATA_CSUM);
        if self.compat().contains(Compat::STABLE_INODES) {
            Some("encrypted files depend on it (stable_inodes)")
        } else if !has_seed && self.ro_compat().contains(RoCompat::GDT_CSUM) {
            Some("the checksums of all group descriptors depend on it (uninit_bg)")
        } else if !has_seed && self.incompat().contains(Incompat::EA_INODE) {
            Some("the hashes of large attributes depend on it (ea_inode)")
        } else {
            None
        }
    }

    /// Returns the seed of the file system's checksums.
    pub fn fs_seed(&self) -> u32 {
        if self.incompat().contains(Incompat::CSUM_SEED) {
            self.raw.checksum_seed.get()
        } else {
            uuid_seed(&self.raw.uuid)
        }
    }

    /// Block size in bytes; 0 when the field is out of range.
    pub fn block_size(&self) -> u32 {
        match self.raw.log_block_size.get() {
            log @ 0..=6 => 1024 << log,
            _ => 0,
        }
    }

    /// Returns the number of bytes of an inode slot.
    pub fn inode_size(&self) -> u16 {
        if self.rev_level() == 0 { 128 } else { self.raw.inode_size.get() }
    }

    /// Returns the first inode number that is not reserved.
    pub fn first_ino(&self) -> u32 {
        if self.rev_level() == 0 { 11 } else { self.raw.first_ino.get() }
    }
}

impl std::fmt::Debug for Superblock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Superblock")
            .field("blocks", &self.blocks_count())
            .field("block_size", &self.block_size())
            .field("inodes", &self.inodes_count())
            .field("features", &self.features().names())
            .finish_non_exhaustive()
    }
}

/// Returns the seed of a file system's checksums.
pub fn fs_seed(sb: &Superblock) -> u32 {
    sb.fs_seed()
}

#[cfg(test)]
mod tests;
