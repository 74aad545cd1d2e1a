//! The hash of names, as the file system and the directory have it.

use crate::store::Store;
use extant_format::checksum::{CRC32C_INIT, crc32c_raw};
use extant_format::htree::{HashVersion, dirhash};

/// Which hash, and its seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hasher {
    pub version: HashVersion,
    unsigned: bool,
    seed: [u32; 4],
}

impl Hasher {
    /// A hash with what the file system says of all of them.
    pub fn new(st: &Store, version: HashVersion) -> Hasher {
        Hasher { version, unsigned: st.geo.hash_unsigned, seed: st.geo.hash_seed }
    }

    /// The hash of directories that have no index yet; the usual one where the file system names none that is known.
    pub fn default_of(st: &Store) -> Hasher {
        Self::new(st, HashVersion::from_raw(st.geo.hash_version).unwrap_or_default())
    }

    /// The hash that a tree is ordered by; bit 0 is clear.
    pub fn major(&self, name: &[u8]) -> u32 {
        dirhash(self.version, self.unsigned, &self.seed, name).0
    }

    /// Major and minor hash as a position. Where the hash has no minor part a checksum of the name stands in, so that
    /// positions differ wherever names do, but for chance.
    pub fn position(&self, name: &[u8]) -> u64 {
        let (major, minor) = dirhash(self.version, self.unsigned, &self.seed, name);
        let minor = if self.version == HashVersion::Legacy { crc32c_raw(CRC32C_INIT, name) } else { minor };
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
