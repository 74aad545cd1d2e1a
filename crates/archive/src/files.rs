//! Content in one open file, at any offset.

use extant_image::{ContentSource, HostBytes, OpenContent};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

/// State of a file that changes with its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp {
    len: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl Stamp {
    fn of(file: &File) -> io::Result<Stamp> {
        let data = file.metadata()?;
        let mtime = (data.mtime(), data.mtime_nsec());
        Ok(Stamp { len: data.len(), mtime, ctime: (data.ctime(), data.ctime_nsec()) })
    }
}

/// Content of members in a file. Positions are bytes of the file.
pub(crate) struct ArchiveFile {
    file: Arc<File>,
    /// State when the members were read; `None` if no other program can change the file.
    stamp: Option<Stamp>,
}

impl ArchiveFile {
    /// Takes a file that other programs may change.
    pub(crate) fn shared(file: Arc<File>) -> io::Result<ArchiveFile> {
        let stamp = Some(Stamp::of(&file)?);
        Ok(ArchiveFile { file, stamp })
    }

    /// Takes a file that no other program knows.
    pub(crate) fn private(file: Arc<File>) -> ArchiveFile {
        ArchiveFile { file, stamp: None }
    }
}

impl ContentSource for ArchiveFile {
    fn open(&self, position: u64) -> io::Result<Box<dyn OpenContent + '_>> {
        Ok(Box::new(Opened { file: &self.file, position }))
    }

    fn finish(&self) -> io::Result<()> {
        match self.stamp {
            Some(stamp) if stamp != Stamp::of(&self.file)? => {
                Err(io::Error::other("the archive was changed while it was read"))
            }
            _ => Ok(()),
        }
    }
}

struct Opened<'a> {
    file: &'a File,
    position: u64,
}

impl OpenContent for Opened<'_> {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, self.position + offset)
    }

    fn host_bytes(&self) -> Option<HostBytes<'_>> {
        Some(HostBytes::new(self.file, self.position))
    }
}
