//! The levels of locks. [`levels`](crate::levels) explains and checks their order.

/// Lock levels, from the outermost to the innermost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Freeze, remount and unmount: held for reading by each operation as a whole.
    FsState,
    /// Freeing of inodes that nobody holds any more: one thread at a time, with all locks that it
    /// needs.
    Reaper,
    /// The rename lock: a directory moves to another parent.
    Rename,
    /// A directory's inode lock.
    Directory,
    /// Any other inode's lock.
    Inode,
    /// A byte range of one inode: edges of blocks that are read, changed and written.
    InodeRange,
    /// Space that is being set aside for pages, and the thread that lacks it.
    SetAside,
    /// A page's or an inode's writeback in progress.
    PageWriteback,
    /// A quota file that gets a record.
    QuotaFile,
    /// An open journal handle. Not a lock, but ordered as one: see [`enter`](crate::levels::enter).
    Handle,
    /// An inode's map from logical to physical blocks.
    Map,
    /// A block group's bitmaps.
    Group,
    /// Free space of a flexible group in memory.
    FreeSpace,
    /// The orphan list and the orphan file's overflow.
    Orphan,
    /// An inode's in-memory body and its place in the inode table block.
    InodeBody,
    /// Changes of usage that threads keep, and the owners in memory.
    Quota,
    /// Lists of the allocator: preallocations, locality groups, criteria.
    Alloc,
    /// A group descriptor's counts and flags.
    GroupDesc,
    /// The superblock's in-memory fields.
    SuperBlock,
    /// The bytes of one cached block.
    Buffer,
    /// The journal's state: running and committing transaction, head and tail.
    JournalState,
    /// Lists that hang off a transaction.
    JournalList,
    /// One shard of the inode table.
    InodeTableShard,
    /// One shard of the dentry table.
    DentryShard,
    /// One shard of a list of least recently used objects.
    Lru,
    /// One shard of the block cache or the page cache.
    CacheShard,
    /// Inside a device: its pages, log or fault plan.
    Device,
    /// Under which nothing is ever taken.
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
    Level::InodeTableShard,
    Level::DentryShard,
    Level::Lru,
    Level::CacheShard,
    Level::Device,
    Level::Leaf,
];
