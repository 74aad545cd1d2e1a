//! A device of any size that holds only the pages that are not zero.
//!
//! # Invariants
//! No page of zeroes is held, and every byte at or beyond the length is zero.
//!
//! # Locking
//! Pages are in shards by their number. Each shard has one lock (`Device`), and no two are held at
//! once. A change of length holds no lock over all shards: concurrent writes may leave bytes beyond
//! a shorter length, which is the caller's error, as for any file.

use crate::error::check_range;
use crate::{BlockDevice, Op};
use extant_sync::atomic::{AtomicU64, Ordering};
use extant_sync::{Arc, Level, RwLock};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

const PAGE: u64 = 4096;
const SHARDS: u64 = 64;
/// Runs of this many neighboring pages are in one shard.
const RUN: u64 = 64;

/// The greatest length: offsets stay positive as signed numbers.
pub const MAX_SPARSE_LEN: u64 = 1 << 63;

type Page = [u8; PAGE as usize];
type Pages = BTreeMap<u64, Arc<Page>>;

/// A device in memory of up to 2^63 bytes that uses memory only for pages that are not zero.
#[derive(Debug)]
pub struct SparseDevice {
    len: AtomicU64,
    held: AtomicU64,
    shards: Box<[RwLock<Pages>]>,
}

impl SparseDevice {
    /// Makes a device of `len` zeroes, at most [`MAX_SPARSE_LEN`].
    pub fn new(len: u64) -> Self {
        SparseDevice::from_shards(len.min(MAX_SPARSE_LEN), (0..SHARDS).map(|_| Pages::new()))
    }

    fn from_shards(len: u64, shards: impl Iterator<Item = Pages>) -> Self {
        let mut held = 0;
        let count = |pages: Pages| {
            held += pages.len() as u64;
            RwLock::new(Level::Device, pages)
        };
        let shards = shards.map(count).collect();
        SparseDevice { len: AtomicU64::new(len), held: AtomicU64::new(held), shards }
    }

    /// Returns a copy that shares its pages until either side changes them.
    pub fn fork(&self) -> Self {
        SparseDevice::from_shards(self.len(), self.shards.iter().map(|shard| shard.read().clone()))
    }

    /// Makes a copy of another device.
    ///
    /// # Errors
    /// Those of reading the device; `InvalidInput` if it is longer than [`MAX_SPARSE_LEN`].
    pub fn copy_of(device: &dyn BlockDevice) -> io::Result<Self> {
        let copy = SparseDevice::new(device.len());
        let mut buf = vec![0; 1 << 20];
        let mut at = 0;
        while let Some(data) = device.next_data(at)? {
            let end = data.end.min(data.start.saturating_add(buf.len() as u64));
            let part = &mut buf[..(end - data.start) as usize];
            device.read_exact_at(part, data.start)?;
            copy.write_all_at(part, data.start)?;
            at = end;
        }
        Ok(copy)
    }

    /// Returns the bytes held in pages that are not zero.
    pub fn bytes_held(&self) -> u64 {
        self.held.load(Ordering::Relaxed) * PAGE
    }

    fn check(&self, op: Op, offset: u64, len: u64) -> io::Result<()> {
        check_range(op, &|| self.name(), self.len(), offset, len)
    }

    fn shard(&self, page: u64) -> &RwLock<Pages> {
        &self.shards[(page / RUN % SHARDS) as usize]
    }

    /// Changes a page by `change`. An absent page starts as zeroes, and a page of zeroes becomes
    /// absent.
    fn change_page(&self, nr: u64, change: impl FnOnce(&mut Page)) {
        let mut shard = self.shard(nr).write();
        let before = shard.len();
        let page = shard.entry(nr).or_insert_with(|| Arc::new([0; PAGE as usize]));
        change(Arc::make_mut(page));
        if page.iter().all(|byte| *byte == 0) {
            shard.remove(&nr);
        }
        self.count(before, shard.len());
    }

    fn count(&self, before: usize, after: usize) {
        self.held.fetch_add((after as u64).wrapping_sub(before as u64), Ordering::Relaxed);
    }

    /// Drops the pages of a range of page numbers: one by one if they are few, otherwise by
    /// splitting each shard's map.
    fn drop_pages(&self, pages: Range<u64>) {
        if pages.end.saturating_sub(pages.start) <= RUN * SHARDS {
            for nr in pages {
                let mut shard = self.shard(nr).write();
                let before = shard.len();
                shard.remove(&nr);
                self.count(before, shard.len());
            }
            return;
        }
        for shard in &self.shards {
            let mut shard = shard.write();
            let before = shard.len();
            let mut from_start = shard.split_off(&pages.start);
            let mut kept = from_start.split_off(&pages.end);
            shard.append(&mut kept);
            self.count(before, shard.len());
        }
    }

    fn zero(&self, offset: u64, len: u64) {
        let end = offset + len;
        let whole = offset.div_ceil(PAGE)..end / PAGE;
        if whole.start > whole.end {
            return self.zero_within_page(offset, end);
        }
        self.zero_within_page(offset, whole.start * PAGE);
        self.drop_pages(whole.clone());
        self.zero_within_page(whole.end * PAGE, end);
    }

