//! Digests of blobs.

use crate::error::{Error, Result};
use crate::stream::{PIECE, Stream, fill};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::io::{self, Read};

/// A digest of the only algorithm that images use, SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Digest([u8; 32]);

impl Digest {
    /// Parses `sha256:` and 64 digits.
    ///
    /// # Errors
    /// [`Error`] for other algorithms, and for digits that are none.
    pub(crate) fn parse(text: &str) -> Result<Digest> {
        text.strip_prefix("sha256:").and_then(Digest::from_hex).ok_or_else(|| {
            let shown = text.chars().take(100).collect::<String>().escape_debug().to_string();
            Error::new(format_args!("the digest `{shown}` is not `sha256:` with 64 digits"))
        })
    }

    /// Parses 64 lowercase hexadecimal digits.
    pub(crate) fn from_hex(digits: &str) -> Option<Digest> {
        let nibble = |digit: &u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let mut digest = [0; 32];
        if digits.len() != 2 * digest.len() {
            return None;
        }
        for (byte, pair) in digest.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            *byte = nibble(pair.first()?)? << 4 | nibble(pair.get(1)?)?;
        }
        Some(Digest(digest))
    }

    /// Returns the path of the blob in a layout.
    pub(crate) fn path(&self) -> String {
        format!("blobs/sha256/{}", self.hex())
    }

    fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Verifies that bytes have this digest.
    ///
    /// # Errors
    /// [`Error`] if they have another one, or cannot be read.
    pub(crate) fn verify(&self, content: impl Read) -> Result<()> {
        let mut stream = Hashing::new(content, true);
        let mut piece = vec![0; PIECE];
        while fill(&mut stream, &mut piece)? > 0 {}
        stream.verify(self)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A stream whose digest is computed while it is read.
pub(crate) struct Hashing<R> {
    inner: R,
    hasher: Option<Sha256>,
}

impl<R: Read> Hashing<R> {
    /// Wraps a stream; with `enabled` its digest is computed.
    pub(crate) fn new(inner: R, enabled: bool) -> Hashing<R> {
        Hashing { inner, hasher: enabled.then(Sha256::new) }
    }

    /// Verifies the digest of all bytes that were read.
    ///
    /// # Errors
    /// [`Error`] if it is another one.
    pub(crate) fn verify(self, digest: &Digest) -> Result<()> {
        let Some(hasher) = self.hasher else { return Ok(()) };
        let found = Digest(hasher.finalize().into());
        if found == *digest {
            return Ok(());
        }
        Err(Error::new(format_args!("the content has the digest {found}, not {digest}")))
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buf)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(buf.get(..read).unwrap_or_default());
        }
        Ok(read)
    }
}

impl<R: Stream> Stream for Hashing<R> {
    fn part<'a>(&'a mut self, buf: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let part = self.inner.part(buf)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(part);
        }
        Ok(part)
    }

    fn skip(&mut self, count: u64) -> io::Result<u64> {
        let mut piece = vec![0; PIECE.min(usize::try_from(count).unwrap_or(PIECE))];
        let mut left = count;
        while left > 0 {
            let len = piece.len().min(usize::try_from(left).unwrap_or(PIECE));
            match fill(self, piece.get_mut(..len).unwrap_or_default())? {
                0 => break,
                passed => left -= passed as u64,
            }
        }
        Ok(count - left)
    }
}
