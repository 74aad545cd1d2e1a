//! From the machine into an image.
//!
//! Directories are read and files copied by a crew of threads. A directory's own attributes come last: its default ACL and its
//! set-group-id bit would change what is made in it, and what is made in it would change its times. Names of files that have
//! several are made when all files are there.

use super::crew::Crew;
use super::job::{Copied, Job, Left};
use super::owner::Owner;
use extant::{
    Caller, Errno, File as ImageFile, FileType, Fs, New, Node, OpenFlags, RenameFlags, SetAttr, TimeSet, Timestamp,
    XattrMode,
};
use rustix::fs::{OFlags, SeekFrom};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

/// Files of one directory that make one task.
const BATCH: usize = 32;

/// Room for the names of attributes, and for the value of one: what Linux allows at most.
const XATTR_MAX: usize = 64 << 10;

type Result<T = (), E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// A task of the crew.
enum Task {
    /// The entries of a directory.
    Directory { source: PathBuf, dir: Node },
    /// Entries of one directory that are no directories themselves.
    Others { dir: Node, names: Vec<(PathBuf, Metadata)> },
}

/// Attributes that a directory gets in the end.
struct Pending {
    source: PathBuf,
    ino: u64,
    meta: Metadata,
}

/// Another name of a file.
struct Link {
    source: PathBuf,
    dir: u64,
    of: (u64, u64),
}

/// A copy into an image.
pub struct Copier<'a> {
    fs: &'a Fs,
    job: &'a Job<'a>,
    owner: Option<Owner>,
    /// Device and number of the image file, which is not copied into itself.
    image: Option<(u64, u64)>,
    pending: Mutex<Vec<Pending>>,
    links: Mutex<Vec<Link>>,
    /// The first copy of each file that has several names; 0 while it is being made.
    first: Mutex<HashMap<(u64, u64), u64>>,
}

