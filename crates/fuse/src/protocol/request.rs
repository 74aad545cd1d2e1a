//! Decodes requests, calls the handler and encodes the replies.

use super::abi::*;
use super::{listing, reply};
use crate::handler::{
    Answer, Change, CopyRequest, CreateMode, Credentials, Data, FallocRequest, Handler,
    SetXattrRequest, WriteRequest,
};
use crate::types::decode_rdev;
use crate::types::{ErrorCode, NodeId, WriteFlags};
use extant_engine::{FileType, NodeKind, SetAttr, TimeSet, Timestamp};
use rustix::fs::OFlags;
use zerocopy::FromBytes;

/// A request: header, structure (if it has one, from the start of `arg`), and names or data.
#[derive(Debug)]
pub struct Call<'a> {
    /// Header.
    pub head: InHeader,
    /// The structure, possibly followed by other bytes.
    pub arg: &'a [u8],
    /// The first `len` bytes are names or data. The reply overwrites them.
    pub payload: &'a mut [u8],
    /// Length of names or data in bytes.
    pub len: usize,
}

/// Splits a name that ends with a zero byte from the bytes after it.
fn name(bytes: &[u8]) -> Answer<(&[u8], &[u8])> {
    let end = bytes.iter().position(|b| *b == 0).ok_or(ErrorCode::EINVAL)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

/// O_APPEND, O_NOATIME.
const APPEND: i32 = OFlags::APPEND.bits() as i32;
const NO_ACCESS_TIME: i32 = OFlags::NOATIME.bits() as i32;

/// The type in a mode.
const TYPE_MASK: u32 = 0o170_000;

/// Length limit of a name in bytes.
const MAX_NAME: u32 = 255;

/// Of [`GetAttrIn::flags`]: the file is open.
const GETATTR_FH: u32 = 1;

/// Handles of open files encode the flags of the open, since fcntl(2) changes the flags of later
/// requests.
mod handle {
    use super::APPEND;

    /// The access mode in flags of open(2); 0 means to read only, 1 to write only.
    pub const ACCESS_MODE: i32 = 3;
    pub const WRITE_ONLY: i32 = 1;

    /// The file was opened to write.
    pub const WRITES: u64 = 1;
    /// The file was opened with O_APPEND.
    pub const APPENDS: u64 = 2;

    /// Returns the handle of a file that is opened with these flags, with the number that the
    /// handler gave it.
    pub fn of(flags: i32, descriptor: u64) -> u64 {
        let writes = if flags & ACCESS_MODE != 0 { WRITES } else { 0 };
        descriptor << 2 | writes | if flags & APPEND != 0 { APPENDS } else { 0 }
    }

    /// Returns the number that the handler gave the open file.
    pub fn descriptor(handle: u64) -> u64 {
        handle >> 2
    }

    /// Returns the flags of a later request, with O_APPEND as in the open.
    pub fn opened(handle: u64, flags: i32) -> i32 {
        flags & !APPEND | if handle & APPENDS != 0 { APPEND } else { 0 }
    }
}

/// Returns the kind of a node that MKNOD makes. A mode without a type means a regular file.
fn kind_of_new_node(mode: u32, rdev: u32) -> Answer<NodeKind<'static>> {
    let (major, minor) = decode_rdev(rdev);
    match FileType::from_mode(mode as u16) {
        FileType::Unknown if mode & TYPE_MASK == 0 => Ok(NodeKind::File),
        FileType::Regular => Ok(NodeKind::File),
        FileType::Fifo => Ok(NodeKind::Fifo),
        FileType::Socket => Ok(NodeKind::Socket),
        FileType::CharDevice => Ok(NodeKind::CharDevice(major, minor)),
        FileType::BlockDevice => Ok(NodeKind::BlockDevice(major, minor)),
        FileType::Unknown | FileType::Directory | FileType::Symlink => Err(ErrorCode::EINVAL),
    }
}

fn time(now: bool, sec: i64, nsec: u32) -> TimeSet {
    if now { TimeSet::Now } else { TimeSet::At(Timestamp { sec, nsec }) }
}

