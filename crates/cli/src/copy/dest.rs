//! Copies out of an image onto the machine.
//!
//! # Invariants
//! Nothing is made outside the destination, for any content of the image and any concurrent change
//! of the destination by another user: names are single components, each once in a directory;
//! directories are opened as [`super::place`] describes; files are made new, and attributes are set
//! through the descriptor of the new file. A directory is entered once, so a loop in the image's
//! tree ends. Permissions widen last: until it is complete, a file is its owner's only.

use super::acl;
use super::crew::Crew;
use super::held::{Held, check_made};
use super::job::{Copied, Job, Left};
use super::place::{Identity, Place, open_dir, replaced};
use crate::walk::{Listing, MAX_DEPTH, TOO_DEEP, list};
use extant_engine::{Attr, DirEntry, File as ImageFile, FileType, Fs, Node, OpenFlags, Timestamp};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno as No;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

/// Entries of one directory that make one task.
const BATCH: usize = 32;

type Result<T = (), E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// A task of the crew.
enum Task {
    /// The entries of a directory, which is there.
    Directory { place: Arc<Place>, node: Node },
    /// Some of the entries of a directory.
    Entries { place: Arc<Place>, entries: Vec<DirEntry> },
}

/// The first copy of an inode that is no directory.
enum First {
    /// It is being made, or could not be made.
    Missing,
    /// The destination does not take it.
    LeftOut,
    /// It is there.
    Made { place: Arc<Place>, name: Box<[u8]>, identity: Identity },
}

/// A further name of an inode.
struct Link {
    place: Arc<Place>,
    name: Vec<u8>,
    ino: u64,
}

/// Name of a copy in an open directory of the destination.
#[derive(Clone, Copy)]
struct Target<'a> {
    dir: BorrowedFd<'a>,
    name: &'a [u8],
}

impl<'a> Target<'a> {
    fn os_name(&self) -> &'a OsStr {
        OsStr::from_bytes(self.name)
    }
}

/// A copy out of an image.
pub struct Copier<'a> {
    fs: &'a Fs,
    job: &'a Job<'a>,
    /// The directory that everything goes into.
    base: OwnedFd,
    entered: Mutex<HashSet<u64>>,
    /// Directories that get their attributes in the end.
    pending: Mutex<Vec<(Arc<Place>, u64)>>,
    /// The first copy of each inode but directories. An inode may have more names than it counts
    /// links, so all are remembered.
    first: Mutex<HashMap<u64, First>>,
    links: Mutex<Vec<Link>>,
}

