//! Pages of a stretch of the file that lie near each other: their states are bits of a few words.

use super::content::Content;
use super::map::Place;
use extant_sync::atomic::{AtomicU64, Ordering};
use smallvec::SmallVec;
use std::ops::Range;

/// Blocks of a chunk, as a power of two: one bit of a word for each.
const BITS: u32 = 6;

/// The chunk of a block, and the block's bit.
pub(super) fn place(lblk: u32) -> (u32, u64) {
    (lblk >> BITS, 1 << (lblk % (1 << BITS)))
}

/// The first block of a chunk.
pub(super) fn first(key: u32) -> u32 {
    key << BITS
}

/// The bits of those blocks of a chunk that are in `range`.
pub(super) fn mask(key: u32, range: &Range<u32>) -> u64 {
    let base = u64::from(first(key));
    let (start, end) =
        (u64::from(range.start).saturating_sub(base), u64::from(range.end).saturating_sub(base));
    below(end) & !below(start)
}

/// The lowest `n` bits.
fn below(n: u64) -> u64 {
    if n >= 64 { u64::MAX } else { (1 << n) - 1 }
}

/// The bits of a word, one by one, from the lowest.
pub(super) fn each(word: u64) -> impl Iterator<Item = u64> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let bit = rest & rest.wrapping_neg();
        rest ^= bit;
        (bit != 0).then_some(bit)
    })
}

/// Most leaves of the map that pages of `range` may need, as [`States::leaves`] counts them.
pub(super) fn leaves(range: &Range<u32>) -> usize {
    if range.is_empty() {
        return 0;
    }
    let chunks = place(range.end - 1).0 - place(range.start).0 + 1;
    range.len().min(chunks as usize * MAX_LEAVES as usize)
}

/// The states of a chunk's pages. Bits of pages that are not there are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct States {
    /// Those that are cached.
    pub present: u64,
    /// Those that wait for being written.
    pub dirty: u64,
    /// Those that a writeback has a snapshot of.
    pub writing: u64,
    /// Pages with mapped blocks.
    pub mapped: u64,
    /// Those that are counted in the inode's reservation.
    pub reserved: u64,
    /// Pages with a writeback that changes the file's map.
    pub remapped: u64,
}

/// Most leaves of a map that are split, or made, for the pages of a chunk: the leaf in which the
/// chunk begins may be split behind its last entry and in the middle, the one in which it ends in
/// the middle, and the smallest leaves once more.
const MAX_LEAVES: u32 = 4;

impl States {
    /// Those that have a block, or will have one.
    pub fn covered(&self) -> u64 {
        self.mapped | self.reserved | self.writing
    }

    /// Notes where pages that are present have their blocks. Returns whether one of them is newly
    /// counted in the inode's reservation.
    pub fn set_place(&mut self, pages: u64, place: Place) -> bool {
        let newly = if place == Place::Reserved { pages & !self.reserved } else { 0 };
        self.reserved |= newly;
        self.mapped |= if place == Place::Reserved { 0 } else { pages };
        self.remapped |= if place == Place::Written { 0 } else { pages };
        newly != 0
    }

    /// Leaves of the map that may be split, or made, when the chunk is written.
    pub fn leaves(&self) -> usize {
        self.remapped.count_ones().min(MAX_LEAVES) as usize
    }
}

/// The pages of a chunk, at least one.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub states: States,
    /// Those that were used since the hand of eviction passed.
    used: AtomicU64,
    /// The contents of those that are present, in order.
    pages: SmallVec<[Content; 1]>,
}

impl Chunk {
    fn rank(&self, bit: u64) -> usize {
        (self.states.present & (bit - 1)).count_ones() as usize
    }

    /// The content of a page that is present.
    pub fn get(&self, bit: u64) -> Option<&Content> {
        if self.states.present & bit == 0 {
            return None;
        }
        // Relaxed: a hint for eviction.
        if self.used.load(Ordering::Relaxed) & bit == 0 {
            self.used.fetch_or(bit, Ordering::Relaxed);
        }
        self.pages.get(self.rank(bit))
    }

    /// Runs `f` on the content of a page that is present.
    pub fn edit<R>(&mut self, bit: u64, f: impl FnOnce(&mut Content) -> R) -> Option<R> {
        if self.states.present & bit == 0 {
            return None;
        }
        *self.used.get_mut() |= bit;
        let rank = self.rank(bit);
        self.pages.get_mut(rank).map(f)
    }

    /// Adds a page unless it is present.
    pub fn add(&mut self, bit: u64, content: Content) {
        if self.states.present & bit != 0 {
            return;
        }
        let rank = self.rank(bit);
        self.pages.insert(rank, content);
        self.states.present |= bit;
        *self.used.get_mut() |= bit;
    }

    /// Drops pages in any state.
    pub fn drop_pages(&mut self, gone: u64) {
        let (going, staying) = (self.states.present & gone, self.states.present & !gone);
        let lowest = going & going.wrapping_neg();
        if staying < lowest {
            // All that stay come first, as when a file is cut.
            let kept = self.rank(lowest);
            let last = self.pages.get(kept..).unwrap_or_default();
            std::hint::black_box(last.iter().map(Content::look).sum::<usize>());
            self.pages.truncate(kept);
        } else if going != 0 {
            let mut bits = each(self.states.present);
            self.pages.retain(|_| bits.next().is_some_and(|bit| gone & bit == 0));
        }
        let States { present, dirty, writing, mapped, reserved, remapped } = &mut self.states;
        [present, dirty, writing, mapped, reserved, remapped]
            .into_iter()
            .for_each(|word| *word &= !gone);
        *self.used.get_mut() &= !gone;
    }

    /// Those of `among` that were not used lately; those that were count as not used from now on.
    pub fn unused(&mut self, among: u64) -> u64 {
        let used = *self.used.get_mut();
        *self.used.get_mut() = used & !among;
        among & !used
    }
}
