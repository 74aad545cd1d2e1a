//! Values that calls take and give.

use extant_engine as engine;
use extant_engine::{Attr, FileType, TimeSet, Timestamp};

/// Attributes of an inode, all of one moment, as statx(2) has them.
///
/// ```
/// # use extant::*;
/// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
/// # let fs = Fs::options().create_on(device, &mkfs::Options::default())?;
/// fs.write("/f", b"12345")?;
/// let metadata = fs.metadata("/f")?;
/// assert!(metadata.is_file() && metadata.len() == 5 && metadata.permissions() == 0o644);
/// # fs.unmount()?; Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Metadata(pub(crate) Attr);

impl Metadata {
    /// The number of the inode.
    pub fn inode(&self) -> u32 {
        self.0.ino as u32
    }

    /// The generation: number and generation together are never given to another inode.
    pub fn generation(&self) -> u32 {
        self.0.generation
    }

    /// The type.
    pub fn file_type(&self) -> FileType {
        self.0.ftype
    }

    /// Whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.0.ftype == FileType::Directory
    }

    /// Whether this is a regular file.
    pub fn is_file(&self) -> bool {
        self.0.ftype == FileType::Regular
    }

    /// Whether this is a symlink.
    pub fn is_symlink(&self) -> bool {
        self.0.ftype == FileType::Symlink
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a length in bytes, as in std")]
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Type and permission bits, as `st_mode`.
    pub fn mode(&self) -> u16 {
        self.0.mode
    }

    /// Permission bits (07777).
    pub fn permissions(&self) -> u16 {
        self.0.mode & 0o7777
    }

    /// The number of links.
    pub fn links(&self) -> u32 {
        self.0.nlink
    }

    /// The owner.
    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    /// The group.
    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    /// Device number of a device file: major, minor.
    pub fn device_number(&self) -> (u32, u32) {
        self.0.rdev
    }

    /// Space that the inode takes, in blocks of 512 bytes.
    pub fn sectors(&self) -> u64 {
        self.0.blocks
    }

    /// Time of the last access.
    pub fn accessed(&self) -> Timestamp {
        self.0.atime
    }

    /// Time of the last change of content.
    pub fn modified(&self) -> Timestamp {
        self.0.mtime
    }

    /// Time of the last change of the inode.
    pub fn changed(&self) -> Timestamp {
        self.0.ctime
    }

    /// Time of creation; `None` where inodes of 128 bytes do not keep it.
    pub fn created(&self) -> Option<Timestamp> {
        self.0.crtime
    }

    /// Flags as chattr(1) has them, such as 0x10 for immutable.
    pub fn flags(&self) -> u32 {
        self.0.flags
    }
}

/// Attributes to set; all others stay as they are.
///
/// ```
/// # use extant::*;
/// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
/// # let fs = Fs::options().create_on(device, &mkfs::Options::default())?;
/// fs.write("/f", b"12345")?;
/// let set = SetMetadata::new().permissions(0o600).owner(1000, 1000);
/// assert_eq!(fs.set_metadata("/f", &set)?.uid(), 1000);
/// # fs.unmount()?; Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SetMetadata(pub(crate) engine::SetAttr);

impl SetMetadata {
    /// Sets nothing.
    pub fn new() -> SetMetadata {
        SetMetadata::default()
    }

    /// Sets permission bits (07777).
    #[must_use]
    pub fn permissions(mut self, bits: u16) -> Self {
        self.0.mode = Some(bits & 0o7777);
        self
    }

    /// Sets owner and group.
    #[must_use]
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        (self.0.uid, self.0.gid) = (Some(uid), Some(gid));
        self
    }

    /// Cuts a file to a length in bytes, or lets it grow with a hole.
    #[must_use]
    pub fn len(mut self, bytes: u64) -> Self {
        self.0.size = Some(bytes);
        self
    }

    /// Sets the time of the last access.
    #[must_use]
    pub fn accessed(mut self, time: Timestamp) -> Self {
        self.0.atime = Some(TimeSet::At(time));
        self
    }

    /// Sets the time of the last change of content.
    #[must_use]
    pub fn modified(mut self, time: Timestamp) -> Self {
        self.0.mtime = Some(TimeSet::At(time));
        self
    }
}

