//! Names: (directory, name) to inode, negative entries too. Sharded and bounded.
//!
//! # Invariants
//! - An entry for a directory changes only under that directory's `rw` lock: filled under the read lock, changed under
//!   the write lock. So an entry says what the directory's blocks say.
//! - A directory is named by number *and* generation: entries of a removed directory can never match a new one.

use extant_format::types::{FileType, InodeNr};
use extant_sync::atomic::{AtomicBool, Ordering};
use extant_sync::{Level, RwLock};
use hashbrown::HashTable;
use rustc_hash::FxHasher;
use std::hash::Hasher;

const SHARDS: usize = 64;

/// What an entry costs in memory: for the bound.
const ENTRY_BYTES: u64 = 96;

/// Where a name leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Inode number.
    pub ino: InodeNr,
    /// Its generation.
    pub generation: u32,
    /// Its type.
    pub ftype: FileType,
}

#[derive(Debug)]
struct Entry {
    hash: u64,
    dir: InodeNr,
    generation: u32,
    name: Box<[u8]>,
    /// None: the name is known to be absent.
    target: Option<Target>,
    used: AtomicBool,
}

/// The dentry table.
#[derive(Debug)]
pub struct Dentries {
    shards: Vec<RwLock<HashTable<Entry>>>,
    limit: usize,
}

fn hash(dir: InodeNr, generation: u32, name: &[u8]) -> u64 {
    let mut h = FxHasher::default();
    h.write_u64(u64::from(dir.0) << 32 | u64::from(generation));
    h.write(name);
    // Fx leaves the entropy in the high bits; the table wants it in both.
    h.finish().rotate_left(26)
}

impl Entry {
    fn is(&self, dir: InodeNr, generation: u32, name: &[u8]) -> bool {
        self.dir == dir && self.generation == generation && *self.name == *name
    }
}

impl Dentries {
    /// A table that tries to stay within `memory` bytes.
    pub fn new(memory: u64) -> Self {
        let limit = (memory / ENTRY_BYTES / SHARDS as u64).max(64) as usize;
        let shards = (0..SHARDS).map(|_| RwLock::new(Level::DentryShard, HashTable::new())).collect();
        Dentries { shards, limit }
    }

    fn shard(&self, hash: u64) -> &RwLock<HashTable<Entry>> {
        &self.shards[(hash >> 32) as usize % SHARDS]
    }

    /// Looks a name up: `None` if nothing is known, `Some(None)` if it is known to be absent.
    pub fn get(&self, dir: InodeNr, generation: u32, name: &[u8]) -> Option<Option<Target>> {
        let hash = hash(dir, generation, name);
        let shard = self.shard(hash).read();
        let entry = shard.find(hash, |e| e.is(dir, generation, name))?;
        if !entry.used.load(Ordering::Relaxed) {
            // Relaxed: a hint for eviction.
            entry.used.store(true, Ordering::Relaxed);
        }
        Some(entry.target)
    }

    /// Records where a name leads (or that it is absent). The caller holds the directory's lock.
    pub fn set(&self, dir: InodeNr, generation: u32, name: &[u8], target: Option<Target>) {
        let hash = hash(dir, generation, name);
        let mut shard = self.shard(hash).write();
        if let Some(entry) = shard.find_mut(hash, |e| e.is(dir, generation, name)) {
            entry.target = target;
            return;
        }
        if shard.len() >= self.limit {
            evict(&mut shard);
        }
        let entry = Entry { hash, dir, generation, name: name.into(), target, used: AtomicBool::new(false) };
        shard.insert_unique(hash, entry, |e| e.hash);
    }

    /// Forgets where a name leads if that is `target`. The caller holds the directory's lock.
    pub fn forget(&self, dir: InodeNr, generation: u32, name: &[u8], target: Target) {
        let hash = hash(dir, generation, name);
        let mut shard = self.shard(hash).write();
        let stale = |e: &Entry| e.target == Some(target) && e.is(dir, generation, name);
        if let Ok(entry) = shard.find_entry(hash, stale) {
            entry.remove();
        }
    }

    /// Names in memory.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.read().len()).sum()
    }
}

/// Drops what was not used since the last eviction; if all was, drops all.
fn evict(shard: &mut HashTable<Entry>) {
    let before = shard.len();
    shard.retain(|e| std::mem::take(e.used.get_mut()));
    if shard.len() > before - before / 8 {
        shard.clear();
    }
}
