//! Identities of mounts: paths and numbers of devices lead to other mounts over time.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statx};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// STATX_MNT_ID_UNIQUE, since Linux 6.8: a number that no other mount gets.
const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// A mount at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountIdentity {
    /// Number of the device of its files: major and minor.
    device: (u32, u32),
    /// Number in the table of mounts. Others get it after the end of the mount.
    number: u64,
    /// The number that no other mount gets; `number` again before Linux 6.8, and for a process that
    /// may not use the mount.
    unique: u64,
}

impl MountIdentity {
    /// Returns the identity of the topmost mount at a directory, without a question to its server.
    /// A symlink in the place of the directory is not followed.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn at(dir: &Path) -> io::Result<MountIdentity> {
        // Both numbers are of one mount. The descriptor must not stay: it would keep the mount.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = openat(CWD, dir, flags, Mode::empty())?;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        // Without a wish for anything a process gets an answer that may not use the mount. The
        // kernel shows the number all the same, since Linux 5.8.
        let shown = statx(&root, c"", flags, StatxFlags::empty())?;
        let has_number = StatxFlags::from_bits_retain(shown.stx_mask).contains(StatxFlags::MNT_ID);
        let number = if has_number { shown.stx_mnt_id } else { number_of(&root)? };
        let unique = statx(&root, c"", flags, UNIQUE).ok();
        let unique = unique.filter(|found| found.stx_mask & UNIQUE.bits() != 0);
        let device = (shown.stx_dev_major, shown.stx_dev_minor);
        Ok(MountIdentity {
            device,
            number,
            unique: unique.map_or(number, |found| found.stx_mnt_id),
        })
    }

    /// Returns whether the table of mounts shows this mount by a number and a device.
    pub fn is_shown_as(&self, number: u64, device: (u32, u32)) -> bool {
        (self.number, self.device) == (number, device)
    }

    /// Fails unless this mount is the topmost one at a directory.
    pub(super) fn check(&self, dir: &Path) -> io::Result<()> {
        if MountIdentity::at(dir).is_ok_and(|found| found == *self) {
            return Ok(());
        }
        Err(io::Error::new(
            ErrorKind::InvalidInput,
            "the mount is gone, or another one lies in its place",
        ))
    }
}

/// How a server ended, as its keeper sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerEnd {
    /// In order, or its mount has ended.
    InOrder,
    /// Otherwise. Its mount, or the one that it was to replace, is still at its place.
    Lost {
        /// The dead mount.
        mount: MountIdentity,
        /// How long the server had mounted; `None` if it never had.
        served: Option<Duration>,
    },
}

/// Returns the number of the mount of an open file, as kernels before Linux 5.8 tell it.
fn number_of(file: &OwnedFd) -> io::Result<u64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let number = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    number.ok_or_else(|| io::Error::other("/proc/self/fdinfo tells no number of the mount"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_kernels_tell_the_same_number() {
        let root = MountIdentity::at(Path::new("/")).expect("the root directory");
        let open: OwnedFd = std::fs::File::open("/").expect("the root directory").into();
        assert_eq!(number_of(&open).expect("a number"), root.number);
    }
}
