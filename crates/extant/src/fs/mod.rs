//! An open file system, and its calls by path.

mod frozen;
mod options;

pub use frozen::Frozen;
pub use options::OpenOptions;

use crate::core::Core;
use crate::error::{ErrorKind, Op, Result};
use crate::handle::{Dir, File, Inode, Walk};
use crate::path::AsBytes;
use crate::types::{DirEntry, FileOptions, Metadata, Recovery, SetMetadata};
use extant_engine::{Follow, Node, NodeKind, OpenFlags, Usage};
use std::path::Path;
use std::sync::Arc;

/// An open file system. Clones refer to the same one; any number of threads may use them.
///
/// It is unmounted by [`Fs::unmount`], or when the last of its handles and clones is dropped; an
/// error of the latter is logged only.
///
/// Paths begin at the root directory. Symlinks on the way are followed, and at the end by `read`,
/// `write`, `metadata`, `set_metadata`, `lookup`, `read_dir`, `walk` and the calls that open.
/// Permission bits are not checked: the caller has the rights of root.
///
/// ```
/// use extant::{Fs, Result, device::MemDevice, mkfs};
/// use std::sync::Arc;
///
/// # fn main() -> Result<()> {
/// let device = Arc::new(MemDevice::new(64 << 20));
/// let fs = Fs::options().create_on(device.clone(), &mkfs::Options::default())?;
/// fs.create_dir_all("/var/log")?;
/// fs.write("/var/log/today", b"hello")?;
/// fs.unmount()?;
///
/// // Reading changes nothing on the device, even where a journal must be replayed.
/// let fs = Fs::options().read_only().open_on(device)?;
/// assert_eq!(fs.read("/var/log/today")?, b"hello");
/// # fs.unmount()
/// # }
/// ```
///
/// # Errors
/// Every call may fail with `Unmounted` after the unmount, `Device` for a failed request, `Corrupt`
/// for a damaged structure, `Aborted` for a change after an earlier error, and `Stale` on a handle
/// whose inode was freed. Calls by path fail with `NotFound`, `NotADirectory`, `NameTooLong` and
/// `TooManySymlinks` for the way. Methods name their other errors.
///
/// # Panics
/// No call panics.
#[derive(Clone, Debug)]
pub struct Fs {
    core: Arc<Core>,
}

/// Calls of the whole file system.
impl Fs {
    /// Opens an image file or block device with default options; see [`OpenOptions::open`].
    ///
    /// ```no_run
    /// let fs = extant::Fs::open("disk.img")?;
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Fs> {
        Self::options().open(path)
    }

    /// The default options. See [`OpenOptions`] for an example.
    pub fn options() -> OpenOptions {
        OpenOptions::default()
    }

    /// The root directory.
    ///
    /// # Errors
    /// Those of every call.
    pub fn root(&self) -> Result<Dir> {
        let node = self.core.done(Op::Lookup, 0, self.core.ops.root())?;
        self.handle(node).into_dir()
    }

    /// The inode of a number.
    ///
    /// # Errors
    /// [`Stale`](ErrorKind::Stale) if the number is free, or belongs to an inode of the file
    /// system's own, such as the journal; those of every call.
    pub fn inode(&self, number: u32) -> Result<Inode> {
        let node = self.core.ops.node(u64::from(number));
        self.core.done(Op::Lookup, number, node).map(|node| self.handle(node))
    }

    /// The work of recovery when this file system was opened.
    ///
    /// ```
    /// # use extant::*;
    /// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
    /// # let fs = Fs::options().create_on(device, &mkfs::Options::default())?;
    /// assert_eq!(fs.recovery().transactions, 0);
    /// # fs.unmount()?; Ok::<(), Error>(())
    /// ```
    pub fn recovery(&self) -> &Recovery {
        &self.core.recovery
    }

    /// Space and inodes: all, free, and available to users other than root.
    pub fn usage(&self) -> Usage {
        self.core.ops.usage()
    }

    /// Bytes of a block, 1024 to 65536.
    pub fn block_size(&self) -> u32 {
        self.core.ops.block_size()
    }

    /// Makes all changes durable that were made before the call.
    ///
    /// # Errors
    /// `NoSpace`; those of every call.
    pub fn sync(&self) -> Result<()> {
        self.core.done(Op::Sync, 0, self.core.ops.sync())
    }

