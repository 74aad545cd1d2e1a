//! The interface between transports and a file system: requests and results without the bytes of
//! the protocol.
//!
//! Transports call from many threads at once. A call may wait. If a transport must know beforehand
//! whether a call waits, a separate method returns that ([`Handler::fsync_waits`],
//! [`Handler::is_written_to`]).

use crate::interrupts::Interrupts;
use crate::types::{ErrorCode, FileAttr, NodeId, WriteFlags};
use extant_engine::{FileType, NodeKind, SetAttr, Timestamp, Usage};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Result of a request.
pub type Answer<T> = Result<T, ErrorCode>;

/// Sender of a request, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Thread in the PID namespace of the server; 0 if it is outside of it.
    pub pid: u32,
}

/// A change of attributes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// The new attributes.
    pub set: SetAttr,
    /// The request names an open file: so do the kernel's own times, and truncations of open files.
    pub open: bool,
    /// A truncation removes set-id bits and capabilities: the caller lacks CAP_FSETID.
    pub strip: bool,
}

/// Mode of an inode that a request creates.
#[derive(Clone, Copy, Debug)]
pub struct CreateMode {
    /// Mode, as in open(2).
    pub bits: u32,
    /// The sender's umask. It applies unless the directory has a default ACL.
    pub umask: u32,
}

/// A write, with its origin.
#[derive(Clone, Copy, Debug)]
pub struct WriteRequest<'a> {
    /// Offset in the file in bytes.
    pub offset: u64,
    /// Content.
    pub data: &'a [u8],
    /// Flags of the request.
    pub flags: WriteFlags,
    /// The file was opened with O_APPEND. Unknown (false) for writes from the page cache.
    pub opened_to_append: bool,
    /// The descriptor has O_APPEND now.
    pub appends: bool,
}

/// Arguments of copy_file_range(2).
#[derive(Clone, Copy, Debug)]
pub struct CopyRequest {
    /// File that is read.
    pub source: NodeId,
    /// Offset in the source in bytes.
    pub source_offset: u64,
    /// File that is written.
    pub target: NodeId,
    /// Offset in the target in bytes.
    pub target_offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// The target was opened with O_APPEND.
    pub opened_to_append: bool,
}

/// Arguments of fallocate(2).
#[derive(Clone, Copy, Debug)]
pub struct FallocRequest {
    /// Start of the range in bytes.
    pub offset: u64,
    /// Length of the range in bytes.
    pub len: u64,
    /// Kind of the change, as the flags of the call.
    pub mode: i32,
}

/// Arguments of setxattr(2).
#[derive(Clone, Copy, Debug)]
pub struct SetXattrRequest<'a> {
    /// Name with its namespace.
    pub name: &'a [u8],
    /// Value.
    pub value: &'a [u8],
    /// Flags of the call.
    pub flags: i32,
}

/// Inode of a name. The kernel remembers it until it sends FORGET.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Attributes, including the node id.
    pub attr: FileAttr,
    /// Generation: differs for inodes that reuse a number.
    pub generation: u64,
}

/// A name in a listing.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a> {
    /// Node id.
    pub ino: NodeId,
    /// Cookie at which the listing continues after this name.
    pub next: u64,
    /// Type.
    pub kind: FileType,
    /// Name.
    pub name: &'a [u8],
}

/// Content that was read.
#[derive(Clone, Copy, Debug)]
pub enum Data {
    /// The number of bytes that were put into the buffer.
    Filled(usize),
    /// Static content outside of the buffer.
    Elsewhere(&'static [u8]),
}

/// Features that INIT requests from the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Wants {
    /// Caching of writes.
    pub writeback: bool,
    /// Enforcement of POSIX ACLs.
    pub acl: bool,
    /// Mounts with mapped ids. Only creations carry ids then.
    pub id_maps: bool,
}

/// Part of the kernel's cache that it must drop.
#[derive(Clone, Copy, Debug)]
pub enum Invalidation {
    /// Attributes of an inode, and its pages from a byte offset (negative: no pages) for a number
    /// of bytes (0: to the end).
    Pages(NodeId, i64, i64),
    /// All of an unused inode. Needs Linux 6.18.
    Inode(NodeId),
}

/// Sends an invalidation to the kernel.
pub type Tell = Box<dyn Fn(Invalidation) -> io::Result<()> + Send + Sync>;

