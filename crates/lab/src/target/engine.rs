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
        Ok(self.fs.unmount()?)
    }

    fn make(&self, path: &[u8], mode: u16, what: NodeKind<'_>) -> extant_engine::Result<Node> {
        let (dir, name) = self.fs.resolve_parent(path)?;
        self.fs.create(&dir, name, mode, what)
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
        Ok(self.make(path, DIR_MODE, NodeKind::Dir).map(drop)?)
    }

    /// As a program that opens with `O_CREAT` and `O_TRUNC`: it looks first, since mostly the file
    /// is there.
    fn creat(&self, path: &[u8]) -> io::Result<()> {
        let (dir, name) = self.fs.resolve_parent(path)?;
        let flags = OpenFlags { write: true, truncate: true, ..Default::default() };
        let open = match self.fs.lookup(&dir, name) {
            Ok(node) => self.fs.open_file(&node, flags),
            Err(Error::Posix(Errno::NoEnt)) => {
                // A kernel empties none that it has just made.
                let node = self.fs.create(&dir, name, FILE_MODE, NodeKind::File)?;
                self.fs.open_file(&node, OpenFlags { truncate: false, ..flags })
            }
            Err(e) => Err(e),
        };
        Ok(open.map(drop)?)
    }

    fn put(&self, path: &[u8], file: Put<'_>) -> io::Result<()> {
        let node = self.make(path, file.mode, NodeKind::File)?;
        let flags = OpenFlags { write: true, direct: self.direct, ..Default::default() };
        let open = self.fs.open_file(&node, flags)?;
        write_all(&open, 0, file.data)?;
        if let Some(seconds) = file.mtime {
            self.fs.set_attr(open.node(), &mtime(seconds))?;
        }
        Ok(())
    }

    fn symlink(&self, path: &[u8], to: &[u8]) -> io::Result<()> {
        Ok(self.make(path, 0o777, NodeKind::Symlink(to)).map(drop)?)
    }

    fn set_mtime(&self, path: &[u8], seconds: i64) -> io::Result<()> {
        let node = self.fs.resolve(path, Follow::No)?;
        Ok(self.fs.set_attr(&node, &mtime(seconds)).map(drop)?)
    }

    fn stat(&self, path: &[u8]) -> io::Result<u64> {
        Ok(self.fs.stat(path, Follow::No)?.size)
    }

    fn stat_as_user(&self, path: &[u8]) -> io::Result<u64> {
        Ok(self.fs.stat_as(&USER, path, Follow::No)?.size)
    }

    fn open(&self, path: &[u8], how: How) -> io::Result<Box<dyn OpenFile>> {
        let (write, append) = (how != How::Read, how == How::Append);
        let flags = OpenFlags { write, append, direct: self.direct, ..Default::default() };
        Ok(Box::new(self.fs.open(path, Follow::Yes, flags)?))
    }

    fn unlink(&self, path: &[u8]) -> io::Result<()> {
        let (dir, name) = self.fs.resolve_parent(path)?;
        Ok(self.fs.unlink(&dir, name)?)
    }

    fn rmdir(&self, path: &[u8]) -> io::Result<()> {
        let (dir, name) = self.fs.resolve_parent(path)?;
        Ok(self.fs.rmdir(&dir, name)?)
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        let (from, old) = self.fs.resolve_parent(from)?;
        let (to, new) = self.fs.resolve_parent(to)?;
        Ok(self.fs.rename((&from, old), (&to, new), RenameFlags::empty())?)
    }

    fn list(&self, path: &[u8]) -> io::Result<Vec<Name>> {
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

    fn sync(&self) -> io::Result<()> {
        Ok(self.fs.sync()?)
    }
}

impl OpenFile for File {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        Ok(File::read_at(self, offset, buf)?)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        Ok(write_all(self, offset, data)?)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(File::allocate(self, Falloc::Allocate, offset, len)?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(File::set_len(self, len)?)
    }

    fn fsync(&self) -> io::Result<()> {
        Ok(File::sync(self)?)
    }
}
