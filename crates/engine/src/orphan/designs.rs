//! Former designs of orphan records, and none at all. [`ORPHANS`] chooses that of file systems that
//! are opened from then on.

use super::file::OrphanFile;
use super::list::OrphanList;
use super::slots::{OrphanBlocks, OrphanSlots, SlotAt};
use super::{FileSlots, Found};
use crate::error::{Error, Result};
use extant_blocks::Buffer;
use extant_format::orphan;
use extant_format::types::InodeNr;
use extant_journal::{Freezer, Handle, Seal};
use extant_sync::designs::Choice;
use extant_sync::{Level, Mutex};
use std::sync::Arc;

/// The way in which orphans are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrphanRecords {
    /// Slots of the orphan file, without a lock: the engine's.
    File,
    /// The same with one lock over all counters and slots, as first proposed.
    LockedFile,
    /// The chain through the inodes alone, under one lock.
    List,
    /// None.
    Off,
}

/// The chosen way.
pub static ORPHANS: Choice<OrphanRecords> = {
    use OrphanRecords::*;
    Choice::new(&[File, LockedFile, List, Off])
};

/// Opens slots and list of the chosen design.
pub(super) fn open(found: Found) -> Result<(Option<FileSlots>, OrphanList)> {
    let Found { file, live, head } = found;
    let own = |place| -> Result<FileSlots> { Ok(Box::new(OrphanFile::open(place, live)?)) };
    // With one part its lock is held over each change, as in the list's first design.
    let one_part = || OrphanList::in_parts(head, 1);
    Ok(match ORPHANS.get() {
        OrphanRecords::File => (file.map(own).transpose()?, OrphanList::new(head)),
        OrphanRecords::LockedFile => (locked(file)?, one_part()),
        OrphanRecords::List => (None, one_part()),
        OrphanRecords::Off => (Some(Box::new(Off)), OrphanList::new(head)),
    })
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

fn locked(place: Option<OrphanBlocks>) -> Result<Option<FileSlots>> {
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
