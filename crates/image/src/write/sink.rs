//! Writes of one thread: neighboring blocks are joined.

use extant_blocks::{BlockDevice, HostBytes};
use std::io;
use std::ops::Range;

/// Maximum length of a joined write, in bytes.
const JOIN: usize = 1 << 20;

/// A device, with one pending run of bytes.
pub(crate) struct Sink<D> {
    device: D,
    /// The pending bytes, and old ones behind them.
    buffer: Vec<u8>,
    pending: usize,
    at: u64,
    /// Bytes written.
    pub written: u64,
}

impl<D: BlockDevice> Sink<D> {
    pub(crate) fn new(device: D) -> Sink<D> {
        Sink { device, buffer: Vec::new(), pending: 0, at: 0, written: 0 }
    }

    /// Returns up to `len` bytes that will be written at `offset`; at least one if `len` is not 0.
    /// The caller must set all of them: they have any values.
    pub(crate) fn reserve(&mut self, offset: u64, len: u64) -> io::Result<&mut [u8]> {
        if self.at + self.pending as u64 != offset || self.pending >= JOIN {
            self.flush()?;
            self.at = offset;
        }
        let start = self.pending;
        self.pending += len.min((JOIN - start) as u64) as usize;
        if self.buffer.len() < self.pending {
            self.buffer.resize(self.pending, 0);
        }
        Ok(&mut self.buffer[start..self.pending])
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

    /// Copies bytes of the host after the pending ones, as far as the host does so. Returns their
    /// number.
    pub(super) fn copy(&mut self, bytes: HostBytes<'_>, offset: u64, len: u64) -> io::Result<u64> {
        self.flush()?;
        let copied = self.device.copy_from_host(bytes, offset, len)?;
        self.written += copied;
        Ok(copied)
    }

    /// Writes the pending bytes.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        if pending > 0 {
            self.device.write_all_at(&self.buffer[..pending], self.at)?;
            self.written += pending as u64;
        }
        Ok(())
    }
}
