//! Facts of files that a library which feigns root changes for its programs.
//!
//! fakeroot(1) and pseudo(1) are loaded before the C library, and answer its functions. Other calls
//! of this program are system calls, which they do not see.

use rustix_libc::fs::{Stat, lstat};
use std::io;
use std::path::Path;

/// Files of libraries that feign root.
const LIBRARIES: [&str; 2] = ["/libfakeroot", "/libpseudo"];

/// Returns whether a library that feigns root answers functions of the C library in this process. A
/// static program has none.
#[must_use]
pub fn root_is_feigned() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().any(|line| LIBRARIES.iter().any(|library| line.contains(library)))
}

/// Type, permissions, owners and device number of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
}

impl Facts {
    /// Asks the C library. A symlink is not followed. Returns device and inode number, too.
    pub(super) fn asked(path: &Path) -> io::Result<(Facts, (u64, u64))> {
        let Stat { st_mode, st_uid, st_gid, st_rdev, st_dev, st_ino, .. } = lstat(path)?;
        let facts = Facts { mode: st_mode, uid: st_uid, gid: st_gid, rdev: st_rdev };
        Ok((facts, (st_dev, st_ino)))
    }
}

/// Returns the user and the group of this process, as the C library tells them.
#[must_use]
pub fn shown_ids() -> (u32, u32) {
    (rustix_libc::process::getuid().as_raw(), rustix_libc::process::getgid().as_raw())
}
