//! The in-memory inode and its place in the inode table.
//!
//! # Invariants
//! - Memory is authoritative: a slot in the table is made from the body once per transaction, at
//!   freeze ([`DirtyInodes::freeze`]). Until then the slot's block is only joined to the
//!   transaction.
//! - Every change of a body happens through [`Step::edit`].
//!
//! # Locking
//! `rw` (level Directory or Inode) > handle > `map` (Map) > `body` (InodeBody, innermost of the
//! three).

#[cfg(feature = "designs")]
pub mod designs;
mod dir_state;
mod dirty;
mod hints;
mod lazy;
mod load;
mod map_cache;
mod orphan_slot;
mod pages;
mod pointer_places;
mod published;
mod table;
mod tx;
mod verity_state;
mod xattr_area;

pub use dir_state::{DirCaches, Window, WindowEntry};
pub use dirty::DirtyInodes;
pub use hints::{Hint, Hints};
pub use map_cache::{ExtentState, MapCache, Run};
pub use orphan_slot::{OrphanAt, OrphanCell};
pub use pages::{
    Content, Cover, ErrorCursor, PageBudget, PageMap, Pages, PendingZeroes, Place, Remapped, Taken,
    Work,
};
pub use pointer_places::PointerPlaces;
pub use published::{Ownership, StatSnapshot};
pub use table::InodeTable;
pub use tx::{Step, Tx};
pub use verity_state::Verity;
pub use xattr_area::Tail;

use crate::alloc::NewInode;
use crate::error::{Errno, Result};
use extant_format::inode as disk;
use extant_format::types::{FileType, InodeNr};
use extant_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use extant_sync::life::HoldState;
use extant_sync::lockref::Lockref;
use extant_sync::{ArcRwLock, Level, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use lazy::{Lazy, Make};
use published::Published;
use std::ops::{Deref, DerefMut};

/// The decoded slot of the inode table, and the attribute area in the inode.
#[derive(Debug, Clone)]
pub struct Body {
    /// All fields.
    pub disk: disk::Inode,
    /// Bytes of the slot behind `128 + extra_isize` (the in-inode xattr area); empty for 128-byte
    /// inodes.
    pub tail: Tail,
}

impl Body {
    /// Whether it may have extended attributes: a block of them, or an area in use, which starts
    /// with a magic number.
    pub fn has_attributes(&self) -> bool {
        self.disk.file_acl != 0
            || self.tail.first_chunk::<4>().is_some_and(|magic| *magic != [0; 4])
    }
}

impl Deref for Body {
    type Target = disk::Inode;
    fn deref(&self) -> &disk::Inode {
        &self.disk
    }
}

impl DerefMut for Body {
    fn deref_mut(&mut self) -> &mut disk::Inode {
        &mut self.disk
    }
}

/// An inode in memory. There is at most one for a number at a time.
///
/// The order in memory matters: the fields that stat(2) reads come first, on two or three cache
/// lines.
#[derive(Debug)]
#[repr(C)]
pub struct Inode {
    /// The fields that opening and closing write, side by side.
    counts: Counts,
    /// Its number.
    pub ino: InodeNr,
    /// Its generation; a number that is used again gets a new `Inode`.
    pub generation: u32,
    /// Checksum seed of its blocks.
    pub seed: u32,
    /// Type, immutable.
    pub ftype: FileType,
    /// The root of the extent tree was verified since it was read.
    pub root_verified: AtomicBool,
    /// It has no name, and the inode cache does not have it. Changed under `rw`, except by its
    /// creator.
    pub unlisted: AtomicBool,
    /// It was made without a name and never had one: a link may give it its first. Changed under
    /// `rw`, but by its maker.
    pub linkable: AtomicBool,
    published: Published,
    /// Pages of a regular file.
    pub pages: Pages,
    /// Serialises operations on the file's content, or on the directory's entries.
    pub rw: ArcRwLock<()>,
    /// Logical to physical map: guards the extent tree (or indirect blocks) and caches it.
    pub map: Lazy<RwLock<MapCache>>,
    /// Where the pointer blocks of its map belong.
    pub pointer_places: Lazy<PointerPlaces>,
    /// The verification state of a file with a hash tree.
    pub verity: Lazy<Verity>,
    /// Caches of a directory.
    pub dir: Lazy<DirCaches>,
    /// Orphan record.
    pub orphan: OrphanCell,
    /// Blocks that were promised to the inode and that its owners' limits count, though they are
    /// not booked yet. Changed under the body's lock.
    pub promised: AtomicU64,
    /// Transaction in which the body was last marked dirty (0: never).
    dirty_tid: AtomicU64,
    /// Where it is listed in that transaction, if it was made there.
    made_at: AtomicU32,
    /// The mounting that it belongs to: see [`extant_blocks::MountedDevice::id`].
    pub mounting: u32,
    /// Hints for guesses of the next requests.
    pub hints: Hints,
    /// Last transaction that an fsync must wait for.
    pub sync_tid: AtomicU64,
    /// Last transaction that an fdatasync must wait for (size and map, not times).
    pub datasync_tid: AtomicU64,
    body: Mutex<Body>,
}

/// Written together, so on one line of a cache.
#[derive(Debug)]
#[repr(align(16))]
struct Counts {
    /// References that keep the inode in memory; the table's.
    refs: Lockref,
    /// Holders (open files, lookups of a FUSE kernel) that keep a nameless inode alive. Its end is
    /// that it is freed: its number may be another's then, and nothing of it is written any more.
    life: HoldState,
}

/// Exclusive access to a body, already marked dirty in the handle's transaction.
#[derive(Debug)]
pub struct BodyMut<'a> {
    body: MutexGuard<'a, Body>,
    published: &'a Published,
}

