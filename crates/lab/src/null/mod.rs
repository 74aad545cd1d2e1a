//! A FUSE server without content: it keeps names and attributes in memory, discards writes and
//! reads zeroes.
//!
//! It is mounted as Extant is (the same flags, times to live and threads), so its rates are the
//! limits of FUSE itself.

mod tree;

use extant_engine::{FileType, NodeKind, SetAttr, TimeSet};
use extant_fuse::MountOptions;
use extant_fuse::bare::{
    Answer, Change, CreateMode, Credentials, Data, Entry, ErrorCode, FileAttr, Handler, Listed,
    NodeId, Wants, WriteRequest,
};
use std::sync::Arc;
use std::time::Duration;
use tree::{Node, Tree, now};

/// As long as the server of Extant lets the kernel keep things.
const TIME_TO_LIVE: Duration = Duration::from_secs(86_400);

/// Content of each read.
static ZEROES: [u8; 4 << 20] = [0; 4 << 20];

/// The server. Clones share their tree, which thus outlives a mount.
#[derive(Clone, Debug)]
pub struct NullServer {
    tree: Arc<Tree>,
    writeback: bool,
    acl: bool,
}

impl NullServer {
    /// Makes an empty tree, to be mounted with these options.
    pub fn new(options: &MountOptions) -> NullServer {
        NullServer {
            tree: Arc::new(Tree::new()),
            writeback: options.writeback_cache,
            acl: options.acl,
        }
    }

    fn new_node(
        &self,
        credentials: Credentials,
        kind: FileType,
        mode: CreateMode,
        target: &[u8],
    ) -> Arc<Node> {
        let permissions = (mode.bits & 0o7777) as u16;
        let owner = (credentials.uid, credentials.gid);
        Node::new(self.tree.new_number(), kind, permissions, owner, target)
    }

    fn add(&self, at: (NodeId, &[u8]), node: Arc<Node>) -> Answer<Entry> {
        self.tree.add(at.0.0, at.1, node).map(|node| entry(&node))
    }
}

fn entry(node: &Node) -> Entry {
    Entry { attr: node.attr(), generation: 1 }
}

fn change(attr: &mut FileAttr, set: &SetAttr) {
    attr.perm = set.mode.unwrap_or(attr.perm);
    attr.uid = set.uid.unwrap_or(attr.uid);
    attr.gid = set.gid.unwrap_or(attr.gid);
    attr.size = set.size.unwrap_or(attr.size);
    attr.ctime = set.ctime.unwrap_or(attr.ctime);
    match set.mtime {
        Some(TimeSet::At(t)) => attr.mtime = t,
        Some(TimeSet::Now) => attr.mtime = now(),
        None => {}
    }
}

impl Handler for NullServer {
    fn wants(&self) -> Wants {
        Wants { writeback: self.writeback, acl: self.acl, id_maps: false }
    }

    fn time_to_live(&self) -> Duration {
        TIME_TO_LIVE
    }

    fn lookup(&self, parent: NodeId, name: &[u8]) -> Answer<Option<Entry>> {
        match self.tree.child(parent.0, name) {
            Err(ErrorCode::ENOENT) => Ok(None),
            found => found.map(|node| Some(entry(&node))),
        }
    }

    fn forget(&self, ino: NodeId, _lookups: u64) {
        self.tree.forget(ino.0);
    }

    fn attr(&self, ino: NodeId, _open: bool) -> Answer<FileAttr> {
        self.tree.node(ino.0).map(|node| node.attr())
    }

    fn set_attr(
        &self,
        _who: Credentials,
        ino: NodeId,
        Change { set, .. }: Change,
    ) -> Answer<(FileAttr, Duration)> {
        let attr = self.tree.node(ino.0)?.change(|attr| change(attr, &set));
        Ok((attr, self.time_to_live()))
    }

    fn read_link(&self, ino: NodeId) -> Answer<Vec<u8>> {
        self.tree.node(ino.0).map(|node| node.target().to_vec())
    }

    fn make(
        &self,
        credentials: Credentials,
        at: (NodeId, &[u8]),
        mode: CreateMode,
        what: NodeKind<'_>,
    ) -> Answer<Entry> {
        let (kind, target): (_, &[u8]) = match what {
            NodeKind::Dir => (FileType::Directory, b""),
            NodeKind::Symlink(target) => (FileType::Symlink, target),
            _ => (FileType::Regular, b""),
        };
        self.add(at, self.new_node(credentials, kind, mode, target))
    }

    fn create(
        &self,
        credentials: Credentials,
        at: (NodeId, &[u8]),
        mode: CreateMode,
        _flags: i32,
    ) -> Answer<Entry> {
        self.add(at, self.new_node(credentials, FileType::Regular, mode, b""))
    }

    fn unlink(&self, parent: NodeId, name: &[u8]) -> Answer<()> {
        self.tree.remove(parent.0, name)
    }

    fn rmdir(&self, parent: NodeId, name: &[u8]) -> Answer<()> {
        self.tree.remove(parent.0, name)
    }

    fn rename(
        &self,
        _who: Credentials,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        _flags: u32,
    ) -> Answer<()> {
        self.tree.rename(from.0.0, from.1, to.0.0, to.1)
    }

    fn open(&self, _ino: NodeId, _flags: i32) -> Answer<()> {
        Ok(())
    }

    fn release(&self, _ino: NodeId, _flags: i32) -> Answer<()> {
        Ok(())
    }

    fn read(&self, ino: NodeId, offset: u64, buf: &mut [u8]) -> Answer<Data> {
        let end = self.tree.node(ino.0).map_or(0, |node| node.attr().size);
        let len = end.saturating_sub(offset).min(buf.len() as u64) as usize;
        Ok(Data::Elsewhere(&ZEROES[..len.min(ZEROES.len())]))
    }

    fn write(&self, _who: Credentials, ino: NodeId, write: WriteRequest<'_>) -> Answer<usize> {
        let len = write.data.len();
        if let Ok(node) = self.tree.node(ino.0) {
            node.change(|attr| attr.size = attr.size.max(write.offset + len as u64));
        }
        Ok(len)
    }

    fn fsync(&self, _ino: NodeId, _datasync: bool) -> Answer<()> {
        Ok(())
    }

    fn fsync_waits(&self) -> bool {
        false
    }

    fn list(&self, ino: NodeId, from: u64, each: &mut dyn FnMut(Listed<'_>) -> bool) -> Answer<()> {
        self.tree.list(ino.0, from, |number, next, node, name| {
            each(Listed { ino: NodeId(number), next, kind: node.attr().kind, name })
        })
    }

    fn list_plus(
        &self,
        ino: NodeId,
        from: u64,
        each: &mut dyn FnMut(Listed<'_>, Option<&Entry>) -> bool,
    ) -> Answer<()> {
        self.tree.list(ino.0, from, |number, next, node, name| {
            let found = entry(node);
            each(Listed { ino: NodeId(number), next, kind: found.attr.kind, name }, Some(&found))
        })
    }

    fn xattr(&self, _ino: NodeId, _name: &[u8]) -> Answer<Vec<u8>> {
        Err(ErrorCode::ENODATA)
    }
}
