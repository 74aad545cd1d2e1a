//! The levels of locks. [`levels`](crate::levels) explains and checks their order.

/// Lock levels, from the outermost to the innermost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// A freeze of the file system, from its first write until the thaw: one at a time.
    FsState,
    /// The freeing of unreferenced inodes: one thread at a time, together with all locks that it
    /// needs.
    Reaper,
    /// The rename lock, for moving a directory to another parent.
    Rename,
    /// The inode lock of a directory.
    Directory,
    /// The inode lock of any other inode.
    Inode,
    /// A byte range of one inode: the read-modify-write of partial blocks.
    InodeRange,
    /// The reservation of space for pages, and threads that wait for space.
    SetAside,
    /// The writeback of a page or an inode in progress.
    PageWriteback,
    /// A quota file while a record is added.
    QuotaFile,
    /// An open journal handle. It is not a lock, but is ordered as one: see
    /// [`enter`](crate::levels::enter).
    Handle,
    /// The map of an inode from logical to physical blocks.
    Map,
    /// The bitmaps of a block group.
    Group,
    /// The free-space tree of a flex group.
    FreeSpace,
    /// The orphan list and the orphan file's overflow.
    Orphan,
    /// The body of an inode in memory and its slot in the inode table block.
    InodeBody,
    /// Usage changes that threads have not yet added up, and the quota owners in memory.
    Quota,
    /// The allocator's lists: preallocations, locality groups, criteria.
    Alloc,
    /// The counts and flags of a group descriptor.
    GroupDesc,
    /// The superblock's fields in memory.
    SuperBlock,
    /// The bytes of one cached block.
    Buffer,
    /// The journal's state: running and committing transaction, head and tail.
    JournalState,
    /// The lists of a transaction.
    JournalList,
    /// One shard of the inode table.
    InodeCacheShard,
    /// One shard of the dentry table.
    DentryShard,
    /// One shard of a list of least recently used objects.
    Lru,
    /// One shard of the block cache or the page cache.
    CacheShard,
    /// The zeroes that a file's last block still lacks, also while they are written.
    PendingZeroes,
    /// The block of multi-mount protection, also while it is read and written.
    HostClaim,
    /// The maps of a disk image from its disk to its file, also while changes of them are written.
    DiskImage,
    /// A block of a device that takes whole blocks only, while a part of it is changed.
    AlignedBlock,
    /// The inside of a device: its pages, its log or its fault plan.
    Device,
    /// A lock inside which no other lock is taken.
    Leaf,
}

/// All levels in their order.
pub const ALL: [Level; Level::Leaf as usize + 1] = [
    Level::FsState,
    Level::Reaper,
    Level::Rename,
    Level::Directory,
    Level::Inode,
    Level::InodeRange,
    Level::SetAside,
    Level::PageWriteback,
    Level::QuotaFile,
    Level::Handle,
    Level::Map,
    Level::Group,
    Level::FreeSpace,
    Level::Orphan,
    Level::InodeBody,
    Level::Quota,
    Level::Alloc,
    Level::GroupDesc,
    Level::SuperBlock,
    Level::Buffer,
    Level::JournalState,
    Level::JournalList,
    Level::InodeCacheShard,
    Level::DentryShard,
    Level::Lru,
    Level::CacheShard,
    Level::PendingZeroes,
    Level::HostClaim,
    Level::DiskImage,
    Level::AlignedBlock,
    Level::Device,
    Level::Leaf,
];
