//! The ioctls of Extant on the root directory of a live mount: one reads its counters, one sets a
//! tunable, one makes the file system larger, and one changes its label and UUID. This file has the
//! numbers and the callers; `server/ioctl.rs` answers.
//!
//! The size of an ioctl's argument is encoded in its number, and a FUSE server can return 16 KiB at
//! most. So a document is transferred in pages. The caller passes the index of a page and gets the
//! document's length, the number of a snapshot, and the page of that snapshot. A request for page 0
//! makes a new snapshot. A caller that gets a page of another snapshot starts again.

mod growth;
mod identity;

pub use growth::{GrowReply, GrowRequest};
pub use identity::IdentityRequest;
pub(crate) use identity::encode_reply;

use extant_engine::Error;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A refusal of a server, with cause and remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlRefusal {
    /// Number of the error.
    pub errno: i32,
    /// Cause and remedy.
    pub text: String,
}

impl From<&Error> for ControlRefusal {
    fn from(error: &Error) -> Self {
        ControlRefusal { errno: error.errno(), text: error.to_string() }
    }
}

/// Size of the argument of one call in bytes.
const CALL: usize = 8192;

/// Bytes before the page: the document's length and the number of the snapshot.
const HEAD: usize = 8;

/// Bytes of a page.
const PAGE: usize = CALL - HEAD;

/// Maximum number of pages that a caller reads.
const MAX_PAGES: u32 = 4096;

/// Maximum number of attempts of a caller.
const ATTEMPTS: u32 = 16;

/// The ioctl that reads a page of the counters.
pub(crate) const STATS: Opcode = opcode::read_write::<[u8; CALL]>(GROUP, 1);
const GROUP: u8 = b'E';

/// The ioctl that sets a tunable: a value, followed by a name padded with zeroes. It returns the
/// value in effect.
pub(crate) const SET: Opcode = opcode::read_write::<[u8; SETTING]>(GROUP, 2);

/// The ioctl that makes the file system larger.
pub(crate) const GROW: Opcode = opcode::read_write::<[u8; growth::BYTES]>(GROUP, 3);

/// The ioctl that changes label and UUID.
pub(crate) const IDENTIFY: Opcode = opcode::read_write::<[u8; identity::BYTES]>(GROUP, 4);

/// Name of the tunable that tells the server that a mount has become read-only (1) or is to become
/// writable (0). Everything is durable when 1 is set.
pub const READ_ONLY: &str = "read_only";

/// Name of the tunable that makes the server offer its mount to the process that sets it. The value
/// in effect is the number of a descriptor ([`TakenOffer`](crate::TakenOffer)).
pub const UPGRADE: &str = "upgrade";

/// Bytes of a setting, and of the value before its name.
const SETTING: usize = 64;
const VALUE: usize = 8;

/// Decodes name and value of a setting; `None` if the bytes are no setting.
pub(crate) fn setting(input: &[u8]) -> Option<(&str, u64)> {
    let value = u64::from_ne_bytes(input.get(..VALUE)?.try_into().ok()?);
    let name = input.get(VALUE..SETTING)?;
    let end = name.iter().position(|byte| *byte == 0)?;
    Some((std::str::from_utf8(&name[..end]).ok()?, value))
}

/// Encodes a setting for the ioctl; `None` if the name is too long.
pub(crate) fn encode_setting(name: &str, value: u64) -> Option<[u8; SETTING]> {
    let mut bytes = [0; SETTING];
    bytes[..VALUE].copy_from_slice(&value.to_ne_bytes());
    // At least one zero follows the name.
    bytes[VALUE..SETTING - 1].get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    Some(bytes)
}

/// Sets a tunable of the mount at `dir` and returns the value in effect.
///
/// # Errors
/// `ENOTTY` if `dir` is no mount of Extant; `EACCES` for users other than root and the mounter;
/// `ENOENT` if the tunable does not exist; `EINVAL` if it cannot have the value.
#[expect(unsafe_code, reason = "an ioctl is a foreign call")]
pub fn set(dir: &Path, name: &str, value: u64) -> io::Result<u64> {
    let mut bytes =
        encode_setting(name, value).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let root = File::open(dir)?;
    // SAFETY: the number of the ioctl encodes that it reads and writes SETTING bytes, and `bytes`
    // has as many; a file system that does not know the number accesses no memory.
    unsafe { ioctl(&root, Updater::<SET, [u8; SETTING]>::new(&mut bytes)) }?;
    setting(&bytes)
        .map(|(_, value)| value)
        .ok_or_else(|| io::Error::other("the answer is no setting"))
}

/// Makes the file system of the mount at `dir` larger. A refusal is a reply.
///
/// # Errors
/// `ENOTTY` if `dir` is no mount of Extant; `EACCES` for users other than root and the mounter.
#[expect(unsafe_code, reason = "an ioctl is a foreign call")]
pub fn grow(dir: &Path, request: GrowRequest) -> io::Result<GrowReply> {
    let mut bytes = request.encode();
    let root = File::open(dir)?;
    // SAFETY: the number of the ioctl encodes that it reads and writes `growth::BYTES` bytes, and
    // `bytes` has as many; a file system that does not know the number accesses no memory.
    unsafe { ioctl(&root, Updater::<GROW, [u8; growth::BYTES]>::new(&mut bytes)) }?;
    GrowReply::decode(&bytes).ok_or_else(|| io::Error::other("the answer is no size"))
}

