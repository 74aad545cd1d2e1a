//! The hash of names, as the file system and the directory have it.

use super::blocks::Dir;
use super::fold;
use extant_format::checksum::{CRC32C_INIT, crc32c_raw};
use extant_format::htree::{HashVersion, dirhash, hash_bytes};

/// Which hash, and its seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hasher {
    pub version: HashVersion,
    unsigned: bool,
    seed: [u32; 4],
    folds: bool,
}

impl Hasher {
    /// A hash with what the file system says of all of them.
    pub fn new(d: &Dir<'_>, version: HashVersion) -> Hasher {
        let geo = &d.env.geo;
        Hasher { version, unsigned: geo.hash_unsigned, seed: geo.hash_seed, folds: d.folds }
    }

    /// The hash of directories that have no index yet; the usual one where the file system names
    /// none that is known.
    pub fn default_of(d: &Dir<'_>) -> Hasher {
        Self::new(d, HashVersion::from_raw(d.env.geo.hash_version).unwrap_or_default())
    }

    /// Major and minor hash.
    fn both(&self, name: &[u8]) -> (u32, u32) {
        let hash = |name: &[u8]| dirhash(self.version, self.unsigned, &self.seed, name);
        if self.folds { hash(&fold::or_raw(name)) } else { hash(name) }
    }

    /// Both hashes as encrypted names show them.
    pub fn bytes(&self, name: &[u8]) -> [u8; 8] {
        hash_bytes(self.both(name))
    }

    /// The hash that a tree is ordered by; bit 0 is clear.
    pub fn major(&self, name: &[u8]) -> u32 {
        self.both(name).0
    }

    /// Major and minor hash as a position. Where the hash has no minor part a checksum of the name
    /// stands in, so that positions differ wherever names do, but for chance.
    pub fn position(&self, name: &[u8]) -> u64 {
        let (major, minor) = self.both(name);
        let minor =
            if self.version == HashVersion::Legacy { crc32c_raw(CRC32C_INIT, name) } else { minor };
        start_of(major) | u64::from(minor)
    }
}

/// The first position of a major hash.
pub(super) fn start_of(major: u32) -> u64 {
    u64::from(major >> 1) << 32
}

/// The major hash of a position.
pub(super) fn major_of(pos: u64) -> u32 {
    ((pos >> 32) as u32) << 1
}
