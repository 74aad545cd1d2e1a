//! A device that turns panics into errors, so that no thread waits for a request that ended in a
//! panic.

use crate::OriginRun;
use crate::device::BlockDevice;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A device around another one. A panic of the inner device fails its request with an I/O error.
#[derive(Debug)]
pub struct GuardedDevice<D>(D);

impl<D: BlockDevice> GuardedDevice<D> {
    /// Makes a device that forwards to `inner`.
    pub fn new(inner: D) -> Self {
        GuardedDevice(inner)
    }

    fn request<T>(&self, request: impl FnOnce(&D) -> io::Result<T>) -> io::Result<T> {
        // The panic may have left the inner device in any state: its next request shows it.
        catch_unwind(AssertUnwindSafe(|| request(&self.0)))
            .unwrap_or_else(|_| Err(io::Error::other("the device's code panicked")))
    }
}

impl<D: BlockDevice> BlockDevice for GuardedDevice<D> {
    crate::forward_device!(self => self.0; len, name, alignment, read_only, claim, share_file);

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.request(|inner| inner.read_exact_at(buf, offset))
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.request(|inner| inner.write_all_at(data, offset))
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        self.request(|inner| inner.read_vectored_at(bufs, offset))
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.request(|inner| inner.write_vectored_at(bufs, offset))
    }

    fn flush(&self) -> io::Result<()> {
        self.request(BlockDevice::flush)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.request(|inner| inner.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.request(|inner| inner.write_zeroes(offset, len))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.request(|inner| inner.set_len(len))
    }

    fn refresh_len(&self) -> io::Result<u64> {
        self.request(BlockDevice::refresh_len)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        self.request(|inner| inner.next_data(offset))
    }

    fn origin(&self, offset: u64, len: u64) -> io::Result<OriginRun> {
        self.request(|inner| inner.origin(offset, len))
    }
}
