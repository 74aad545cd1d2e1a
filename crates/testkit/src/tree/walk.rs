//! Reading a mounted tree into a manifest.

use super::manifest::{ContentHasher, Kind, Manifest, Node};
use rustix::fs::{FileType, Stat};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

impl Manifest {
    /// Walks the directory `root` without following links and without leaving it.
    ///
    /// # Panics
    /// If anything below it cannot be read.
    #[track_caller]
    pub fn walk(root: &Path) -> Self {
        let mut walk = Walk { root, manifest: Self::default(), inodes: BTreeMap::new() };
        let mut pending = vec![Vec::new()];
        while let Some(path) = pending.pop() {
            walk.visit(path, &mut pending).unwrap_or_else(|e| panic!("{e}"));
        }
        walk.manifest.group_links(&walk.inodes);
        walk.manifest
    }
}

struct Walk<'a> {
    root: &'a Path,
    manifest: Manifest,
    inodes: BTreeMap<Vec<u8>, u64>,
}

impl Walk<'_> {
    fn visit(&mut self, path: Vec<u8>, pending: &mut Vec<Vec<u8>>) -> Result<(), String> {
        let full = self.root.join(OsStr::from_bytes(&path));
        let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", full.display());
        let stat = rustix::fs::lstat(&full).map_err(|e| fail(&e))?;
        let mut node = node_of(&stat);
        node.xattrs = xattrs(&full).map_err(|e| fail(&e))?;
        match node.kind {
            Kind::File => node.hash = hash_file(&full).or_else(sealed).map_err(|e| fail(&e))?,
            Kind::Symlink => {
                node.target =
                    std::fs::read_link(&full).map_err(|e| fail(&e))?.into_os_string().into_vec();
            }
            Kind::Directory => push_children(&full, &path, pending).map_err(|e| fail(&e))?,
            _ => {}
        }
        self.inodes.insert(path.clone(), stat.st_ino);
        self.manifest.nodes.insert(path, node);
        Ok(())
    }
}

fn push_children(full: &Path, path: &[u8], pending: &mut Vec<Vec<u8>>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(full)? {
        let name = entry?.file_name();
        let mut child = path.to_vec();
        if !child.is_empty() {
            child.push(b'/');
        }
        child.extend_from_slice(name.as_bytes());
        pending.push(child);
    }
    Ok(())
}

fn node_of(stat: &Stat) -> Node {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::CharacterDevice => Kind::CharDevice,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        _ => Kind::File,
    };
    let is_directory = kind == Kind::Directory;
    let is_device = matches!(kind, Kind::BlockDevice | Kind::CharDevice);
    let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    Node {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: if is_directory { 0 } else { u64::try_from(stat.st_size).unwrap_or(0) },
        mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
        nlink: if is_directory { 0 } else { stat.st_nlink },
        rdev: if is_device { device } else { (0, 0) },
        ..Node::new(kind)
    }
}

/// Length from which on a hole is not read: a sparse file may be too large to read.
pub(super) const WIDE: u64 = 1 << 20;

/// Bytes of content that are read at once.
pub(super) const PIECE: u64 = 256 << 10;

fn hash_file(path: &Path) -> std::io::Result<u64> {
    let mut file = std::fs::File::open(path)?;
    let mut hasher = ContentHasher::default();
    let (mut at, mut size) = (0, file.metadata()?.len());
    // Not larger than necessary: most files are small, and to clear the buffer takes time.
    let mut buffer = vec![0; (size + 1).clamp(4096, PIECE) as usize];
    loop {
        let next = next_data(&file, at, size)?;
        if next - at >= WIDE {
            hasher.skip(next - at);
            at = file.seek(SeekFrom::Start(next))?;
        }
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finish()),
            read => {
                hasher.update(&buffer[..read]);
                at += read as u64;
                size = size.max(at);
            }
        }
    }
}

/// Stands for the hash of an encrypted file without its key.
pub(super) const SEALED: u64 = 0x5ea1;

fn sealed(error: std::io::Error) -> std::io::Result<u64> {
    match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::NOKEY.raw_os_error() => Ok(SEALED),
        _ => Err(error),
    }
}

/// Returns the offset of the next data at or after an offset; the end of the file if there is none.
fn next_data(file: &std::fs::File, at: u64, size: u64) -> std::io::Result<u64> {
    if size - at < WIDE {
        return Ok(at);
    }
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        Ok(next) => rustix::fs::seek(file, rustix::fs::SeekFrom::Start(at)).map(|_| next),
        Err(rustix::io::Errno::NXIO) => Ok(size),
        Err(e) => Err(e),
    }
    .map_err(Into::into)
}

/// Extended attributes of `path` itself, without those that security modules make up. A manifest of
/// a large tree has many, so each is shrunk from the buffer's size to its own.
fn xattrs(path: &Path) -> rustix::io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut room = vec![0; 64 << 10];
    let used = match rustix::fs::llistxattr(path, &mut room[..]) {
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        other => other?,
    };
    let names = room[..used].to_vec();
    let mut found = BTreeMap::new();
    for name in names.split(|b| *b == 0).filter(|n| !n.is_empty() && *n != b"security.selinux") {
        let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut room[..])?;
        found.insert(name.to_vec(), room[..len].to_vec());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scratch;
    use rustix::fs::XattrFlags;

    #[test]
    fn a_manifest_keeps_no_room_that_it_does_not_use() {
        let scratch = Scratch::new();
        let file = scratch.join("file");
        std::fs::write(&file, b"content").expect("a file");
        rustix::fs::lsetxattr(&file, "user.small", b"value", XattrFlags::empty())
            .expect("an attribute");
        let manifest = Manifest::walk(scratch.path());
        let value = &manifest.nodes[&b"file"[..]].xattrs[&b"user.small"[..]];
        assert_eq!((&value[..], value.capacity()), (&b"value"[..], 5));
    }
}