    /// Makes all changes durable, marks the file system clean on the device, and lets no byte of it
    /// change until the guard is dropped: the time to copy the device. Files that were removed
    /// while they are open are orphans of a copy, which its first opening for writing frees.
    ///
    /// ```
    /// # use extant::*;
    /// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
    /// # let fs = Fs::options().create_on(device, &mkfs::Options::default())?;
    /// let frozen = fs.freeze()?;
    /// // Copy the device here, on any thread.
    /// frozen.thaw()?;
    /// # fs.unmount()?; Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ReadOnly`](ErrorKind::ReadOnly); those of every call.
    pub fn freeze(&self) -> Result<Frozen> {
        Frozen::new(&self.core)
    }

    /// Makes the file system as large as so many bytes allow, while it is in use: whole clusters,
    /// without a last group that would be too short for its own tables. A device that is shorter is
    /// extended before. Returns the bytes of the new size, which is the present one if that is not
    /// smaller.
    ///
    /// A power cut leaves the old size, the new one, or one between.
    ///
    /// ```
    /// # use extant::*;
    /// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
    /// # let fs = Fs::options().create_on(device, &mkfs::Options::default())?;
    /// assert!(fs.write("/large", &[1; 20 << 20]).is_err());
    /// assert_eq!(fs.grow(64 << 20)?, 64 << 20);
    /// fs.write("/large", &[1; 20 << 20])?;
    /// # fs.unmount()?; Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) for a size below the present one, beyond the
    /// limits of the format, or beyond a device that cannot be extended;
    /// [`Unsupported`](ErrorKind::Unsupported) for one that needs descriptors without a place;
    /// [`ReadOnly`](ErrorKind::ReadOnly); those of every call. After an error the file system has
    /// the old size, or that of a part of the growth.
    pub fn grow(&self, bytes: u64) -> Result<u64> {
        self.core.done(Op::Grow, 0, self.core.ops.grow(bytes))
    }

    /// Writes all changes, marks the file system clean and releases the device. Handles and clones
    /// fail with [`Unmounted`](ErrorKind::Unmounted) from then on. Changes that other threads make
    /// meanwhile are kept, or refused with an error.
    ///
    /// # Errors
    /// `Busy` while the file system is frozen: it stays mounted. `Aborted` if an earlier error
    /// stopped all changes; those of every call. After errors other than `Busy` the device is
    /// released.
    pub fn unmount(&self) -> Result<()> {
        self.core.unmount()
    }

    fn handle(&self, node: Node) -> Inode {
        Inode::new(&self.core, node)
    }
}

/// Calls by path.
impl Fs {
    fn resolve(&self, op: Op, path: &[u8], follow: Follow) -> Result<Node> {
        let found = self.core.done(op, 0, self.core.ops.resolve(path, follow));
        found.map_err(|error| error.at(op, path))
    }

    /// Runs `f` with the directory that holds the last component, and that component.
    fn within<'p, R>(
        &self,
        op: Op,
        path: &'p [u8],
        f: impl FnOnce(&Dir, &'p [u8]) -> Result<R>,
    ) -> Result<R> {
        let found = self.core.done(op, 0, self.core.ops.resolve_parent(path));
        let done = found.and_then(|(dir, name)| f(&self.handle(dir).into_dir()?, name));
        done.map_err(|error| error.at(op, path))
    }

    /// The inode at a path; a symlink at its end is followed.
    ///
    /// # Errors
    /// Those of every call.
    pub fn lookup(&self, path: impl AsBytes) -> Result<Inode> {
        self.resolve(Op::Lookup, path.as_bytes(), Follow::Yes).map(|node| self.handle(node))
    }

    /// The inode at a path; a symlink at its end is not followed.
    ///
    /// # Errors
    /// Those of every call.
    pub fn lookup_symlink(&self, path: impl AsBytes) -> Result<Inode> {
        self.resolve(Op::Lookup, path.as_bytes(), Follow::No).map(|node| self.handle(node))
    }

    /// Attributes of the inode at a path. See [`Metadata`] for an example.
    ///
    /// # Errors
    /// Those of every call.
    pub fn metadata(&self, path: impl AsBytes) -> Result<Metadata> {
        self.stat(path.as_bytes(), Follow::Yes)
    }

    /// As [`Fs::metadata`], of a symlink itself.
    ///
    /// # Errors
    /// Those of every call.
    pub fn symlink_metadata(&self, path: impl AsBytes) -> Result<Metadata> {
        self.stat(path.as_bytes(), Follow::No)
    }

    fn stat(&self, path: &[u8], follow: Follow) -> Result<Metadata> {
        let found = self.core.done(Op::Metadata, 0, self.core.ops.stat(path, follow));
        found.map(Metadata).map_err(|error| error.at(Op::Metadata, path))
    }