fn changes(a: &SetAttrIn) -> Change {
    let valid = |bit: u32| a.valid & bit != 0;
    let set = SetAttr {
        mode: valid(set::MODE).then_some((a.mode & 0o7777) as u16),
        uid: valid(set::UID).then_some(a.uid),
        gid: valid(set::GID).then_some(a.gid),
        size: valid(set::SIZE).then_some(a.size),
        atime: valid(set::ATIME).then(|| time(valid(set::ATIME_NOW), a.atime, a.atime_nsec)),
        mtime: valid(set::MTIME).then(|| time(valid(set::MTIME_NOW), a.mtime, a.mtime_nsec)),
        ctime: valid(set::CTIME).then_some(Timestamp { sec: a.ctime, nsec: a.ctime_nsec }),
        ..SetAttr::default()
    };
    Change { set, open: valid(set::OPEN), strip: valid(set::KILL_SET_IDS) }
}

impl Call<'_> {
    fn arg<T: FromBytes>(&self) -> Answer<T> {
        T::read_from_prefix(self.arg).map(|(value, _)| value).map_err(|_| ErrorCode::EINVAL)
    }

    fn rest(&self) -> Answer<&[u8]> {
        self.payload.get(..self.len).ok_or(ErrorCode::EINVAL)
    }

    fn name(&self) -> Answer<&[u8]> {
        Ok(name(self.rest()?)?.0)
    }

    fn names(&self) -> Answer<(&[u8], &[u8])> {
        let (first, rest) = name(self.rest()?)?;
        Ok((first, name(rest)?.0))
    }

    fn credentials(&self) -> Credentials {
        Credentials { uid: self.head.uid, gid: self.head.gid, pid: self.head.pid }
    }

    /// Returns the first bytes of the reply's buffer, at most `size`.
    fn place(&mut self, size: u32) -> &mut [u8] {
        let size = self.payload.len().min(size as usize);
        &mut self.payload[..size]
    }
}

/// Answers a request and returns the length of the reply in its payload. Unknown requests get
/// `ENOSYS`: the kernel then sends no more of them (OPENDIR and FLUSH among others).
pub fn answer(handler: &impl Handler, call: Call<'_>) -> Answer<usize> {
    match handler.interrupts() {
        Some(interrupts) => interrupts.serve(call.head.unique, || answer_to(handler, call)),
        None => answer_to(handler, call),
    }
}

fn answer_to(handler: &impl Handler, mut call: Call<'_>) -> Answer<usize> {
    let node = NodeId(call.head.node);
    if handler.acts_as_root() {
        (call.head.uid, call.head.gid) = (0, 0);
    }
    match call.head.opcode {
        op::LOOKUP | op::SYMLINK | op::MKNOD | op::MKDIR | op::LINK | op::CREATE | op::TMPFILE => {
            named(handler, node, call)
        }
        op::GETATTR | op::SETATTR => attributes(handler, node, call),
        op::STATX => {
            let (attr, birth) = handler.attr_and_birth(node)?;
            reply::only(call.payload, &reply::statx(&attr, birth, handler.time_to_live()))
        }
        op::UNLINK => handler.unlink(node, call.name()?).map(|()| 0),
        op::RMDIR => handler.rmdir(node, call.name()?).map(|()| 0),
        op::RENAME => rename(handler, node, call.arg::<RenameIn>()?.new_dir, 0, &call),
        op::RENAME2 => {
            let arg: Rename2In = call.arg()?;
            rename(handler, node, arg.new_dir, arg.flags, &call)
        }
        op::READLINK => reply::only(call.payload, &*handler.read_link(node)?),
        op::OPEN | op::RELEASE | op::FSYNC | op::FSYNCDIR => descriptor(handler, node, call),
        op::READ => read(handler, node, call),
        op::WRITE => write(handler, node, call),
        op::READDIR => {
            let arg: ReadIn = call.arg()?;
            listing::plain(handler, node, arg.offset, call.place(arg.size))
        }
        op::READDIRPLUS => {
            let arg: ReadIn = call.arg()?;
            listing::plus(handler, node, arg.offset, handler.time_to_live(), call.place(arg.size))
        }
        op::STATFS => reply::only(call.payload, &statfs(handler)),
        op::SETXATTR | op::GETXATTR | op::LISTXATTR | op::REMOVEXATTR => xattr(handler, node, call),
        op::IOCTL => ioctl(handler, node, call),
        op::FALLOCATE => allocate(handler, node, &call),
        op::LSEEK => {
            let arg: LseekIn = call.arg()?;
            let offset = handler.seek(node, arg.offset, arg.whence)?;
            reply::only(call.payload, &LseekOut { offset })
        }
        op::COPY_FILE_RANGE => copy(handler, node, call),
        op::BMAP => {
            let arg: BmapIn = call.arg()?;
            let block = handler.place(node, arg.block, arg.block_size)?;
            reply::only(call.payload, &BmapOut { block })
        }
        op::SYNCFS => handler.sync().map(|()| 0),
        // FORGET comes through rings where the kernel forgets at once, such as an entry whose
        // attributes it refuses.
        op::FORGET => {
            handler.forget(node, call.arg()?);
            Ok(0)
        }
        op::DESTROY => {
            handler.end();
            Ok(0)
        }
        _ => Err(ErrorCode::ENOSYS),
    }
}

