//! The orphan file: blocks of slots, each with an inode number or empty.
//!
//! # Invariants
//! - The slots in memory are authoritative; a block's slots equal them once all handles that changed them have ended.
//! - `free` of a block is at most the number of its empty slots: adding lowers it before it fills a slot, clearing empties
//!   the slot before it raises it. So whoever lowered it finds an empty slot, unless others keep moving them about.
//! - A slot that is not empty belongs to one inode, and only that inode's owner clears it.

use crate::error::{Error, Result};
use crate::inode::OrphanAt;
use crate::store::Store;
use crate::volume::Volume;
use extant_blocks::Buffer;
use extant_format::error::Corrupt;
use extant_format::orphan;
use extant_format::types::InodeNr;
use extant_journal::{Handle, Seal};
use extant_sync::CachePadded;
use extant_sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// Most bytes of slots that are kept in memory; the kernel's limit of 512 blocks takes half at most.
const MAX_BYTES: usize = 64 << 20;
/// How often a block is walked for an empty slot before the list is used instead.
const WALKS: usize = 3;
/// Distance of the blocks that threads start at.
const SPREAD: usize = 13;

#[derive(Debug)]
pub(super) struct OrphanFile {
    blocks: Box<[CachePadded<Block>]>,
    seal: Seal,
}

#[derive(Debug)]
struct Block {
    nr: u64,
    free: AtomicU32,
    /// Where the next search starts: a hint.
    next: AtomicU32,
    slots: Box<[AtomicU32]>,
}

impl OrphanFile {
    pub fn open(vol: &Volume, ino: InodeNr, seed: u32, blocks: &[u64]) -> Result<OrphanFile> {
        if blocks.len().saturating_mul(vol.block_size()) > MAX_BYTES {
            return Err(Corrupt::new("orphan file").field("blocks").found(blocks.len() as u64).at_inode(ino).into());
        }
        let blocks = blocks.iter().map(|nr| Ok(CachePadded::new(Block::load(vol, ino, seed, *nr)?)));
        let blocks = blocks.collect::<Result<_>>()?;
        let seal = if vol.geo.metadata_csum { Seal { f: orphan::seal_orphan_block, seed } } else { Seal::NONE };
        Ok(OrphanFile { blocks, seal })
    }

    /// Records `ino` in an empty slot; `None` if there is none.
    pub fn add(&self, st: &Store, h: &mut Handle<'_>, ino: InodeNr) -> Result<Option<OrphanAt>> {
        let Some((index, block)) = self.reserve() else { return Ok(None) };
        let Some(slot) = block.claim(ino) else {
            block.free.fetch_add(1, Ordering::Release);
            return Ok(None);
        };
        let written = self.write(st, h, block, slot, ino);
        if written.is_err() {
            block.release(slot);
        }
        written.map(|()| Some(OrphanAt::File { block: index as u32, slot }))
    }

    /// Empties a slot.
    pub fn clear(&self, st: &Store, h: &mut Handle<'_>, block: u32, slot: u32) -> Result<()> {
        let Some(block) = self.blocks.get(block as usize) else { return Ok(()) };
        self.write(st, h, block, slot, InodeNr::NONE)?;
        block.release(slot);
        Ok(())
    }

    fn write(&self, st: &Store, h: &mut Handle<'_>, block: &Block, slot: u32, ino: InodeNr) -> Result<()> {
        let buffer = st.cache.read::<Error>(block.nr, |_| Ok(()))?;
        orphan::put(&mut h.write(&buffer, self.seal)?, slot as usize, ino.0);
        Ok(())
    }

    /// Finds a block with an empty slot and takes one off its counter. Threads start at different blocks.
    fn reserve(&self) -> Option<(usize, &Block)> {
        let count = self.blocks.len();
        let start = (extant_sync::shard_index() * SPREAD).checked_rem(count)?;
        let order = (start..count).chain(0..start);
        order.map(|index| (index, &*self.blocks[index])).find(|(_, block)| block.reserve())
    }

