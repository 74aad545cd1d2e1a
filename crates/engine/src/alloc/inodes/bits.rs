//! One group's inode bitmap in memory, changed without a lock, in lots of neighboring numbers.
//!
//! A lot is the inodes of [`BLOCKS`] blocks of the inode table, up to a word of bits. Each thread
//! takes numbers from a lot of its own while it has any, so that threads share neither a word of
//! the bitmap nor a block of the table. For example, with 16 inodes in a block, thread 1 takes
//! numbers 1 to 32 while thread 2 takes 33 to 64.
//!
//! # Invariants
//! - A bit of `used` is set from the moment that its number is taken until the number may be taken
//!   again. `going` has the bits that were freed in the running transaction; they are settled when
//!   it freezes. A number is therefore not taken again while its slot on disk may be marked as
//!   used.
//! - Bits beyond the group's numbers are always used.
//!
//! # Memory order
//! Taking acquires and freeing releases, so a thread that takes a number sees all earlier uses of
//! it. Sequential consistency orders the mark of a group without free numbers and a concurrent
//! free: see [`super::Inodes`].

use extant_blocks::Buffer;
use extant_format::bitmap;
use extant_sync::CachePadded;
use extant_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

/// Maximum number of inode numbers in a lot.
const MAX_LOT: u32 = u64::BITS;

/// Lots on one line of a cache.
const ON_LINE: usize = 4;

/// The most blocks of the table in a lot. A larger lot needs the group's lock, which threads share,
/// less often.
pub(super) const BLOCKS: u32 = 2;

/// Numbers of a lot, by bit.
#[derive(Debug, Default)]
struct Lot {
    used: AtomicU64,
    going: AtomicU64,
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Bits {
    /// The bitmap's block.
    pub buffer: Arc<Buffer>,
    /// Transaction in which a number was last taken or freed.
    pub tid: AtomicU64,
    /// The descriptor does not agree with the bitmap.
    pub lies: bool,
    /// Neighbouring lots lie on different lines.
    lines: Box<[CachePadded<[Lot; ON_LINE]>]>,
    lots: u32,
    /// Numbers of a lot: a power of two.
    size: u32,
    /// The number of inodes of the group, and of the reserved ones at its start.
    count: u32,
    reserved: u32,
    /// Lots before this one had no free number when they were last looked at.
    next: AtomicU32,
    /// Numbers in use as the descriptor counts them.
    counted: AtomicU32,
}

/// The result of freezing a group's numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settled {
    /// How many more numbers are free than at the last time.
    pub freed: i64,
    /// How many were freed in the transaction.
    pub gone: u32,
    /// Numbers behind the last one in use.
    pub behind: u32,
}

/// Numbers of a lot where a block of the table has so many: those of [`BLOCKS`] if a lot has room
/// for them.
pub(super) fn lot_size(inodes_per_block: u32) -> u32 {
    let size = inodes_per_block.saturating_mul(BLOCKS).clamp(1, MAX_LOT);
    // Of a power of two: so are blocks and slots.
    1 << size.ilog2()
}

impl Bits {
    /// As the bitmap's block says. `reserved` numbers at the start are not taken.
    pub fn new(buffer: Arc<Buffer>, size: u32, count: u32, reserved: u32, free: u32) -> Bits {
        let lots = count.div_ceil(size);
        let lines = (lots as usize).div_ceil(ON_LINE).max(1);
        let mut bits = Bits {
            buffer,
            tid: AtomicU64::new(0),
            lies: false,
            lines: (0..lines).map(|_| CachePadded::default()).collect(),
            lots,
            size,
            count,
            reserved,
            next: AtomicU32::new(0),
            counted: AtomicU32::new(0),
        };
        let used = bits.load();
        bits.counted = AtomicU32::new(used);
        bits.lies = count - used.min(count) != free;
        bits
    }

    /// Fills the lots from the block; gives how many numbers are in use.
    fn load(&self) -> u32 {
        let bytes = self.buffer.read();
        for lot in 0..self.lots {
            let used =
                self.of_word(bitmap::word(&bytes, self.word_of(lot).0), lot) | !self.mask(lot);
            if let Some(lot) = self.lot(lot) {
                lot.used.store(used, Ordering::Relaxed);
            }
        }
        drop(bytes);
        self.used()
    }

    fn lot(&self, lot: u32) -> Option<&Lot> {
        let (lot, lines) = (lot as usize, self.lines.len());
        self.lines.get(lot % lines)?.get(lot / lines)
    }

