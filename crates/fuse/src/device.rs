//! The transport for users other than root: `fusermount3` mounts for them, and requests are read from `/dev/fuse` by the crate `fuser`.

use crate::convert::{decode_rdev, errno, name_only, negative, timestamp, type_of_mode};
use crate::flags;
use crate::pool::Pool;
use crate::service::{Answer, Data, Entry, Service, Who};
use extant::{FileType, New, SetAttr, TimeSet};
use fuser::*;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Threads for those who wait for commits.
const WAITERS: usize = 16;

/// A service behind the crate's interface.
#[derive(Debug)]
pub struct Device<S: Service> {
    service: Arc<S>,
    pool: Pool,
    ttl: Duration,
}

impl<S: Service> Device<S> {
    /// For so many threads that receive.
    pub fn new(service: Arc<S>, receivers: usize) -> io::Result<Device<S>> {
        let ttl = service.time_to_live();
        Ok(Device { service, pool: Pool::start(WAITERS, receivers / 2)?, ttl })
    }

    fn entry(&self, made: Answer<Entry>, reply: ReplyEntry) {
        match made {
            Ok(entry) => reply.entry(&self.ttl, &entry.attr, Generation(entry.generation)),
            Err(e) => reply.error(e),
        }
    }

    fn fsync_waiting(&self, ino: INodeNo, datasync: bool, reply: ReplyEmpty) {
        let service = self.service.clone();
        if !service.fsync_waits() {
            return empty(service.fsync(ino, datasync), reply);
        }
        self.pool.run_waiting(move || empty(service.fsync(ino, datasync), reply));
    }
}

fn who(req: &Request) -> Who {
    Who { uid: req.uid(), gid: req.gid(), pid: req.pid() }
}

fn empty(done: Answer<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}

