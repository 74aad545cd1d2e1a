//! A mounted directory, driven by system calls relative to it.

use super::{How, Name, OpenFile, Put, Target};
use rustix::fs::{self as sys, AtFlags, FileType, Mode, OFlags, RawDir, Timespec, Timestamps};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Bytes for one system call that lists names.
const LIST_BYTES: usize = 32 << 10;

/// Permissions of new files and directories.
const DIR_MODE: Mode = Mode::from_raw_mode(0o755);
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);

/// A directory of any mounted file system.
#[derive(Debug)]
pub struct Directory {
    root: OwnedFd,
}

impl Directory {
    /// Opens the directory.
    pub fn new(path: &Path) -> io::Result<Self> {
        let root = sys::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Directory { root })
    }
}

/// Times with a modification time and the access time left as it is.
fn mtime(seconds: i64) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: sys::UTIME_OMIT as _ },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: 0 },
    }
}

impl Target for Directory {
    fn root(&self) -> Option<PathBuf> {
        Some(format!("/proc/{}/fd/{}", std::process::id(), self.root.as_raw_fd()).into())
    }

    fn mkdir(&self, path: &[u8]) -> io::Result<()> {
        Ok(sys::mkdirat(&self.root, path, DIR_MODE)?)
    }

    fn creat(&self, path: &[u8]) -> io::Result<()> {
        let how = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::CLOEXEC;
        sys::openat(&self.root, path, how, FILE_MODE)?;
        Ok(())
    }

    fn put(&self, path: &[u8], file: Put<'_>) -> io::Result<()> {
        let how = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let fd = sys::openat(&self.root, path, how, Mode::from_raw_mode(file.mode.into()))?;
        let mut made = fs::File::from(fd);
        made.write_all(file.data)?;
        if let Some(seconds) = file.mtime {
            sys::futimens(&made, &mtime(seconds))?;
        }
        Ok(())
    }

    fn symlink(&self, path: &[u8], to: &[u8]) -> io::Result<()> {
        Ok(sys::symlinkat(to, &self.root, path)?)
    }

    fn set_mtime(&self, path: &[u8], seconds: i64) -> io::Result<()> {
        Ok(sys::utimensat(&self.root, path, &mtime(seconds), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn stat(&self, path: &[u8]) -> io::Result<u64> {
        let stat = sys::statat(&self.root, path, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    fn open(&self, path: &[u8], how: How) -> io::Result<Box<dyn OpenFile>> {
        let flags = match how {
            How::Read => OFlags::RDONLY,
            How::Write => OFlags::RDWR,
            How::Append => OFlags::WRONLY | OFlags::APPEND,
        };
        let fd = sys::openat(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Box::new(File { file: fd.into(), append: how == How::Append }))
    }

    fn unlink(&self, path: &[u8]) -> io::Result<()> {
        Ok(sys::unlinkat(&self.root, path, AtFlags::empty())?)
    }

    fn rmdir(&self, path: &[u8]) -> io::Result<()> {
        Ok(sys::unlinkat(&self.root, path, AtFlags::REMOVEDIR)?)
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        Ok(sys::renameat(&self.root, from, &self.root, to)?)
    }

    fn list(&self, path: &[u8]) -> io::Result<Vec<Name>> {
        let how = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = if path.is_empty() { b"." } else { path };
        let fd = sys::openat(&self.root, path, how, Mode::empty())?;
        let mut buf = Vec::with_capacity(LIST_BYTES);
        let mut names = Vec::new();
        let mut dir = RawDir::new(&fd, buf.spare_capacity_mut());
        while let Some(entry) = dir.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                let mut ftype = entry.file_type();
                // Some file systems do not tell types with names; programs then ask.
                if ftype == FileType::Unknown {
                    let stat = sys::statat(&fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
                    ftype = FileType::from_raw_mode(stat.st_mode);
                }
                names.push(Name { name: name.to_vec(), is_dir: ftype == FileType::Directory });
            }
        }
        Ok(names)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(sys::syncfs(&self.root)?)
    }
}

struct File {
    file: fs::File,
    append: bool,
}

impl OpenFile for File {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.append {
            return (&self.file).write_all(data);
        }
        self.file.write_all_at(data, offset)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(sys::fallocate(&self.file, sys::FallocateFlags::empty(), offset, len)?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn fsync(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}
