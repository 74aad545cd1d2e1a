//! The tree of an image, in memory, before anything is written.
//!
//! Sources add entries in their order; later entries replace earlier ones, as `tar -x` over an
//! existing tree does, and nothing of this touches the host's file system. Content is not read: a
//! file refers to a range of a [`ContentSource`].
//!
//! # Memory
//! An entry takes about 45 bytes and its name, a node 72 bytes. Extended attributes are stored once
//! for each distinct set.
//!
//! # Invariants
//! - Node 0 is the root, a directory. Each other directory has exactly one entry, which it knows.
//! - `links` of a node is the number of its entries that are not removed; nodes without any are not
//!   part of the image.

mod attributes;
mod content;
mod entries;
mod internal;
mod layers;
mod path;
mod reader;
mod seed;
#[cfg(test)]
mod tests;
mod view;

pub use attributes::Attributes;
pub use content::{ContentSource, DataRange, FileContent, OpenContent, SourceId};
pub use view::TreeEntry;

use crate::error::{Error, Result};
use attributes::{OtherTimes, XattrSets};
pub(crate) use attributes::{Xattr, XattrSetId};
pub(crate) use content::StoredContent;
use entries::Entries;
pub(crate) use entries::EntryId;
use extant_format::acl::Tag;
use extant_format::inode::{LINK_MAX, can_store_rdev};
use extant_format::types::MODE_PERM_MASK;
use extant_format::{FileType, Printable, Timestamp};
use path::MAX_DEPTH;
pub(crate) use reader::{FileReader, read_file};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// Maximum length of a symlink's target, in bytes: PATH_MAX of Linux without the end mark.
const MAX_TARGET: usize = 4095;

/// Number of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct NodeId(pub u32);

impl NodeId {
    pub(crate) const ROOT: NodeId = NodeId(0);
    const NONE: NodeId = NodeId(u32::MAX);
}

/// Kind of a new entry, with the data of this kind.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EntryKind {
    /// Directory.
    Directory,
    /// Regular file.
    File(FileContent),
    /// Symlink with its target, 1 to 4095 bytes without NUL.
    Symlink(Vec<u8>),
    /// Character device: major and minor number.
    CharDevice(u32, u32),
    /// Block device: major and minor number.
    BlockDevice(u32, u32),
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
}

/// Data of a node, by its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    /// First entry, and the directory's own one.
    Directory {
        first: EntryId,
        entry: EntryId,
    },
    File {
        size: u64,
        content: StoredContent,
    },
    /// Place of the target among the tree's bytes.
    Symlink {
        start: u64,
        len: u16,
    },
    CharDevice(u32, u32),
    BlockDevice(u32, u32),
    Fifo,
    Socket,
}

/// A node: the part of an inode that sources determine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeNode {
    /// Entries that lead here.
    pub links: u32,
    /// Permissions.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Timestamp,
    pub xattrs: XattrSetId,
    pub body: Body,
}

impl TreeNode {
    pub(crate) fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }

    pub(crate) fn file_type(&self) -> FileType {
        match self.body {
            Body::Directory { .. } => FileType::Directory,
            Body::File { .. } => FileType::Regular,
            Body::Symlink { .. } => FileType::Symlink,
            Body::CharDevice(..) => FileType::CharDevice,
            Body::BlockDevice(..) => FileType::BlockDevice,
            Body::Fifo => FileType::Fifo,
            Body::Socket => FileType::Socket,
        }
    }
}

/// Returns whether entries get attributes of a full name.
type KeepsName = dyn Fn(&[u8]) -> bool + Send + Sync;

