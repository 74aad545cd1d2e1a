//! Out of an image onto the machine.
//!
//! # Invariants
//! Nothing is made outside of the destination, whatever the image says: names are single components, each directory is opened
//! from the destination down without following a symlink, and files are made new. A directory is entered once, so a loop in the
//! image's tree ends. Permissions widen last: until it is complete, a file is its owner's only.

use super::crew::Crew;
use super::job::{Copied, Job, Left};
use crate::image::join;
use crate::walk::MAX_DEPTH;
use extant::{Attr, DirEntry, File as ImageFile, FileType, Fs, Node, OpenFlags, Timestamp};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno as No;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

/// Entries of one directory that make one task.
const BATCH: usize = 32;

type Result<T = (), E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// A task of the crew. Paths lie below the destination.
enum Task {
    /// The entries of a directory, which is there.
    Directory { path: Vec<u8>, node: Node },
    /// Some of the entries of a directory.
    Entries { path: Vec<u8>, entries: Vec<DirEntry> },
}

/// A copy out of an image.
pub struct Copier<'a> {
    fs: &'a Fs,
    job: &'a Job<'a>,
    /// The directory that everything goes into.
    base: OwnedFd,
    root: bool,
    entered: Mutex<HashSet<u64>>,
    /// Directories that get their attributes in the end.
    pending: Mutex<Vec<(Vec<u8>, u64)>>,
    /// Where the first name of each file with several names went; empty while it is being made.
    first: Mutex<HashMap<u64, Vec<u8>>>,
    /// Further names.
    links: Mutex<Vec<(Vec<u8>, u64)>>,
}

