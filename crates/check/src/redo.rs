//! Redo files: the old and the new content of blocks that are written in place.
//!
//! The redo file of a change to a file system without a journal is complete and durable before the
//! first of these writes. After a power cut, [`finish_redo`] makes the change whole. For example,
//! blocks 3 and 40 change, and the cut leaves the new block 3 and the old block 40: each sector of
//! both has its old or its new content, so both blocks are written. Had e2fsck changed block 3
//! meanwhile, one of its sectors would have neither, and the image is left as it is.
//!
//! # Form
//! Magic, length of the device, bytes of a block, number of blocks; of each block its number, old
//! content and new content; the CRC32c of all this.

use extant_blocks::BlockDevice;
use extant_format::checksum::crc32c_raw;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State, Superblock};
use extant_format::{Corrupt, Timestamp};
use extant_journal::offline::{ChangedBlock, OfflineChanges};
use std::io::{self, Read, Write};
use std::sync::Arc;

/// The first bytes of a redo file, with the version of its form.
const MAGIC: &[u8; 8] = b"EXTREDO1";

/// Bytes of the header: magic, length of the device, bytes of a block, number of blocks.
const HEADER: usize = 28;

/// Maximum size of a block in bytes.
const MAX_BLOCK: u32 = 65536;

/// Maximum length of a redo file in bytes. The contents of a change in place have 256 MiB at most,
/// those of a repair 1 GiB.
const MAX_LEN: u64 = 3 << 30;

/// Bytes that a device writes wholly or not at all.
const SECTOR: usize = 512;

/// The reason why a change was not made whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedoError {
    /// The file is no redo file, or damaged. Nothing was written.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// A block has neither its old nor its new content: another program wrote to the file system
    /// since. Nothing was written.
    #[error("block {0} has neither its old nor its new content: the image was changed since")]
    Changed(u64),
    /// The file or the device cannot be read. Nothing was written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A write failed. Another call makes the change whole.
    #[error("some changes may be missing: {0}")]
    Partly(extant_journal::Error),
}

/// The content of a redo file: a change that is not begun.
#[derive(Debug)]
pub struct RedoRecord {
    device_len: u64,
    block_size: u32,
    old: Vec<Arc<[u8]>>,
    new: Vec<ChangedBlock>,
}

impl RedoRecord {
    /// Reads the old contents. The block of the superblock is always among them, since the change
    /// marks it.
    pub(crate) fn of(
        device: &dyn BlockDevice,
        block_size: u32,
        mut new: Vec<ChangedBlock>,
    ) -> io::Result<RedoRecord> {
        let size = u64::from(block_size.max(1));
        let read = |nr: u64| -> io::Result<Arc<[u8]>> {
            let mut bytes = vec![0; block_size as usize];
            device.read_exact_at(&mut bytes, nr.saturating_mul(size))?;
            Ok(bytes.into())
        };
        let holder = SUPERBLOCK_OFFSET.checked_div(size).unwrap_or(0);
        if new.iter().all(|(nr, _)| *nr != holder) {
            new.push((holder, read(holder)?));
            new.sort_unstable_by_key(|(nr, _)| *nr);
        }
        let old = new.iter().map(|(nr, _)| read(*nr)).collect::<io::Result<_>>()?;
        Ok(RedoRecord { device_len: device.len(), block_size, old, new })
    }

    /// Returns the new contents.
    pub(crate) fn blocks(&self) -> &[ChangedBlock] {
        &self.new
    }

