//! Requests become operations.
//!
//! Nothing is kept for an open file: an inode lives as long as it has links or the kernel remembers it (lookups), and the kernel
//! remembers what is open. Each entry handed out counts one lookup.

mod work;

use crate::cached::Writers;
use crate::control::{self, Pages};
use crate::convert::{
    decode_rdev, disk_ino, file_attr, kind, name_only, negative, protocol_ino, timestamp, type_of_mode,
};
use crate::ioctl;
use crate::mount::MountOptions;
use crate::notices::Notices;
use crate::pool::Pool;
use crate::reply::{answer, guarded};
use crate::stats;
use extant::{
    AccessTimes, Attr, Caller, Errno, Error, Falloc, Fs, New, Node, OpenFlags as Open, Operations,
    RenameFlags as Rename, SetAttr, TimeSet, XattrMode,
};
use fuser::*;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime};

/// Threads for those who wait for commits.
const WAITERS: usize = 16;

/// The largest request.
const MAX_REQUEST: u32 = 1 << 20;

/// O_ACCMODE, O_EXCL, O_TRUNC, O_APPEND, O_NOATIME on Linux.
const ACCESS_MODE: i32 = 3;
const EXCLUSIVE: i32 = 0o200;
const TRUNCATE: i32 = 0o1000;
const APPEND: i32 = 0o2000;
const NO_ACCESS_TIME: i32 = 0o1_000_000;

/// A served file system.
#[derive(Debug)]
pub struct Server {
    fs: Option<Fs>,
    ops: Arc<Operations>,
    pool: Pool,
    writers: Writers,
    notices: Arc<Notices>,
    ttl: Duration,
    block_size: u32,
    writeback: bool,
    acl: bool,
    access_times: Option<AccessTimes>,
    directory_access_times: bool,
    done: Sender<Result<(), Error>>,
    stats: Pages,
    /// Who mounted it.
    owner: u32,
    /// The image was opened for reading only.
    read_only: bool,
}

impl Server {
    /// A server, and where the result of the final unmount will arrive.
    pub fn new(fs: Fs, options: &MountOptions) -> io::Result<(Server, Receiver<Result<(), Error>>)> {
        let (done, outcome) = channel();
        let read_only = fs.is_read_only();
        let server = Server {
            ops: fs.operations().clone(),
            block_size: fs.superblock().block_size(),
            writeback: options.writeback_cache && !read_only,
            // The kernel knows of one spelling of a name; what it remembers of that is not to outlive another's removal.
            ttl: if fs.folds_names() { Duration::ZERO } else { options.time_to_live },
            fs: Some(fs),
            pool: Pool::start(WAITERS, options.thread_count() / 2)?,
            writers: Writers::default(),
            notices: Notices::start()?,
            acl: options.acl,
            access_times: options.access_times,
            directory_access_times: options.directory_access_times,
            done,
            stats: Pages::default(),
            owner: nix::unistd::geteuid().as_raw(),
            read_only,
        };
        Ok((server, outcome))
    }

    /// What has to be connected to the session.
    pub fn notices(&self) -> Arc<Notices> {
        self.notices.clone()
    }
}

fn seek(ops: &Operations, ino: INodeNo, offset: i64, whence: i32) -> Result<u64, Error> {
    const SEEK_DATA: i32 = 3;
    const SEEK_HOLE: i32 = 4;
    let node = ops.node(disk_ino(ino))?;
    let from = u64::try_from(offset).map_err(|_| Errno::Nxio)?;
    match whence {
        SEEK_DATA => ops.seek(&node, from, true),
        SEEK_HOLE => ops.seek(&node, from, false),
        _ => Err(Errno::Inval.into()),
    }
}

