//! A FUSE server without content: it keeps names and attributes in memory, discards writes and
//! reads zeroes.
//!
//! It is mounted as Extant is (the same flags, times to live and threads), so its rates are the
//! limits of FUSE itself.

use extant_engine::{Clock, FileType, NodeKind, SystemClock, TimeSet};
use extant_fuse::MountOptions;
use extant_fuse::bare::{
    Answer, Change, CreateMode, Credentials, Data, Entry, ErrorCode, FileAttr, Handler, Listed,
    NodeId, Wants, WriteRequest,
};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// As long as the server of Extant lets the kernel keep things.
const TIME_TO_LIVE: Duration = Duration::from_secs(86_400);

/// Content of each read.
static ZEROES: [u8; 4 << 20] = [0; 4 << 20];

/// Shards of the table of inodes.
const SHARDS: usize = 64;

/// The root's number in the protocol.
const ROOT: NodeId = NodeId(1);

/// Cookies of the dots; those of names follow.
const DOT: u64 = 1;
const DOTDOT: u64 = 2;

/// The server. Clones share their inodes, which thus outlive a mount.
#[derive(Clone, Debug)]
pub struct NullServer {
    nodes: Arc<[RwLock<Nodes>; SHARDS]>,
    /// The last number that was given to an inode.
    last: Arc<AtomicU64>,
    writeback: bool,
    acl: bool,
}

type Nodes = HashMap<NodeId, Arc<Node>>;

/// An inode.
#[derive(Debug)]
struct Node {
    attr: Mutex<FileAttr>,
    children: RwLock<Children>,
}

/// Content of a directory.
#[derive(Debug, Default)]
struct Children {
    by_name: HashMap<Arc<[u8]>, (u64, Arc<Node>)>,
    by_cookie: BTreeMap<u64, (Arc<[u8]>, Arc<Node>)>,
    last: u64,
}

impl NullServer {
    /// Makes an empty root, to be mounted with these options.
    pub fn new(options: &MountOptions) -> NullServer {
        let server = NullServer {
            nodes: Arc::new(std::array::from_fn(|_| RwLock::default())),
            last: Arc::new(AtomicU64::new(ROOT.0)),
            writeback: options.writeback_cache,
            acl: options.acl,
        };
        server.keep(&Node::new(ROOT, FileType::Directory, 0o755, (0, 0)));
        server
    }

    fn shard(&self, ino: NodeId) -> &RwLock<Nodes> {
        &self.nodes[ino.0 as usize % SHARDS]
    }

    fn keep(&self, node: &Arc<Node>) {
        let ino = node.attr.lock().ino;
        self.shard(ino).write().insert(ino, node.clone());
    }

    fn node(&self, ino: NodeId) -> Answer<Arc<Node>> {
        self.shard(ino).read().get(&ino).cloned().ok_or(ErrorCode::ESTALE)
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
        let parent = self.node(parent)?;
        Ok(parent.children.read().by_name.get(name).map(|(_, node)| node.entry()))
    }

    /// The kernel remembers a node no more: if it has no name either, it goes.
    fn forget(&self, ino: NodeId, _lookups: u64) {
        if self.node(ino).is_ok_and(|node| node.attr.lock().nlink == 0) {
            self.shard(ino).write().remove(&ino);
        }
    }

    fn attr(&self, ino: NodeId, _open: bool) -> Answer<FileAttr> {
        self.node(ino).map(|node| *node.attr.lock())
    }

    fn set_attr(
        &self,
        _who: Credentials,
        ino: NodeId,
        Change { set, .. }: Change,
    ) -> Answer<(FileAttr, Duration)> {
        let node = self.node(ino)?;
        let mut attr = node.attr.lock();
        attr.perm = set.mode.unwrap_or(attr.perm);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.size = set.size.unwrap_or(attr.size);
        attr.ctime = set.ctime.unwrap_or(attr.ctime);
        match set.mtime {
            Some(TimeSet::At(time)) => attr.mtime = time,
            Some(TimeSet::Now) => attr.mtime = SystemClock.now(),
            None => {}
        }
        Ok((*attr, TIME_TO_LIVE))
    }