/// The tree of an image. Paths are bytes, from the image's root, with or without a leading `/`.
///
/// ```
/// use extant_image::{Attributes, FileContent, EntryKind, Tree};
///
/// # fn main() -> extant_image::Result<()> {
/// let mut tree = Tree::new();
/// let attributes = Attributes { mode: 0o644, ..Attributes::default() };
/// tree.add(b"etc/motd", &attributes, EntryKind::File(FileContent::Bytes(b"hello\n".to_vec())))?;
/// tree.hard_link(b"etc/issue", b"etc/motd")?;
/// assert!(tree.contains(b"/etc/issue"));
/// # Ok(())
/// # }
/// ```
pub struct Tree {
    entries: Entries,
    nodes: Vec<TreeNode>,
    /// Entries that are not removed.
    live: u64,
    layer: u16,
    /// Directories without entries of lower layers, but for those that lead to entries of this one.
    opaque: HashSet<NodeId>,
    /// Targets of symlinks, and content in memory.
    bytes: Vec<u8>,
    sparse: Vec<Box<[DataRange]>>,
    xattrs: XattrSets,
    times: OtherTimes,
    sources: Vec<Arc<dyn ContentSource>>,
    /// The source of content that is in the image before the tree is known.
    arrivals: Option<SourceId>,
    /// The full names of attributes that entries get; `None` for all.
    keeps_xattr: Option<Box<KeepsName>>,
}

impl Default for Tree {
    fn default() -> Self {
        Tree::new()
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree").field("entries", &self.live).finish_non_exhaustive()
    }
}

impl Tree {
    /// Makes a tree with a root only, which has the default attributes.
    pub fn new() -> Tree {
        let body = Body::Directory { first: EntryId::NONE, entry: EntryId::NONE };
        let root = TreeNode {
            links: 1,
            mode: Attributes::default().mode,
            uid: 0,
            gid: 0,
            mtime: Timestamp::default(),
            xattrs: XattrSetId::default(),
            body,
        };
        Tree {
            entries: Entries::default(),
            nodes: vec![root],
            live: 0,
            layer: 0,
            opaque: HashSet::new(),
            bytes: Vec::new(),
            sparse: Vec::new(),
            xattrs: XattrSets::default(),
            times: OtherTimes::default(),
            sources: Vec::new(),
            arrivals: None,
            keeps_xattr: None,
        }
    }

    /// Returns the source of content that a [`ContentStream`](crate::ContentStream) takes.
    pub fn add_arrivals(&mut self) -> SourceId {
        if let Some(source) = self.arrivals {
            return source;
        }
        let source = self.add_source(Arc::new(content::Written));
        self.arrivals = Some(source);
        source
    }

    /// Adds a source, to which the content of files can refer.
    pub fn add_source(&mut self, source: Arc<dyn ContentSource>) -> SourceId {
        self.sources.push(source);
        SourceId((self.sources.len() - 1) as u32)
    }

    /// Returns the number of entries, the root not counted.
    pub fn len(&self) -> u64 {
        self.live
    }

    /// Returns whether the root has no entries.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Adds an entry, with missing directories before it. A directory over a directory keeps the
    /// entries below and takes the new attributes; everything else replaces an entry of this name,
    /// with everything below it. The path of the root sets the root's attributes.
    ///
    /// # Errors
    /// [`Error::Entry`] for an entry that no image can hold: a name with NUL, `..` or more than 255
    /// bytes, a part of the path that is no directory, an attribute without a place in the format,
    /// a device number or a target that is too large.
    pub fn add(&mut self, path: &[u8], attributes: &Attributes, kind: EntryKind) -> Result<()> {
        path::check(path)?;
        let Some((parent, name)) = path::split(path) else {
            return match kind {
                EntryKind::Directory => self.set_attributes(NodeId::ROOT, path, attributes),
                _ => Err(Error::entry(path, "the root is a directory")),
            };
        };
        let parent = self.make_directory(path, parent)?;
        self.put(path, (parent, name), attributes, kind)?;
        Ok(())
    }