    /// Zeroes a range that lies within one page.
    fn zero_within_page(&self, start: u64, end: u64) {
        let nr = start / PAGE;
        if start < end && self.shard(nr).read().contains_key(&nr) {
            self.change_page(nr, |page| {
                page[(start % PAGE) as usize..][..(end - start) as usize].fill(0)
            });
        }
    }
}

/// Calls `f` with each page of a range, the part of the range in that page, and the corresponding
/// part of the buffer.
fn each_page(offset: u64, len: usize, mut f: impl FnMut(u64, Range<usize>, Range<usize>)) {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let within = (at % PAGE) as usize;
        let count = (PAGE as usize - within).min(len - done);
        f(at / PAGE, within..within + count, done..done + count);
        done += count;
    }
}

impl BlockDevice for SparseDevice {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn name(&self) -> String {
        "sparse memory".into()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.check(Op::Read, offset, buf.len() as u64)?;
        each_page(offset, buf.len(), |nr, within, of_buffer| {
            match self.shard(nr).read().get(&nr) {
                Some(page) => buf[of_buffer].copy_from_slice(&page[within]),
                None => buf[of_buffer].fill(0),
            }
        });
        Ok(())
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.check(Op::Write, offset, data.len() as u64)?;
        each_page(offset, data.len(), |nr, within, of_buffer| {
            self.change_page(nr, |page| page[within].copy_from_slice(&data[of_buffer]));
        });
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// Discards a range, which reads as zeroes afterwards.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(Op::Discard, offset, len)?;
        self.zero(offset, len);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(Op::Zero, offset, len)?;
        self.zero(offset, len);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        check_range(Op::SetLen, &|| self.name(), MAX_SPARSE_LEN, 0, len)?;
        let before = self.len.swap(len, Ordering::AcqRel);
        if len < before {
            self.zero(len, before - len);
            self.drop_pages(len.div_ceil(PAGE)..u64::MAX);
        }
        Ok(())
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        let first = offset / PAGE;
        let next_in = |shard: &RwLock<Pages>| shard.read().range(first..).next().map(|(nr, _)| *nr);
        let Some(start) = self.shards.iter().filter_map(next_in).min() else { return Ok(None) };
        let shard = self.shard(start).read();
        let run =
            (start..).zip(shard.range(start..)).take_while(|(nr, (held, _))| nr == *held).count()
                as u64;
        let end = start.saturating_add(run).saturating_mul(PAGE).min(self.len());
        let start = (start * PAGE).max(offset);
        Ok((start < end).then_some(start..end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_that_differ_from_zero_are_held() {
        let device = SparseDevice::new(MAX_SPARSE_LEN);
        device.write_all_at(&[0; 100_000], 5).unwrap();
        assert_eq!(device.bytes_held(), 0);
        device.write_all_at(&[1], MAX_SPARSE_LEN - 1).unwrap();
        device.write_all_at(&[1; 2], PAGE - 1).unwrap();
        assert_eq!(device.bytes_held(), 3 * PAGE);
        device.write_zeroes(PAGE - 1, 1).unwrap();
        assert_eq!(device.bytes_held(), 2 * PAGE);
        assert_eq!(device.next_data(0).unwrap(), Some(PAGE..2 * PAGE));
        assert_eq!(
            device.next_data(2 * PAGE).unwrap(),
            Some(MAX_SPARSE_LEN - PAGE..MAX_SPARSE_LEN)
        );
        device.discard(0, MAX_SPARSE_LEN).unwrap();
        assert_eq!(device.bytes_held(), 0);
        assert_eq!(device.next_data(0).unwrap(), None);
    }

    #[test]
    fn forks_do_not_see_each_other() {
        let device = SparseDevice::new(10 * PAGE);
        device.write_all_at(&[1; 10], 0).unwrap();
        let fork = device.fork();
        device.write_all_at(&[2; 10], 0).unwrap();
        let mut byte = [0];
        fork.read_exact_at(&mut byte, 0).unwrap();
        assert_eq!((byte, fork.bytes_held()), ([1], PAGE));
        assert_eq!(SparseDevice::copy_of(&device).unwrap().bytes_held(), PAGE);
    }

    #[test]
    fn a_cut_range_reads_as_zeroes_when_grown_again() {
        let device = SparseDevice::new(3 * PAGE);
        device.write_all_at(&vec![9; 3 * PAGE as usize], 0).unwrap();
        device.set_len(PAGE / 2).unwrap();
        device.set_len(3 * PAGE).unwrap();
        let mut bytes = vec![1; 3 * PAGE as usize];
        device.read_exact_at(&mut bytes, 0).unwrap();
        assert!(
            bytes[PAGE as usize / 2..].iter().all(|b| *b == 0)
                && bytes[..PAGE as usize / 2].iter().all(|b| *b == 9)
        );
    }
}
