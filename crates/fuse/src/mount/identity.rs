//! Identities of mounts: paths and numbers of devices lead to other mounts over time.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statx};
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::str::FromStr;
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
        MountIdentity::of(&openat(CWD, dir, flags, Mode::empty())?)
    }

    /// Returns the identity of the mount that an open directory is in, without a question to its
    /// server.
    ///
    /// # Errors
    /// Those of statx(2).
    pub fn of(root: impl AsFd) -> io::Result<MountIdentity> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        // Without a wish for anything a process gets an answer that may not use the mount. The
        // kernel shows the number all the same, since Linux 5.8.
        let shown = statx(&root, c"", flags, StatxFlags::empty())?;
        let has_number = StatxFlags::from_bits_retain(shown.stx_mask).contains(StatxFlags::MNT_ID);
        let number = if has_number { shown.stx_mnt_id } else { number_of(root.as_fd())? };
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

/// For the arguments of another process.
impl fmt::Display for MountIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.device;
        write!(f, "{major}:{minor}:{}:{}", self.number, self.unique)
    }
}

impl FromStr for MountIdentity {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<MountIdentity, Self::Err> {
        const FORM: &str = "MAJOR:MINOR:NUMBER:UNIQUE";
        let numbers = text.split(':').map(str::parse::<u64>).collect::<Result<Vec<_>, _>>();
        let [major, minor, number, unique] =
            numbers.ok().and_then(|numbers| numbers.try_into().ok()).ok_or(FORM)?;
        let device = (major.try_into().map_err(|_| FORM)?, minor.try_into().map_err(|_| FORM)?);
        Ok(MountIdentity { device, number, unique })
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
fn number_of(file: BorrowedFd<'_>) -> io::Result<u64> {
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
        let open = std::fs::File::open("/").expect("the root directory");
        assert_eq!(root.to_string().parse(), Ok(root));
        assert!("1:2:3".parse::<MountIdentity>().is_err());
        assert_eq!(number_of(open.as_fd()).expect("a number"), root.number);
    }
}
