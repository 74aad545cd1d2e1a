//! A reference to an inode.

use super::{Dir, File};
use crate::core::{Core, number};
use crate::error::{Error, ErrorKind, Op, Result};
use crate::path::AsBytes;
use crate::types::{FileOptions, Metadata, SetMetadata};
use extant_engine::{Errno, FileType, Node, XattrMode};
use std::sync::Arc;

/// A reference to an inode of an open file system.
///
/// It keeps the inode in memory, not on the device: once the last name is removed, calls fail with
/// [`Stale`](ErrorKind::Stale), unless a [`File`] is open. After
/// [`Fs::unmount`](crate::Fs::unmount) calls fail with [`Unmounted`](ErrorKind::Unmounted).
///
/// ```
/// # use extant::*;
/// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
/// # let fs = Fs::options().create_on(device, &mkfs::Options::default())?;
/// let inode = fs.root()?.create("f", NodeKind::File)?;
/// inode.set_xattr("user.origin", b"elsewhere", XattrMode::Any)?;
/// assert_eq!(inode.xattr("user.origin")?, b"elsewhere");
/// assert_eq!(fs.inode(inode.number())?.metadata()?.links(), 1);
/// # drop(inode); fs.unmount()?; Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Inode {
    pub(crate) core: Arc<Core>,
    pub(crate) node: Node,
}

impl Inode {
    pub(crate) fn new(core: &Arc<Core>, node: Node) -> Inode {
        Inode { core: core.clone(), node }
    }

    /// The number of the inode.
    pub fn number(&self) -> u32 {
        number(&self.node)
    }

    /// The type of the inode, which never changes.
    pub fn file_type(&self) -> FileType {
        self.node.file_type()
    }

    pub(crate) fn done<T>(&self, op: Op, done: extant_engine::Result<T>) -> Result<T> {
        self.core.done(op, self.number(), done)
    }

    /// Attributes of the inode.
    ///
    /// # Errors
    /// [`Unmounted`](ErrorKind::Unmounted).
    pub fn metadata(&self) -> Result<Metadata> {
        if !self.core.is_closed() {
            Ok(Metadata(self.node.attr()))
        } else {
            Err(Error::new(ErrorKind::Unmounted, Errno::Stale, Op::Metadata))
        }
    }

    /// Sets attributes and gives the new ones.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for an immutable inode, `ReadOnly`,
    /// `NoSpace`, `QuotaExceeded`, `FileTooLarge`; those of every call ([`Fs`](crate::Fs#errors)).
    pub fn set_metadata(&self, set: &SetMetadata) -> Result<Metadata> {
        let done = self.core.ops.set_attr(&self.node, &set.0);
        self.done(Op::SetMetadata, done).map(Metadata)
    }

    /// The directory that this inode is.
    ///
    /// # Errors
    /// [`NotADirectory`](ErrorKind::NotADirectory).
    pub fn into_dir(self) -> Result<Dir> {
        match self.file_type() {
            FileType::Directory => Ok(Dir { inode: self }),
            _ => Err(Error::new(ErrorKind::NotADirectory, Errno::NotDir, Op::ReadDir)),
        }
    }

    /// Opens the regular file that this inode is. Options of creation have no effect.
    ///
    /// # Errors
    /// `IsADirectory`, `InvalidInput` for an inode that is no regular file, `ReadOnly`,
    /// `PermissionDenied`, `Encrypted`; those of every call ([`Fs`](crate::Fs#errors)).
    pub fn file(&self, options: &FileOptions) -> Result<File> {
        let file = self.core.ops.open_file(&self.node, options.flags);
        self.done(Op::OpenFile, file).map(|file| File::new(&self.core, file))
    }

    /// The target of a symlink.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) for an inode of another type; those of every call
    /// ([`Fs`](crate::Fs#errors)).
    pub fn read_link(&self) -> Result<Vec<u8>> {
        self.done(Op::ReadLink, self.core.ops.read_link(&self.node))
    }

    /// The value of an extended attribute, whose name has its prefix: `user.`, `security.`.
    ///
    /// # Errors
    /// [`NoData`](ErrorKind::NoData) if there is none, `Unsupported` for an unknown prefix; those
    /// of every call ([`Fs`](crate::Fs#errors)).
    pub fn xattr(&self, name: impl AsBytes) -> Result<Vec<u8>> {
        self.done(Op::Xattr, self.core.ops.get_xattr(&self.node, name.as_bytes()))
    }

    /// The names of all extended attributes, in no order.
    ///
    /// # Errors
    /// Those of every call ([`Fs`](crate::Fs#errors)).
    pub fn xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.done(Op::Xattrs, self.core.ops.list_xattrs(&self.node))
    }

    /// Sets an extended attribute. See [`Inode`] for an example.
    ///
    /// # Errors
    /// `AlreadyExists` and `NoData` as `mode` has it, `NoSpace` if the inode cannot hold the
    /// value, `Unsupported`, `ReadOnly`, `PermissionDenied`; those of every call
    /// ([`Fs`](crate::Fs#errors)).
    pub fn set_xattr(&self, name: impl AsBytes, value: &[u8], mode: XattrMode) -> Result<()> {
        let done = self.core.ops.set_xattr(&self.node, name.as_bytes(), value, mode);
        self.done(Op::SetXattr, done)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`NoData`](ErrorKind::NoData) if there is none; those of [`set_xattr`](Self::set_xattr).
    pub fn remove_xattr(&self, name: impl AsBytes) -> Result<()> {
        let done = self.core.ops.remove_xattr(&self.node, name.as_bytes());
        self.done(Op::RemoveXattr, done)
    }
}
