//! Writes to the device: blocks, and zeroes over unknown content. Ranges that read as zero already
//! are not written.

use super::error::Result;
use super::options::Zeroing;
use extant_blocks::BlockDevice;
use std::ops::Range;

/// Maximum length of joined adjacent writes, in bytes.
const JOIN: usize = 256 << 10;

/// The device, with one pending run of bytes.
pub(super) struct Output<'a> {
    device: &'a dyn BlockDevice,
    block_size: u64,
    zeroing: Zeroing,
    written: u64,
    pending: Vec<u8>,
    pending_at: u64,
    /// Last range of bytes that the device reported as zero.
    known_zero: Range<u64>,
}

impl<'a> Output<'a> {
    pub(super) fn new(device: &'a dyn BlockDevice, block_size: u32, zeroing: Zeroing) -> Self {
        Self {
            device,
            block_size: block_size.into(),
            zeroing,
            written: 0,
            pending: Vec::new(),
            pending_at: 0,
            known_zero: 0..0,
        }
    }

    /// Returns the number of bytes written so far.
    pub(super) fn written(&self) -> u64 {
        self.written + self.pending.len() as u64
    }

    /// Counts bytes that another writer wrote to the device.
    pub(super) fn elsewhere(&mut self, bytes: u64) {
        self.written += bytes;
    }

    /// Writes whole blocks from `block` on.
    pub(super) fn blocks(&mut self, block: u64, data: &[u8]) -> Result<()> {
        self.bytes(block * self.block_size, data)
    }

    /// Writes bytes. The order of writes is kept only across [`Output::flush`].
    pub(super) fn bytes(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let follows = self.pending_at + self.pending.len() as u64 == offset;
        if !follows || self.pending.len() + data.len() > JOIN {
            self.send()?;
            self.pending_at = offset;
        }
        if data.len() > JOIN {
            self.pending_at = offset + data.len() as u64;
            self.written += data.len() as u64;
            return Ok(self.device.write_all_at(data, offset)?);
        }
        self.pending.extend_from_slice(data);
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        if !self.pending.is_empty() {
            self.device.write_all_at(&self.pending, self.pending_at)?;
            self.written += self.pending.len() as u64;
            self.pending.clear();
        }
        Ok(())
    }

    /// Makes blocks read as zeroes.
    pub(super) fn zero(&mut self, blocks: Range<u64>) -> Result<()> {
        self.zero_bytes(blocks.start * self.block_size..blocks.end * self.block_size)
    }

    /// Makes bytes read as zeroes; writes the parts that are not known to be zero.
    pub(super) fn zero_bytes(&mut self, bytes: Range<u64>) -> Result<()> {
        self.send()?;
        if self.zeroing == Zeroing::Known {
            return Ok(());
        }
        let mut at = bytes.start;
        while let Some(data) = self.next_data(at)?.filter(|data| data.start < bytes.end) {
            let end = data.end.min(bytes.end);
            self.device.write_zeroes(data.start, end.saturating_sub(data.start))?;
            self.known_zero = 0..0;
            if end <= at {
                break;
            }
            at = end;
        }
        Ok(())
    }

    fn next_data(&mut self, at: u64) -> Result<Option<Range<u64>>> {
        let data = self.device.next_data(at)?;
        Ok(data.map(|data| data.start.max(at)..data.end))
    }

    /// Returns whether blocks are known to read as zeroes. Cheap for ascending calls.
    pub(super) fn is_zero(&mut self, blocks: Range<u64>) -> Result<bool> {
        let (start, end) = (blocks.start * self.block_size, blocks.end * self.block_size);
        if self.zeroing == Zeroing::Known {
            return Ok(true);
        }
        if !(self.known_zero.start <= start && end <= self.known_zero.end) {
            self.send()?;
            let next = self.next_data(start)?.map_or(u64::MAX, |data| data.start);
            self.known_zero = start..next;
        }
        Ok(end <= self.known_zero.end)
    }

    /// Makes everything written so far durable.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.send()?;
        Ok(self.device.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_blocks::{Event, MemDevice, RecordingDevice, SparseDevice};

    #[test]
    fn neighbours_are_joined() {
        let device = RecordingDevice::new(MemDevice::new(1 << 20));
        let mut out = Output::new(&device, 1024, Zeroing::Lazy);
        out.blocks(1, &[1; 1024]).unwrap();
        out.blocks(2, &[2; 2048]).unwrap();
        out.blocks(9, &[3; 1024]).unwrap();
        out.flush().unwrap();
        assert_eq!(out.written(), 4096);
        let writes =
            device.log().iter().filter(|event| matches!(event, Event::Write { .. })).count();
        assert_eq!(writes, 2);
    }

    #[test]
    fn only_data_is_zeroed() {
        let device = SparseDevice::new(1 << 40);
        device.write_all_at(&[7; 8192], 1 << 30).unwrap();
        let mut out = Output::new(&device, 4096, Zeroing::Lazy);
        let block = (1 << 30) / 4096;
        assert!(!out.is_zero(0..block + 1).unwrap());
        assert!(out.is_zero(0..block).unwrap());
        out.zero(0..block + 1).unwrap();
        out.zero(block + 1000..1 << 28).unwrap();
        let mut byte = [0; 2];
        device.read_exact_at(&mut byte, (1 << 30) + 4095).unwrap();
        assert_eq!(byte, [0, 7]);
    }
}
