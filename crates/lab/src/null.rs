//! A FUSE server without content: it keeps names and attributes in memory, discards writes and
//! reads zeroes.
//!
//! It is mounted as Extant is (the same flags, times to live and threads), so its rates are the
//! limits of FUSE itself.

use extant_engine::{FileType, NodeKind, SetAttr, TimeSet, Timestamp};
use extant_fuse::MountOptions;
use extant_fuse::bare::{
    Answer, Change, CreateMode, Credentials, Data, Entry, ErrorCode, FileAttr, Handler, Listed,
    NodeId, Wants, WriteRequest,
};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
        self.tree.node(ino.0).map(|node| node.target.to_vec())
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
        let permissions = (mode.bits & 0o7777) as u16;
        let owner = (credentials.uid, credentials.gid);
        let node = Node::new(self.tree.new_number(), kind, permissions, owner, target);
        self.tree.add(at.0.0, at.1, node).map(|node| entry(&node))
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
        self.tree.remove(parent.0, name)
    }

    fn rmdir(&self, parent: NodeId, name: &[u8]) -> Answer<()> {
        self.unlink(parent, name)
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

    fn release(&self, _ino: NodeId, _descriptor: u64, _flags: i32) -> Answer<()> {
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
        self.tree.list(ino.0, from, |number, next, node, name| {
            let found = entry(node);
            each(Listed { ino: NodeId(number), next, kind: found.attr.kind, name }, Some(&found))
        })
    }

    fn xattr(&self, _ino: NodeId, _name: &[u8]) -> Answer<Vec<u8>> {
        Err(ErrorCode::ENODATA)
    }
}

const SHARDS: u64 = 64;

/// The root's number in the protocol.
const ROOT: u64 = 1;

/// Cookies of the dots; those of names follow.
const DOT: u64 = 1;
const DOTDOT: u64 = 2;

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the current time.
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::new(since.as_secs() as i64, since.subsec_nanos())
}

/// Content of a directory.
#[derive(Debug, Default)]
struct Children {
    by_name: HashMap<Arc<[u8]>, (u64, Arc<Node>)>,
    by_cookie: BTreeMap<u64, (Arc<[u8]>, Arc<Node>)>,
    last: u64,
}

impl Children {
    fn insert(&mut self, name: &[u8], node: Arc<Node>) {
        self.last = self.last.max(DOTDOT) + 1;
        let name: Arc<[u8]> = name.into();
        self.by_cookie.insert(self.last, (name.clone(), node.clone()));
        self.by_name.insert(name, (self.last, node));
    }

    fn remove(&mut self, name: &[u8]) -> Option<Arc<Node>> {
        let (cookie, node) = self.by_name.remove(name)?;
        self.by_cookie.remove(&cookie);
        Some(node)
    }
}

/// An inode.
#[derive(Debug)]
pub struct Node {
    number: u64,
    attr: Mutex<FileAttr>,
    children: RwLock<Children>,
    /// Where it leads, for a symlink.
    target: Box<[u8]>,
}

impl Node {
    /// Makes a node of its own.
    pub fn new(
        number: u64,
        kind: FileType,
        perm: u16,
        (uid, gid): (u32, u32),
        target: &[u8],
    ) -> Arc<Node> {
        let now = now();
        let attr = FileAttr {
            ino: NodeId(number),
            size: target.len() as u64,
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
        let (attr, children) = (Mutex::new(attr), RwLock::default());
        Arc::new(Node { number, attr, children, target: target.into() })
    }

    fn locked(&self) -> MutexGuard<'_, FileAttr> {
        self.attr.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn attr(&self) -> FileAttr {
        *self.locked()
    }

    /// Changes the attributes, and returns them.
    pub fn change(&self, change: impl FnOnce(&mut FileAttr)) -> FileAttr {
        let mut attr = self.locked();
        change(&mut attr);
        *attr
    }
}

/// All inodes.
#[derive(Debug)]
pub struct Tree {
    shards: Vec<RwLock<HashMap<u64, Arc<Node>>>>,
    last: AtomicU64,
}

impl Tree {
    /// Makes an empty root.
    pub fn new() -> Tree {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        let tree = Tree { shards, last: AtomicU64::new(ROOT) };
        tree.keep(Node::new(ROOT, FileType::Directory, 0o755, (0, 0), b""));
        tree
    }

    fn shard(&self, number: u64) -> &RwLock<HashMap<u64, Arc<Node>>> {
        &self.shards[(number % SHARDS) as usize]
    }

    fn keep(&self, node: Arc<Node>) {
        write(self.shard(node.number)).insert(node.number, node);
    }

    /// Returns a number that was never used.
    pub fn new_number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub fn node(&self, number: u64) -> Result<Arc<Node>, ErrorCode> {
        read(self.shard(number)).get(&number).cloned().ok_or(ErrorCode::ESTALE)
    }

