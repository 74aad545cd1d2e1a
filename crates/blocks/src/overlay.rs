//! Writes kept in memory over a device that is only read.
//!
//! For example, fast commits are replayed for a reader. A change of block 101 is kept in memory,
//! and block 100 is read from the base, which shows the device as it is after the full commits.
//!
//! # Invariants
//! The contents of a block are the bytes written to it here; otherwise those of the replay source;
//! otherwise those of the base.
//!
//! # Locking
//! One lock (`Device`) covers the map of written blocks. No other device, nor the source, is called
//! under it. A block beyond the bound on memory is in memory while the thread that wrote it first
//! stores it elsewhere; writes of other threads change it in memory meanwhile, and it is stored
//! again.

use crate::error::check_range;
use crate::{BlockDevice, DeviceError, Op, OriginRun};
use extant_sync::{Arc, Level, RwLock};
use rustc_hash::{FxHashMap, FxHashSet};
use std::fmt::Debug;
use std::io;
use std::ops::Range;

/// A source of blocks whose current contents are not at their home location, such as a journal that
/// was not replayed.
pub trait ReplaySource: Send + Sync + Debug {
    /// Returns whether the source has block `nr`. The answer must never change.
    fn covers(&self, nr: u64) -> bool;

    /// Fills `buf`, one block long, with block `nr`, which the source must cover.
    ///
    /// # Errors
    /// Those of the source; the read of the overlay fails with them.
    fn read_block(&self, nr: u64, buf: &mut [u8]) -> io::Result<()>;
}

/// A device whose writes stay in memory, up to a limit.
#[derive(Debug)]
pub struct OverlayDevice {
    base: Arc<dyn BlockDevice>,
    block_size: usize,
    source: Option<Arc<dyn ReplaySource>>,
    max_blocks: usize,
    /// Takes the blocks beyond `max_blocks`, each at its own offset.
    spill: Option<Arc<dyn BlockDevice>>,
    written: RwLock<Written>,
}

/// The written blocks. Each is in one place.
#[derive(Debug, Default)]
struct Written {
    held: FxHashMap<u64, Box<[u8]>>,
    spilled: FxHashSet<u64>,
}

impl Written {
    fn contains(&self, nr: u64) -> bool {
        self.held.contains_key(&nr) || self.spilled.contains(&nr)
    }
}

/// The part of a transfer within one block.
struct Part {
    nr: u64,
    within: Range<usize>,
    of_buffer: Range<usize>,
}

impl OverlayDevice {
    /// Makes an overlay over `base` in blocks of `block_size` bytes (not 0) that holds at most
    /// `max_bytes` of writes.
    pub fn new(base: Arc<dyn BlockDevice>, block_size: usize, max_bytes: usize) -> Self {
        let block_size = block_size.max(1);
        let written = RwLock::new(Level::Device, Written::default());
        OverlayDevice {
            base,
            block_size,
            source: None,
            max_blocks: max_bytes / block_size,
            spill: None,
            written,
        }
    }

    /// Sets a device for the blocks beyond the bound on memory. Each is stored there at its own
    /// offset, so the device must be as long as the base, and a block longer. Its content does not
    /// count.
    #[must_use]
    pub fn with_spill(mut self, spill: Arc<dyn BlockDevice>) -> Self {
        self.spill = Some(spill);
        self
    }

    /// Inserts a source of blocks between the writes and the base.
    #[must_use]
    pub fn with_source(mut self, source: Arc<dyn ReplaySource>) -> Self {
        self.source = Some(source);
        self
    }

    /// Returns the bytes of writes held in memory.
    pub fn bytes_held(&self) -> usize {
        self.written.read().held.len() * self.block_size
    }

    /// Returns the blocks held in memory, in order.
    pub fn written(&self) -> Vec<(u64, Arc<[u8]>)> {
        let written = self.written.read();
        let mut blocks: Vec<_> =
            written.held.iter().map(|(nr, bytes)| (*nr, Arc::from(&bytes[..]))).collect();
        blocks.sort_unstable_by_key(|(nr, _)| *nr);
        blocks
    }

    /// Returns the numbers of all written blocks, in order.
    pub fn written_blocks(&self) -> Vec<u64> {
        let written = self.written.read();
        let mut blocks: Vec<u64> = written.held.keys().chain(&written.spilled).copied().collect();
        blocks.sort_unstable();
        blocks
    }

    fn check(&self, op: Op, offset: u64, len: u64) -> io::Result<()> {
        check_range(op, &|| self.name(), self.len(), offset, len)
    }