    /// Sets attributes and gives the new ones. See [`SetMetadata`] for an example.
    ///
    /// # Errors
    /// As [`Inode::set_metadata`].
    pub fn set_metadata(&self, path: impl AsBytes, set: &SetMetadata) -> Result<Metadata> {
        let (path, op) = (path.as_bytes(), Op::SetMetadata);
        let inode = self.handle(self.resolve(op, path, Follow::Yes)?);
        inode.set_metadata(set).map_err(|error| error.at(op, path))
    }

    fn open_at(&self, op: Op, path: &[u8], flags: OpenFlags) -> Result<File> {
        let file = self.core.done(op, 0, self.core.ops.open(path, Follow::Yes, flags));
        file.map(|file| File::new(&self.core, file)).map_err(|error| error.at(op, path))
    }

    /// Opens a regular file to read it.
    ///
    /// # Errors
    /// As [`Inode::file`].
    pub fn open_file(&self, path: impl AsBytes) -> Result<File> {
        self.open_at(Op::OpenFile, path.as_bytes(), OpenFlags::default())
    }

    /// Creates a regular file, or cuts the existing one to no bytes, and opens it to read and
    /// write. See [`File`] for an example.
    ///
    /// # Errors
    /// As [`Fs::open_file_with`].
    pub fn create_file(&self, path: impl AsBytes) -> Result<File> {
        self.open_file_as(
            Op::CreateFile,
            path.as_bytes(),
            FileOptions::new().create(true).truncate(true),
        )
    }

    /// Opens a regular file. See [`FileOptions`] for an example.
    ///
    /// # Errors
    /// `NotFound`, `AlreadyExists`; as [`Inode::file`] and [`Dir::create`].
    pub fn open_file_with(&self, path: impl AsBytes, options: &FileOptions) -> Result<File> {
        self.open_file_as(Op::OpenFile, path.as_bytes(), *options)
    }

