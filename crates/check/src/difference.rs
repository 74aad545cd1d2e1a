//! Blocks that differ between a device and an overlay of it, and the writes that make them equal.
//!
//! For example, an overlay holds blocks 3 (a bitmap), 40 (a directory) and 900 (the content of a
//! new file). In the bitmaps of the device block 900 is free: it is new, and is written first.
//! Blocks 3 and 40 go through one transaction of the log. A power cut before its commit record
//! leaves the old file system, to which block 900 does not belong.

use crate::redo::RedoRecord;
use extant_blocks::{BlockDevice, OverlayDevice, Plug};
use extant_format::group_desc::{GroupFlags, init_block_bitmap};
use extant_format::types::Timestamp;
use extant_format::{BlockNr, Geometry, GroupDesc, GroupNr, bitmap};
use extant_journal::Log;
use extant_journal::offline::{ChangedBlock, OfflineChanges, OfflineError, check_fit};
use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of new blocks that are collected for one set of requests.
const PIECE: usize = 8 << 20;

/// Makes a redo file durable.
pub type SaveRedo<'s> = dyn FnMut(&RedoRecord<'_>) -> io::Result<()> + 's;

/// The failure of the writes, with the state in which they left the file system.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Nothing is changed, but for blocks to which nothing refers.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Those of the log.
    #[error(transparent)]
    Log(#[from] OfflineError),
    /// Some blocks of a file system without a log may be missing.
    #[error("some changes may be missing: {0}")]
    Partly(extant_journal::Error),
}

/// The numbers of the blocks that differ, in ascending order.
#[derive(Debug, Default)]
pub struct Difference {
    block_size: usize,
    /// Blocks to which nothing on the device refers.
    pub new: Vec<u64>,
    /// Blocks in use.
    pub used: Vec<u64>,
}

impl Difference {
    /// Compares the written blocks of the overlay with those of the device, but for the ranges of
    /// blocks in `left_out`.
    pub fn between(
        device: &dyn BlockDevice,
        overlay: &OverlayDevice,
        block_size: u32,
        left_out: &[(u64, u64)],
        is_new: &mut dyn FnMut(u64) -> bool,
    ) -> io::Result<Difference> {
        let is_left_out = |nr| left_out.iter().any(|(start, end)| (*start..*end).contains(&nr));
        let mut blocks = overlay.written_blocks();
        blocks.retain(|nr| !is_left_out(*nr));
        Difference::among(&blocks, [device, overlay], block_size, is_new)
    }

    /// Compares these blocks, in ascending order, of an old and a new state.
    pub fn among(
        blocks: &[u64],
        [before, after]: [&dyn BlockDevice; 2],
        block_size: u32,
        is_new: &mut dyn FnMut(u64) -> bool,
    ) -> io::Result<Difference> {
        let block_size = block_size as usize;
        let mut found = Difference { block_size, ..Difference::default() };
        let (mut old, mut new) = (vec![0; block_size], vec![0; block_size]);
        for nr in blocks.iter().copied() {
            let offset = nr.saturating_mul(block_size as u64);
            before.read_exact_at(&mut old, offset)?;
            after.read_exact_at(&mut new, offset)?;
            if old != new {
                if is_new(nr) { found.new.push(nr) } else { found.used.push(nr) }
            }
        }
        Ok(found)
    }

    /// Returns the numbers of all blocks.
    pub fn all(&self) -> impl Iterator<Item = u64> + '_ {
        self.new.iter().chain(&self.used).copied()
    }

    fn contents(&self, overlay: &dyn BlockDevice, blocks: &[u64]) -> io::Result<Vec<ChangedBlock>> {
        let content = |nr: &u64| {
            let mut bytes = vec![0; self.block_size];
            overlay.read_exact_at(&mut bytes, nr.saturating_mul(self.block_size as u64))?;
            Ok((*nr, Arc::from(bytes)))
        };
        blocks.iter().map(content).collect()
    }

    /// Returns the blocks in use with their new contents.
    pub fn used_contents(&self, overlay: &dyn BlockDevice) -> io::Result<Vec<ChangedBlock>> {
        self.contents(overlay, &self.used)
    }

    /// Writes the new blocks, without a flush. Nothing refers to them before the others are
    /// written.
    pub fn write_new(&self, device: &dyn BlockDevice, overlay: &dyn BlockDevice) -> io::Result<()> {
        for blocks in self.new.chunks(PIECE.checked_div(self.block_size).unwrap_or(1).max(1)) {
            let contents = self.contents(overlay, blocks)?;
            let mut plug = Plug::new(device);
            for (nr, bytes) in contents {
                plug.add(nr.saturating_mul(self.block_size as u64), bytes);
            }
            plug.finish()?;
        }
        Ok(())
    }

    /// Writes the blocks: wholly or not at all through an empty log; in place without one. The
    /// blocks in use are in memory meanwhile.
    pub fn write(
        &self,
        device: &dyn BlockDevice,
        overlay: &dyn BlockDevice,
        log: Option<&Log>,
    ) -> Result<(), WriteError> {
        // Before their contents are in memory.
        log.map_or(Ok(()), |log| check_fit(log, self.used.len()))
            .map_err(OfflineError::Unchanged)?;
        let used = self.used_contents(overlay)?;
        let changes = OfflineChanges { device, blocks: &used, time: now() };
        log.map_or(Ok(()), |log| changes.check(log))?;
        self.write_new(device, overlay)?;
        device.flush()?;
        match log {
            Some(log) => Ok(changes.commit(log)?),
            None => changes.write_in_place(self.block_size as u32).map_err(WriteError::Partly),
        }
    }
}