impl Drop for BodyMut<'_> {
    fn drop(&mut self) {
        self.published.publish(&self.body);
    }
}

impl Deref for BodyMut<'_> {
    type Target = Body;
    fn deref(&self) -> &Body {
        &self.body
    }
}

impl DerefMut for BodyMut<'_> {
    fn deref_mut(&mut self) -> &mut Body {
        &mut self.body
    }
}

impl Make for RwLock<MapCache> {
    fn make() -> Self {
        RwLock::new(Level::Map, MapCache::default())
    }
}

impl Inode {
    /// The bytes of an inode in memory without pages and attributes: itself, its lock's allocation,
    /// its entries in the cache and on a list, and the allocator's overhead for each.
    pub const BYTES: u64 = {
        let own = size_of::<Inode>() + 16 + 16;
        let lock = size_of::<RwLock<()>>() + 16 + 16;
        (own + lock + 64 + 16 + 8 + 12) as u64
    };

    /// Returns the fields of the body that stat(2) needs, without its lock.
    #[inline(always)]
    pub fn stat(&self) -> StatSnapshot {
        self.published.read().unwrap_or_else(|| StatSnapshot::from(&*self.body()))
    }

    /// The fields that permissions depend on, without the lock of the body.
    #[inline(always)]
    pub fn ownership(&self) -> Ownership {
        self.published.ownership().unwrap_or_else(|| Ownership::from(&*self.body()))
    }

    /// Type and permissions, as [`Inode::stat`] has them.
    #[inline]
    pub fn mode(&self) -> u16 {
        self.published.kind().0
    }

    /// Links.
    #[inline]
    pub fn links(&self) -> u16 {
        self.published.kind().1
    }

    /// Flags.
    #[inline]
    pub fn flags(&self) -> disk::InodeFlags {
        self.published.kind().2
    }

    /// Where inodes that belong to this one are wanted.
    pub fn near(&self) -> NewInode {
        let is_top = || self.flags().contains(disk::InodeFlags::TOPDIR);
        NewInode { parent: self.ino, spread: self.ino == InodeNr::ROOT || is_top() }
    }

    /// The count that the inode table keeps.
    pub fn refs(&self) -> &Lockref {
        &self.counts.refs
    }