/// Makes the kernel write the cached data on which the result of a request depends. Its writes are
/// requests, so only threads that do not receive requests may call this.
pub fn write_back_for(handler: &impl Handler, head: &InHeader, arg: &[u8]) {
    let node = NodeId(head.node);
    match (head.opcode, LseekIn::read_from_prefix(arg)) {
        (op::LSEEK, Ok((arg, _))) => handler.write_back_holes(node, arg.offset, arg.whence),
        _ => handler.write_back(node),
    }
}

/// Returns whether a request is a write that bypasses the page cache while the kernel holds none of
/// its pages locked: only such writes name an owner of locks.
pub fn writes_past_pages(head: &InHeader, arg: &[u8]) -> bool {
    let with_owner = |arg: WriteIn| arg.write_flags & WriteFlags::LOCKOWNER.bits() != 0;
    head.opcode == op::WRITE && WriteIn::read_from_prefix(arg).is_ok_and(|(arg, _)| with_owner(arg))
}

/// Returns the number of bytes that a request reads or writes.
pub fn content_len(head: &InHeader, arg: &[u8]) -> u32 {
    // Both have the size at the same place.
    match head.opcode {
        op::READ | op::WRITE => ReadIn::read_from_prefix(arg).map_or(0, |(arg, _)| arg.size),
        _ => 0,
    }
}

/// Returns the reply to a successful open.
fn opened(handler: &impl Handler, node: NodeId, flags: i32) -> OpenOut {
    let appends = handle::of(flags, 0) == handle::WRITES | handle::APPENDS;
    let past_pages = appends && handler.is_append_only(node);
    reply::opened(handle::of(flags, handler.descriptor(node)), past_pages)
}

/// Returns whether the kernel must write its cache of a file before the request is served.
pub fn is_written_first(
    handler: &impl Handler,
    head: &InHeader,
    arg: &[u8],
    payload: &[u8],
) -> bool {
    let node = NodeId(head.node);
    match head.opcode {
        op::LSEEK | op::BMAP => handler.is_written_to(node),
        op::IOCTL => {
            let cmd = IoctlIn::read_from_prefix(arg).map_or(0, |(arg, _)| arg.cmd);
            handler.forbids_writes(node, cmd, payload) && handler.is_written_to(node)
        }
        _ => false,
    }
}

