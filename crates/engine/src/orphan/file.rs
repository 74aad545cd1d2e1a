//! The orphan file: blocks of slots, each with an inode number or empty, filled and emptied without
//! a lock.
//!
//! # Invariants
//! - The slots in memory are authoritative. A block's bytes are made from them once per
//!   transaction, at freeze. A thread that changes a slot joins the block to the transaction first
//!   and holds a handle meanwhile, so freeze sees all changes of its transaction and none of the
//!   next.
//! - A block in memory with changed `slots` since its bytes were made is on a list of `changed`.
//! - A block is dropped from memory only at freeze, with all its slots empty: no thread has a
//!   reservation there, since that takes a handle. The cache keeps its bytes, which are those of an
//!   empty block.
//! - A file that was closed properly is empty: its blocks are read when they are first used. A
//!   block that does not pass its check is not used. After a crash all blocks are read at once, and
//!   a bad one is an error of opening.
//!
//! # Memory order
//! That of [`Slots`] and [`Hints`]; `open` has a hint for each block: a release that raises a
//! block's count from nothing notes it there after the count, a search that finds a count of
//! nothing clears it and looks at the count again. A block is published by [`Swap`] (Release and
//! Acquire) after its slots were made.

use super::slots::{OrphanBlocks, OrphanSlots, SlotAt};
use crate::error::{Error, Result};
use extant_blocks::Buffer;
use extant_format::error::Corrupt;
use extant_format::orphan;
use extant_format::types::InodeNr;
use extant_journal::{Freezer, Handle, Seal};
use extant_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use extant_sync::{Hints, Level, Mutex, Sharded, ShardedCounter, Slots, Swap};
use std::sync::Arc;

/// Most bytes of slots that are kept in memory; the kernel's limit of 512 blocks takes half at
/// most.
const MAX_BYTES: usize = 64 << 20;
/// Blocks kept in memory for each shard of threads, however idle.
const KEPT: usize = 2;
/// Distance of the slots at which threads that share a block begin: beyond a line of slots and of
/// hints.
const SPREAD: usize = 64;

#[derive(Debug)]
pub(super) struct OrphanFile {
    place: OrphanBlocks,
    seal: Seal,
    blocks: Box<[Block]>,
    /// Which blocks may have an empty slot.
    open: Hints,
    /// Blocks that the running transaction changed, more than once perhaps.
    changed: Sharded<Mutex<Vec<u32>>>,
    /// Held to read a block.
    loading: Mutex<()>,
    /// Blocks in memory.
    loaded: AtomicUsize,
    /// Slots and blocks that searches tried in vain.
    retries: ShardedCounter,
}

#[derive(Debug, Default)]
struct Block {
    memory: Swap<Loaded>,
    /// It did not pass its check.
    bad: AtomicBool,
}

/// A block in memory.
#[derive(Debug)]
struct Loaded {
    buffer: Arc<Buffer>,
    slots: Slots,
}

impl OrphanFile {
    /// The file; `read` if records may be live in it.
    pub fn open(place: OrphanBlocks, read: bool) -> Result<OrphanFile> {
        let count = place.blocks.len();
        if count.saturating_mul(place.cache.block_size()) > MAX_BYTES {
            return Err(Corrupt::new("orphan file")
                .field("blocks")
                .found(count as u64)
                .at_inode(place.ino)
                .into());
        }
        let file = OrphanFile {
            seal: place.seal(),
            blocks: (0..count).map(|_| Block::default()).collect(),
            open: Hints::new(count, |_| true),
            changed: Sharded::new(|_| Mutex::new(Level::Leaf, Vec::new())),
            loading: Mutex::new(Level::Orphan, ()),
            loaded: AtomicUsize::new(0),
            retries: ShardedCounter::default(),
            place,
        };
        if read {
            (0..count).try_for_each(|index| file.load(index))?;
        }
        Ok(file)
    }

    /// Returns the block where this thread's search begins: the shards of threads divide a file of
    /// any length evenly.
    fn start(&self) -> usize {
        self.shard() * self.blocks.len() / self.changed.len()
    }

    fn shard(&self) -> usize {
        if self.place.spread { self.changed.local_index() } else { 0 }
    }

    /// Records `ino` in a block, if it has an empty slot and can be used.
    fn add_in(&self, h: &mut Handle<'_>, index: usize, ino: InodeNr) -> Option<Result<SlotAt>> {
        let memory = self.memory(index)?;
        let block = memory.get()?;
        if !block.slots.reserve() {
            self.retries.add(1);
            return None;
        }
        if let Err(error) = self.join(h, index, block) {
            self.give_back(index, block);
            return Some(Err(error));
        }
        let start = self.shard() * SPREAD % block.slots.len().max(1);
        let mut retries = 0;
        let claimed = block.slots.claim_counting(start, ino.0, &mut retries);
        if retries > 0 {
            self.retries.add(retries.into());
        }
        match claimed {
            Some(slot) => Some(Ok(SlotAt { block: index as u32, slot: slot as u32 })),
            None => {
                self.give_back(index, block);
                None
            }
        }
    }

