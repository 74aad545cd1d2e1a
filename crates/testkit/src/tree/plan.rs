//! A tree to be made: entries in an order in which they can be made one after the other.

use super::manifest::{Kind, Manifest, Node, content_hash};
use crate::rng::Rng;
use std::collections::BTreeMap;

/// A tree to be made. Parents come before children, the first link of a file before its others.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The entries, without the root.
    pub entries: Vec<Entry>,
}

/// One name of the tree.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Relative path, bytes.
    pub path: Vec<u8>,
    /// The object at the path.
    pub what: What,
    /// Permission bits; not for links of either kind.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time: seconds, nanoseconds.
    pub mtime: (i64, u32),
    /// Extended attributes; ACLs among them, in the form that system calls carry (version 2).
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Kind of an entry.
#[derive(Debug, Clone)]
pub enum What {
    /// A regular file.
    File(Content),
    /// A directory.
    Directory,
    /// A symbolic link with this target.
    Symlink(Vec<u8>),
    /// Another name of the file at this path; mode, owner, time and attributes of the entry do not
    /// count.
    HardLink(Vec<u8>),
    /// A device (`block` or character) of this major and minor number.
    Device {
        /// Whether it is a block device.
        block: bool,
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// A file's bytes: random ones in `pieces`, holes elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// Size in bytes.
    pub size: u64,
    /// Offset and length of each written piece, ascending, inside `size`.
    pub pieces: Vec<(u64, u64)>,
    /// Seed of the bytes.
    pub seed: u64,
}

impl Content {
    /// A file without holes.
    pub fn dense(size: u64, seed: u64) -> Self {
        Self { size, pieces: if size == 0 { Vec::new() } else { vec![(0, size)] }, seed }
    }

    /// Returns the bytes of piece `index`.
    pub fn piece(&self, index: usize) -> Vec<u8> {
        let (offset, len) = self.pieces[index];
        Rng::new(self.seed ^ offset.wrapping_mul(0x2545_f491_4f6c_dd1d)).bytes(len as usize)
    }

    /// Returns all bytes, holes as zeros. Only for files that fit in memory.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size as usize];
        for (index, (offset, len)) in self.pieces.iter().enumerate() {
            bytes[*offset as usize..(*offset + *len) as usize].copy_from_slice(&self.piece(index));
        }
        bytes
    }
}

impl Plan {
    /// Returns the manifest that a walk of the finished tree finds, without the root.
    pub fn manifest(&self) -> Manifest {
        let mut manifest = Manifest::default();
        for entry in &self.entries {
            let node = match &entry.what {
                What::HardLink(target) => manifest.nodes[target].clone(),
                _ => entry.node(),
            };
            manifest.nodes.insert(entry.path.clone(), node);
        }
        manifest.group_links(&self.inodes());
        count_links(&mut manifest);
        manifest
    }

    /// A number for each path, equal for links of one file.
    fn inodes(&self) -> BTreeMap<Vec<u8>, u64> {
        let mut inodes: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for (number, entry) in self.entries.iter().enumerate() {
            let inode = match &entry.what {
                What::HardLink(target) => inodes[target],
                _ => number as u64,
            };
            inodes.insert(entry.path.clone(), inode);
        }
        inodes
    }
}

fn count_links(manifest: &mut Manifest) {
    let mut links: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    for (path, node) in &manifest.nodes {
        *links.entry(node.same_as.as_ref().unwrap_or(path).clone()).or_default() += 1;
    }
    for (path, node) in &mut manifest.nodes {
        if node.kind != Kind::Directory {
            node.nlink = links[node.same_as.as_ref().unwrap_or(path)];
        }
    }
}

impl Entry {
    fn kind(&self) -> Kind {
        match &self.what {
            What::File(_) | What::HardLink(_) => Kind::File,
            What::Directory => Kind::Directory,
            What::Symlink(_) => Kind::Symlink,
            What::Device { block: true, .. } => Kind::BlockDevice,
            What::Device { block: false, .. } => Kind::CharDevice,
            What::Fifo => Kind::Fifo,
            What::Socket => Kind::Socket,
        }
    }

    fn node(&self) -> Node {
        let mut node = Node {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            mtime: self.mtime,
            xattrs: self.xattrs.clone(),
            ..Node::new(self.kind())
        };
        match &self.what {
            What::File(content) => {
                node.size = content.size;
                node.hash = content_hash(&content.bytes());
            }
            What::Symlink(target) => {
                node.mode = 0o777;
                node.size = target.len() as u64;
                node.target.clone_from(target);
            }
            What::Device { major, minor, .. } => node.rdev = (*major, *minor),
            _ => {}
        }
        node
    }
}

/// A POSIX ACL in the form of `system.posix_acl_access` (version 2): the base entries of `mode`, a
/// named user, a named group and a mask, which is the mode's group class.
pub fn posix_acl(mode: u32, user: (u32, u16), group: (u32, u16)) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let bits = |shift: u32| ((mode >> shift) & 7) as u16;
    let entries = [
        (0x01, bits(6), NOBODY),
        (0x02, user.1, user.0),
        (0x04, bits(3), NOBODY),
        (0x08, group.1, group.0),
        (0x10, bits(3), NOBODY),
        (0x20, bits(0), NOBODY),
    ];
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        acl.extend_from_slice(&u16::to_le_bytes(tag));
        acl.extend_from_slice(&permissions.to_le_bytes());
        acl.extend_from_slice(&id.to_le_bytes());
    }
    acl
}
