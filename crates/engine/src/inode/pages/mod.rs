//! The cached content of one regular file: pages, the size that users see, errors of writeback.
//! Plain data and their rules; `file` fills them, writes them back and drops them.
//!
//! # Invariants
//! - [`Pages::size`] is the size that users see. The next commit writes the body's size, which is
//!   smaller while data behind it have no blocks yet, and grows only in the handle that maps them.
//! - Bytes of a cached page behind the visible size are zero.
//! - A thread that adds or removes mappings of the file's data must hold [`Pages::work`].
//! - The device may lack zeroes behind the end of the file that a cut owes ([`PendingZeroes`]) only
//!   while the inode is dirty in an uncommitted transaction, which keeps it in memory.
//! - While a page is being written, and only then, the inode is on the budget's list of those
//!   under writeback. It is removed when the last such page is done, under the same lock of the
//!   page map. A file whose pages are dropped has no page under writeback.
//!
//! # Locking
//! `rw` > [`Pages::ranges`] (InodeRange) > [`Pages::work`] (PageWriteback) > handle > map > ... >
//! page map (CacheShard). Nothing is called while the page map is locked.

mod budget;
mod chunk;
mod content;
mod errors;
mod map;
mod range_lock;
mod readahead;

pub use budget::PageBudget;
pub use content::Content;
pub use errors::{ErrorCursor, ErrorSeq};
pub use map::{Cover, PageMap, Place, Remapped, Taken};
pub use range_lock::RangeLock;
pub use readahead::ReadAhead;

