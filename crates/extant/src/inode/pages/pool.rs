//! The bound on all pages of a file system, and the inodes that have some.
//!
//! # Invariants
//! - An inode whose pages wait for being written is in `dirty` (from shortly after they do), which keeps it in memory.
//! - An inode with pages is on `queue` once, as long as it lives.
//!
//! # Locking
//! The lists are of level Lru: they may be held while a page map is looked at, never the other way round.

use super::Pages;
use crate::error::Result;
use crate::inode::Inode;
use extant_format::types::InodeNr;
use extant_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_sync::{Level, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

/// Pages dropped from one inode before the next one's turn.
const EVICT_BATCH: usize = 256;

/// Bytes in the page cache.
#[derive(Debug, Default)]
pub(super) struct Counts {
    bytes: AtomicU64,
    dirty: AtomicU64,
}

impl Counts {
    /// Relaxed throughout: the bounds are approximate.
    pub fn moved(&self, before: super::map::Totals, after: super::map::Totals) {
        shift(&self.bytes, before.bytes, after.bytes);
        shift(&self.dirty, before.dirty, after.dirty);
    }
}

fn shift(counter: &AtomicU64, before: u64, after: u64) {
    if before != after {
        counter.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }
}

/// What the page cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes of all pages.
    pub bytes: u64,
    /// Bytes that wait for being written.
    pub dirty: u64,
    /// The bound.
    pub limit: u64,
}

/// All pages of a file system.
#[derive(Debug)]
pub struct PagePool {
    limit: AtomicU64,
    counts: Arc<Counts>,
    dirty: Mutex<BTreeMap<InodeNr, Arc<Inode>>>,
    queue: Mutex<VecDeque<Weak<Inode>>>,
    ahead: Mutex<BTreeMap<InodeNr, Weak<Inode>>>,
    /// Inodes by number and generation that lost data since that was last asked for.
    failed: Mutex<BTreeMap<(InodeNr, u32), Arc<Inode>>>,
    /// File data go through the journal (`data=journal`).
    pub log_data: bool,
    /// File data may use the blocks that are reserved for root.
    pub use_reserve: AtomicBool,
}

impl PagePool {
    /// A pool of at most `limit` bytes, half of which may wait for being written. `log_data` is the mount option
    /// `data=journal`.
    pub fn new(limit: u64, log_data: bool) -> PagePool {
        PagePool {
            limit: AtomicU64::new(limit.max(1 << 20)),
            counts: Arc::default(),
            dirty: Mutex::new(Level::Lru, BTreeMap::new()),
            queue: Mutex::new(Level::Lru, VecDeque::new()),
            ahead: Mutex::new(Level::Lru, BTreeMap::new()),
            failed: Mutex::new(Level::Lru, BTreeMap::new()),
            log_data,
            use_reserve: AtomicBool::new(false),
        }
    }

    /// What is held.
    pub fn stats(&self) -> PoolStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PoolStats { bytes: get(&self.counts.bytes), dirty: get(&self.counts.dirty), limit: get(&self.limit) }
    }

    /// Whether writers have to write back themselves.
    pub fn too_dirty(&self) -> bool {
        let stats = self.stats();
        stats.dirty > stats.limit / 2
    }

    pub(super) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Notes that the inode has pages, and waiting ones if `dirty`.
    pub fn note(&self, inode: &Arc<Inode>, dirty: bool) {
        // AcqRel: either this exchange comes first, and `note_clean` sees the waiting pages; or it sees the mark taken
        // back.
        if dirty && !inode.pages.listed.swap(true, Ordering::AcqRel) {
            self.dirty.lock().entry(inode.ino).or_insert_with(|| inode.clone());
        }
        if !inode.pages.queued.swap(true, Ordering::AcqRel) {
            self.queue.lock().push_back(Arc::downgrade(inode));
        }
    }

    /// Takes the inode off the list of those with waiting pages if it has none.
    pub fn note_clean(&self, inode: &Inode) {
        if !inode.pages.listed.load(Ordering::Acquire) {
            return;
        }
        let mut list = self.dirty.lock();
        inode.pages.listed.swap(false, Ordering::AcqRel);
        if inode.pages.busy() {
            inode.pages.listed.swap(true, Ordering::AcqRel);
        } else if list.get(&inode.ino).is_some_and(|own| own.generation == inode.generation) {
            let gone = list.remove(&inode.ino);
            drop(list);
            drop(gone);
        }
    }

    /// Inodes with waiting pages.
    pub fn dirty_inodes(&self) -> Vec<Arc<Inode>> {
        self.dirty.lock().values().cloned().collect()
    }

    /// Notes that data of the inode are lost: open files are told, or else who syncs or closes the file system.
    pub fn note_failed(&self, inode: &Arc<Inode>, errno: i32) {
        inode.pages.note_error(errno);
        self.failed.lock().entry((inode.ino, inode.generation)).or_insert_with(|| inode.clone());
    }

    /// The first loss of data that nobody was told of; all of them count as told then.
    pub fn untold_loss(&self) -> Result<()> {
        let failed = std::mem::take(&mut *self.failed.lock());
        failed
            .into_values()
            .map(|inode| inode.pages.check_error(&mut inode.pages.error_seq()))
            .fold(Ok(()), Result::and)
    }

    /// Notes that the inode holds blocks claimed ahead. The caller holds its `work`.
    pub fn note_ahead(&self, inode: &Arc<Inode>) {
        if !inode.pages.ahead_held.swap(true, Ordering::AcqRel) {
            self.ahead.lock().insert(inode.ino, Arc::downgrade(inode));
        }
    }

    /// Inodes that may hold blocks claimed ahead.
    pub fn holders_ahead(&self) -> Vec<Arc<Inode>> {
        let mut holders = self.ahead.lock();
        holders.retain(|_, weak| weak.strong_count() > 0);
        holders.values().filter_map(Weak::upgrade).collect()
    }

    /// The inode holds nothing ahead any more. The caller holds its `work`.
    pub fn forget_ahead(&self, inode: &Inode) {
        if inode.pages.ahead_held.swap(false, Ordering::AcqRel) {
            let gone = self.ahead.lock().remove(&inode.ino);
            drop(gone);
        }
    }

    /// Drops clean pages until the bound holds, as far as that is possible.
    pub fn shrink(&self) {
        self.shrink_to(self.limit.load(Ordering::Relaxed));
    }

    /// Drops clean pages until at most `target` bytes are held, as far as that is possible.
    pub fn shrink_to(&self, target: u64) {
        let mut turns = match self.stats().bytes > target {
            true => self.queue.lock().len().saturating_mul(3),
            false => 0,
        };
        while turns > 0 && self.stats().bytes > target {
            turns -= 1;
            let Some(weak) = self.queue.lock().pop_front() else { return };
            if let Some(inode) = weak.upgrade() {
                self.evict_from(&inode);
            }
        }
    }

    fn evict_from(&self, inode: &Arc<Inode>) {
        let pages: &Pages = &inode.pages;
        pages.queued.store(false, Ordering::Release);
        pages.change(self, |map| map.evict(EVICT_BATCH));
        if pages.any() {
            self.note(inode, false);
        }
    }
}
