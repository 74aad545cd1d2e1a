//! Owners of blocks: one bit for each unit of the file system.
//!
//! Threads claim ranges at once. A range is set by words, and stops at the first unit that has an
//! owner already, so that a hostile extent costs no more than its distance to the next claim.
//!
//! # Invariants
//! A group has bits of its own from the first claims on that are more than [`RUNS`] runs of units,
//! or meet a claimed unit; until then it has the runs only. Its bits have all of its runs. A unit
//! that is claimed stays claimed.

use extant_format::bitmap::put_word;
use extant_format::{BlockNr, Geometry, GroupNr};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

const WORD_BITS: u64 = 64;

/// Runs of claimed units that a group has without bits: those of bitmaps, tables and copies of the
/// superblock in a file system without files.
const RUNS: usize = 3;

/// Locks of all groups together, by their last bits.
const LOCKS: usize = 64;

type Page = Box<[AtomicU64]>;

/// The claimed units of a group.
#[derive(Debug, Default)]
struct Slot {
    /// Runs, in order: the first unit of each in the upper half, the one after the last in the
    /// lower half. Runs without units are last.
    runs: [AtomicU64; RUNS],
    page: OnceLock<Page>,
}

impl Slot {
    /// Returns the runs.
    fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        // Relaxed: changes are made under a lock, and passes read after the threads have ended.
        let runs = self.runs.iter().map(|run| run.load(Ordering::Relaxed)).filter(|run| *run != 0);
        runs.map(|run| run >> 32..run & u64::from(u32::MAX))
    }

    /// Adds units as a run. Returns false if they overlap others or there are too many runs.
    fn add_run(&self, units: &Range<u64>) -> bool {
        let mut runs: Vec<Range<u64>> = self.runs().chain([units.clone()]).collect();
        runs.sort_unstable_by_key(|run| run.start);
        let overlap = runs.windows(2).any(|pair| matches!(pair, [a, b] if b.start < a.end));
        runs.dedup_by(|next, last| {
            let joined = next.start == last.end;
            if joined {
                last.end = next.end;
            }
            joined
        });
        if overlap || runs.len() > RUNS {
            return false;
        }
        let words = runs.iter().map(|run| run.start << 32 | run.end).chain(std::iter::repeat(0));
        for (run, word) in self.runs.iter().zip(words) {
            run.store(word, Ordering::Relaxed);
        }
        true
    }

    /// Returns the first claimed unit of a range.
    fn first_taken(&self, units: &Range<u64>) -> Option<u64> {
        let Some(page) = self.page.get() else {
            let starts = self.runs().filter(|run| run.start < units.end && units.start < run.end);
            return starts.map(|run| run.start.max(units.start)).next();
        };
        words(units.clone()).find_map(|(index, mask)| {
            let taken = page.get(index)?.load(Ordering::Relaxed) & mask;
            (taken != 0).then(|| first_unit(index, taken))
        })
    }

    /// Returns bits for `units` units, with those of the runs.
    fn to_page(&self, units: u64) -> Page {
        let page: Page = (0..units.div_ceil(WORD_BITS)).map(|_| AtomicU64::new(0)).collect();
        for (index, mask) in self.runs().flat_map(words) {
            if let Some(word) = page.get(index) {
                word.fetch_or(mask, Ordering::Relaxed);
            }
        }
        page
    }
}

/// The claimed units of a file system: blocks or clusters.
#[derive(Debug)]
pub struct ClaimMap {
    geometry: Geometry,
    /// Blocks of a unit, as a power of two.
    unit_bits: u32,
    slots: Vec<Slot>,
    /// Taken by those that change the runs of groups.
    locks: [Mutex<()>; LOCKS],
}