impl<'a> Copier<'a> {
    /// Makes a copier into the existing directory `base`.
    pub fn new(fs: &'a Fs, job: &'a Job<'a>, base: &Path) -> io::Result<Copier<'a>> {
        let base = rustix::fs::open(base, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Copier {
            fs,
            job,
            base,
            entered: Mutex::default(),
            pending: Mutex::default(),
            first: Mutex::default(),
            links: Mutex::default(),
        })
    }

    /// Copies the entries of the directory `top`; its attributes too if `with_top`.
    pub fn tree(&self, top: Node, with_top: bool, threads: usize) -> io::Result<()> {
        let place = Place::base(&self.base)?;
        self.enter(&top);
        if with_top {
            lock(&self.pending).push((place.clone(), top.ino()));
        }
        Crew::work(threads, vec![Task::Directory { place, node: top }], |task, crew| match task {
            Task::Directory { place, node } => self.directory(&place, &node, crew),
            Task::Entries { place, entries } => self.entries(&place, &entries, crew),
        });
        self.make_links();
        self.finish_directories();
        Ok(())
    }

    /// Copies something that is no directory under `name`.
    pub fn single(&self, node: &Node, name: &[u8]) {
        let made = self.other(Target { dir: self.base.as_fd(), name }, node, &mut Vec::new());
        if let Some(Some(_)) = self.job.check(|| name.to_vec(), made) {
            self.count(node, || name.to_vec());
        }
    }

    /// Returns whether a directory is entered for the first time.
    fn enter(&self, dir: &Node) -> bool {
        lock(&self.entered).insert(dir.ino())
    }

    fn directory(&self, place: &Arc<Place>, node: &Node, crew: &Crew<Task>) {
        let Listing { mut entries, problems } = list(self.fs, node);
        for problem in problems {
            self.job.problem(&place.path(), problem);
        }
        while !entries.is_empty() {
            let rest = entries.split_off(entries.len().min(BATCH));
            let batch = std::mem::replace(&mut entries, rest);
            crew.add([Task::Entries { place: place.clone(), entries: batch }]);
        }
    }

    fn entries(&self, place: &Arc<Place>, entries: &[DirEntry], crew: &Crew<Task>) {
        let Some(dir) = self.job.check(|| place.path(), place.open(self.base.as_fd())) else {
            return;
        };
        let mut piece = Vec::new();
        for entry in entries {
            let made = self.entry(dir.as_fd(), place, entry, (crew, &mut piece));
            self.job.check(|| place.path_of(&entry.name), made);
        }
    }

    fn entry(
        &self,
        dir: BorrowedFd<'_>,
        place: &Arc<Place>,
        entry: &DirEntry,
        (crew, piece): (&Crew<Task>, &mut Vec<u8>),
    ) -> Result {
        let node = self.fs.node(entry.ino)?;
        let target = Target { dir, name: &entry.name };
        if node.attr().ftype == FileType::Directory {
            return self.subdirectory(target, place, node, crew);
        }
        if !self.is_first(place, entry) {
            return Ok(());
        }
        let made = self.other(target, &node, piece)?;
        let first = made.map_or(First::LeftOut, |identity| First::Made {
            place: place.clone(),
            name: entry.name.as_slice().into(),
            identity,
        });
        // Recorded after the attributes are set: a hard link then names a complete file.
        lock(&self.first).insert(entry.ino, first);
        if made.is_some() {
            self.count(&node, || place.path_of(&entry.name));
        }
        Ok(())
    }

    fn count(&self, node: &Node, path: impl FnOnce() -> Vec<u8>) {
        let what = if node.file_type() == FileType::Regular { Copied::File } else { Copied::Other };
        self.job.done(what, path);
    }

    fn subdirectory(
        &self,
        target: Target<'_>,
        place: &Arc<Place>,
        node: Node,
        crew: &Crew<Task>,
    ) -> Result {
        if !self.enter(&node) {
            return Err(
                "this directory was met before: the image's tree has a loop, or two names for it"
                    .into(),
            );
        }
        if place.depth() >= MAX_DEPTH {
            return Err(TOO_DEEP.into());
        }
        let made = match rustix::fs::mkdirat(target.dir, target.os_name(), Mode::RWXU) {
            Err(No::EXIST) => false,
            other => other.map(|()| true)?,
        };
        // The existing entry may be a symlink or a file: this call opens directories only.
        let below = Held::Open(File::from(open_dir(target.dir, target.name)?));
        if made {
            check_made(&below, target.dir, rustix::fs::FileType::Directory, below.stat()?.st_rdev)?;
        }
        let place = place.below(target.name, &below)?;
        lock(&self.pending).push((place.clone(), node.ino()));
        crew.add([Task::Directory { place, node }]);
        Ok(())
    }

    /// Returns whether this is the first name of an inode; further names are made after all files.
    fn is_first(&self, place: &Arc<Place>, entry: &DirEntry) -> bool {
        let mut first = lock(&self.first);
        if let std::collections::hash_map::Entry::Vacant(vacant) = first.entry(entry.ino) {
            vacant.insert(First::Missing);
            return true;
        }
        drop(first);
        lock(&self.links).push(Link {
            place: place.clone(),
            name: entry.name.clone(),
            ino: entry.ino,
        });
        false
    }

    /// Makes a new entry that is no directory. Removes an existing entry of the name first, unless
    /// that is a directory. Returns `None` for a device that this user may not make, or for a
    /// special file that is not wanted, and counts it. Content goes through `piece`.
    fn other(
        &self,
        target: Target<'_>,
        node: &Node,
        piece: &mut Vec<u8>,
    ) -> Result<Option<Identity>> {
        use rustix::fs::FileType as Kind;
        let attr = node.attr();
        let is_plain = matches!(attr.ftype, FileType::Regular | FileType::Symlink);
        if self.job.leaves_special() && !is_plain {
            self.job.left(Left::Special);
            return Ok(None);
        }
        let kind = match attr.ftype {
            FileType::Regular => return self.regular(target, (node, &attr), piece).map(Some),
            FileType::Symlink => Kind::Symlink,
            FileType::BlockDevice => Kind::BlockDevice,
            FileType::CharDevice => Kind::CharacterDevice,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::Directory | FileType::Unknown => {
                return Err("the type of the inode is unknown: `e2fsck -f` repairs a copy".into());
            }
        };
        self.special(target, node, &attr, kind)
    }

    /// Makes a file that cannot or must not be opened.
    fn special(
        &self,
        target: Target<'_>,
        node: &Node,
        attr: &Attr,
        kind: rustix::fs::FileType,
    ) -> Result<Option<Identity>> {
        let (dir, name) = (target.dir, target.os_name());
        let is_device = matches!(attr.ftype, FileType::BlockDevice | FileType::CharDevice);
        let device = if is_device { rustix::fs::makedev(attr.rdev.0, attr.rdev.1) } else { 0 };
        let link = match attr.ftype {
            FileType::Symlink => Some(self.fs.read_link(node)?),
            _ => None,
        };
        let made = in_place_of_old(target, || match &link {
            Some(link) => rustix::fs::symlinkat(OsStr::from_bytes(link), dir, name),
            None => rustix::fs::mknodat(dir, name, kind, Mode::RUSR | Mode::WUSR, device),
        });
        match made {
            Err(No::PERM) if is_device => {
                self.job.left(Left::Device);
                return Ok(None);
            }
            other => other?,
        }
        // Another user may have replaced the new entry: the type, the device and the owner are
        // checked through the descriptor that also sets the attributes.
        let made = Held::known(dir, target.name)?;
        check_made(&made, dir, kind, device)?;
        self.attributes(&made, node, attr).map(Some)
    }

    fn regular(
        &self,
        target: Target<'_>,
        (node, attr): (&Node, &Attr),
        piece: &mut Vec<u8>,
    ) -> Result<Identity> {
        let from = self.fs.open_file(node, OpenFlags { direct: true, ..OpenFlags::default() })?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let open = || rustix::fs::openat(target.dir, target.os_name(), flags, mode);
        let to = File::from(in_place_of_old(target, open)?);
        let copied = copy_content(&from, &to, piece, self.job);
        let to = Held::Open(to);
        let copied = copied.and_then(|()| self.attributes(&to, node, attr));
        if copied.is_err() {
            // Half a file is worse than none. That it could not be copied is the error to tell.
            let _ = rustix::fs::unlinkat(target.dir, target.os_name(), AtFlags::empty());
        }
        copied
    }

    /// Gives a copy the attributes of its source. Those that the destination or this user cannot
    /// set are counted. One that fails keeps none of the others from being set: a directory was
    /// made for its owner only. Returns the identity of the copy.
    fn attributes(&self, to: &Held, node: &Node, attr: &Attr) -> Result<Identity> {
        let made = to.stat()?;
        let has_owner = (made.st_uid, made.st_gid) == (attr.uid, attr.gid);
        let owned = if has_owner { Ok(true) } else { self.owner(to, attr) };
        let mut mode = u32::from(attr.mode);
        let xattrs = self.xattrs(to, node, attr.ftype, &mut mode);
        let mode = match attr.ftype {
            FileType::Symlink => Ok(()),
            _ => self.mode(to, mode, matches!(owned, Ok(true))),
        };
        let times = to.set_times(&times(attr)).map_err(|e| format!("times: {e}").into());
        owned.and(mode).and(xattrs).and(times)?;
        Ok(Identity::of_stat(&made))
    }

    /// Sets the owner; returns false if it is left out.
    fn owner(&self, to: &Held, attr: &Attr) -> Result<bool> {
        match to.set_owner(Uid::from_raw(attr.uid), Gid::from_raw(attr.gid)) {
            Ok(()) => Ok(true),
            Err(e) if is_refusal(e) => {
                self.job.left(Left::Owner);
                Ok(false)
            }
            Err(e) => Err(format!("owner: {e}").into()),
        }
    }

    fn mode(&self, to: &Held, bits: u32, owned: bool) -> Result {
        match to.set_mode(mode(bits, owned)) {
            Err(e) if is_refusal(e) => {
                self.job.left(Left::Mode);
                Ok(())
            }
            other => Ok(other.map_err(|e| format!("file mode: {e}"))?),
        }
    }

    /// Gives a copy the extended attributes of its source, and reduces `mode` if the access ACL is
    /// not among them in the end. ACLs that the copy inherited are removed.
    fn xattrs(&self, to: &Held, node: &Node, ftype: FileType, mode: &mut u32) -> Result {
        let full = std::mem::replace(mode, acl::mode_without(*mode, None));
        // Before the mode is set: its group bits would become the mask of an inherited ACL.
        if ftype != FileType::Symlink {
            to.remove_xattr(acl::ACCESS).map_err(|e| format!("inherited ACL: {e}"))?;
        }
        if ftype == FileType::Directory {
            to.remove_xattr(acl::DEFAULT).map_err(|e| format!("inherited default ACL: {e}"))?;
        }
        let names = self.fs.list_xattrs(node)?;
        if !names.iter().any(|name| name == acl::ACCESS) {
            *mode = full;
        }
        for name in names {
            let value = self.fs.get_xattr(node, &name)?;
            let set = to.set_xattr(&name, &value);
            if name == acl::ACCESS {
                *mode = if set.is_ok() { full } else { acl::mode_without(full, Some(&value)) };
            }
            match set {
                Err(e) if is_refusal(e) => self.job.left(Left::Attribute),
                other => {
                    other.map_err(|e| format!("attribute {}: {e}", crate::text::shown(&name)))?
                }
            }
        }
        Ok(())
    }

    fn make_links(&self) {
        for link in std::mem::take(&mut *lock(&self.links)) {
            let made = self.link(&link);
            if let Some(true) = self.job.check(|| link.place.path_of(&link.name), made) {
                self.job.done(Copied::Other, || link.place.path_of(&link.name));
            }
        }
    }

    /// Makes a further name. False if the file was left out.
    fn link(&self, link: &Link) -> Result<bool> {
        let first = lock(&self.first);
        let (place, name, identity) = match first.get(&link.ino) {
            Some(First::Made { place, name, identity }) => (place.clone(), name.clone(), *identity),
            Some(First::LeftOut) => {
                self.job.left(Left::Device);
                return Ok(false);
            }
            Some(First::Missing) | None => {
                return Err(
                    "its first name could not be copied, so that there is nothing to link to"
                        .into(),
                );
            }
        };
        drop(first);
        let (from, to) = (place.open(self.base.as_fd())?, link.place.open(self.base.as_fd())?);
        let made = Held::known(from.as_fd(), &name)?;
        // The name may lead to another file by now; only the copied file is linked.
        if Identity::of(&made)? != identity {
            return Err(replaced().into());
        }
        match made.link(to.as_fd(), &link.name) {
            Err(No::EXIST) => link_over(&made, to.as_fd(), &link.name)?,
            done => done?,
        }
        Ok(true)
    }

    /// Sets the attributes of directories, the deepest first: the mode of a directory may deny this
    /// user access to its descendants.
    fn finish_directories(&self) {
        let mut pending = std::mem::take(&mut *lock(&self.pending));
        pending.sort_by_key(|(place, _)| std::cmp::Reverse(place.depth()));
        for (place, ino) in pending {
            let finished = self.finish_directory(&place, ino);
            if self.job.check(|| place.path(), finished).is_some() {
                self.job.done(Copied::Directory, || place.path());
            }
        }
    }

    fn finish_directory(&self, place: &Place, ino: u64) -> Result {
        let node = self.fs.node(ino)?;
        let dir = Held::Open(File::from(place.open(self.base.as_fd())?));
        self.attributes(&dir, &node, &node.attr()).map(drop)
    }
}

/// Returns whether the destination does not support an attribute, or does not permit it to this
/// user. In a user namespace, owners without a mapping are invalid, in ACLs too.
fn is_refusal(error: No) -> bool {
    matches!(
        error,
        No::OPNOTSUPP
            | No::PERM
            | No::ACCESS
            | No::INVAL
            | No::NOSPC
            | No::TOOBIG
            | No::RANGE
            | No::OVERFLOW
    )
}

/// Locks a mutex. A panic under the lock leaves its data consistent.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns permissions; without set-user-id and set-group-id if the owner could not be set.
fn mode(bits: u32, owned: bool) -> Mode {
    Mode::from_raw_mode(bits & if owned { 0o7777 } else { 0o1777 })
}

fn times(attr: &Attr) -> Timestamps {
    let time = |t: Timestamp| Timespec { tv_sec: t.sec, tv_nsec: t.nsec.into() };
    Timestamps { last_access: time(attr.atime), last_modification: time(attr.mtime) }
}

/// Makes an entry, in the place of another one of the name that is no directory.
fn in_place_of_old<T>(
    target: Target<'_>,
    make: impl Fn() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    match make() {
        Err(No::EXIST) => {
            rustix::fs::unlinkat(target.dir, target.os_name(), AtFlags::empty())?;
            make()
        }
        made => made,
    }
}

/// Copies content through `piece`, which grows as it needs, holes left out; `to` is empty.
fn copy_content(from: &ImageFile, to: &File, piece: &mut Vec<u8>, job: &Job<'_>) -> Result {
    let end = from.len();
    let most = PIECE.min(usize::try_from(end).unwrap_or(PIECE)).max(1);
    if piece.len() < most {
        piece.resize(most, 0);
    }
    let mut at = 0;
    while let Some((start, stop)) = next_data(from, at, end)? {
        at = start;
        while at < stop {
            let want = piece.len().min(usize::try_from(stop - at).unwrap_or(PIECE));
            let len = from.read_at(at, &mut piece[..want])?;
            job.budget().admit(len as u64)?;
            if len == 0 {
                return Err(format!("content ends at byte {at} instead of {end}").into());
            }
            to.write_all_at(&piece[..len], at)?;
            job.bytes(len as u64);
            at += len as u64;
        }
    }
    // Data up to the end has given it this length.
    if at < end { Ok(to.set_len(end)?) } else { Ok(()) }
}

/// Returns the next range of data of a file in an image, from `at` on.
pub fn next_data(file: &ImageFile, at: u64, end: u64) -> extant_engine::Result<Option<(u64, u64)>> {
    if at >= end {
        return Ok(None);
    }
    if at == 0 {
        // Before the first byte: a small image may hold more data than its device has blocks.
        file.check_map()?;
    }
    let start = match file.seek_data(at) {
        Err(e) if e.is(extant_engine::Errno::Nxio) => return Ok(None),
        other => other?,
    };
    let stop = file.seek_hole(start)?;
    Ok((start >= at && stop > start && start < end).then_some((start, stop.min(end))))
}

/// Replaces a name by a link at once: a failure leaves the file that has it.
fn link_over(made: &Held, dir: BorrowedFd<'_>, name: &[u8]) -> Result {
    let mut number = std::process::id();
    let beside = loop {
        let beside = format!(".extant-link-{number}");
        match made.link(dir, beside.as_bytes()) {
            Err(No::EXIST) => number = number.wrapping_add(1),
            done => break done.map(|()| beside)?,
        }
    };
    let renamed = rustix::fs::renameat(dir, &beside, dir, OsStr::from_bytes(name));
    // Between two names of one file a rename does nothing.
    match rustix::fs::unlinkat(dir, &beside, AtFlags::empty()) {
        Ok(()) | Err(No::NOENT) => Ok(renamed?),
        Err(e) => Err(e.into()),
    }
}
