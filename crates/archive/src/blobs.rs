//! Files of an image layout, in a directory or in an archive. No path leads out of either.

use crate::codec::Compression;
use crate::error::{Error, Result};
use crate::files::ArchiveFile;
use crate::stream::{Section, fill};
use rustix::fs::{Mode, OFlags};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// Maximum number of links from one blob to the next: `docker save` of old versions wrote equal
/// layers once, with links to them.
const MAX_LINKS: usize = 8;

/// A file of a layout.
#[derive(Clone)]
pub(crate) struct Blob {
    pub section: Section,
    /// Whether other programs can change the bytes.
    is_shared: bool,
}

impl Blob {
    /// Makes a blob in a file that other programs may change.
    pub(crate) fn shared(section: Section) -> Blob {
        Blob { section, is_shared: true }
    }

    /// Returns the compression.
    pub(crate) fn compression(&self) -> io::Result<Compression> {
        let mut start = [0; 6];
        let filled = fill(&mut self.section.clone(), &mut start)?;
        Ok(Compression::of(start.get(..filled).unwrap_or_default()))
    }

    /// Returns the content of the whole file for a tree.
    pub(crate) fn content(&self) -> io::Result<ArchiveFile> {
        let file = self.section.file().clone();
        if self.is_shared { ArchiveFile::shared(file) } else { Ok(ArchiveFile::private(file)) }
    }
}

/// The files of a layout.
pub(crate) enum Blobs {
    Directory(OwnedFd),
    Archive { file: Arc<File>, members: HashMap<Vec<u8>, ArchiveMember>, is_shared: bool },
}

/// A member of an archive with a layout.
pub(crate) enum ArchiveMember {
    /// First byte in the file, and length.
    File(u64, u64),
    /// Path of another member.
    Link(Vec<u8>),
}

/// Returns the names of a path without `.`; `None` if `..` leads out of the root.
fn names(path: &[u8]) -> Option<Vec<&[u8]>> {
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()?),
            name => names.push(name),
        }
    }
    Some(names)
}

/// Returns a path in the form that members are found by; `None` if it leads out of the root.
pub(crate) fn normal(path: &[u8]) -> Option<Vec<u8>> {
    names(path).map(|names| names.join(&b'/'))
}

/// Returns the path that a symlink leads to.
pub(crate) fn link_target(link: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    match target.first() {
        Some(b'/') => normal(target),
        _ => normal(&[link, b"/../", target].concat()),
    }
}

impl Blobs {
    /// Opens a directory.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(crate) fn directory(path: &Path) -> io::Result<Blobs> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Blobs::Directory(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// Opens a file by its path in the layout.
    ///
    /// # Errors
    /// [`Error`] with the path if it is missing, is no regular file, or leads elsewhere.
    pub(crate) fn open(&self, path: &str) -> Result<Blob> {
        let shown = path.escape_debug();
        self.open_path(path.as_bytes()).map_err(|error| error.in_source(shown))
    }

    /// Returns whether the layout has a file.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.open(path).is_ok()
    }

    fn open_path(&self, path: &[u8]) -> Result<Blob> {
        match self {
            Blobs::Directory(root) => open_below(root, path),
            Blobs::Archive { file, members, is_shared } => {
                let mut path =
                    normal(path).ok_or_else(|| Error::new("leads out of the archive"))?;
                for _ in 0..MAX_LINKS {
                    match members.get(&path) {
                        Some(ArchiveMember::File(start, len)) => {
                            let section = Section::new(file.clone(), *start, *len);
                            return Ok(Blob { section, is_shared: *is_shared });
                        }
                        Some(ArchiveMember::Link(target)) => path.clone_from(target),
                        None => return Err(Error::new("the archive has no such file")),
                    }
                }
                Err(Error::new("too many links, or a circle of them"))
            }
        }
    }
}

/// Opens a file below a directory. No symlink is followed, also not in the place of a directory.
fn open_below(root: &OwnedFd, path: &[u8]) -> Result<Blob> {
    let is_plain = !path.starts_with(b"/") && path.split(|byte| *byte == b'/').all(|n| n != b"..");
    let Some(names) = names(path).filter(|names| is_plain && !names.is_empty()) else {
        return Err(Error::new("leads out of the layout"));
    };
    let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let (last, directories) = names.split_last().ok_or_else(|| Error::new("no name"))?;
    let mut at = root.try_clone()?;
    for name in directories {
        at = rustix::fs::openat(&at, *name, flags | OFlags::DIRECTORY, Mode::empty())
            .map_err(link)?;
    }
    let file = rustix::fs::openat(&at, *last, flags, Mode::empty()).map_err(link)?;
    let file = File::from(file);
    let data = file.metadata()?;
    if !data.is_file() {
        return Err(Error::new("no regular file"));
    }
    Ok(Blob::shared(Section::new(Arc::new(file), 0, data.len())))
}

fn link(errno: rustix::io::Errno) -> Error {
    match errno {
        rustix::io::Errno::LOOP => Error::new("a symlink, which is not followed in a layout"),
        errno => io::Error::from(errno).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        assert_eq!(normal(b"./a//b/../c").unwrap(), b"a/c");
        assert_eq!(normal(b"a/../../b"), None);
        assert_eq!(link_target(b"x/layer.tar", b"../y/layer.tar").unwrap(), b"y/layer.tar");
        assert_eq!(link_target(b"layer.tar", b"../y"), None);
        assert_eq!(link_target(b"a/b", b"/c").unwrap(), b"c");
    }
}
