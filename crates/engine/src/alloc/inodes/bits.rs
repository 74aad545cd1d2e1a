//! One group's inode bitmap in memory, changed without a lock, in chunks of neighboring numbers.
//!
//! A chunk is the inodes of [`BLOCKS`] blocks of the inode table, up to a word of bits. Each thread
//! takes numbers from a chunk of its own while it has any, so that threads share neither a word of
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

/// Maximum number of inode numbers in a chunk.
const MAX_CHUNK: u32 = u64::BITS;

/// Chunks on one line of a cache.
const ON_LINE: usize = 4;

/// The most blocks of the table in a chunk. A larger chunk needs the group's lock, which threads
/// share, less often.
pub(super) const BLOCKS: u32 = 2;

/// Numbers of a chunk, by bit.
#[derive(Debug, Default)]
struct Chunk {
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
    /// Neighbouring chunks lie on different lines.
    lines: Box<[CachePadded<[Chunk; ON_LINE]>]>,
    chunks: u32,
    /// Numbers of a chunk: a power of two.
    size: u32,
    /// The number of inodes of the group, and of the reserved ones at its start.
    count: u32,
    reserved: u32,
    /// Chunks before this one had no free number when they were last looked at. It is a hint: a
    /// search that passed a chunk may store it after another thread freed a number of the chunk.
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

/// Numbers of a chunk where a block of the table has so many: those of [`BLOCKS`] if a chunk has
/// room for them.
pub(super) fn chunk_size(inodes_per_block: u32) -> u32 {
    let size = inodes_per_block.saturating_mul(BLOCKS).clamp(1, MAX_CHUNK);
    // Of a power of two: so are blocks and slots.
    1 << size.ilog2()
}

impl Bits {
    /// As the bitmap's block says. `reserved` numbers at the start are not taken.
    pub fn new(buffer: Arc<Buffer>, size: u32, count: u32, reserved: u32, free: u32) -> Bits {
        let chunks = count.div_ceil(size);
        let lines = (chunks as usize).div_ceil(ON_LINE).max(1);
        let mut bits = Bits {
            buffer,
            tid: AtomicU64::new(0),
            lies: false,
            lines: (0..lines).map(|_| CachePadded::default()).collect(),
            chunks,
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

    /// Fills the chunks from the block; gives how many numbers are in use.
    fn load(&self) -> u32 {
        let bytes = self.buffer.read();
        for chunk in 0..self.chunks {
            let used = self.of_word(bitmap::word(&bytes, self.word_of(chunk).0), chunk)
                | !self.mask(chunk);
            if let Some(chunk) = self.chunk(chunk) {
                chunk.used.store(used, Ordering::Relaxed);
            }
        }
        drop(bytes);
        self.used()
    }

    fn chunk(&self, chunk: u32) -> Option<&Chunk> {
        let (chunk, lines) = (chunk as usize, self.lines.len());
        self.lines.get(chunk % lines)?.get(chunk / lines)
    }

    /// The word of the bitmap that a chunk lies in, and where.
    fn word_of(&self, chunk: u32) -> (usize, u32) {
        let first = chunk * self.size;
        ((first / u64::BITS) as usize, first % u64::BITS)
    }

    fn of_word(&self, word: u64, chunk: u32) -> u64 {
        word >> self.word_of(chunk).1
    }

    /// The bits of a chunk that stand for numbers.
    fn mask(&self, chunk: u32) -> u64 {
        let len = self.count.saturating_sub(chunk * self.size).min(self.size);
        if len >= u64::BITS { u64::MAX } else { (1 << len) - 1 }
    }

    /// Returns the bits of a chunk's reserved numbers.
    fn kept(&self, chunk: u32) -> u64 {
        let len = self.reserved.saturating_sub(chunk * self.size).min(self.size);
        if len >= u64::BITS { u64::MAX } else { (1 << len) - 1 }
    }

    fn place(&self, index: u32) -> Option<(&Chunk, u64)> {
        let chunk = self.chunk(index / self.size).filter(|_| index < self.count)?;
        Some((chunk, 1 << (index % self.size)))
    }

    /// Number of chunks.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// First number of a chunk.
    pub fn first_of(&self, chunk: u32) -> u32 {
        chunk * self.size
    }

    /// Whether a chunk had a free number a moment ago.
    pub fn has_free(&self, chunk: u32) -> bool {
        self.chunk(chunk).is_some_and(|l| !(l.used.load(Ordering::SeqCst) | self.kept(chunk)) != 0)
    }

    /// Takes the first free number of a chunk.
    pub fn claim(&self, chunk: u32) -> Option<u32> {
        let (place, kept) = (self.chunk(chunk)?, self.kept(chunk));
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
                Ok(_) => return Some(chunk * self.size + bit.trailing_zeros()),
                Err(now) => used = now,
            }
        }
    }