    /// The word of the bitmap that a lot lies in, and where.
    fn word_of(&self, lot: u32) -> (usize, u32) {
        let first = lot * self.size;
        ((first / u64::BITS) as usize, first % u64::BITS)
    }

    fn of_word(&self, word: u64, lot: u32) -> u64 {
        word >> self.word_of(lot).1
    }

    /// The bits of a lot that stand for numbers.
    fn mask(&self, lot: u32) -> u64 {
        let len = self.count.saturating_sub(lot * self.size).min(self.size);
        if len >= u64::BITS { u64::MAX } else { (1 << len) - 1 }
    }

    /// Returns the bits of a lot's reserved numbers.
    fn kept(&self, lot: u32) -> u64 {
        let len = self.reserved.saturating_sub(lot * self.size).min(self.size);
        if len >= u64::BITS { u64::MAX } else { (1 << len) - 1 }
    }

    fn place(&self, index: u32) -> Option<(&Lot, u64)> {
        let lot = self.lot(index / self.size).filter(|_| index < self.count)?;
        Some((lot, 1 << (index % self.size)))
    }

    /// Number of lots.
    pub fn lots(&self) -> u32 {
        self.lots
    }

    /// First number of a lot.
    pub fn first_of(&self, lot: u32) -> u32 {
        lot * self.size
    }

    /// Whether a lot had a free number a moment ago.
    pub fn has_room(&self, lot: u32) -> bool {
        self.lot(lot).is_some_and(|l| !(l.used.load(Ordering::SeqCst) | self.kept(lot)) != 0)
    }

    /// Takes the first free number of a lot.
    pub fn claim(&self, lot: u32) -> Option<u32> {
        let (place, kept) = (self.lot(lot)?, self.kept(lot));
        let mut used = place.used.load(Ordering::Relaxed);
        loop {
            let free = !(used | kept);
            if free == 0 {
                return None;
            }
            let bit = free & free.wrapping_neg();
            match place.used.compare_exchange_weak(
                used,
                used | bit,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(lot * self.size + bit.trailing_zeros()),
                Err(now) => used = now,
            }
        }
    }

