//! A device with the latency of a disk.

use crate::BlockDevice;
use std::io::{self, IoSlice, IoSliceMut};
use std::thread::sleep;
use std::time::Duration;

/// The least duration of each request of a [`LatencyDevice`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// A read of any length.
    pub read: Duration,
    /// A write, a discard or a zeroing of any length.
    pub write: Duration,
    /// A flush.
    pub flush: Duration,
}

/// A device that delays each request of another one. Requests of several threads are delayed
/// concurrently.
#[derive(Debug)]
pub struct LatencyDevice<D> {
    inner: D,
    latency: Latency,
}

impl<D: BlockDevice> LatencyDevice<D> {
    /// Makes a device around `inner` with this latency.
    pub fn new(inner: D, latency: Latency) -> Self {
        LatencyDevice { inner, latency }
    }

    /// Returns the inner device.
    pub fn inner(&self) -> &D {
        &self.inner
    }
}

fn delay(time: Duration) {
    if !time.is_zero() {
        sleep(time);
    }
}

impl<D: BlockDevice> BlockDevice for LatencyDevice<D> {
    crate::forward_device!(self => self.inner;
        len, name, alignment, read_only, set_len, refresh_len, next_data, claim);

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        delay(self.latency.read);
        self.inner.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        delay(self.latency.write);
        self.inner.write_all_at(data, offset)
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        delay(self.latency.read);
        self.inner.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        delay(self.latency.write);
        self.inner.write_vectored_at(bufs, offset)
    }

    fn flush(&self) -> io::Result<()> {
        delay(self.latency.flush);
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        delay(self.latency.write);
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        delay(self.latency.write);
        self.inner.write_zeroes(offset, len)
    }
}
