//! The bound on all pages of a file system, and the inodes that have some.
//!
//! # Invariants
//! - An inode with dirty pages is in `dirty` (from shortly after they become dirty, and before the
//!   writer's operation ends), which keeps it in memory. It leaves when it has none; pages under
//!   writeback are in `Counts::writeback` by then. A thread that examines `dirty` first and the
//!   pages under writeback afterwards therefore misses no page that was dirty when it began.
//! - An inode with pages is on `queue` once, as long as it lives.
//!
//! # Locking
//! The lists are of level Lru: they may be held while a page map is looked at, never the other way
//! round. The list of those under writeback changes under a page map's lock, so it is a Leaf.

use super::Pages;
use super::map::Totals;
use super::set_aside::SetAside;
use crate::error::Result;
use crate::inode::Inode;
use extant_format::types::InodeNr;
use extant_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use extant_sync::scheduler::Bell;
use extant_sync::{Level, Link, Mutex, Sharded, ShardedCounter, ShardedList, SlabPages, Walk};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

/// Pages dropped from one inode before the next one's turn.
const EVICT_BATCH: usize = 256;

/// Pages in the page cache, and the inodes with pages under writeback.
#[derive(Debug)]
pub(super) struct Counts {
    pages: ShardedCounter,
    dirty: ShardedCounter,
    writeback: ShardedList<()>,
}

impl Counts {
    fn new() -> Counts {
        let writeback = ShardedList::new(Level::Leaf);
        Counts { pages: ShardedCounter::default(), dirty: ShardedCounter::default(), writeback }
    }

    /// The bounds are approximate, so nothing orders the counts.
    pub fn moved(&self, before: Totals, after: Totals) {
        shift(&self.pages, before.pages, after.pages);
        shift(&self.dirty, before.dirty, after.dirty);
    }

    /// Keeps the list of those under writeback true. The caller has the page map locked for
    /// writing.
    pub fn writeback(&self, link: &Link, before: Totals, after: Totals) {
        match (before.writing, after.writing) {
            (0, 1..) => {
                self.writeback.add(link, || ());
            }
            (1.., 0) => {
                self.writeback.remove(link);
            }
            _ => {}
        }
        debug_assert_eq!(
            link.is_linked(),
            after.writing > 0,
            "those under writeback are listed, and no others"
        );
    }
}

fn shift(counter: &ShardedCounter, before: usize, after: usize) {
    if before != after {
        counter.add(after as i64 - before as i64);
    }
}

/// The contents of the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes of all pages.
    pub bytes: u64,
    /// Bytes that wait for being written.
    pub dirty: u64,
    /// Files with bytes that wait for being written.
    pub dirty_files: usize,
    /// Files under writeback.
    pub writeback_files: usize,
    /// The bound.
    pub limit: u64,
}

/// The scope over which the device writes of writeback are collected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlugPolicy {
    /// Many files: adjacent blocks of different files become one write.
    #[default]
    Batch,
    /// One file after the other.
    PerInode,
}

/// All pages of a file system.
#[derive(Debug)]
pub struct PagePool {
    /// In pages.
    limit: AtomicU64,
    page_size: u64,
    counts: Arc<Counts>,
    dirty: ShardedList<Arc<Inode>>,
    queue: Sharded<Mutex<VecDeque<Weak<Inode>>>>,
    /// Inodes by number and generation that lost data since that was last asked for.
    failed: Mutex<BTreeMap<(InodeNr, u32), Arc<Inode>>>,
    /// Whether `failed` may hold something; changes under its lock.
    any_failed: AtomicBool,
    /// How device writes of writeback are collected.
    pub plug: PlugPolicy,
    /// Memory for pages.
    pub frames: SlabPages,
    /// How many threads are submitting data.
    pub submitting: AtomicUsize,
    /// Writers that set space aside for pages, and the one that lacks it.
    pub set_aside: SetAside,
    /// Wakes the task that writes pages back: rung by the first inode that gets waiting pages.
    pub writeback_bell: Bell,
}

impl PagePool {
    /// A pool of at most `limit` bytes in pages of `page_size`, half of which may wait for being
    /// written.
    pub fn new(limit: u64, page_size: u32) -> PagePool {
        let page_size = u64::from(page_size.max(1));
        PagePool {
            limit: AtomicU64::new(limit.max(1 << 20) / page_size),
            page_size,
            counts: Arc::new(Counts::new()),
            dirty: ShardedList::new(Level::Lru),
            queue: Sharded::new(|_| Mutex::new(Level::Lru, VecDeque::new())),
            failed: Mutex::new(Level::Lru, BTreeMap::new()),
            any_failed: AtomicBool::new(false),
            plug: PlugPolicy::default(),
            frames: SlabPages::new(page_size as usize),
            submitting: AtomicUsize::new(0),
            set_aside: SetAside::new(),
            writeback_bell: Bell::default(),
        }
    }