fn bytes(value: Answer<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(e) => reply.error(e),
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

/// Asks the kernel for everything that saves requests.
fn negotiate(config: &mut KernelConfig, service: &impl Service) {
    for flag in flags::wanted(service.wants()) {
        if config.add_capabilities(flag).is_err() {
            tracing::debug!("the kernel does not offer {flag:?}");
        }
    }
    // What the kernel does not take it answers with its own bound, which then holds.
    let _ = config.set_max_write(flags::MAX_REQUEST);
    let _ = config.set_max_readahead(flags::MAX_REQUEST);
    let _ = config.set_max_background(flags::MAX_BACKGROUND);
    let _ = config.set_time_granularity(Duration::from_nanos(1));
}

impl<S: Service> Filesystem for Device<S> {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        negotiate(config, &*self.service);
        Ok(())
    }

    fn destroy(&mut self) {
        self.pool.stop();
        self.service.end();
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.service.lookup(parent, name.as_bytes()) {
            Ok(Some(entry)) => reply.entry(&self.ttl, &entry.attr, Generation(entry.generation)),
            Ok(None) => reply.entry(&self.ttl, &negative(), Generation(0)),
            Err(e) => reply.error(e),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.service.forget(ino, nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.service.attr(ino, fh.is_some()) {
            Ok(attr) => reply.attr(&self.ttl, &attr),
            Err(e) => reply.error(e),
        }
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
        match self.service.set_attr(who(req), ino, set) {
            Ok(attr) => reply.attr(&self.ttl, &attr),
            Err(e) => reply.error(e),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.service.read_link(ino) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(e),
        }
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let what = match type_of_mode(mode) {
            Ok(FileType::Regular) => New::File,
            Ok(special) => New::Special(special, decode_rdev(rdev)),
            Err(e) => return reply.error(errno(&e)),
        };
        self.entry(self.service.make(who(req), (parent, name.as_bytes()), mode, umask, what), reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        self.entry(self.service.make(who(req), (parent, name.as_bytes()), mode, umask, New::Dir), reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.service.unlink(parent, name.as_bytes()), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.service.rmdir(parent, name.as_bytes()), reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let what = New::Symlink(target.as_os_str().as_bytes());
        self.entry(self.service.make(who(req), (parent, name.as_bytes()), 0o777, 0, what), reply);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = ((parent, name.as_bytes()), (newparent, newname.as_bytes()));
        empty(self.service.rename(from, to, flags.bits()), reply);
    }

    fn link(&self, _req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        self.entry(self.service.link(ino, newparent, newname.as_bytes()), reply);
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.service.open(ino, flags.0) {
            Ok(()) => reply.opened(FileHandle(0), flags::open()),
            Err(e) => reply.error(e),
        }
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
        with_buffer(size.min(flags::MAX_REQUEST * 4) as usize, |buf| match self.service.read(ino, offset, buf) {
            Ok(Data::Filled(len)) => reply.data(&buf[..len]),
            Ok(Data::Elsewhere(data)) => reply.data(data),
            Err(e) => reply.error(e),
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
        match self.service.write(who(req), ino, offset, data, write_flags) {
            Ok(len) => reply.written(len as u32),
            Err(e) => reply.error(e),
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock: LockOwner, reply: ReplyEmpty) {
        // The kernel then stops asking.
        reply.error(Errno::ENOSYS);
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
        empty(self.service.release(ino, flags.0), reply);
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.fsync_waiting(ino, datasync, reply);
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.fsync_waiting(ino, datasync, reply);
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // The kernel then stops asking, and caches directories.
        reply.error(Errno::ENOSYS);
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut any = false;
        let listed = self.service.list(ino, offset, &mut |e| {
            let taken = !reply.add(e.ino, e.next, e.kind, OsStr::from_bytes(e.name));
            any |= taken;
            taken
        });
        match listed {
            // What was handed out counts; the error comes with the next request.
            Err(e) if !any => reply.error(e),
            _ => reply.ok(),
        }
    }

    fn readdirplus(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let mut any = false;
        let listed = self.service.list_plus(ino, offset, &mut |e, entry| {
            let name = OsStr::from_bytes(e.name);
            let taken = !match entry {
                Some(found) => reply.add(e.ino, e.next, name, &self.ttl, &found.attr, Generation(found.generation)),
                None => reply.add(e.ino, e.next, name, &Duration::ZERO, &name_only(e.ino, e.kind), Generation(0)),
            };
            any |= taken;
            taken
        });
        match listed {
            Err(e) if !any => reply.error(e),
            _ => reply.ok(),
        }
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let (u, block_size) = (self.service.usage(), self.service.block_size());
        reply.statfs(
            u.blocks,
            u.free,
            u.available,
            u.inodes,
            u.inodes_free,
            block_size,
            flags::LONGEST_NAME,
            block_size,
        );
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
        empty(self.service.set_xattr(who(req), ino, name.as_bytes(), value, flags), reply);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        bytes(self.service.xattr(ino, name.as_bytes()), size, reply);
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        bytes(self.service.list_xattrs(ino), size, reply);
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.service.remove_xattr(ino, name.as_bytes()), reply);
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
        match self.service.create(who(req), (parent, name.as_bytes()), mode, umask, flags) {
            Ok(made) => {
                let generation = Generation(made.generation);
                reply.created(&self.ttl, &made.attr, generation, FileHandle(0), flags::open());
            }
            Err(e) => reply.error(e),
        }
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
        match self.service.ioctl(who(req), ino, cmd, in_data) {
            Ok(out) => reply.ioctl(0, &out),
            Err(e) => reply.error(e),
        }
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
        empty(self.service.allocate(who(req), ino, offset, length, mode), reply);
    }

    fn lseek(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let seek = move |service: &S| match service.seek(ino, offset, whence) {
            Ok(at) => reply.offset(at as i64),
            Err(e) => reply.error(e),
        };
        if !self.service.is_written_to(ino) {
            return seek(&self.service);
        }
        let service = self.service.clone();
        self.pool.run(move || {
            service.write_back(ino);
            seek(&service);
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
        match self.service.copy(who(req), (ino_in, offset_in), (ino_out, offset_out), len) {
            Ok(len) => reply.written(len as u32),
            Err(e) => reply.error(e),
        }
    }
}
