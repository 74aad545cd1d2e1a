//! Structures and numbers of the protocol, as `linux/fuse.h` defines them (version 7.45), in native
//! byte order.

use rustix::fs::OFlags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Opcodes of requests.
pub mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const INIT: u32 = 26;
    pub const READDIR: u32 = 28;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const BMAP: u32 = 37;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
}

/// Defines structures and asserts their sizes.
macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident = $bytes:literal { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $(pub $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $bytes);
    )*};
}

structures! {
    /// Header of a request.
    InHeader = 40 {
        len: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32, extra: u32,
    }
    /// The first request.
    InitIn = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
    /// One inode of a batch of FORGET.
    ForgetOne = 16 { node: u64, lookups: u64 }
    /// Header of a batch of [`ForgetOne`].
    BatchForgetIn = 8 { count: u32, dummy: u32 }
    /// GETATTR.
    GetAttrIn = 16 { flags: u32, dummy: u32, fh: u64 }
    /// SETATTR; `valid` selects the attributes to change.
    SetAttrIn = 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64,
        atime: i64, mtime: i64, ctime: i64, atime_nsec: u32, mtime_nsec: u32, ctime_nsec: u32,
        mode: u32, unused: u32, uid: u32, gid: u32, unused2: u32,
    }
    /// MKNOD.
    MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
    /// MKDIR.
    MkdirIn = 8 { mode: u32, umask: u32 }
    /// RENAME: the target directory.
    RenameIn = 8 { new_dir: u64 }
    /// RENAME2: the target directory, and the flags of renameat2(2).
    Rename2In = 16 { new_dir: u64, flags: u32, padding: u32 }
    /// LINK: the inode that gets another name.
    LinkIn = 8 { node: u64 }
    /// OPEN and OPENDIR.
    OpenIn = 8 { flags: i32, open_flags: u32 }
    /// CREATE.
    CreateIn = 16 { flags: i32, mode: u32, umask: u32, open_flags: u32 }
    /// RELEASE.
    ReleaseIn = 24 { fh: u64, flags: i32, release_flags: u32, lock_owner: u64 }
    /// READ, READDIR and READDIRPLUS.
    ReadIn = 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: i32, padding: u32,
    }
    /// WRITE.
    WriteIn = 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: i32,
        padding: u32,
    }
    /// FSYNC and FSYNCDIR.
    FsyncIn = 16 { fh: u64, flags: u32, padding: u32 }
    /// SETXATTR, in the form without FUSE_SETXATTR_EXT.
    SetXattrIn = 8 { size: u32, flags: i32 }
    /// GETXATTR and LISTXATTR: size of the buffer for the value or the names.
    GetXattrIn = 8 { size: u32, padding: u32 }
    /// IOCTL.
    IoctlIn = 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    /// FALLOCATE.
    FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: i32, padding: u32 }
    /// LSEEK: a search for data or holes.
    LseekIn = 24 { fh: u64, offset: i64, whence: i32, padding: u32 }
    /// COPY_FILE_RANGE.
    CopyIn = 56 {
        fh_in: u64, offset_in: u64, node_out: u64, fh_out: u64, offset_out: u64, len: u64,
        flags: u64,
    }
    /// BMAP: the location of a file's block.
    BmapIn = 16 { block: u64, block_size: u32, padding: u32 }
    /// SYNCFS.
    SyncfsIn = 8 { padding: u64 }
    /// STATX: attributes with the birth time.
    StatxIn = 24 { getattr_flags: u32, reserved: u32, fh: u64, flags: u32, mask: u32 }
}

