//! Encodes directory listings.

use super::abi::{Dirent, EntryOut};
use super::reply::{self, listed_type, no_entry};
use crate::handler::{Answer, Entry, Handler, Listed};
use crate::types::NodeId;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

/// Alignment of entries in bytes.
const ALIGN: usize = 8;

/// A listing that grows in the buffer of a reply.
struct Listing<'a> {
    buf: &'a mut [u8],
    len: usize,
}

impl Listing<'_> {
    /// Adds an entry after the bytes `before` it; false if the buffer is too small.
    fn add(&mut self, before: &[u8], e: Listed<'_>) -> bool {
        let dirent = Dirent {
            ino: e.ino.0,
            off: e.next,
            namelen: e.name.len() as u32,
            kind: listed_type(e.kind),
        };
        let bytes = before.len() + size_of::<Dirent>() + e.name.len();
        let end = self.len + bytes.next_multiple_of(ALIGN);
        let Some(place) = self.buf.get_mut(self.len..end) else { return false };
        let mut rest = place;
        for part in [before, dirent.as_bytes(), e.name] {
            let (here, behind) = rest.split_at_mut(part.len());
            here.copy_from_slice(part);
            rest = behind;
        }
        rest.zero();
        self.len = end;
        true
    }

    /// Returns the length of the reply. An error after the first entry is dropped, since the
    /// entries may count lookups; the next request continues at the error and returns it.
    fn done(&self, listed: Answer<()>) -> Answer<usize> {
        match listed {
            Err(e) if self.len == 0 => Err(e),
            _ => Ok(self.len),
        }
    }
}

/// Lists names alone and returns the length of the reply.
pub fn plain(handler: &impl Handler, ino: NodeId, from: u64, buf: &mut [u8]) -> Answer<usize> {
    let mut listing = Listing { buf, len: 0 };
    let listed = handler.list(ino, from, &mut |e| listing.add(&[], e));
    listing.done(listed)
}

/// Lists names with attributes and returns the length of the reply.
pub fn plus(
    handler: &impl Handler,
    ino: NodeId,
    from: u64,
    ttl: Duration,
    buf: &mut [u8],
) -> Answer<usize> {
    let mut listing = Listing { buf, len: 0 };
    let listed =
        handler.list_plus(ino, from, &mut |e, entry| listing.add(head(entry, ttl).as_bytes(), e));
    listing.done(listed)
}

/// Returns the attributes before a name. Without an entry the node id is 0: the kernel takes the
/// name alone, counts no lookup and sends no FORGET.
fn head(entry: Option<&Entry>, ttl: Duration) -> EntryOut {
    entry.map_or_else(|| no_entry(Duration::ZERO), |found| reply::entry(found, ttl))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{ErrorCode, FileAttr};
    use extant_engine::FileType;

    #[test]
    fn entries_before_an_error_count() {
        let mut buf = [0; 64];
        let mut listing = Listing { buf: &mut buf, len: 0 };
        assert!(listing.done(Err(ErrorCode::EIO)).is_err());
        assert!(
            listing.add(
                &[],
                Listed { ino: NodeId(5), next: 7, kind: FileType::Directory, name: b"abc" }
            )
        );
        assert_eq!(listing.done(Err(ErrorCode::EIO)).ok(), Some(32));
    }

    #[test]
    fn a_name_without_attributes_counts_no_lookup() {
        let known = Entry { attr: FileAttr::default(), generation: 3 };
        let attr = FileAttr { ino: NodeId(5), ..known.attr };
        assert_eq!(head(Some(&Entry { attr, ..known }), Duration::from_secs(1)).node, 5);
        assert_eq!(head(None, Duration::from_secs(1)).node, 0);
    }

    #[test]
    fn entries_are_padded_and_stop_at_the_end() {
        let mut buf = [0xff; 64];
        let mut listing = Listing { buf: &mut buf, len: 0 };
        let name = |name| Listed { ino: NodeId(5), next: 7, kind: FileType::Directory, name };
        assert!(listing.add(&[], name(b"abc")));
        assert_eq!(listing.len, 32);
        assert!(!listing.add(&[], name(b"a long name")));
        assert!(listing.add(&[], name(b"12345678")));
        assert_eq!(listing.len, 64);
        assert_eq!(&buf[24..32], b"abc\0\0\0\0\0");
        assert_eq!(buf[20], 4, "the type of a directory");
    }
}
