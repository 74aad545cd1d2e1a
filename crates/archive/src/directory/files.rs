//! Content of files of the host, opened again when the image is written.
//!
//! A file is known by its directory, its name and a hash of the facts that change with its content.
//! A file that has changed since the scan is an error: the image would mix two states.

use super::facts::Facts;
use extant_format::Timestamp;
use extant_image::{ContentSource, HostBytes, OpenContent};
use rustix::fs::{FileType, OFlags, Stat};
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
    pub(crate) fn push(&mut self, name: &[u8], state: u64) -> u64 {
        let name_start = self.names.len() as u64;
        self.names.extend_from_slice(name);
        self.files.push(HostFile {
            name_start,
            state,
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
pub(crate) fn state(found: &Metadata) -> u64 {
    let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
    hash_of([found.dev(), found.ino(), found.size()].map(i128::from), times.map(i128::from))
}

fn hash_of(identity: [i128; 3], times: [i128; 4]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (identity, times).hash(&mut hasher);
    hasher.finish()
}

/// The status of a file from the kernel: pseudo(1) complains about files without a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileStatus {
    /// Device and inode number.
    pub identity: (u64, u64),
    pub links: u64,
    pub size: u64,
    /// Bytes of its blocks.
    pub allocated: u64,
    pub mtime: Timestamp,
    pub facts: Facts,
    /// See [`state`].
    pub state: u64,
}

impl FileStatus {
    pub(super) fn of(found: &Stat) -> FileStatus {
        // The types of the fields differ by processor.
        fn wide(number: impl Into<i128>) -> i128 {
            number.into()
        }
        let [dev, ino, size] = [wide(found.st_dev), wide(found.st_ino), wide(found.st_size)];
        let times = [wide(found.st_mtime), wide(found.st_mtime_nsec)];
        let changed = [wide(found.st_ctime), wide(found.st_ctime_nsec)];
        FileStatus {
            identity: (dev as u64, ino as u64),
            links: wide(found.st_nlink) as u64,
            size: size as u64,
            allocated: (wide(found.st_blocks) as u64).saturating_mul(512),
            mtime: Timestamp::new(times[0] as i64, times[1] as u32),
            facts: Facts {
                mode: wide(found.st_mode) as u32,
                uid: found.st_uid,
                gid: found.st_gid,
                rdev: wide(found.st_rdev) as u64,
            },
            state: hash_of([dev, ino, size], [times[0], times[1], changed[0], changed[1]]),
        }
    }

    /// Returns the status of an open file.
    pub(super) fn of_open(file: &File) -> io::Result<FileStatus> {
        Ok(FileStatus::of(&rustix::fs::fstat(file)?))
    }

    pub(super) fn is_directory(&self) -> bool {
        FileType::from_raw_mode(self.facts.mode) == FileType::Directory
    }
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
        if FileStatus::of_open(&self.file)?.state == self.state {
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

    fn host_bytes(&self) -> Option<HostBytes<'_>> {
        Some(HostBytes::new(&self.file, 0))
    }

    fn finish(&self) -> io::Result<()> {
        self.check()
    }
}
