//! The engine, called in process.

use super::{How, Name, OpenFile, Put, Target};
use extant_engine::{
    Caller, Errno, Error, Falloc, File, FileType, Follow, Fs, Node, NodeKind, OpenFlags,
    RenameFlags, SetAttr, TimeSet, Timestamp,
};
use std::io;

/// Permissions of new files and directories.
const DIR_MODE: u16 = 0o755;
const FILE_MODE: u16 = 0o644;

/// Some user that is not root, in no group that owns anything.
const USER: Caller<'static> = Caller { uid: 1000, gid: 1000, groups: &[], umask: 0 };

/// An open file system.
#[derive(Debug)]
pub struct Engine {
    fs: Fs,
    /// Whether writes go past the engine's pages.
    direct: bool,
}

impl Engine {
    /// Takes over an open file system.
    pub fn new(fs: Fs) -> Self {
        Engine { fs, direct: false }
    }

    /// The same with writes that go past its pages.
    pub fn direct(fs: Fs) -> Self {
        Engine { fs, direct: true }
    }

    /// Returns the file system itself.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Closes it cleanly.
    pub fn unmount(self) -> io::Result<()> {
        self.fs.unmount().map_err(io_error)
    }

    fn make(&self, path: &[u8], mode: u16, what: NodeKind<'_>) -> extant_engine::Result<Node> {
        let (dir, name) = self.fs.resolve_parent(path)?;
        self.fs.create(&dir, name, mode, what)
    }

    /// Runs `work` on the directory and the name of a path.
    fn at(
        &self,
        path: &[u8],
        work: impl FnOnce(&Node, &[u8]) -> extant_engine::Result<()>,
    ) -> io::Result<()> {
        let found = self.fs.resolve_parent(path);
        found.and_then(|(dir, name)| work(&dir, name)).map_err(io_error)
    }

    /// As a program that opens with `O_CREAT` and `O_TRUNC`: it looks first, since mostly the file
    /// is there.
    fn make_or_empty(&self, path: &[u8]) -> extant_engine::Result<File> {
        let (dir, name) = self.fs.resolve_parent(path)?;
        let flags = OpenFlags { write: true, truncate: true, ..Default::default() };
        match self.fs.lookup(&dir, name) {
            Ok(node) => self.fs.open_file(&node, flags),
            Err(Error::Posix(Errno::NoEnt)) => {
                // A kernel empties none that it has just made.
                let node = self.fs.create(&dir, name, FILE_MODE, NodeKind::File)?;
                self.fs.open_file(&node, OpenFlags { truncate: false, ..flags })
            }
            Err(e) => Err(e),
        }
    }

    fn put_file(&self, path: &[u8], file: Put<'_>) -> extant_engine::Result<()> {
        let node = self.make(path, file.mode, NodeKind::File)?;
        let flags = OpenFlags { write: true, direct: self.direct, ..Default::default() };
        let open = self.fs.open_file(&node, flags)?;
        write_all(&open, 0, file.data)?;
        match file.mtime {
            Some(seconds) => self.fs.set_attr(open.node(), &mtime(seconds)).map(drop),
            None => Ok(()),
        }
    }

    fn names(&self, path: &[u8]) -> extant_engine::Result<Vec<Name>> {
        let dir = self.fs.resolve(path, Follow::Yes)?;
        let mut names = Vec::new();
        self.fs.read_dir_from(&dir, 0, |e| {
            if e.name != b"." && e.name != b".." {
                let is_dir = e.ftype == FileType::Directory;
                names.push(Name { name: e.name.to_vec(), is_dir });
            }
            true
        })?;
        Ok(names)
    }
}

/// Converts an engine's error into that of the corresponding system call.
pub fn io_error(e: Error) -> io::Error {
    match e {
        Error::Posix(_) => io::Error::from_raw_os_error(e.errno()),
        other => io::Error::other(other.to_string()),
    }
}

fn mtime(seconds: i64) -> SetAttr {
    let at = Timestamp { sec: seconds, nsec: 0 };
    SetAttr { mtime: Some(TimeSet::At(at)), ..Default::default() }
}

/// Returns the number of physically discontiguous pieces of a file.
pub fn pieces(file: &File, bytes: u64) -> extant_engine::Result<u64> {
    let (mut pieces, mut end) = (0, None);
    file.extents(0, bytes, |extent| {
        pieces += u64::from(end != Some(extent.physical));
        end = Some(extent.physical + extent.len);
        true
    })?;
    Ok(pieces)
}

/// Writes all of `data`.
pub fn write_all(file: &File, offset: u64, data: &[u8]) -> extant_engine::Result<()> {
    let mut done = 0;
    while done < data.len() {
        done += file.write_at(offset + done as u64, &data[done..])?;
    }
    Ok(())
}

impl Target for Engine {
    fn mkdir(&self, path: &[u8]) -> io::Result<()> {
        self.make(path, DIR_MODE, NodeKind::Dir).map(drop).map_err(io_error)
    }

    fn creat(&self, path: &[u8]) -> io::Result<()> {
        self.make_or_empty(path).map(drop).map_err(io_error)
    }

    fn put(&self, path: &[u8], file: Put<'_>) -> io::Result<()> {
        self.put_file(path, file).map_err(io_error)
    }

    fn symlink(&self, path: &[u8], to: &[u8]) -> io::Result<()> {
        self.make(path, 0o777, NodeKind::Symlink(to)).map(drop).map_err(io_error)
    }

    fn set_mtime(&self, path: &[u8], seconds: i64) -> io::Result<()> {
        let set = || self.fs.set_attr(&self.fs.resolve(path, Follow::No)?, &mtime(seconds));
        set().map(drop).map_err(io_error)
    }

    fn stat(&self, path: &[u8]) -> io::Result<u64> {
        self.fs.stat(path, Follow::No).map(|attr| attr.size).map_err(io_error)
    }

    fn stat_as_user(&self, path: &[u8]) -> io::Result<u64> {
        self.fs.stat_as(&USER, path, Follow::No).map(|attr| attr.size).map_err(io_error)
    }

    fn open(&self, path: &[u8], how: How) -> io::Result<Box<dyn OpenFile>> {
        let (write, append) = (how != How::Read, how == How::Append);
        let flags = OpenFlags { write, append, direct: self.direct, ..Default::default() };
        Ok(Box::new(self.fs.open(path, Follow::Yes, flags).map_err(io_error)?))
    }

    fn unlink(&self, path: &[u8]) -> io::Result<()> {
        self.at(path, |dir, name| self.fs.unlink(dir, name))
    }

    fn rmdir(&self, path: &[u8]) -> io::Result<()> {
        self.at(path, |dir, name| self.fs.rmdir(dir, name))
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        self.at(from, |from, old| {
            let (to, new) = self.fs.resolve_parent(to)?;
            self.fs.rename((from, old), (&to, new), RenameFlags::empty())
        })
    }

    fn list(&self, path: &[u8]) -> io::Result<Vec<Name>> {
        self.names(path).map_err(io_error)
    }

    fn sync(&self) -> io::Result<()> {
        self.fs.sync().map_err(io_error)
    }
}

impl OpenFile for File {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        File::read_at(self, offset, buf).map_err(io_error)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        write_all(self, offset, data).map_err(io_error)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        File::allocate(self, Falloc::Allocate, offset, len).map_err(io_error)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        File::set_len(self, len).map_err(io_error)
    }

    fn fsync(&self) -> io::Result<()> {
        File::sync(self).map_err(io_error)
    }
}