    /// No workload follows a symlink.
    fn read_link(&self, _ino: NodeId) -> Answer<Vec<u8>> {
        Err(ErrorCode::ENOSYS)
    }

    fn make(
        &self,
        credentials: Credentials,
        (parent, name): (NodeId, &[u8]),
        mode: CreateMode,
        what: NodeKind<'_>,
    ) -> Answer<Entry> {
        let kind = match what {
            NodeKind::Dir => FileType::Directory,
            NodeKind::Symlink(_) => FileType::Symlink,
            _ => FileType::Regular,
        };
        let parent = self.node(parent)?;
        let ino = NodeId(self.last.fetch_add(1, Ordering::Relaxed) + 1);
        let permissions = (mode.bits & 0o7777) as u16;
        let node = Node::new(ino, kind, permissions, (credentials.uid, credentials.gid));
        let mut children = parent.children.write();
        if children.by_name.contains_key(name) {
            return Err(ErrorCode::EEXIST);
        }
        children.insert(name, node.clone());
        drop(children);
        self.keep(&node);
        Ok(node.entry())
    }

    fn create(
        &self,
        credentials: Credentials,
        at: (NodeId, &[u8]),
        mode: CreateMode,
        _flags: i32,
    ) -> Answer<Entry> {
        self.make(credentials, at, mode, NodeKind::File)
    }

    fn unlink(&self, parent: NodeId, name: &[u8]) -> Answer<()> {
        let parent = self.node(parent)?;
        let mut children = parent.children.write();
        let (_, node) = children.by_name.get(name).ok_or(ErrorCode::ENOENT)?;
        if !node.children.read().by_name.is_empty() {
            return Err(ErrorCode::ENOTEMPTY);
        }
        children.remove(name)?.attr.lock().nlink = 0;
        Ok(())
    }

    fn rmdir(&self, parent: NodeId, name: &[u8]) -> Answer<()> {
        self.unlink(parent, name)
    }

    /// No workload renames on this side.
    fn rename(
        &self,
        _who: Credentials,
        _from: (NodeId, &[u8]),
        _to: (NodeId, &[u8]),
        _flags: u32,
    ) -> Answer<()> {
        Err(ErrorCode::ENOSYS)
    }

    fn open(&self, _ino: NodeId, _flags: i32) -> Answer<()> {
        Ok(())
    }

    fn release(&self, _ino: NodeId, _descriptor: u64, _flags: i32) -> Answer<()> {
        Ok(())
    }

    fn read(&self, ino: NodeId, offset: u64, buf: &mut [u8]) -> Answer<Data> {
        let end = self.node(ino).map_or(0, |node| node.attr.lock().size);
        let len = end.saturating_sub(offset).min(buf.len() as u64) as usize;
        Ok(Data::Elsewhere(&ZEROES[..len.min(ZEROES.len())]))
    }

    fn write(&self, _who: Credentials, ino: NodeId, write: WriteRequest<'_>) -> Answer<usize> {
        let len = write.data.len();
        if let Ok(node) = self.node(ino) {
            let mut attr = node.attr.lock();
            attr.size = attr.size.max(write.offset + len as u64);
        }
        Ok(len)
    }

    fn fsync(&self, _ino: NodeId, _descriptor: u64, _datasync: bool) -> Answer<()> {
        Ok(())
    }

    fn fsync_waits(&self) -> bool {
        false
    }