    /// Adds a name for an existing node. A name that is there already is replaced, as by
    /// [`Tree::add`]. A symlink at `existing` gets a second name itself.
    ///
    /// # Errors
    /// [`Error::Entry`] if nothing is at `existing`, for a directory there, for more than 65,000
    /// names, and as [`Tree::add`] for the new path.
    pub fn hard_link(&mut self, path: &[u8], existing: &[u8]) -> Result<()> {
        let shown = Printable(existing);
        let Some(node) = self.lookup(existing) else {
            return Err(Error::entry(path, format_args!("links to {shown}, which is missing")));
        };
        path::check(path)?;
        let Some((parent, name)) = path::split(path) else {
            return Err(Error::entry(path, "the root is a directory"));
        };
        if self.node(node).file_type() == FileType::Directory {
            return Err(Error::entry(path, format_args!("links to {shown}, a directory")));
        }
        let parent = self.make_directory(path, parent)?;
        if self.child(parent, name) == Some(node) {
            return Ok(());
        }
        if self.node(node).links >= LINK_MAX.into() {
            return Err(Error::entry(path, format_args!("{shown} has {LINK_MAX} names already")));
        }
        self.node_mut(node).links += 1;
        self.enter(path, (parent, name), node)
    }

    /// Gives all nodes an owner and a group.
    pub fn set_owners(&mut self, uid: u32, gid: u32) {
        for node in &mut self.nodes {
            (node.uid, node.gid) = (uid, gid);
        }
    }

    /// Maps the owners and groups of all nodes, also those in access control lists.
    ///
    /// # Errors
    /// [`Error::Entry`](crate::Error::Entry) for an access control list in which two users or two
    /// groups become one.
    pub fn map_owners(&mut self, uid: impl Fn(u32) -> u32, gid: impl Fn(u32) -> u32) -> Result<()> {
        let mapped = self.xattrs.map_lists(|tag| match tag {
            Tag::User(id) => Tag::User(uid(id)),
            Tag::Group(id) => Tag::Group(gid(id)),
            other => other,
        });
        mapped.map_err(|cause| Error::entry(b"", cause))?;
        for node in &mut self.nodes {
            (node.uid, node.gid) = (uid(node.uid), gid(node.gid));
        }
        Ok(())
    }

    /// Changes the permission bits of all nodes but symlinks, and their access control lists as
    /// chmod(2) does. `change` gets the bits, and whether the node is a directory.
    ///
    /// # Errors
    /// [`Error::Entry`](crate::Error::Entry) for more than 2^32 different sets of attributes.
    pub fn map_modes(&mut self, change: impl Fn(u16, bool) -> u16) -> Result<()> {
        for node in &mut self.nodes {
            let kind = node.file_type();
            if kind == FileType::Symlink {
                continue;
            }
            node.mode = change(node.mode, kind == FileType::Directory) & MODE_PERM_MASK;
            let set = self.xattrs.chmod(node.xattrs, node.mode);
            node.xattrs = set.map_err(|cause| Error::entry(b"", cause))?;
        }
        Ok(())
    }

    /// Leaves the extended attributes of later entries out whose full names `keeps` rejects, also
    /// names that no image can hold. Modes stay: the group's bits of a file without its access
    /// control list are those of the list's mask.
    pub fn filter_xattrs(&mut self, keeps: impl Fn(&[u8]) -> bool + Send + Sync + 'static) {
        self.keeps_xattr = Some(Box::new(keeps));
    }

    /// Replaces later times by `latest`.
    pub fn limit_times(&mut self, latest: Timestamp) {
        for node in &mut self.nodes {
            node.mtime = node.mtime.min(latest);
        }
        self.times.limit(latest);
    }

    /// Returns whether an entry is at the path. Symlinks before the last name are followed inside
    /// the image.
    pub fn contains(&self, path: &[u8]) -> bool {
        self.lookup(path).is_some()
    }

    pub(crate) fn lookup(&self, path: &[u8]) -> Option<NodeId> {
        match self.place(path).ok()? {
            Some((parent, name)) => self.child(parent, name),
            None => path::is_root(path).then_some(NodeId::ROOT),
        }
    }