/// Answers requests whose reply is an entry.
fn named(handler: &impl Handler, node: NodeId, call: Call<'_>) -> Answer<usize> {
    let ttl = handler.time_to_live();
    let credentials = call.credentials();
    let entry = match call.head.opcode {
        op::LOOKUP => match handler.lookup(node, call.name()?)? {
            Some(entry) => entry,
            None => return reply::only(call.payload, &reply::no_entry(ttl)),
        },
        op::LINK => handler.link(NodeId(call.arg::<LinkIn>()?.node), node, call.name()?)?,
        op::SYMLINK => {
            let (name, target) = call.names()?;
            let mode = CreateMode { bits: 0o777, umask: 0 };
            handler.make(credentials, (node, name), mode, NodeKind::Symlink(target))?
        }
        op::MKDIR => {
            let arg: MkdirIn = call.arg()?;
            let mode = CreateMode { bits: arg.mode, umask: arg.umask };
            handler.make(credentials, (node, call.name()?), mode, NodeKind::Dir)?
        }
        op::MKNOD => {
            let arg: MknodIn = call.arg()?;
            let kind = kind_of_new_node(arg.mode, arg.rdev)?;
            let mode = CreateMode { bits: arg.mode, umask: arg.umask };
            handler.make(credentials, (node, call.name()?), mode, kind)?
        }
        opcode => {
            let arg: CreateIn = call.arg()?;
            let mode = CreateMode { bits: arg.mode, umask: arg.umask };
            let made = match opcode {
                op::TMPFILE => handler.create_nameless(credentials, node, mode, arg.flags)?,
                _ => handler.create(credentials, (node, call.name()?), mode, arg.flags)?,
            };
            let mut out = reply::Out::new(call.payload);
            out.put(&reply::entry(&made, ttl))?;
            out.put(&opened(handler, made.attr.ino, arg.flags))?;
            return Ok(out.len());
        }
    };
    reply::only(call.payload, &reply::entry(&entry, ttl))
}

/// Answers requests about a descriptor.
fn descriptor(handler: &impl Handler, node: NodeId, call: Call<'_>) -> Answer<usize> {
    match call.head.opcode {
        op::OPEN if handler.needs_no_opens() => Err(ErrorCode::ENOSYS),
        op::OPEN => {
            let flags = call.arg::<OpenIn>()?.flags;
            handler.open(node, flags)?;
            reply::only(call.payload, &opened(handler, node, flags))
        }
        op::RELEASE => {
            let arg: ReleaseIn = call.arg()?;
            let flags = handle::opened(arg.fh, arg.flags);
            handler.release(node, handle::descriptor(arg.fh), flags).map(|()| 0)
        }
        _ => {
            let arg: FsyncIn = call.arg()?;
            let descriptor = if handler.needs_no_opens() {
                u64::from(call.head.pid)
            } else {
                handle::descriptor(arg.fh)
            };
            handler.fsync(node, descriptor, arg.flags & 1 != 0).map(|()| 0)
        }
    }
}

fn attributes(handler: &impl Handler, node: NodeId, call: Call<'_>) -> Answer<usize> {
    let (attr, ttl) = match call.head.opcode {
        op::GETATTR => {
            let arg: GetAttrIn = call.arg()?;
            let is_unknown = handler.needs_no_opens() && arg.fh == 0;
            let writes = arg.fh & handle::WRITES != 0 || is_unknown;
            (handler.attr(node, arg.flags & GETATTR_FH != 0 && writes)?, handler.time_to_live())
        }
        _ => handler.set_attr(call.credentials(), node, changes(&call.arg()?))?,
    };
    reply::only(call.payload, &reply::attr_out(&attr, ttl))
}

fn rename(
    handler: &impl Handler,
    from: NodeId,
    to: u64,
    flags: u32,
    call: &Call<'_>,
) -> Answer<usize> {
    let (old, new) = call.names()?;
    handler.rename(call.credentials(), (from, old), (NodeId(to), new), flags).map(|()| 0)
}

