//! A FUSE server that does nothing: names and attributes in memory, writes thrown away, zeroes read.
//!
//! It is mounted as Extant is (the same flags, times to live and threads), so its rates are what FUSE itself leaves.

mod tree;

use extant_fuse::{MountOptions, bare};
use fuser::*;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tree::{Node, Tree};

/// As long as the server of Extant lets the kernel keep things.
const TIME_TO_LIVE: Duration = Duration::from_secs(86_400);

/// What reads hand out.
static ZEROES: [u8; 4 << 20] = [0; 4 << 20];

/// The server. Clones share their tree, which thus outlives a mount.
#[derive(Clone, Debug)]
pub struct NullServer {
    tree: Arc<Tree>,
    writeback: bool,
    acl: bool,
}

impl NullServer {
    /// An empty tree, to be mounted with these options.
    pub fn new(options: &MountOptions) -> NullServer {
        NullServer { tree: Arc::new(Tree::new()), writeback: options.writeback_cache, acl: options.acl }
    }

    fn make(&self, req: &Request, parent: INodeNo, name: &OsStr, kind: FileType, mode: u32, to: &[u8]) -> Outcome {
        let perm = (mode & 0o7777) as u16;
        let node = Node::new(self.tree.new_number(), kind, perm, (req.uid(), req.gid()), to);
        self.tree.add(parent.0, name.as_bytes(), node)
    }
}

type Outcome = Result<Arc<Node>, Errno>;

fn entry(outcome: Outcome, reply: ReplyEntry) {
    match outcome {
        Ok(node) => reply.entry(&TIME_TO_LIVE, &node.attr(), Generation(1)),
        Err(e) => reply.error(e),
    }
}

fn empty(outcome: Result<(), Errno>, reply: ReplyEmpty) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}

impl Filesystem for NullServer {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        bare::negotiate(config, self.writeback, self.acl);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.tree.child(parent.0, name.as_bytes()) {
            // As a negative entry that the kernel keeps.
            Err(e) if e.code() == Errno::ENOENT.code() => {
                let mut none = Node::new(0, FileType::RegularFile, 0, (0, 0), b"").attr();
                none.nlink = 0;
                reply.entry(&TIME_TO_LIVE, &none, Generation(0));
            }
            found => entry(found, reply),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, _nlookup: u64) {
        self.tree.forget(ino.0);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.tree.node(ino.0) {
            Ok(node) => reply.attr(&TIME_TO_LIVE, &node.attr()),
            Err(e) => reply.error(e),
        }
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changed = self.tree.node(ino.0).map(|node| {
            node.change(|attr| {
                attr.perm = mode.map_or(attr.perm, |m| (m & 0o7777) as u16);
                attr.uid = uid.unwrap_or(attr.uid);
                attr.gid = gid.unwrap_or(attr.gid);
                attr.size = size.unwrap_or(attr.size);
                attr.ctime = ctime.unwrap_or(attr.ctime);
                match mtime {
                    Some(TimeOrNow::SpecificTime(t)) => attr.mtime = t,
                    Some(TimeOrNow::Now) => attr.mtime = SystemTime::now(),
                    None => {}
                }
            })
        });
        match changed {
            Ok(attr) => reply.attr(&TIME_TO_LIVE, &attr),
            Err(e) => reply.error(e),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.tree.node(ino.0) {
            Ok(node) => reply.data(node.target()),
            Err(e) => reply.error(e),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        entry(self.make(req, parent, name, FileType::RegularFile, mode, b""), reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        entry(self.make(req, parent, name, FileType::Directory, mode, b""), reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let to = target.as_os_str().as_bytes();
        entry(self.make(req, parent, name, FileType::Symlink, 0o777, to), reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.tree.remove(parent.0, name.as_bytes()), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.tree.remove(parent.0, name.as_bytes()), reply);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        empty(self.tree.rename(parent.0, name.as_bytes(), newparent.0, newname.as_bytes()), reply);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        match self.make(req, parent, name, FileType::RegularFile, mode, b"") {
            Ok(node) => reply.created(&TIME_TO_LIVE, &node.attr(), Generation(1), FileHandle(0), bare::open_flags()),
            Err(e) => reply.error(e),
        }
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), bare::open_flags());
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // The kernel then stops asking.
        reply.error(Errno::ENOSYS);
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock: LockOwner, reply: ReplyEmpty) {
        // The kernel then stops asking.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let end = self.tree.node(ino.0).map_or(0, |node| node.attr().size);
        let len = end.saturating_sub(offset).min(size.into()) as usize;
        reply.data(&ZEROES[..len.min(ZEROES.len())]);
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if let Ok(node) = self.tree.node(ino.0) {
            node.change(|attr| attr.size = attr.size.max(offset + data.len() as u64));
        }
        reply.written(data.len() as u32);
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let add = |number, next, node: &Node, name: &[u8]| {
            !reply.add(INodeNo(number), next, node.attr().kind, OsStr::from_bytes(name))
        };
        match self.tree.list(ino.0, offset, add) {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn readdirplus(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let add = |number, next, node: &Node, name: &[u8]| {
            let name = OsStr::from_bytes(name);
            !reply.add(INodeNo(number), next, name, &TIME_TO_LIVE, &node.attr(), Generation(1))
        };
        match self.tree.list(ino.0, offset, add) {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn getxattr(&self, _req: &Request, _ino: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENODATA);
    }
}
