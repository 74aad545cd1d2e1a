//! A device that refuses unaligned requests.

use crate::error::{DeviceError, Op};
use crate::{BlockDevice, forward_device};
use std::io::{self, IoSlice, IoSliceMut};

/// A device over another one that refuses every request whose offset or length is not a multiple of
/// its alignment, unless the request ends at the device's end. For tests of code above devices.
#[derive(Debug)]
pub struct StrictDevice<D> {
    inner: D,
    alignment: usize,
}

impl<D: BlockDevice> StrictDevice<D> {
    /// Makes a device over `inner` that demands an alignment in bytes.
    pub fn new(inner: D, alignment: usize) -> Self {
        StrictDevice { inner, alignment: alignment.max(1) }
    }

    fn check(&self, op: Op, offset: u64, len: u64) -> io::Result<()> {
        let alignment = self.alignment as u64;
        let end = offset.saturating_add(len);
        let is_border = |at: u64| at.is_multiple_of(alignment) || at == self.inner.len();
        if is_border(offset) && is_border(end) {
            return Ok(());
        }
        let message = format!("not aligned to {alignment} bytes");
        let cause = io::Error::new(io::ErrorKind::InvalidInput, message);
        Err(DeviceError { op, device: self.name(), offset, len, cause }.into())
    }
}

impl<D: BlockDevice> BlockDevice for StrictDevice<D> {
    forward_device!(self => self.inner;
        len, name, read_only, flush, set_len, refresh_len, next_data, claim);

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.check(Op::Read, offset, buf.len() as u64)?;
        self.inner.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.check(Op::Write, offset, data.len() as u64)?;
        self.inner.write_all_at(data, offset)
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.check(Op::Read, offset, len)?;
        self.inner.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.check(Op::Write, offset, crate::device::total_len(bufs))?;
        self.inner.write_vectored_at(bufs, offset)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(Op::Discard, offset, len)?;
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(Op::Zero, offset, len)?;
        self.inner.write_zeroes(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    #[test]
    fn unaligned_requests_are_refused() {
        let device = StrictDevice::new(MemDevice::new(4096 + 512), 4096);
        assert_eq!(device.alignment(), 4096);
        device.write_all_at(&[1; 4096], 0).unwrap();
        device.read_exact_at(&mut [0; 512], 4096).unwrap();
        assert!(device.read_exact_at(&mut [0; 512], 0).is_err());
        assert!(device.write_all_at(&[1; 4096], 512).is_err());
        assert!(device.write_vectored_at(&[IoSlice::new(&[1; 8])], 0).is_err());
        assert!(device.write_zeroes(8, 8).is_err() && device.discard(0, 8).is_err());
        let mut first = [0; 4096];
        device.read_exact_at(&mut first, 0).unwrap();
        assert_eq!(first, [1; 4096]);
    }
}
