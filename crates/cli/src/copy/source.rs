//! Copies from the machine into an image.
//!
//! Directories are read and files copied by a crew of threads. A directory's own attributes come
//! last: its default ACL and its set-group-id bit would change new entries, and new entries would
//! change its times. Further names of files are made after all files.
//!
//! # Invariants
//! Nothing outside the source is read, for any concurrent change of it by another user: directories
//! are opened as [`super::place`] describes, symlinks are not followed, and content and attributes
//! are read through the descriptor of one and the same file.

use super::acl;
use super::crew::Crew;
use super::held::Held;
use super::job::{Copied, Job, Left};
use super::owner::Owner;
use super::place::{Identity, Place, open_dir, replaced};
use super::replace::{Placer, Wanted, free_name};
use crate::image::join;
use crate::walk::{MAX_DEPTH, TOO_DEEP};
use extant_engine::{
    Errno, File as ImageFile, FileType, Fs, Node, NodeKind, OpenFlags, RenameFlags, SetAttr,
    TimeSet, Timestamp, XattrMode,
};
use rustix::fs::{AtFlags, Mode, OFlags, SeekFrom};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

/// The smallest buffer: files of procfs are read whole, or not at all.
const MIN_PIECE: usize = 64 << 10;

/// Bytes from which on a file is written past the pages of the file system: its content would push
/// everything else out of memory, and gains nothing by waiting there.
pub const MIN_STREAM: u64 = 8 << 20;

/// Files of one directory that make one task.
const BATCH: usize = 32;

/// Result of a step of a copy.
pub type Result<T = (), E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// A task of the crew.
enum Task {
    /// The entries of a directory.
    Directory { place: Arc<Place>, dir: Node },
    /// Entries of one directory that are no directories themselves.
    Others { place: Arc<Place>, dir: Node, names: Vec<Vec<u8>> },
}

/// Attributes that a directory gets in the end.
struct Pending {
    place: Arc<Place>,
    ino: u64,
    meta: Metadata,
}

/// Another name of a file.
struct Link {
    place: Arc<Place>,
    name: Vec<u8>,
    dir: u64,
    of: (u64, u64),
}

/// An entry of a directory of the machine, and its place in the image.
struct Entry<'a> {
    from: BorrowedFd<'a>,
    place: &'a Arc<Place>,
    name: &'a [u8],
    dir: &'a Node,
    new_name: &'a [u8],
}

/// A copy into an image.
pub struct Copier<'a> {
    fs: &'a Fs,
    job: &'a Job<'a>,
    owner: Option<Owner>,
    /// The directory that everything comes from, and its path for messages.
    base: OwnedFd,
    base_path: PathBuf,
    /// Device and number of the image file, which is not copied into itself.
    image: Option<(u64, u64)>,
    pending: Mutex<Vec<Pending>>,
    links: Mutex<Vec<Link>>,
    /// The first copy of each file that has several names; `None` while it is being made. The node
    /// is held, so that its inode number is not used again if the copy loses its name.
    first: Mutex<HashMap<(u64, u64), Option<Node>>>,
}