fn read(handler: &impl Handler, node: NodeId, mut call: Call<'_>) -> Answer<usize> {
    let arg: ReadIn = call.arg()?;
    if arg.flags & DIRECT == 0 {
        handler.read_into_pages(node);
    }
    // The kernel also reads the page of which a program writes a part.
    let counts = arg.flags & NO_ACCESS_TIME == 0;
    if handler.needs_no_opens() && counts && arg.flags & handle::ACCESS_MODE != handle::WRITE_ONLY {
        handler.note_read(node);
    }
    let place = call.place(arg.size);
    match handler.read(node, arg.offset, place)? {
        Data::Filled(len) => Ok(len),
        Data::Elsewhere(data) => reply::only(place, data),
    }
}

fn write(handler: &impl Handler, node: NodeId, call: Call<'_>) -> Answer<usize> {
    let arg: WriteIn = call.arg()?;
    let data = call.rest()?.get(..arg.size as usize).ok_or(ErrorCode::EINVAL)?;
    let write = WriteRequest {
        offset: arg.offset,
        data,
        flags: WriteFlags::from_bits_retain(arg.write_flags),
        opened_to_append: arg.fh & handle::APPENDS != 0,
        appends: arg.flags & APPEND != 0,
    };
    let size = handler.write(call.credentials(), node, write)? as u32;
    reply::only(call.payload, &WriteOut { size, padding: 0 })
}

fn statfs(handler: &impl Handler) -> StatfsOut {
    let (u, block_size) = (handler.usage(), handler.block_size());
    StatfsOut {
        blocks: u.blocks,
        bfree: u.free,
        bavail: u.available,
        files: u.inodes,
        ffree: u.inodes_free,
        bsize: block_size,
        namelen: MAX_NAME,
        frsize: block_size,
        padding: 0,
        spare: [0; 6],
    }
}

fn xattr(handler: &impl Handler, node: NodeId, call: Call<'_>) -> Answer<usize> {
    let value = match call.head.opcode {
        op::SETXATTR => {
            let arg: SetXattrIn = call.arg()?;
            let (name, value) = name(call.rest()?)?;
            let value = value.get(..arg.size as usize).ok_or(ErrorCode::EINVAL)?;
            let request = SetXattrRequest { name, value, flags: arg.flags };
            return handler.set_xattr(call.credentials(), node, request).map(|()| 0);
        }
        op::REMOVEXATTR => return handler.remove_xattr(node, call.name()?).map(|()| 0),
        op::GETXATTR => handler.xattr(node, call.name()?)?,
        _ => handler.list_xattrs(call.credentials(), node)?,
    };
    match call.arg::<GetXattrIn>()?.size as usize {
        0 => reply::only(call.payload, &GetXattrOut { size: value.len() as u32, padding: 0 }),
        room if value.len() > room => Err(ErrorCode::ERANGE),
        _ => reply::only(call.payload, &*value),
    }
}

fn ioctl(handler: &impl Handler, node: NodeId, call: Call<'_>) -> Answer<usize> {
    let arg: IoctlIn = call.arg()?;
    let input = call.rest()?.get(..arg.in_size as usize).ok_or(ErrorCode::EINVAL)?;
    let found = handler.ioctl(call.credentials(), node, arg.cmd, input)?;
    let mut out = reply::Out::new(call.payload);
    out.put(&IoctlOut { result: 0, flags: 0, in_iovs: 0, out_iovs: 0 })?;
    out.bytes(&found)?;
    Ok(out.len())
}

fn allocate(handler: &impl Handler, node: NodeId, call: &Call<'_>) -> Answer<usize> {
    let FallocateIn { offset, length: len, mode, .. } = call.arg()?;
    let request = FallocRequest { offset, len, mode };
    handler.allocate(call.credentials(), node, request).map(|()| 0)
}

fn copy(handler: &impl Handler, node: NodeId, call: Call<'_>) -> Answer<usize> {
    let arg: CopyIn = call.arg()?;
    let request = CopyRequest {
        source: node,
        source_offset: arg.offset_in,
        target: NodeId(arg.node_out),
        target_offset: arg.offset_out,
        len: arg.len,
        opened_to_append: arg.fh_out & handle::APPENDS != 0,
    };
    let size = handler.copy(call.credentials(), request)? as u32;
    reply::only(call.payload, &WriteOut { size, padding: 0 })
}
