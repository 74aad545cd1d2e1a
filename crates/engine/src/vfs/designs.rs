//! Former designs of lookups in the inode cache: under one lock, or under the lock of a shard.
//!
//! The table is the same in all designs, so [`LOOKUP`] may change at any time.

use extant_sync::cache::{self, CacheShard, Held, Object};
use extant_sync::designs::Choice;
use extant_sync::epoch::{Guard, pin};
use extant_sync::{LazyLock, Level, Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};

/// The lock of a lookup by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeLookup {
    /// None: memory is reclaimed by epochs, as everywhere else.
    Epoch,
    /// The lock of the number's shard.
    Sharded,
    /// One lock for all inodes of all file systems, for changes as well: Linux.
    Global,
}

/// The chosen lock.
pub static LOOKUP: Choice<InodeLookup> = {
    use InodeLookup::*;
    Choice::new(&[Epoch, Sharded, Global])
};

static GLOBAL: LazyLock<Mutex<()>> = LazyLock::new(|| Mutex::new(Level::JournalList, ()));

fn global() -> Option<MutexGuard<'static, ()>> {
    (LOOKUP.get() == InodeLookup::Global).then(|| GLOBAL.lock())
}

/// A cache of objects whose lookups take the chosen lock.
#[derive(Debug)]
pub struct Cache<T: Object>(cache::Cache<T>);

/// A locked shard, and the lock of all of them.
pub struct Locked<'a, T: Object> {
    shard: CacheShard<'a, T>,
    _all: Option<MutexGuard<'static, ()>>,
}

impl<T: Object> Cache<T> {
    /// Makes an empty cache.
    pub fn new(level: Level, shards: usize) -> Self {
        Cache(cache::Cache::new(level, shards))
    }

    /// Runs a lookup under the chosen lock.
    fn under_lock<R>(&self, key: u32, lookup: impl FnOnce() -> R) -> R {
        let _all = global();
        let _shard = (LOOKUP.get() == InodeLookup::Sharded).then(|| self.0.lock(key));
        lookup()
    }

    /// As in the engine's cache.
    pub fn get(&self, key: u32) -> Option<Held<T>> {
        self.get_pinned(&pin(), key)
    }

    /// As in the engine's cache.
    pub fn get_pinned(&self, pinned: &Guard, key: u32) -> Option<Held<T>> {
        self.under_lock(key, || self.0.get_pinned(pinned, key))
    }

    /// As in the engine's cache.
    pub fn look<'g>(&'g self, pinned: &'g Guard, key: u32) -> Option<&'g T> {
        self.under_lock(key, || self.0.look(pinned, key))
    }

    /// As in the engine's cache.
    pub fn lock(&self, key: u32) -> Locked<'_, T> {
        let _all = global();
        Locked { shard: self.0.lock(key), _all }
    }
}

impl<T: Object> Deref for Cache<T> {
    type Target = cache::Cache<T>;
    fn deref(&self) -> &cache::Cache<T> {
        &self.0
    }
}

impl<'a, T: Object> Deref for Locked<'a, T> {
    type Target = CacheShard<'a, T>;
    fn deref(&self) -> &CacheShard<'a, T> {
        &self.shard
    }
}

impl<T: Object> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.shard
    }
}
