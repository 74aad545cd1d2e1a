//! Holds of inodes that are not in memory: a number and a count replace the inode. A FUSE kernel
//! may remember far more inodes than memory should keep.

use extant_format::types::InodeNr;
use extant_sync::{Level, Mutex};
use rustc_hash::FxHashMap;

const SHARDS: usize = 64;

/// Counts of holds by inode number; no count is 0.
#[derive(Debug)]
pub struct EvictedHolds {
    shards: [Mutex<FxHashMap<u32, u64>>; SHARDS],
}

impl Default for EvictedHolds {
    fn default() -> Self {
        EvictedHolds {
            shards: std::array::from_fn(|_| Mutex::new(Level::Leaf, FxHashMap::default())),
        }
    }
}

impl EvictedHolds {
    fn shard(&self, ino: InodeNr) -> &Mutex<FxHashMap<u32, u64>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Stores the holds of an inode that leaves memory.
    pub fn put(&self, ino: InodeNr, holds: u64) {
        if holds > 0 {
            self.shard(ino).lock().insert(ino.0, holds);
        }
    }

    /// Removes and returns the holds of an inode that is loaded again.
    pub fn take(&self, ino: InodeNr) -> u64 {
        self.shard(ino).lock().remove(&ino.0).unwrap_or(0)
    }

    /// Releases `n` holds. Returns false if the inode has none.
    pub fn release(&self, ino: InodeNr, n: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        let Some(holds) = shard.get_mut(&ino.0) else { return false };
        *holds = holds.saturating_sub(n);
        if *holds == 0 {
            shard.remove(&ino.0);
        }
        true
    }

    /// Returns the number of inodes with holds.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_come_and_go() {
        let (evicted, ino) = (EvictedHolds::default(), InodeNr(77));
        evicted.put(ino, 0);
        assert_eq!(evicted.len(), 0);
        evicted.put(ino, 3);
        assert!(evicted.release(ino, 1));
        assert_eq!((evicted.take(ino), evicted.take(ino)), (2, 0));
        evicted.put(ino, 2);
        assert!(evicted.release(ino, 5));
        assert!(!evicted.release(ino, 1));
        assert_eq!(evicted.len(), 0);
    }
}
