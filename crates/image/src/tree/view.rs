//! The entries of a tree, for tests of sources and for listings.

use super::entries::EntryId;
use super::reader::read_file;
use super::{Attributes, Body, EntryKind, FileContent, NodeId, StoredContent, Tree};
use crate::error::{Error, Result};
use extant_format::FileType;
use extant_format::acl::Acl;
use extant_format::xattr::{NameIndex, full_name};

/// An entry of a tree.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TreeEntry {
    /// Path from the image's root, without a leading `/`.
    pub path: Vec<u8>,
    /// Attributes; access control lists in the form of system calls.
    pub attributes: Attributes,
    /// Kind and data.
    pub kind: EntryKind,
    /// Names of the file in the image; 1 for directories.
    pub links: u32,
    /// Number that all names of one file share.
    pub file: u32,
}

impl Tree {
    /// Returns the entry at a path; `None` if nothing is there.
    pub fn entry(&self, path: &[u8]) -> Option<TreeEntry> {
        let trimmed: Vec<&[u8]> = super::path::components(path).collect();
        self.lookup(path).map(|node| self.view(node, trimmed.join(&b'/')))
    }

    /// Returns all entries but the root. A directory comes before its own entries, which are sorted
    /// by the bytes of their names.
    pub fn walk(&self) -> impl Iterator<Item = TreeEntry> + '_ {
        let mut pending = vec![(NodeId::ROOT, Vec::new())];
        std::iter::from_fn(move || {
            let (node, path) = pending.pop()?;
            let children = self.sorted_children(node);
            for entry in children.into_iter().rev() {
                let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
                let path = [&path[..], slash, self.entries.name(entry)].concat();
                pending.push((self.entries.get(entry).node, path));
            }
            Some(self.view(node, path))
        })
        .skip(1)
    }

    /// Returns the entries of a directory, sorted by the bytes of their names.
    pub(crate) fn sorted_children(&self, node: NodeId) -> Vec<EntryId> {
        let mut children: Vec<EntryId> = self.children(node).collect();
        children.sort_unstable_by(|a, b| self.entries.name(*a).cmp(self.entries.name(*b)));
        children
    }

    /// Reads the content of a file into memory.
    ///
    /// # Errors
    /// [`Error::Entry`] if no file is at the path, [`Error::Content`] if it cannot be read.
    pub fn read(&self, path: &[u8]) -> Result<Vec<u8>> {
        match self.lookup(path) {
            Some(node) if self.node(node).file_type() == FileType::Regular => read_file(self, node),
            _ => Err(Error::entry(path, "no file is there")),
        }
    }

    fn view(&self, id: NodeId, path: Vec<u8>) -> TreeEntry {
        let node = self.node(id);
        let [atime, ctime] = self.times.get(id);
        let (mode, uid, gid, mtime) = (node.mode, node.uid, node.gid, node.mtime);
        let xattrs = self.full_xattrs(id);
        let attributes = Attributes { mode, uid, gid, mtime, atime, ctime, xattrs };
        TreeEntry { path, attributes, kind: self.kind(id), links: node.links, file: id.0 }
    }

    fn full_xattrs(&self, id: NodeId) -> Vec<(Vec<u8>, Vec<u8>)> {
        let set = self.xattrs.get(self.node(id).xattrs).iter();
        set.filter_map(|xattr| {
            let acl = [NameIndex::POSIX_ACL_ACCESS, NameIndex::POSIX_ACL_DEFAULT];
            let value = if acl.contains(&xattr.index) {
                Acl::from_disk(&xattr.value).ok()?.to_xattr()
            } else {
                xattr.value.clone()
            };
            full_name(xattr.index, &xattr.name).map(|name| (name, value))
        })
        .collect()
    }

    fn kind(&self, id: NodeId) -> EntryKind {
        match self.node(id).body {
            Body::Directory { .. } => EntryKind::Directory,
            Body::File { size, content } => EntryKind::File(self.content(size, content)),
            Body::Symlink { .. } => EntryKind::Symlink(self.target(id).to_vec()),
            Body::CharDevice(major, minor) => EntryKind::CharDevice(major, minor),
            Body::BlockDevice(major, minor) => EntryKind::BlockDevice(major, minor),
            Body::Fifo => EntryKind::Fifo,
            Body::Socket => EntryKind::Socket,
        }
    }

    fn content(&self, size: u64, content: StoredContent) -> FileContent {
        match content {
            StoredContent::Hole => FileContent::Zeroes { size },
            StoredContent::Bytes(start) => FileContent::Bytes(self.stored(start, size).to_vec()),
            StoredContent::Whole { source, position } => {
                FileContent::Whole { source, position, size }
            }
            StoredContent::Sparse { source, index } => {
                let ranges = self.sparse.get(index as usize).map_or(&[][..], |ranges| ranges);
                FileContent::Sparse { source, size, ranges: ranges.to_vec() }
            }
        }
    }
}
