//! Redo files: the old and the new content of blocks that are written in place.
//!
//! The redo file of a change to a file system without a journal is complete and durable before the
//! first of these writes. After a power cut, [`finish_redo`] makes the change whole. For example,
//! blocks 3 and 40 change, and the cut leaves the new block 3 and the old block 40: each sector of
//! both has its old or its new content, so both blocks are written. Had e2fsck changed block 3
//! meanwhile, one of its sectors would have neither, and the image is left as it is.
//!
//! New blocks, to which these refer, are written before. The file has their checksums only: without
//! them the image is another one, or an older state of it, such as a restored copy.
//!
//! # Form
//! Magic, length of the device, bytes of a block, number of new blocks, number of blocks in use,
//! length of the device after the change; of each new block its number and the CRC32c of its
//! content; of each block in use its number, old content and new content; the CRC32c of all this.
//! Numbers ascend.
//!
//! The length after the change is the other one or a shorter one: a file system that becomes larger
//! has its device extended before the record is made. One that becomes smaller has all blocks of
//! the record before its new end, so that the record is of use for both lengths.
//!
//! The block of multi-mount protection is no new block of a record: hosts change it at any time.

use crate::view::mmp_block;
use extant_blocks::{BlockDevice, Plug};
use extant_format::Corrupt;
use extant_format::checksum::crc32c_raw;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State, Superblock};
use extant_journal::offline::ChangedBlock;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

/// The first bytes of a redo file, with the version of its form.
const MAGIC: &[u8; 8] = b"EXTREDO2";

/// Bytes of the header.
const HEADER: usize = 44;

/// Bytes of a number and a checksum, of which a new block has both.
const NUMBER: usize = 8;
const SUM: usize = 4;

/// Maximum size of a block in bytes.
const MAX_BLOCK: u32 = 65536;

/// Bytes that are read or written at once.
const PIECE: usize = 1 << 20;

/// Bytes that a device writes wholly or not at all.
const SECTOR: usize = 512;

/// The reason why a change was not made whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedoError {
    /// The file is no redo file, or damaged. Nothing was written.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// A new block does not have its content: this is another image, or an older state of it.
    /// Nothing was written.
    #[error("block {0} lacks new content: this is another image, or an older copy")]
    Missing(u64),
    /// A block has neither its old nor its new content: another program wrote to the file system
    /// since. Nothing was written.
    #[error("block {0} has neither its old nor its new content: the image was changed since")]
    Changed(u64),
    /// The file or the device cannot be read. Nothing was written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A write failed. Another call makes the change whole.
    #[error("some changes may be missing: {0}")]
    Partly(io::Error),
}

/// The content of a redo file: a change whose blocks in use are not written yet.
#[derive(Debug)]
pub struct RedoRecord<'d> {
    device: &'d dyn BlockDevice,
    block_size: u32,
    /// Bytes of the device after the change.
    len_after: u64,
    /// New blocks and their checksums.
    sums: Vec<(u64, u32)>,
    /// The block of the superblock is always among them, since the change marks it.
    used: Vec<ChangedBlock>,
}

impl<'d> RedoRecord<'d> {
    pub(crate) fn of(
        device: &'d dyn BlockDevice,
        overlay: &dyn BlockDevice,
        (new, mut used): (&[u64], Vec<ChangedBlock>),
        block_size: u32,
    ) -> io::Result<RedoRecord<'d>> {
        let holder = holder(block_size);
        if used.iter().all(|(nr, _)| *nr != holder) {
            used.push((holder, read_block(overlay, holder, block_size)?.into()));
            used.sort_unstable_by_key(|(nr, _)| *nr);
        }
        let protection = [device, overlay].map(protection_of);
        let is_kept = |nr: &&u64| !protection.contains(&Some(**nr));
        let sum = |nr: &u64| Ok((*nr, checksum(&read_block(overlay, *nr, block_size)?)));
        let sums = new.iter().filter(is_kept).map(sum).collect::<io::Result<_>>()?;
        Ok(RedoRecord { device, block_size, len_after: device.len(), sums, used })
    }

    /// Sets the bytes that the device has after the change, not more than before. All blocks of the
    /// record must be within them.
    pub(crate) fn cut_to(mut self, len: u64) -> RedoRecord<'d> {
        self.len_after = len.min(self.device.len());
        self
    }

    /// Returns the new contents of the blocks in use.
    pub(crate) fn used(&self) -> &[ChangedBlock] {
        &self.used
    }

    /// Writes the content of the file.
    ///
    /// # Errors
    /// Those of `out`, and of the device, whose old contents are read.
    pub fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut sum = u32::MAX;
        let mut put = |bytes: &[u8]| {
            sum = crc32c_raw(sum, bytes);
            out.write_all(bytes)
        };
        put(MAGIC)?;
        put(&self.device.len().to_le_bytes())?;
        put(&self.block_size.to_le_bytes())?;
        put(&(self.sums.len() as u64).to_le_bytes())?;
        put(&(self.used.len() as u64).to_le_bytes())?;
        put(&self.len_after.to_le_bytes())?;
        for (nr, sum) in &self.sums {
            put(&nr.to_le_bytes())?;
            put(&sum.to_le_bytes())?;
        }
        for (nr, new) in &self.used {
            put(&nr.to_le_bytes())?;
            put(&read_block(self.device, *nr, self.block_size)?)?;
            put(new)?;
        }
        out.write_all(&sum.to_le_bytes())
    }
}