impl<'a> Copier<'a> {
    /// Makes a copier from the directory `base` into `fs`, whose image file is `image`; everything
    /// belongs to `owner`, if given. The directory need not be readable for single entries.
    pub fn new(
        fs: &'a Fs,
        job: &'a Job<'a>,
        owner: Option<Owner>,
        image: &Path,
        base: &Path,
    ) -> io::Result<Copier<'a>> {
        let image = std::fs::metadata(image).ok().map(|meta| (meta.dev(), meta.ino()));
        Ok(Copier {
            fs,
            job,
            owner,
            base: {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                rustix::fs::open(base, flags, Mode::empty())?
            },
            base_path: base.into(),
            image,
            pending: Mutex::default(),
            links: Mutex::default(),
            first: Mutex::default(),
        })
    }

    /// Copies all that the base holds into `dir`, and its attributes.
    pub fn tree(&self, dir: Node, threads: usize) -> io::Result<()> {
        let place = Place::base(&self.base)?;
        let meta = File::from(self.base.try_clone()?).metadata()?;
        lock(&self.pending).push(Pending { place: place.clone(), ino: dir.ino(), meta });
        Crew::work(threads, vec![Task::Directory { place, dir }], |task, crew| match task {
            Task::Directory { place, dir } => {
                let read = self.directory(&place, &dir, crew);
                self.job.check(|| self.shown(&place.path()), read);
            }
            Task::Others { place, dir, names } => self.others(&place, &dir, &names),
        });
        self.make_links();
        self.finish_directories();
        Ok(())
    }

    /// Copies the entry `name` of the base, which is no directory, under `new_name`.
    pub fn single(&self, name: &[u8], dir: &Node, new_name: &[u8]) -> io::Result<()> {
        let place = Place::base(&self.base)?;
        let mut placer = Placer::new(self.fs, self.job);
        let entry = Entry { from: self.base.as_fd(), place: &place, name, dir, new_name };
        let copied = self.other(&entry, &mut placer);
        placer.finish();
        self.job.check(|| self.shown(name), copied);
        Ok(())
    }

    /// Returns a path below the base for messages.
    fn shown(&self, path: &[u8]) -> Vec<u8> {
        join(self.base_path.as_os_str().as_bytes(), path)
    }

    fn directory(&self, place: &Arc<Place>, dir: &Node, crew: &Crew<Task>) -> Result {
        let from = place.open(self.base.as_fd())?;
        let mut others = Vec::new();
        let mut directories = Vec::new();
        for entry in rustix::fs::Dir::read_from(&from)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                rustix::fs::FileType::Unknown => kind_of(from.as_fd(), name),
                known => Ok(known),
            };
            match self.job.check(|| self.shown(&place.path_of(name)), kind) {
                Some(rustix::fs::FileType::Directory) => {
                    let made = self.subdirectory(from.as_fd(), place, dir, name);
                    directories.extend(self.job.check(|| self.shown(&place.path_of(name)), made));
                }
                Some(_) => others.push(name.to_vec()),
                None => {}
            }
        }
        // Names in order: an index of a directory by hash does not care, a linear one stays
        // readable.
        others.sort();
        crew.add(directories);
        while !others.is_empty() {
            let rest = others.split_off(others.len().min(BATCH));
            let names = std::mem::replace(&mut others, rest);
            crew.add([Task::Others { place: place.clone(), dir: dir.clone(), names }]);
        }
        Ok(())
    }

    /// Makes the copy of a directory, or takes the directory that is there.
    fn subdirectory(
        &self,
        from: BorrowedFd<'_>,
        place: &Arc<Place>,
        dir: &Node,
        name: &[u8],
    ) -> Result<Task> {
        if place.depth() >= MAX_DEPTH {
            return Err(TOO_DEEP.into());
        }
        let source = File::from(open_dir(from, name)?);
        let meta = source.metadata()?;
        let place = place.below(name, &source)?;
        // The directory is private to its owner until its attributes are set at the end.
        let made = match self.fs.create_as(
            &self.owner_of(&meta).caller(),
            (dir, name),
            0o700,
            NodeKind::Dir,
        ) {
            Err(e) if e.is(Errno::Exist) => {
                let there = self.fs.lookup(dir, name)?;
                match there.file_type() {
                    FileType::Directory => there,
                    _ => return Err(Errno::NotDir.message().into()),
                }
            }
            other => other?,
        };
        lock(&self.pending).push(Pending { place: place.clone(), ino: made.ino(), meta });
        Ok(Task::Directory { place, dir: made })
    }

    fn owner_of(&self, meta: &Metadata) -> Owner {
        self.owner.unwrap_or(Owner { uid: meta.uid(), gid: meta.gid() })
    }

    fn others(&self, place: &Arc<Place>, dir: &Node, names: &[Vec<u8>]) {
        let opened = place.open(self.base.as_fd());
        let Some(from) = self.job.check(|| self.shown(&place.path()), opened) else { return };
        let mut placer = Placer::new(self.fs, self.job);
        for name in names {
            let entry = Entry { from: from.as_fd(), place, name, dir, new_name: name };
            let copied = self.other(&entry, &mut placer);
            self.job.check(|| self.shown(&place.path_of(name)), copied);
        }
        placer.finish();
    }

    fn other(&self, entry: &Entry<'_>, placer: &mut Placer<'_>) -> Result {
        let known = Held::known(entry.from, entry.name)?;
        let meta = known.metadata()?;
        if self.image == Some((meta.dev(), meta.ino())) {
            return Err("this is the image itself; it is left out".into());
        }
        if meta.nlink() > 1 && !self.is_first(entry, &meta) {
            return Ok(());
        }
        let node = if meta.is_file() {
            self.regular(entry, &known, placer)?
        } else {
            self.special(entry, &known, &meta, placer)?
        };
        if meta.nlink() > 1 {
            lock(&self.first).insert((meta.dev(), meta.ino()), Some(node));
        }
        Ok(())
    }

    fn regular(&self, entry: &Entry<'_>, known: &Held, placer: &mut Placer<'_>) -> Result<Node> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let from = File::from(rustix::fs::openat(
            entry.from,
            OsStr::from_bytes(entry.name),
            flags,
            Mode::empty(),
        )?);
        if Identity::of(&from)? != Identity::of(known)? {
            return Err(replaced().into());
        }
        let from = Held::Open(from);
        let meta = from.metadata()?;
        let wanted = self.wanted(entry, &meta, NodeKind::File);
        placer.place(&wanted, &self.source_path(entry), |node| {
            let flags =
                OpenFlags { write: true, direct: meta.len() >= MIN_STREAM, ..OpenFlags::default() };
            copy_content(from.file(), &self.fs.open_file(node, flags)?, self.job)?;
            self.attributes(&from, node, &meta)
        })
    }

    /// Copies a file that cannot or must not be opened.
    fn special(
        &self,
        entry: &Entry<'_>,
        known: &Held,
        meta: &Metadata,
        placer: &mut Placer<'_>,
    ) -> Result<Node> {
        let target;
        let ftype = meta.file_type();
        let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
        let what = if ftype.is_symlink() {
            target = rustix::fs::readlinkat(known, c"", Vec::new())?.into_bytes();
            NodeKind::Symlink(&target)
        } else if ftype.is_block_device() {
            NodeKind::BlockDevice(major, minor)
        } else if ftype.is_char_device() {
            NodeKind::CharDevice(major, minor)
        } else if ftype.is_fifo() {
            NodeKind::Fifo
        } else if ftype.is_socket() {
            NodeKind::Socket
        } else {
            return Err(replaced().into());
        };
        let wanted = self.wanted(entry, meta, what);
        placer.place(&wanted, &self.source_path(entry), |node| self.attributes(known, node, meta))
    }

    /// Returns the file of the image to be made for an entry.
    fn wanted<'e>(&self, entry: &Entry<'e>, meta: &Metadata, what: NodeKind<'e>) -> Wanted<'e> {
        let owner = self.owner_of(meta).caller();
        // Permissions widen last, when the ACL is there. A symlink's do not change.
        let limit = if meta.file_type().is_symlink() { 0o7777 } else { 0o700 };
        let mode = (meta.mode() & limit) as u16;
        Wanted { dir: entry.dir, name: entry.new_name, owner, mode, what }
    }

    /// Returns the path of an entry for messages.
    fn source_path(&self, entry: &Entry<'_>) -> Vec<u8> {
        self.shown(&entry.place.path_of(entry.name))
    }

    /// Returns whether this is the first name of a file with several; further names are made after
    /// all files.
    fn is_first(&self, entry: &Entry<'_>, meta: &Metadata) -> bool {
        let of = (meta.dev(), meta.ino());
        let mut first = lock(&self.first);
        if let std::collections::hash_map::Entry::Vacant(vacant) = first.entry(of) {
            vacant.insert(None);
            return true;
        }
        drop(first);
        let (place, name) = (entry.place.clone(), entry.name.to_vec());
        lock(&self.links).push(Link { place, name, dir: entry.dir.ino(), of });
        false
    }

    /// Gives a copy the attributes of its source.
    fn attributes(&self, source: &Held, node: &Node, meta: &Metadata) -> Result {
        // Whatever fails, the mode is set: a directory was made for its owner only.
        let mut mode = meta.mode();
        let xattrs = self.xattrs(source, node, &mut mode);
        self.set_attr(node, meta, mode)?;
        xattrs
    }

    fn set_attr(&self, node: &Node, meta: &Metadata, mode: u32) -> Result {
        let owner = self.owner_of(meta);
        let symlink = meta.file_type().is_symlink();
        let set = SetAttr {
            mode: (!symlink).then_some((mode & 0o7777) as u16),
            uid: Some(owner.uid),
            gid: Some(owner.gid),
            atime: Some(TimeSet::At(Timestamp {
                sec: meta.atime(),
                nsec: nanoseconds(meta.atime_nsec()),
            })),
            mtime: Some(TimeSet::At(Timestamp {
                sec: meta.mtime(),
                nsec: nanoseconds(meta.mtime_nsec()),
            })),
            ..SetAttr::default()
        };
        self.fs.set_attr(node, &set)?;
        Ok(())
    }

    /// Gives a copy the extended attributes of its source, and reduces `mode` if the access ACL is
    /// not among them in the end.
    fn xattrs(&self, source: &Held, node: &Node, mode: &mut u32) -> Result {
        let full = std::mem::replace(mode, acl::mode_without(*mode, None));
        let wanted = source.xattrs().map_err(|e| format!("extended attributes: {e}"))?;
        for name in self.fs.list_xattrs(node)? {
            if !wanted.iter().any(|(wanted, _)| *wanted == name) {
                self.fs.remove_xattr(node, &name)?;
            }
        }
        let access = wanted.iter().find(|(name, _)| name == acl::ACCESS);
        *mode = access.map_or(full, |(_, value)| acl::mode_without(full, Some(value)));
        for (name, value) in wanted {
            let set = self.fs.set_xattr(node, &name, &value, XattrMode::Any);
            if name == acl::ACCESS {
                match set {
                    Ok(()) => *mode = full,
                    // The mode must not become the mask of an inherited ACL.
                    Err(_) => self.remove_acl(node)?,
                }
            }
            match set {
                // Too large for an image with small blocks, or of a kind that it does not know.
                Err(e)
                    if [Errno::OpNotSupp, Errno::NoSpc, Errno::TooBig]
                        .iter()
                        .any(|errno| e.is(*errno)) =>
                {
                    self.job.left(Left::Attribute)
                }
                other => {
                    other.map_err(|e| format!("attribute {}: {e}", crate::text::shown(&name)))?
                }
            }
        }
        Ok(())
    }

    fn remove_acl(&self, node: &Node) -> Result {
        match self.fs.remove_xattr(node, acl::ACCESS) {
            Err(e) if e.is(Errno::NoData) || e.is(Errno::OpNotSupp) => Ok(()),
            other => Ok(other?),
        }
    }

    fn make_links(&self) {
        for link in std::mem::take(&mut *lock(&self.links)) {
            let path = || self.shown(&link.place.path_of(&link.name));
            let made = self.link(&link);
            if self.job.check(path, made).is_some() {
                self.job.done(Copied::Other, path);
            }
        }
    }

    fn link(&self, link: &Link) -> Result {
        // A copy that could not replace the old file has no name any more.
        let first = lock(&self.first).get(&link.of).cloned().flatten();
        let node = first
            .filter(|node| node.attr().nlink > 0)
            .ok_or("its first name could not be copied, so that there is nothing to link to")?;
        let (dir, name) = (self.fs.node(link.dir)?, link.name.as_slice());
        match self.fs.link(&node, &dir, name) {
            Err(e) if e.is(Errno::Exist) => {
                if self.fs.lookup(&dir, name)?.ino() == node.ino() {
                    return Ok(());
                }
                // The content comes first: the name must not lead to less after a crash.
                self.fs.sync_node(&node, false)?;
                self.link_over(&node, &dir, name)
            }
            other => Ok(other?),
        }
    }

    /// Replaces a name at once: there is no moment without it.
    fn link_over(&self, node: &Node, dir: &Node, name: &[u8]) -> Result {
        let beside = free_name(|beside| self.fs.link(node, dir, beside))?.1;
        let renamed = self.fs.rename((dir, &beside), (dir, name), RenameFlags::empty());
        Ok(renamed.or_else(|e| self.fs.unlink(dir, &beside).and(Err(e)))?)
    }

    fn finish_directories(&self) {
        for one in std::mem::take(&mut *lock(&self.pending)) {
            let path = || self.shown(&one.place.path());
            let done = self.finish_directory(&one);
            if self.job.check(path, done).is_some() {
                self.job.done(Copied::Directory, path);
            }
        }
    }

    fn finish_directory(&self, one: &Pending) -> Result {
        let node = self.fs.node(one.ino)?;
        match one.place.open(self.base.as_fd()) {
            Ok(source) => self.attributes(&Held::Open(File::from(source)), &node, &one.meta),
            Err(e) => {
                let mode = acl::mode_without(one.meta.mode(), None);
                self.set_attr(&node, &one.meta, mode).and(Err(e.into()))
            }
        }
    }
}

