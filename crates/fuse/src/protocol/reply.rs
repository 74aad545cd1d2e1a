//! Encodes replies.

use super::abi::{AttrOut, Attributes, EntryOut, OpenOut, StatxOut, Time, statx as mask};
use crate::handler::{Answer, Entry};
use crate::types::{ErrorCode, FileAttr, OpenReplyFlags, decode_rdev};
use extant_engine::{FileType, Timestamp};
use std::time::Duration;
use zerocopy::{Immutable, IntoBytes};

/// Buffer of a reply, filled from the start.
#[derive(Debug)]
pub struct Out<'a> {
    buf: &'a mut [u8],
    len: usize,
}

impl<'a> Out<'a> {
    pub fn new(buf: &'a mut [u8]) -> Out<'a> {
        Out { buf, len: 0 }
    }

    /// Returns the number of bytes in the buffer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Appends bytes; `ERANGE` if the buffer is too small.
    pub fn bytes(&mut self, bytes: &[u8]) -> Answer<()> {
        let end = self.len + bytes.len();
        self.buf.get_mut(self.len..end).ok_or(ErrorCode::ERANGE)?.copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }

    pub fn put<T: IntoBytes + Immutable>(&mut self, value: &T) -> Answer<()> {
        self.bytes(value.as_bytes())
    }
}

/// Writes one structure, or bytes, to the start of `buf`, and returns its length.
pub fn only<T: IntoBytes + Immutable + ?Sized>(buf: &mut [u8], value: &T) -> Answer<usize> {
    let mut out = Out::new(buf);
    out.bytes(value.as_bytes())?;
    Ok(out.len())
}

/// Returns the type bits of a mode. An unknown type is reported as a regular file.
fn type_bits(kind: FileType) -> u32 {
    let known = if kind == FileType::Unknown { FileType::Regular } else { kind };
    u32::from(known.to_mode())
}

/// Returns the type as a listing encodes it.
pub fn listed_type(kind: FileType) -> u32 {
    type_bits(kind) >> 12
}

/// Returns attributes in their layout on the wire.
fn attributes(a: &FileAttr) -> Attributes {
    Attributes {
        ino: a.ino.0,
        size: a.size,
        blocks: a.blocks,
        atime: a.atime.sec,
        mtime: a.mtime.sec,
        ctime: a.ctime.sec,
        atime_nsec: a.atime.nsec,
        mtime_nsec: a.mtime.nsec,
        ctime_nsec: a.ctime.nsec,
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

/// Returns all attributes, with the time of birth where the inode has one.
pub fn statx(attr: &FileAttr, birth: Option<Timestamp>, ttl: Duration) -> StatxOut {
    let time = |t: Timestamp| Time { sec: t.sec, nsec: t.nsec, reserved: 0 };
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
        atime: time(attr.atime),
        btime: time(birth.unwrap_or_default()),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
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

/// Returns the entry of a name that does not exist, which the kernel may cache.
pub fn no_entry(ttl: Duration) -> EntryOut {
    entry_out(&FileAttr::default(), 0, ttl)
}

/// Returns the flags of the reply to an open. `past_pages`: the descriptor bypasses the page cache,
/// and the kernel refuses shared mappings unless INIT requested FUSE_DIRECT_IO_ALLOW_MMAP.
fn open_flags(past_pages: bool) -> OpenReplyFlags {
    let always = OpenReplyFlags::KEEP_CACHE | OpenReplyFlags::NOFLUSH;
    // Parallel direct writes are for O_DIRECT.
    let other =
        if past_pages { OpenReplyFlags::DIRECT_IO } else { OpenReplyFlags::PARALLEL_DIRECT_WRITES };
    always | other
}

/// Returns the reply to an open. Later requests carry the handle.
pub fn opened(handle: u64, past_pages: bool) -> OpenOut {
    OpenOut { fh: handle, flags: open_flags(past_pages).bits(), backing: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_beyond_the_buffer_are_an_error() {
        let mut buf = [0; 10];
        let mut out = Out::new(&mut buf);
        assert!(out.bytes(&[1; 8]).is_ok());
        assert!(out.bytes(&[1; 3]).is_err());
        assert_eq!(out.len(), 8);
    }
}