    fn give_back(&self, index: usize, block: &Loaded) {
        block.slots.give_back();
        self.open.note(index);
    }

    /// Makes the block part of the handle's transaction.
    fn join(&self, h: &mut Handle<'_>, index: usize, block: &Loaded) -> Result<()> {
        h.note_change();
        if block.buffer.tid() != h.tid().0 {
            h.join(&block.buffer)?;
            // By each thread that saw the block off the list. Each holds a handle, so freeze waits
            // for the push.
            self.changed.local().lock().push(index as u32);
        }
        Ok(())
    }

    /// A block in memory, read if need be; none if it is bad.
    #[inline]
    fn memory(&self, index: usize) -> Option<extant_sync::SwapRead<Loaded>> {
        let block = self.blocks.get(index)?;
        let memory = block.memory.load();
        if memory.get().is_some() {
            return Some(memory);
        }
        if block.bad.load(Ordering::Relaxed) {
            return None;
        }
        match self.load(index) {
            Ok(()) => Some(block.memory.load()),
            Err(error) => {
                tracing::error!("a block of the orphan file is not used: {error}");
                block.bad.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    #[cold]
    fn load(&self, index: usize) -> Result<()> {
        let (Some(block), Some(&nr)) = (self.blocks.get(index), self.place.blocks.get(index))
        else {
            return Ok(());
        };
        let _loading = self.loading.lock();
        if block.memory.load().get().is_some() {
            return Ok(());
        }
        let OrphanBlocks { cache, seed, metadata_csum, ino, .. } = &self.place;
        let check = |bytes: &[u8]| {
            orphan::verify(bytes, nr, *seed, *metadata_csum)
                .map_err(|error| Error::from(error.at_inode(*ino)))
        };
        let buffer: Arc<Buffer> = cache.read(nr, check)?;
        let slots = {
            let bytes = buffer.read();
            Slots::new((0..orphan::slots(bytes.len())).map(|slot| orphan::get(&bytes, slot)))
        };
        block.memory.store(Some(Arc::new(Loaded { buffer, slots })));
        self.loaded.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Whether a block may still have an empty slot.
    fn may_take(&self, index: usize) -> bool {
        self.blocks.get(index).is_some_and(|block| {
            let unread = !block.bad.load(Ordering::Relaxed);
            block.memory.load().get().map_or(unread, |block| block.slots.has_free())
        })
    }

    /// Drops unused blocks, if there are more than threads need.
    fn drop_idle(&self, tid: u64) {
        if self.loaded.load(Ordering::Relaxed) <= KEPT * self.changed.len() {
            return;
        }
        for block in &self.blocks {
            let idle = |block: &Loaded| block.slots.is_empty() && block.buffer.tid() != tid;
            if block.memory.load().get().is_some_and(idle) {
                block.memory.store(None);
                self.loaded.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

impl OrphanSlots for OrphanFile {
    fn add(&self, h: &mut Handle<'_>, ino: InodeNr) -> Result<Option<SlotAt>> {
        self.open
            .find(self.start(), |index| self.add_in(h, index, ino), |index| self.may_take(index))
            .transpose()
    }

    fn clear(&self, h: &mut Handle<'_>, at: SlotAt) -> Result<()> {
        let index = at.block as usize;
        let Some(memory) = self.memory(index) else { return Ok(()) };
        let Some(block) = memory.get() else { return Ok(()) };
        self.join(h, index, block)?;
        if block.slots.release(at.slot as usize) {
            self.open.note(index);
        }
        Ok(())
    }

    fn records(&self) -> Result<Vec<(InodeNr, SlotAt)>> {
        let mut records = Vec::new();
        for (index, block) in (0..).zip(&self.blocks) {
            let memory = block.memory.load();
            let numbers =
                memory.get().into_iter().flat_map(|block| (0..).zip(block.slots.numbers()));
            let used = numbers.filter(|(_, ino)| *ino != 0);
            records.extend(used.map(|(slot, ino)| (InodeNr(ino), SlotAt { block: index, slot })));
        }
        Ok(records)
    }

    fn retries(&self) -> u64 {
        u64::try_from(self.retries.sum()).unwrap_or(0)
    }

    fn is_empty(&self) -> bool {
        self.blocks
            .iter()
            .all(|block| block.memory.load().get().is_none_or(|block| block.slots.is_empty()))
    }

    fn freeze(&self, out: &mut Freezer<'_>) -> Result<()> {
        let mut changed: Vec<u32> =
            self.changed.iter().flat_map(|list| std::mem::take(&mut *list.lock())).collect();
        changed.sort_unstable();
        changed.dedup();
        for index in changed {
            let memory = self.blocks.get(index as usize).map(|block| block.memory.load());
            let Some(block) = memory.as_ref().and_then(|memory| memory.get()) else { continue };
            let mut bytes = out.write(&block.buffer, self.seal)?;
            for (slot, ino) in block.slots.numbers().enumerate() {
                orphan::put(&mut bytes, slot, ino);
            }
        }
        self.drop_idle(out.tid().0);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
