//! A directory.

use super::Inode;
use crate::core::Core;
use crate::error::{Error, ErrorKind, Op, Result};
use crate::path::AsBytes;
use crate::types::DirEntry;
use extant_engine::{Caller, Errno, FileType, Node, NodeKind, RenameFlags};
use std::collections::VecDeque;
use std::sync::Arc;

/// A directory: an [`Inode`] with entries. Names are single components, without `/`.
/// Errors have the number of the directory, and no copy of the name.
///
/// ```
/// # use extant::*;
/// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
/// # let fs = Fs::options().create_on(device, &mkfs::Options::default())?;
/// let root = fs.root()?;
/// let etc = root.create("etc", NodeKind::Dir)?.into_dir()?;
/// etc.create("motd", NodeKind::File)?;
/// etc.rename("motd", &root, "welcome")?;
/// assert_eq!(root.open("welcome")?.file_type(), FileType::Regular);
/// # drop((etc, root)); fs.unmount()?; Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Dir {
    pub(crate) inode: Inode,
}

impl Dir {
    fn core(&self) -> &Arc<Core> {
        &self.inode.core
    }

    pub(crate) fn node(&self) -> &Node {
        &self.inode.node
    }

    /// The inode of the directory.
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    /// The inode of an entry; a symlink is not followed.
    ///
    /// # Errors
    /// `NotFound`, `NameTooLong`; those of every call ([`Fs`](crate::Fs#errors)).
    pub fn open(&self, name: impl AsBytes) -> Result<Inode> {
        let found = self.core().ops.lookup(self.node(), name.as_bytes());
        self.inode.done(Op::Lookup, found).map(|node| Inode::new(self.core(), node))
    }

    /// Creates an entry that belongs to root, with permissions 0755 for directories, else 0644. A
    /// default ACL and the set-group-id bit of this directory have their effect.
    ///
    /// # Errors
    /// `AlreadyExists`, `NameTooLong`, `NoSpace`, `TooManyLinks`, `ReadOnly`, `PermissionDenied`
    /// where flags protect the directory; those of every call ([`Fs`](crate::Fs#errors)).
    pub fn create(&self, name: impl AsBytes, kind: NodeKind<'_>) -> Result<Inode> {
        self.create_as(name, kind, permissions(kind), (0, 0))
    }

    /// As [`Dir::create`], with permission bits (07777), and with owner and group.
    ///
    /// # Errors
    /// As [`Dir::create`], and `QuotaExceeded`.
    pub fn create_as(
        &self,
        name: impl AsBytes,
        kind: NodeKind<'_>,
        permissions: u16,
        (uid, gid): (u32, u32),
    ) -> Result<Inode> {
        let caller = Caller { uid, gid, ..Caller::default() };
        let made = self.core().ops.create_as(
            &caller,
            (self.node(), name.as_bytes()),
            permissions & 0o7777,
            kind,
        );
        self.inode.done(Op::Create, made).map(|node| Inode::new(self.core(), node))
    }

    /// Adds a name of an inode that is no directory.
    ///
    /// # Errors
    /// `AlreadyExists`, `TooManyLinks`, `NoSpace`, `ReadOnly`, `PermissionDenied` for directories,
    /// `ForeignHandle` if `inode` belongs to another file system; those of every call
    /// ([`Fs`](crate::Fs#errors)).
    pub fn link(&self, name: impl AsBytes, inode: &Inode) -> Result<()> {
        let (core, op) = (self.core(), Op::HardLink);
        core.owns(&inode.core, op)?;
        self.inode.done(op, core.ops.link(&inode.node, self.node(), name.as_bytes()))
    }