use super::lazy::{Lazy, Make};
use crate::alloc::Prealloc;
use crate::error::Result;
use budget::Counts;
use extant_journal::{Tid, WriteStamp};
use extant_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use extant_sync::{Level, Link, Mutex, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ops::Range;
use std::sync::Arc;

/// The inodes under writeback, and the place of an inode there.
#[cfg(not(feature = "designs"))]
type WritebackList = extant_sync::ShardedList<()>;
#[cfg(not(feature = "designs"))]
type WritebackLink = Link;
#[cfg(feature = "designs")]
use super::designs::{WritebackLink, WritebackList};

/// The file's preallocations, if it has, or may have, some.
pub type Work = Option<Arc<Prealloc>>;

/// Bytes that a cut has removed from the last block, and that the device does not have as zeroes
/// yet. They must be zeroes before the transaction of the cut is durable.
#[derive(Debug)]
pub struct PendingZeroes {
    /// Bytes of the device, within one block.
    pub bytes: Range<u64>,
    /// The transaction with the smaller size.
    pub tid: Tid,
}

/// The cached content of one file. The order in memory matters, since the inode begins with the
/// fields that stat(2) reads.
#[derive(Debug)]
#[repr(C)]
pub struct Pages {
    size: AtomicU64,
    /// Place on the list of inodes with waiting pages.
    pub dirty_link: Link,
    /// Place on the budget's list of inodes under writeback.
    writeback_link: WritebackLink,
    counts: OnceLock<Arc<Counts>>,
    map: Lazy<RwLock<PageMap>>,
    /// Serialises changes of the file's mappings: writeback, allocation, truncation.
    pub work: Lazy<Mutex<Work>>,
    /// The zeroes that the device lacks behind the end of the file. Locked while they are written.
    pub pending_zeroes: Lazy<Mutex<Option<PendingZeroes>>>,
    /// Blocks that direct writes are busy with.
    pub ranges: Lazy<RangeLock>,
    /// Sequential readers.
    pub ahead: ReadAhead,
    errors: ErrorSeq,
    /// The stamp of the newest write to the file's blocks.
    written: AtomicU64,
    /// How many have the file open for writing.
    writers: AtomicU32,
    /// How often pages were settled; changes with the map of pages locked.
    settled: AtomicU32,
    /// Whether the map is being changed for pages, and may use their share. Changes under
    /// [`Pages::work`].
    uses_share: AtomicBool,
    /// On the budget's queue of inodes with pages.
    queued: AtomicBool,
    /// Whether a client caches the content, so that pages are dropped when they are written.
    cached_elsewhere: AtomicBool,
    /// Whether the content was cut to nothing, and no last writer has closed the file since.
    replaced: AtomicBool,
}

impl Make for RwLock<PageMap> {
    fn make() -> Self {
        RwLock::new(Level::CacheShard, PageMap::default())
    }
}

impl Make for Mutex<Work> {
    fn make() -> Self {
        Mutex::new(Level::PageWriteback, None)
    }
}

impl Make for Mutex<Option<PendingZeroes>> {
    fn make() -> Self {
        Mutex::new(Level::PendingZeroes, None)
    }
}

impl Make for RangeLock {
    fn make() -> Self {
        RangeLock::default()
    }
}

impl Pages {
    /// Bytes at the beginning that stat(2) reads.
    #[cfg(test)]
    pub const LOOKED_AT: usize = std::mem::offset_of!(Pages, counts);

    /// No pages; `size` is the size on disk.
    pub fn new(size: u64) -> Pages {
        Pages {
            size: AtomicU64::new(size),
            map: Lazy::new(),
            work: Lazy::new(),
            pending_zeroes: Lazy::new(),
            ranges: Lazy::new(),
            ahead: ReadAhead::default(),
            errors: ErrorSeq::default(),
            written: AtomicU64::new(WriteStamp::NONE.0),
            queued: AtomicBool::new(false),
            dirty_link: Link::default(),
            writeback_link: WritebackLink::default(),
            writers: AtomicU32::new(0),
            settled: AtomicU32::new(0),
            uses_share: AtomicBool::new(false),
            cached_elsewhere: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
            counts: OnceLock::new(),
        }
    }

    /// The same on the list of all inodes.
    #[cfg(feature = "designs")]
    pub fn listed(size: u64, all: &Arc<super::designs::AllInodes>) -> Pages {
        let pages = Pages::new(size);
        pages.writeback_link.enter(all);
        pages
    }

    /// The size that users see, in bytes.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Sets the visible size. The caller holds `rw` for writing.
    pub fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// Raises the visible size.
    pub fn grow_size(&self, size: u64) {
        self.size.fetch_max(size, Ordering::AcqRel);
    }

    /// Returns whether the file is open for writing. A hint: no result depends on it.
    pub fn has_writers(&self) -> bool {
        self.writers.load(Ordering::Relaxed) > 0
    }

    /// Counts an open for writing.
    pub fn open_writer(&self) {
        self.writers.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a close of a file open for writing. Returns true for the last one.
    pub fn close_writer(&self) -> bool {
        let left =
            self.writers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        let last = left.unwrap_or(0) <= 1;
        if last {
            self.replaced.store(false, Ordering::Relaxed);
        }
        last
    }

    /// Returns whether a client caches the content: pages serve writeback only.
    pub fn is_cached_elsewhere(&self) -> bool {
        self.cached_elsewhere.load(Ordering::Relaxed)
    }

    /// Notes that a client caches the content. Relaxed: a page that stays costs memory only.
    pub fn set_cached_elsewhere(&self) {
        self.cached_elsewhere.store(true, Ordering::Relaxed);
    }

    /// Returns whether the content was cut to nothing, and may be about to be replaced.
    pub fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Relaxed)
    }

    /// Notes that the content was cut to nothing. The caller holds `rw` for writing, as do those
    /// that ask.
    pub fn set_replaced(&self) {
        self.replaced.store(true, Ordering::Relaxed);
    }

    /// The pages for looking.
    pub fn read(&self) -> RwLockReadGuard<'_, PageMap> {
        self.map.read()
    }

    /// Locks the pages for changes that the budget does not count.
    pub fn write(&self) -> RwLockWriteGuard<'_, PageMap> {
        self.map.write()
    }

    /// Changes the pages and books the difference with the budget.
    pub fn change<R>(&self, budget: &PageBudget, f: impl FnOnce(&mut PageMap) -> R) -> R {
        let counts = self.counts.get_or_init(|| budget.counts().clone());
        let mut map = self.map.write();
        let before = map.totals();
        let result = f(&mut map);
        let after = map.totals();
        counts.moved(before, after);
        counts.writeback(&self.writeback_link, before, after);
        result
    }

    /// How often pages ceased to count as pages that the map must change for.
    pub fn settled(&self) -> u32 {
        self.settled.load(Ordering::Acquire)
    }

    /// Settles pages that were written and mapped. `map` is the locked map of pages. Drops them if
    /// a client caches the content: each byte would be stored twice.
    pub fn settle(&self, map: &mut PageMap, lblks: impl IntoIterator<Item = u32>) {
        if self.is_cached_elsewhere() {
            let (mut first, mut end) = (u32::MAX, 0);
            map.written(lblks.into_iter().inspect(|lblk| {
                first = first.min(*lblk);
                end = end.max(lblk.saturating_add(1));
            }));
            map.drop_clean(first..end);
        } else {
            map.written(lblks);
        }
        self.settled.fetch_add(1, Ordering::Release);
    }

    /// Tells, under [`Pages::work`], whether the map is changed for pages from now on, or
    /// otherwise.
    pub fn set_uses_share(&self, uses: bool) {
        // Relaxed: threads that change the map hold `work`.
        self.uses_share.store(uses, Ordering::Relaxed);
    }

    /// Takes a block for the map from the reservation of pages, if the map is changed for them.
    pub fn take_from_share(&self) -> bool {
        self.uses_share.load(Ordering::Relaxed) && {
            let mut map = self.map.write();
            let left = map.share().checked_sub(1);
            left.inspect(|left| *map.share() = *left).is_some()
        }
    }

    /// Adds blocks for the map to the reservation of pages.
    pub fn add_to_share(&self, blocks: u32) {
        *self.map.write().share() += blocks;
    }

    /// Drops the pages and preallocations when the inode leaves memory, without any other user.
    /// Waits for no lock.
    pub fn discard(&self) {
        #[cfg(feature = "designs")]
        self.writeback_link.leave();
        let claims =
            self.work.get().and_then(|work| work.try_lock()).and_then(|mut work| work.take());
        drop(claims);
        let Some(counts) = self.counts.get() else { return };
        let pages =
            self.map.get().and_then(|map| map.try_write()).map(|mut map| std::mem::take(&mut *map));
        let before = pages.as_ref().map_or_else(map::Totals::default, PageMap::totals);
        counts.moved(before, map::Totals::default());
    }

    /// Returns whether a page may be dirty or under writeback, from the lists alone: the dirty
    /// pages of an operation are on them when it ends.
    #[inline]
    pub fn maybe_busy(&self) -> bool {
        self.dirty_link.is_linked() || self.writeback_link.is_linked()
    }

    /// Whether no page was ever cached: there is nothing to drop.
    pub fn never_used(&self) -> bool {
        self.counts.get().is_none()
    }

    /// Whether any page is cached. Cheap enough for every direct access.
    pub fn any(&self) -> bool {
        self.counts.get().is_some() && !self.map.read().is_empty()
    }

    /// Whether a page waits for being written, or is being written.
    pub fn busy(&self) -> bool {
        self.counts.get().is_some() && self.map.read().busy()
    }

    /// Whether a page waits for being written.
    pub fn dirty(&self) -> bool {
        self.counts.get().is_some() && self.map.read().waiting() > 0
    }

    /// Whether the device may lack zeroes behind the end of the file. Waits for no lock: the answer
    /// is yes while they are written.
    pub fn may_lack_zeroes(&self) -> bool {
        let pending = self.pending_zeroes.get();
        pending.is_some_and(|pending| pending.try_lock().is_none_or(|zeroes| zeroes.is_some()))
    }

    /// Notes that blocks of the file were written past the journal. To be called before they are
    /// mapped.
    pub fn note_written(&self, stamp: WriteStamp) {
        self.written.fetch_max(stamp.0, Ordering::AcqRel);
    }

    /// Returns the writes that an fsync must flush.
    pub fn written(&self) -> WriteStamp {
        WriteStamp(self.written.load(Ordering::Acquire))
    }

    /// Notes that writing data back failed; each cursor tells it once.
    pub fn note_error(&self, errno: i32) {
        self.errors.record(errno);
    }

    /// Where a newly opened file starts to look for errors.
    pub fn error_seq(&self) -> ErrorCursor {
        self.errors.sample()
    }

    /// The error that writeback met since `since`, once.
    pub fn check_error(&self, since: &mut ErrorCursor) -> Result<()> {
        self.errors.check(since)
    }

    /// The errors as a word, for another process that goes on with the inode.
    pub fn error_word(&self) -> u64 {
        self.errors.word()
    }

    /// Takes the errors over from another process.
    pub fn set_error_word(&self, word: u64) {
        self.errors.set_word(word);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        debug_assert!(!self.writeback_link.is_linked(), "pages under writeback are kept");
        self.discard();
    }
}
