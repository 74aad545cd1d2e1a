//! The table of mounts as the kernel shows it.
//!
//! # Trust
//! Every user may mount a FUSE server of their own with fusermount3(1) and chooses the source and
//! the subtype that the table shows, so that neither tells which program serves a mount, or which
//! image. Only the kernel writes `user_id=`, the user that made the mount: fusermount3 passes the
//! id of its caller, and no other means make a mount in this namespace without privileges. So a
//! mount is this program's only if the user of this process made it ([`Mount::is_ours`]); of root's
//! mounts, root chose the source. The number is relative to the user namespace of the mount. Mounts
//! of another user namespace do not propagate to this mount namespace.

use crate::text::shown;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statx};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::process::geteuid;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Subtypes by which mounts of this program show.
const OWN_TYPES: [&[u8]; 4] = [b"extant", b"ext4", b"ext3", b"ext2"];

/// Flags that protect the machine from the files of a mount.
const PROTECTION: [(&[u8], MountFlags); 2] =
    [(b"nosuid", MountFlags::NOSUID), (b"nodev", MountFlags::NODEV)];

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Number of the mount in this namespace.
    pub id: u64,
    /// Number of the mount that it is mounted on.
    pub parent: u64,
    /// Number of the device of its files: major and minor.
    pub device: (u32, u32),
    /// Mount point.
    pub dir: PathBuf,
    /// `nosuid` and `nodev`, as far as the mount has them.
    pub protection: MountFlags,
    /// The options of the mount itself, as `rw,nosuid,relatime`.
    options: Vec<u8>,
    /// Type, as `fuse.extant`.
    fstype: Vec<u8>,
    /// Source of the mount: the image.
    pub source: PathBuf,
    /// It shows the file system's root, not a directory of it.
    pub whole: bool,
    /// The user that made a FUSE mount.
    pub user: Option<u32>,
    /// Other users may use a FUSE mount.
    pub allow_other: bool,
}

impl Mount {
    /// Returns the type for messages, as `fuse.extant`.
    pub fn shown_type(&self) -> String {
        shown(&self.fstype)
    }

    /// Returns the options of the mount itself as mount(8) has them.
    pub fn options(&self) -> String {
        let mut options = String::from_utf8_lossy(&self.options).into_owned();
        // Only the lack of the others shows it.
        if !["relatime", "noatime"].iter().any(|name| options.split(',').any(|word| word == *name))
        {
            options.push_str(",strictatime");
        }
        options
    }

    /// Returns the flags of the mount itself, but those of access times.
    pub fn flags(&self) -> MountFlags {
        let is = |name: &[u8]| self.options.split(|b| *b == b',').any(|option| option == name);
        let all = [
            (&b"ro"[..], MountFlags::RDONLY),
            (b"nosuid", MountFlags::NOSUID),
            (b"nodev", MountFlags::NODEV),
            (b"noexec", MountFlags::NOEXEC),
        ];
        all.into_iter().filter(|(name, _)| is(name)).map(|(_, flag)| flag).collect()
    }

    /// Returns whether files can be written through this mount.
    pub fn is_writable(&self) -> bool {
        self.options.split(|b| *b == b',').any(|option| option == b"rw")
    }

    /// Returns whether the user of this process made the mount by this program, perhaps as a helper
    /// for `subtype`. The fields of any other mount must not be believed.
    pub fn is_ours(&self, subtype: &str) -> bool {
        self.user == Some(geteuid().as_raw()) && self.has_own_type(subtype)
    }

    /// Returns whether the mount claims to be this program's, perhaps as a helper for `subtype`.
    pub fn has_own_type(&self, subtype: &str) -> bool {
        is_own_type(&self.fstype, subtype)
    }
}

fn is_own_type(fstype: &[u8], subtype: &str) -> bool {
    let shown = [&b"fuse."[..], b"fuseblk."].iter().find_map(|class| fstype.strip_prefix(*class));
    shown.is_some_and(|shown| shown == subtype.as_bytes() || OWN_TYPES.contains(&shown))
}

/// A mount held by a descriptor of its root. A path may lead to another mount each time it is used:
/// users can rename directories above a mount, and mount over a directory that they may write to.
#[derive(Debug)]
pub struct HeldMount {
    root: File,
    mount: Mount,
}

impl HeldMount {
    /// Holds the topmost mount at `dir`, without a question to its server. `dir` must be absolute
    /// and free of symlinks.
    ///
    /// # Errors
    /// `InvalidInput` if `dir` is no mount point; those of open(2).
    pub fn of(dir: &Path) -> io::Result<HeldMount> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = File::from(openat(CWD, dir, flags, Mode::empty())?);
        let id = mount_id(&root)?;
        let mount = mounts().into_iter().find(|mount| mount.id == id && mount.dir == dir);
        let mount = mount
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a mount point"))?;
        Ok(HeldMount { root, mount })
    }

    /// Returns its line of the table.
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// Returns a path that leads to the root of this mount and to nothing else.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.root.as_raw_fd()))
    }

    /// Returns another descriptor of the root.
    ///
    /// # Errors
    /// Those of fcntl(2).
    pub fn root(&self) -> io::Result<File> {
        self.root.try_clone()
    }

    /// Returns whether its server is gone. The kernel asks it, also with the
    /// answer in its cache.
    pub fn is_dead(&self) -> bool {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        statx(&self.root, c"", flags, StatxFlags::MODE).is_err_and(|error| error == Errno::NOTCONN)
    }

    /// Returns whether a server serves it: waits for an answer, or for the end of the connection.
    pub fn is_served(&self) -> bool {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        // The request on which the connection ends has another error than later ones.
        (0..2).any(|_| statx(&self.root, c"", flags, StatxFlags::MODE).is_ok())
    }

    /// Returns whether its server still answers.
    pub fn answers(&self) -> bool {
        self.root.metadata().is_ok()
    }
}

