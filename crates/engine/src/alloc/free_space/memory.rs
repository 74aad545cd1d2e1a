//! How much memory trees take, and which of them leave it.

use super::FreeSpace;
use super::tree::Tree;
use extant_space::Lru;
use extant_sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use extant_sync::{GrowingTable, Level, Mutex, Sharded};

/// Trees that one load evicts at most, and that it looks at for it.
const EVICT_STEPS: usize = 16;

/// Accounts of the trees in memory.
#[derive(Debug)]
pub(in crate::alloc) struct Memory {
    pub lru: Mutex<Lru>,
    /// Bytes that trees may take; 0 for any number.
    limit: AtomicU64,
    /// Bytes of the worst tree: the limit is never below it.
    worst: u64,
    /// Bytes by threads. No `ShardedCounter`: a tree's change is more than its batch.
    bytes: Sharded<AtomicI64>,
    /// Whether a tree is on the active list, to be read without the lock.
    active: GrowingTable<AtomicBool>,
}

impl Memory {
    pub fn new(trees: u32, worst: u64, limit: u64) -> Memory {
        let active = (0..trees).map(|_| AtomicBool::new(false)).collect();
        let lru = Mutex::new(Level::Lru, Lru::default());
        let memory =
            Memory { lru, limit: AtomicU64::new(0), worst, bytes: Sharded::default(), active };
        memory.set_limit(limit);
        memory
    }

    /// Appends trees, up to so many.
    pub fn append_trees(&self, trees: u32) {
        let new = (trees as usize).saturating_sub(self.active.len());
        self.active.append((0..new).map(|_| AtomicBool::new(false)));
    }

    /// Notes that trees take so many more bytes.
    pub fn count(&self, bytes: i64) {
        if bytes != 0 {
            self.bytes.local().fetch_add(bytes, Relaxed);
        }
    }

    /// Bytes of all trees.
    pub fn usage(&self) -> u64 {
        let sum = self.bytes.iter().map(|part| part.load(Relaxed)).sum::<i64>();
        u64::try_from(sum).unwrap_or(0)
    }

    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Sets the limit; one that has no room for the worst tree is raised to it. 0 takes it away.
    pub fn set_limit(&self, bytes: u64) {
        let limit = if bytes == 0 { 0 } else { bytes.max(self.worst) };
        self.limit.store(limit, Relaxed);
    }

    fn is_over(&self) -> bool {
        let limit = self.limit();
        limit > 0 && self.usage() > limit
    }

    /// Returns the bytes that active trees may take: half of the limit.
    fn active_budget(&self) -> u64 {
        match self.limit() {
            0 => u64::MAX,
            limit => limit / 2,
        }
    }

    /// Records that the caller has loaded a tree, whose lock it holds.
    pub fn loaded(&self, tree: u32) {
        self.lru.lock().loaded(tree);
    }

    /// A tree cannot be evicted just now.
    fn pass(&self, tree: u32) {
        let mut lru = self.lru.lock();
        lru.pass(tree);
        self.note(tree, false);
    }

    /// Whether a tree is on the active list. Flags change under the list's lock, so that they
    /// follow it.
    fn note(&self, tree: u32, active: bool) {
        if let Some(flag) = self.active.get(tree as usize) {
            flag.store(active, Relaxed);
        }
    }
}

impl FreeSpace {
    /// A request used groups of a tree that an earlier request had loaded. The caller has locked
    /// the tree.
    pub(in crate::alloc) fn used_again(&self, t: u32, tree: &Tree) {
        self.counts.hits.add(1);
        if self.memory.active.get(t as usize).is_none_or(|active| active.load(Relaxed)) {
            return;
        }
        let mut lru = self.memory.lru.lock();
        let demoted = lru.used(t, tree.free.bytes() as u64, self.memory.active_budget());
        self.memory.note(t, true);
        demoted.into_iter().for_each(|tree| self.memory.note(tree, false));
    }

    /// Evicts trees until the limit is kept, a bounded number at most; `keep` was just loaded.
    /// Trees locked by other threads are skipped.
    pub(in crate::alloc) fn evict(&self, keep: Option<u32>) {
        for _ in 0..EVICT_STEPS {
            if !self.memory.is_over() {
                break;
            }
            let Some(t) = self.memory.lru.lock().victim() else { break };
            match Some(t).filter(|_| keep != Some(t)).and_then(|t| self.try_tree(t)) {
                Some(mut tree) => self.forget(t, &mut tree),
                None => self.memory.pass(t),
            }
        }
    }

    /// Evicts a tree.
    pub(in crate::alloc) fn forget(&self, t: u32, tree: &mut Tree) {
        self.unload(t, tree);
        let mut lru = self.memory.lru.lock();
        lru.remove(t);
        self.memory.note(t, false);
    }

    /// Sets the bytes that trees may take (0: any number), and evicts trees beyond it at once.
    /// Returns the effective limit.
    pub(in crate::alloc) fn set_memory_limit(&self, bytes: u64) -> u64 {
        self.memory.set_limit(bytes);
        let trees = self.trees.len();
        for _ in 0..trees {
            if !self.memory.is_over() {
                break;
            }
            let Some(t) = self.memory.lru.lock().victim() else { break };
            if let Some(mut tree) = self.tree(t) {
                self.forget(t, &mut tree);
            }
        }
        self.memory.limit()
    }
}
