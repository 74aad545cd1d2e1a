//! Requests of any offset and length on a device that takes whole blocks only.
//!
//! A write that begins or ends within a block of the inner device reads the block, replaces the
//! bytes, and writes it back. For example, a write of bytes 512 to 8703 on an alignment of 4096
//! becomes a read and a write of block 0, a write of block 1, and a read and a write of block 2.
//!
//! # Locking
//! The read and the write of a partial block hold a lock of [`Level::AlignedBlock`], chosen by the
//! block's number, so that two threads that change different bytes of one block lose neither
//! change.

use crate::device::{BlockDevice, write_zeroes_plainly};
use crate::error::{Op, check_range};
use crate::{HostBytes, forward_device};
use extant_sync::{Level, Mutex};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

/// Locks of partial blocks. Two blocks rarely share one among the threads of a machine.
const LOCKS: usize = 64;

/// A device that takes requests of any alignment, over one that does not.
#[derive(Debug)]
pub struct AlignedDevice<D> {
    inner: D,
    /// Bytes of a block of the inner device.
    alignment: u64,
    /// None for an alignment of 1, which has no partial blocks.
    locks: Vec<Mutex<()>>,
}

impl AlignedDevice<Arc<dyn BlockDevice>> {
    /// Returns a device that takes requests of any alignment: `inner` itself, if it does so.
    pub fn over(inner: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        match inner.alignment() {
            0 | 1 => inner,
            _ => Arc::new(AlignedDevice::new(inner)),
        }
    }
}

impl<D: BlockDevice> AlignedDevice<D> {
    /// Makes a device that takes requests of any alignment over `inner`.
    pub fn new(inner: D) -> Self {
        let alignment = (inner.alignment() as u64).max(1);
        let locks = if alignment == 1 { 0 } else { LOCKS };
        let locks = (0..locks).map(|_| Mutex::new(Level::AlignedBlock, ())).collect();
        AlignedDevice { inner, alignment, locks }
    }

    /// Splits a range at the borders of blocks: a partial block in front, whole blocks, a partial
    /// block behind. Each part may be empty. The end of the device counts as a border.
    fn split(&self, offset: u64, len: u64) -> [Range<u64>; 3] {
        let end = offset.saturating_add(len);
        let up = offset.next_multiple_of(self.alignment).min(end);
        let down = if end == self.inner.len() { end } else { end - end % self.alignment };
        let down = down.max(up);
        [offset..up, up..down, down..end]
    }

    /// Returns the range of the block that contains the byte at `offset`.
    fn block(&self, offset: u64) -> Range<u64> {
        let start = offset - offset % self.alignment;
        start..start.saturating_add(self.alignment).min(self.inner.len())
    }

    fn read_block(&self, block: &Range<u64>) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; (block.end - block.start) as usize];
        self.inner.read_exact_at(&mut bytes, block.start)?;
        Ok(bytes)
    }

    /// Reads a range within one block.
    fn read_part(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        let block = self.block(offset);
        let bytes = self.read_block(&block)?;
        let at = (offset - block.start) as usize;
        buf.copy_from_slice(&bytes[at..at + buf.len()]);
        Ok(())
    }

    /// Writes a range within one block.
    fn write_part(&self, data: &[u8], offset: u64) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let block = self.block(offset);
        let number = (block.start / self.alignment) % LOCKS as u64;
        let _block = self.locks.get(number as usize).map(Mutex::lock);
        let mut bytes = self.read_block(&block)?;
        let at = (offset - block.start) as usize;
        bytes[at..at + data.len()].copy_from_slice(data);
        self.inner.write_all_at(&bytes, block.start)
    }

    fn is_aligned(&self, offset: u64, mut lens: impl Iterator<Item = usize>) -> bool {
        offset.is_multiple_of(self.alignment)
            && lens.all(|len| (len as u64).is_multiple_of(self.alignment))
    }

    fn check(&self, op: Op, offset: u64, len: u64) -> io::Result<()> {
        check_range(op, &|| self.name(), self.inner.len(), offset, len)
    }
}