impl<'a> Copier<'a> {
    /// A copy into `fs`, whose image file is `image`; everything belongs to `owner`, if given.
    pub fn new(fs: &'a Fs, job: &'a Job<'a>, owner: Option<Owner>, image: &Path) -> Copier<'a> {
        let image = std::fs::metadata(image).ok().map(|meta| (meta.dev(), meta.ino()));
        Copier { fs, job, owner, image, pending: Mutex::default(), links: Mutex::default(), first: Mutex::default() }
    }

    /// Copies all that the directory `source` holds into `dir`, and its attributes.
    pub fn tree(&self, source: &Path, meta: Metadata, dir: Node, threads: usize) {
        self.later(source, &dir, meta);
        let first = Task::Directory { source: source.into(), dir };
        Crew::work(threads, vec![first], |task, crew| match task {
            Task::Directory { source, dir } => {
                let read = self.directory(&source, &dir, crew);
                self.job.check(|| source.as_os_str().as_bytes().to_vec(), read);
            }
            Task::Others { dir, names } => {
                for (source, meta) in names {
                    let copied = self.other(&source, &meta, &dir, file_name(&source));
                    self.job.check(|| source.as_os_str().as_bytes().to_vec(), copied);
                }
            }
        });
        self.make_links();
        self.finish_directories();
    }

    /// Copies something that is no directory under a name.
    pub fn single(&self, source: &Path, meta: &Metadata, dir: &Node, name: &[u8]) {
        let copied = self.other(source, meta, dir, name);
        self.job.check(|| source.as_os_str().as_bytes().to_vec(), copied);
    }

    fn later(&self, source: &Path, dir: &Node, meta: Metadata) {
        lock(&self.pending).push(Pending { source: source.into(), ino: dir.ino(), meta });
    }

    fn directory(&self, source: &Path, dir: &Node, crew: &Crew<Task>) -> Result {
        let mut others = Vec::new();
        let mut directories = Vec::new();
        for entry in std::fs::read_dir(source)? {
            let path = entry?.path();
            let Some(meta) = self.job.check(|| path.as_os_str().as_bytes().to_vec(), std::fs::symlink_metadata(&path))
            else {
                continue;
            };
            if meta.is_dir() {
                let made = self.subdirectory(dir, file_name(&path), &meta);
                let Some(made) = self.job.check(|| path.as_os_str().as_bytes().to_vec(), made) else { continue };
                self.later(&path, &made, meta);
                directories.push(Task::Directory { source: path, dir: made });
            } else {
                others.push((path, meta));
            }
        }
        // Names in order: an index of a directory by hash does not care, a linear one stays readable.
        others.sort_by(|a, b| a.0.cmp(&b.0));
        crew.add(directories);
        while !others.is_empty() {
            let rest = others.split_off(others.len().min(BATCH));
            let names = std::mem::replace(&mut others, rest);
            crew.add([Task::Others { dir: dir.clone(), names }]);
        }
        Ok(())
    }

    /// A directory of the image: a new one, or the one that is there.
    fn subdirectory(&self, dir: &Node, name: &[u8], meta: &Metadata) -> Result<Node> {
        match self.fs.create(&self.caller(meta), dir, name, 0o700, New::Dir) {
            Err(e) if e.is(Errno::Exist) => {
                let there = self.fs.lookup(dir, name)?;
                match there.file_type() {
                    FileType::Directory => Ok(there),
                    _ => Err(Errno::NotDir.message().into()),
                }
            }
            other => Ok(other?),
        }
    }

    fn caller(&self, meta: &Metadata) -> Caller {
        let owner = self.owner.unwrap_or(Owner { uid: meta.uid(), gid: meta.gid() });
        owner.caller()
    }

    fn other(&self, source: &Path, meta: &Metadata, dir: &Node, name: &[u8]) -> Result {
        if self.image == Some((meta.dev(), meta.ino())) {
            return Err("this is the image itself; it is left out".into());
        }
        if meta.nlink() > 1 && !self.is_first(source, meta, dir) {
            return Ok(());
        }
        let target;
        let ftype = meta.file_type();
        let device = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
        let what = if ftype.is_file() {
            New::File
        } else if ftype.is_symlink() {
            target = std::fs::read_link(source)?.into_os_string().into_vec();
            New::Symlink(&target)
        } else if ftype.is_block_device() {
            New::Special(FileType::BlockDevice, device)
        } else if ftype.is_char_device() {
            New::Special(FileType::CharDevice, device)
        } else if ftype.is_fifo() {
            New::Special(FileType::Fifo, (0, 0))
        } else {
            New::Special(FileType::Socket, (0, 0))
        };
        let node = self.place(dir, name, meta, what, |node| match ftype.is_file() {
            true => self.content(source, node),
            false => Ok(()),
        })?;
        self.attributes(source, &node, meta)?;
        self.remember(meta, &node);
        self.job.done(if ftype.is_file() { Copied::File } else { Copied::Other }, || {
            source.as_os_str().as_bytes().to_vec()
        });
        Ok(())
    }

    /// Whether this is the first name met of a file with several; the others are made when all files are there.
    fn is_first(&self, source: &Path, meta: &Metadata, dir: &Node) -> bool {
        let of = (meta.dev(), meta.ino());
        let mut first = lock(&self.first);
        if let std::collections::hash_map::Entry::Vacant(vacant) = first.entry(of) {
            vacant.insert(0);
            return true;
        }
        drop(first);
        lock(&self.links).push(Link { source: source.into(), dir: dir.ino(), of });
        false
    }

    fn remember(&self, meta: &Metadata, node: &Node) {
        if meta.nlink() > 1 {
            lock(&self.first).insert((meta.dev(), meta.ino()), node.ino());
        }
    }

    /// Makes something under a name. What has the name already is replaced once the new thing is complete.
    fn place(
        &self,
        dir: &Node,
        name: &[u8],
        meta: &Metadata,
        what: New<'_>,
        fill: impl FnOnce(&Node) -> Result,
    ) -> Result<Node> {
        let who = self.caller(meta);
        let mode = (meta.mode() & 0o7777) as u16;
        match self.fs.create(&who, dir, name, mode, what) {
            Err(e) if e.is(Errno::Exist) => {}
            other => {
                let node = other?;
                return self.fill(dir, name, node, fill);
            }
        }
        if self.fs.lookup(dir, name)?.file_type() == FileType::Directory {
            return Err(Errno::IsDir.message().into());
        }
        let (node, beside) = self.beside(&who, dir, mode, what)?;
        let node = self.fill(dir, &beside, node, fill)?;
        self.fs.rename(dir, &beside, dir, name, RenameFlags::empty())?;
        Ok(node)
    }

    /// Fills something new; takes its name away again if that fails.
    fn fill(&self, dir: &Node, name: &[u8], node: Node, fill: impl FnOnce(&Node) -> Result) -> Result<Node> {
        match fill(&node) {
            Ok(()) => Ok(node),
            Err(e) => {
                self.fs.unlink(dir, name)?;
                Err(e)
            }
        }
    }

    /// Makes something under a name that is free.
    fn beside(&self, who: &Caller, dir: &Node, mode: u16, what: New<'_>) -> Result<(Node, Vec<u8>)> {
        for number in 0..u32::MAX {
            let name = format!(".extant-put.{number}").into_bytes();
            match self.fs.create(who, dir, &name, mode, what) {
                Err(e) if e.is(Errno::Exist) => {}
                other => return Ok((other?, name)),
            }
        }
        Err(Errno::Exist.message().into())
    }

    fn content(&self, source: &Path, node: &Node) -> Result {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let from = File::options().read(true).custom_flags(flags).open(source)?;
        let to = self.fs.open_file(node, OpenFlags { write: true, ..OpenFlags::default() })?;
        copy_content(&from, &to, self.job)
    }

    /// Gives a copy the attributes of its source.
    fn attributes(&self, source: &Path, node: &Node, meta: &Metadata) -> Result {
        self.xattrs(source, node)?;
        let owner = self.owner.unwrap_or(Owner { uid: meta.uid(), gid: meta.gid() });
        let symlink = meta.file_type().is_symlink();
        let set = SetAttr {
            mode: (!symlink).then_some((meta.mode() & 0o7777) as u16),
            uid: Some(owner.uid),
            gid: Some(owner.gid),
            atime: Some(TimeSet::At(Timestamp { sec: meta.atime(), nsec: nanoseconds(meta.atime_nsec()) })),
            mtime: Some(TimeSet::At(Timestamp { sec: meta.mtime(), nsec: nanoseconds(meta.mtime_nsec()) })),
            ..SetAttr::default()
        };
        self.fs.set_attr(node, &set)?;
        Ok(())
    }

    fn xattrs(&self, source: &Path, node: &Node) -> Result {
        let wanted = read_xattrs(source)?;
        for name in self.fs.list_xattrs(node)? {
            if !wanted.iter().any(|(wanted, _)| *wanted == name) {
                self.fs.remove_xattr(node, &name)?;
            }
        }
        for (name, value) in wanted {
            match self.fs.set_xattr(node, &name, &value, XattrMode::Any) {
                Err(e) if e.is(Errno::OpNotSupp) => self.job.left(Left::Attribute),
                other => other.map_err(|e| format!("attribute {}: {e}", crate::text::shown(&name)))?,
            }
        }
        Ok(())
    }

    fn make_links(&self) {
        let links = std::mem::take(&mut *lock(&self.links));
        for link in links {
            let made = self.link(&link);
            let path = link.source.as_os_str().as_bytes();
            if self.job.check(|| path.to_vec(), made).is_some() {
                self.job.done(Copied::Other, || path.to_vec());
            }
        }
    }

    fn link(&self, link: &Link) -> Result {
        let first = lock(&self.first).get(&link.of).copied().filter(|ino| *ino != 0);
        let first = first.ok_or("another name of a file that could not be copied")?;
        let (node, dir, name) = (self.fs.node(first)?, self.fs.node(link.dir)?, file_name(&link.source));
        match self.fs.link(&node, &dir, name) {
            Err(e) if e.is(Errno::Exist) => {
                if self.fs.lookup(&dir, name)?.ino() == node.ino() {
                    return Ok(());
                }
                self.fs.unlink(&dir, name)?;
                Ok(self.fs.link(&node, &dir, name)?)
            }
            other => Ok(other?),
        }
    }

    fn finish_directories(&self) {
        let pending = std::mem::take(&mut *lock(&self.pending));
        for one in pending {
            let path = one.source.as_os_str().as_bytes();
            let done =
                self.fs.node(one.ino).map_err(Into::into).and_then(|dir| self.attributes(&one.source, &dir, &one.meta));
            if self.job.check(|| path.to_vec(), done).is_some() {
                self.job.done(Copied::Directory, || path.to_vec());
            }
        }
    }
}

/// What is locked here stays whole if a thread panics.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nanoseconds(nsec: i64) -> u32 {
    u32::try_from(nsec).unwrap_or(0)
}

