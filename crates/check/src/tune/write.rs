//! The writes of a new superblock; the order is that of the module's head.

use super::TuneError;
use super::open::Tunable;
use crate::view::Source;
use extant_blocks::BlockDevice;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_format::types::Timestamp;
use extant_format::{GroupNr, Superblock};
use extant_journal::offline::{ChangedBlock, OfflineChanges, replace_user};
use extant_journal::{Log, LogPlace};
use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bound on the blocks of a transaction in memory, in bytes. Each group has a copy of the
/// superblock without `sparse_super`.
const MAX_BYTES: u64 = 64 << 20;

impl Tunable<'_> {
    /// Writes a new superblock and its copies, and makes them durable.
    pub fn write(&self, new: &Superblock) -> Result<(), TuneError> {
        match self.log.as_ref() {
            Some(log) => match self.transaction(new, log)? {
                Some(blocks) => self.changes(&blocks).commit(log)?,
                None => self.write_in_place(new)?,
            },
            None => self.write_in_place(new)?,
        }
        let partly = |error| TuneError::Partly("its UUID in the external journal", error);
        self.write_user(new).map_err(partly)
    }

    fn changes<'c>(&'c self, blocks: &'c [ChangedBlock]) -> OfflineChanges<'c> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = Timestamp::new(time.as_secs() as i64, time.subsec_nanos());
        OfflineChanges { device: &**self.device, blocks, time }
    }

    /// Returns the groups with copies of the superblock, and the blocks of these.
    fn copies(&self) -> impl Iterator<Item = (GroupNr, u64)> {
        let geometry = self.primary.geometry;
        let groups = geometry.super_groups().skip(1);
        groups.filter_map(move |group| Some((group, geometry.super_block_of(group)?.0)))
    }

    /// Returns the changed blocks in ascending order; `None` if the log cannot take them.
    pub fn transaction(
        &self,
        new: &Superblock,
        log: &Log,
    ) -> Result<Option<Vec<ChangedBlock>>, TuneError> {
        let bits = self.primary.geometry.block_bits;
        let max = (MAX_BYTES >> bits).min(log.superblock().max_len().into()) as usize;
        let copies: Vec<_> = self.copies().take(max).collect();
        if copies.len() == max {
            return Ok(None);
        }
        let mut blocks = Vec::new();
        let holder = SUPERBLOCK_OFFSET >> bits;
        let within = SUPERBLOCK_OFFSET.saturating_sub(holder << bits);
        blocks.push((holder, self.block_with(holder, within, &new.encode())?));
        for (group, nr) in copies {
            blocks.push((nr, self.block_with(nr, 0, &copy_of(new, group))?));
        }
        Ok(self.changes(&blocks).fit(log).then_some(blocks))
    }

    /// Returns a block of the device with a superblock at `within`.
    fn block_with(
        &self,
        nr: u64,
        within: u64,
        superblock: &[u8; SUPERBLOCK_SIZE],
    ) -> io::Result<Arc<[u8]>> {
        let size = self.primary.geometry.block_size;
        let mut block = vec![0; size as usize];
        self.device.read_exact_at(&mut block, nr.saturating_mul(size.into()))?;
        let place = block.iter_mut().skip(within as usize);
        place.zip(superblock).for_each(|(to, from)| *to = *from);
        Ok(block.into())
    }

    /// Writes the superblock, which is the write that counts, then its copies.
    pub fn write_in_place(&self, new: &Superblock) -> Result<(), TuneError> {
        self.device.write_all_at(&new.encode(), SUPERBLOCK_OFFSET)?;
        self.device.flush()?;
        let partly = |error: io::Error| TuneError::Partly("its copies", error.into());
        self.write_copies(new).map_err(partly)
    }

    fn write_copies(&self, new: &Superblock) -> io::Result<()> {
        let size = u64::from(self.primary.geometry.block_size);
        for (group, nr) in self.copies() {
            self.device.write_all_at(&copy_of(new, group), nr.saturating_mul(size))?;
        }
        self.device.flush()
    }

    /// Replaces the file system's old UUID among the users of an external journal. Nothing depends
    /// on it, so it may be older than the superblock after a power cut.
    fn write_user(&self, new: &Superblock) -> Result<(), extant_journal::Error> {
        let old = self.primary.superblock.uuid();
        if old == new.uuid() || self.log.as_ref().is_none_or(|log| log.place() == LogPlace::Inside)
        {
            return Ok(());
        }
        // The commit has changed the log's superblock.
        let source = Source { device: self.device, journal: self.journal, as_is: true };
        match source.open_log(&self.primary)? {
            Some(log) => replace_user(&log, old, new.uuid()),
            None => Ok(()),
        }
    }
}

/// Returns the bytes of a copy.
pub fn copy_of(superblock: &Superblock, group: GroupNr) -> [u8; SUPERBLOCK_SIZE] {
    superblock.encode_copy(group)
}