    /// Returns the contents.
    pub fn stats(&self) -> PoolStats {
        let bytes = |pages: i64| u64::try_from(pages).unwrap_or(0) * self.page_size;
        PoolStats {
            bytes: bytes(self.counts.pages.sum()),
            dirty: bytes(self.counts.dirty.sum()),
            dirty_files: self.dirty.len(),
            writeback_files: self.counts.writeback.len(),
            limit: self.limit.load(Ordering::Relaxed) * self.page_size,
        }
    }

    /// About how many bytes wait for being written.
    pub fn dirty_bytes(&self) -> u64 {
        u64::try_from(self.counts.dirty.sum()).unwrap_or(0) * self.page_size
    }

    /// Whether writers have to write back themselves.
    pub fn too_dirty(&self) -> bool {
        exceeds(&self.counts.dirty, self.limit.load(Ordering::Relaxed) / 2)
    }

    pub(super) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Notes that the inode has pages, and waiting ones if `dirty`.
    pub fn note(&self, inode: &Arc<Inode>, dirty: bool) {
        if dirty && self.dirty.add(&inode.pages.dirty_link, || inode.clone()) {
            self.writeback_bell.ring();
        }
        if !inode.pages.queued.load(Ordering::Relaxed)
            && !inode.pages.queued.swap(true, Ordering::AcqRel)
        {
            let mut queue = self.queue.local().lock();
            // Each that comes lets go of the memory of some that are gone, so that the living are
            // about half at least.
            for _ in 0..2 {
                let Some(old) = queue.pop_front() else { break };
                if old.strong_count() > 0 {
                    queue.push_back(old);
                }
            }
            queue.push_back(Arc::downgrade(inode));
        }
    }

    /// Takes the inode off the list of those with waiting pages if it has none.
    pub fn note_clean(&self, inode: &Inode) {
        let gone = self.dirty.remove_unless(&inode.pages.dirty_link, || inode.pages.dirty());
        drop(gone);
    }

    /// A walk over the inodes with waiting pages, those that this thread has changed first.
    pub fn dirty_inodes(&self) -> Walk<'_, Arc<Inode>> {
        self.dirty.walk()
    }

    /// Waits until the pages now under writeback are written and mapped, or dropped. Later
    /// writebacks are not waited for.
    pub fn wait_for_writeback(&self) {
        self.counts.writeback.wait_gone(&self.counts.writeback.arrived());
    }

    /// Returns whether no page is dirty or under writeback, and no loss is unreported. Reads one
    /// word of each list's shards, and no inode.
    pub fn is_clean(&self) -> bool {
        self.is_written() && !self.any_failed.load(Ordering::Acquire)
    }

    /// Whether nothing waits for being written and nothing is being written.
    pub fn is_written(&self) -> bool {
        // In this order: an inode under writeback has left the first list, or is about to.
        self.dirty.is_empty() && self.counts.writeback.is_empty()
    }

    /// Records that data of the inode are lost. Open files report the loss, or else a sync or the
    /// close of the file system.
    pub fn note_failed(&self, inode: &Arc<Inode>, errno: i32) {
        inode.pages.note_error(errno);
        let mut failed = self.failed.lock();
        self.any_failed.store(true, Ordering::Release);
        failed.entry((inode.ino, inode.generation)).or_insert_with(|| inode.clone());
    }

    /// Returns the first unreported loss of data. All losses count as reported then.
    pub fn untold_loss(&self) -> Result<()> {
        let failed = {
            let mut failed = self.failed.lock();
            self.any_failed.store(false, Ordering::Release);
            std::mem::take(&mut *failed)
        };
        failed
            .into_values()
            .map(|inode| inode.pages.check_error(&mut inode.pages.error_seq()))
            .fold(Ok(()), Result::and)
    }

    /// Drops clean pages until the bound holds, as far as that is possible.
    pub fn shrink(&self) {
        let target = self.limit.load(Ordering::Relaxed);
        if !exceeds(&self.counts.pages, target) {
            return;
        }
        // This thread's inodes first, since their locks are near.
        let first = extant_sync::shard_index();
        for shard in first..first + extant_sync::shard_count() {
            let queue = self.queue.at(shard);
            let mut turns = queue.lock().len().saturating_mul(3);
            while turns > 0 && exceeds(&self.counts.pages, target) {
                turns -= 1;
                let Some(weak) = queue.lock().pop_front() else { break };
                if let Some(inode) = weak.upgrade() {
                    self.evict_from(&inode, queue);
                }
            }
        }
    }

    fn evict_from(&self, inode: &Arc<Inode>, queue: &Mutex<VecDeque<Weak<Inode>>>) {
        let pages: &Pages = &inode.pages;
        pages.queued.store(false, Ordering::Release);
        pages.change(self, |map| map.evict(EVICT_BATCH));
        if pages.any() && !pages.queued.swap(true, Ordering::AcqRel) {
            queue.lock().push_back(Arc::downgrade(inode));
        }
    }
}

fn exceeds(counter: &ShardedCounter, pages: u64) -> bool {
    counter.at_least(i64::try_from(pages).unwrap_or(i64::MAX).saturating_add(1))
}
