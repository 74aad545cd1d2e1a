//! Undo files: the old content of the blocks that a change writes.
//!
//! # Form
//! Magic, length of the device, bytes of a block, number of blocks, length of the device after the
//! change; of each block its number and old content; the CRC32c of all this. Both lengths differ if
//! the size of an image file changes: the device gets the first one again.

use super::RepairError;
use extant_blocks::{BlockDevice, Plug};
use extant_format::Corrupt;
use extant_format::checksum::crc32c_raw;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};

/// The first bytes of an undo file, with the version of its form.
const MAGIC: &[u8; 8] = b"EXTUNDO2";

/// Bytes of the header.
const HEADER: usize = 36;

/// Bytes of the number of a block, and of the checksum.
const NUMBER: usize = 8;
const SUM: usize = 4;

/// Maximum size of a block in bytes.
const MAX_BLOCK: u32 = 65536;

/// Bytes that are read or written at once.
const PIECE: usize = 1 << 20;

/// A writer that computes the checksum of its bytes.
struct Sum<W> {
    inner: W,
    sum: u32,
}

impl<W: Write> Sum<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum = crc32c_raw(self.sum, bytes);
        self.inner.write_all(bytes)
    }
}

/// Writes an undo file with the current content of blocks, for a change after which the device has
/// `len_after` bytes.
pub(crate) fn save_undo(
    device: &dyn BlockDevice,
    (block_size, blocks): (u32, &[u64]),
    len_after: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut out = Sum { inner: out, sum: u32::MAX };
    out.put(MAGIC)?;
    out.put(&device.len().to_le_bytes())?;
    out.put(&block_size.to_le_bytes())?;
    out.put(&(blocks.len() as u64).to_le_bytes())?;
    out.put(&len_after.to_le_bytes())?;
    let mut bytes = vec![0; block_size as usize];
    for nr in blocks {
        device.read_exact_at(&mut bytes, nr.saturating_mul(block_size.into()))?;
        out.put(&nr.to_le_bytes())?;
        out.put(&bytes)?;
    }
    let sum = out.sum;
    out.put(&sum.to_le_bytes())
}

fn corrupt(field: &'static str) -> RepairError {
    Corrupt::new("undo file").field(field).into()
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], RepairError> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().ok_or_else(|| corrupt("length"))
}

/// The header of an undo file whose length and checksum are right.
struct Header {
    block_size: u32,
    count: u64,
    /// Bytes of the device before the change.
    len: u64,
}

impl Header {
    fn read<F: Read + Seek>(file: &mut F, device_len: u64) -> Result<Header, RepairError> {
        let len = file.seek(SeekFrom::End(0))?;
        if len < (HEADER + SUM) as u64 {
            return Err(corrupt("length"));
        }
        file.rewind()?;
        let mut header = [0; HEADER];
        file.read_exact(&mut header)?;
        let block_size = u32::from_le_bytes(number(&header, 16)?);
        let is_size = block_size.is_power_of_two() && block_size <= MAX_BLOCK;
        if !header.starts_with(MAGIC) || !is_size {
            return Err(corrupt("magic"));
        }
        let before = u64::from_le_bytes(number(&header, 8)?);
        let after = u64::from_le_bytes(number(&header, 28)?);
        let least = SUPERBLOCK_OFFSET.saturating_add(SUPERBLOCK_SIZE as u64);
        if ![before, after].contains(&device_len) || before.min(after) < least {
            return Err(corrupt("length of the device"));
        }
        let count = u64::from_le_bytes(number(&header, 20)?);
        let record = u64::from(block_size).saturating_add(NUMBER as u64);
        let body = count.saturating_mul(record);
        if body.saturating_add((HEADER + SUM) as u64) != len {
            return Err(corrupt("number of blocks"));
        }
        check_sum(file, len)?;
        check_numbers(file, (count, block_size), before.max(after))?;
        Ok(Header { block_size, count, len: before })
    }
}

fn check_sum<F: Read + Seek>(file: &mut F, len: u64) -> Result<(), RepairError> {
    file.rewind()?;
    let (mut left, mut sum) = (len.saturating_sub(SUM as u64), u32::MAX);
    let mut piece = vec![0; PIECE];
    while left > 0 {
        let here = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let (bytes, _) = piece.split_at_mut(here);
        file.read_exact(bytes)?;
        sum = crc32c_raw(sum, bytes);
        left = left.saturating_sub(here as u64);
    }
    let mut stored = [0; SUM];
    file.read_exact(&mut stored)?;
    if u32::from_le_bytes(stored) == sum { Ok(()) } else { Err(corrupt("checksum")) }
}

/// Refuses blocks behind the end of a device of `len` bytes.
fn check_numbers<F: Read + Seek>(
    file: &mut F,
    (count, block_size): (u64, u32),
    len: u64,
) -> Result<(), RepairError> {
    file.seek(SeekFrom::Start(HEADER as u64))?;
    let mut from = BufReader::with_capacity(PIECE, file);
    let blocks = len.checked_div(block_size.into()).unwrap_or(0);
    let mut nr = [0; NUMBER];
    for _ in 0..count {
        from.read_exact(&mut nr)?;
        from.seek_relative(block_size.into())?;
        if u64::from_le_bytes(nr) >= blocks {
            return Err(corrupt("number of a block"));
        }
    }
    Ok(())
}

/// Writes the blocks of an undo file back to `device`, which gets its old length. The call may be
/// repeated after a failure or a power cut. Returns the number of blocks.
///
/// # Errors
/// A file that is damaged or belongs to a device of another length, found before the first write;
/// I/O errors.
pub fn restore<F: Read + Seek>(device: &dyn BlockDevice, file: &mut F) -> Result<u64, RepairError> {
    let header = Header::read(file, device.len())?;
    if device.len() < header.len {
        device.set_len(header.len)?;
    }
    file.seek(SeekFrom::Start(HEADER as u64))?;
    let mut from = BufReader::with_capacity(PIECE, file);
    let size = u64::from(header.block_size);
    let (mut nr, mut plug, mut waiting) = ([0; NUMBER], Plug::new(device), 0);
    for _ in 0..header.count {
        let mut bytes = vec![0; header.block_size as usize];
        from.read_exact(&mut nr)?;
        from.read_exact(&mut bytes)?;
        waiting = bytes.len().saturating_add(waiting);
        plug.add(u64::from_le_bytes(nr).saturating_mul(size), bytes);
        if waiting >= PIECE {
            std::mem::replace(&mut plug, Plug::new(device)).finish()?;
            waiting = 0;
        }
    }
    plug.finish()?;
    device.flush()?;
    if device.len() > header.len {
        device.set_len(header.len)?;
    }
    Ok(header.count)
}
