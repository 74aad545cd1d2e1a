//! Writes of one thread: neighboring blocks are joined.

use extant_blocks::BlockDevice;
use std::io;
use std::ops::Range;

/// Maximum length of a joined write, in bytes.
const JOIN: usize = 1 << 20;

/// A device, with one pending run of bytes.
pub(crate) struct Sink<D> {
    device: D,
    pending: Vec<u8>,
    at: u64,
    /// Bytes written.
    pub written: u64,
}

impl<D: BlockDevice> Sink<D> {
    pub(crate) fn new(device: D) -> Sink<D> {
        Sink { device, pending: Vec::new(), at: 0, written: 0 }
    }

    /// Returns up to `len` zeroed bytes that will be written at `offset`; at least one if `len` is
    /// not 0.
    pub(crate) fn reserve(&mut self, offset: u64, len: u64) -> io::Result<&mut [u8]> {
        if self.at + self.pending.len() as u64 != offset || self.pending.len() >= JOIN {
            self.flush()?;
            self.at = offset;
        }
        let start = self.pending.len();
        let len = len.min((JOIN - start) as u64) as usize;
        self.pending.resize(start + len, 0);
        Ok(&mut self.pending[start..])
    }

    pub(super) fn put(&mut self, mut offset: u64, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let part = self.reserve(offset, data.len() as u64)?;
            let len = part.len();
            part.copy_from_slice(&data[..len]);
            (offset, data) = (offset + len as u64, &data[len..]);
        }
        Ok(())
    }

    /// Makes bytes read as zeroes that may have been written.
    pub(crate) fn zero(&mut self, bytes: Range<u64>) -> io::Result<()> {
        self.flush()?;
        self.device.write_zeroes(bytes.start, bytes.end - bytes.start)
    }

    /// Writes bytes as they are, after the pending ones; for many of them.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.flush()?;
        self.device.write_all_at(bytes, offset)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Writes the pending bytes.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if !self.pending.is_empty() {
            self.device.write_all_at(&self.pending, self.at)?;
            self.written += self.pending.len() as u64;
            self.pending.clear();
        }
        Ok(())
    }
}