    /// Removes the name of an inode that is no directory. Its space becomes free when no [`File`]
    /// of it is open any more.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `ReadOnly`, `PermissionDenied`; those of every call
    /// ([`Fs`](crate::Fs#errors)).
    ///
    /// [`File`]: crate::File
    pub fn remove_file(&self, name: impl AsBytes) -> Result<()> {
        let done = self.core().ops.unlink(self.node(), name.as_bytes());
        self.inode.done(Op::RemoveFile, done)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `DirectoryNotEmpty`, `ReadOnly`, `PermissionDenied`; those of
    /// every call ([`Fs`](crate::Fs#errors)).
    pub fn remove_dir(&self, name: impl AsBytes) -> Result<()> {
        let done = self.core().ops.rmdir(self.node(), name.as_bytes());
        self.inode.done(Op::RemoveDir, done)
    }

    /// Moves an entry, in one transaction. An inode that had the new name loses it.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `NotADirectory`, `DirectoryNotEmpty`, `InvalidInput` for a
    /// directory that would move into itself, `NoSpace`, `TooManyLinks`, `ReadOnly`,
    /// `PermissionDenied`, `CrossesProjects`, `ForeignHandle` if `new_dir` belongs to another file
    /// system; those of every call ([`Fs`](crate::Fs#errors)).
    pub fn rename(&self, name: impl AsBytes, new_dir: &Dir, new_name: impl AsBytes) -> Result<()> {
        let (name, new_name) = (name.as_bytes(), new_name.as_bytes());
        let (core, op) = (self.core(), Op::Rename);
        core.owns(new_dir.core(), op)?;
        let none = RenameFlags::empty();
        let done = core.ops.rename((self.node(), name), (new_dir.node(), new_name), none);
        self.inode.done(op, done)
    }

    /// Iterates over the entries, without `.` and `..`, in the order of the directory. Entries that
    /// come or go meanwhile may be missed or seen; all others are seen once. Any call is allowed
    /// between two items.
    ///
    /// ```
    /// # use extant::*;
    /// # let device = std::sync::Arc::new(device::MemDevice::new(16 << 20));
    /// # let fs = Fs::options().create_on(device, &mkfs::Options::default())?;
    /// for entry in fs.root()?.entries() {
    ///     assert_eq!(entry?.name, b"lost+found");
    /// }
    /// # fs.unmount()?; Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// An item is an error of every call ([`Fs`](crate::Fs#errors)), and the last item then.
    pub fn entries(&self) -> Entries {
        Entries { dir: self.clone(), batch: VecDeque::new(), next: Some(0), error: None }
    }

    /// Opens a directory below this one; `None` if the entry is of another type.
    pub(crate) fn subdir(&self, name: &[u8]) -> Result<Option<Dir>> {
        let inode = self.open(name)?;
        Ok((inode.file_type() == FileType::Directory).then_some(Dir { inode }))
    }
}

/// Entries that are read under one lock of the directory.
const BATCH: usize = 128;

/// The iterator of [`Dir::entries`].
#[derive(Debug)]
pub struct Entries {
    dir: Dir,
    batch: VecDeque<DirEntry>,
    /// The place to read on from; `None` at the end.
    next: Option<u64>,
    error: Option<Error>,
}

impl Entries {
    fn fill(&mut self, from: u64) {
        let (batch, mut next, mut read) = (&mut self.batch, None, 0);
        let dir = &self.dir;
        let done = dir.core().ops.read_dir_from(dir.node(), from, |entry| {
            read += 1;
            next = (read == BATCH).then_some(entry.next);
            if entry.name != b"." && entry.name != b".." {
                let (name, inode) = (entry.name.to_vec(), entry.ino.0);
                batch.push_back(DirEntry { name, inode, file_type: entry.ftype });
            }
            read < BATCH
        });
        self.next = next;
        self.error = dir.inode.done(Op::ReadDir, done).err();
    }
}

impl Iterator for Entries {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.batch.pop_front() {
                return Some(Ok(entry));
            }
            if let Some(error) = self.error.take() {
                self.next = None;
                return Some(Err(error));
            }
            let from = self.next.take()?;
            self.fill(from);
        }
    }
}

impl std::iter::FusedIterator for Entries {}

impl TryFrom<Inode> for Dir {
    type Error = Error;

    fn try_from(inode: Inode) -> Result<Dir> {
        match inode.file_type() {
            FileType::Directory => Ok(Dir { inode }),
            _ => Err(Error::new(ErrorKind::NotADirectory, Errno::NotDir, Op::ReadDir)),
        }
    }
}

/// Returns 0755 for directories, 0777 for symlinks, 0644 for all others.
fn permissions(kind: NodeKind<'_>) -> u16 {
    match kind {
        NodeKind::Dir => 0o755,
        NodeKind::Symlink(_) => 0o777,
        _ => 0o644,
    }
}