    /// Takes this number. Returns false if it is in use. The group must be locked, and no other
    /// thread may take or free the number.
    pub fn claim_this(&self, index: u32) -> bool {
        let Some((lot, bit)) = self.place(index) else { return false };
        let was_free = lot.used.fetch_or(bit, Ordering::Acquire) & bit == 0;
        was_free || lot.going.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Whether the number is in use: taken, and not freed.
    pub fn in_use(&self, index: u32) -> bool {
        self.place(index).is_some_and(|(lot, bit)| {
            lot.used.load(Ordering::Acquire) & !lot.going.load(Ordering::Acquire) & bit != 0
        })
    }

    /// Frees a number at once. False if it was free.
    pub fn release(&self, index: u32) -> bool {
        let Some((lot, bit)) = self.place(index) else { return false };
        let was = lot.used.fetch_and(!bit, Ordering::SeqCst) & bit != 0;
        self.look_from(index / self.size);
        was
    }

    /// Frees a number when the transaction freezes. False if it was free.
    pub fn release_later(&self, index: u32) -> bool {
        let Some((lot, bit)) = self.place(index) else { return false };
        lot.used.load(Ordering::Acquire) & bit != 0
            && lot.going.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// The first lot that may have a free number.
    pub fn next(&self) -> u32 {
        let mut next = self.next.load(Ordering::Relaxed);
        while next < self.lots && !self.has_room(next) {
            next += 1;
        }
        self.next.store(next, Ordering::Relaxed);
        next
    }

    /// A lot got a free number.
    fn look_from(&self, lot: u32) {
        if self.next.load(Ordering::Relaxed) > lot {
            self.next.fetch_min(lot, Ordering::Relaxed);
        }
    }

    fn used(&self) -> u32 {
        let of = |lot| {
            self.lot(lot)
                .map_or(0, |l| (l.used.load(Ordering::Relaxed) & self.mask(lot)).count_ones())
        };
        (0..self.lots).map(of).sum()
    }

    /// Makes the numbers freed in the transaction free. No handle may be open.
    pub fn settle(&self) -> Settled {
        let mut gone = 0;
        for (index, lot) in (0..self.lots).filter_map(|index| Some((index, self.lot(index)?))) {
            let going = lot.going.swap(0, Ordering::AcqRel);
            if going != 0 {
                lot.used.fetch_and(!going, Ordering::SeqCst);
                gone += going.count_ones();
                self.look_from(index);
            }
        }
        let used = self.used();
        let freed = i64::from(self.counted.swap(used, Ordering::Relaxed)) - i64::from(used);
        Settled { freed, gone, behind: self.count - self.end() }
    }

    /// One behind the last number in use.
    fn end(&self) -> u32 {
        let of = |lot: u32| {
            let used = self.lot(lot)?.used.load(Ordering::Relaxed) & self.mask(lot);
            (used != 0).then(|| lot * self.size + (u64::BITS - used.leading_zeros()))
        };
        (0..self.lots).rev().find_map(of).unwrap_or(0)
    }

    /// Writes the bits into the bitmap.
    pub fn write(&self, bytes: &mut [u8]) {
        for lot in 0..self.lots {
            let (word, shift) = self.word_of(lot);
            let used = self.lot(lot).map_or(0, |lot| lot.used.load(Ordering::Relaxed));
            bitmap::put_word(bytes, word, used << shift, self.mask(lot) << shift);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_blocks::{Cache, MemDevice};

    fn bits(size: u32, count: u32, reserved: u32, set: &[u32]) -> Bits {
        let cache = Cache::new(Arc::new(MemDevice::new(1 << 16)), 1024, 1 << 16);
        let buffer = cache.fresh(3);
        {
            let mut bytes = buffer.write_unlogged();
            bytes.fill(0xFF);
            (0..count as usize).for_each(|n| _ = bitmap::clear(&mut bytes, n));
            set.iter().for_each(|n| _ = bitmap::set(&mut bytes, *n as usize));
        }
        Bits::new(buffer, size, count, reserved, count - set.len() as u32)
    }

    fn written(bits: &Bits) -> Vec<u32> {
        let mut bytes = bits.buffer.snapshot().to_vec();
        bits.write(&mut bytes);
        assert!(bitmap::all_ones(&bytes, bits.count as usize..bytes.len() * 8));
        (0..bits.count).filter(|n| bitmap::test(&bytes, *n as usize)).collect()
    }

    #[test]
    fn numbers_come_from_their_lots_in_order() {
        for size in [1, 4, 16, 64] {
            let bits = bits(size, 200, 3, &[0, 1, 2, 100]);
            assert!(!bits.lies);
            let mut taken = Vec::new();
            for lot in 0..bits.lots() {
                taken.extend(std::iter::from_fn(|| bits.claim(lot)));
                assert!(!bits.has_room(lot));
            }
            let all: Vec<u32> = (3..200).filter(|n| *n != 100).collect();
            assert_eq!(taken, all, "lots of {size}");
            assert_eq!(bits.next(), bits.lots());
            assert_eq!(written(&bits), (0..200).collect::<Vec<_>>());
            assert_eq!(bits.settle().freed, -196);
        }
    }

    #[test]
    fn a_number_freed_later_is_taken_after_freezing_only() {
        let bits = bits(16, 64, 0, &[5, 20]);
        assert!(bits.in_use(5) && bits.release_later(5));
        assert!(!bits.in_use(5) && !bits.release_later(5) && !bits.release_later(6));
        assert_eq!(bits.claim(0), Some(0));
        assert_eq!(std::iter::from_fn(|| bits.claim(0)).count(), 14);
        let settled = bits.settle();
        assert_eq!((settled.freed, settled.gone, settled.behind), (-14, 1, 43));
        assert_eq!(bits.next(), 0);
        assert_eq!(bits.claim(0), Some(5));
        assert!(bits.release(5) && !bits.release(5));
        assert_eq!(written(&bits), (0..16).filter(|n| *n != 5).chain([20]).collect::<Vec<_>>());
    }

    #[test]
    fn threads_take_each_number_once() {
        let bits = bits(16, 512, 0, &[]);
        let taken: Vec<u32> = std::thread::scope(|scope| {
            let bits = &bits;
            let take = move || -> Vec<u32> {
                (0..bits.lots())
                    .flat_map(|lot| std::iter::from_fn(move || bits.claim(lot)))
                    .collect()
            };
            let threads = [scope.spawn(take), scope.spawn(take)];
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let mut sorted = taken;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..512).collect::<Vec<_>>());
    }
}
