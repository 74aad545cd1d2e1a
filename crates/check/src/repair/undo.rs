//! Undo files: the old content of the blocks that a repair changes.

use super::RepairError;
use extant_blocks::{BlockDevice, Plug};
use extant_format::Corrupt;
use extant_format::checksum::crc32c_raw;
use std::io::{self, Read, Write};

/// The first bytes of an undo file, with the version of its form.
const MAGIC: &[u8; 8] = b"EXTUNDO1";

/// Bytes of the header: magic, length of the device, bytes of a block, number of blocks.
const HEADER: usize = 28;

/// Maximum size of a block in bytes.
const MAX_BLOCK: u32 = 65536;

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

/// Writes an undo file with the current content of blocks.
pub(super) fn save(
    device: &dyn BlockDevice,
    block_size: u32,
    blocks: &[u64],
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut out = Sum { inner: out, sum: u32::MAX };
    out.put(MAGIC)?;
    out.put(&device.len().to_le_bytes())?;
    out.put(&block_size.to_le_bytes())?;
    out.put(&(blocks.len() as u64).to_le_bytes())?;
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

/// Writes the blocks of an undo file back to `device`. The call may be repeated after a failure or
/// a power cut. Returns the number of blocks.
///
/// # Errors
/// A file that is damaged or belongs to a device of another length, found before the first write;
/// I/O errors.
pub fn restore(device: &dyn BlockDevice, file: &mut dyn Read) -> Result<u64, RepairError> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let header = bytes.get(..HEADER).ok_or_else(|| corrupt("length"))?;
    let size = u32::from_le_bytes(number(header, 16)?);
    if header.get(..8) != Some(MAGIC) || !size.is_power_of_two() || size > MAX_BLOCK {
        return Err(corrupt("magic"));
    }
    if u64::from_le_bytes(number(header, 8)?) != device.len() {
        return Err(corrupt("length of the device"));
    }
    let body = bytes.len().checked_sub(4).ok_or_else(|| corrupt("length"))?;
    let sum = u32::from_le_bytes(number(&bytes, body)?);
    if bytes.get(..body).map(|bytes| crc32c_raw(u32::MAX, bytes)) != Some(sum) {
        return Err(corrupt("checksum"));
    }
    let count = u64::from_le_bytes(number(header, 20)?);
    let blocks = bytes.get(HEADER..body).unwrap_or(&[]);
    let record = (size as usize).saturating_add(8);
    if blocks.len() as u64 != count.saturating_mul(record as u64) {
        return Err(corrupt("number of blocks"));
    }
    let mut plug = Plug::new(device);
    for block in blocks.chunks_exact(record) {
        let nr = u64::from_le_bytes(number(block, 0)?);
        plug.add(nr.saturating_mul(size.into()), block.get(8..).unwrap_or(&[]));
    }
    plug.finish()?;
    device.flush()?;
    Ok(count)
}