    fn open_file_as(&self, op: Op, path: &[u8], options: FileOptions) -> Result<File> {
        let create = || {
            let made = self.within(op, path, |dir, name| dir.create(name, NodeKind::File))?;
            made.file(&options).map_err(|error| error.at(op, path))
        };
        if options.create_new {
            return create();
        }
        match self.open_at(op, path, options.flags) {
            Err(error) if options.create && error.kind() == ErrorKind::NotFound => match create() {
                // Another thread made it meanwhile. If it is a symlink that leads nowhere, that is
                // the error.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    self.open_at(op, path, options.flags)
                }
                made => made,
            },
            opened => opened,
        }
    }

    /// Reads a whole file.
    ///
    /// # Errors
    /// As [`Inode::file`]; `FileTooLarge` if memory for it cannot be had.
    pub fn read(&self, path: impl AsBytes) -> Result<Vec<u8>> {
        let (path, op) = (path.as_bytes(), Op::Read);
        let file = self.open_at(op, path, OpenFlags::default())?;
        file.read_all().map_err(|error| error.at(op, path))
    }

    /// Writes a whole file: its content is replaced, or it is created. The content is durable after
    /// [`Fs::sync`].
    ///
    /// # Errors
    /// As [`Fs::open_file_with`] and [`File::write_all_at`]. After an error the file may be empty,
    /// or hold a beginning of `data`.
    pub fn write(&self, path: impl AsBytes, data: impl AsRef<[u8]>) -> Result<()> {
        let (path, op) = (path.as_bytes(), Op::Write);
        let options = FileOptions::new().create(true).truncate(true);
        let file = self.open_file_as(op, path, options)?;
        file.write_all_at(data.as_ref(), 0).map_err(|error| error.at(op, path))
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// `NotADirectory`; those of every call.
    pub fn open_dir(&self, path: impl AsBytes) -> Result<Dir> {
        self.dir(Op::Lookup, path.as_bytes())
    }

    fn dir(&self, op: Op, path: &[u8]) -> Result<Dir> {
        let inode = self.handle(self.resolve(op, path, Follow::Yes)?);
        inode.into_dir().map_err(|error| error.at(op, path))
    }

    /// Creates a directory. See [`Fs`] for an example.
    ///
    /// # Errors
    /// As [`Dir::create`].
    pub fn create_dir(&self, path: impl AsBytes) -> Result<Dir> {
        let made = self
            .within(Op::CreateDir, path.as_bytes(), |dir, name| dir.create(name, NodeKind::Dir));
        made?.into_dir()
    }

    /// Creates a directory and the directories above it, as far as they are missing.
    ///
    /// # Errors
    /// `NotADirectory` if a name on the way belongs to another type; as [`Dir::create`].
    pub fn create_dir_all(&self, path: impl AsBytes) -> Result<Dir> {
        let (path, op) = (path.as_bytes(), Op::CreateDirAll);
        let ends = (1..path.len()).filter(|&at| path[at] == b'/').chain([path.len()]);
        for at in ends.filter(|&at| path[..at].iter().any(|&byte| byte != b'/')) {
            match self.within(op, &path[..at], |dir, name| dir.create(name, NodeKind::Dir)) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                // `.` and `..` are no new names.
                Err(error) if error.kind() == ErrorKind::InvalidInput => {}
                Err(error) => return Err(error.at(op, path)),
            }
        }
        self.dir(op, path)
    }

    /// Removes the name of an inode that is no directory.
    ///
    /// # Errors
    /// As [`Dir::remove_file`].
    pub fn remove_file(&self, path: impl AsBytes) -> Result<()> {
        self.within(Op::RemoveFile, path.as_bytes(), |dir, name| dir.remove_file(name))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`Dir::remove_dir`].
    pub fn remove_dir(&self, path: impl AsBytes) -> Result<()> {
        self.within(Op::RemoveDir, path.as_bytes(), |dir, name| dir.remove_dir(name))
    }

    /// Moves an entry, in one transaction. An inode that had the new name loses it.
    ///
    /// # Errors
    /// As [`Dir::rename`].
    pub fn rename(&self, from: impl AsBytes, to: impl AsBytes) -> Result<()> {
        let to = to.as_bytes();
        self.within(Op::Rename, from.as_bytes(), |dir, name| {
            self.within(Op::Rename, to, |new_dir, new_name| dir.rename(name, new_dir, new_name))
        })
    }

    /// Creates a symlink at `path` that leads to `target`.
    ///
    /// ```
    /// # use extant::*;
    /// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
    /// # let fs = Fs::options().create_on(device, &mkfs::Options::default())?;
    /// fs.write("/etc", b"")?;
    /// fs.symlink("etc", "/link")?;
    /// assert_eq!(fs.read_link("/link")?, b"etc");
    /// fs.hard_link("/etc", "/also")?;
    /// assert_eq!(fs.metadata("/link")?.links(), 2);
    /// # fs.unmount()?; Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Dir::create`].
    pub fn symlink(&self, target: impl AsBytes, path: impl AsBytes) -> Result<()> {
        let kind = NodeKind::Symlink(target.as_bytes());
        let made = self.within(Op::Symlink, path.as_bytes(), |dir, name| dir.create(name, kind));
        made.map(drop)
    }

    /// The target of a symlink. See [`Fs::symlink`] for an example.
    ///
    /// # Errors
    /// As [`Inode::read_link`].
    pub fn read_link(&self, path: impl AsBytes) -> Result<Vec<u8>> {
        let (path, op) = (path.as_bytes(), Op::ReadLink);
        let inode = self.handle(self.resolve(op, path, Follow::No)?);
        inode.read_link().map_err(|error| error.at(op, path))
    }

    /// Adds the name `path` to the inode at `original`. See [`Fs::symlink`] for an example.
    ///
    /// # Errors
    /// As [`Dir::link`].
    pub fn hard_link(&self, original: impl AsBytes, path: impl AsBytes) -> Result<()> {
        let inode = self.handle(self.resolve(Op::HardLink, original.as_bytes(), Follow::No)?);
        self.within(Op::HardLink, path.as_bytes(), |dir, name| dir.link(name, &inode))
    }

    /// All entries of a directory, without `.` and `..`. [`Dir::entries`] reads large directories
    /// in parts.
    ///
    /// # Errors
    /// `NotADirectory`; those of every call.
    pub fn read_dir(&self, path: impl AsBytes) -> Result<Vec<DirEntry>> {
        let (path, op) = (path.as_bytes(), Op::ReadDir);
        let entries: Result<_> = self.dir(op, path)?.entries().collect();
        entries.map_err(|error| error.at(op, path))
    }

    /// Iterates over all entries below a directory, each directory before its entries. Symlinks are
    /// not followed. After an error the walk goes on beside it. Any call is allowed between two
    /// items. [`Walk::skip_dir`] leaves out a directory; [`Fs::inode`] opens the inode of an item.
    ///
    /// ```
    /// # use extant::*;
    /// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
    /// # let fs = Fs::options().create_on(device, &mkfs::Options::default())?;
    /// fs.create_dir_all("/a/b")?;
    /// let paths: Result<Vec<_>> = fs.walk("/")?.map(|entry| Ok(entry?.path)).collect();
    /// assert!(paths?.contains(&b"/a/b".to_vec()));
    /// # fs.unmount()?; Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotADirectory`; those of every call. A directory that was entered before is an item with
    /// the error `Corrupt`: the tree has a loop.
    pub fn walk(&self, path: impl AsBytes) -> Result<Walk> {
        let path = path.as_bytes();
        self.dir(Op::Walk, path).map(|dir| Walk::new(dir, path))
    }
}
