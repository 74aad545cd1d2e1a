//! Requests from bytes.

use super::structs::*;
use super::{list, reply};
use crate::caller;
use crate::convert::{decode_rdev, errno, type_of_mode};
use crate::flags::LONGEST_NAME;
use crate::service::{Answer, Change, Data, HowWritten, Service, Who};
use extant::{FileType, New, SetAttr, TimeSet, Timestamp};
use fuser::{Errno, INodeNo, WriteFlags};
use zerocopy::FromBytes;

/// A request: its header, its structure (if it has one, from the start of `arg`), and what follows.
#[derive(Debug)]
pub struct Call<'a> {
    /// Header.
    pub head: InHeader,
    /// Holds the structure; may be longer.
    pub arg: &'a [u8],
    /// The first `len` bytes are names or data; the reply comes here.
    pub payload: &'a mut [u8],
    /// Bytes of names or data.
    pub len: usize,
}

/// A name with a zero behind it, and what follows that.
fn name(bytes: &[u8]) -> Answer<(&[u8], &[u8])> {
    let end = bytes.iter().position(|b| *b == 0).ok_or(Errno::EINVAL)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

/// Of [`GetAttrIn::flags`]: the file is open.
const GETATTR_FH: u32 = 1;

/// Handles of open files say how the files were opened: fcntl(2) changes the flags that come with
/// later requests.
mod handle {
    use nix::libc;

    /// To write.
    pub const WRITES: u64 = 1;
    /// With O_APPEND.
    pub const APPENDS: u64 = 2;

    /// The handle of a file that is opened with these flags.
    pub fn of(flags: i32) -> u64 {
        let writes = if flags & libc::O_ACCMODE != libc::O_RDONLY { WRITES } else { 0 };
        writes | if flags & libc::O_APPEND != 0 { APPENDS } else { 0 }
    }

    /// The flags of a later request, with O_APPEND as it was at first.
    pub fn opened(handle: u64, flags: i32) -> i32 {
        flags & !libc::O_APPEND | if handle & APPENDS != 0 { libc::O_APPEND } else { 0 }
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
        T::read_from_prefix(self.arg).map(|(value, _)| value).map_err(|_| Errno::EINVAL)
    }

    fn rest(&self) -> Answer<&[u8]> {
        self.payload.get(..self.len).ok_or(Errno::EINVAL)
    }

    fn name(&self) -> Answer<&[u8]> {
        Ok(name(self.rest()?)?.0)
    }

    fn names(&self) -> Answer<(&[u8], &[u8])> {
        let (first, rest) = name(self.rest()?)?;
        Ok((first, name(rest)?.0))
    }

    fn who(&self) -> Who {
        caller::told_or_looked_up(Who {
            uid: self.head.uid,
            gid: self.head.gid,
            pid: self.head.pid,
        })
    }

    /// The first bytes of the reply's place, as many as are asked for.
    fn place(&mut self, size: u32) -> &mut [u8] {
        let size = self.payload.len().min(size as usize);
        &mut self.payload[..size]
    }
}

/// Answers a request; how many bytes of its payload are the reply. ENOSYS for those that are not
/// known: the kernel then stops asking, for OPENDIR and FLUSH among others.
pub fn answer(service: &impl Service, call: Call<'_>) -> Answer<usize> {
    match service.interrupts() {
        Some(interrupts) => interrupts.serve(call.head.unique, || answer_to(service, call)),
        None => answer_to(service, call),
    }
}

fn answer_to(service: &impl Service, mut call: Call<'_>) -> Answer<usize> {
    let node = INodeNo(call.head.node);
    match call.head.opcode {
        op::LOOKUP | op::SYMLINK | op::MKNOD | op::MKDIR | op::LINK | op::CREATE | op::TMPFILE => {
            named(service, node, call)
        }
        op::GETATTR | op::SETATTR => attributes(service, node, call),
        op::STATX => {
            let (attr, birth) = service.attr_and_birth(node)?;
            reply::only(call.payload, &reply::statx(&attr, birth, service.time_to_live()))
        }
        op::UNLINK => service.unlink(node, call.name()?).map(|()| 0),
        op::RMDIR => service.rmdir(node, call.name()?).map(|()| 0),
        op::RENAME => rename(service, node, call.arg::<RenameIn>()?.new_dir, 0, &call),
        op::RENAME2 => {
            let arg: Rename2In = call.arg()?;
            rename(service, node, arg.new_dir, arg.flags, &call)
        }
        op::READLINK => reply::only(call.payload, &*service.read_link(node)?),
        op::OPEN => {
            let flags = call.arg::<OpenIn>()?.flags;
            service.open(node, flags)?;
            reply::only(call.payload, &opened(service, node, flags))
        }
        op::RELEASE => {
            let arg: ReleaseIn = call.arg()?;
            service.release(node, handle::opened(arg.fh, arg.flags)).map(|()| 0)
        }
        op::READ => read(service, node, call),
        op::WRITE => write(service, node, call),
        op::FSYNC | op::FSYNCDIR => {
            service.fsync(node, call.arg::<FsyncIn>()?.flags & 1 != 0).map(|()| 0)
        }
        op::READDIR => {
            let arg: ReadIn = call.arg()?;
            list::plain(service, node, arg.offset, call.place(arg.size))
        }
        op::READDIRPLUS => {
            let arg: ReadIn = call.arg()?;
            list::plus(service, node, arg.offset, service.time_to_live(), call.place(arg.size))
        }
        op::STATFS => reply::only(call.payload, &statfs(service)),
        op::SETXATTR | op::GETXATTR | op::LISTXATTR | op::REMOVEXATTR => xattr(service, node, call),
        op::IOCTL => ioctl(service, node, call),
        op::FALLOCATE => {
            let arg: FallocateIn = call.arg()?;
            service.allocate(call.who(), node, arg.offset, arg.length, arg.mode).map(|()| 0)
        }
        op::LSEEK => {
            let arg: LseekIn = call.arg()?;
            let offset = service.seek(node, arg.offset, arg.whence)?;
            reply::only(call.payload, &LseekOut { offset })
        }
        op::COPY_FILE_RANGE => copy(service, node, call),
        op::BMAP => {
            let arg: BmapIn = call.arg()?;
            let block = service.place(node, arg.block, arg.block_size)?;
            reply::only(call.payload, &BmapOut { block })
        }
        op::SYNCFS => service.sync().map(|()| 0),
        // Through rings comes what the kernel forgets at once, such as an entry whose attributes it
        // refuses.
        op::FORGET => {
            service.forget(node, call.arg()?);
            Ok(0)
        }
        op::DESTROY => {
            service.end();
            Ok(0)
        }
        _ => Err(Errno::ENOSYS),
    }
}

/// Has the kernel write what it keeps and what the answer to a search depends on. Its writes are
/// requests: for threads that do not receive them.
pub fn write_back_for(service: &impl Service, head: &InHeader, arg: &[u8]) {
    let node = INodeNo(head.node);
    match (head.opcode, LseekIn::read_from_prefix(arg)) {
        (op::LSEEK, Ok((arg, _))) => service.write_back_holes(node, arg.offset, arg.whence),
        _ => service.write_back(node),
    }
}

/// Whether a request writes past the kernel's pages, and the kernel holds none of them locked until
/// it is answered: only such writes name an owner of locks.
pub fn writes_past_pages(head: &InHeader, arg: &[u8]) -> bool {
    let with_owner = |arg: WriteIn| arg.write_flags & WriteFlags::FUSE_WRITE_LOCKOWNER.bits() != 0;
    head.opcode == op::WRITE && WriteIn::read_from_prefix(arg).is_ok_and(|(arg, _)| with_owner(arg))
}

/// The reply to an open that succeeded.
fn opened(service: &impl Service, node: INodeNo, flags: i32) -> OpenOut {
    let handle = handle::of(flags);
    let past_pages = handle == handle::WRITES | handle::APPENDS && service.is_append_only(node);
    reply::opened(handle, past_pages)
}

/// Whether what the kernel keeps of a file has to be written before the request is served.
pub fn is_written_first(
    service: &impl Service,
    head: &InHeader,
    arg: &[u8],
    payload: &[u8],
) -> bool {
    let node = INodeNo(head.node);
    match head.opcode {
        op::LSEEK | op::BMAP => service.is_written_to(node),
        op::IOCTL => {
            let cmd = IoctlIn::read_from_prefix(arg).map_or(0, |(arg, _)| arg.cmd);
            service.forbids_writes(node, cmd, payload) && service.is_written_to(node)
        }
        _ => false,
    }
}

/// Requests that are answered with an entry.
fn named(service: &impl Service, node: INodeNo, call: Call<'_>) -> Answer<usize> {
    let ttl = service.time_to_live();
    let who = call.who();
    let entry = match call.head.opcode {
        op::LOOKUP => match service.lookup(node, call.name()?)? {
            Some(entry) => entry,
            None => return reply::only(call.payload, &reply::no_entry(ttl)),
        },
        op::LINK => service.link(INodeNo(call.arg::<LinkIn>()?.node), node, call.name()?)?,
        op::SYMLINK => {
            let (name, target) = call.names()?;
            service.make(who, (node, name), 0o777, 0, New::Symlink(target))?
        }
        op::MKDIR => {
            let arg: MkdirIn = call.arg()?;
            service.make(who, (node, call.name()?), arg.mode, arg.umask, New::Dir)?
        }
        op::MKNOD => {
            let arg: MknodIn = call.arg()?;
            let what = match type_of_mode(arg.mode).map_err(|e| errno(&e))? {
                FileType::Regular => New::File,
                special => New::Special(special, decode_rdev(arg.rdev)),
            };
            service.make(who, (node, call.name()?), arg.mode, arg.umask, what)?
        }
        opcode => {
            let arg: CreateIn = call.arg()?;
            let made = match opcode {
                op::TMPFILE => {
                    service.create_nameless(who, node, arg.mode, arg.umask, arg.flags)?
                }
                _ => service.create(who, (node, call.name()?), arg.mode, arg.umask, arg.flags)?,
            };
            let mut out = reply::Out::new(call.payload);
            out.put(&reply::entry(&made, ttl))?;
            out.put(&opened(service, made.attr.ino, arg.flags))?;
            return Ok(out.len());
        }
    };
    reply::only(call.payload, &reply::entry(&entry, ttl))
}

fn attributes(service: &impl Service, node: INodeNo, call: Call<'_>) -> Answer<usize> {
    let attr = match call.head.opcode {
        op::GETATTR => {
            let arg: GetAttrIn = call.arg()?;
            service.attr(node, arg.flags & GETATTR_FH != 0 && arg.fh & handle::WRITES != 0)?
        }
        _ => service.set_attr(call.who(), node, changes(&call.arg()?))?,
    };
    reply::only(call.payload, &reply::attr_out(&attr, service.time_to_live()))
}

fn rename(
    service: &impl Service,
    from: INodeNo,
    to: u64,
    flags: u32,
    call: &Call<'_>,
) -> Answer<usize> {
    let (old, new) = call.names()?;
    service.rename(call.who(), (from, old), (INodeNo(to), new), flags).map(|()| 0)
}

fn read(service: &impl Service, node: INodeNo, mut call: Call<'_>) -> Answer<usize> {
    let arg: ReadIn = call.arg()?;
    if arg.flags & DIRECT == 0 {
        service.read_into_pages(node);
    }
    let place = call.place(arg.size);
    match service.read(node, arg.offset, place)? {
        Data::Filled(len) => Ok(len),
        Data::Elsewhere(data) => reply::only(place, data),
    }
}

fn write(service: &impl Service, node: INodeNo, call: Call<'_>) -> Answer<usize> {
    let arg: WriteIn = call.arg()?;
    let data = call.rest()?.get(..arg.size as usize).ok_or(Errno::EINVAL)?;
    let how = HowWritten {
        flags: WriteFlags::from_bits_retain(arg.write_flags),
        opened_to_append: arg.fh & handle::APPENDS != 0,
        appends: arg.flags & nix::libc::O_APPEND != 0,
    };
    let size = service.write(call.who(), node, arg.offset, data, how)? as u32;
    reply::only(call.payload, &WriteOut { size, padding: 0 })
}

fn statfs(service: &impl Service) -> StatfsOut {
    let (u, block_size) = (service.usage(), service.block_size());
    StatfsOut {
        blocks: u.blocks,
        bfree: u.free,
        bavail: u.available,
        files: u.inodes,
        ffree: u.inodes_free,
        bsize: block_size,
        namelen: LONGEST_NAME,
        frsize: block_size,
        padding: 0,
        spare: [0; 6],
    }
}

fn xattr(service: &impl Service, node: INodeNo, call: Call<'_>) -> Answer<usize> {
    let value = match call.head.opcode {
        op::SETXATTR => {
            let arg: SetXattrIn = call.arg()?;
            let (name, value) = name(call.rest()?)?;
            let value = value.get(..arg.size as usize).ok_or(Errno::EINVAL)?;
            return service.set_xattr(call.who(), node, name, value, arg.flags).map(|()| 0);
        }
        op::REMOVEXATTR => return service.remove_xattr(node, call.name()?).map(|()| 0),
        op::GETXATTR => service.xattr(node, call.name()?)?,
        _ => service.list_xattrs(call.who(), node)?,
    };
    match call.arg::<GetXattrIn>()?.size as usize {
        0 => reply::only(call.payload, &GetXattrOut { size: value.len() as u32, padding: 0 }),
        room if value.len() > room => Err(Errno::ERANGE),
        _ => reply::only(call.payload, &*value),
    }
}

fn ioctl(service: &impl Service, node: INodeNo, call: Call<'_>) -> Answer<usize> {
    let arg: IoctlIn = call.arg()?;
    let input = call.rest()?.get(..arg.in_size as usize).ok_or(Errno::EINVAL)?;
    let found = service.ioctl(call.who(), node, arg.cmd, input)?;
    let mut out = reply::Out::new(call.payload);
    out.put(&IoctlOut { result: 0, flags: 0, in_iovs: 0, out_iovs: 0 })?;
    out.bytes(&found)?;
    Ok(out.len())
}

fn copy(service: &impl Service, node: INodeNo, call: Call<'_>) -> Answer<usize> {
    let arg: CopyIn = call.arg()?;
    let to = (INodeNo(arg.node_out), arg.offset_out);
    let opened_to_append = arg.fh_out & handle::APPENDS != 0;
    let size =
        service.copy(call.who(), (node, arg.offset_in), to, arg.len, opened_to_append)? as u32;
    reply::only(call.payload, &WriteOut { size, padding: 0 })
}
