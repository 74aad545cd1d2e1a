//! Hashes of names, by the parameters of the file system and the directory.

use super::blocks::Dir;
use super::fold;
use extant_format::checksum::{CRC32C_INIT, crc32c_raw};
use extant_format::htree::{HashVersion, dirhash, hash_bytes};

/// A hash function with its seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hasher {
    pub version: HashVersion,
    unsigned: bool,
    seed: [u32; 4],
    folds: bool,
}

impl Hasher {
    /// Creates a hash function with the parameters that all directories of the file system share.
    pub fn new(d: &Dir<'_>, version: HashVersion) -> Hasher {
        let geo = &d.env.geo;
        Hasher { version, unsigned: geo.hash_unsigned, seed: geo.hash_seed, folds: d.folds }
    }

    /// Returns the hash function of directories without an index. If the superblock names an
    /// unknown one, the default is used.
    pub fn default_of(d: &Dir<'_>) -> Hasher {
        Self::new(d, HashVersion::from_raw(d.env.geo.hash_version).unwrap_or_default())
    }

    /// Returns major and minor hash.
    fn both(&self, name: &[u8]) -> (u32, u32) {
        let hash = |name: &[u8]| dirhash(self.version, self.unsigned, &self.seed, name);
        if self.folds { hash(&fold::or_raw(name)) } else { hash(name) }
    }

    /// Returns both hashes as they appear in the shown names of encrypted directories.
    pub fn bytes(&self, name: &[u8]) -> [u8; 8] {
        hash_bytes(self.both(name))
    }

    /// Returns the hash that orders a tree; bit 0 is clear.
    pub fn major(&self, name: &[u8]) -> u32 {
        self.both(name).0
    }

    /// Returns major and minor hash as a position. For a hash without a minor part the CRC of the
    /// name serves as one. Different names then have different positions, except for collisions.
    pub fn position(&self, name: &[u8]) -> u64 {
        let (major, minor) = self.both(name);
        let minor =
            if self.version == HashVersion::Legacy { crc32c_raw(CRC32C_INIT, name) } else { minor };
        start_of(major) | u64::from(minor)
    }
}

/// Returns the first position of a major hash.
pub(super) fn start_of(major: u32) -> u64 {
    u64::from(major >> 1) << 32
}

/// Returns the major hash of a position.
pub(super) fn major_of(pos: u64) -> u32 {
    ((pos >> 32) as u32) << 1
}