impl<D: BlockDevice> BlockDevice for AlignedDevice<D> {
    forward_device!(self => self.inner;
        len, name, read_only, flush, set_len, refresh_len, next_data, origin, host_bytes, claim);

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.check(Op::Read, offset, buf.len() as u64)?;
        let [front, whole, back] = self.split(offset, buf.len() as u64);
        let (first, rest) = buf.split_at_mut((front.end - front.start) as usize);
        let (middle, last) = rest.split_at_mut((whole.end - whole.start) as usize);
        self.read_part(first, front.start)?;
        if !middle.is_empty() {
            self.inner.read_exact_at(middle, whole.start)?;
        }
        self.read_part(last, back.start)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.check(Op::Write, offset, data.len() as u64)?;
        let [front, whole, back] = self.split(offset, data.len() as u64);
        let (first, rest) = data.split_at((front.end - front.start) as usize);
        let (middle, last) = rest.split_at((whole.end - whole.start) as usize);
        self.write_part(first, front.start)?;
        if !middle.is_empty() {
            self.inner.write_all_at(middle, whole.start)?;
        }
        self.write_part(last, back.start)
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        if self.is_aligned(offset, bufs.iter().map(|buf| buf.len())) {
            return self.inner.read_vectored_at(bufs, offset);
        }
        let mut at = offset;
        for buf in bufs {
            self.read_exact_at(buf, at)?;
            at = at.saturating_add(buf.len() as u64);
        }
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        if self.is_aligned(offset, bufs.iter().map(|buf| buf.len())) {
            return self.inner.write_vectored_at(bufs, offset);
        }
        let mut at = offset;
        for buf in bufs {
            self.write_all_at(buf, at)?;
            at = at.saturating_add(buf.len() as u64);
        }
        Ok(())
    }

    fn copy_from_host(&self, source: HostBytes<'_>, offset: u64, len: u64) -> io::Result<u64> {
        let is_aligned =
            offset.is_multiple_of(self.alignment) && len.is_multiple_of(self.alignment);
        if is_aligned { self.inner.copy_from_host(source, offset, len) } else { Ok(0) }
    }

    /// Discards the whole blocks of the range.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(Op::Discard, offset, len)?;
        match self.split(offset, len) {
            [_, whole, _] if whole.is_empty() => Ok(()),
            [_, whole, _] => self.inner.discard(whole.start, whole.end - whole.start),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(Op::Zero, offset, len)?;
        let [front, whole, back] = self.split(offset, len);
        for part in [front, back] {
            write_zeroes_plainly(self, part.start, part.end - part.start)?;
        }
        if whole.is_empty() {
            return Ok(());
        }
        self.inner.write_zeroes(whole.start, whole.end - whole.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemDevice, StrictDevice};

    const LEN: u64 = 5 * 4096 + 1024;

    fn device() -> (Arc<dyn BlockDevice>, Vec<u8>) {
        let content: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
        let memory = MemDevice::new(LEN);
        memory.write_all_at(&content, 0).unwrap();
        (AlignedDevice::over(Arc::new(StrictDevice::new(memory, 4096))), content)
    }

    fn content(device: &dyn BlockDevice) -> Vec<u8> {
        let mut bytes = vec![0; LEN as usize];
        device.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    /// Ranges whose ends are before, at and behind the borders of blocks.
    fn ranges() -> Vec<Range<u64>> {
        let ends = [0, 1, 1024, 4095, 4096, 4097, 8192, 12_000, 5 * 4096, LEN - 1, LEN];
        let pairs = ends.iter().flat_map(|from| ends.iter().map(move |to| *from..*to));
        pairs.filter(|range| range.start <= range.end).collect()
    }

    #[test]
    fn requests_of_any_alignment_reach_the_device_aligned() {
        for Range { start, end } in ranges() {
            let (device, mut expected) = device();
            let (from, to) = (start as usize, end as usize);
            let mut read = vec![0; to - from];
            device.read_exact_at(&mut read, start).unwrap();
            assert_eq!(read, expected[from..to], "read of {start} to {end}");
            device.write_all_at(&vec![7; to - from], start).unwrap();
            expected[from..to].fill(7);
            assert_eq!(content(&*device), expected, "write of {start} to {end}");
            device.write_zeroes(start, end - start).unwrap();
            expected[from..to].fill(0);
            assert_eq!(content(&*device), expected, "zeroes from {start} to {end}");
            device.discard(start, end - start).unwrap();
        }
    }

    #[test]
    fn vectored_requests_of_any_alignment_are_complete() {
        let (device, mut expected) = device();
        let parts = [[1; 512].as_slice(), &[2; 4096], &[3; 100]];
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        device.write_vectored_at(&slices, 1000).unwrap();
        let written = parts.concat();
        expected[1000..1000 + written.len()].copy_from_slice(&written);
        assert_eq!(content(&*device), expected);
        let (mut first, mut second) = ([0; 9], [0; 5000]);
        let mut bufs = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        device.read_vectored_at(&mut bufs, 991).unwrap();
        assert_eq!([first.as_slice(), &second].concat(), expected[991..6000]);
    }

    #[test]
    fn threads_that_write_parts_of_one_block_lose_no_change() {
        let (device, _) = device();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let device = &device;
                scope.spawn(move || {
                    for at in (thread * 8..4096).step_by(32) {
                        device.write_all_at(&[thread as u8 + 1; 8], at).unwrap();
                    }
                });
            }
        });
        let bytes = content(&*device);
        for (at, byte) in bytes[..4096].iter().enumerate() {
            assert_eq!(usize::from(*byte), at / 8 % 4 + 1, "byte {at}");
        }
    }

    #[test]
    fn ranges_beyond_the_end_are_refused() {
        let (device, expected) = device();
        assert!(device.write_all_at(&[1; 2], LEN - 1).is_err());
        assert!(device.read_exact_at(&mut [0; 2], u64::MAX).is_err());
        assert!(device.write_zeroes(LEN, 1).is_err());
        assert!(device.discard(1, u64::MAX).is_err());
        assert_eq!(content(&*device), expected);
    }

    #[test]
    fn a_device_without_demands_is_used_as_it_is() {
        let plain: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(4096));
        assert!(Arc::ptr_eq(&AlignedDevice::over(plain.clone()), &plain));
    }
}
