//! Operations of workloads on a file system of any side.
//!
//! Paths are bytes without a leading slash, seen from the root of the file system.

mod directory;
mod engine;

pub use directory::Directory;
pub use engine::{Engine, pieces, write_all};

use std::io;
use std::path::PathBuf;

/// A name in a directory.
#[derive(Clone, Debug)]
pub struct Name {
    pub name: Vec<u8>,
    /// Whether it is a directory's.
    pub is_dir: bool,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Only to read.
    Read,
    /// To write anywhere; it exists.
    Write,
    /// To write at its end; it exists.
    Append,
}

/// A regular file to be made with its content.
#[derive(Clone, Copy, Debug)]
pub struct Put<'a> {
    /// Content.
    pub data: &'a [u8],
    /// Permission bits.
    pub mode: u16,
    /// Modification time in seconds since 1970, if it is to be set.
    pub mtime: Option<i64>,
}

/// An open file. Closed when dropped.
pub trait OpenFile: Send + Sync {
    /// Reads at `offset`; the number of bytes, fewer than asked for at the end.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `data` at `offset`, or at the end of a file opened with [`How::Append`].
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// fallocate(2).
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;

    /// ftruncate(2).
    fn set_len(&self, len: u64) -> io::Result<()>;

    fn fsync(&self) -> io::Result<()>;
}

/// A file system under measurement. Every call stands for the system calls that a program would
/// make.
pub trait Target: Send + Sync {
    /// Returns the root's path for other processes: none of an engine in process.
    fn root(&self) -> Option<PathBuf> {
        None
    }

    /// Makes a directory.
    fn mkdir(&self, path: &[u8]) -> io::Result<()>;

    /// Makes an empty file that must not exist: open and close.
    fn create(&self, path: &[u8]) -> io::Result<()> {
        self.put(path, Put { data: &[], mode: 0o644, mtime: None })
    }

    /// creat(2) and close: makes an empty file, or empties the one that is there.
    fn creat(&self, path: &[u8]) -> io::Result<()>;

    /// Makes a file that must not exist: open, write, perhaps set its time, close.
    fn put(&self, path: &[u8], file: Put<'_>) -> io::Result<()>;

    fn symlink(&self, path: &[u8], to: &[u8]) -> io::Result<()>;

    /// Sets a modification time, not following a symlink.
    fn set_mtime(&self, path: &[u8], seconds: i64) -> io::Result<()>;

    /// lstat(2); the size in bytes.
    fn stat(&self, path: &[u8]) -> io::Result<u64>;

    /// The same for an ordinary user, on sides where the caller could otherwise search every
    /// directory without a check.
    fn stat_as_user(&self, path: &[u8]) -> io::Result<u64> {
        self.stat(path)
    }

    /// Opens an existing file.
    fn open(&self, path: &[u8], how: How) -> io::Result<Box<dyn OpenFile>>;

    /// Removes a name that is not a directory's.
    fn unlink(&self, path: &[u8]) -> io::Result<()>;

    /// Removes an empty directory.
    fn rmdir(&self, path: &[u8]) -> io::Result<()>;

    /// Renames, replacing.
    fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()>;

    /// Returns all names of a directory but the dots.
    fn list(&self, path: &[u8]) -> io::Result<Vec<Name>>;

    /// Everything done so far is on the device.
    fn sync(&self) -> io::Result<()>;
}