    /// The body for reading. Take no other lock while holding it.
    pub fn body(&self) -> MutexGuard<'_, Body> {
        self.body.lock()
    }

    /// The body for changing, which [`Step::edit`] gives out.
    fn body_mut(&self) -> BodyMut<'_> {
        BodyMut { body: self.body.lock(), published: &self.published }
    }

    /// File size in bytes as users see it. For a regular file it may be ahead of the body's, which
    /// is the size on disk.
    #[inline]
    pub fn size(&self) -> u64 {
        match self.ftype {
            FileType::Regular => self.pages.size(),
            _ => self.stat().size,
        }
    }

    /// Whether the file's content goes through the journal: freed blocks have to be revoked then.
    pub fn logs_data(&self, table: &InodeTable) -> bool {
        self.ftype == FileType::Regular
            && (table.policy.log_data || self.flags().contains(disk::InodeFlags::JOURNAL_DATA))
    }

    /// Makes fsync and fdatasync wait for the handle's transaction: it changes the map, the size or
    /// logged data. The inode must be dirty in that transaction ([`Step::touch`]): eviction would
    /// lose the ids of one that is not.
    pub fn note_datasync(&self, step: &Step<'_>) {
        let tid = step.tid().0;
        for id in [&self.datasync_tid, &self.sync_tid] {
            // The ids only grow: a thread that reads a large one has nothing to add.
            if id.load(Ordering::Acquire) < tid {
                id.fetch_max(tid, Ordering::AcqRel);
            }
        }
    }

    /// Locks the content for reading. ESTALE if the inode is being freed or was: the freeing thread
    /// takes the lock after its mark, so that nothing is freed under this lock.
    pub fn read_lock(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let guard = self.rw.read();
        self.check_not_freed()?;
        Ok(guard)
    }

    /// Locks the content for changing. ESTALE as with [`Inode::read_lock`].
    pub fn write_lock(&self) -> Result<RwLockWriteGuard<'_, ()>> {
        let guard = self.rw.write();
        self.check_not_freed()?;
        Ok(guard)
    }

    /// ESTALE if the inode is being freed or was.
    pub fn check_not_freed(&self) -> Result<()> {
        if self.freeing() { Err(Errno::Stale.into()) } else { Ok(()) }
    }

    /// Whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.ftype == FileType::Directory
    }

    /// Keeps the inode alive even without links; fails once its freeing has begun.
    pub fn hold(&self, n: u64) -> Result<()> {
        if self.counts.life.hold(n) { Ok(()) } else { Err(Errno::Stale.into()) }
    }

    /// Gives `n` holds back; true if none is left.
    pub fn release(&self, n: u64) -> bool {
        self.counts.life.release(n)
    }

    /// Forgets all holders: the mount that they came through is gone.
    pub fn drop_holds(&self) {
        self.counts.life.drop_holds();
    }

    /// Begins to free the inode if it has no holder. Returns true for exactly one caller. A thread
    /// that removes the last name calls this afterwards: either the inode then has no holder, or
    /// its last holder sees that the name is gone.
    pub fn begin_free(&self) -> bool {
        self.counts.life.begin_end()
    }

    /// Takes [`Self::begin_free`] back: the inode got a name meanwhile.
    pub fn cancel_free(&self) {
        self.counts.life.cancel_end();
    }

    /// Marks the inode as freed: remaining references cannot change it any more. The caller must
    /// hold `rw` for writing.
    pub fn end_free(&self) {
        self.counts.life.end();
    }

    /// Whether the inode has been freed.
    pub fn gone(&self) -> bool {
        self.counts.life.ended()
    }

    /// How many hold the inode.
    pub fn holds(&self) -> u64 {
        self.counts.life.holds()
    }

    /// Returns whether the inode has a holder.
    pub fn held(&self) -> bool {
        self.counts.life.held()
    }

    /// Whether freeing has begun.
    #[inline]
    pub fn freeing(&self) -> bool {
        self.counts.life.ending()
    }

    fn level(ftype: FileType) -> Level {
        match ftype {
            FileType::Directory => Level::Directory,
            _ => Level::Inode,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields that stat(2) reads are at the beginning of an inode.
    #[test]
    fn fields_of_stat_share_cache_lines() {
        let end = std::mem::offset_of!(Inode, pages) + Pages::LOOKED_AT;
        assert!(end <= if cfg!(debug_assertions) { 136 } else { 128 }, "{end} bytes");
    }

    /// Less than the kernel's 1.1 KB. Builds that check the order of locks have a byte or a word
    /// more in each.
    #[test]
    fn an_inode_in_memory_is_small() {
        let bound = if cfg!(debug_assertions) { 800 } else { 700 };
        assert!(
            Inode::BYTES <= bound,
            "{} bytes, {} of them its own",
            Inode::BYTES,
            size_of::<Inode>()
        );
    }
}
