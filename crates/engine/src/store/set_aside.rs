//! The moments in which writers set space aside, and the writer that lacks it.
//!
//! A writer reserves space before its pages are dirty, so writing back cannot free the part of its
//! reservation that it does not need. Example: 64 writers reserve 13 clusters each for 5 clusters
//! of data; the last one finds nothing, though most of the disk is free a moment later. Such a
//! writer waits until no other is at it, and keeps the others out while it writes back and tries
//! again.
//!
//! # Locking
//! Each shard of threads has a lock of level `SetAside`: held for reading by a writer from before
//! it reserves until its pages are dirty, and all of them for writing by the one that lacks space.

use extant_sync::atomic::{AtomicBool, Ordering};
use extant_sync::{Level, RwLock, RwLockReadGuard, RwLockWriteGuard, Sharded};

/// See the module's description.
#[derive(Debug)]
pub struct SetAside {
    shards: Sharded<RwLock<()>>,
    /// Whether a writer is alone; changes under all locks.
    alone: AtomicBool,
}

/// Proof that no other writer sets space aside.
pub struct Alone<'a> {
    of: &'a SetAside,
    _shards: Vec<RwLockWriteGuard<'a, ()>>,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.of.alone.store(false, Ordering::Relaxed);
    }
}

impl SetAside {
    pub(super) fn new() -> SetAside {
        SetAside {
            shards: Sharded::new(|_| RwLock::new(Level::SetAside, ())),
            alone: AtomicBool::new(false),
        }
    }

    /// Begins to set space aside, beside others. Waits while a writer lacks space.
    pub fn share(&self) -> RwLockReadGuard<'_, ()> {
        self.shards.local().read()
    }

    /// Waits until all others are done, and keeps them out until the result is dropped. The caller
    /// must not hold `work`.
    pub fn alone(&self) -> Alone<'_> {
        let mut shards = self.shards.iter();
        let first = shards.next().map(RwLock::write);
        // In their order, which is the same for each thread that takes more than one.
        let shards = first.into_iter().chain(shards.map(RwLock::write_nested)).collect();
        // Relaxed, here and below: the locks order it for all threads that hold one.
        self.alone.store(true, Ordering::Relaxed);
        Alone { of: self, _shards: shards }
    }

    /// Whether the caller is alone. It must hold a part of this, shared or alone.
    pub fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Relaxed)
    }
}