    /// Takes this number. Returns false if it is in use. The group must be locked, and no other
    /// thread may take or free the number.
    pub fn claim_this(&self, index: u32) -> bool {
        let Some((chunk, bit)) = self.place(index) else { return false };
        let was_free = chunk.used.fetch_or(bit, Ordering::Acquire) & bit == 0;
        was_free || chunk.going.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Whether the number is in use: taken, and not freed.
    pub fn in_use(&self, index: u32) -> bool {
        self.place(index).is_some_and(|(chunk, bit)| {
            chunk.used.load(Ordering::Acquire) & !chunk.going.load(Ordering::Acquire) & bit != 0
        })
    }

    /// Frees a number at once. False if it was free.
    pub fn release(&self, index: u32) -> bool {
        let Some((chunk, bit)) = self.place(index) else { return false };
        let was = chunk.used.fetch_and(!bit, Ordering::SeqCst) & bit != 0;
        self.look_from(index / self.size);
        was
    }

    /// Frees a number when the transaction freezes. False if it was free.
    pub fn release_later(&self, index: u32) -> bool {
        let Some((chunk, bit)) = self.place(index) else { return false };
        chunk.used.load(Ordering::Acquire) & bit != 0
            && chunk.going.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// The first chunk that may have a free number.
    pub fn next(&self) -> u32 {
        let mut next = self.next.load(Ordering::Relaxed);
        while next < self.chunks && !self.has_free(next) {
            next += 1;
        }
        self.next.store(next, Ordering::Relaxed);
        next
    }

    /// Makes the next search look at all chunks. The group must be locked.
    pub fn look_at_all(&self) {
        self.next.store(0, Ordering::Relaxed);
    }

    /// Leaves the state of a search that passed each chunk before another thread freed a number.
    #[cfg(test)]
    pub fn pass_all(&self) {
        self.next.store(self.chunks, Ordering::Relaxed);
    }

    /// A chunk got a free number.
    fn look_from(&self, chunk: u32) {
        if self.next.load(Ordering::Relaxed) > chunk {
            self.next.fetch_min(chunk, Ordering::Relaxed);
        }
    }

    fn used(&self) -> u32 {
        let of = |chunk| {
            self.chunk(chunk)
                .map_or(0, |l| (l.used.load(Ordering::Relaxed) & self.mask(chunk)).count_ones())
        };
        (0..self.chunks).map(of).sum()
    }

    /// Makes the numbers freed in the transaction free. No handle may be open.
    pub fn settle(&self) -> Settled {
        let mut gone = 0;
        for (index, chunk) in (0..self.chunks).filter_map(|index| Some((index, self.chunk(index)?)))
        {
            let going = chunk.going.swap(0, Ordering::AcqRel);
            if going != 0 {
                chunk.used.fetch_and(!going, Ordering::SeqCst);
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
        let of = |chunk: u32| {
            let used = self.chunk(chunk)?.used.load(Ordering::Relaxed) & self.mask(chunk);
            (used != 0).then(|| chunk * self.size + (u64::BITS - used.leading_zeros()))
        };
        (0..self.chunks).rev().find_map(of).unwrap_or(0)
    }

    /// Writes the bits into the bitmap.
    pub fn write(&self, bytes: &mut [u8]) {
        for chunk in 0..self.chunks {
            let (word, shift) = self.word_of(chunk);
            let used = self.chunk(chunk).map_or(0, |chunk| chunk.used.load(Ordering::Relaxed));
            bitmap::put_word(bytes, word, used << shift, self.mask(chunk) << shift);
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
            for chunk in 0..bits.chunks() {
                taken.extend(std::iter::from_fn(|| bits.claim(chunk)));
                assert!(!bits.has_free(chunk));
            }
            let all: Vec<u32> = (3..200).filter(|n| *n != 100).collect();
            assert_eq!(taken, all, "chunks of {size}");
            assert_eq!(bits.next(), bits.chunks());
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
                (0..bits.chunks())
                    .flat_map(|chunk| std::iter::from_fn(move || bits.claim(chunk)))
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
