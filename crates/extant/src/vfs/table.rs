//! Inodes by number: sharded, bounded, at most one in memory for a number.
//!
//! # Invariants
//! - An inode leaves the table only when nobody else refers to it (its only reference is the table's), so whoever loads
//!   it again reads a slot that freeze has brought up to date: the dirty list holds a reference until then. This holds for
//!   freed inodes, too: they stay, and are refused, until their slot says that they are free or another has their number.
//! - A load that overlaps with a removal in its shard is repeated, since it may have read an old slot.
//!
//! # Locking
//! A shard's lock is held for a look or a change only; slots are read outside of it.

use crate::error::{Errno, Result};
use crate::inode::Inode;
use crate::store::Store;
use extant_format::error::Corrupt;
use extant_format::inode::InodeFlags;
use extant_format::types::InodeNr;
use extant_sync::atomic::Ordering;
use extant_sync::{Level, RwLock};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

const SHARDS: usize = 64;

/// What an inode in memory costs, caches of its own not counted: for the bound.
const INODE_BYTES: u64 = 1024;

#[derive(Debug, Default)]
struct Shard {
    map: FxHashMap<u32, Arc<Inode>>,
    /// Numbers in the order of insertion; second chance decides.
    clock: VecDeque<u32>,
    /// Counts removals.
    removals: u64,
}

/// The inode table.
#[derive(Debug)]
pub struct InodeTable {
    shards: Vec<RwLock<Shard>>,
    limit: usize,
}

impl InodeTable {
    /// A table that tries to stay within `memory` bytes.
    pub fn new(memory: u64) -> Self {
        let limit = (memory / INODE_BYTES / SHARDS as u64).max(16) as usize;
        let shards = (0..SHARDS).map(|_| RwLock::new(Level::InodeTableShard, Shard::default())).collect();
        InodeTable { shards, limit }
    }

    fn shard(&self, ino: InodeNr) -> &RwLock<Shard> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// The inode if it is in memory.
    pub fn peek(&self, ino: InodeNr) -> Option<Arc<Inode>> {
        let shard = self.shard(ino).read();
        let inode = shard.map.get(&ino.0)?;
        if !inode.used.load(Ordering::Relaxed) {
            // Relaxed: a hint for eviction.
            inode.used.store(true, Ordering::Relaxed);
        }
        Some(inode.clone())
    }

    /// The inode, loaded if it is not in memory. ESTALE if it is being freed or was; and for a slot without links, which only orphan
    /// processing (`unlinked`) may see.
    pub fn get(&self, st: &Store, ino: InodeNr, unlinked: bool) -> Result<Arc<Inode>> {
        loop {
            if let Some(inode) = self.peek(ino) {
                return alive(inode);
            }
            let before = self.shard(ino).read().removals;
            let loaded = Inode::load(st, ino)?;
            if !unlinked && !reachable(&loaded) {
                return Err(Errno::Stale.into());
            }
            if ino.0 < st.geo.first_ino && ino != InodeNr::ROOT {
                // The journal and its like: the file system's own.
                return Err(Corrupt::new("directory entry").field("inode").found(ino.0).into());
            }
            let mut shard = self.shard(ino).write();
            if let Some(inode) = shard.map.get(&ino.0) {
                return alive(inode.clone());
            }
            if shard.removals == before {
                let gone = self.put(&mut shard, loaded.clone());
                drop(shard);
                drop(gone);
                return Ok(loaded);
            }
        }
    }

    /// Adds a new inode; one that had the number before is gone.
    pub fn insert(&self, inode: Arc<Inode>) {
        let mut shard = self.shard(inode.ino).write();
        let gone = self.put(&mut shard, inode);
        drop(shard);
        drop(gone);
    }

    /// Takes out a freed inode whose slot says so: nobody refers to it but the table and the caller, who gets it back otherwise.
    pub fn retire(&self, inode: Arc<Inode>) -> Option<Arc<Inode>> {
        let mut shard = self.shard(inode.ino).write();
        let own = shard.map.get(&inode.ino.0).is_some_and(|own| Arc::ptr_eq(own, &inode));
        if own && Arc::strong_count(&inode) > 2 {
            return Some(inode);
        }
        if own {
            shard.map.remove(&inode.ino.0);
            shard.removals += 1;
        }
        None
    }

    /// Inodes in memory without a link, for unmount: their holders are gone with the mount.
    pub fn unlinked(&self) -> Vec<Arc<Inode>> {
        let all = self.shards.iter().flat_map(|s| s.read().map.values().cloned().collect::<Vec<_>>());
        all.filter(|i| i.body().links == 0 && !i.freeing()).collect()
    }

    /// Inodes in memory.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.read().map.len()).sum()
    }

    /// Gives what left the table, to be dropped when the shard is unlocked: an inode may have claimed blocks.
    #[must_use]
    fn put(&self, shard: &mut Shard, inode: Arc<Inode>) -> Vec<Arc<Inode>> {
        let ino = inode.ino.0;
        let before = shard.map.insert(ino, inode);
        if before.is_none() {
            shard.clock.push_back(ino);
        }
        let mut gone = Vec::from_iter(before);
        if shard.map.len() > self.limit {
            evict(shard, self.limit, 16, &mut gone);
        }
        gone
    }
}

/// Whether names may lead to an inode: it has links, and does not hold an attribute's value (those `xattr` keeps itself).
fn reachable(inode: &Inode) -> bool {
    let body = inode.body();
    body.links > 0 && !body.flags.contains(InodeFlags::EA_INODE)
}

/// The inode, or ESTALE if it is being freed or was.
pub fn alive(inode: Arc<Inode>) -> Result<Arc<Inode>> {
    inode.check_not_freed().map(|()| inode)
}

/// Looks at up to `budget` inodes and drops the unused ones until at most `target` are left.
fn evict(shard: &mut Shard, target: usize, budget: usize, gone: &mut Vec<Arc<Inode>>) {
    for _ in 0..budget {
        if shard.map.len() <= target {
            return;
        }
        let Some(ino) = shard.clock.pop_front() else { return };
        let Some(inode) = shard.map.get(&ino) else { continue };
        let idle = Arc::strong_count(inode) == 1 && !inode.held();
        if idle && !inode.used.swap(false, Ordering::Relaxed) {
            gone.extend(shard.map.remove(&ino));
            shard.removals += 1;
        } else {
            shard.clock.push_back(ino);
        }
    }
}
