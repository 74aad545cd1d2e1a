//! Owners of blocks: one bit for each unit of the file system.
//!
//! Threads claim ranges at once. A range is set by words, and stops at the first unit that has an
//! owner already, so that a hostile extent costs no more than its distance to the next claim.
//!
//! # Invariants
//! A group without a claim has no memory. A bit that is set stays set.

use extant_format::{BlockNr, Geometry, GroupNr};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const WORD_BITS: u64 = 64;

type Page = Box<[AtomicU64]>;

/// The claimed units of a file system: blocks or clusters.
#[derive(Debug)]
pub struct ClaimMap {
    geometry: Geometry,
    /// Blocks of a unit, as a power of two.
    unit_bits: u32,
    pages: Vec<OnceLock<Page>>,
}

/// Returns the words of a range of bits, each with the mask of its bits.
fn words(range: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let (start, end) = (range.start, range.end);
    (start / WORD_BITS..end.div_ceil(WORD_BITS)).map(move |word| {
        let first = word.saturating_mul(WORD_BITS);
        let (from, to) = (start.max(first), end.min(first.saturating_add(WORD_BITS)));
        let len = to.saturating_sub(from).min(WORD_BITS) as u32;
        let ones = u64::MAX.checked_shr(64u32.saturating_sub(len)).unwrap_or(0);
        (word as usize, ones.checked_shl(from.saturating_sub(first) as u32).unwrap_or(0))
    })
}

impl ClaimMap {
    /// Makes a map without claims of `groups` groups, whose units are blocks.
    pub fn of_blocks(geometry: &Geometry, groups: usize) -> ClaimMap {
        let pages = (0..groups).map(|_| OnceLock::new()).collect();
        ClaimMap { geometry: *geometry, unit_bits: 0, pages }
    }

    /// Makes a map without claims of `groups` groups, whose units are clusters.
    pub fn of_clusters(geometry: &Geometry, groups: usize) -> ClaimMap {
        ClaimMap { unit_bits: geometry.cluster_bits, ..ClaimMap::of_blocks(geometry, groups) }
    }

    fn unit_in_group(&self, block: u64) -> Option<(usize, u64)> {
        let group = self.geometry.group_of_block(BlockNr(block))?;
        let first = self.geometry.first_block_of_group(group).0;
        Some((group.index(), block.saturating_sub(first) >> self.unit_bits))
    }

    fn page(&self, group: usize) -> Option<&Page> {
        let blocks = self.geometry.blocks_in_group(GroupNr(group as u32));
        let units = u64::from(blocks).div_ceil(1u64.checked_shl(self.unit_bits).unwrap_or(1));
        let page = || (0..units.div_ceil(WORD_BITS)).map(|_| AtomicU64::new(0)).collect();
        Some(self.pages.get(group)?.get_or_init(page))
    }

    /// Splits a range of blocks at the borders of groups, into ranges of units.
    fn parts(&self, blocks: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> + '_ {
        let mut next = blocks.start;
        std::iter::from_fn(move || {
            let (group, start) = self.unit_in_group(next).filter(|_| next < blocks.end)?;
            let following = GroupNr(u32::try_from(group.saturating_add(1)).ok()?);
            let group_end = self.geometry.first_block_of_group(following).0.min(blocks.end);
            let (_, last) = self.unit_in_group(group_end.checked_sub(1)?)?;
            next = group_end;
            Some((group, start..last.saturating_add(1)))
        })
    }

    fn block_of(&self, group: usize, unit: u64) -> u64 {
        let first = self.geometry.first_block_of_group(GroupNr(group as u32)).0;
        first.saturating_add(unit.checked_shl(self.unit_bits).unwrap_or(u64::MAX))
    }

    /// Claims the units of a range of blocks. Returns the first block of the first unit that has an
    /// owner already, where the claim stops. Blocks outside of the map are ignored.
    pub fn claim(&self, blocks: Range<u64>) -> Option<u64> {
        for (group, units) in self.parts(blocks) {
            let Some(page) = self.page(group) else { continue };
            for (index, mask) in words(units) {
                let Some(word) = page.get(index) else { break };
                // Relaxed: passes read the map after the threads have ended.
                let taken = word.fetch_or(mask, Ordering::Relaxed) & mask;
                if taken != 0 {
                    let unit = (index as u64).saturating_mul(WORD_BITS);
                    let unit = unit.saturating_add(taken.trailing_zeros().into());
                    return Some(self.block_of(group, unit));
                }
            }
        }
        None
    }

    /// Claims all units of a range of blocks, those that have an owner already, too.
    pub fn claim_all(&self, blocks: Range<u64>) {
        for (group, units) in self.parts(blocks) {
            let Some(page) = self.page(group) else { continue };
            for (index, mask) in words(units) {
                if let Some(word) = page.get(index) {
                    word.fetch_or(mask, Ordering::Relaxed);
                }
            }
        }
    }

    /// Returns the first block of the first claimed unit of a range of blocks.
    pub fn first_claimed(&self, blocks: Range<u64>) -> Option<u64> {
        for (group, units) in self.parts(blocks) {
            let Some(page) = self.pages.get(group).and_then(OnceLock::get) else { continue };
            for (index, mask) in words(units) {
                let taken = page.get(index)?.load(Ordering::Relaxed) & mask;
                if taken != 0 {
                    let unit = (index as u64).saturating_mul(WORD_BITS);
                    let unit = unit.saturating_add(taken.trailing_zeros().into());
                    return Some(self.block_of(group, unit));
                }
            }
        }
        None
    }

    /// Fills `bits` with the claims of a group.
    pub fn copy_group(&self, group: GroupNr, bits: &mut [u8]) {
        bits.fill(0);
        let Some(page) = self.pages.get(group.index()).and_then(OnceLock::get) else { return };
        for (index, word) in page.iter().enumerate() {
            extant_format::bitmap::put_word(bits, index, word.load(Ordering::Relaxed), u64::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_cover_ranges() {
        let list = |range| words(range).collect::<Vec<_>>();
        assert_eq!(list(0..64), [(0, u64::MAX)]);
        assert_eq!(list(3..5), [(0, 0b11000)]);
        assert_eq!(list(63..129), [(0, 1 << 63), (1, u64::MAX), (2, 1)]);
    }
}
