//! Structures that C reads and writes.

use extant::{Metadata, Timestamp};
use std::ffi::c_char;

/// A time: seconds since 1970, and nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub sec: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nsec: u32,
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Time {
        Time { sec: time.sec, nsec: time.nsec }
    }
}

/// Attributes of an inode, all of one moment.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Stat {
    /// Number of the inode.
    pub inode: u32,
    /// Number and generation together are never given to another inode.
    pub generation: u32,
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// Number of links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major number of a device file.
    pub device_major: u32,
    /// Minor number of a device file.
    pub device_minor: u32,
    /// Flags as chattr(1) has them, such as 0x10 for immutable.
    pub flags: u32,
    /// 1 if the time of creation is known.
    pub has_created: u32,
    /// Length in bytes.
    pub size: u64,
    /// Space that the inode takes, in units of 512 bytes.
    pub sectors: u64,
    /// Time of the last access.
    pub accessed: Time,
    /// Time of the last change of content.
    pub modified: Time,
    /// Time of the last change of the inode.
    pub changed: Time,
    /// Time of creation.
    pub created: Time,
}

impl From<&Metadata> for Stat {
    fn from(metadata: &Metadata) -> Stat {
        let (device_major, device_minor) = metadata.device_number();
        Stat {
            inode: metadata.inode(),
            generation: metadata.generation(),
            mode: metadata.mode().into(),
            links: metadata.links(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            device_major,
            device_minor,
            flags: metadata.flags(),
            has_created: metadata.created().is_some().into(),
            size: metadata.len(),
            sectors: metadata.sectors(),
            accessed: metadata.accessed().into(),
            modified: metadata.modified().into(),
            changed: metadata.changed().into(),
            created: metadata.created().map_or(Time::default(), Time::from),
        }
    }
}

/// Space of a file system, in blocks, and inodes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Usage {
    /// Bytes of a block.
    pub block_size: u32,
    /// All blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks that users other than root may take.
    pub available: u64,
    /// All inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
}

/// The work of recovery when a file system was opened.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Recovery {
    /// 1 if the file system had not been unmounted.
    pub was_in_use: u32,
    /// 1 if the device has not changed: the journal is replayed for this opening only.
    pub in_memory: u32,
    /// 1 if a damaged journal was skipped (`EXTANT_LENIENT`).
    pub skipped: u32,
    /// 1 if the file system can be read only, though the options allow changes.
    pub read_only: u32,
    /// Transactions of the journal that were replayed.
    pub transactions: u32,
    /// Blocks that they brought to their places.
    pub blocks: u64,
    /// Orphan inodes that were freed.
    pub orphans_freed: u64,
    /// Orphan inodes that were cut to their length.
    pub orphans_truncated: u64,
    /// Orphan records that named no valid inode.
    pub orphans_invalid: u64,
}

/// An entry of a directory, or of a walk.
#[repr(C)]
pub struct Entry {
    /// Name, or path in a walk: bytes that end with a zero byte, not always UTF-8.
    pub name: *const c_char,
    /// Bytes of the name.
    pub name_len: usize,
    /// Number of the inode.
    pub inode: u32,
    /// Type, as the bits `S_IFMT` of `st_mode`; 0 where directories keep none.
    pub file_type: u32,
    /// Directories between the beginning of a walk and the entry.
    pub depth: u32,
}

/// A part of a file that lies in one place.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Extent {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset on the device, in bytes; `UINT64_MAX` for content in the inode, or without a place so
    /// far.
    pub place: u64,
    /// 1 if the space is allocated and reads as zeroes.
    pub unwritten: u32,
    /// 1 if the content lies in the inode.
    pub is_inline: u32,
}
