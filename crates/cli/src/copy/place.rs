//! Directories of the machine that a copy reads from or writes to.
//!
//! A copy holds one descriptor, that of its base. Every other directory is known as a chain of
//! names up to the base, so that a directory 2000 levels down needs memory for its own name only,
//! and no descriptor while other work is done.
//!
//! # Invariants
//! A directory is opened from the base down by single names, and no symlink is followed. Device and
//! inode number are compared with those of the first time: another user with permission to rename
//! entries of the tree can make a copy fail, but cannot lead it to a different directory.

use rustix::fs::{Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno as No;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Bytes of a path that one system call is given: less than PATH_MAX.
const PATH_BYTES: usize = 4000;

/// How directories are opened: as directories only, symlinks not followed.
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Device and inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    dev: u64,
    ino: u64,
}

impl Identity {
    /// Returns the identity of an open file.
    pub fn of(fd: impl AsFd) -> io::Result<Identity> {
        Ok(Identity::of_stat(&rustix::fs::fstat(fd)?))
    }

    /// Returns the identity of the file that fstat(2) described.
    pub fn of_stat(stat: &Stat) -> Identity {
        Identity { dev: stat.st_dev, ino: stat.st_ino }
    }
}

/// A directory of a copy.
#[derive(Debug)]
pub struct Place {
    above: Option<Arc<Place>>,
    name: Vec<u8>,
    depth: usize,
    identity: Identity,
}

impl Place {
    /// Returns the base, open as `fd`.
    pub fn base(fd: impl AsFd) -> io::Result<Arc<Place>> {
        Ok(Arc::new(Place { above: None, name: Vec::new(), depth: 0, identity: Identity::of(fd)? }))
    }

    /// Returns the directory `name` below this one, open as `fd`.
    pub fn below(self: &Arc<Place>, name: &[u8], fd: impl AsFd) -> io::Result<Arc<Place>> {
        let identity = Identity::of(fd)?;
        Ok(Arc::new(Place {
            above: Some(self.clone()),
            name: name.to_vec(),
            depth: self.depth + 1,
            identity,
        }))
    }

    /// Levels below the base.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the names from the base down to this directory.
    fn names(&self) -> Vec<&[u8]> {
        let mut names = Vec::with_capacity(self.depth);
        let mut at = self;
        while let Some(above) = &at.above {
            names.push(at.name.as_slice());
            at = above;
        }
        names.reverse();
        names
    }

    /// Returns the path below the base.
    pub fn path(&self) -> Vec<u8> {
        self.names().join(&b'/')
    }

    /// Returns the path below the base of an entry of this directory.
    pub fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut names = self.names();
        names.push(name);
        names.join(&b'/')
    }

    /// Opens the directory for reading, from the base down.
    ///
    /// # Errors
    /// Those of openat2(2), and one of its own if the directory is not the one that was met first.
    pub fn open(&self, base: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let mut at = None;
        let mut names = self.names().into_iter().peekable();
        loop {
            let mut path = names.next().unwrap_or(b".").to_vec();
            while let Some(name) = names.next_if(|name| path.len() + 1 + name.len() <= PATH_BYTES) {
                path.push(b'/');
                path.extend_from_slice(name);
            }
            let access = if names.peek().is_some() { OFlags::PATH } else { OFlags::RDONLY };
            let below =
                open_beneath(at.as_ref().map_or(base, AsFd::as_fd), &path, access | DIRECTORY)?;
            if names.peek().is_none() {
                return if Identity::of(&below)? == self.identity {
                    Ok(below)
                } else {
                    Err(replaced())
                };
            }
            at = Some(below);
        }
    }
}

/// Returns the error for an entry that another program has replaced meanwhile.
pub fn replaced() -> io::Error {
    io::Error::other(
        "another program replaced it during the copy; copy again when no other program changes the \
        tree",
    )
}

/// Opens the directory `name` of `dir` for reading; a symlink is not followed.
pub fn open_dir(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, OsStr::from_bytes(name), OFlags::RDONLY | DIRECTORY, Mode::empty())?)
}

/// Opens a path below `dir`, following no symlink.
fn open_beneath(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(dir, OsStr::from_bytes(path), flags, Mode::empty(), resolve) {
        // Linux before 5.6, and filters of system calls that do not know this one.
        Err(No::NOSYS | No::PERM) => open_by_names(dir, path, flags),
        other => Ok(other?),
    }
}

/// Opens as [`open_beneath`] does, with a system call for each name.
fn open_by_names(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let mut at: Option<OwnedFd> = None;
    let mut names = path.split(|b| *b == b'/').peekable();
    while let Some(name) = names.next() {
        let flags = if names.peek().is_some() { OFlags::PATH | DIRECTORY } else { flags };
        let from = at.as_ref().map_or(dir, AsFd::as_fd);
        at = Some(rustix::fs::openat(from, OsStr::from_bytes(name), flags, Mode::empty())?);
    }
    at.ok_or_else(|| No::NOENT.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_testkit::Scratch;
    use std::fs;

    fn base(scratch: &Scratch) -> OwnedFd {
        rustix::fs::open(scratch.path(), OFlags::RDONLY | DIRECTORY, Mode::empty()).expect("opens")
    }

    /// Makes a chain of existing directories.
    fn chain(base: &OwnedFd, names: &[&[u8]]) -> Arc<Place> {
        let mut place = Place::base(base).expect("a base");
        for name in names {
            let dir = place.open(base.as_fd()).expect("opens");
            rustix::fs::mkdirat(&dir, OsStr::from_bytes(name), Mode::RWXU).expect("makes");
            place =
                place.below(name, open_dir(dir.as_fd(), name).expect("opens")).expect("a place");
        }
        place
    }

    #[test]
    fn paths_longer_than_one_call_takes_are_opened() {
        let scratch = Scratch::new();
        let base = base(&scratch);
        let names: Vec<Vec<u8>> = (b'a'..=b'z').map(|c| vec![c; 255]).collect();
        let place = chain(&base, &names.iter().map(Vec::as_slice).collect::<Vec<_>>());
        assert!(place.path().len() > 6000 && place.depth() == 26);
        place.open(base.as_fd()).expect("opens");
    }

    #[test]
    fn symlinks_are_not_followed_with_and_without_openat2() {
        let scratch = Scratch::new();
        fs::create_dir_all(scratch.join("a/b")).expect("makes");
        std::os::unix::fs::symlink("a", scratch.join("l")).expect("makes");
        let base = base(&scratch);
        for open in [open_beneath, open_by_names] {
            assert!(open(base.as_fd(), b"a/b", DIRECTORY).is_ok());
            assert!(open(base.as_fd(), b"l/b", DIRECTORY).is_err());
            assert!(open(base.as_fd(), b"l", DIRECTORY).is_err());
        }
    }

    #[test]
    fn a_directory_that_was_replaced_is_not_opened() {
        let scratch = Scratch::new();
        let base = base(&scratch);
        let place = chain(&base, &[b"a", b"b"]);
        fs::rename(scratch.join("a/b"), scratch.join("a/c")).expect("renames");
        fs::create_dir(scratch.join("a/b")).expect("makes");
        let error = place.open(base.as_fd()).expect_err("it is another");
        assert!(error.to_string().contains("replaced"), "{error}");
    }
}