    /// All records.
    pub fn records(&self) -> Vec<(InodeNr, u32, u32)> {
        let mut records = Vec::new();
        for (index, block) in (0..).zip(&self.blocks) {
            let slots = (0..).zip(&block.slots).map(|(slot, ino)| (InodeNr(ino.load(Ordering::Acquire)), index, slot));
            records.extend(slots.filter(|(ino, ..)| *ino != InodeNr::NONE));
        }
        records
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.iter().all(|block| block.free.load(Ordering::Acquire) as usize == block.slots.len())
    }
}

impl Block {
    fn load(vol: &Volume, ino: InodeNr, seed: u32, nr: u64) -> Result<Block> {
        let check = |bytes: &[u8]| {
            orphan::verify(bytes, nr, seed, vol.geo.metadata_csum).map_err(|error| Error::from(error.at_inode(ino)))
        };
        let buffer: Arc<Buffer> = vol.cache.read(nr, check)?;
        Ok(Block::new(nr, &buffer.read()))
    }

    fn new(nr: u64, bytes: &[u8]) -> Block {
        let slots: Box<[AtomicU32]> =
            (0..orphan::slots(bytes.len())).map(|slot| AtomicU32::new(orphan::get(bytes, slot))).collect();
        let free = slots.iter().filter(|slot| slot.load(Ordering::Relaxed) == 0).count() as u32;
        Block { nr, free: AtomicU32::new(free), next: AtomicU32::new(0), slots }
    }

    /// Takes an empty slot off the counter.
    fn reserve(&self) -> bool {
        let less = |free: u32| free.checked_sub(1);
        // Acquire: pairs with the Release of whoever emptied the slot, so that it is seen empty.
        self.free.fetch_update(Ordering::Acquire, Ordering::Relaxed, less).is_ok()
    }

    /// Fills an empty slot, one having been taken off the counter. The walk is bounded.
    fn claim(&self, ino: InodeNr) -> Option<u32> {
        let count = self.slots.len();
        let start = (self.next.load(Ordering::Relaxed) as usize).checked_rem(count)?;
        let slot = (start..start + count * WALKS).map(|step| step % count).find(|slot| self.fill(*slot, ino))?;
        self.next.store(slot as u32 + 1, Ordering::Relaxed);
        Some(slot as u32)
    }

    fn fill(&self, slot: usize, ino: InodeNr) -> bool {
        let slot = &self.slots[slot];
        slot.load(Ordering::Relaxed) == 0
            && slot.compare_exchange(0, ino.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Empties a slot, then counts it. A slot that was empty stays uncounted.
    fn release(&self, slot: u32) {
        let Some(place) = self.slots.get(slot as usize) else { return };
        if place.swap(0, Ordering::AcqRel) != 0 {
            self.next.fetch_min(slot, Ordering::Relaxed);
            self.free.fetch_add(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(slots: usize) -> Block {
        let mut bytes = vec![0; slots * 4 + 8];
        orphan::init(&mut bytes);
        Block::new(1, &bytes)
    }

    #[test]
    fn slots_are_taken_once_and_come_back() {
        let block = block(3);
        let take = |ino| if block.reserve() { block.claim(InodeNr(ino)) } else { None };
        assert_eq!((take(7), take(8), take(9), take(10)), (Some(0), Some(1), Some(2), None));
        block.release(1);
        block.release(1);
        assert_eq!(block.free.load(Ordering::Relaxed), 1);
        assert_eq!((take(11), take(12)), (Some(1), None));
    }

    #[test]
    fn a_full_walk_ends() {
        let block = block(2);
        block.slots.iter().for_each(|slot| slot.store(5, Ordering::Relaxed));
        assert!(block.reserve());
        assert_eq!(block.claim(InodeNr(9)), None);
    }

    #[test]
    fn threads_share_a_block() {
        let block = block(50);
        std::thread::scope(|scope| {
            for thread in 1..=4 {
                let block = &block;
                scope.spawn(move || {
                    for _ in 0..2000 {
                        let slot = block.reserve().then(|| block.claim(InodeNr(thread))).flatten().expect("room");
                        assert_eq!(block.slots[slot as usize].load(Ordering::Relaxed), thread);
                        block.release(slot);
                    }
                });
            }
        });
        assert_eq!(block.free.load(Ordering::Relaxed), 50);
    }
}
