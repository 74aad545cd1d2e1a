//! Holds of inodes that are not in memory: a number and a count replace the inode. A FUSE kernel
//! may remember far more inodes than memory should keep.
//!
//! # Locking
//! Each shard of the inode cache has the counts of its numbers, under the shard's lock.

use extant_format::types::InodeNr;
use rustc_hash::FxHashMap;

/// Counts of holds by inode number, of one shard; no count is 0.
#[derive(Debug, Default)]
pub struct EvictedHolds(FxHashMap<u32, u64>);

impl EvictedHolds {
    /// Stores the holds of an inode that leaves memory.
    pub fn put(&mut self, ino: InodeNr, holds: u64) {
        if holds > 0 {
            self.0.insert(ino.0, holds);
        }
    }

    /// Removes and returns the holds of an inode that is loaded again.
    pub fn take(&mut self, ino: InodeNr) -> u64 {
        self.0.remove(&ino.0).unwrap_or(0)
    }

    /// Releases `n` holds. Returns false if the inode has none.
    pub fn release(&mut self, ino: InodeNr, n: u64) -> bool {
        let Some(holds) = self.0.get_mut(&ino.0) else { return false };
        *holds = holds.saturating_sub(n);
        if *holds == 0 {
            self.0.remove(&ino.0);
        }
        true
    }

    /// Adds holds of an inode, which has others perhaps.
    pub fn add(&mut self, ino: InodeNr, holds: u64) {
        if holds > 0 {
            let known = self.0.entry(ino.0).or_default();
            *known = known.saturating_add(holds);
        }
    }

    /// Returns the inodes with their holds.
    pub fn all(&self) -> impl Iterator<Item = (InodeNr, u64)> + '_ {
        self.0.iter().map(|(ino, holds)| (InodeNr(*ino), *holds))
    }

    /// Returns the number of inodes with holds.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_come_and_go() {
        let (mut evicted, ino) = (EvictedHolds::default(), InodeNr(77));
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
