//! Listings as bytes.

use super::reply::{self, listed_type, no_entry};
use super::structs::{Dirent, EntryOut};
use crate::service::{Answer, Entry, Listed, Service};
use fuser::INodeNo;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

/// Every entry of a listing starts at a multiple of this.
const ALIGN: usize = 8;

/// A listing that grows in a reply's place.
struct Listing<'a> {
    buf: &'a mut [u8],
    len: usize,
}

impl Listing<'_> {
    /// Adds an entry: what precedes it, and its name. False if it finds no room.
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

    /// How many bytes the reply has. What was handed out before an error counts, and may be counted
    /// as looked up: the error comes with the next request, which goes on where it is.
    fn done(&self, listed: Answer<()>) -> Answer<usize> {
        match listed {
            Err(e) if self.len == 0 => Err(e),
            _ => Ok(self.len),
        }
    }
}

/// Names alone; how many bytes.
pub fn plain(service: &impl Service, ino: INodeNo, from: u64, buf: &mut [u8]) -> Answer<usize> {
    let mut listing = Listing { buf, len: 0 };
    let listed = service.list(ino, from, &mut |e| listing.add(&[], e));
    listing.done(listed)
}

/// Names with attributes.
pub fn plus(
    service: &impl Service,
    ino: INodeNo,
    from: u64,
    ttl: Duration,
    buf: &mut [u8],
) -> Answer<usize> {
    let mut listing = Listing { buf, len: 0 };
    let listed =
        service.list_plus(ino, from, &mut |e, entry| listing.add(head(entry, ttl).as_bytes(), e));
    listing.done(listed)
}

/// The attributes before a name. Where there are none, the node's number is 0: the kernel takes the
/// name alone, counts no lookup and sends no FORGET.
fn head(entry: Option<&Entry>, ttl: Duration) -> EntryOut {
    entry.map_or_else(|| no_entry(Duration::ZERO), |found| reply::entry(found, ttl))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::negative;
    use fuser::FileType;

    #[test]
    fn what_was_handed_out_before_an_error_counts() {
        let mut buf = [0; 64];
        let mut listing = Listing { buf: &mut buf, len: 0 };
        assert!(listing.done(Err(fuser::Errno::EIO)).is_err());
        assert!(listing.add(
            &[],
            Listed { ino: INodeNo(5), next: 7, kind: FileType::Directory, name: b"abc" }
        ));
        assert_eq!(listing.done(Err(fuser::Errno::EIO)).ok(), Some(32));
    }

    #[test]
    fn a_name_without_attributes_counts_no_lookup() {
        let known = Entry { attr: negative(), generation: 3 };
        let attr = fuser::FileAttr { ino: INodeNo(5), ..known.attr };
        assert_eq!(head(Some(&Entry { attr, ..known }), Duration::from_secs(1)).node, 5);
        assert_eq!(head(None, Duration::from_secs(1)).node, 0);
    }

    #[test]
    fn entries_are_padded_and_stop_at_the_end() {
        let mut buf = [0xff; 64];
        let mut listing = Listing { buf: &mut buf, len: 0 };
        let name = |name| Listed { ino: INodeNo(5), next: 7, kind: FileType::Directory, name };
        assert!(listing.add(&[], name(b"abc")));
        assert_eq!(listing.len, 32);
        assert!(!listing.add(&[], name(b"a long name")));
        assert!(listing.add(&[], name(b"12345678")));
        assert_eq!(listing.len, 64);
        assert_eq!(&buf[24..32], b"abc\0\0\0\0\0");
        assert_eq!(buf[20], 4, "the type of a directory");
    }
}
