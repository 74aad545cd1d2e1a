//! Directories of the host as sources.
//!
//! The scan reads names and attributes; content is read when the image is written. Entries of a
//! directory are reached through its descriptor, whose identity is compared with the one that its
//! parent had: a program that replaces directories by symlinks meanwhile cannot add files from
//! elsewhere. Libraries that feign root know files by their paths only. They are asked for facts
//! and attributes, and the identity of the file that they tell about is compared with that of the
//! entry.

mod facts;
mod files;
mod xattrs;

use crate::error::{Error, Result};
use crate::loader::Loader;
use crate::patterns::Patterns;
use extant_format::Printable;
use extant_image::{Attributes, DataRange, EntryKind, FileContent, SourceId, Tree};
use facts::Facts;
pub use facts::{root_is_feigned, shown_ids};
use files::FileStatus;
pub(crate) use files::{HostFiles, HostSource, open, state};
use rustix::fs::{Access, AtFlags, Dir, FileType, Mode, OFlags, SeekFrom};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xattrs::XattrReader;

/// Maximum number of unreadable files in a message.
const MAX_NAMED: usize = 10;

/// Options of a scan.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ScanOptions {
    /// Entries to leave out; directories with everything below them.
    pub exclude: Patterns,
    /// Whether directories of other file systems are left empty.
    pub one_file_system: bool,
    /// Device and inode numbers of files to leave out: the image that is made, and the file that it
    /// replaces.
    pub outputs: Vec<(u64, u64)>,
    /// Whether types, owners, permissions and attributes are those that the C library tells: where
    /// [`root_is_feigned`], they differ from those of the kernel.
    pub through_library: bool,
}

impl Loader<'_> {
    /// Adds the content of a directory to the root, and its attributes to the root.
    ///
    /// Extended attributes that belong to the host's file system, such as `btrfs.compression`, are
    /// left out.
    ///
    /// # Errors
    /// [`Error`] with the path on the host; all unreadable files are found before.
    pub fn add_directory(&mut self, directory: &Path, options: &ScanOptions) -> Result<()> {
        let found = rustix::fs::stat(directory).map_err(|error| at(directory, error.into()))?;
        let found = FileStatus::of(&found);
        let shared = Arc::new(HostSource::default());
        let source = self.tree.add_source(shared.clone());
        let mut scan = Scan {
            tree: self.tree,
            options,
            source,
            device: found.identity.0,
            files: HostFiles::default(),
            links: HashMap::new(),
            xattrs: XattrReader::new(options.through_library),
            unreadable: Vec::new(),
        };
        let done = scan.all(directory, &found);
        let (files, unreadable) = (scan.files, scan.unreadable);
        // Also after a failure: files in the tree refer to the source.
        let _ = shared.0.set(files);
        done?;
        refuse(&unreadable)
    }
}

/// Returns an error about a path of the host.
fn at(path: &Path, error: io::Error) -> Error {
    Error::from(error).in_source(Printable(path.as_os_str().as_bytes()))
}

/// Fails if files are unreadable.
fn refuse(unreadable: &[PathBuf]) -> Result<()> {
    if unreadable.is_empty() {
        return Ok(());
    }
    let named = unreadable.iter().take(MAX_NAMED);
    let named: Vec<String> =
        named.map(|path| Printable(path.as_os_str().as_bytes()).to_string()).collect();
    let more = match unreadable.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Err(Error::new(format_args!(
        "{}{more}: permission denied; build as the owner or as root, or exclude them",
        named.join(", ")
    )))
}

/// A directory that is still to be read.
struct Pending {
    host: PathBuf,
    /// Path in the image.
    path: Vec<u8>,
    /// Device and inode number.
    identity: (u64, u64),
}

/// An entry of a directory.
struct Found<'a> {
    host: &'a Path,
    directory: &'a File,
    name: &'a OsStr,
    /// Path for attributes.
    at: &'a Path,
    data: FileStatus,
    facts: Facts,
}

