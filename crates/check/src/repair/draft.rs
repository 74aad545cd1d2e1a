//! The file system as it is to become: changes of structures, in memory.

use super::{RepairError, RepairLevel};
use crate::survey::Survey;
use extant_blocks::{BlockDevice, OverlayDevice};
use extant_format::inode::seal_inode;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_format::{Geometry, GroupDesc, GroupNr, Inode, InodeNr, Superblock};
use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The device with all changes so far, which stay in memory.
pub struct Draft {
    pub device: Arc<OverlayDevice>,
    changed: Cell<bool>,
}

impl Draft {
    pub fn new(device: Arc<OverlayDevice>) -> Draft {
        Draft { device, changed: Cell::new(false) }
    }

    /// Returns whether a byte has changed since the last call.
    pub fn take_changed(&self) -> bool {
        self.changed.take()
    }

    /// Notes a change that was made on the device of the draft.
    pub fn mark_changed(&self) {
        self.changed.set(true);
    }

    pub fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.device.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// Writes bytes, unless they are there already.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.read(offset, bytes.len())? != bytes {
            self.device.write_all_at(bytes, offset)?;
            self.changed.set(true);
        }
        Ok(())
    }

    /// Changes the primary superblock, and seals it.
    pub fn edit_super(&self, edit: impl FnOnce(&mut Superblock)) -> Result<(), RepairError> {
        let bytes = self.read(SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE)?;
        let mut superblock = Superblock::parse_unverified(&bytes)?;
        edit(&mut superblock);
        Ok(self.write(SUPERBLOCK_OFFSET, &superblock.seal())?)
    }
}

/// One round of repairs, after a survey of the draft.
pub struct Round<'r> {
    pub survey: &'r Survey<'r>,
    pub draft: &'r Draft,
    pub level: RepairLevel,
    /// The time of the repair, in seconds since 1970.
    pub now: u32,
    /// The block after the last one that was allocated.
    pub(super) next: Cell<u64>,
}

impl<'r> Round<'r> {
    pub fn new(survey: &'r Survey<'r>, draft: &'r Draft, level: RepairLevel) -> Round<'r> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u32::try_from(now.as_secs()).unwrap_or(u32::MAX);
        Round { survey, draft, level, now, next: Cell::new(0) }
    }

    pub fn geometry(&self) -> &'r Geometry {
        &self.survey.volume.reader.geometry
    }

    pub fn block_size(&self) -> usize {
        self.geometry().block_size as usize
    }

    /// Reads a block.
    pub fn block(&self, nr: u64) -> Result<Vec<u8>, RepairError> {
        let offset = nr.saturating_mul(self.geometry().block_size.into());
        Ok(self.draft.read(offset, self.block_size())?)
    }

    /// Writes a block.
    pub fn put(&self, nr: u64, bytes: &[u8]) -> Result<(), RepairError> {
        let offset = nr.saturating_mul(self.geometry().block_size.into());
        Ok(self.draft.write(offset, bytes)?)
    }

    /// Changes a descriptor, and seals it.
    pub fn edit_desc(
        &self,
        group: GroupNr,
        edit: impl FnOnce(&mut GroupDesc),
    ) -> Result<(), RepairError> {
        let geometry = self.geometry();
        let (index, offset) = geometry.desc_location(group);
        let nr = geometry.gdt_block(index).0;
        let mut bytes = self.block(nr)?;
        if let Some(raw) = bytes.get_mut(offset..) {
            let mut desc = GroupDesc::decode_unverified(raw, geometry);
            edit(&mut desc);
            desc.encode(raw, geometry, group);
        }
        self.put(nr, &bytes)
    }

    pub fn desc(&self, group: GroupNr) -> Result<GroupDesc, RepairError> {
        let geometry = self.geometry();
        let (index, offset) = geometry.desc_location(group);
        let bytes = self.block(geometry.gdt_block(index).0)?;
        Ok(GroupDesc::decode_unverified(bytes.get(offset..).unwrap_or(&[]), geometry))
    }

    /// Returns the block of an inode's slot, and the byte there.
    fn slot_place(&self, ino: InodeNr) -> Result<(u64, usize), RepairError> {
        let geometry = self.geometry();
        let (group, index) = geometry.inode_location(ino)?;
        let (block, offset) = geometry.inode_slot(index);
        Ok((self.desc(group)?.inode_table.saturating_add(block.into()), offset))
    }

    /// Returns the slot of an inode.
    pub fn slot(&self, ino: InodeNr) -> Result<Vec<u8>, RepairError> {
        let (block, offset) = self.slot_place(ino)?;
        let end = offset.saturating_add(self.geometry().inode_size.into());
        Ok(self.block(block)?.get(offset..end).unwrap_or(&[]).to_vec())
    }

    /// Writes the slot of an inode as it is.
    pub fn put_slot(&self, ino: InodeNr, slot: &[u8]) -> Result<(), RepairError> {
        let (block, offset) = self.slot_place(ino)?;
        let mut bytes = self.block(block)?;
        let end = offset.saturating_add(slot.len());
        if let Some(place) = bytes.get_mut(offset..end) {
            place.copy_from_slice(slot);
        }
        self.put(block, &bytes)
    }

    /// Changes the slot of an inode, and seals it.
    pub fn edit_slot(
        &self,
        ino: InodeNr,
        edit: impl FnOnce(&mut [u8]) -> Result<(), RepairError>,
    ) -> Result<(), RepairError> {
        let (block, offset) = self.slot_place(ino)?;
        let end = offset.saturating_add(self.geometry().inode_size.into());
        let mut bytes = self.block(block)?;
        if let Some(slot) = bytes.get_mut(offset..end) {
            edit(slot)?;
            seal_inode(slot, self.geometry(), ino);
        }
        self.put(block, &bytes)
    }

    /// Reads an inode.
    pub fn inode(&self, ino: InodeNr) -> Result<Inode, RepairError> {
        Ok(Inode::decode_unverified(&self.slot(ino)?, self.geometry(), ino)?)
    }

    /// Changes the fields of an inode.
    pub fn edit_inode(
        &self,
        ino: InodeNr,
        edit: impl FnOnce(&mut Inode),
    ) -> Result<(), RepairError> {
        let geometry = self.geometry();
        self.edit_slot(ino, |slot| {
            let mut inode = Inode::decode_unverified(slot, geometry, ino)?;
            edit(&mut inode);
            Ok(inode.encode(slot, geometry, ino)?)
        })
    }

    /// Clears an inode, as deleted. Its blocks are free then, unless others use them.
    pub fn clear_inode(&self, ino: InodeNr) -> Result<(), RepairError> {
        let (first, now) = (self.geometry().first_ino, self.now);
        self.edit_slot(ino, |slot| {
            slot.fill(0);
            Ok(())
        })?;
        // A slot of zeros is unused, with any checksum; deleted ones have the time of that.
        if ino.0 >= first { self.edit_inode(ino, |inode| inode.dtime = now) } else { Ok(()) }
    }
}
