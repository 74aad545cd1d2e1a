//! A file of the machine held by a descriptor, with its attributes.
//!
//! # Invariants
//! Attributes are read and set through the descriptor, never by a name: a name may lead to a
//! different file each time it is used.

use super::place::replaced;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Timestamps, Uid, XattrFlags};
use rustix::io::{Errno as No, Result};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Bytes for the names of attributes, and for the value of one: the limits of Linux.
const XATTR_MAX: usize = 64 << 10;

/// A file held by a descriptor.
#[derive(Debug)]
pub enum Held {
    /// Open for reading or writing.
    Open(File),
    /// Known but not open (`O_PATH`): opening a FIFO or a device has effects, and a symlink cannot
    /// be opened.
    Known(File),
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file().as_fd()
    }
}

impl Held {
    /// Holds the entry `name` of `dir` without opening it; a symlink is not followed.
    pub fn known(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Held> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(dir, OsStr::from_bytes(name), flags, Mode::empty())
            .map(|fd| Held::Known(File::from(fd)))
    }

    /// Returns a path that leads to this file and to no other. It serves system calls that do not
    /// accept such a descriptor.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.as_fd().as_raw_fd()))
    }

    /// Returns the file, which may be open for nothing.
    pub fn file(&self) -> &File {
        match self {
            Held::Open(file) | Held::Known(file) => file,
        }
    }

    /// Returns the result of fstat(2) in the type of the standard library.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.file().metadata()
    }

    /// Returns the result of fstat(2).
    pub fn stat(&self) -> Result<Stat> {
        rustix::fs::fstat(self)
    }

    /// Sets owner and group.
    pub fn set_owner(&self, uid: Uid, gid: Gid) -> Result<()> {
        match self {
            Held::Open(file) => rustix::fs::fchown(file, Some(uid), Some(gid)),
            Held::Known(fd) => {
                rustix::fs::chownat(fd, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
            }
        }
    }

    /// Sets the permissions. Must not be called for a symlink.
    pub fn set_mode(&self, mode: Mode) -> Result<()> {
        match self {
            Held::Open(file) => rustix::fs::fchmod(file, mode),
            Held::Known(_) => rustix::fs::chmod(self.path(), mode),
        }
    }

    /// Sets the times of the last access and change.
    pub fn set_times(&self, times: &Timestamps) -> Result<()> {
        match self {
            Held::Open(file) => rustix::fs::futimens(file, times),
            Held::Known(fd) => match rustix::fs::utimensat(fd, c"", times, AtFlags::EMPTY_PATH) {
                // Linux before 5.8.
                Err(No::INVAL | No::NOENT) => {
                    rustix::fs::utimensat(rustix::fs::CWD, self.path(), times, AtFlags::empty())
                }
                other => other,
            },
        }
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        let name = OsStr::from_bytes(name);
        match self {
            Held::Open(file) => rustix::fs::fsetxattr(file, name, value, XattrFlags::empty()),
            Held::Known(_) => rustix::fs::setxattr(self.path(), name, value, XattrFlags::empty()),
        }
    }

    /// Removes an extended attribute, if there is one.
    pub fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        let name = OsStr::from_bytes(name);
        // Only asked for its length: where nothing is to be removed, this costs no change.
        let found = match self {
            Held::Open(file) => rustix::fs::fgetxattr(file, name, &mut [0u8; 0]),
            Held::Known(_) => rustix::fs::getxattr(self.path(), name, &mut [0u8; 0]),
        };
        match (found, self) {
            (Err(No::NODATA | No::OPNOTSUPP), _) => Ok(()),
            (_, Held::Open(file)) => rustix::fs::fremovexattr(file, name),
            (_, Held::Known(_)) => rustix::fs::removexattr(self.path(), name),
        }
    }

    /// Returns all extended attributes that can be read.
    pub fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut names = vec![0; 4096];
        let used = match self.list_xattrs(&mut names) {
            Err(No::OPNOTSUPP) => 0,
            Err(No::RANGE) => {
                names.resize(XATTR_MAX, 0);
                self.list_xattrs(&mut names)?
            }
            other => other?,
        };
        let mut found = Vec::new();
        for name in names[..used].split(|b| *b == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0; XATTR_MAX];
            let name = OsStr::from_bytes(name);
            let read = match self {
                Held::Open(file) => rustix::fs::fgetxattr(file, name, &mut value[..]),
                Held::Known(_) => rustix::fs::getxattr(self.path(), name, &mut value[..]),
            };
            match read {
                Ok(len) => {
                    value.truncate(len);
                    found.push((name.as_bytes().to_vec(), value));
                }
                // It was removed since, or is made up by a security module.
                Err(No::NODATA | No::OPNOTSUPP) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(found)
    }

    fn list_xattrs(&self, names: &mut [u8]) -> Result<usize> {
        match self {
            Held::Open(file) => rustix::fs::flistxattr(file, names),
            Held::Known(_) => rustix::fs::listxattr(self.path(), names),
        }
    }

    /// Links the file under a further name.
    pub fn link(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
        rustix::fs::linkat(
            rustix::fs::CWD,
            self.path(),
            dir,
            OsStr::from_bytes(name),
            AtFlags::SYMLINK_FOLLOW,
        )
    }
}

/// Fails unless `held`, which was found under the name of something just made in `dir`, can be
/// that: of the type `kind` and the device `rdev`, with one name if it is no directory, and of the
/// owner that new files get there.
pub fn check_made(
    held: &Held,
    dir: BorrowedFd<'_>,
    kind: rustix::fs::FileType,
    rdev: u64,
) -> io::Result<()> {
    let stat = held.stat()?;
    let found = rustix::fs::FileType::from_raw_mode(stat.st_mode);
    let single = kind == rustix::fs::FileType::Directory || stat.st_nlink == 1;
    if found != kind || stat.st_rdev != rdev || !single {
        return Err(replaced());
    }
    // Some network file systems give new files another owner than the process.
    if stat.st_uid != rustix::process::geteuid().as_raw() && stat.st_uid != owner_of_new(dir)? {
        return Err(replaced());
    }
    Ok(())
}

/// Returns the owner that a new file in `dir` gets, from a file made for this purpose: its
/// descriptor cannot lead to another user's file.
fn owner_of_new(dir: BorrowedFd<'_>) -> io::Result<u32> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let name = format!(".extant-get.{}.{}", std::process::id(), dir.as_raw_fd());
    let file = rustix::fs::openat(dir, &name, flags, Mode::RUSR | Mode::WUSR)?;
    let uid = rustix::fs::fstat(&file)?.st_uid;
    rustix::fs::unlinkat(dir, &name, AtFlags::empty())?;
    Ok(uid)
}
