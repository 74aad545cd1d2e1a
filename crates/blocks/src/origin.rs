//! The storage behind ranges of devices, by which equal content is known without reading it.
//!
//! For example, two overlays lie over one backing file. Where neither has a cluster of its own,
//! both answer with the same range of that file, and the content is the same. Two copies by reflink
//! answer with the same blocks of the host's file system where neither was written to.

/// The storage behind a range of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// Known to the device alone: nothing is said about its content.
    Own,
    /// None: the range reads as zeroes.
    Zeroes,
    /// Bytes of a file or a disk of the host.
    Host {
        /// The number of the file's device, or of the disk.
        device: u64,
        /// The number of the file's inode; `None` for a disk.
        ino: Option<u64>,
        /// Offset of the first byte.
        offset: u64,
    },
    /// Blocks of a file system of the host that several of its files share.
    Shared {
        /// The number of the file system's device.
        device: u64,
        /// Offset of the first byte in the file system's numbering of its bytes.
        offset: u64,
    },
}

/// A range of a device with one origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OriginRun {
    /// The origin of the first byte; that of the others is behind it.
    pub origin: Origin,
    /// Bytes: those asked for, or fewer.
    pub len: u64,
}

impl OriginRun {
    /// Returns a run of `len` bytes from an origin.
    pub fn new(origin: Origin, len: u64) -> OriginRun {
        OriginRun { origin, len }
    }

    /// Returns a run of which nothing is known.
    pub fn own(len: u64) -> OriginRun {
        OriginRun::new(Origin::Own, len)
    }
}
