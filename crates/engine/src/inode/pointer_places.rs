//! The places of pointer blocks in the map of one inode: plain data; `extent` keeps it.
//!
//! A hostile map leads to one pointer block in many places: with 1024 pointers per block, four
//! blocks stand for 2^30. So each pointer block gets its place when it is first read, and is
//! refused in another place.
//!
//! # Invariants
//! - A block that leaves the map leaves this table first, since it may return in another place.
//! - At most [`MAX_PLACES`] blocks are kept: then the table begins anew. No map has more than 2^21
//!   pointer blocks, so that an evasion takes 2^16 distinct blocks, and makes 32 visits of each.
//!
//! # Locking
//! The mutex is innermost. The table is used under the inode's map lock.

use super::lazy::Make;
use extant_sync::{Level, Mutex};
use rustc_hash::FxHashMap;

/// Blocks that are kept at most: 1 MiB.
const MAX_PLACES: usize = 1 << 16;

/// Where pointer blocks belong: the first logical block, and the level.
#[derive(Debug)]
pub struct PointerPlaces(Mutex<FxHashMap<u32, (u32, u8)>>);

impl Make for PointerPlaces {
    fn make() -> Self {
        PointerPlaces(Mutex::new(Level::Leaf, FxHashMap::default()))
    }
}

impl PointerPlaces {
    /// Whether this may be the place of a pointer block: it has no other one.
    pub fn is_place(&self, block: u32, first: u32, level: u8) -> bool {
        let mut places = self.0.lock();
        if places.len() >= MAX_PLACES && !places.contains_key(&block) {
            places.clear();
        }
        *places.entry(block).or_insert((first, level)) == (first, level)
    }

    /// The block is no pointer block any more.
    pub fn forget(&self, block: u32) {
        self.0.lock().remove(&block);
    }
}