/// An entry of a directory. See [`Dir::entries`](crate::Dir::entries) for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirEntry {
    /// Name: bytes, not always UTF-8.
    pub name: Vec<u8>,
    /// Inode number.
    pub inode: u32,
    /// Type; `Unknown` where directories keep none.
    pub file_type: FileType,
}

/// A part of a file that lies in one place. See [`File::extents`](crate::File::extents) for an
/// example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extent {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset on the device, in bytes; `None` for content in the inode, or without a place so far.
    pub place: Option<u64>,
    /// The space is allocated, and reads as zeroes.
    pub unwritten: bool,
    /// The content lies in the inode.
    pub inline: bool,
}

impl Extent {
    pub(crate) fn of(extent: &engine::Extent) -> Extent {
        let flags = extent.flags;
        Extent {
            offset: extent.logical,
            len: extent.len,
            place: (!flags.delayed && !flags.inline).then_some(extent.physical),
            unwritten: flags.unwritten,
            inline: flags.inline,
        }
    }
}

/// The work of recovery at the opening. See [`Fs::recovery`](crate::Fs::recovery) for an example.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
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
    /// The file system had not been unmounted.
    pub was_in_use: bool,
    /// The device has not changed: its journal is replayed for this opening only.
    pub in_memory: bool,
    /// The reason for which a damaged journal was skipped
    /// ([`OpenOptions::lenient`](crate::OpenOptions::lenient)).
    pub skipped: Option<String>,
    /// The reason for which the file system can be read only, though the options allow changes.
    pub read_only: Option<String>,
}

impl Recovery {
    pub(crate) fn of(found: &engine::Recovery) -> Recovery {
        let journal = found.journal.as_ref();
        Recovery {
            transactions: journal.map_or(0, |journal| journal.transactions),
            blocks: journal.map_or(0, |journal| journal.blocks),
            orphans_freed: found.orphans.freed,
            orphans_truncated: found.orphans.truncated,
            orphans_invalid: found.orphans.invalid,
            was_in_use: found.was_in_use,
            in_memory: found.in_memory,
            skipped: found.log_skipped.clone(),
            read_only: found.read_only.clone(),
        }
    }
}

/// Access and creation for [`Fs::open_file_with`](crate::Fs::open_file_with), as
/// [`std::fs::OpenOptions`]. The default reads.
///
/// ```
/// # use extant::*;
/// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
/// # let fs = Fs::options().create_on(device, &mkfs::Options::default())?;
/// let mut log = fs.open_file_with("/log", &FileOptions::new().create(true).append(true))?;
/// std::io::Write::write_all(&mut log, b"a line\n").unwrap();
/// # drop(log); fs.unmount()?; Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct FileOptions {
    pub(crate) flags: engine::OpenFlags,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
}

impl FileOptions {
    /// Reads an existing file.
    pub fn new() -> FileOptions {
        FileOptions::default()
    }

    /// Allows changes of content.
    #[must_use]
    pub fn write(mut self, yes: bool) -> Self {
        self.flags.write = yes;
        self
    }

    /// Sends every write to the end of the file; implies [`write`](Self::write).
    #[must_use]
    pub fn append(mut self, yes: bool) -> Self {
        self.flags.append = yes;
        self.flags.write |= yes;
        self
    }

    /// Cuts the file to no bytes; implies [`write`](Self::write).
    #[must_use]
    pub fn truncate(mut self, yes: bool) -> Self {
        self.flags.truncate = yes;
        self.flags.write |= yes;
        self
    }

    /// Creates the file if the name is absent, with permissions 0644.
    #[must_use]
    pub fn create(mut self, yes: bool) -> Self {
        self.create = yes;
        self
    }

    /// Creates the file, and fails with [`AlreadyExists`](crate::ErrorKind::AlreadyExists) if the
    /// name exists.
    #[must_use]
    pub fn create_new(mut self, yes: bool) -> Self {
        self.create_new = yes;
        self
    }
}