    /// Writes the content of the file.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut sum = u32::MAX;
        let mut put = |bytes: &[u8]| {
            sum = crc32c_raw(sum, bytes);
            out.write_all(bytes)
        };
        put(MAGIC)?;
        put(&self.device_len.to_le_bytes())?;
        put(&self.block_size.to_le_bytes())?;
        put(&(self.new.len() as u64).to_le_bytes())?;
        for (old, (nr, new)) in self.old.iter().zip(&self.new) {
            put(&nr.to_le_bytes())?;
            put(old)?;
            put(new)?;
        }
        out.write_all(&sum.to_le_bytes())
    }

    /// Parses a file.
    fn parse(bytes: &[u8]) -> Result<RedoRecord, Corrupt> {
        let header = bytes.get(..HEADER).ok_or_else(|| corrupt("length"))?;
        let block_size = u32::from_le_bytes(number(header, 16)?);
        let is_size = block_size.is_power_of_two() && (1024..=MAX_BLOCK).contains(&block_size);
        if header.get(..8) != Some(MAGIC) || !is_size {
            return Err(corrupt("magic"));
        }
        let end = bytes.len().checked_sub(4).ok_or_else(|| corrupt("length"))?;
        let sum = u32::from_le_bytes(number(bytes, end)?);
        if bytes.get(..end).map(|bytes| crc32c_raw(u32::MAX, bytes)) != Some(sum) {
            return Err(corrupt("checksum"));
        }
        let body = bytes.get(HEADER..end).unwrap_or(&[]);
        let size = block_size as usize;
        let record = size.saturating_mul(2).saturating_add(8);
        let count = u64::from_le_bytes(number(header, 20)?);
        if body.len() as u64 != count.saturating_mul(record as u64) {
            return Err(corrupt("number of blocks"));
        }
        let device_len = u64::from_le_bytes(number(header, 8)?);
        let mut parsed = RedoRecord { device_len, block_size, old: vec![], new: vec![] };
        for block in body.chunks_exact(record) {
            let nr = u64::from_le_bytes(number(block, 0)?);
            let (old, new) = block
                .get(8..)
                .unwrap_or(&[])
                .split_at_checked(size)
                .ok_or_else(|| corrupt("block"))?;
            parsed.old.push(old.into());
            parsed.new.push((nr, new.into()));
        }
        Ok(parsed)
    }

    /// Compares the device with both contents. Returns whether the change is to be finished; false
    /// if it is made.
    fn is_unfinished(&self, device: &dyn BlockDevice) -> Result<bool, RedoError> {
        let size = u64::from(self.block_size);
        let (mut bytes, mut is_made) = (vec![0; self.block_size as usize], true);
        for (old, (nr, new)) in self.old.iter().zip(&self.new) {
            let offset = nr.saturating_mul(size);
            device.read_exact_at(&mut bytes, offset)?;
            is_made &= bytes[..] == new[..];
            let marked = marked(old, offset);
            let sectors = bytes.chunks(SECTOR).zip(old.chunks(SECTOR)).zip(new.chunks(SECTOR));
            let mut known = sectors.zip(marked.chunks(SECTOR));
            if !known.all(|(((found, old), new), marked)| [old, new, marked].contains(&found)) {
                return Err(RedoError::Changed(*nr));
            }
        }
        Ok(!is_made)
    }
}

/// Returns an old block in which the superblock, if that is there, is marked as not cleanly
/// unmounted: the first write of a change in place.
fn marked(old: &[u8], offset: u64) -> Vec<u8> {
    let mut block = old.to_vec();
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
/// number of blocks that it wrote: 0 if the change was made already.
///
/// # Errors
/// [`RedoError`], of which only [`RedoError::Partly`] has written.
pub fn finish_redo(device: &dyn BlockDevice, file: &mut dyn Read) -> Result<u64, RedoError> {
    let mut bytes = Vec::new();
    file.take(MAX_LEN).read_to_end(&mut bytes)?;
    let record = RedoRecord::parse(&bytes)?;
    drop(bytes);
    if record.device_len != device.len() {
        return Err(corrupt("length of the device").into());
    }
    if !record.is_unfinished(device)? {
        return Ok(0);
    }
    let changes = OfflineChanges { device, blocks: &record.new, time: Timestamp::default() };
    changes.write_in_place(record.block_size).map_err(RedoError::Partly)?;
    Ok(record.new.len() as u64)
}