    fn put(
        &mut self,
        path: &[u8],
        at: (NodeId, &[u8]),
        attributes: &Attributes,
        kind: EntryKind,
    ) -> Result<NodeId> {
        let there = self.live_entry(at.0, at.1);
        if let (Some(entry), EntryKind::Directory) = (there, &kind) {
            let node = self.entries.get(entry).node;
            if self.node(node).file_type() == FileType::Directory {
                self.set_attributes(node, path, attributes)?;
                self.entries.get_mut(entry).layer = self.layer;
                return Ok(node);
            }
        }
        let body = self.body(path, kind)?;
        let xattrs = self.intern(path, attributes)?;
        let id = u32::try_from(self.nodes.len()).ok().filter(|id| *id < u32::MAX).map(NodeId);
        let id = id.ok_or_else(|| Error::entry(path, "more than 2^32 files"))?;
        self.nodes.push(TreeNode {
            links: 1,
            mode: attributes.mode & MODE_PERM_MASK,
            uid: attributes.uid,
            gid: attributes.gid,
            mtime: attributes.mtime,
            xattrs,
            body,
        });
        self.times.set(id, attributes);
        self.enter(path, at, id)?;
        Ok(id)
    }

    fn set_attributes(&mut self, id: NodeId, path: &[u8], attributes: &Attributes) -> Result<()> {
        let xattrs = self.intern(path, attributes)?;
        let node = self.node_mut(id);
        node.mode = attributes.mode & MODE_PERM_MASK;
        (node.uid, node.gid, node.mtime) = (attributes.uid, attributes.gid, attributes.mtime);
        node.xattrs = xattrs;
        self.times.set(id, attributes);
        Ok(())
    }

    fn intern(&mut self, path: &[u8], attributes: &Attributes) -> Result<XattrSetId> {
        let keeps = |name: &[u8]| self.keeps_xattr.as_ref().is_none_or(|keeps| keeps(name));
        let list = attributes.xattrs.iter().filter(|(name, _)| keeps(name));
        self.xattrs.intern(list).map_err(|cause| Error::entry(path, cause))
    }

    /// Makes the node the one of this name, in place of another.
    fn enter(&mut self, path: &[u8], (parent, name): (NodeId, &[u8]), node: NodeId) -> Result<()> {
        let full = || Error::entry(path, "the names of the tree exceed 4 GiB");
        let entry = match self.entries.find(parent, name) {
            Some(entry) => {
                self.replace(entry, node);
                entry
            }
            None => {
                let Body::Directory { first, .. } = self.node(parent).body else {
                    return Err(Error::entry(path, "a part of the path is no directory"));
                };
                if self.node(node).is_directory() && !self.is_within_depth(parent) {
                    let cause = format_args!("more than {MAX_DEPTH} directories in directories");
                    return Err(Error::entry(path, cause));
                }
                let added = self.entries.push((parent, name), node, self.layer, first);
                let added = added.ok_or_else(full)?;
                if let Body::Directory { first, .. } = &mut self.node_mut(parent).body {
                    *first = added;
                }
                added
            }
        };
        self.live += 1;
        if let Body::Directory { entry: own, .. } = &mut self.node_mut(node).body {
            *own = entry;
        }
        Ok(())
    }

    /// Gives an entry, removed or not, another node.
    fn replace(&mut self, entry: EntryId, node: NodeId) {
        let old = self.entries.get(entry).node;
        if old != NodeId::NONE {
            self.clear(old);
            let old = self.node_mut(old);
            old.links = old.links.saturating_sub(1);
            self.live -= 1;
        }
        let layer = self.layer;
        let entry = self.entries.get_mut(entry);
        (entry.node, entry.layer) = (node, layer);
    }

