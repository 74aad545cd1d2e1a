//! Inodes without a name that no caller looks up by number, such as those of `O_TMPFILE`.
//!
//! # Invariants
//! - An inode is in this table from its creation until it is freed or enters the inode cache. The
//!   table's reference keeps it in memory, independently of other references.
//! - The table has at most one inode for a number. A freed inode may be replaced by the next inode
//!   of its number before it is removed.
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

/// Binary logarithm of the number of adjacent inode numbers in one shard: about the batch of
/// numbers that a thread allocates at a time.
const LOT_BITS: u32 = 5;

/// The table of inodes without a name; see the module's description.
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

    /// Returns whether the table has an inode with this number.
    pub fn has(&self, ino: InodeNr) -> bool {
        self.shard(ino).lock().contains_key(&ino.0)
    }

    /// Adds a new inode.
    pub fn insert(&self, inode: InodeRef) {
        let before = self.shard(inode.ino).lock().insert(inode.ino.0, inode.clone());
        drop(before);
    }

    /// Removes an inode. Returns `None` if it is absent; another inode with its number stays.
    pub fn remove(&self, inode: &Inode) -> Option<InodeRef> {
        let mut shard = self.shard(inode.ino).lock();
        match shard.get(&inode.ino.0) {
            Some(known) if std::ptr::eq(&***known, inode) => shard.remove(&inode.ino.0),
            _ => None,
        }
    }

    /// Returns all inodes of the table.
    pub fn all(&self) -> Vec<Arc<Inode>> {
        let of = |shard: &CachePadded<Mutex<FxHashMap<u32, InodeRef>>>| {
            shard.lock().values().map(|inode| Arc::clone(inode)).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// Returns the number of inodes in the table.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}