    fn list(&self, ino: NodeId, from: u64, each: &mut dyn FnMut(Listed<'_>) -> bool) -> Answer<()> {
        self.list_plus(ino, from, &mut |listed, _| each(listed))
    }

    fn list_plus(
        &self,
        ino: NodeId,
        from: u64,
        each: &mut dyn FnMut(Listed<'_>, Option<&Entry>) -> bool,
    ) -> Answer<()> {
        let dir = self.node(ino)?;
        let mut list = |next: u64, node: &Node, name: &[u8]| {
            let entry = node.entry();
            let FileAttr { ino, kind, .. } = entry.attr;
            each(Listed { ino, next, kind, name }, Some(&entry))
        };
        for (dots, name) in [(DOT, b"." as &[u8]), (DOTDOT, b"..")] {
            if from < dots && !list(dots, &dir, name) {
                return Ok(());
            }
        }
        let behind = (Bound::Excluded(from.max(DOTDOT)), Bound::Unbounded);
        for (cookie, (name, child)) in dir.children.read().by_cookie.range(behind) {
            if !list(*cookie, child, name) {
                break;
            }
        }
        Ok(())
    }

    fn xattr(&self, _ino: NodeId, _name: &[u8]) -> Answer<Vec<u8>> {
        Err(ErrorCode::ENODATA)
    }
}

impl Children {
    fn insert(&mut self, name: &[u8], node: Arc<Node>) {
        self.last = self.last.max(DOTDOT) + 1;
        let name: Arc<[u8]> = name.into();
        self.by_cookie.insert(self.last, (name.clone(), node.clone()));
        self.by_name.insert(name, (self.last, node));
    }

    fn remove(&mut self, name: &[u8]) -> Answer<Arc<Node>> {
        let (cookie, node) = self.by_name.remove(name).ok_or(ErrorCode::ENOENT)?;
        self.by_cookie.remove(&cookie);
        Ok(node)
    }
}

impl Node {
    fn new(ino: NodeId, kind: FileType, perm: u16, (uid, gid): (u32, u32)) -> Arc<Node> {
        let now = SystemClock.now();
        let attr = FileAttr {
            ino,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            kind,
            perm,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid,
            gid,
            rdev: 0,
            blksize: 4096,
        };
        Arc::new(Node { attr: Mutex::new(attr), children: RwLock::default() })
    }

    fn entry(&self) -> Entry {
        Entry { attr: *self.attr.lock(), generation: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: Credentials = Credentials { uid: 0, gid: 0, pid: 1 };

    fn create(server: &NullServer, name: &[u8]) -> Answer<NodeId> {
        let mode = CreateMode { bits: 0o644, umask: 0 };
        server.create(WHO, (ROOT, name), mode, 0).map(|entry| entry.attr.ino)
    }

    fn names(server: &NullServer, from: u64, most: usize) -> (Vec<Vec<u8>>, u64) {
        let (mut names, mut last) = (Vec::new(), from);
        let listed = server.list(ROOT, from, &mut |listed| {
            if names.len() == most {
                return false;
            }
            names.push(listed.name.to_vec());
            last = listed.next;
            true
        });
        assert!(listed.is_ok());
        (names, last)
    }

    #[test]
    fn names_come_and_go() {
        let server = NullServer::new(&MountOptions::default());
        let ino = create(&server, b"a").expect("a file");
        assert!(create(&server, b"a").is_err());
        let found = || server.lookup(ROOT, b"a").expect("the root").map(|e| e.attr.ino);
        assert_eq!(found(), Some(ino));
        assert!(server.unlink(ROOT, b"a").is_ok());
        assert_eq!(found(), None);
        assert!(server.attr(ino, true).is_ok());
        server.forget(ino, 1);
        assert!(server.attr(ino, true).is_err());
    }

    #[test]
    fn listing_goes_on_where_it_stopped() {
        let server = NullServer::new(&MountOptions::default());
        [b"a", b"b", b"c"].iter().for_each(|name| assert!(create(&server, *name).is_ok()));
        let (first, cookie) = names(&server, 0, 3);
        let (rest, _) = names(&server, cookie, 9);
        assert_eq!([first, rest].concat(), [&b"."[..], b"..", b"a", b"b", b"c"]);
    }
}