    pub fn child(&self, parent: u64, name: &[u8]) -> Result<Arc<Node>, ErrorCode> {
        let parent = self.node(parent)?;
        let children = read(&parent.children);
        children.by_name.get(name).map(|(_, node)| node.clone()).ok_or(ErrorCode::ENOENT)
    }

    /// Gives a new node its name.
    pub fn add(&self, parent: u64, name: &[u8], node: Arc<Node>) -> Result<Arc<Node>, ErrorCode> {
        let parent = self.node(parent)?;
        let mut children = write(&parent.children);
        if children.by_name.contains_key(name) {
            return Err(ErrorCode::EEXIST);
        }
        children.insert(name, node.clone());
        drop(children);
        self.keep(node.clone());
        Ok(node)
    }

    /// Removes a name and its inode; a directory must be empty.
    pub fn remove(&self, parent: u64, name: &[u8]) -> Result<(), ErrorCode> {
        let parent = self.node(parent)?;
        let mut children = write(&parent.children);
        let (_, node) = children.by_name.get(name).ok_or(ErrorCode::ENOENT)?;
        if !read(&node.children).by_name.is_empty() {
            return Err(ErrorCode::ENOTEMPTY);
        }
        let node = children.remove(name).ok_or(ErrorCode::ENOENT)?;
        node.locked().nlink = 0;
        Ok(())
    }

    /// The kernel remembers a node no more: if it has no name either, it goes.
    pub fn forget(&self, number: u64) {
        if self.node(number).is_ok_and(|node| node.locked().nlink == 0) {
            write(self.shard(number)).remove(&number);
        }
    }

    /// Moves a name.
    pub fn rename(&self, from: u64, name: &[u8], to: u64, new: &[u8]) -> Result<(), ErrorCode> {
        let (from, to) = (self.node(from)?, self.node(to)?);
        let node = write(&from.children).remove(name).ok_or(ErrorCode::ENOENT)?;
        let mut children = write(&to.children);
        if let Some(old) = children.remove(new) {
            old.locked().nlink = 0;
        }
        children.insert(new, node);
        Ok(())
    }

    /// Hands out number, next cookie, node and name of each entry behind a cookie, until `each`
    /// returns false.
    pub fn list(
        &self,
        dir: u64,
        cookie: u64,
        mut each: impl FnMut(u64, u64, &Node, &[u8]) -> bool,
    ) -> Result<(), ErrorCode> {
        let node = self.node(dir)?;
        for (dots, name) in [(DOT, b"." as &[u8]), (DOTDOT, b"..")] {
            if cookie < dots && !each(dir, dots, &node, name) {
                return Ok(());
            }
        }
        let behind = (Bound::Excluded(cookie.max(DOTDOT)), Bound::Unbounded);
        for (cookie, (name, child)) in read(&node.children).by_cookie.range(behind) {
            if !each(child.number, *cookie, child, name) {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(tree: &Tree) -> Arc<Node> {
        Node::new(tree.new_number(), FileType::Regular, 0o644, (0, 0), b"")
    }

    fn names(tree: &Tree, from: u64, most: usize) -> (Vec<Vec<u8>>, u64) {
        let (mut names, mut last) = (Vec::new(), from);
        let listed = tree.list(ROOT, from, |_, next, _, name| {
            if names.len() == most {
                return false;
            }
            names.push(name.to_vec());
            last = next;
            true
        });
        assert!(listed.is_ok());
        (names, last)
    }

    #[test]
    fn names_come_and_go() {
        let tree = Tree::new();
        assert!(tree.add(ROOT, b"a", file(&tree)).is_ok());
        assert!(tree.add(ROOT, b"a", file(&tree)).is_err());
        assert!(tree.rename(ROOT, b"a", ROOT, b"b").is_ok());
        assert!(tree.child(ROOT, b"a").is_err());
        let number = tree.child(ROOT, b"b").expect("it is there").number;
        assert!(tree.remove(ROOT, b"b").is_ok());
        assert!(tree.node(number).is_ok());
        tree.forget(number);
        assert!(tree.node(number).is_err());
    }

    #[test]
    fn listing_goes_on_where_it_stopped() {
        let tree = Tree::new();
        for name in [b"a", b"b", b"c"] {
            assert!(tree.add(ROOT, name, file(&tree)).is_ok());
        }
        let (first, cookie) = names(&tree, 0, 3);
        let (rest, _) = names(&tree, cookie, 9);
        assert_eq!(
            [first, rest].concat(),
            [b".".to_vec(), b"..".to_vec(), b"a".to_vec(), b"b".to_vec(), b"c".to_vec()]
        );
    }
}