/// Returns the length in bytes of the structure between the header of a request and its names or
/// data.
pub fn argument(opcode: u32) -> usize {
    match opcode {
        op::GETATTR => size_of::<GetAttrIn>(),
        op::SETATTR => size_of::<SetAttrIn>(),
        op::MKNOD => size_of::<MknodIn>(),
        op::MKDIR => size_of::<MkdirIn>(),
        op::RENAME => size_of::<RenameIn>(),
        op::RENAME2 => size_of::<Rename2In>(),
        op::LINK => size_of::<LinkIn>(),
        op::OPEN => size_of::<OpenIn>(),
        op::READ | op::READDIR | op::READDIRPLUS => size_of::<ReadIn>(),
        op::WRITE => size_of::<WriteIn>(),
        op::RELEASE => size_of::<ReleaseIn>(),
        op::FSYNC | op::FSYNCDIR => size_of::<FsyncIn>(),
        op::SETXATTR => size_of::<SetXattrIn>(),
        op::GETXATTR | op::LISTXATTR => size_of::<GetXattrIn>(),
        op::CREATE | op::TMPFILE => size_of::<CreateIn>(),
        op::BMAP => size_of::<BmapIn>(),
        op::IOCTL => size_of::<IoctlIn>(),
        op::FALLOCATE => size_of::<FallocateIn>(),
        op::LSEEK => size_of::<LseekIn>(),
        op::COPY_FILE_RANGE => size_of::<CopyIn>(),
        op::SYNCFS => size_of::<SyncfsIn>(),
        op::STATX => size_of::<StatxIn>(),
        _ => 0,
    }
}

structures! {
    /// Header of a reply.
    OutHeader = 16 { len: u32, error: i32, unique: u64 }
    /// Reply to the first request.
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32,
        max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    /// Attributes.
    Attributes = 88 {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64,
        atime_nsec: u32, mtime_nsec: u32, ctime_nsec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    /// Inode of a name.
    EntryOut = 128 {
        node: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attributes,
    }
    /// Attributes, with the time for which the kernel may cache them.
    AttrOut = 104 { valid: u64, valid_nsec: u32, dummy: u32, attr: Attributes }
    /// An open file.
    OpenOut = 16 { fh: u64, flags: u32, backing: i32 }
    /// Number of bytes written.
    WriteOut = 8 { size: u32, padding: u32 }
    /// Size and free space of the file system.
    StatfsOut = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64,
        bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
    /// Size of a value or of names, in bytes.
    GetXattrOut = 8 { size: u32, padding: u32 }
    /// Result of an ioctl.
    IoctlOut = 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    /// Offset of the found data or hole.
    LseekOut = 8 { offset: u64 }
    /// Block of the device; 0 for a hole.
    BmapOut = 8 { block: u64 }
    /// A time.
    Time = 16 { sec: i64, nsec: u32, reserved: i32 }
    /// Attributes; `mask` lists the valid ones.
    StatxOut = 288 {
        valid: u64, valid_nsec: u32, dummy: u32, spare: [u64; 2],
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: Time, btime: Time,
        ctime: Time, mtime: Time,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// A name in a listing; the name follows, padded to 8 bytes.
    Dirent = 24 { ino: u64, off: u64, namelen: u32, kind: u32 }
    /// Notice: the kernel must drop its cache of an inode.
    InvalInode = 24 { ino: u64, off: i64, len: i64 }
    /// Notice: the kernel must forget unused inodes. `count` numbers follow, here one.
    Prune = 24 { count: u32, padding: u32, spare: u64, ino: u64 }
}

/// Code of [`InvalInode`] in the error field of the header.
pub const NOTIFY_INVAL_INODE: i32 = 2;

/// Code of [`Prune`].
pub const NOTIFY_PRUNE: i32 = 9;

/// Bit of [`ReadIn::flags`]: the descriptor bypasses the page cache.
pub const DIRECT: i32 = OFlags::DIRECT.bits() as i32;

/// Bits of [`StatxOut::mask`].
pub mod statx {
    pub const BASIC: u32 = 0x7ff;
    pub const BIRTH: u32 = 0x800;
}

/// Bits of [`SetAttrIn::valid`].
pub mod set {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const OPEN: u32 = 1 << 6;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SET_IDS: u32 = 1 << 11;
}