/// A file system as the kernel's FUSE sees it. Methods with a default are optional; most defaults
/// return `ENOSYS`.
pub trait Handler: Send + Sync + 'static {
    /// Returns the features to request from the kernel.
    fn wants(&self) -> Wants;

    /// Returns whether every request counts as one of root.
    fn acts_as_root(&self) -> bool {
        false
    }

    /// Returns the time for which the kernel may cache names and attributes.
    fn time_to_live(&self) -> Duration;

    /// Receives the function that sends invalidations. Called once, before the first request.
    fn connect(&self, _tell: Tell) {}

    /// Notes whether requests come through rings. Called once, before the first request.
    fn note_transport(&self, _rings: bool) {}

    /// Ends the file system. Called after the last request, possibly twice.
    fn end(&self) {}

    /// Looks up a name; `None` if it does not exist. Counts one lookup.
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Answer<Option<Entry>>;

    /// Returns the means to interrupt long requests, if the file system supports it.
    fn interrupts(&self) -> Option<&Arc<Interrupts>> {
        None
    }

    /// Subtracts lookups that the kernel has forgotten.
    fn forget(&self, ino: NodeId, lookups: u64);

    /// Returns attributes. `open`: the request names a file that is, or may be, open for writing.
    fn attr(&self, ino: NodeId, open: bool) -> Answer<FileAttr>;

    /// Returns attributes and the time of birth, if that is known.
    fn attr_and_birth(&self, _ino: NodeId) -> Answer<(FileAttr, Option<Timestamp>)> {
        Err(ErrorCode::ENOSYS)
    }

    /// Changes attributes. Returns all of them, and for how long the kernel may keep them.
    fn set_attr(
        &self,
        credentials: Credentials,
        ino: NodeId,
        change: Change,
    ) -> Answer<(FileAttr, Duration)>;

    /// Returns the target of a symlink.
    fn read_link(&self, ino: NodeId) -> Answer<Vec<u8>>;

    /// Creates an inode with a name. Counts one lookup.
    fn make(
        &self,
        credentials: Credentials,
        at: (NodeId, &[u8]),
        mode: CreateMode,
        what: NodeKind<'_>,
    ) -> Answer<Entry>;

    /// Creates and opens a file. Counts one lookup.
    fn create(
        &self,
        credentials: Credentials,
        at: (NodeId, &[u8]),
        mode: CreateMode,
        flags: i32,
    ) -> Answer<Entry>;

    /// Creates and opens a file without a name. The directory `dir` determines owner and flags.
    /// Counts one lookup.
    fn create_nameless(
        &self,
        _who: Credentials,
        _dir: NodeId,
        _mode: CreateMode,
        _flags: i32,
    ) -> Answer<Entry> {
        Err(ErrorCode::ENOSYS)
    }

    /// Removes a name, not of a directory.
    fn unlink(&self, parent: NodeId, name: &[u8]) -> Answer<()>;

    /// Removes an empty directory.
    fn rmdir(&self, parent: NodeId, name: &[u8]) -> Answer<()>;

    /// Renames, with the flags of renameat2(2). A whiteout belongs to the sender.
    fn rename(
        &self,
        credentials: Credentials,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: u32,
    ) -> Answer<()>;

    /// Adds a name to an inode. Counts one lookup.
    fn link(&self, _ino: NodeId, _parent: NodeId, _name: &[u8]) -> Answer<Entry> {
        Err(ErrorCode::EPERM)
    }

    /// Returns whether the kernel may open files without a request. Handles of later requests are 0
    /// then, except those of files that the kernel made.
    fn needs_no_opens(&self) -> bool {
        false
    }

    /// Opens, with the flags of open(2).
    fn open(&self, ino: NodeId, flags: i32) -> Answer<()>;

    /// Returns whether descriptors that are opened to append now must bypass the page cache, so
    /// that each of their writes is a request.
    fn is_append_only(&self, _ino: NodeId) -> bool {
        false
    }

    /// Returns the number of a file that is opened now, below 2^62. Later requests carry it.
    fn descriptor(&self, _ino: NodeId) -> u64 {
        0
    }

    /// Handles the last close of a file that was opened with these flags, and got this number.
    fn release(&self, ino: NodeId, descriptor: u64, flags: i32) -> Answer<()>;

    /// Notes an access: a descriptor for reading reads content that the kernel does not have.
    /// Called where opens need no requests.
    fn note_read(&self, _ino: NodeId) {}

    /// Reads.
    fn read(&self, ino: NodeId, offset: u64, buf: &mut [u8]) -> Answer<Data>;

    /// Writes.
    fn write(
        &self,
        credentials: Credentials,
        ino: NodeId,
        write: WriteRequest<'_>,
    ) -> Answer<usize>;

    /// Makes a file durable, for a descriptor that got this number when it was opened; where opens
    /// need no requests, the number is that of the calling thread.
    fn fsync(&self, ino: NodeId, descriptor: u64, datasync: bool) -> Answer<()>;

    /// Returns whether [`Handler::fsync`] waits for a device.
    fn fsync_waits(&self) -> bool {
        true
    }

    /// Makes everything durable.
    fn sync(&self) -> Answer<()> {
        Err(ErrorCode::ENOSYS)
    }

    /// Returns the block of the device for a block of a file, in units of `block_size`; 0 for a
    /// hole. The kernel has written its cache of the file before.
    fn place(&self, _ino: NodeId, _block: u64, _block_size: u32) -> Answer<u64> {
        Err(ErrorCode::ENOSYS)
    }

    /// Lists names from a cookie on, until `each` refuses one.
    fn list(&self, ino: NodeId, from: u64, each: &mut dyn FnMut(Listed<'_>) -> bool) -> Answer<()>;

    /// Lists names with attributes, where these are available. Each name but the dots counts one
    /// lookup; a name that is refused, or has no entry, counts none.
    fn list_plus(
        &self,
        ino: NodeId,
        from: u64,
        each: &mut dyn FnMut(Listed<'_>, Option<&Entry>) -> bool,
    ) -> Answer<()>;

    /// Returns used and free space in blocks of [`Handler::block_size`].
    fn usage(&self) -> Usage {
        Usage::default()
    }

    /// Returns the size of a block in bytes.
    fn block_size(&self) -> u32 {
        512
    }

    /// Sets an attribute.
    fn set_xattr(
        &self,
        _who: Credentials,
        _ino: NodeId,
        _request: SetXattrRequest<'_>,
    ) -> Answer<()> {
        Err(ErrorCode::ENOSYS)
    }

    /// Returns the value of an attribute.
    fn xattr(&self, _ino: NodeId, _name: &[u8]) -> Answer<Vec<u8>> {
        Err(ErrorCode::ENOSYS)
    }

    /// Returns the names of all attributes that the caller may see, each followed by a zero byte.
    fn list_xattrs(&self, _who: Credentials, _ino: NodeId) -> Answer<Vec<u8>> {
        Err(ErrorCode::ENOSYS)
    }

    /// Removes an attribute.
    fn remove_xattr(&self, _ino: NodeId, _name: &[u8]) -> Answer<()> {
        Err(ErrorCode::ENOSYS)
    }

    /// Answers an ioctl.
    fn ioctl(&self, _who: Credentials, _ino: NodeId, _cmd: u32, _input: &[u8]) -> Answer<Vec<u8>> {
        Err(ErrorCode::ENOSYS)
    }

    /// Changes the space of a file.
    fn allocate(&self, _who: Credentials, _ino: NodeId, _request: FallocRequest) -> Answer<()> {
        Err(ErrorCode::ENOSYS)
    }

    /// Searches for data or a hole as lseek(2). The search does not see unwritten data of the
    /// kernel.
    fn seek(&self, _ino: NodeId, _offset: i64, _whence: i32) -> Answer<u64> {
        Err(ErrorCode::ENOSYS)
    }

    /// Returns whether the kernel may have unwritten data of this file. If so, the transport must
    /// call [`Handler::write_back_holes`] before a seek and [`Handler::write_back`] before
    /// [`Handler::place`].
    fn is_written_to(&self, _ino: NodeId) -> bool {
        false
    }

    /// Returns whether an ioctl forbids writes to the file. If so, the transport must call
    /// [`Handler::write_back`] first.
    fn forbids_writes(&self, _ino: NodeId, _cmd: u32, _input: &[u8]) -> bool {
        false
    }

    /// Makes the kernel write its cache of an open file and drop it. Its writes are requests, so
    /// only threads that do not receive requests may call this.
    fn write_back(&self, _ino: NodeId) {}

    /// As [`Handler::write_back`], limited to data that may change the result of a
    /// [`Handler::seek`].
    fn write_back_holes(&self, ino: NodeId, _offset: i64, _whence: i32) {
        self.write_back(ino);
    }

    /// Notes that the kernel reads content of this file into its page cache.
    fn read_into_pages(&self, _ino: NodeId) {}

    /// Notes a write that bypassed the page cache. Returns whether the kernel may have older pages
    /// of this file, which [`Handler::write_back`] drops. Until the next read into pages the result
    /// is false.
    fn outdates_pages(&self, _ino: NodeId) -> bool {
        false
    }

    /// As [`Handler::write_back`], later on another thread.
    fn write_back_later(&self, _ino: NodeId) {}

    /// Copies content and returns the number of copied bytes.
    fn copy(&self, _who: Credentials, _request: CopyRequest) -> Answer<usize> {
        Err(ErrorCode::ENOSYS)
    }
}
