//! Content of files of the host, opened again when the image is written.
//!
//! A file is known by its directory, its name and a hash of the facts that change with its content.
//! A file that has changed since the scan is an error: the image would mix two states.

use extant_image::{ContentSource, OpenContent};
use rustix::fs::OFlags;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The files of a scan. A million of them take some 24 MB and their names.
#[derive(Debug, Default)]
pub(crate) struct HostFiles {
    pub directories: Vec<PathBuf>,
    files: Vec<HostFile>,
    names: Vec<u8>,
}

#[derive(Debug)]
struct HostFile {
    name_start: u64,
    state: u64,
    directory: u32,
    name_len: u16,
}

impl HostFiles {
    /// Adds a file of the directory that was added last; returns its position.
    pub(crate) fn push(&mut self, name: &[u8], found: &Metadata) -> u64 {
        let name_start = self.names.len() as u64;
        self.names.extend_from_slice(name);
        self.files.push(HostFile {
            name_start,
            state: state(found),
            directory: self.directories.len().saturating_sub(1) as u32,
            name_len: name.len() as u16,
        });
        (self.files.len() - 1) as u64
    }

    /// Returns the path and the state of a file.
    fn get(&self, position: u64) -> Option<(PathBuf, u64)> {
        let file = self.files.get(position as usize)?;
        let start = file.name_start as usize;
        let name = self.names.get(start..start + usize::from(file.name_len))?;
        let directory = self.directories.get(file.directory as usize)?;
        Some((directory.join(OsStr::from_bytes(name)), file.state))
    }
}

/// Returns a hash of the identity of a file and of its state.
pub(super) fn state(found: &Metadata) -> u64 {
    let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
    hash_of([found.dev(), found.ino(), found.size()].map(i128::from), times.map(i128::from))
}

fn hash_of(identity: [i128; 3], times: [i128; 4]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (identity, times).hash(&mut hasher);
    hasher.finish()
}

/// Returns device, inode number and size of an open file, and its times, from the kernel: pseudo(1)
/// complains about files without a path.
pub(super) fn status(file: &File) -> io::Result<([i128; 3], [i128; 4])> {
    let found = rustix::fs::fstat(file)?;
    let times = [i128::from(found.st_mtime), found.st_mtime_nsec.into()];
    let changed = [i128::from(found.st_ctime), found.st_ctime_nsec.into()];
    let identity = [found.st_dev.into(), found.st_ino.into(), found.st_size.into()];
    Ok((identity, [times[0], times[1], changed[0], changed[1]]))
}

/// Opens a file for reading; a symlink is refused, and a FIFO does not wait.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    File::options().read(true).custom_flags(flags.bits() as i32).open(path)
}

/// The files of a scan that may still be under way.
#[derive(Debug, Default)]
pub(crate) struct HostSource(pub OnceLock<HostFiles>);

impl ContentSource for HostSource {
    fn open(&self, position: u64) -> io::Result<Box<dyn OpenContent + '_>> {
        let found = self.0.get().and_then(|files| files.get(position));
        let (path, state) = found.ok_or(io::ErrorKind::NotFound)?;
        let file = open(&path).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        let open = OpenFile { file, path, state };
        open.check()?;
        Ok(Box::new(open))
    }
}

struct OpenFile {
    file: File,
    path: PathBuf,
    state: u64,
}

impl OpenFile {
    fn check(&self) -> io::Result<()> {
        let (identity, times) = status(&self.file)?;
        if hash_of(identity, times) == self.state {
            return Ok(());
        }
        let path = self.path.display();
        Err(io::Error::other(format!(
            "{path} has changed meanwhile; build again when it is at rest"
        )))
    }
}

impl OpenContent for OpenFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        // A file that became shorter is reported as changed.
        self.file.read_exact_at(buf, offset).or_else(|error| self.check().and(Err(error)))
    }

    fn finish(&self) -> io::Result<()> {
        self.check()
    }
}
