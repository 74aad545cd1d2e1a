//! What a transport asks of a file system: requests without the protocol's bytes, answers without
//! its replies.
//!
//! Transports call from many threads at once. A call may wait; what a transport has to know of
//! that, it asks beforehand.

use crate::interrupts::Interrupts;
use extant::{New, SetAttr, Timestamp, Usage};
use fuser::{Errno, FileAttr, FileType, INodeNo, WriteFlags};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A request's outcome.
pub type Answer<T> = Result<T, Errno>;

/// Whose request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Thread, as seen from the server; 0 if it is not seen.
    pub pid: u32,
}

/// A change of attributes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// The new attributes.
    pub set: SetAttr,
    /// The kernel names an open file: it sends its own times so, and cuts of open files.
    pub open: bool,
    /// Set-id bits and capabilities of the file go with a cut: the caller has no CAP_FSETID.
    pub strip: bool,
}

/// How a write came to be.
#[derive(Clone, Copy, Debug)]
pub struct HowWritten {
    /// As the protocol has it.
    pub flags: WriteFlags,
    /// The file was opened with O_APPEND. Not known of writes from the kernel's cache.
    pub opened_to_append: bool,
    /// The descriptor has O_APPEND now.
    pub appends: bool,
}

/// A name's inode; the kernel remembers it until it tells that it forgot it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Attributes, the number among them.
    pub attr: FileAttr,
    /// Tells inodes of one number apart.
    pub generation: u64,
}

/// A name in a listing.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a> {
    /// The inode's number.
    pub ino: INodeNo,
    /// Where the listing goes on behind it.
    pub next: u64,
    /// Type.
    pub kind: FileType,
    /// Name.
    pub name: &'a [u8],
}

/// Content that was read.
#[derive(Clone, Copy, Debug)]
pub enum Data {
    /// So many bytes of the buffer.
    Filled(usize),
    /// Lies elsewhere, for ever.
    Elsewhere(&'static [u8]),
}

/// What is asked of the kernel at the start.
#[derive(Clone, Copy, Debug)]
pub struct Wants {
    /// It collects writes.
    pub writeback: bool,
    /// It honours ACLs.
    pub acl: bool,
    /// It allows mounts whose ids are mapped. Then only creations say whose they are.
    pub id_maps: bool,
}

/// What the kernel keeps and has to drop.
#[derive(Clone, Copy, Debug)]
pub enum Old {
    /// Attributes of an inode, and its pages from a byte on (none if that is negative), so many
    /// bytes (0: all).
    Pages(INodeNo, i64, i64),
    /// An inode that nobody uses, wholly. Linux 6.18.
    Inode(INodeNo),
}

/// Tells the kernel what is old.
pub type Tell = Box<dyn Fn(Old) -> io::Result<()> + Send + Sync>;

/// A file system, as a kernel's FUSE sees it. What a method leaves out is answered with ENOSYS.
pub trait Service: Send + Sync + 'static {
    /// What is asked of the kernel.
    fn wants(&self) -> Wants;

    /// How long the kernel may keep names and attributes.
    fn time_to_live(&self) -> Duration;

    /// From now on the kernel can be told what is old. Called once, before the first request.
    fn connect(&self, _tell: Tell) {}

    /// The mount has ended: called after the last request, maybe twice.
    fn end(&self) {}

    /// The inode of a name; none if there is no such name. Counts one lookup.
    fn lookup(&self, parent: INodeNo, name: &[u8]) -> Answer<Option<Entry>>;

    /// What ends requests that take long, where that is possible.
    fn interrupts(&self) -> Option<&Arc<Interrupts>> {
        None
    }

    /// The kernel forgets so many lookups.
    fn forget(&self, ino: INodeNo, lookups: u64);

    /// Attributes; of a file that is open for writing, or by name.
    fn attr(&self, ino: INodeNo, open: bool) -> Answer<FileAttr>;

    /// Attributes, and when the inode was made, if that is known.
    fn attr_and_birth(&self, _ino: INodeNo) -> Answer<(FileAttr, Option<Timestamp>)> {
        Err(Errno::ENOSYS)
    }

    /// Changes attributes; gives them all.
    fn set_attr(&self, who: Who, ino: INodeNo, change: Change) -> Answer<FileAttr>;

    /// Where a symlink leads.
    fn read_link(&self, ino: INodeNo) -> Answer<Vec<u8>>;

    /// A new inode with a name. Counts one lookup.
    fn make(
        &self,
        who: Who,
        at: (INodeNo, &[u8]),
        mode: u32,
        umask: u32,
        what: New<'_>,
    ) -> Answer<Entry>;

