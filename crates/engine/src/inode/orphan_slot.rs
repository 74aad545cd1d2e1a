//! The position of an inode's orphan record, in one word.
//!
//! # Locking
//! None: a thread that changes it must hold the inode's `rw` lock for writing, or have the only
//! reference to the inode.

use extant_sync::atomic::{AtomicU32, Ordering};

/// Where an inode's orphan record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OrphanAt {
    /// No record.
    #[default]
    None,
    /// On the legacy list.
    List {
        /// The part of the list in memory.
        part: u16,
    },
    /// In the orphan file: block index and slot.
    File {
        /// Index of the block in the orphan file.
        block: u16,
        /// Slot within the block.
        slot: u16,
    },
}

/// A shared [`OrphanAt`].
#[derive(Debug, Default)]
pub struct OrphanCell(AtomicU32);

/// Bits of a slot: a block has at most 16382.
const SLOT_BITS: u32 = 14;
const LIST: u32 = 1 << 30;
const FILE: u32 = 2 << 30;

impl OrphanCell {
    /// Where the record is.
    pub fn get(&self) -> OrphanAt {
        // Relaxed: its readers are ordered by the inode's lock.
        let word = self.0.load(Ordering::Relaxed);
        match word & (LIST | FILE) {
            LIST => OrphanAt::List { part: word as u16 },
            FILE => OrphanAt::File {
                block: (word >> SLOT_BITS) as u16,
                slot: (word & ((1 << SLOT_BITS) - 1)) as u16,
            },
            _ => OrphanAt::None,
        }
    }

    /// Notes where it is.
    pub fn set(&self, at: OrphanAt) {
        let word = match at {
            OrphanAt::None => 0,
            OrphanAt::List { part } => LIST | u32::from(part),
            OrphanAt::File { block, slot } => {
                debug_assert!(slot < 1 << SLOT_BITS);
                FILE | u32::from(block) << SLOT_BITS | u32::from(slot)
            }
        };
        self.0.store(word, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_fits() {
        let cell = OrphanCell::default();
        let file = |block, slot| OrphanAt::File { block, slot };
        for at in [
            OrphanAt::List { part: 77 },
            file(0, 0),
            file(u16::MAX, 16382),
            file(1, 1),
            OrphanAt::None,
        ] {
            cell.set(at);
            assert_eq!(cell.get(), at);
        }
    }
}