fn file_name(path: &Path) -> &[u8] {
    path.file_name().unwrap_or_default().as_bytes()
}

/// Copies content, holes left out, from the standing of `from`'s file; `to` is empty.
pub fn copy_content(from: &File, to: &ImageFile, job: &Job<'_>) -> Result {
    let end = from.metadata()?.len();
    let mut piece = vec![0; PIECE.min(usize::try_from(end).unwrap_or(PIECE)).max(1)];
    let mut at = 0;
    while let Some((start, stop)) = next_data(from, at, end)? {
        at = start;
        while at < stop {
            let want = piece.len().min(usize::try_from(stop - at).unwrap_or(PIECE));
            let len = from.read_at(&mut piece[..want], at)?;
            if len == 0 {
                // It was cut while it was copied.
                return Ok(to.set_len(at)?);
            }
            to.write_at(at, &piece[..len])?;
            job.bytes(len as u64);
            at += len as u64;
        }
    }
    if to.len() < end {
        to.set_len(end)?;
    }
    Ok(())
}

/// The next range of data from `at` on; all the rest where holes cannot be told.
fn next_data(file: &File, at: u64, end: u64) -> io::Result<Option<(u64, u64)>> {
    use rustix::io::Errno as No;
    if at >= end {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(No::NXIO) => return Ok(None),
        Err(No::INVAL | No::OPNOTSUPP) => return Ok(Some((at, end))),
        Err(e) => return Err(e.into()),
    };
    let stop = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(end);
    // A file that changes under the copy may give anything.
    Ok((start >= at && stop > start && start < end).then_some((start, stop.min(end))))
}

/// The extended attributes of a file itself, a symlink not followed.
fn read_xattrs(path: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    use rustix::io::Errno as No;
    let mut names = vec![0; 4096];
    let used = match rustix::fs::llistxattr(path, &mut names[..]) {
        Err(No::OPNOTSUPP) => 0,
        Err(No::RANGE) => {
            names.resize(XATTR_MAX, 0);
            rustix::fs::llistxattr(path, &mut names[..])?
        }
        other => other?,
    };
    let mut found = Vec::new();
    for name in names[..used].split(|b| *b == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; XATTR_MAX];
        match rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]) {
            Ok(len) => {
                value.truncate(len);
                found.push((name.to_vec(), value));
            }
            // It was removed since, or is made up by a security module.
            Err(No::NODATA | No::OPNOTSUPP) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(found)
}

/// The bytes of all regular files below a directory, for the progress bar.
pub fn total_bytes(source: &Path) -> u64 {
    let mut total = 0u64;
    let mut waiting = vec![source.to_path_buf()];
    while let Some(dir) = waiting.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_dir() {
                waiting.push(entry.path());
            } else if meta.is_file() {
                total = total.saturating_add(meta.len().min(meta.blocks().saturating_mul(512)));
            }
        }
    }
    total
}