/// Returns the block of multi-mount protection, if the file system on a device has one.
fn protection_of(device: &dyn BlockDevice) -> Option<u64> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET).ok()?;
    mmp_block(&Superblock::parse_unverified(&bytes).ok()?)
}

fn read_block(device: &dyn BlockDevice, nr: u64, block_size: u32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; block_size as usize];
    device.read_exact_at(&mut bytes, nr.saturating_mul(block_size.into()))?;
    Ok(bytes)
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32c_raw(u32::MAX, bytes)
}

/// A file whose length and checksum are right.
struct RedoReader<'f, F> {
    file: &'f mut F,
    block_size: u32,
    sums: u64,
    used: u64,
    /// Number of blocks of the device.
    blocks: u64,
    /// Bytes that the device has after the change.
    len_after: u64,
}

impl<'f, F: Read + Seek> RedoReader<'f, F> {
    fn open(file: &'f mut F, device_len: u64) -> Result<Self, RedoError> {
        let len = file.seek(SeekFrom::End(0))?;
        file.rewind()?;
        let mut header = [0; HEADER];
        if len < HEADER as u64 {
            return Err(corrupt("length").into());
        }
        file.read_exact(&mut header)?;
        let block_size = u32::from_le_bytes(number(&header, 16)?);
        let is_size = block_size.is_power_of_two() && (1024..=MAX_BLOCK).contains(&block_size);
        if !header.starts_with(MAGIC) || !is_size {
            return Err(corrupt("magic").into());
        }
        let len_before = u64::from_le_bytes(number(&header, 8)?);
        let len_after = u64::from_le_bytes(number(&header, 36)?);
        if len_after > len_before || ![len_before, len_after].contains(&device_len) {
            return Err(corrupt("length of the device").into());
        }
        let sums = u64::from_le_bytes(number(&header, 20)?);
        let used = u64::from_le_bytes(number(&header, 28)?);
        let record = (NUMBER as u64).saturating_add(u64::from(block_size).saturating_mul(2));
        let body = sums.saturating_mul((NUMBER + SUM) as u64);
        let body = body.saturating_add(used.saturating_mul(record));
        if body.saturating_add((HEADER + SUM) as u64) != len {
            return Err(corrupt("number of blocks").into());
        }
        let blocks = len_after.checked_div(block_size.into()).unwrap_or(0);
        let mut reader = RedoReader { file, block_size, sums, used, blocks, len_after };
        reader.check_sum(len)?;
        Ok(reader)
    }

    fn check_sum(&mut self, len: u64) -> Result<(), RedoError> {
        self.file.rewind()?;
        let (mut left, mut sum) = (len.saturating_sub(SUM as u64), u32::MAX);
        let mut piece = vec![0; PIECE];
        while left > 0 {
            let here = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let (bytes, _) = piece.split_at_mut(here);
            self.file.read_exact(bytes)?;
            sum = crc32c_raw(sum, bytes);
            left = left.saturating_sub(here as u64);
        }
        let mut stored = [0; SUM];
        self.file.read_exact(&mut stored)?;
        if u32::from_le_bytes(stored) != sum {
            return Err(corrupt("checksum").into());
        }
        Ok(())
    }

    /// Refuses a device without the new blocks.
    fn check_new(&mut self, device: &dyn BlockDevice) -> Result<(), RedoError> {
        self.file.seek(SeekFrom::Start(HEADER as u64))?;
        let mut from = BufReader::with_capacity(PIECE, &mut *self.file);
        let (mut record, mut least) = ([0; NUMBER + SUM], 0);
        for _ in 0..self.sums {
            from.read_exact(&mut record)?;
            let nr = next_number(&record, &mut least, self.blocks)?;
            let found = checksum(&read_block(device, nr, self.block_size)?);
            if found != u32::from_le_bytes(number(&record, NUMBER)?) {
                return Err(RedoError::Missing(nr));
            }
        }
        Ok(())
    }

