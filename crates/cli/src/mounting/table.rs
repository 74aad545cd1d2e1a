//! The table of mounts as the kernel shows it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where.
    pub dir: PathBuf,
    /// Type, as `fuse.extant`.
    pub fstype: Vec<u8>,
    /// What.
    pub source: PathBuf,
    /// It shows the file system's root, not a directory of it.
    pub whole: bool,
}

/// All mounts of this process's namespace, oldest first; none if the table cannot be read.
pub fn mounts() -> Vec<Mount> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    table.split(|b| *b == b'\n').filter_map(parse).collect()
}

/// The mounts that a FUSE server has made of `source`.
pub fn served(source: &Path) -> Vec<Mount> {
    let all = mounts().into_iter();
    all.filter(|m| m.source == source && m.fstype.starts_with(b"fuse")).collect()
}

/// `id parent major:minor root dir options … - type source superoptions`
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let root = fields.nth(3)?;
    let dir = path(fields.next()?);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let fstype = rest.next()?.to_vec();
    Some(Mount { dir, fstype, source: path(rest.next()?), whole: root == b"/" })
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
        let line = b"36 35 0:52 / /mnt/a\\040b rw,nosuid shared:1 - fuse.extant /tmp/x\\134y.img rw,user_id=0";
        let mount = parse(line).unwrap();
        assert_eq!(mount.dir, Path::new("/mnt/a b"));
        assert_eq!(mount.fstype, b"fuse.extant");
        assert_eq!(mount.source, Path::new("/tmp/x\\y.img"));
        assert!(mount.whole);
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 35 0:52 / /mnt rw"), None);
    }
}
