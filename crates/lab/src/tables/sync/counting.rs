//! A device that counts requests.

use extant_blocks::BlockDevice;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the writes that another device sees, however long.
#[derive(Debug)]
pub struct Counting<D> {
    inner: D,
    writes: AtomicU64,
}

impl<D> Counting<D> {
    /// Around `inner`.
    pub fn new(inner: D) -> Self {
        Counting { inner, writes: AtomicU64::new(0) }
    }

    /// Requests to write so far.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }
}

impl<D: BlockDevice> BlockDevice for Counting<D> {
    extant_blocks::forward_device!(self => self.inner;
        len, name, alignment, read_only, read_exact_at, read_vectored_at, flush, discard,
        next_data, claim);

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.count();
        self.inner.write_all_at(data, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.count();
        self.inner.write_vectored_at(bufs, offset)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.count();
        self.inner.write_zeroes(offset, len)
    }
}