    /// Calls `act` for each block in use with its number, old and new content.
    fn each_used<E: From<io::Error>>(
        &mut self,
        mut act: impl FnMut(&[u8], &[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let sums = self.sums.saturating_mul((NUMBER + SUM) as u64);
        self.file.seek(SeekFrom::Start(sums.saturating_add(HEADER as u64)))?;
        let mut from = BufReader::with_capacity(PIECE, &mut *self.file);
        let size = self.block_size as usize;
        let (mut nr, mut old, mut new) = ([0; NUMBER], vec![0; size], vec![0; size]);
        for _ in 0..self.used {
            from.read_exact(&mut nr)?;
            from.read_exact(&mut old)?;
            from.read_exact(&mut new)?;
            act(&nr, &old, &new)?;
        }
        Ok(())
    }

    /// Refuses a device of which a block in use has another content than the old or the new one.
    /// Returns the number of blocks without the new one.
    fn check_used(&mut self, device: &dyn BlockDevice) -> Result<u64, RedoError> {
        let (size, blocks) = (self.block_size, self.blocks);
        let (mut missing, mut least, mut has_superblock) = (0, 0, false);
        self.each_used(|nr, old, new| {
            let nr = next_number(nr, &mut least, blocks)?;
            let found = read_block(device, nr, size)?;
            let offset = nr.saturating_mul(size.into());
            has_superblock |= offset == holder(size).saturating_mul(size.into());
            let known = [old, new, &marked(old, offset), &marked(new, offset)];
            let is_known = |(sector, found): (usize, &[u8])| {
                known.iter().any(|bytes| bytes.chunks(SECTOR).nth(sector) == Some(found))
            };
            if !found.chunks(SECTOR).enumerate().all(is_known) {
                return Err(RedoError::Changed(nr));
            }
            missing = u64::from(found != new).saturating_add(missing);
            Ok(())
        })?;
        if !has_superblock {
            return Err(corrupt("superblock").into());
        }
        Ok(missing)
    }

    /// Writes all blocks: the mark first, that of the superblock last. The mark is the one of the
    /// change, whatever a cut has left of the superblock, so that each sector stays known.
    fn write(&mut self, device: &dyn BlockDevice) -> io::Result<()> {
        let (size, mut last) = (u64::from(self.block_size), None);
        let holder = holder(self.block_size);
        self.each_used(|nr, old, new| {
            let nr = number(nr, 0).map(u64::from_le_bytes).map_err(io::Error::other)?;
            if nr == holder {
                last = Some((marked(old, nr.saturating_mul(size)), Arc::<[u8]>::from(new)));
            }
            io::Result::Ok(())
        })?;
        let Some((marked, superblock)) = last else { return Ok(()) };
        let start = holder.saturating_mul(size);
        device.write_all_at(&marked, start)?;
        device.flush()?;
        let (mut plug, mut waiting) = (Plug::new(device), 0);
        self.each_used(|nr, _, new| {
            let nr = number(nr, 0).map(u64::from_le_bytes).map_err(io::Error::other)?;
            if nr != holder {
                plug.add(nr.saturating_mul(size), Arc::<[u8]>::from(new));
                waiting = new.len().saturating_add(waiting);
            }
            if waiting >= PIECE {
                std::mem::replace(&mut plug, Plug::new(device)).finish()?;
                waiting = 0;
            }
            io::Result::Ok(())
        })?;
        plug.finish()?;
        device.flush()?;
        device.write_all_at(&superblock, start)?;
        device.flush()?;
        if device.len() > self.len_after {
            // The length is no part of the file system: a failure changes no result.
            let _ = device.set_len(self.len_after);
        }
        Ok(())
    }
}

/// Returns the number of the block that has the superblock.
fn holder(block_size: u32) -> u64 {
    SUPERBLOCK_OFFSET.checked_div(block_size.into()).unwrap_or(0)
}

/// Parses the number of a block that is on the device, and not below `least`.
fn next_number(record: &[u8], least: &mut u64, blocks: u64) -> Result<u64, Corrupt> {
    let nr = u64::from_le_bytes(number(record, 0)?);
    if !(*least..blocks).contains(&nr) {
        return Err(corrupt("number of a block"));
    }
    *least = nr.saturating_add(1);
    Ok(nr)
}

/// Returns a block in which the superblock, if that is there, is marked as not cleanly unmounted:
/// that of the old block is the first write of a change in place. A change of the descriptors'
/// length writes that of the new one, too.
fn marked(block: &[u8], offset: u64) -> Vec<u8> {
    let mut block = block.to_vec();
    let at = SUPERBLOCK_OFFSET.checked_sub(offset).and_then(|at| usize::try_from(at).ok());
    let range = at.map(|at| at..at.saturating_add(SUPERBLOCK_SIZE));
    if let Some(bytes) = range.and_then(|range| block.get_mut(range))
        && let Ok(whole) = <&[u8; SUPERBLOCK_SIZE]>::try_from(&*bytes)
        && let Ok(mut superblock) = Superblock::parse_unverified(whole)
    {
        superblock.set_state(superblock.state().difference(State::VALID));
        bytes.copy_from_slice(&superblock.seal());
    }
    block
}

fn corrupt(field: &'static str) -> Corrupt {
    Corrupt::new("redo file").field(field)
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Corrupt> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().ok_or_else(|| corrupt("length"))
}

/// Makes a change whole that a power cut or a failure ended. The call may be repeated. Returns the
/// number of blocks without their new content: 0 if the change was made already. All are written
/// again in any case, since a block that is read need not be durable.
///
/// # Errors
/// [`RedoError`], of which only [`RedoError::Partly`] has written.
pub fn finish_redo<F: Read + Seek>(
    device: &dyn BlockDevice,
    file: &mut F,
) -> Result<u64, RedoError> {
    let mut reader = RedoReader::open(file, device.len())?;
    reader.check_new(device)?;
    let missing = reader.check_used(device)?;
    reader.write(device).map_err(RedoError::Partly)?;
    Ok(missing)
}
