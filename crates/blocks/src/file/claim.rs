//! The lock that excludes other programs from an image.
//!
//! A range of the file is locked by an open file description lock: shared for reading, exclusive
//! for writing. It lasts until the file is closed. The lock is advisory: programs that do not take
//! it, and the kernel, are not excluded. Programs that hold a disk exclusively are detected by
//! opening it exclusively.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::File;
use std::io;
use std::path::Path;

/// The bytes of a file that a device uses; without `len`, up to any length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) start: u64,
    pub(super) len: Option<u64>,
}

impl Extent {
    /// Returns whether two extents have a byte in common.
    pub(super) fn overlaps(&self, other: &Extent) -> bool {
        let end =
            |extent: &Extent| extent.len.map_or(u64::MAX, |len| extent.start.saturating_add(len));
        self.start < end(other) && other.start < end(self)
    }
}

/// Returns the error for an image in use, which a later attempt may not meet.
pub(super) fn busy(path: &Path, by: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, format!("{} is in use: {by}", path.display()))
}

/// Locks an extent of an open file, shared or exclusive.
pub(super) fn lock(file: &File, path: &Path, extent: Extent, exclusive: bool) -> io::Result<()> {
    let too_far =
        |_| io::Error::new(io::ErrorKind::InvalidInput, "the image begins beyond any file");
    let l_start = extent.start.try_into().map_err(too_far)?;
    // A length of 0 locks all that follows, however long the file becomes.
    let l_len = extent.len.and_then(|len| len.try_into().ok()).unwrap_or(0);
    let l_type = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK } as libc::c_short;
    let request =
        libc::flock { l_type, l_whence: libc::SEEK_SET as libc::c_short, l_start, l_len, l_pid: 0 };
    match fcntl(file, FcntlArg::F_OFD_SETLK(&request)) {
        Ok(_) => Ok(()),
        Err(Errno::EAGAIN | Errno::EACCES) => Err(busy(path, "another program has locked it")),
        Err(error @ (Errno::ENOLCK | Errno::EOPNOTSUPP | Errno::ENOSYS)) => {
            tracing::warn!(path = %path.display(), %error, "the image cannot be locked");
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Releases every lock of this description. Closing is not enough while a child process that is
/// about to execute another program still has a copy of the descriptor.
pub(super) fn unlock(file: &File) {
    let (l_type, l_whence) = (libc::F_UNLCK as libc::c_short, libc::SEEK_SET as libc::c_short);
    let all = libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 };
    if let Err(error) = fcntl(file, FcntlArg::F_OFD_SETLK(&all)) {
        tracing::debug!(%error, "the image's lock ends with its descriptor");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_overlap() {
        let extent = |start, len| Extent { start, len };
        assert!(extent(0, None).overlaps(&extent(u64::MAX - 1, Some(1))));
        assert!(!extent(0, Some(10)).overlaps(&extent(10, None)));
        assert!(extent(5, Some(10)).overlaps(&extent(0, Some(6))));
        assert!(!extent(5, Some(0)).overlaps(&extent(5, Some(0))));
    }
}