/// Returns the unit of the first bit of a word.
fn first_unit(index: usize, bits: u64) -> u64 {
    (index as u64).saturating_mul(WORD_BITS).saturating_add(bits.trailing_zeros().into())
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
        let slots = (0..groups).map(|_| Slot::default()).collect();
        let locks = std::array::from_fn(|_| Mutex::new(()));
        ClaimMap { geometry: *geometry, unit_bits: 0, slots, locks }
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

    /// Returns the number of units of a group.
    fn units(&self, group: usize) -> u64 {
        let blocks = self.geometry.blocks_in_group(GroupNr(group as u32));
        u64::from(blocks).div_ceil(1u64.checked_shl(self.unit_bits).unwrap_or(1))
    }

    /// Returns the bits of a group; `None` if the units became a run.
    fn page(&self, group: usize, units: &Range<u64>) -> Option<&Page> {
        let slot = self.slots.get(group)?;
        if let Some(page) = slot.page.get() {
            return Some(page);
        }
        let lock = self.locks.get(group % LOCKS)?;
        let _changing = lock.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.page.get().is_none() && slot.add_run(units) {
            return None;
        }
        Some(slot.page.get_or_init(|| slot.to_page(self.units(group))))
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
            let Some(page) = self.page(group, &units) else { continue };
            for (index, mask) in words(units) {
                let Some(word) = page.get(index) else { break };
                // Relaxed: passes read the map after the threads have ended.
                let taken = word.fetch_or(mask, Ordering::Relaxed) & mask;
                if taken != 0 {
                    return Some(self.block_of(group, first_unit(index, taken)));
                }
            }
        }
        None
    }

    /// Claims all units of a range of blocks, those that have an owner already, too.
    pub fn claim_all(&self, blocks: Range<u64>) {
        for (group, units) in self.parts(blocks) {
            let Some(page) = self.page(group, &units) else { continue };
            for (index, mask) in words(units) {
                if let Some(word) = page.get(index) {
                    word.fetch_or(mask, Ordering::Relaxed);
                }
            }
        }
    }

    /// Returns the first block of the first claimed unit of a range of blocks.
    pub fn first_claimed(&self, blocks: Range<u64>) -> Option<u64> {
        self.parts(blocks).find_map(|(group, units)| {
            let unit = self.slots.get(group)?.first_taken(&units)?;
            Some(self.block_of(group, unit))
        })
    }

    /// Fills `bits` with the claims of a group.
    pub fn copy_group(&self, group: GroupNr, bits: &mut [u8]) {
        bits.fill(0);
        let Some(slot) = self.slots.get(group.index()) else { return };
        match slot.page.get() {
            Some(page) => page.iter().enumerate().for_each(|(index, word)| {
                put_word(bits, index, word.load(Ordering::Relaxed), u64::MAX);
            }),
            None => slot.runs().flat_map(words).for_each(|(index, mask)| {
                put_word(bits, index, mask, mask);
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_format::Superblock;

    #[test]
    fn words_cover_ranges() {
        let list = |range| words(range).collect::<Vec<_>>();
        assert_eq!(list(0..64), [(0, u64::MAX)]);
        assert_eq!(list(3..5), [(0, 0b11000)]);
        assert_eq!(list(63..129), [(0, 1 << 63), (1, u64::MAX), (2, 1)]);
    }

    /// Numbers that look random.
    fn numbers() -> impl FnMut(u64) -> u64 {
        let mut state = 1u64;
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        }
    }

    /// Two groups of 8192 blocks of 1 KiB.
    fn geometry() -> Geometry {
        let mut sb = Superblock::empty();
        sb.set_rev_level(1);
        sb.set_inode_size(256);
        sb.set_first_ino(11);
        sb.set_blocks_count(16385);
        sb.set_first_data_block(1);
        sb.set_blocks_per_group(8192);
        sb.set_clusters_per_group(8192);
        sb.set_inodes_per_group(1024);
        sb.set_inodes_count(2048);
        Geometry::new(&sb).expect("a geometry")
    }

    #[test]
    fn runs_and_bits_tell_the_same_as_a_plain_list() {
        const SECOND: u64 = 8193;
        let (geometry, mut number) = (geometry(), numbers());
        let mut with_runs = 0;
        for round in 0..500 {
            let map = ClaimMap::of_blocks(&geometry, 2);
            let mut owned = vec![false; 16385];
            for _ in 0..1 + round % 12 {
                let start = SECOND - 150 + number(300);
                let range = start..start + 1 + number(60);
                let taken = range.clone().find(|block| owned[*block as usize]);
                assert_eq!(map.first_claimed(range.clone()), taken);
                assert_eq!(map.claim(range.clone()), taken);
                map.claim_all(range.clone());
                range.for_each(|block| owned[block as usize] = true);
            }
            for (group, first) in [(0, 1), (1, SECOND as usize)] {
                let mut bits = vec![0xff; 1024];
                map.copy_group(GroupNr(group), &mut bits);
                let bit = |unit: usize| bits[unit / 8] >> (unit % 8) & 1 == 1;
                assert!((0..8192).all(|unit| bit(unit) == owned[first + unit]));
                with_runs += u32::from(map.slots[group as usize].page.get().is_none());
            }
        }
        assert!((1..1000).contains(&with_runs), "both forms were tried: {with_runs}");
    }
}