    fn body(&mut self, path: &[u8], kind: EntryKind) -> Result<Body> {
        let device = |major, minor| {
            if can_store_rdev((major, minor)) {
                return Ok((major, minor));
            }
            let cause = "exceeds 12 bits, or 20 for the minor number";
            Err(Error::entry(path, format_args!("the device {major}:{minor} {cause}")))
        };
        Ok(match kind {
            EntryKind::Directory => Body::Directory { first: EntryId::NONE, entry: EntryId::NONE },
            EntryKind::File(content) => self.file(path, content)?,
            EntryKind::Symlink(target) => self.symlink(path, &target)?,
            EntryKind::CharDevice(major, minor) => {
                let (major, minor) = device(major, minor)?;
                Body::CharDevice(major, minor)
            }
            EntryKind::BlockDevice(major, minor) => {
                let (major, minor) = device(major, minor)?;
                Body::BlockDevice(major, minor)
            }
            EntryKind::Fifo => Body::Fifo,
            EntryKind::Socket => Body::Socket,
        })
    }

    fn symlink(&mut self, path: &[u8], target: &[u8]) -> Result<Body> {
        if target.is_empty() || target.contains(&0) || target.len() > MAX_TARGET {
            let cause = "the target of a symlink must have 1 to 4095 bytes without NUL";
            return Err(Error::entry(path, cause));
        }
        Ok(Body::Symlink { start: self.keep(target), len: target.len() as u16 })
    }

    fn file(&mut self, path: &[u8], content: FileContent) -> Result<Body> {
        let (size, content) = match content {
            FileContent::Zeroes { size } => (size, StoredContent::Hole),
            FileContent::Bytes(bytes) if bytes.is_empty() => (0, StoredContent::Hole),
            FileContent::Bytes(bytes) => {
                (bytes.len() as u64, StoredContent::Bytes(self.keep(&bytes)))
            }
            FileContent::Whole { size: 0, .. } => (0, StoredContent::Hole),
            FileContent::Whole { source, position, size } => {
                (size, StoredContent::Whole { source, position })
            }
            FileContent::Sparse { source, size, ranges } => {
                if !content::are_valid(&ranges, size) {
                    let cause = "ranges of data overlap, or do not lie in the file";
                    return Err(Error::entry(path, cause));
                }
                (size, self.keep_ranges(source, ranges))
            }
        };
        Ok(Body::File { size, content })
    }

    fn keep_ranges(&mut self, source: SourceId, ranges: Vec<DataRange>) -> StoredContent {
        if ranges.is_empty() {
            return StoredContent::Hole;
        }
        self.sparse.push(ranges.into());
        // A node is added for each, and nodes have 32-bit numbers.
        StoredContent::Sparse { source, index: (self.sparse.len() - 1) as u32 }
    }

    fn keep(&mut self, bytes: &[u8]) -> u64 {
        let start = self.bytes.len() as u64;
        self.bytes.extend_from_slice(bytes);
        start
    }

    pub(crate) fn node(&self, id: NodeId) -> &TreeNode {
        &self.nodes[id.0 as usize]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut TreeNode {
        &mut self.nodes[id.0 as usize]
    }

    pub(crate) fn target(&self, id: NodeId) -> &[u8] {
        match self.node(id).body {
            Body::Symlink { start, len } => self.stored(start, len.into()),
            _ => &[],
        }
    }

    pub(crate) fn source(&self, id: SourceId) -> &dyn ContentSource {
        &*self.sources[id.0 as usize]
    }

    /// Returns bytes that the tree keeps.
    pub(crate) fn stored(&self, start: u64, len: u64) -> &[u8] {
        self.bytes.get(start as usize..(start + len) as usize).unwrap_or_default()
    }

    fn live_entry(&self, parent: NodeId, name: &[u8]) -> Option<EntryId> {
        let entry = self.entries.find(parent, name)?;
        (self.entries.get(entry).node != NodeId::NONE).then_some(entry)
    }

    fn child(&self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        self.live_entry(parent, name).map(|entry| self.entries.get(entry).node)
    }
}