/// Returns the absolute path of a mount point without a question to the server of the mount there.
///
/// # Errors
/// The directory above it is not there.
pub fn mount_point(place: &Path) -> io::Result<PathBuf> {
    let place = std::path::absolute(place)?;
    match (place.parent(), place.file_name()) {
        (Some(parent), Some(name)) => {
            let below = parent.canonicalize()?.join(name);
            let is_symlink = mounts().iter().all(|mount| mount.dir != below);
            // A symlink may lead to a mount point.
            if is_symlink { Ok(below.canonicalize().unwrap_or(below)) } else { Ok(below) }
        }
        _ => Ok(place),
    }
}

/// Number of the mount on which a file is open.
fn mount_id(file: &File) -> io::Result<u64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| io::Error::other("/proc/self/fdinfo tells no number of the mount"))
}

/// Returns all mounts of this process's namespace, oldest first; none if the table cannot be read.
pub fn mounts() -> Vec<Mount> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    parse_all(&table)
}

/// Returns the mounts of a table in the form of `/proc/PID/mountinfo`.
pub fn parse_all(table: &[u8]) -> Vec<Mount> {
    table.split(|b| *b == b'\n').filter_map(parse).collect()
}

/// Returns the mounts of `source` by this user and this program.
pub fn served(source: &Path, subtype: &str) -> Vec<Mount> {
    mounts().into_iter().filter(|mount| mount.source == source && mount.is_ours(subtype)).collect()
}

/// `id parent major:minor root dir options … - type source superoptions`
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let (id, parent) = (number(fields.next()?)?, number(fields.next()?)?);
    let device = device(fields.next()?)?;
    let root = fields.next()?;
    let dir = path(fields.next()?);
    let options = fields.next()?.to_vec();
    let protection = protection(&options);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let fstype = rest.next()?.to_vec();
    let source = path(rest.next()?);
    let of_type = rest.next().unwrap_or_default();
    let (user, whole) = (user(of_type), root == b"/");
    let allow_other = of_type.split(|b| *b == b',').any(|option| option == b"allow_other");
    Some(Mount {
        id,
        parent,
        device,
        dir,
        protection,
        options,
        fstype,
        source,
        whole,
        user,
        allow_other,
    })
}

fn number<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Parses `major:minor`.
fn device(field: &[u8]) -> Option<(u32, u32)> {
    let (major, minor) = std::str::from_utf8(field).ok()?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn protection(options: &[u8]) -> MountFlags {
    let has = |name: &[u8]| options.split(|b| *b == b',').any(|option| option == name);
    PROTECTION.iter().filter(|(name, _)| has(name)).map(|(_, flag)| *flag).collect()
}

/// Returns the value of `user_id=`, if it occurs once: a security module writes options, too.
fn user(options: &[u8]) -> Option<u32> {
    let mut values =
        options.split(|b| *b == b',').filter_map(|option| option.strip_prefix(b"user_id="));
    number(values.next().filter(|_| values.next().is_none())?)
}

/// Spaces and the like stand as three octal digits after a backslash.
fn path(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let escaped = (*first == b'\\').then(|| tail.get(..3)).flatten().and_then(octal);
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(bytes).into()
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart() {
        let line = b"36 35 0:52 / /mnt/a\\040b rw,nosuid shared:1 - fuse.extant /tmp/x\\134y.img \
        rw,user_id=7,allow_other";
        let mount = parse(line).unwrap();
        assert_eq!((mount.id, mount.parent, mount.device), (36, 35, (0, 52)));
        assert_eq!((mount.user, mount.allow_other), (Some(7), true));
        assert_eq!(mount.dir, Path::new("/mnt/a b"));
        assert_eq!(mount.protection, MountFlags::NOSUID);
        assert_eq!(mount.fstype, b"fuse.extant");
        assert_eq!(mount.source, Path::new("/tmp/x\\y.img"));
        assert!(mount.whole);
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 35 0:52 / /mnt rw"), None);
    }

    #[test]
    fn only_mounts_of_the_same_user_and_program_are_ours() {
        let own = geteuid().as_raw();
        let is_ours = |fstype: &str, options: &str, subtype: &str| {
            parse(format!("36 35 0:52 / /mnt rw - {fstype} /x.img {options}").as_bytes())
                .unwrap()
                .is_ours(subtype)
        };
        let mine = format!("rw,user_id={own},group_id=0");
        assert!(is_ours("fuse.extant", &mine, "extant") && is_ours("fuse.extant", &mine, "fuse"));
        assert!(is_ours("fuse.ext4", &mine, "fuse") && is_ours("fuseblk.extant", &mine, "extant"));
        assert!(is_ours("fuse.other", &mine, "other"));
        assert!(!is_ours("fuse.sshfs", &mine, "fuse") && !is_ours("fuse.other", &mine, "extant"));
        assert!(!is_ours("fuse", &mine, "fuse") && !is_ours("ext4", &mine, "ext4"));
        let foreign = format!("rw,user_id={}", own + 1);
        for options in
            [&foreign, "rw", "", "rw,user_id=", &format!("rw,user_id={},{mine}", own + 1)]
        {
            assert!(!is_ours("fuse.extant", options, "extant"), "{options}");
        }
    }

    #[test]
    fn only_mount_points_are_held() {
        let held = HeldMount::of(Path::new("/proc")).unwrap();
        assert_eq!((held.mount().fstype.as_slice(), held.mount().user), (&b"proc"[..], None));
        assert!(held.answers() && held.path().join("self").exists());
        assert_eq!(
            HeldMount::of(Path::new("/proc/self/fd")).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }
}