/// Locks a mutex. A panic under the lock leaves its data consistent.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nanoseconds(nsec: i64) -> u32 {
    u32::try_from(nsec).unwrap_or(0)
}

/// Returns the type of an entry, where reading the directory does not give it.
fn kind_of(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<rustix::fs::FileType> {
    let stat = rustix::fs::statat(dir, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(rustix::fs::FileType::from_raw_mode(stat.st_mode))
}

/// Copies content, holes left out; `to` is empty. The length that the source claims shows where
/// holes can be, but not where the content ends: files of procfs claim none.
pub fn copy_content(from: &File, to: &ImageFile, job: &Job<'_>) -> Result {
    let end = from.metadata()?.len();
    let mut piece = vec![0; PIECE.min(usize::try_from(end).unwrap_or(PIECE)).max(MIN_PIECE)];
    let mut at = 0;
    while let Some((start, stop)) = next_data(from, at, end)? {
        at = start;
        while at < stop {
            let want = piece.len().min(usize::try_from(stop - at).unwrap_or(PIECE));
            let len = from.read_at(&mut piece[..want], at)?;
            if len == 0 {
                // It was cut during the copy, or is shorter than it claims.
                return Ok(to.set_len(at)?);
            }
            write_all(to, at, &piece[..len])?;
            job.bytes(len as u64);
            at += len as u64;
        }
    }
    at = end;
    loop {
        let len = from.read_at(&mut piece, at)?;
        if len == 0 {
            break;
        }
        write_all(to, at, &piece[..len])?;
        job.bytes(len as u64);
        at += len as u64;
    }
    if to.len() < at {
        to.set_len(at)?;
    }
    Ok(())
}

/// Writes all of `data` at `at`.
pub fn write_all(to: &ImageFile, mut at: u64, mut data: &[u8]) -> Result {
    while !data.is_empty() {
        // Less is written if space ends; the next write tells why.
        let len = to.write_at(at, data)?;
        let Some(rest) = data.get(len..).filter(|_| len > 0) else {
            return Err(Errno::NoSpc.message().into());
        };
        (data, at) = (rest, at + len as u64);
    }
    Ok(())
}

/// Returns the next range of data from `at` on; all the rest if the file system does not report
/// holes.
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

/// Returns the bytes of all regular files below a directory, for the progress bar. As the copy
/// itself, it follows no symlink; unreadable parts count as nothing.
pub fn total_bytes(source: &Path) -> u64 {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(source, flags, Mode::empty()).map_err(io::Error::from);
    let Ok((base, top)) = opened.and_then(|fd| Place::base(&fd).map(|top| (fd, top))) else {
        return 0;
    };
    let mut total = 0u64;
    let mut waiting = vec![top];
    while let Some(place) = waiting.pop() {
        let Ok(dir) = place.open(base.as_fd()) else { continue };
        let Ok(entries) = rustix::fs::Dir::read_from(&dir) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Ok(stat) = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
                rustix::fs::FileType::RegularFile => {
                    let stored = (stat.st_blocks as u64).saturating_mul(512);
                    total = total.saturating_add(stored.min(stat.st_size as u64));
                }
                rustix::fs::FileType::Directory => {
                    let name = name.to_bytes();
                    let known = !matches!(name, b"." | b"..") && place.depth() < MAX_DEPTH;
                    waiting.extend(known.then(|| below(&dir, &place, name)).and_then(Result::ok));
                }
                _ => {}
            }
        }
    }
    total
}

fn below(dir: &OwnedFd, place: &Arc<Place>, name: &[u8]) -> Result<Arc<Place>> {
    Ok(place.below(name, open_dir(dir.as_fd(), name)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_testkit::Scratch;

    /// A path from the top down is longer than a system call takes.
    #[test]
    fn the_total_has_files_of_deep_directories() {
        let scratch = Scratch::new();
        let base = rustix::fs::open(scratch.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        let mut place = Place::base(&base).unwrap();
        for name in (b'a'..=b'z').map(|letter| [letter; 255]) {
            let dir = place.open(base.as_fd()).unwrap();
            rustix::fs::mkdirat(&dir, OsStr::from_bytes(&name), Mode::RWXU).unwrap();
            place = below(&dir, &place, &name).unwrap();
        }
        let dir = place.open(base.as_fd()).unwrap();
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let file = rustix::fs::openat(&dir, c"file", flags, Mode::RWXU).unwrap();
        File::from(file).write_all_at(&[1; 8192], 0).unwrap();
        std::os::unix::fs::symlink("/usr", scratch.join("link")).unwrap();
        assert_eq!(total_bytes(scratch.path()), 8192);
    }
}