/// Runs `work` on `len` bytes that belong to this thread, of any content: a fresh buffer for each request would cost a good part of a read.
fn with_buffer<T>(len: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local! {
        static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    BUFFER.with_borrow_mut(|buf| {
        if buf.len() < len {
            buf.resize(len, 0);
        }
        work(&mut buf[..len])
    })
}

fn writes(flags: i32) -> bool {
    flags & ACCESS_MODE != 0
}

/// What every open file is answered with.
pub fn open_flags() -> FopenFlags {
    FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
}

/// Asks the kernel for everything that saves requests.
pub fn negotiate(config: &mut KernelConfig, writeback: bool, acl: bool) {
    let mut wanted = vec![
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_ASYNC_DIO,
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        InitFlags::FUSE_NO_OPENDIR_SUPPORT,
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        InitFlags::FUSE_CACHE_SYMLINKS,
        InitFlags::FUSE_EXPORT_SUPPORT,
        InitFlags::FUSE_EXPLICIT_INVAL_DATA,
        InitFlags::FUSE_HAS_IOCTL_DIR,
        InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        InitFlags::FUSE_DONT_MASK,
    ];
    if writeback {
        wanted.push(InitFlags::FUSE_WRITEBACK_CACHE);
    }
    if acl {
        wanted.push(InitFlags::FUSE_POSIX_ACL);
    }
    for flag in wanted {
        if config.add_capabilities(flag).is_err() {
            tracing::debug!("the kernel does not offer {flag:?}");
        }
    }
    // What the kernel does not take it answers with its own bound, which then holds.
    let _ = config.set_max_write(MAX_REQUEST);
    let _ = config.set_max_readahead(MAX_REQUEST);
    let _ = config.set_max_background(64);
    let _ = config.set_time_granularity(Duration::from_nanos(1));
}

impl Filesystem for Server {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        negotiate(config, self.writeback, self.acl);
        Ok(())
    }

    fn destroy(&mut self) {
        self.pool.stop();
        self.notices.stop();
        if let Some(fs) = self.fs.take() {
            let closed = fs.unmount();
            if let Err(e) = &closed {
                tracing::error!("unmounting failed: {e}");
            }
            // Nobody waits if the mount's owner is gone.
            let _ = self.done.send(closed);
        }
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = guarded(|| {
            let dir = self.node(parent)?;
            // By the dots the kernel asks for what a handle names, which may be no directory, and for what that is in.
            let found = match name.as_bytes() {
                b"." => Ok(dir),
                b".." => self.ops.parent(&dir),
                name => self.ops.lookup(&dir, name),
            };
            match found {
                Ok(node) => self.entry(&node).map(Some),
                Err(e) if e.is(Errno::NoEnt) => Ok(None),
                Err(e) => Err(e),
            }
        });
        match found {
            Ok(Some((attr, generation))) => reply.entry(&self.ttl, &attr, generation),
            Ok(None) => reply.entry(&self.ttl, &negative(), Generation(0)),
            Err(e) => reply.error(e),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        let forgotten = guarded(|| {
            self.ops.release(&self.node(ino)?, nlookup);
            Ok(())
        });
        if forgotten.is_err() {
            // Of an entry whose inode could not be had, or one that was lost.
            tracing::warn!(ino = ino.0, "the kernel forgot an inode that is not known");
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let asked = || {
            // Of an open file the kernel asks before it accepts a write.
            if fh.is_some() && self.writeback {
                self.check_room(ino)?;
            }
            self.node(ino).map(|n| self.attr(&n.attr()))
        };
        answer!(reply, asked(), |r, attr| r.attr(&self.ttl, &attr));
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let time = |t: TimeOrNow| match t {
            TimeOrNow::Now => TimeSet::Now,
            TimeOrNow::SpecificTime(t) => TimeSet::At(timestamp(t)),
        };
        let set = SetAttr {
            mode: mode.map(|m| (m & 0o7777) as u16),
            uid,
            gid,
            size,
            atime: atime.map(time),
            mtime: mtime.map(time),
            ctime: ctime.map(timestamp),
            ..SetAttr::default()
        };
        answer!(reply, self.change(req, ino, set), |r, attr| r.attr(&self.ttl, &attr));
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let target = self.node(ino).and_then(|n| {
            self.note_access(ino, &n);
            self.ops.read_link(&n)
        });
        answer!(reply, target, |r, target| r.data(&target));
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let made = || match type_of_mode(mode)? {
            extant::FileType::Regular => self.make(req, parent, name, mode, umask, New::File),
            special => self.make(req, parent, name, mode, umask, New::Special(special, decode_rdev(rdev))),
        };
        answer!(reply, made(), |r, (attr, generation)| r.entry(&self.ttl, &attr, generation));
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let made = self.make(req, parent, name, mode, umask, New::Dir);
        answer!(reply, made, |r, (attr, generation)| r.entry(&self.ttl, &attr, generation));
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer!(reply, self.node(parent).and_then(|dir| self.ops.unlink(&dir, name.as_bytes())));
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer!(reply, self.node(parent).and_then(|dir| self.ops.rmdir(&dir, name.as_bytes())));
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let what = New::Symlink(target.as_os_str().as_bytes());
        let made = self.make(req, parent, name, 0o777, 0, what);
        answer!(reply, made, |r, (attr, generation)| r.entry(&self.ttl, &attr, generation));
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: fuser::RenameFlags,
        reply: ReplyEmpty,
    ) {
        answer!(reply, {
            let flags = Rename::from_bits(flags.bits()).ok_or(Errno::Inval)?;
            let (from, to) = (self.node(parent)?, self.node(newparent)?);
            self.ops.rename(&from, name.as_bytes(), &to, newname.as_bytes(), flags)
        });
    }

    fn link(&self, _req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let linked = || {
            let node = self.node(ino)?;
            self.ops.link(&node, &self.node(newparent)?, newname.as_bytes())?;
            self.entry(&node)
        };
        answer!(reply, linked(), |r, (attr, generation)| r.entry(&self.ttl, &attr, generation));
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let checked = self.node(ino).and_then(|n| {
            self.check_open(&n, flags.0)?;
            if writes(flags.0) {
                self.writers.open(ino);
                self.ops.open_hint(&n);
            }
            // Whoever opens to read and write need not read.
            if !writes(flags.0) && flags.0 & NO_ACCESS_TIME == 0 && self.note_access(ino, &n) {
                // The file is open, so that this waits for nobody.
                self.notices.settle(ino);
            }
            Ok(())
        });
        answer!(reply, checked, |r, ()| r.opened(FileHandle(0), open_flags()));
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
        with_buffer(size.min(MAX_REQUEST * 4) as usize, |buf| {
            let read = self.node(ino).and_then(|node| self.ops.read_direct(&node, offset, buf));
            answer!(reply, read, |r, len| r.data(&buf[..len]));
        });
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = || {
            let written = self.write_to(req, ino, offset, data, write_flags);
            if let (Err(e), true) = (&written, write_flags.contains(WriteFlags::FUSE_WRITE_CACHE)) {
                self.stop_writers(ino, e);
            }
            written
        };
        answer!(reply, written(), |r, len| r.written(len as u32));
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock: LockOwner, reply: ReplyEmpty) {
        // The kernel then stops asking.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        flags: OpenFlags,
        _lock: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        answer!(reply, {
            if writes(flags.0) {
                if self.writers.close(ino) {
                    self.notices.closed(ino);
                }
                self.ops.close_hint(&self.node(ino)?);
            }
            Ok(())
        });
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.fsync_node(ino, datasync, reply);
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.fsync_node(ino, datasync, reply);
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // The kernel then stops asking, and caches directories.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = guarded(|| {
            let dir = self.node(ino)?;
            self.note_listing(ino, &dir, offset);
            self.ops.read_dir_from(&dir, offset, |e| {
                let number = protocol_ino(u64::from(e.ino.0));
                !reply.add(number, e.next, kind(e.ftype), OsStr::from_bytes(e.name))
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn readdirplus(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let listed = guarded(|| {
            let dir = self.node(ino)?;
            self.note_listing(ino, &dir, offset);
            self.ops.read_dir_plus(&dir, offset, |e, node| {
                let name = OsStr::from_bytes(e.name);
                let dots = e.name == b"." || e.name == b"..";
                let Some(node) = node.filter(|node| dots || node.hold(1).is_ok()) else {
                    let attr = name_only(protocol_ino(e.ino.0.into()), e.ftype);
                    return !reply.add(attr.ino, e.next, name, &Duration::ZERO, &attr, Generation(0));
                };
                let attr = self.attr(&node.attr());
                let full =
                    reply.add(attr.ino, e.next, name, &self.ttl, &attr, Generation(u64::from(node.generation())));
                // The dots count no lookup.
                if full && !dots {
                    self.ops.release(node, 1);
                }
                !full
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let u = self.ops.usage();
        reply.statfs(u.blocks, u.free, u.available, u.inodes, u.inodes_free, self.block_size, 255, self.block_size);
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let mode = match flags & 3 {
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            _ => XattrMode::Any,
        };
        answer!(reply, self.set_xattr(req, ino, name.as_bytes(), value, mode));
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = self.node(ino).and_then(|n| self.ops.get_xattr(&n, name.as_bytes()));
        answer!(reply, value, |r, value| self.xattr(value, size, r));
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = || {
            let names = self.ops.list_xattrs(&self.node(ino)?)?;
            Ok(names.into_iter().flat_map(|n| n.into_iter().chain([0])).collect())
        };
        answer!(reply, names(), |r, list| self.xattr(list, size, r));
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer!(reply, self.node(ino).and_then(|n| self.ops.remove_xattr(&n, name.as_bytes())));
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let made = self.create_or_open(req, parent, name, mode, umask, flags);
        if let (Ok((attr, _)), true) = (&made, writes(flags)) {
            self.writers.open(attr.ino);
            if let Ok(node) = self.node(attr.ino) {
                self.ops.open_hint(&node);
            }
        }
        answer!(reply, made, |r, (attr, generation)| r.created(
            &self.ttl,
            &attr,
            generation,
            FileHandle(0),
            open_flags()
        ));
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let done = match cmd {
            control::STATS => self.stats_page(req, ino, in_data),
            control::SET => self.set_tunable(req, ino, in_data),
            _ => self.node(ino).and_then(|n| ioctl::answer(&self.ops, req.uid(), &n, cmd, in_data)),
        };
        if done.is_ok() && ioctl::changes_flags(cmd) {
            self.flags_changed(ino);
        }
        answer!(reply, done, |r, out| r.ioctl(0, &out));
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer!(reply, {
            let node = self.node(ino)?;
            self.writers.blocks_unknown(ino);
            self.ops.allocate(&node, Self::falloc(mode)?, offset, length)?;
            match req.uid() {
                0 => Ok(()),
                _ => self.drop_privileges(req, &node),
            }
        });
    }

    fn lseek(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let ops = self.ops.clone();
        let sought = move || seek(&ops, ino, offset, whence);
        if !self.writers.any(ino) {
            return answer!(reply, sought(), |r, at| r.offset(at as i64));
        }
        let notices = self.notices.clone();
        self.pool.run(move || {
            notices.write_back(ino);
            answer!(reply, sought(), |r, at| r.offset(at as i64));
        });
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let kill = if req.uid() == 0 { WriteFlags::empty() } else { WriteFlags::FUSE_WRITE_KILL_SUIDGID };
        let copied = || {
            let from = self.node(ino_in)?;
            let mut data = vec![0; len.min(u64::from(MAX_REQUEST)) as usize];
            let len = self.ops.read_direct(&from, offset_in, &mut data)?;
            match len {
                0 => Ok(0),
                _ => self.write_to(req, ino_out, offset_out, &data[..len], kill),
            }
        };
        answer!(reply, copied(), |r, len| r.written(len as u32));
    }
}
