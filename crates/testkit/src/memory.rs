//! A device in memory whose image is judged when it is dropped.

use crate::scratch::Scratch;
use extant_blocks::{MemDevice, forward_device};
use extant_engine::device::BlockDevice;
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Sampling per test: the first number of devices are all judged; of later ones, since some tests
/// have hundreds, one in the second number.
const JUDGED: (usize, usize) = (4, 10);

/// A device in memory with a file system. If it was written to, dropping it judges its image, as a
/// [`Scratch`] does.
#[derive(Debug)]
pub struct Memory {
    inner: MemDevice,
    // Relaxed: both are read on drop only, which has exclusive access.
    written: AtomicBool,
    unjudged: AtomicBool,
}

impl Memory {
    /// A device of `len` zeroes.
    pub fn new(len: u64) -> Self {
        Self::around(MemDevice::new(len))
    }

    /// Makes a device with this content, which is judged only after a write.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self::around(MemDevice::from_bytes(bytes))
    }

    fn around(inner: MemDevice) -> Self {
        Self { inner, written: AtomicBool::new(false), unjudged: AtomicBool::new(false) }
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.inner.to_vec()
    }

    /// Excludes the device from judgement; `why` is the reason, for readers of the test.
    pub fn leave_unjudged(&self, why: &str) {
        assert!(!why.is_empty(), "an image is left unjudged for a reason");
        self.unjudged.store(true, Relaxed);
    }

    fn changes(&self) -> &MemDevice {
        self.written.store(true, Relaxed);
        &self.inner
    }

    fn put_into(&self, file: &File) -> io::Result<()> {
        file.set_len(self.inner.len())?;
        let mut at = 0;
        while let Some(Range { start, end }) = self.inner.next_data(at)? {
            let mut piece = vec![0; (end - start).min(1 << 20) as usize];
            self.inner.read_exact_at(&mut piece, start)?;
            file.write_all_at(&piece, start)?;
            at = start + piece.len() as u64;
        }
        Ok(())
    }
}

impl BlockDevice for Memory {
    forward_device!(self => self.inner;
        len, name, read_only, read_exact_at, read_vectored_at, flush, next_data, claim);
    forward_device!(self => self.changes();
        write_all_at, write_vectored_at, discard, write_zeroes, set_len);
}

impl Drop for Memory {
    fn drop(&mut self) {
        thread_local! {
            static SEEN: Cell<usize> = const { Cell::new(0) };
        }
        if std::thread::panicking() || !self.written.load(Relaxed) || self.unjudged.load(Relaxed) {
            return;
        }
        let nth = SEEN.replace(SEEN.get() + 1);
        if nth < JUDGED.0 || nth.is_multiple_of(JUDGED.1) {
            let scratch = Scratch::new();
            let file =
                File::create(scratch.join("image")).expect("a file for the device's content");
            self.put_into(&file).expect("space for the device's content");
        }
    }
}
