//! Inodes without a name that nobody looks up by number, such as those of O_TMPFILE.
//!
//! # Invariants
//! - An inode is here from its making until it is freed or enters the table. The reference keeps it
//!   in memory, whoever holds it.
//! - At most one inode is here for a number. One that was freed may make place for the next one of
//!   its number without having left.
//!
//! # Locking
//! A shard's lock is innermost; no reference is dropped under it.

use crate::inode::Inode;
use crate::vfs::InodeRef;
use extant_format::types::InodeNr;
use extant_sync::{CachePadded, Level, Mutex};
use rustc_hash::FxHashMap;
use std::sync::Arc;

const SHARDS: usize = 64;

/// Neighbours in one shard, by powers of two: about as many as a thread takes numbers of at a time.
const LOT_BITS: u32 = 5;

/// See the module's description.
#[derive(Debug)]
pub struct TmpfileTable {
    shards: [CachePadded<Mutex<FxHashMap<u32, InodeRef>>>; SHARDS],
}

impl Default for TmpfileTable {
    fn default() -> Self {
        let shard = |_| CachePadded::new(Mutex::new(Level::Leaf, FxHashMap::default()));
        TmpfileTable { shards: std::array::from_fn(shard) }
    }
}

impl TmpfileTable {
    fn shard(&self, ino: InodeNr) -> &Mutex<FxHashMap<u32, InodeRef>> {
        let lot = ino.0.wrapping_sub(1) >> LOT_BITS;
        &self.shards[lot as usize % SHARDS]
    }

    /// Whether an inode of this number is here.
    pub fn has(&self, ino: InodeNr) -> bool {
        self.shard(ino).lock().contains_key(&ino.0)
    }

    /// Adds a new inode.
    pub fn insert(&self, inode: InodeRef) {
        let before = self.shard(inode.ino).lock().insert(inode.ino.0, inode.clone());
        drop(before);
    }

    /// Takes an inode out, unless it is not here; another one of its number stays.
    pub fn remove(&self, inode: &Inode) -> Option<InodeRef> {
        let mut shard = self.shard(inode.ino).lock();
        match shard.get(&inode.ino.0) {
            Some(known) if std::ptr::eq(&***known, inode) => shard.remove(&inode.ino.0),
            _ => None,
        }
    }

    /// All that are here.
    pub fn all(&self) -> Vec<Arc<Inode>> {
        let of = |shard: &CachePadded<Mutex<FxHashMap<u32, InodeRef>>>| {
            shard.lock().values().map(|inode| Arc::clone(inode)).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// How many are here.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}