    /// Makes and opens a file. Counts one lookup.
    fn create(
        &self,
        who: Who,
        at: (INodeNo, &[u8]),
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> Answer<Entry>;

    /// Makes and opens a file without a name, in the directory `dir` as far as owners and flags go.
    /// Counts one lookup.
    fn create_nameless(
        &self,
        _who: Who,
        _dir: INodeNo,
        _mode: u32,
        _umask: u32,
        _flags: i32,
    ) -> Answer<Entry> {
        Err(Errno::ENOSYS)
    }

    /// Removes a name, not of a directory.
    fn unlink(&self, parent: INodeNo, name: &[u8]) -> Answer<()>;

    /// Removes an empty directory.
    fn rmdir(&self, parent: INodeNo, name: &[u8]) -> Answer<()>;

    /// Moves a name; flags as renameat2(2) has them. A whiteout is made for the sender.
    fn rename(
        &self,
        who: Who,
        from: (INodeNo, &[u8]),
        to: (INodeNo, &[u8]),
        flags: u32,
    ) -> Answer<()>;

    /// Another name. Counts one lookup.
    fn link(&self, _ino: INodeNo, _parent: INodeNo, _name: &[u8]) -> Answer<Entry> {
        Err(Errno::EPERM)
    }

    /// Opens; flags as open(2) has them.
    fn open(&self, ino: INodeNo, flags: i32) -> Answer<()>;

    /// Whether descriptors that are opened now to append must not reach the kernel's pages: each of
    /// their writes is a request.
    fn is_append_only(&self, _ino: INodeNo) -> bool {
        false
    }

    /// The last close of what was opened with these flags.
    fn release(&self, ino: INodeNo, flags: i32) -> Answer<()>;

    /// Reads.
    fn read(&self, ino: INodeNo, offset: u64, buf: &mut [u8]) -> Answer<Data>;

    /// Writes.
    fn write(
        &self,
        who: Who,
        ino: INodeNo,
        offset: u64,
        data: &[u8],
        how: HowWritten,
    ) -> Answer<usize>;

    /// Makes durable.
    fn fsync(&self, ino: INodeNo, datasync: bool) -> Answer<()>;

    /// Whether [`Service::fsync`] waits for a device.
    fn fsync_waits(&self) -> bool {
        true
    }

    /// Makes everything durable.
    fn sync(&self) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Where a block of a file lies on the device, in blocks of that size; 0: nowhere. What the
    /// kernel keeps of the file it has written.
    fn place(&self, _ino: INodeNo, _block: u64, _block_size: u32) -> Answer<u64> {
        Err(Errno::ENOSYS)
    }

    /// Hands out names from a place in a directory, until `each` refuses one.
    fn list(&self, ino: INodeNo, from: u64, each: &mut dyn FnMut(Listed<'_>) -> bool)
    -> Answer<()>;

    /// The same with attributes, as far as they can be had. Each but the dots counts one lookup;
    /// one that was refused, or is handed out without an entry, counts none.
    fn list_plus(
        &self,
        ino: INodeNo,
        from: u64,
        each: &mut dyn FnMut(Listed<'_>, Option<&Entry>) -> bool,
    ) -> Answer<()>;

    /// Room, in blocks of [`Service::block_size`].
    fn usage(&self) -> Usage {
        Usage::default()
    }

    /// Bytes of a block.
    fn block_size(&self) -> u32 {
        512
    }

    /// Sets an attribute; flags as setxattr(2) has them.
    fn set_xattr(
        &self,
        _who: Who,
        _ino: INodeNo,
        _name: &[u8],
        _value: &[u8],
        _flags: i32,
    ) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// An attribute's value.
    fn xattr(&self, _ino: INodeNo, _name: &[u8]) -> Answer<Vec<u8>> {
        Err(Errno::ENOSYS)
    }

    /// The names of all attributes that the caller may see, each with a zero behind.
    fn list_xattrs(&self, _who: Who, _ino: INodeNo) -> Answer<Vec<u8>> {
        Err(Errno::ENOSYS)
    }

    /// Removes an attribute.
    fn remove_xattr(&self, _ino: INodeNo, _name: &[u8]) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// An ioctl.
    fn ioctl(&self, _who: Who, _ino: INodeNo, _cmd: u32, _input: &[u8]) -> Answer<Vec<u8>> {
        Err(Errno::ENOSYS)
    }

    /// fallocate(2).
    fn allocate(
        &self,
        _who: Who,
        _ino: INodeNo,
        _offset: u64,
        _length: u64,
        _mode: i32,
    ) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// lseek(2) to data or holes, as far as the kernel has written what it keeps.
    fn seek(&self, _ino: INodeNo, _offset: i64, _whence: i32) -> Answer<u64> {
        Err(Errno::ENOSYS)
    }

    /// Whether the kernel may keep data of this file that it has not written:
    /// [`Service::write_back_holes`] comes before a seek and [`Service::write_back`] before
    /// [`Service::place`] then.
    fn is_written_to(&self, _ino: INodeNo) -> bool {
        false
    }

    /// Whether an ioctl forbids writes to the file: [`Service::write_back`] comes before it then.
    fn forbids_writes(&self, _ino: INodeNo, _cmd: u32, _input: &[u8]) -> bool {
        false
    }

    /// Has the kernel write what it keeps of an open file. Its writes are requests: for threads
    /// that do not receive them.
    fn write_back(&self, _ino: INodeNo) {}

    /// As [`Service::write_back`], of what may change the answer to a [`Service::seek`] only.
    fn write_back_holes(&self, ino: INodeNo, _offset: i64, _whence: i32) {
        self.write_back(ino);
    }

    /// The kernel keeps in pages what it reads of this file now.
    fn read_into_pages(&self, _ino: INodeNo) {}

    /// Something was written past the kernel's pages: whether it may have pages of this file, from
    /// before. [`Service::write_back`] drops them; until it reads into pages again, the answer is
    /// no.
    fn outdates_pages(&self, _ino: INodeNo) -> bool {
        false
    }

    /// As [`Service::write_back`], soon.
    fn write_back_later(&self, _ino: INodeNo) {}

    /// copy_file_range(2). The file that is written to may have been opened with O_APPEND.
    fn copy(
        &self,
        _who: Who,
        _from: (INodeNo, u64),
        _to: (INodeNo, u64),
        _len: u64,
        _opened_to_append: bool,
    ) -> Answer<usize> {
        Err(Errno::ENOSYS)
    }
}
