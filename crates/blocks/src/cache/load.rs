//! Loads in progress.
//!
//! # Invariants
//! A load registered in a shard is taken out again by its [`Loading`], whether it ends well, fails
//! or panics, and then all who wait for it go on.

use super::{Buffer, Cache};
use extant_sync::atomic::{AtomicBool, Ordering};
use extant_sync::{Arc, Condvar, Level, Mutex};

/// A block's read in progress, shared by its reader and those who wait.
#[derive(Debug)]
pub(super) struct Load {
    done: Mutex<bool>,
    changed: Condvar,
    cancelled: AtomicBool,
}

impl Load {
    pub(super) fn new() -> Self {
        Load {
            done: Mutex::new(Level::Leaf, false),
            changed: Condvar::new(),
            cancelled: AtomicBool::new(false),
        }
    }

    /// Waits for the end, good or bad.
    pub(super) fn wait(&self) {
        self.changed.wait_while(&mut self.done.lock(), |done| !*done);
    }

    fn finish(&self) {
        *self.done.lock() = true;
        self.changed.notify_all();
    }

    /// Marks that what is being read must not be cached. Called under the shard's lock.
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Read under the shard's lock.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// How a read of a block that was not found goes on.
pub(super) enum Outcome {
    /// It is there by now.
    Cached(Arc<Buffer>),
    /// Somebody else is reading it.
    LoadedByOther(Arc<Load>),
    /// The caller reads it; the load is registered.
    LoadHere(Arc<Load>),
}

/// The duty to end a registered load.
pub(super) struct Loading<'a> {
    cache: &'a Cache,
    nr: u64,
    load: Arc<Load>,
}

impl<'a> Loading<'a> {
    pub(super) fn new(cache: &'a Cache, nr: u64, load: Arc<Load>) -> Self {
        Loading { cache, nr, load }
    }

    pub(super) fn nr(&self) -> u64 {
        self.nr
    }

    /// Caches what was read and gives the block's buffer: the one that came meanwhile by other
    /// means if there is one. A cancelled load's buffer is given but not cached.
    pub(super) fn publish(self, buffer: Buffer) -> Arc<Buffer> {
        let buffer = Arc::new(buffer);
        let (used, dropped) = self.cache.shard(self.nr).lock().complete(&self.load, buffer);
        self.cache.counters.evictions.add(dropped.len() as i64);
        used
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.cache.shard(self.nr).lock().end_load(self.nr, &self.load);
        self.load.finish();
    }
}
