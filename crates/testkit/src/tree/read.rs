//! Reading a tree into a manifest as Extant sees it.

use super::manifest::{ContentHasher, Kind, Manifest, Node};
use super::walk::{PIECE, SEALED, WIDE};
use extant_engine::{File, FileType, Fs, Node as FsNode, OpenFlags};
use std::collections::BTreeMap;

impl Manifest {
    /// Reads all nodes that are reachable from the root. An error names the path that could not be
    /// read.
    pub fn read(fs: &Fs) -> Result<Self, String> {
        let mut manifest = Self::default();
        let mut inodes = BTreeMap::new();
        let mut pending = vec![(Vec::new(), fs.root().map_err(|e| format!("/: {e}"))?)];
        while let Some((path, node)) = pending.pop() {
            let fail = |e: extant_engine::Error| format!("/{}: {e}", path.escape_ascii());
            let found = look(fs, &node).map_err(fail)?;
            if found.kind == Kind::Directory {
                push_children(fs, &path, &node, &mut pending).map_err(fail)?;
            }
            inodes.insert(path.clone(), node.ino());
            manifest.nodes.insert(path, found);
        }
        manifest.group_links(&inodes);
        Ok(manifest)
    }
}

fn push_children(
    fs: &Fs,
    path: &[u8],
    dir: &FsNode,
    pending: &mut Vec<(Vec<u8>, FsNode)>,
) -> extant_engine::Result<()> {
    for entry in fs.read_dir(dir)?.iter().filter(|entry| entry.name != b"." && entry.name != b"..")
    {
        let mut child = path.to_vec();
        child.extend((!path.is_empty()).then_some(b'/'));
        child.extend_from_slice(&entry.name);
        pending.push((child, fs.lookup(dir, &entry.name)?));
    }
    Ok(())
}

fn look(fs: &Fs, node: &FsNode) -> extant_engine::Result<Node> {
    let attr = node.attr();
    let kind = kind_of(attr.ftype);
    let is_directory = kind == Kind::Directory;
    let is_device = matches!(kind, Kind::BlockDevice | Kind::CharDevice);
    let mut found = Node {
        mode: u32::from(attr.mode) & 0o7777,
        uid: attr.uid,
        gid: attr.gid,
        size: if is_directory { 0 } else { attr.size },
        mtime: (attr.mtime.sec, attr.mtime.nsec),
        nlink: if is_directory { 0 } else { attr.nlink.into() },
        rdev: if is_device { attr.rdev } else { (0, 0) },
        ..Node::new(kind)
    };
    for name in fs.list_xattrs(node)? {
        let value = fs.get_xattr(node, &name)?;
        found.xattrs.insert(name, value);
    }
    match kind {
        Kind::Symlink => found.target = fs.read_link(node)?,
        Kind::File => {
            found.hash = fs
                .open_file(node, OpenFlags::default())
                .and_then(|file| hash(&file))
                .or_else(sealed)?
        }
        _ => {}
    }
    Ok(found)
}

/// Converts a file type.
pub fn kind_of(ftype: FileType) -> Kind {
    match ftype {
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        _ => Kind::File,
    }
}

fn hash(file: &File) -> extant_engine::Result<u64> {
    let (mut at, size) = (0, file.len());
    let mut hasher = ContentHasher::default();
    let mut buffer = vec![0; size.min(PIECE) as usize];
    while at < size {
        let next = next_data(file, at, size)?;
        if next - at >= WIDE {
            hasher.skip(next - at);
            at = next;
        }
        match file.read_at(at, &mut buffer)? {
            // Missing bytes show in the hash, which includes the length.
            0 => break,
            read => {
                hasher.update(&buffer[..read]);
                at += read as u64;
            }
        }
    }
    Ok(hasher.finish())
}

fn sealed(error: extant_engine::Error) -> extant_engine::Result<u64> {
    if error.is(extant_engine::Errno::NoKey) { Ok(SEALED) } else { Err(error) }
}

fn next_data(file: &File, at: u64, size: u64) -> extant_engine::Result<u64> {
    if size - at < WIDE {
        return Ok(at);
    }
    match file.seek_data(at) {
        Err(e) if e.is(extant_engine::Errno::Nxio) => Ok(size),
        other => other,
    }
}