struct Scan<'a> {
    tree: &'a mut Tree,
    options: &'a ScanOptions,
    source: SourceId,
    /// Device of the top.
    device: u64,
    files: HostFiles,
    /// First path and state of each file with several names, by device and inode number.
    links: HashMap<(u64, u64), (Vec<u8>, u64)>,
    xattrs: XattrReader,
    unreadable: Vec<PathBuf>,
}

impl Scan<'_> {
    fn all(&mut self, top: &Path, data: &FileStatus) -> Result<()> {
        if !data.is_directory() {
            return Err(at(top, io::ErrorKind::NotADirectory.into()));
        }
        let identity = data.identity;
        // The path of the top may be a symlink or end with one; its entries may not.
        let host = std::fs::canonicalize(top).map_err(|error| at(top, error))?;
        let facts = self.facts(&host, data)?;
        let attributes = self.attributes((top, &host), data, facts)?;
        self.tree.add(b"", &attributes, EntryKind::Directory)?;
        let mut pending = vec![Pending { host, path: Vec::new(), identity }];
        while let Some(next) = pending.pop() {
            self.directory(next, &mut pending)?;
        }
        Ok(())
    }

    fn directory(&mut self, place: Pending, pending: &mut Vec<Pending>) -> Result<()> {
        let Pending { host, path, identity } = place;
        let Some(directory) = self.readable(open_directory(&host), &host)? else { return Ok(()) };
        let failed = |error| at(&host, error);
        if FileStatus::of_open(&directory).map_err(failed)?.identity != identity {
            return Err(failed(io::Error::other("replaced by another directory meanwhile")));
        }
        // pseudo(1) knows files by their paths.
        let through =
            if self.options.through_library { host.clone() } else { through(&directory, &host) };
        self.files.directories.push(host.clone());
        for name in names(&directory).map_err(failed)? {
            let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
            let path = [&path[..], slash, name.as_bytes()].concat();
            if self.options.exclude.matches(&path) {
                continue;
            }
            let (host, through) = (host.join(&name), through.join(&name));
            let data = rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW);
            let data = FileStatus::of(&data.map_err(|error| at(&host, error.into()))?);
            let identity = data.identity;
            if self.options.outputs.contains(&identity) {
                continue;
            }
            let elsewhere = self.options.one_file_system && identity.0 != self.device;
            let descend = data.is_directory() && !elsewhere;
            let facts = self.facts(&host, &data)?;
            let directory = &directory;
            let found = Found { host: &host, directory, name: &name, at: &through, data, facts };
            self.entry(&path, found)?;
            if descend {
                pending.push(Pending { host, path, identity });
            }
        }
        Ok(())
    }

    /// Adds an entry, or a further name of one that is there.
    fn entry(&mut self, path: &[u8], found: Found<'_>) -> Result<()> {
        let data = &found.data;
        if !data.is_directory() && data.links > 1 {
            let (first, first_state) =
                self.links.entry(data.identity).or_insert_with(|| (Vec::new(), data.state));
            if !first.is_empty() {
                if *first_state != data.state {
                    return Err(at(found.host, io::Error::other("changed while it was read")));
                }
                return Ok(self.tree.hard_link(path, first)?);
            }
            *first = path.to_vec();
        }
        let attributes = self.attributes((found.host, found.at), data, found.facts)?;
        let kind = self.kind(&found)?;
        Ok(self.tree.add(path, &attributes, kind)?)
    }

    fn kind(&mut self, found: &Found<'_>) -> Result<EntryKind> {
        let rdev = found.facts.rdev;
        let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
        Ok(match FileType::from_raw_mode(found.facts.mode) {
            FileType::Directory => EntryKind::Directory,
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(found.directory, found.name, Vec::new());
                let target = target.map_err(|error| at(found.host, error.into()))?;
                EntryKind::Symlink(target.into_bytes())
            }
            FileType::CharacterDevice => EntryKind::CharDevice(major, minor),
            FileType::BlockDevice => EntryKind::BlockDevice(major, minor),
            FileType::Fifo => EntryKind::Fifo,
            FileType::Socket => EntryKind::Socket,
            FileType::RegularFile | FileType::Unknown => EntryKind::File(self.file(found)?),
        })
    }

    /// Returns the facts of a file as this scan sees them.
    fn facts(&self, host: &Path, data: &FileStatus) -> Result<Facts> {
        if !self.options.through_library {
            return Ok(data.facts);
        }
        let (facts, identity) = Facts::asked(host).map_err(|error| at(host, error))?;
        if identity != data.identity {
            return Err(at(host, io::Error::other("replaced by another file meanwhile")));
        }
        Ok(facts)
    }

    fn file(&mut self, found: &Found<'_>) -> Result<FileContent> {
        let (source, size) = (self.source, found.data.size);
        let position = self.files.push(found.name.as_bytes(), found.data.state);
        let whole = FileContent::Whole { source, position, size };
        if size == 0 {
            return Ok(whole);
        }
        // Opening each file takes longer than to ask.
        let access =
            rustix::fs::accessat(found.directory, found.name, Access::READ_OK, AtFlags::empty());
        let access = access.map_err(io::Error::from);
        let has_holes = found.data.allocated < size;
        if self.readable(access, found.host)?.is_none() || !has_holes {
            return Ok(whole);
        }
        let ranges = open_in(found.directory, found.name)
            .and_then(|file| data_ranges(&file, position, size));
        let ranges = ranges.map_err(|error| at(found.host, error))?;
        let all = ranges.iter().map(|range| range.len).sum::<u64>() == size;
        Ok(if all { whole } else { FileContent::Sparse { source, size, ranges } })
    }

    fn attributes(
        &mut self,
        (host, through): (&Path, &Path),
        data: &FileStatus,
        facts: Facts,
    ) -> Result<Attributes> {
        let xattrs = self.xattrs.read(through);
        let xattrs = self.readable(xattrs, host)?.unwrap_or_default();
        if self.options.through_library {
            // The path still leads to the file.
            self.facts(host, data)?;
        }
        Ok(Attributes {
            mode: (facts.mode & 0o7777) as u16,
            uid: facts.uid,
            gid: facts.gid,
            mtime: data.mtime,
            xattrs,
            ..Attributes::default()
        })
    }

    /// Notes a file for which a permission is missing, and returns `None` then.
    fn readable<T>(&mut self, result: io::Result<T>, host: &Path) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                if self.unreadable.last().is_none_or(|last| last != host) {
                    self.unreadable.push(host.to_path_buf());
                }
                Ok(None)
            }
            Err(error) => Err(at(host, error)),
        }
    }
}

fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// Returns a path to an open directory that does not depend on its names.
fn through(directory: &File, host: &Path) -> PathBuf {
    if cfg!(target_os = "linux") {
        PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()))
    } else {
        host.to_path_buf()
    }
}

/// Opens a file of a directory for reading; a symlink is refused, and a FIFO does not wait.
fn open_in(directory: &File, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, name, flags, Mode::empty())?.into())
}

/// Returns the names in a directory, sorted by their bytes: the host's order has no influence.
fn names(directory: &File) -> io::Result<Vec<OsString>> {
    let names = Dir::read_from(directory)?.map(|entry| Ok(entry?.file_name().to_bytes().to_vec()));
    let mut names = names.collect::<io::Result<Vec<_>>>()?;
    names.retain(|name| name != b"." && name != b"..");
    names.sort_unstable();
    Ok(names.into_iter().map(OsString::from_vec).collect())
}

/// Returns the ranges of a file that are no holes.
pub(crate) fn data_ranges(file: &File, position: u64, size: u64) -> io::Result<Vec<DataRange>> {
    let mut ranges = Vec::new();
    let mut next = 0;
    while next < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(next)) {
            Err(rustix::io::Errno::NXIO) => break,
            start => start?,
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size);
        if end <= start {
            break;
        }
        ranges.push(DataRange { start, len: end - start, position, skip: start });
        next = end;
    }
    Ok(ranges)
}