impl Difference {
    /// Writes the blocks in place. `save` must make the record of those in use durable, by which a
    /// power cut from then on is made good; its failure leaves the old state.
    pub fn write_with_redo(
        &self,
        device: &dyn BlockDevice,
        overlay: &dyn BlockDevice,
        save: &mut SaveRedo<'_>,
    ) -> Result<(), WriteError> {
        let used = self.used_contents(overlay)?;
        // The blocks in use refer to them, and a redo file has their checksums only.
        self.write_new(device, overlay)?;
        device.flush()?;
        let block_size = self.block_size as u32;
        let redo = RedoRecord::of(device, overlay, (&self.new, used), block_size)?;
        save(&redo)?;
        let changes = OfflineChanges { device, blocks: redo.used(), time: now() };
        changes.write_in_place(block_size).map_err(WriteError::Partly)
    }
}

/// Returns the time of a commit record.
pub fn now() -> Timestamp {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::new(time.as_secs() as i64, time.subsec_nanos())
}

/// The block bitmaps of a device.
pub struct FreeBlocks<'d> {
    device: &'d dyn BlockDevice,
    geometry: Geometry,
    /// Whether only descriptors and bitmaps with valid checksums are believed.
    verified: bool,
    /// The group asked for last, and its bitmap if that can be read.
    group: Option<(GroupNr, Option<Vec<u8>>)>,
}

impl<'d> FreeBlocks<'d> {
    pub fn new(device: &'d dyn BlockDevice, geometry: Geometry) -> FreeBlocks<'d> {
        FreeBlocks { device, geometry, verified: false, group: None }
    }

    /// Verifies descriptors and bitmaps; blocks of a group with wrong ones count as used. Those of
    /// a group without a bitmap count as free then, but for the group's metadata.
    pub fn verified(self) -> FreeBlocks<'d> {
        FreeBlocks { verified: true, ..self }
    }

    /// Returns whether a block is free. One whose bitmap cannot be read is not.
    pub fn is_free(&mut self, nr: u64) -> bool {
        let Some((group, bit)) = self.geometry.group_and_bit(BlockNr(nr)) else { return false };
        if self.group.as_ref().is_none_or(|(known, _)| *known != group) {
            self.group = Some((group, self.bitmap(group)));
        }
        let bits = self.group.as_ref().and_then(|(_, bits)| bits.as_ref());
        bits.is_some_and(|bits| !bitmap::test(bits, bit as usize))
    }

    fn bitmap(&self, group: GroupNr) -> Option<Vec<u8>> {
        let (index, offset) = self.geometry.desc_location(group);
        let descriptors = self.block(self.geometry.gdt_block(index).0)?;
        let bytes = descriptors.get(offset..)?;
        let desc = GroupDesc::decode_unverified(bytes, &self.geometry);
        if self.verified {
            let size = usize::from(self.geometry.desc_size);
            GroupDesc::decode(bytes.get(..size)?, &self.geometry, group).ok()?;
        }
        if !desc.has_flag(&self.geometry, GroupFlags::BLOCK_UNINIT) {
            let bits = self.block(desc.block_bitmap)?;
            let is_valid = || desc.verify_block_bitmap(&bits, &self.geometry).is_ok();
            return (!self.verified || is_valid()).then_some(bits);
        }
        let mut bits = vec![0; self.geometry.block_size as usize];
        init_block_bitmap(&mut bits, &self.geometry, group, &desc);
        self.verified.then_some(bits)
    }

    fn block(&self, nr: u64) -> Option<Vec<u8>> {
        crate::reader::Reader::new(self.device, self.geometry).block(nr)
    }
}