    fn parts(&self, offset: u64, len: usize) -> impl Iterator<Item = Part> + use<> {
        let block_size = self.block_size;
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = offset + done as u64;
            let within = (at % block_size as u64) as usize;
            let count = (block_size - within).min(len - done);
            let of_buffer = done..done + count;
            done += count;
            (count > 0).then_some(Part {
                nr: at / block_size as u64,
                within: within..within + count,
                of_buffer,
            })
        })
    }

    /// Fills `buf` if the part's block was written here or is in the source. Returns false if the
    /// block must be read from the base.
    fn read_above_base(&self, part: &Part, buf: &mut [u8]) -> io::Result<bool> {
        let written = self.written.read();
        if let Some(block) = written.held.get(&part.nr) {
            buf.copy_from_slice(&block[part.within.clone()]);
            return Ok(true);
        }
        if let Some(spill) = self.spill.as_ref().filter(|_| written.spilled.contains(&part.nr)) {
            drop(written);
            spill.read_exact_at(buf, self.offset(part))?;
            return Ok(true);
        }
        drop(written);
        match &self.source {
            Some(source) if source.covers(part.nr) => {
                let mut block = vec![0; self.block_size];
                source.read_block(part.nr, &mut block)?;
                buf.copy_from_slice(&block[part.within.clone()]);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Returns whether a block is read from the base.
    fn is_of_base(&self, nr: u64) -> bool {
        let is_covered = || self.source.as_ref().is_some_and(|source| source.covers(nr));
        !self.written.read().contains(nr) && !is_covered()
    }

    fn read_base(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if buf.is_empty() { Ok(()) } else { self.base.read_exact_at(buf, offset) }
    }

    /// Returns the whole block before a partial write. Bytes beyond the device's end are zeroes.
    fn old_block(&self, nr: u64) -> io::Result<Box<[u8]>> {
        let mut block = vec![0; self.block_size];
        let start = nr * self.block_size as u64;
        let inside = (self.len() - start).min(self.block_size as u64) as usize;
        self.read_exact_at(&mut block[..inside], start)?;
        Ok(block.into())
    }

    /// Returns the offset of the part on the device.
    fn offset(&self, part: &Part) -> u64 {
        part.nr * self.block_size as u64 + part.within.start as u64
    }

    fn write_part(&self, part: &Part, data: &[u8]) -> io::Result<()> {
        let known = self.written.read().contains(part.nr);
        let whole = data.len() == self.block_size;
        let old = if known || whole { None } else { Some(self.old_block(part.nr)?) };
        let mut written = self.written.write();
        if let Some(spill) = self.spill.as_ref().filter(|_| written.spilled.contains(&part.nr)) {
            drop(written);
            return spill.write_all_at(data, self.offset(part));
        }
        let exceeds = !written.contains(part.nr) && written.held.len() >= self.max_blocks;
        if exceeds && self.spill.is_none() {
            return Err(self.full(part));
        }
        let zeroes = || vec![0; self.block_size].into();
        let block = written.held.entry(part.nr).or_insert_with(|| old.unwrap_or_else(zeroes));
        block[part.within.clone()].copy_from_slice(data);
        drop(written);
        match &self.spill {
            Some(spill) if exceeds => self.spill_block(part.nr, &**spill),
            _ => Ok(()),
        }
    }

    /// Moves a block that this thread has added from memory to the spill device.
    fn spill_block(&self, nr: u64, spill: &dyn BlockDevice) -> io::Result<()> {
        loop {
            let Some(block) = self.written.read().held.get(&nr).cloned() else { return Ok(()) };
            spill.write_all_at(&block, nr * self.block_size as u64)?;
            let mut written = self.written.write();
            if written.held.get(&nr) == Some(&block) {
                written.held.remove(&nr);
                written.spilled.insert(nr);
                return Ok(());
            }
        }
    }

    fn full(&self, part: &Part) -> io::Error {
        let message =
            format!("writes over a read-only device are limited to {} blocks", self.max_blocks);
        let cause = io::Error::new(io::ErrorKind::StorageFull, message);
        let offset = part.nr * self.block_size as u64;
        DeviceError {
            op: Op::Write,
            device: self.name(),
            offset,
            len: self.block_size as u64,
            cause,
        }
        .into()
    }
}

impl BlockDevice for OverlayDevice {
    fn len(&self) -> u64 {
        self.base.len()
    }

    fn name(&self) -> String {
        self.base.name()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.check(Op::Read, offset, buf.len() as u64)?;
        let mut from_base = 0..0;
        for part in self.parts(offset, buf.len()) {
            let range = part.of_buffer.clone();
            if self.read_above_base(&part, &mut buf[range.clone()])? {
                self.read_base(&mut buf[from_base.clone()], offset + from_base.start as u64)?;
                from_base = range.end..range.end;
            } else {
                from_base.end = range.end;
            }
        }
        self.read_base(&mut buf[from_base.clone()], offset + from_base.start as u64)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.check(Op::Write, offset, data.len() as u64)?;
        for part in self.parts(offset, data.len()) {
            self.write_part(&part, &data[part.of_buffer.clone()])?;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(Op::Discard, offset, len)
    }

    fn origin(&self, offset: u64, len: u64) -> io::Result<OriginRun> {
        self.check(Op::Read, offset, len)?;
        let size = self.block_size as u64;
        let mut next = offset / size + 1;
        if !self.is_of_base(next - 1) {
            return Ok(OriginRun::own(len.min(next.saturating_mul(size) - offset)));
        }
        let run = self.base.origin(offset, len)?;
        let end = offset + run.len;
        while next.saturating_mul(size) < end && self.is_of_base(next) {
            next += 1;
        }
        Ok(OriginRun::new(run.origin, next.saturating_mul(size).min(end) - offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    #[derive(Debug)]
    struct Sevens;

    impl ReplaySource for Sevens {
        fn covers(&self, nr: u64) -> bool {
            nr == 1
        }
        fn read_block(&self, _: u64, buf: &mut [u8]) -> io::Result<()> {
            buf.fill(7);
            Ok(())
        }
    }

    fn bytes(device: &dyn BlockDevice) -> Vec<u8> {
        let mut bytes = vec![0; device.len() as usize];
        device.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn writes_hide_the_source_which_hides_the_base() {
        let base = Arc::new(MemDevice::from_bytes(&[1; 18]));
        let overlay = OverlayDevice::new(base.clone(), 4, 8).with_source(Arc::new(Sevens));
        overlay.write_all_at(&[9; 2], 7).unwrap();
        assert_eq!(bytes(&overlay), [1, 1, 1, 1, 7, 7, 7, 9, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(base.to_vec(), [1; 18]);
        assert_eq!(overlay.written().len(), 2);
        assert_eq!(overlay.written()[0], (1, Arc::from([7, 7, 7, 9])));
        assert_eq!(overlay.bytes_held(), 8);
    }

    #[test]
    fn held_writes_are_bounded() {
        let overlay = OverlayDevice::new(Arc::new(MemDevice::new(20)), 4, 4);
        overlay.write_all_at(&[9; 4], 0).unwrap();
        let error = overlay.write_all_at(&[9; 4], 4).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        overlay.write_all_at(&[8; 4], 0).unwrap();
        assert!(overlay.write_all_at(&[9; 4], 17).is_err());
    }

    #[test]
    fn blocks_beyond_the_bound_go_to_the_spill_device() {
        let base = Arc::new(MemDevice::from_bytes(&[1; 18]));
        let spill = Arc::new(MemDevice::from_bytes(&[5; 20]));
        let overlay = OverlayDevice::new(base.clone(), 4, 4).with_spill(spill.clone());
        // Block 0 is held; block 1 is spilled by a part, then changed as a whole and in part.
        overlay.write_all_at(&[9; 4], 0).unwrap();
        overlay.write_all_at(&[8; 2], 5).unwrap();
        assert_eq!(bytes(&overlay)[..9], [9, 9, 9, 9, 1, 8, 8, 1, 1]);
        overlay.write_all_at(&[7; 5], 4).unwrap();
        overlay.write_all_at(&[6; 2], 16).unwrap();
        overlay.write_all_at(&[2], 1).unwrap();
        let expected = [9, 2, 9, 9, 7, 7, 7, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 6];
        assert_eq!(bytes(&overlay), expected);
        assert_eq!((overlay.written_blocks(), overlay.bytes_held()), (vec![0, 1, 2, 4], 4));
        assert_eq!(base.to_vec(), [1; 18]);
    }

    #[test]
    fn a_short_last_block_may_be_written() {
        let overlay = OverlayDevice::new(Arc::new(MemDevice::from_bytes(&[1; 6])), 4, 4);
        overlay.write_all_at(&[2], 5).unwrap();
        assert_eq!(bytes(&overlay), [1, 1, 1, 1, 1, 2]);
    }
}
