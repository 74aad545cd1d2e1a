//! Makes descriptor blocks and the superblock from memory, once per transaction.

use super::Groups;
use crate::error::{Error, Result};
use crate::volume::superblock_seconds;
use extant_blocks::Buffer;
use extant_format::group_desc::GroupDesc;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_format::types::GroupNr;
use extant_journal::{Freezer, Seal, Tid};
use extant_sync::atomic::Ordering;
use std::sync::Arc;

impl Groups {
    /// Writes the descriptors that are dirty in `tid` (with their bitmaps' checksums) and the
    /// superblock (with summed counts) into their blocks. Runs after inodes and bitmaps are in
    /// their blocks, with no handle open.
    ///
    /// # Errors
    /// `Io` if a block cannot be read; those of the journal.
    pub fn freeze(&self, tid: Tid, out: &mut Freezer<'_>) -> Result<()> {
        let mut dirty: Vec<GroupNr> =
            self.dirty.iter().flat_map(|list| std::mem::take(&mut *list.lock())).collect();
        dirty.sort_unstable();
        let block = |g: &GroupNr| self.vol.geo.desc_location(*g).0;
        for groups in dirty.chunk_by(|a, b| block(a) == block(b)) {
            self.freeze_block(groups, out)?;
        }
        self.freeze_superblock(tid, out)
    }

    /// Writes groups with descriptors in one block.
    fn freeze_block(&self, groups: &[GroupNr], out: &mut Freezer<'_>) -> Result<()> {
        let Some(first) = groups.first() else { return Ok(()) };
        let descs =
            groups.iter().map(|g| Ok((*g, self.sealed(*g)?))).collect::<Result<Vec<_>>>()?;
        let buffer = self.desc_block(*first)?;
        let mut bytes = out.write(&buffer, Seal::NONE)?;
        for (g, desc) in descs {
            let (_, at) = self.vol.geo.desc_location(g);
            let end = at + usize::from(self.vol.geo.desc_size);
            if let Some(slot) = bytes.get_mut(at..end) {
                desc.encode(slot, &self.vol.geo, g);
            }
        }
        Ok(())
    }

    /// The descriptor with the checksums of its bitmaps as they are now.
    fn sealed(&self, g: GroupNr) -> Result<GroupDesc> {
        let (desc, changed) = {
            let mut slot = self.slot(g)?.lock();
            (slot.desc, std::mem::take(&mut slot.changed))
        };
        let blocks = changed.blocks.then(|| self.cached(desc.block_bitmap)).transpose()?;
        let inodes = changed.inodes.then(|| self.cached(desc.inode_bitmap)).transpose()?;
        let mut sums = desc;
        if let Some(bitmap) = blocks {
            sums.seal_block_bitmap(&bitmap.read(), &self.vol.geo);
        }
        if let Some(bitmap) = inodes {
            sums.seal_inode_bitmap(&bitmap.read(), &self.vol.geo);
        }
        let mut slot = self.slot(g)?.lock();
        slot.desc.block_bitmap_csum = sums.block_bitmap_csum;
        slot.desc.inode_bitmap_csum = sums.inode_bitmap_csum;
        Ok(slot.desc)
    }

    /// A block of the transaction: it is in the cache.
    fn cached(&self, nr: u64) -> Result<Arc<Buffer>> {
        self.vol.cache.read::<Error>(nr, |_| Ok(()))
    }

    fn freeze_superblock(&self, tid: Tid, out: &mut Freezer<'_>) -> Result<()> {
        if self.sb.tid.load(Ordering::Acquire) != tid.0 {
            return Ok(());
        }
        // Before the copy is made: later errors are for the next transaction.
        self.sb.noted.store(false, Ordering::Release);
        let mut sb = self.superblock();
        sb.set_wtime(superblock_seconds(&*self.vol.clock));
        self.sb.fields.lock().set_kbytes_written(sb.kbytes_written());
        let buffer = self.superblock_block()?;
        let at = (SUPERBLOCK_OFFSET % self.vol.block_size() as u64) as usize;
        let mut bytes = out.write(&buffer, Seal::NONE)?;
        if let Some(place) = bytes.get_mut(at..at + SUPERBLOCK_SIZE) {
            place.copy_from_slice(&sb.seal());
        }
        Ok(())
    }
}
