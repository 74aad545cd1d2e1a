//! Names of chunks and manifests.

use sha2::{Digest as _, Sha256};
use std::fmt;

/// Bytes of a digest.
pub(crate) const DIGEST_LEN: usize = 32;

/// A SHA-256 digest, shown as `sha256:` and 64 digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkDigest(pub(crate) [u8; DIGEST_LEN]);

impl ChunkDigest {
    /// Returns the digest of bytes.
    pub fn of(data: &[u8]) -> ChunkDigest {
        ChunkDigest(Sha256::digest(data).into())
    }

    /// Parses `sha256:` and 64 lowercase hexadecimal digits.
    pub fn parse(text: &str) -> Option<ChunkDigest> {
        let digits = text.strip_prefix("sha256:")?.as_bytes();
        let mut digest = [0; DIGEST_LEN];
        if digits.len() != 2 * DIGEST_LEN {
            return None;
        }
        for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Some(ChunkDigest(digest))
    }

    /// Returns the 64 digits.
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl fmt::Display for ChunkDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for ChunkDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_parsed_as_they_are_shown() {
        let digest = ChunkDigest::of(b"");
        let text = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!((digest.to_string().as_str(), ChunkDigest::parse(text)), (text, Some(digest)));
        for bad in ["", "sha256:", &text[1..], &text[..70], &text.replace('e', "E")] {
            assert_eq!(ChunkDigest::parse(bad), None, "{bad}");
        }
    }
}
