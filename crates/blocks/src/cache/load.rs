//! Reads of blocks in progress.
//!
//! # Invariants
//! Each load that is registered in a shard is removed by its [`Loading`], also after a failure or a
//! panic. Then all threads that wait for it continue.

use super::{Buffer, Cache};
use extant_sync::atomic::{AtomicBool, Ordering};
use extant_sync::{Arc, Condvar, Level, Mutex};

/// The read of a block in progress, shared by the reading thread and waiting ones.
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

    /// Waits until the load has ended, also by an error.
    pub(super) fn wait(&self) {
        self.changed.wait_while(&mut self.done.lock(), |done| !*done);
    }

    fn finish(&self) {
        *self.done.lock() = true;
        self.changed.notify_all();
    }

    /// Forbids caching the result of the read. Must be called under the shard's lock.
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Returns whether caching is forbidden. Must be called under the shard's lock.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// The next step for a block that was not found at first.
pub(super) enum Outcome {
    /// It is cached by now.
    Cached(Arc<Buffer>),
    /// Another thread is reading it.
    LoadedByOther(Arc<Load>),
    /// The caller must read it; the load is registered.
    LoadHere(Arc<Load>),
}

/// The obligation to end a registered load.
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

    /// Caches the result of the read and returns the block's buffer: a buffer that was cached
    /// meanwhile if there is one. The buffer of a cancelled load is returned, but not cached.
    pub(super) fn publish(self, buffer: Buffer) -> Arc<Buffer> {
        let buffer = Arc::new(buffer);
        let (used, dropped) = self.cache.shard(self.nr).lock().complete(&self.load, buffer);
        self.cache.evicted(dropped.len());
        used
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.cache.shard(self.nr).lock().end_load(self.nr, &self.load);
        self.load.finish();
    }
}
