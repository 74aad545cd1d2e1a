//! Names of encrypted directories without their key, in the form of Linux: the hash and the bytes
//! of the stored name, with the end of long names replaced by a digest, in base64url. Targets of
//! symlinks are shown like names without a hash.

use super::blocks::Dir;
use super::hash::Hasher;
use super::{Kind, htree, read};
use crate::error::Result;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use extant_format::error::Corrupt;
use extant_format::inode::{TARGET_HEAD, encrypted_target};
use sha2::{Digest, Sha256};

/// Length of the shortest stored name: one block of the cipher.
const MIN_ENCRYPTED: usize = 16;

/// Bytes of the major and minor hash.
const HASHES: usize = 8;

/// Bytes of a stored name that are shown unchanged.
const SHOWN: usize = 149;

/// Bytes of the digest of the remaining bytes.
const DIGEST: usize = 32;

/// The parts of a stored name that a shown name contains.
enum Shown {
    /// The whole stored name.
    Whole(Vec<u8>),
    /// The first bytes of the stored name, and the digest of the rest.
    Start(Vec<u8>),
}

/// The form in which the stored names of a directory are shown.
pub(super) struct Names {
    hasher: Option<Hasher>,
}

impl Names {
    /// Returns the form of the directory `d`. Hashes are shown if readers use them as positions.
    pub fn of(d: &Dir<'_>) -> Result<Names> {
        let hasher = match d.kind {
            _ if !d.hashed() || d.keeps_hashes => None,
            Kind::Indexed => Some(htree::root(d)?.hasher),
            Kind::Linear if d.count > 1 => None,
            Kind::Linear | Kind::Inline => Some(Hasher::default_of(d)),
        };
        Ok(Names { hasher })
    }

    /// Returns the shown form of a stored name, with the stored hash if there is one. Errors:
    /// `Corrupt` for a name that is too short.
    pub fn show(&self, stored: &[u8], kept: Option<[u8; HASHES]>) -> Result<Vec<u8>, Corrupt> {
        if stored.len() < MIN_ENCRYPTED {
            return Err(Corrupt::new("encrypted name").field("length").found(stored.len() as u64));
        }
        let hashed = || self.hasher.map_or([0; HASHES], |hasher| hasher.bytes(stored));
        let mut bytes = kept.unwrap_or_else(hashed).to_vec();
        bytes.extend_from_slice(&start_of(stored));
        Ok(URL_SAFE_NO_PAD.encode(bytes).into_bytes())
    }
}

/// Returns the shown form of the encrypted target of a symlink; `None` if `stored` cannot be one.
pub fn show_target(stored: &[u8]) -> Option<Vec<u8>> {
    let target = encrypted_target(stored).filter(|target| target.len() >= MIN_ENCRYPTED)?;
    Some(URL_SAFE_NO_PAD.encode([&[0; HASHES], start_of(target).as_slice()].concat()).into_bytes())
}

/// Returns the length of the shown form of a target with `stored` stored bytes.
pub fn shown_target_len(stored: u64) -> u64 {
    let target = stored.saturating_sub(TARGET_HEAD as u64);
    let bytes = if target > SHOWN as u64 { (SHOWN + DIGEST) as u64 } else { target };
    ((HASHES as u64 + bytes) * 4).div_ceil(3)
}

/// Returns a stored name, with its end replaced by a digest if it is too long.
fn start_of(stored: &[u8]) -> Vec<u8> {
    match stored.split_at_checked(SHOWN) {
        Some((start, rest)) if !rest.is_empty() => [start, &Sha256::digest(rest)].concat(),
        _ => stored.to_vec(),
    }
}

/// Decodes a shown name; `None` if it is not the shown form of any name.
fn parse(shown: &[u8]) -> Option<Shown> {
    let bytes = URL_SAFE_NO_PAD.decode(shown).ok()?;
    let rest = bytes.get(HASHES..).filter(|rest| rest.len() >= MIN_ENCRYPTED)?.to_vec();
    match rest.len() {
        n if n <= SHOWN => Some(Shown::Whole(rest)),
        n if n == SHOWN + DIGEST => Some(Shown::Start(rest)),
        _ => None,
    }
}

/// Returns the stored name whose shown form is `shown`; `None` if the directory cannot have one.
pub(super) fn stored(d: &Dir<'_>, shown: &[u8]) -> Result<Option<Vec<u8>>> {
    match parse(shown) {
        None => Ok(None),
        Some(Shown::Whole(name)) => Ok(Some(name)),
        // Long names are found by a scan, since only their digest is known.
        Some(Shown::Start(start)) => {
            let mut found = None;
            read::for_each_name(d, |entry| {
                if entry.name.len() > SHOWN && start_of(entry.name) == start {
                    found = Some(entry.name.to_vec());
                }
                Ok(())
            })?;
            Ok(found)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_names_contain_the_stored_name() {
        let names = Names { hasher: None };
        for len in [16, 32, 149, 150, 255] {
            let name: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let shown = names.show(&name, None).unwrap();
            assert!(shown.len() <= 255 && !shown.contains(&b'/'));
            match parse(&shown).unwrap() {
                Shown::Whole(stored) => assert!(stored == name && len <= SHOWN),
                Shown::Start(start) => assert!(start == start_of(&name) && len > SHOWN),
            }
        }
        assert!(names.show(&[0; 15], None).is_err());
        for wrong in [&b"name"[..], b"", b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", &[b'A'; 240]] {
            assert!(parse(wrong).is_none());
        }
    }

    /// `AAAAAAAAAAD` encodes eight zero bytes and the beginning of the next byte, as `fscrypt`
    /// documents.
    #[test]
    fn the_text_is_that_of_base64url() {
        let shown = Names { hasher: None }.show(&[0xFF; 16], None).unwrap();
        assert_eq!(shown, b"AAAAAAAAAAD_____________________");
        let shown = Names { hasher: None }.show(&[0xFF; 16], Some([0xFF; 8])).unwrap();
        assert_eq!(shown, [b'_'; 32]);
    }
}