/// Gives the file system of the mount at `dir` another label or UUID. A refusal is a reply.
///
/// # Errors
/// `ENOTTY` if `dir` is no mount of Extant; `EACCES` for users other than root and the mounter.
#[expect(unsafe_code, reason = "an ioctl is a foreign call")]
pub fn set_identity(
    dir: &Path,
    request: IdentityRequest,
) -> io::Result<Result<(), ControlRefusal>> {
    let mut bytes = request.encode();
    let root = File::open(dir)?;
    // SAFETY: the number of the ioctl encodes that it reads and writes `identity::BYTES` bytes, and
    // `bytes` has as many; a file system that does not know the number accesses no memory.
    unsafe { ioctl(&root, Updater::<IDENTIFY, [u8; identity::BYTES]>::new(&mut bytes)) }?;
    identity::decode_reply(&bytes).ok_or_else(|| io::Error::other("the answer is no reply"))
}

/// State of the server: the current snapshot and its number.
#[derive(Debug, Default)]
pub(crate) struct Pages(Mutex<(u32, Arc<[u8]>)>);

impl Pages {
    /// Answers a call; `None` if the page does not exist.
    pub(crate) fn page(&self, input: &[u8], document: impl FnOnce() -> Vec<u8>) -> Option<Vec<u8>> {
        let page = word(input, 0)? as usize;
        let (copy, text) = match page {
            0 => self.renew(document()),
            _ => self.0.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        };
        let rest = text.get(page.checked_mul(PAGE)?..)?;
        let mut out = vec![0; CALL];
        out[..4].copy_from_slice(&(text.len() as u32).to_ne_bytes());
        out[4..HEAD].copy_from_slice(&copy.to_ne_bytes());
        let len = rest.len().min(PAGE);
        out[HEAD..HEAD + len].copy_from_slice(&rest[..len]);
        Some(out)
    }

    fn renew(&self, document: Vec<u8>) -> (u32, Arc<[u8]>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = (kept.0.wrapping_add(1), document.into());
        kept.clone()
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Returns the counters of the mount at `dir` as JSON.
///
/// # Errors
/// `ENOTTY` if `dir` is no mount of Extant; `EACCES` for users other than root and the mounter.
pub fn stats(dir: &Path) -> io::Result<Vec<u8>> {
    let root = File::open(dir)?;
    for _ in 0..ATTEMPTS {
        if let Some(document) = read(&root)? {
            return Ok(document);
        }
    }
    Err(io::Error::other("others read the counters all the time"))
}

/// Reads all pages; `None` if they belong to different snapshots.
fn read(root: &File) -> io::Result<Option<Vec<u8>>> {
    let mut document = Vec::new();
    let mut first = None;
    for page in 0..MAX_PAGES {
        let bytes = ask(root, page)?;
        let (Some(len), Some(copy)) = (word(&bytes, 0), word(&bytes, 4)) else { break };
        if *first.get_or_insert(copy) != copy {
            return Ok(None);
        }
        let left = (len as usize).saturating_sub(document.len());
        document.extend_from_slice(&bytes[HEAD..HEAD + left.min(PAGE)]);
        if left <= PAGE {
            return Ok(Some(document));
        }
    }
    Err(io::Error::other("the counters have no end"))
}

#[expect(unsafe_code, reason = "an ioctl is a foreign call")]
fn ask(root: &File, page: u32) -> io::Result<[u8; CALL]> {
    let mut bytes = [0; CALL];
    bytes[..4].copy_from_slice(&page.to_ne_bytes());
    // SAFETY: the number of the ioctl encodes that it reads and writes CALL bytes, and `bytes` has
    // as many; a file system that does not know the number accesses no memory.
    unsafe { ioctl(root, Updater::<STATS, [u8; CALL]>::new(&mut bytes)) }?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_come_back_as_they_were() {
        let long = "x".repeat(SETTING - VALUE - 1);
        for name in ["", "mb_frsp_max_mem", &long] {
            let bytes = encode_setting(name, 1 << 40).unwrap();
            assert_eq!(setting(&bytes), Some((name, 1 << 40)));
        }
        assert!(encode_setting(&format!("{long}x"), 1).is_none());
        assert!(setting(&[]).is_none() && setting(&[1; SETTING]).is_none());
    }

    #[test]
    fn documents_come_in_pages() {
        let pages = Pages::default();
        let document: Vec<u8> = (0..20_000u32).map(|i| i as u8).collect();
        let ask = |page: u32| pages.page(&page.to_ne_bytes(), || document.clone());
        let first = ask(0).unwrap();
        assert_eq!((word(&first, 0), word(&first, 4)), (Some(20_000), Some(1)));
        let last = ask(2).unwrap();
        assert_eq!(last[HEAD], document[2 * PAGE]);
        assert!(ask(3).is_none());
        assert!(pages.page(&[], Vec::new).is_none());
        assert_eq!(word(&ask(0).unwrap(), 4), Some(2));
    }
}