impl<'a> Copier<'a> {
    /// A copy into the directory `base`, which is there.
    pub fn new(fs: &'a Fs, job: &'a Job<'a>, base: &Path) -> io::Result<Copier<'a>> {
        let base = rustix::fs::open(base, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Copier {
            fs,
            job,
            base,
            root: rustix::process::geteuid().is_root(),
            entered: Mutex::default(),
            pending: Mutex::default(),
            first: Mutex::default(),
            links: Mutex::default(),
        })
    }

    /// Copies what the directory `top` holds, and its attributes.
    pub fn tree(&self, top: Node, threads: usize) {
        self.enter(&top);
        lock(&self.pending).push((Vec::new(), top.ino()));
        let first = Task::Directory { path: Vec::new(), node: top };
        Crew::work(threads, vec![first], |task, crew| match task {
            Task::Directory { path, node } => {
                let read = self.directory(&path, &node, crew);
                self.job.check(&path, read);
            }
            Task::Entries { path, entries } => self.entries(&path, &entries, crew),
        });
        self.make_links();
        self.finish_directories();
    }

    /// Copies something that is no directory under `name`.
    pub fn single(&self, node: &Node, name: &[u8]) {
        let made = check_name(name).and_then(|()| self.other(self.base.as_fd(), name, node));
        if self.job.check(name, made).is_some() {
            self.count(node, name);
        }
    }

    /// Whether a directory is entered for the first time.
    fn enter(&self, dir: &Node) -> bool {
        lock(&self.entered).insert(dir.ino())
    }

    fn directory(&self, path: &[u8], node: &Node, crew: &Crew<Task>) -> Result {
        let mut entries = self.fs.read_dir(node)?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        while !entries.is_empty() {
            let rest = entries.split_off(entries.len().min(BATCH));
            let batch = std::mem::replace(&mut entries, rest);
            crew.add([Task::Entries { path: path.to_vec(), entries: batch }]);
        }
        Ok(())
    }

    fn entries(&self, path: &[u8], entries: &[DirEntry], crew: &Crew<Task>) {
        let Some(dir) = self.job.check(path, self.open_dir(path)) else { return };
        for entry in entries {
            let own = join(path, &entry.name);
            let made = check_name(&entry.name).and_then(|()| self.entry(&dir, &own, entry, crew));
            self.job.check(&own, made);
        }
    }

    fn entry(&self, dir: &OwnedFd, path: &[u8], entry: &DirEntry, crew: &Crew<Task>) -> Result {
        let node = self.fs.node(entry.ino)?;
        let attr = node.attr();
        if attr.ftype == FileType::Directory {
            return self.subdirectory(dir, path, &entry.name, node, crew);
        }
        if attr.nlink > 1 && !self.is_first(path, entry.ino) {
            return Ok(());
        }
        self.other(dir.as_fd(), &entry.name, &node)?;
        if attr.nlink > 1 {
            lock(&self.first).insert(entry.ino, path.to_vec());
        }
        self.count(&node, path);
        Ok(())
    }

    fn count(&self, node: &Node, path: &[u8]) {
        let what = if node.file_type() == FileType::Regular { Copied::File } else { Copied::Other };
        self.job.done(what, path);
    }

    fn subdirectory(&self, dir: &OwnedFd, path: &[u8], name: &[u8], node: Node, crew: &Crew<Task>) -> Result {
        if !self.enter(&node) {
            return Err("this directory was met before: the image's tree has a loop, or two names for it".into());
        }
        if path.iter().filter(|b| **b == b'/').count() >= MAX_DEPTH {
            return Err("deeper than directories are followed".into());
        }
        match rustix::fs::mkdirat(dir, OsStr::from_bytes(name), Mode::RWXU) {
            Err(No::EXIST) | Ok(()) => {}
            Err(e) => return Err(e.into()),
        }
        // What was there may be something else, a symlink perhaps: this opens directories only.
        self.open_dir(path)?;
        lock(&self.pending).push((path.to_vec(), node.ino()));
        crew.add([Task::Directory { path: path.to_vec(), node }]);
        Ok(())
    }

    /// Opens a directory below the destination, following no symlink.
    fn open_dir(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let path = if path.is_empty() { b"." } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(rustix::fs::openat2(&self.base, OsStr::from_bytes(path), flags, Mode::empty(), resolve)?)
    }

    /// Whether this is the first name met of a file with several; the others are made when all files are there.
    fn is_first(&self, path: &[u8], ino: u64) -> bool {
        let mut first = lock(&self.first);
        if let std::collections::hash_map::Entry::Vacant(vacant) = first.entry(ino) {
            vacant.insert(Vec::new());
            return true;
        }
        drop(first);
        lock(&self.links).push((path.to_vec(), ino));
        false
    }

    /// Makes something that is no directory, new: what has the name is removed first, unless it is a directory.
    fn other(&self, dir: BorrowedFd<'_>, name: &[u8], node: &Node) -> Result {
        let attr = node.attr();
        let os_name = OsStr::from_bytes(name);
        match rustix::fs::unlinkat(dir, os_name, AtFlags::empty()) {
            Ok(()) | Err(No::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        match attr.ftype {
            FileType::Regular => return self.regular(dir, os_name, node, &attr),
            FileType::Symlink => rustix::fs::symlinkat(OsStr::from_bytes(&self.fs.read_link(node)?), dir, os_name)?,
            FileType::BlockDevice | FileType::CharDevice if !self.root => {
                self.job.left(Left::Device);
                return Ok(());
            }
            FileType::BlockDevice => self.special(dir, os_name, rustix::fs::FileType::BlockDevice, &attr)?,
            FileType::CharDevice => self.special(dir, os_name, rustix::fs::FileType::CharacterDevice, &attr)?,
            FileType::Fifo => self.special(dir, os_name, rustix::fs::FileType::Fifo, &attr)?,
            FileType::Socket => self.special(dir, os_name, rustix::fs::FileType::Socket, &attr)?,
            FileType::Directory | FileType::Unknown => return Err("an inode of no known type".into()),
        }
        self.attributes_by_name(dir, os_name, node, &attr)
    }

    fn special(&self, dir: BorrowedFd<'_>, name: &OsStr, kind: rustix::fs::FileType, attr: &Attr) -> io::Result<()> {
        let device = rustix::fs::makedev(attr.rdev.0, attr.rdev.1);
        Ok(rustix::fs::mknodat(dir, name, kind, Mode::RUSR | Mode::WUSR, device)?)
    }

    fn regular(&self, dir: BorrowedFd<'_>, name: &OsStr, node: &Node, attr: &Attr) -> Result {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = File::from(rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?);
        let from = self.fs.open_file(node, OpenFlags { direct: true, ..OpenFlags::default() })?;
        let copied = copy_content(&from, &to, self.job).and_then(|()| self.attributes_by_fd(&to, node, attr));
        if copied.is_err() {
            // Half a file is worse than none. That it could not be copied is the error to tell.
            let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
        }
        copied
    }

    /// Attributes of something that can be opened.
    fn attributes_by_fd(&self, to: &File, node: &Node, attr: &Attr) -> Result {
        let owned = self.owner(attr, |uid, gid| rustix::fs::fchown(to, uid, gid))?;
        rustix::fs::fchmod(to, mode(attr, owned))?;
        self.xattrs(node, |name, value| rustix::fs::fsetxattr(to, name, value, XattrFlags::empty()))?;
        Ok(rustix::fs::futimens(to, &times(attr))?)
    }

    /// Attributes of something that is better not opened.
    fn attributes_by_name(&self, dir: BorrowedFd<'_>, name: &OsStr, node: &Node, attr: &Attr) -> Result {
        let set = |uid, gid| rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
        let owned = self.owner(attr, set)?;
        if attr.ftype != FileType::Symlink {
            rustix::fs::chmodat(dir, name, mode(attr, owned), AtFlags::empty())?;
        }
        // There is no call that takes a directory and a name.
        let path = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name);
        self.xattrs(node, |name, value| rustix::fs::lsetxattr(&path, name, value, XattrFlags::empty()))?;
        Ok(rustix::fs::utimensat(dir, name, &times(attr), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Sets the owner. False if this user may not, or there is no such owner here.
    fn owner(&self, attr: &Attr, set: impl Fn(Option<Uid>, Option<Gid>) -> rustix::io::Result<()>) -> Result<bool> {
        match set(Some(Uid::from_raw(attr.uid)), Some(Gid::from_raw(attr.gid))) {
            Ok(()) => Ok(true),
            Err(No::PERM | No::INVAL) => {
                self.job.left(Left::Owner);
                Ok(false)
            }
            Err(e) => Err(e.into()),
        }
    }

    fn xattrs(&self, node: &Node, set: impl Fn(&OsStr, &[u8]) -> rustix::io::Result<()>) -> Result {
        for name in self.fs.list_xattrs(node)? {
            let value = self.fs.get_xattr(node, &name)?;
            match set(OsStr::from_bytes(&name), &value) {
                Ok(()) => {}
                Err(No::OPNOTSUPP | No::PERM | No::ACCESS | No::NOSPC | No::TOOBIG | No::RANGE) => {
                    self.job.left(Left::Attribute)
                }
                Err(e) => return Err(format!("attribute {}: {e}", crate::text::shown(&name)).into()),
            }
        }
        Ok(())
    }

    fn make_links(&self) {
        for (path, ino) in std::mem::take(&mut *lock(&self.links)) {
            let made = self.link(&path, ino);
            if self.job.check(&path, made).is_some() {
                self.job.done(Copied::Other, &path);
            }
        }
    }

    fn link(&self, path: &[u8], ino: u64) -> Result {
        let first = lock(&self.first).get(&ino).cloned().filter(|path| !path.is_empty());
        let first = first.ok_or("another name of a file that could not be copied")?;
        let ((from, from_name), (to, to_name)) = (split(&first), split(path));
        let (from, to) = (self.open_dir(from)?, self.open_dir(to)?);
        match rustix::fs::unlinkat(&to, to_name, AtFlags::empty()) {
            Ok(()) | Err(No::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(rustix::fs::linkat(&from, from_name, &to, to_name, AtFlags::empty())?)
    }

    /// Deepest first, as a directory may come to forbid what lies below it to this user.
    fn finish_directories(&self) {
        let mut pending = std::mem::take(&mut *lock(&self.pending));
        pending.sort_by(|a, b| b.0.cmp(&a.0));
        for (path, ino) in pending {
            let finished = self.finish_directory(&path, ino);
            if self.job.check(&path, finished).is_some() {
                self.job.done(Copied::Directory, &path);
            }
        }
    }

    fn finish_directory(&self, path: &[u8], ino: u64) -> Result {
        let node = self.fs.node(ino)?;
        let dir = File::from(self.open_dir(path)?);
        self.attributes_by_fd(&dir, &node, &node.attr())
    }
}

/// What is locked here stays whole if a thread panics.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a name of the image can only be a name in the directory it is in.
pub fn check_name(name: &[u8]) -> Result {
    match name {
        b"" | b"." | b".." => Err("no name for a file; left out".into()),
        _ if name.iter().any(|b| matches!(b, 0 | b'/')) => Err("a name with a slash or a zero byte; left out".into()),
        _ => Ok(()),
    }
}

/// A directory's path and the name in it.
fn split(path: &[u8]) -> (&[u8], &OsStr) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (&path[..at], OsStr::from_bytes(&path[at + 1..])),
        None => (b"", OsStr::from_bytes(path)),
    }
}

/// Permissions; without set-user-id and set-group-id where the owner could not be set.
fn mode(attr: &Attr, owned: bool) -> Mode {
    Mode::from_raw_mode(u32::from(attr.mode) & if owned { 0o7777 } else { 0o1777 })
}

fn times(attr: &Attr) -> Timestamps {
    let time = |t: Timestamp| Timespec { tv_sec: t.sec, tv_nsec: t.nsec.into() };
    Timestamps { last_access: time(attr.atime), last_modification: time(attr.mtime) }
}

/// Copies content, holes left out; `to` is empty.
pub fn copy_content(from: &ImageFile, to: &File, job: &Job<'_>) -> Result {
    let end = from.len();
    let mut piece = vec![0; PIECE.min(usize::try_from(end).unwrap_or(PIECE)).max(1)];
    let mut at = 0;
    while let Some((start, stop)) = next_data(from, at, end)? {
        at = start;
        while at < stop {
            let want = piece.len().min(usize::try_from(stop - at).unwrap_or(PIECE));
            let len = from.read_at(at, &mut piece[..want])?;
            if len == 0 {
                return Err(format!("content ends at byte {at} instead of {end}").into());
            }
            to.write_all_at(&piece[..len], at)?;
            job.bytes(len as u64);
            at += len as u64;
        }
    }
    Ok(to.set_len(end)?)
}

/// The next range of data of a file in an image, from `at` on.
pub fn next_data(file: &ImageFile, at: u64, end: u64) -> extant::Result<Option<(u64, u64)>> {
    if at >= end {
        return Ok(None);
    }
    let start = match file.seek_data(at) {
        Err(e) if e.is(extant::Errno::Nxio) => return Ok(None),
        other => other?,
    };
    let stop = file.seek_hole(start)?;
    Ok((start >= at && stop > start && start < end).then_some((start, stop.min(end))))
}

/// Makes a directory for a copy if nothing is there; a symlink that the user names is followed.
pub fn make_base(path: &Path) -> io::Result<()> {
    match rustix::fs::mkdirat(CWD, path, Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH) {
        Err(No::EXIST) | Ok(()) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_single_components_are_names() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0"] {
            assert!(check_name(bad).is_err());
        }
        for good in [&b"..."[..], b"a", b"\xff", b".a"] {
            assert!(check_name(good).is_ok());
        }
    }

    #[test]
    fn paths_are_split_at_the_last_slash() {
        assert_eq!(split(b"a/b/c"), (&b"a/b"[..], OsStr::new("c")));
        assert_eq!(split(b"a"), (&b""[..], OsStr::new("a")));
    }
}
