//! Orphan records as they were before, and none at all.

use extant_blocks::Buffer;
use extant_engine::design::{
    Freezer, Handle, InodeNr, OrphanBlocks, OrphanDesign, OrphanSlots, Seal, SlotAt, orphan,
};
use extant_engine::{Error, Result};
use extant_sync::{Level, Mutex};
use std::sync::Arc;

/// The designs, in the order of columns.
pub const NAMES: [&str; 4] = ["list", "locked file", "lockless file", "off"];

/// The engine's own.
pub const CHOSEN: usize = 2;

/// None at all.
pub const OFF: usize = 3;

/// Returns the design of a column; None is the engine's own.
pub fn design(column: usize) -> Option<OrphanDesign> {
    match column {
        0 => Some(OrphanDesign { slots: Arc::new(|_| Ok(None)), list_parts: Some(1) }),
        1 => Some(OrphanDesign { slots: Arc::new(locked), list_parts: Some(1) }),
        OFF => {
            Some(OrphanDesign { slots: Arc::new(|_| Ok(Some(Box::new(Off)))), list_parts: None })
        }
        _ => None,
    }
}

/// No records: a crash loses space and leaves inodes without names. Serves to measure the cost of
/// records.
#[derive(Debug)]
struct Off;

impl OrphanSlots for Off {
    fn add(&self, _: &mut Handle<'_>, _: InodeNr) -> Result<Option<SlotAt>> {
        Ok(Some(SlotAt { block: 0, slot: 0 }))
    }

    fn clear(&self, _: &mut Handle<'_>, _: SlotAt) -> Result<()> {
        Ok(())
    }

    fn records(&self) -> Result<Vec<(InodeNr, SlotAt)>> {
        Ok(Vec::new())
    }

    fn is_empty(&self) -> bool {
        true
    }

    fn freeze(&self, _: &mut Freezer<'_>) -> Result<()> {
        Ok(())
    }
}

/// The orphan file as it was first proposed: one lock over all counters and slots, searched from
/// the beginning each time. The lock is dropped while the block joins the transaction.
#[derive(Debug)]
struct LockedFile {
    seal: Seal,
    buffers: Vec<Arc<Buffer>>,
    /// How many slots of each block are empty and not spoken for.
    free: Mutex<Vec<usize>>,
    slots: usize,
}

fn locked(place: Option<OrphanBlocks>) -> Result<Option<Box<dyn OrphanSlots>>> {
    let Some(place) = place else { return Ok(None) };
    let read = |nr: &u64| place.cache.read::<Error>(*nr, |_| Ok(()));
    let buffers = place.blocks.iter().map(read).collect::<Result<Vec<_>>>()?;
    let free = buffers.iter().map(|buffer| orphan::count_zero(&buffer.read())).collect();
    let slots = orphan::slots(place.cache.block_size());
    let free = Mutex::new(Level::Orphan, free);
    Ok(Some(Box::new(LockedFile { seal: place.seal(), buffers, free, slots })))
}

impl LockedFile {
    /// Reserves a slot in the first block with an empty one, and returns the block.
    fn reserve(&self) -> Option<usize> {
        let mut free = self.free.lock();
        let block = free.iter().position(|free| *free > 0)?;
        free[block] -= 1;
        Some(block)
    }

    /// Fills the first empty slot: a reserved slot exists.
    fn fill(
        &self,
        h: &mut Handle<'_>,
        buffer: &Arc<Buffer>,
        ino: InodeNr,
    ) -> Result<Option<usize>> {
        h.join(buffer)?;
        let _free = self.free.lock();
        let mut bytes = h.write(buffer, self.seal)?;
        let slot = (0..self.slots).find(|slot| orphan::get(&bytes, *slot) == 0);
        slot.iter().for_each(|slot| orphan::put(&mut bytes, *slot, ino.0));
        Ok(slot)
    }
}

impl OrphanSlots for LockedFile {
    fn add(&self, h: &mut Handle<'_>, ino: InodeNr) -> Result<Option<SlotAt>> {
        let Some(block) = self.reserve() else { return Ok(None) };
        let buffer = &self.buffers[block];
        let filled = self.fill(h, buffer, ino);
        if !matches!(filled, Ok(Some(_))) {
            self.free.lock()[block] += 1;
        }
        Ok(filled?.map(|slot| SlotAt { block: block as u32, slot: slot as u32 }))
    }

    fn clear(&self, h: &mut Handle<'_>, at: SlotAt) -> Result<()> {
        let buffer = &self.buffers[at.block as usize];
        h.join(buffer)?;
        let mut free = self.free.lock();
        orphan::put(&mut h.write(buffer, self.seal)?, at.slot as usize, 0);
        free[at.block as usize] += 1;
        Ok(())
    }

    fn records(&self) -> Result<Vec<(InodeNr, SlotAt)>> {
        let mut records = Vec::new();
        for (block, buffer) in (0..).zip(&self.buffers) {
            let bytes = buffer.read();
            records.extend(
                orphan::used(&bytes)
                    .map(|(slot, ino)| (InodeNr(ino), SlotAt { block, slot: slot as u32 })),
            );
        }
        Ok(records)
    }

    fn is_empty(&self) -> bool {
        self.free.lock().iter().all(|free| *free == self.slots)
    }

    fn freeze(&self, _: &mut Freezer<'_>) -> Result<()> {
        Ok(())
    }
}
