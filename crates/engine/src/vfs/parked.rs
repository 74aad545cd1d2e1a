//! Holds of inodes that are not in memory: a number and a count in place of an inode, for all that
//! a FUSE kernel remembers.

use extant_format::types::InodeNr;
use extant_sync::{Level, Mutex};
use rustc_hash::FxHashMap;

const SHARDS: usize = 64;

/// Counts by number; none is 0.
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

    /// The inode leaves memory with so many holds.
    pub fn put(&self, ino: InodeNr, holds: u64) {
        if holds > 0 {
            self.shard(ino).lock().insert(ino.0, holds);
        }
    }

    /// The inode comes back; its holds.
    pub fn take(&self, ino: InodeNr) -> u64 {
        self.shard(ino).lock().remove(&ino.0).unwrap_or(0)
    }

    /// Gives `n` holds back; false if there is none.
    pub fn release(&self, ino: InodeNr, n: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        let Some(holds) = shard.get_mut(&ino.0) else { return false };
        *holds = holds.saturating_sub(n);
        if *holds == 0 {
            shard.remove(&ino.0);
        }
        true
    }

    /// Inodes with holds.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_come_and_go() {
        let (parked, ino) = (EvictedHolds::default(), InodeNr(77));
        parked.put(ino, 0);
        assert_eq!(parked.len(), 0);
        parked.put(ino, 3);
        assert!(parked.release(ino, 1));
        assert_eq!((parked.take(ino), parked.take(ino)), (2, 0));
        parked.put(ino, 2);
        assert!(parked.release(ino, 5));
        assert!(!parked.release(ino, 1));
        assert_eq!(parked.len(), 0);
    }
}
