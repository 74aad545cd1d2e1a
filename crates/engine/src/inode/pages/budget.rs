//! The bound on all pages of a file system, and the inodes that have some.
//!
//! # Invariants
//! An inode with pages is on `queue` once, as long as it lives.
//!
//! # Locking
//! The queues are of level Lru: they may be held while a page map is looked at, never the other way
//! round. The list of inodes under writeback changes under a page map's lock, so it is a Leaf.

use super::map::Totals;
use super::{Pages, WritebackLink, WritebackList};
use crate::inode::Inode;
use extant_sync::atomic::{AtomicU64, Ordering};
use extant_sync::{Level, MemoryPressure, Mutex, Sharded, ShardedCounter, SlabPages};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};

/// Pages dropped from one inode before the next one's turn.
const EVICT_BATCH: usize = 256;

/// The least bound, in bytes.
const MIN_BYTES: u64 = 1 << 20;

/// Pages in the page cache, and the inodes with pages under writeback.
#[derive(Debug)]
pub(super) struct Counts {
    pages: ShardedCounter,
    dirty: ShardedCounter,
    writeback: WritebackList,
}

impl Counts {
    fn new() -> Counts {
        let writeback = WritebackList::new(Level::Leaf);
        Counts { pages: ShardedCounter::default(), dirty: ShardedCounter::default(), writeback }
    }

    /// The bounds are approximate, so nothing orders the counts.
    pub fn moved(&self, before: Totals, after: Totals) {
        shift(&self.pages, before.pages, after.pages);
        shift(&self.dirty, before.dirty, after.dirty);
    }

    /// Keeps the list of those under writeback true. The caller has the page map locked for
    /// writing.
    pub fn writeback(&self, link: &WritebackLink, before: Totals, after: Totals) {
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

/// The memory for all pages of a file system, and its bound.
#[derive(Debug)]
pub struct PageBudget {
    /// In pages.
    limit: AtomicU64,
    page_size: u64,
    counts: Arc<Counts>,
    queue: Sharded<Mutex<VecDeque<Weak<Inode>>>>,
    /// Told of evictions, if it was named.
    pressure: OnceLock<Arc<MemoryPressure>>,
    /// Memory for pages.
    pub frames: SlabPages,
}

impl PageBudget {
    /// At most `limit` bytes in pages of `page_size`, half of which may wait for being written.
    pub fn new(limit: u64, page_size: u32) -> PageBudget {
        let page_size = u64::from(page_size.max(1));
        PageBudget {
            limit: AtomicU64::new(limit.max(MIN_BYTES) / page_size),
            page_size,
            counts: Arc::new(Counts::new()),
            queue: Sharded::new(|_| Mutex::new(Level::Lru, VecDeque::new())),
            pressure: OnceLock::new(),
            frames: SlabPages::new(page_size as usize),
        }
    }

    /// Changes the bound, in bytes. [`PageBudget::shrink`] makes it hold.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes.max(MIN_BYTES) / self.page_size, Ordering::Relaxed);
    }

    /// Counts evictions in `pressure` from now on. Only the first call has an effect.
    pub fn watch(&self, pressure: Arc<MemoryPressure>) {
        let _ = self.pressure.set(pressure);
    }

    /// Bytes of all pages.
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.counts.pages.sum()).unwrap_or(0) * self.page_size
    }

    /// About how many bytes wait for being written.
    pub fn dirty_bytes(&self) -> u64 {
        u64::try_from(self.counts.dirty.sum()).unwrap_or(0) * self.page_size
    }

    /// The bound, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed) * self.page_size
    }

    /// Files under writeback.
    pub fn writeback_files(&self) -> usize {
        self.counts.writeback.len()
    }

    /// Whether writers have to write back themselves.
    pub fn too_dirty(&self) -> bool {
        exceeds(&self.counts.dirty, self.limit.load(Ordering::Relaxed) / 2)
    }

    pub(super) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Notes that the inode has pages.
    pub fn note(&self, inode: &Arc<Inode>) {
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

    /// Waits until the pages now under writeback are written and mapped, or dropped. Later
    /// writebacks are not waited for.
    pub fn wait_for_writeback(&self) {
        self.counts.writeback.wait_gone(&self.counts.writeback.arrived());
    }

    /// Whether nothing is being written.
    pub fn no_writeback(&self) -> bool {
        self.counts.writeback.is_empty()
    }

    /// The list of all inodes whose pages these are.
    #[cfg(feature = "designs")]
    pub fn all_inodes(&self) -> &Arc<crate::inode::designs::AllInodes> {
        self.counts.writeback.all()
    }

    /// Drops clean pages until the bound holds, as far as that is possible.
    pub fn shrink(&self) {
        let target = self.limit.load(Ordering::Relaxed);
        if !exceeds(&self.counts.pages, target) {
            return;
        }
        // This thread's inodes first, since their locks are near.
        let first = extant_sync::shard_index();
        for shard in first..first + self.queue.len() {
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
        let evicted = pages.change(self, |map| map.evict(EVICT_BATCH));
        if let Some(pressure) = self.pressure.get() {
            pressure.evicted(evicted as u64 * self.page_size);
        }
        if pages.any() && !pages.queued.swap(true, Ordering::AcqRel) {
            queue.lock().push_back(Arc::downgrade(inode));
        }
    }
}

fn exceeds(counter: &ShardedCounter, pages: u64) -> bool {
    counter.at_least(i64::try_from(pages).unwrap_or(i64::MAX).saturating_add(1))
}
