//! Types of requests and replies as handlers see them. The layouts on the wire are in
//! [`abi`](crate::protocol::abi); numbers here are those of `linux/fuse.h`.

use bitflags::bitflags;
use extant_engine::{FileType, Timestamp};

/// Node id: the number by which the protocol names an inode. It is the inode's number on ext4,
/// except for the root directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root directory.
    pub const ROOT: NodeId = NodeId(1);
}

/// The error of a reply: a positive errno value, which the reply carries negated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(i32);

/// Defines constants for errno values of Linux.
macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl ErrorCode {
            $($(#[$doc])* pub const $name: ErrorCode = ErrorCode($code);)*
        }
    };
}

error_codes! {
    /// The operation is not permitted.
    EPERM = 1;
    /// No such file or directory.
    ENOENT = 2;
    /// Input/output error.
    EIO = 5;
    /// The resource is busy.
    EBUSY = 16;
    /// The file exists.
    EEXIST = 17;
    /// The argument is invalid.
    EINVAL = 22;
    /// The result is too large for its buffer.
    ERANGE = 34;
    /// The request is not implemented; for several requests the kernel then sends no more of them.
    ENOSYS = 38;
    /// The directory is not empty.
    ENOTEMPTY = 39;
    /// There is no such attribute.
    ENODATA = 61;
    /// The node id is stale.
    ESTALE = 116;
}

impl ErrorCode {
    /// Returns the error code of an errno value; `EIO` for values that are no error.
    pub fn new(errno: i32) -> ErrorCode {
        if errno > 0 { ErrorCode(errno) } else { ErrorCode::EIO }
    }

    /// Returns the errno value, which is positive.
    pub fn code(self) -> i32 {
        self.0
    }
}

/// Attributes of an inode. The default stands for a name that does not exist: node id 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileAttr {
    /// Node id.
    pub ino: NodeId,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Access time.
    pub atime: Timestamp,
    /// Modification time.
    pub mtime: Timestamp,
    /// Change time.
    pub ctime: Timestamp,
    /// Type; [`FileType::Unknown`] is reported as a regular file.
    pub kind: FileType,
    /// Permission bits with set-id bits and the sticky bit (`0o7777`).
    pub perm: u16,
    /// Number of links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a special file, in the kernel's 32-bit form.
    pub rdev: u32,
    /// Preferred size of requests in bytes.
    pub blksize: u32,
}

/// Returns a device number in the kernel's 32-bit form.
pub fn encode_rdev((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// Returns major and minor of a device number in the kernel's 32-bit form.
pub fn decode_rdev(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xfff00))
}

bitflags! {
    /// Capabilities that INIT negotiates: the kernel offers them, the server takes a subset. The
    /// upper 32 bits are the field `flags2`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct InitFlags: u64 {
        /// Reads of one file run in parallel.
        const ASYNC_READ = 1 << 0;
        /// Lookups of `.` and `..` are answered, as NFS needs them.
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes exceed one page.
        const BIG_WRITES = 1 << 5;
        /// The server applies the umask.
        const DONT_MASK = 1 << 6;
        /// Directories have ioctls.
        const HAS_IOCTL_DIR = 1 << 11;
        /// Listings carry attributes.
        const DO_READDIRPLUS = 1 << 13;
        /// The kernel decides which listings carry attributes.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Direct requests run asynchronously.
        const ASYNC_DIO = 1 << 15;
        /// The kernel caches writes.
        const WRITEBACK_CACHE = 1 << 16;
        /// Lookups and listings of one directory run in parallel.
        const PARALLEL_DIROPS = 1 << 18;
        /// The kernel enforces POSIX ACLs.
        const POSIX_ACL = 1 << 20;
        /// `max_pages` limits the size of a request.
        const MAX_PAGES = 1 << 22;
        /// The kernel caches targets of symlinks.
        const CACHE_SYMLINKS = 1 << 23;
        /// OPENDIR is optional.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// Cached pages are invalidated by notices only.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// The server removes set-id bits and capabilities where a request says so.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// `flags2` is valid.
        const INIT_EXT = 1 << 30;
        /// Mounts with mapped ids are allowed (Linux 6.12).
        const ALLOW_IDMAP = 1 << 40;
        /// Requests come through io_uring (Linux 6.14).
        const OVER_IO_URING = 1 << 41;
    }

    /// Flags of the reply to an open.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OpenReplyFlags: u32 {
        /// Reads and writes of this descriptor bypass the page cache.
        const DIRECT_IO = 1 << 0;
        /// Cached pages stay valid.
        const KEEP_CACHE = 1 << 1;
        /// Closing sends no FLUSH.
        const NOFLUSH = 1 << 5;
        /// Direct writes of one file run in parallel.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }

    /// Flags of a WRITE request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WriteFlags: u32 {
        /// The data comes from the kernel's page cache; the sender is not the writer.
        const CACHE = 1 << 0;
        /// The request names an owner of locks, as direct writes do.
        const LOCKOWNER = 1 << 1;
        /// Set-id bits and capabilities of the file must be removed.
        const KILL_SET_IDS = 1 << 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive() {
        for pair in [(0, 0), (8, 1), (259, 1_000_000), (4095, 0xf_ffff)] {
            assert_eq!(decode_rdev(encode_rdev(pair)), pair);
        }
    }

    #[test]
    fn an_errno_that_is_no_error_becomes_eio() {
        assert_eq!(ErrorCode::new(38), ErrorCode::ENOSYS);
        assert_eq!(ErrorCode::new(0), ErrorCode::EIO);
        assert_eq!(ErrorCode::new(-2), ErrorCode::EIO);
    }
}
