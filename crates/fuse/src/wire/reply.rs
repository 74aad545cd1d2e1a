//! Replies as bytes.

use super::structs::{AttrOut, Attributes, EntryOut, OpenOut, StatxOut, Time, statx as mask};
use crate::convert::{decode_rdev, negative};
use crate::flags;
use crate::service::{Answer, Entry};
use extant::Timestamp;
use fuser::{Errno, FileAttr, FileType};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use zerocopy::{Immutable, IntoBytes};

/// A reply's place. Parts follow each other.
#[derive(Debug)]
pub struct Out<'a> {
    buf: &'a mut [u8],
    len: usize,
}

impl<'a> Out<'a> {
    pub fn new(buf: &'a mut [u8]) -> Out<'a> {
        Out { buf, len: 0 }
    }

    /// So many bytes were put.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes; ERANGE if they find no room.
    pub fn bytes(&mut self, bytes: &[u8]) -> Answer<()> {
        let end = self.len + bytes.len();
        self.buf.get_mut(self.len..end).ok_or(Errno::ERANGE)?.copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }

    pub fn put<T: IntoBytes + Immutable>(&mut self, value: &T) -> Answer<()> {
        self.bytes(value.as_bytes())
    }
}

/// One structure, or bytes, from the start of `buf`; how long it is.
pub fn only<T: IntoBytes + Immutable + ?Sized>(buf: &mut [u8], value: &T) -> Answer<usize> {
    let mut out = Out::new(buf);
    out.bytes(value.as_bytes())?;
    Ok(out.len())
}

/// Seconds and nanoseconds, which count forward.
fn since_epoch(t: SystemTime) -> (i64, u32) {
    match t.duration_since(UNIX_EPOCH) {
        Ok(d) => (d.as_secs() as i64, d.subsec_nanos()),
        Err(e) => match (e.duration().as_secs() as i64, e.duration().subsec_nanos()) {
            (sec, 0) => (-sec, 0),
            (sec, nsec) => (-sec - 1, 1_000_000_000 - nsec),
        },
    }
}

/// The type as a mode has it.
fn type_bits(kind: FileType) -> u32 {
    match kind {
        FileType::NamedPipe => 0o010_000,
        FileType::CharDevice => 0o020_000,
        FileType::Directory => 0o040_000,
        FileType::BlockDevice => 0o060_000,
        FileType::RegularFile => 0o100_000,
        FileType::Symlink => 0o120_000,
        FileType::Socket => 0o140_000,
    }
}

/// The type as a listing has it.
pub fn listed_type(kind: FileType) -> u32 {
    type_bits(kind) >> 12
}

/// Attributes as the protocol has them.
fn attributes(a: &FileAttr) -> Attributes {
    let (atime, mtime, ctime) = (since_epoch(a.atime), since_epoch(a.mtime), since_epoch(a.ctime));
    Attributes {
        ino: a.ino.0,
        size: a.size,
        blocks: a.blocks,
        atime: atime.0,
        mtime: mtime.0,
        ctime: ctime.0,
        atime_nsec: atime.1,
        mtime_nsec: mtime.1,
        ctime_nsec: ctime.1,
        mode: type_bits(a.kind) | u32::from(a.perm),
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: a.blksize,
        flags: 0,
    }
}

pub fn attr_out(attr: &FileAttr, ttl: Duration) -> AttrOut {
    AttrOut {
        valid: ttl.as_secs(),
        valid_nsec: ttl.subsec_nanos(),
        dummy: 0,
        attr: attributes(attr),
    }
}

/// All attributes; the time of birth where the inode has one.
pub fn statx(attr: &FileAttr, birth: Option<Timestamp>, ttl: Duration) -> StatxOut {
    let time = |(sec, nsec)| Time { sec, nsec, reserved: 0 };
    let (rdev_major, rdev_minor) = decode_rdev(attr.rdev);
    StatxOut {
        valid: ttl.as_secs(),
        valid_nsec: ttl.subsec_nanos(),
        dummy: 0,
        spare: [0; 2],
        mask: mask::BASIC | if birth.is_some() { mask::BIRTH } else { 0 },
        blksize: attr.blksize,
        attributes: 0,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: type_bits(attr.kind) as u16 | attr.perm,
        spare0: 0,
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks,
        attributes_mask: 0,
        atime: time(since_epoch(attr.atime)),
        btime: time(birth.map_or((0, 0), |t| (t.sec, t.nsec))),
        ctime: time(since_epoch(attr.ctime)),
        mtime: time(since_epoch(attr.mtime)),
        rdev_major,
        rdev_minor,
        dev_major: 0,
        dev_minor: 0,
        spare2: [0; 14],
    }
}

pub fn entry_out(attr: &FileAttr, generation: u64, ttl: Duration) -> EntryOut {
    EntryOut {
        node: attr.ino.0,
        generation,
        entry_valid: ttl.as_secs(),
        attr_valid: ttl.as_secs(),
        entry_valid_nsec: ttl.subsec_nanos(),
        attr_valid_nsec: ttl.subsec_nanos(),
        attr: attributes(attr),
    }
}

pub fn entry(entry: &Entry, ttl: Duration) -> EntryOut {
    entry_out(&entry.attr, entry.generation, ttl)
}

/// There is no such name, and the kernel may remember that.
pub fn no_entry(ttl: Duration) -> EntryOut {
    entry_out(&negative(), 0, ttl)
}

/// The handle comes back with later requests.
pub fn opened(handle: u64, past_pages: bool) -> OpenOut {
    OpenOut { fh: handle, flags: flags::open(past_pages).bits(), backing: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch_count_nanoseconds_forward() {
        assert_eq!(since_epoch(UNIX_EPOCH - Duration::new(1, 200_000_000)), (-2, 800_000_000));
        assert_eq!(since_epoch(UNIX_EPOCH - Duration::from_secs(3)), (-3, 0));
        assert_eq!(since_epoch(UNIX_EPOCH + Duration::new(5, 6)), (5, 6));
    }

    #[test]
    fn what_finds_no_room_is_an_error() {
        let mut buf = [0; 10];
        let mut out = Out::new(&mut buf);
        assert!(out.bytes(&[1; 8]).is_ok());
        assert!(out.bytes(&[1; 3]).is_err());
        assert_eq!(out.len(), 8);
    }
}
