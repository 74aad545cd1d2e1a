//! The write of another form of checksums.
//!
//! Before it replays a log, a program reads the superblock, and then with the checksums of that:
//! descriptors, the journal's inode with its map, and the block of multi-mount protection. These
//! get checksums that are valid under the old superblock and the new one:
//! - Without checksums of a kind nothing reads their fields, so that those of the other form can be
//!   there. The block of multi-mount protection is no part of the transaction ([`Site::parts`]).
//! - A descriptor has one field for the CRC-16 of `uninit_bg` and the CRC-32C of `metadata_csum`.
//!   A value of its field for a snapshot's bitmap, which no program has, makes both equal. The
//!   transaction makes the field 0 again.

use super::{Parts, Site};
use crate::edit::EditError;
use crate::maps::Runs;
use crate::reader::Reader;
use crate::tune::{Tunable, TuneError};
use crate::view::journal_slot;
use extant_blocks::BlockDevice;
use extant_format::extent::seal_extent_block;
use extant_format::inode::seal_inode;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_format::{Geometry, GroupDesc, GroupNr, Inode, InodeFlags, InodeNr, Superblock};
use extant_journal::LogPlace;

/// Makes the changes through the log, which takes them: the write of the superblock counts.
pub fn write(site: &Site<'_>, tunable: &Tunable<'_>, parts: &Parts) -> Result<(), TuneError> {
    let log = tunable.log.as_ref().ok_or(EditError::JournalMissing)?;
    let used = parts.used()?;
    let changes = parts.changes(site, &used);
    changes.check(log)?;
    let mut bytes = [0; SUPERBLOCK_SIZE];
    parts.overlay.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)?;
    let new = Geometry::new(&Superblock::parse(&bytes)?)?;
    let both = Both { site, tunable, new };
    let early = both.blocks(log.place() == LogPlace::Inside)?;
    parts.write_new(site)?;
    for (nr, bytes) in early {
        site.device.write_all_at(&bytes, nr.saturating_mul(new.block_size.into()))?;
    }
    site.device.flush()?;
    Ok(changes.commit_by_superblock(log)?)
}

/// Blocks that are valid under two superblocks.
struct Both<'b> {
    site: &'b Site<'b>,
    tunable: &'b Tunable<'b>,
    new: Geometry,
}

impl Both<'_> {
    fn old(&self) -> &Geometry {
        &self.tunable.primary.geometry
    }

    /// Returns the blocks that a program reads before it replays the log, as they are to be before
    /// the superblock is written.
    fn blocks(&self, has_inode: bool) -> Result<Vec<(u64, Vec<u8>)>, TuneError> {
        let mut blocks = Vec::new();
        if self.new.has_group_checksums() {
            for index in 0..self.new.desc_blocks {
                blocks.push((self.new.gdt_block(index).0, self.descriptors(index)?));
            }
        }
        if self.new.metadata_csum && !self.old().metadata_csum && has_inode {
            blocks.extend(self.journal()?);
        }
        Ok(blocks)
    }

    fn block(&self, nr: u64) -> Result<Vec<u8>, TuneError> {
        let mut bytes = vec![0; self.new.block_size as usize];
        let offset = nr.saturating_mul(self.new.block_size.into());
        self.site.device.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn descriptors(&self, index: u32) -> Result<Vec<u8>, TuneError> {
        let mut block = self.block(self.new.gdt_block(index).0)?;
        let first = index.saturating_mul(self.new.descs_per_block());
        let slots = block.chunks_exact_mut(self.new.desc_size.into());
        for (slot, n) in slots.zip(0..self.new.descs_in_block(index)) {
            let group = GroupNr(first.saturating_add(n));
            if !GroupDesc::seal_for_both(slot, [self.old(), &self.new], group) {
                return Err(TuneError::Unsupported(format!(
                    "the descriptor of group {} has no checksum of both kinds",
                    group.0
                )));
            }
        }
        Ok(block)
    }

    /// Returns the block with the journal's inode, and those of its map.
    fn journal(&self) -> Result<Vec<(u64, Vec<u8>)>, TuneError> {
        let ino: InodeNr = self.tunable.primary.superblock.journal_inum();
        let reader = Reader::new(&**self.site.device, *self.old());
        let (nr, at) = journal_slot(&reader, ino)?;
        let mut block = self.block(nr)?;
        let end = at.saturating_add(self.new.inode_size.into());
        let slot = block.get_mut(at..end).unwrap_or(&mut []);
        seal_inode(slot, &self.new, ino);
        let inode = Inode::decode_unverified(slot, &self.new, ino)?;
        let mut blocks = vec![(nr, block)];
        if inode.flags.contains(InodeFlags::EXTENTS) {
            let seed = inode.seed(&self.new, ino);
            for nr in Runs::of(&reader, ino, &inode).nodes() {
                let mut bytes = self.block(nr)?;
                seal_extent_block(&mut bytes, nr, seed);
                blocks.push((nr, bytes));
            }
        }
        Ok(blocks)
    }
}
