//! The cached pages of one file: one page is one block of the file system.
//!
//! # Invariants
//! - `dirty` names exactly the pages that wait for being written. A page being written is not in it unless it was
//!   changed again.
//! - A page that waits is *covered*: its block is mapped, or being mapped by the writeback that has it, or space is set
//!   aside for it. (After an error of the device it may not be; then its writeback takes space as it comes.)
//! - With clusters of several blocks, space is set aside once for a cluster, however many of its pages wait: `delayed`
//!   counts them.
//! - `pinned` pages are not evicted.

use extant_sync::atomic::{AtomicBool, Ordering};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// One cached block of a file.
#[derive(Debug)]
pub struct Page {
    bytes: Arc<[u8]>,
    used: AtomicBool,
    /// The block has a place on the device.
    mapped: bool,
    /// Counted in the inode's reservation.
    reserved: bool,
    /// A writeback has a snapshot of it.
    writing: bool,
}

impl Page {
    fn new(bytes: Arc<[u8]>, mapped: bool) -> Page {
        Page { bytes, used: AtomicBool::new(true), mapped, reserved: false, writing: false }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // Relaxed: a hint for eviction.
        self.used.store(true, Ordering::Relaxed);
        &self.bytes
    }
}

/// How a page stands towards space on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cover {
    /// It has a block, or will have one.
    Covered,
    /// It is cached, and may lie over a hole.
    Unknown,
    /// It is not cached.
    Absent,
}

/// A page taken for being written.
#[derive(Clone, Debug)]
pub struct Taken {
    /// Its block within the file.
    pub lblk: u32,
    /// Its content, frozen.
    pub bytes: Arc<[u8]>,
}

/// What went away with removed pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Blocks of reservation that nobody needs any more.
    pub reserved: u32,
}

/// What the pool counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    /// Pages.
    pub pages: usize,
    /// Pages that wait for being written.
    pub dirty: usize,
    /// Pages that are being written.
    pub writing: usize,
}

/// Pages by their block within the file.
#[derive(Debug, Default)]
pub struct PageMap {
    pages: BTreeMap<u32, Page>,
    dirty: BTreeSet<u32>,
    writing: usize,
    delayed: BTreeMap<u32, u32>,
    /// Pages that are `reserved`.
    reserved: u32,
    cluster_bits: u32,
    pinned: Range<u32>,
    hand: u32,
    generation: u64,
    page_size: u64,
}

impl PageMap {
    pub(super) fn totals(&self) -> Totals {
        Totals { pages: self.pages.len(), dirty: self.dirty.len(), writing: self.writing }
    }

    /// Whether no page is cached.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Whether a page waits for being written or is being written.
    pub fn busy(&self) -> bool {
        self.writing > 0 || !self.dirty.is_empty()
    }

    /// How many pages wait for being written.
    pub fn waiting(&self) -> usize {
        self.dirty.len()
    }

    /// Whether a page of `range` waits or is being written.
    pub fn busy_in(&self, range: Range<u32>) -> bool {
        self.has_dirty(range.clone())
            || (self.writing > 0 && some(range, |r| self.pages.range(r).any(|(_, p)| p.writing)))
    }

    /// Whether a page of `range` waits for being written.
    pub fn has_dirty(&self, range: Range<u32>) -> bool {
        some(range, |r| self.dirty.range(r).next().is_some())
    }

    /// The first page at or behind `lblk` that holds data not yet mapped on the device, or that is being written.
    pub fn next_busy(&self, range: Range<u32>) -> Option<u32> {
        if range.is_empty() || !self.busy() {
            return None;
        }
        let dirty = self.dirty.range(range.clone()).next().copied();
        let end = dirty.unwrap_or(range.end);
        match self.writing {
            0 => dirty,
            _ => self.pages.range(range.start..end).find(|(_, p)| p.writing).map(|(l, _)| *l).or(dirty),
        }
    }

    /// The page of `lblk`.
    pub fn get(&self, lblk: u32) -> Option<&Page> {
        self.pages.get(&lblk)
    }

    /// The first cached page of `range`.
    pub fn first_in(&self, range: Range<u32>) -> Option<u32> {
        if range.is_empty() { None } else { self.pages.range(range).next().map(|(lblk, _)| *lblk) }
    }

    /// Changes whenever pages are dropped because the device has newer content.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// How the page of `lblk` stands towards space; `cluster_bits` as in the geometry.
    pub fn cover(&self, lblk: u32, cluster_bits: u32) -> Cover {
        let delayed = cluster_bits > 0 && self.delayed.contains_key(&(lblk >> cluster_bits));
        match self.pages.get(&lblk) {
            None => Cover::Absent,
            Some(p) if p.mapped || p.reserved || p.writing || delayed => Cover::Covered,
            Some(_) => Cover::Unknown,
        }
    }

    /// Whether space is set aside for the cluster of `lblk`.
    pub fn cluster_reserved(&self, lblk: u32, cluster_bits: u32) -> bool {
        self.delayed.contains_key(&(lblk >> cluster_bits))
    }

    /// Bytes set aside for pages without a place.
    pub fn reserved_bytes(&self) -> u64 {
        let blocks = match self.cluster_bits {
            0 => self.reserved.into(),
            bits => (self.delayed.len() as u64) << bits,
        };
        blocks * self.page_size
    }

    /// Keeps the pages of `range` from being evicted; an empty range ends that.
    pub fn pin(&mut self, range: Range<u32>) {
        self.pinned = range;
    }

    /// Adds what was read from the device, unless the page is cached or content has changed since `generation`.
    pub fn add_read(&mut self, lblk: u32, bytes: Arc<[u8]>, generation: u64) {
        if generation == self.generation {
            self.page_size = bytes.len() as u64;
            self.pages.entry(lblk).or_insert_with(|| Page::new(bytes, true));
        }
    }

    /// Adds a page for a write that is about to change it, unless it is cached.
    pub fn add(&mut self, lblk: u32, bytes: Arc<[u8]>, mapped: bool) {
        self.page_size = bytes.len() as u64;
        self.pages.entry(lblk).or_insert_with(|| Page::new(bytes, mapped));
    }

    /// Adds a page that waits for being written, and has a place on the device (`mapped`) or space set aside. It is not
    /// cached.
    pub fn add_dirty(&mut self, lblk: u32, bytes: Arc<[u8]>, mapped: bool, cluster_bits: u32) {
        self.page_size = bytes.len() as u64;
        self.pages.insert(lblk, Page::new(bytes, mapped));
        self.dirty.insert(lblk);
        if !mapped {
            self.set_reserved(lblk, cluster_bits);
        }
    }

    /// Overwrites bytes of a cached page that is covered, with clusters of one block; the page then waits for being
    /// written. False if there is no such page.
    pub fn overwrite(&mut self, lblk: u32, from: usize, part: &[u8]) -> bool {
        let covered = |p: &&mut Page| p.mapped || p.reserved || p.writing;
        let Some(page) = self.pages.get_mut(&lblk).filter(covered) else { return false };
        let end = from.saturating_add(part.len());
        if end > page.bytes.len() {
            return false;
        }
        if let Some(bytes) = Arc::make_mut(&mut page.bytes).get_mut(from..end) {
            bytes.copy_from_slice(part);
        }
        *page.used.get_mut() = true;
        self.dirty.insert(lblk);
        true
    }

    /// Counts the page in the inode's reservation. The caller has set space aside.
    pub fn set_reserved(&mut self, lblk: u32, cluster_bits: u32) {
        if let Some(page) = self.pages.get_mut(&lblk).filter(|p| !p.reserved) {
            page.reserved = true;
            self.reserved += 1;
            self.cluster_bits = cluster_bits;
            if cluster_bits > 0 {
                *self.delayed.entry(lblk >> cluster_bits).or_insert(0) += 1;
            }
        }
    }

    /// Notes that the block of the page is mapped.
    pub fn set_mapped(&mut self, lblk: u32) {
        if let Some(page) = self.pages.get_mut(&lblk) {
            page.mapped = true;
        }
    }

    /// The bytes of a cached page for changing; the page then waits for being written. Snapshots keep the old bytes.
    pub fn dirty(&mut self, lblk: u32) -> Option<&mut [u8]> {
        let page = self.pages.get_mut(&lblk)?;
        self.dirty.insert(lblk);
        *page.used.get_mut() = true;
        Some(Arc::make_mut(&mut page.bytes))
    }

    /// Takes up to `max` waiting pages of `range` for being written, in order, and the reservation that goes with them,
    /// in blocks.
    pub fn take(&mut self, range: Range<u32>, max: usize, cluster_bits: u32) -> (Vec<Taken>, u32) {
        let lblks: Vec<u32> =
            if range.is_empty() { Vec::new() } else { self.dirty.range(range).take(max).copied().collect() };
        let mut reserved = 0;
        let mut taken = Vec::with_capacity(lblks.len());
        for lblk in lblks {
            self.dirty.remove(&lblk);
            reserved += self.take_reservation(lblk, cluster_bits);
            let Some(page) = self.pages.get_mut(&lblk) else { continue };
            page.writing = true;
            self.writing += 1;
            taken.push(Taken { lblk, bytes: page.bytes.clone() });
        }
        (taken, reserved)
    }

    /// The whole cluster's reservation goes with the first of its pages: the others will find the cluster mapped.
    fn take_reservation(&mut self, lblk: u32, cluster_bits: u32) -> u32 {
        if cluster_bits == 0 {
            let page = self.pages.get_mut(&lblk);
            let had = page.map_or(0, |p| u32::from(std::mem::take(&mut p.reserved)));
            self.reserved -= had;
            return had;
        }
        let cluster = lblk >> cluster_bits;
        if self.delayed.remove(&cluster).is_none() {
            return 0;
        }
        let first = cluster << cluster_bits;
        let last = first | ((1 << cluster_bits) - 1);
        for (_, page) in self.pages.range_mut(first..=last).filter(|(_, p)| p.reserved) {
            page.reserved = false;
            page.mapped = true;
            self.reserved -= 1;
        }
        1 << cluster_bits
    }

    /// The pages are on the device and mapped.
    pub fn written(&mut self, lblks: impl IntoIterator<Item = u32>) {
        for lblk in lblks {
            if let Some(page) = self.pages.get_mut(&lblk).filter(|p| p.writing) {
                page.writing = false;
                page.mapped = true;
                self.writing -= 1;
            }
        }
    }

    /// The pages could not be written. What was not changed again meanwhile is dropped, so that readers see what the
    /// device has.
    pub fn failed(&mut self, lblks: impl IntoIterator<Item = u32>) {
        for lblk in lblks {
            let Some(page) = self.pages.get_mut(&lblk).filter(|p| p.writing) else { continue };
            page.writing = false;
            page.mapped = false;
            self.writing -= 1;
            if !self.dirty.contains(&lblk) && !self.pinned.contains(&lblk) {
                self.pages.remove(&lblk);
            }
        }
    }

    /// Drops the pages of `range`, waiting ones too. None of them is being written.
    pub fn remove(&mut self, range: Range<u32>, cluster_bits: u32) -> Removed {
        self.generation += 1;
        if range.is_empty() {
            return Removed::default();
        }
        let mut removed = Removed::default();
        if range.end == u32::MAX {
            // A cut: from the end, without looking for each.
            while let Some(last) = self.pages.last_entry().filter(|last| *last.key() >= range.start) {
                let (lblk, page) = last.remove_entry();
                removed.reserved += self.gone(lblk, &page, cluster_bits);
            }
            return removed;
        }
        let lblks: Vec<u32> = self.pages.range(range).map(|(l, _)| *l).collect();
        for lblk in lblks {
            if let Some(page) = self.pages.remove(&lblk) {
                removed.reserved += self.gone(lblk, &page, cluster_bits);
            }
        }
        removed
    }

    /// A page was taken out; what it gives back of the reservation, in blocks.
    fn gone(&mut self, lblk: u32, page: &Page, cluster_bits: u32) -> u32 {
        if !self.dirty.is_empty() {
            self.dirty.remove(&lblk);
        }
        self.writing -= usize::from(page.writing);
        if !page.reserved {
            return 0;
        }
        self.reserved -= 1;
        self.undelay(lblk, cluster_bits)
    }

    /// One page less waits for its cluster; the reservation, in blocks, that the last one gives back.
    fn undelay(&mut self, lblk: u32, cluster_bits: u32) -> u32 {
        if cluster_bits == 0 {
            return 1;
        }
        let cluster = lblk >> cluster_bits;
        match self.delayed.get_mut(&cluster) {
            Some(count) if *count > 1 => {
                *count -= 1;
                0
            }
            Some(_) => {
                self.delayed.remove(&cluster);
                1 << cluster_bits
            }
            None => 0,
        }
    }

    /// Drops clean pages of `range`: the device has newer content.
    pub fn invalidate(&mut self, range: Range<u32>) {
        self.generation += 1;
        if !range.is_empty() {
            let clean = |l: &u32, p: &Page| !p.writing && !self.dirty.contains(l);
            let lblks: Vec<u32> = self.pages.range(range).filter(|(l, p)| clean(l, p)).map(|(l, _)| *l).collect();
            lblks.iter().for_each(|l| drop(self.pages.remove(l)));
        }
    }

    /// Drops up to `want` clean pages that were not used since the hand last passed; looks at each page at most twice.
    /// Gives the number dropped.
    pub fn evict(&mut self, want: usize) -> usize {
        let mut dropped = 0;
        for _ in 0..2 {
            for range in [self.hand..=u32::MAX, 0..=self.hand] {
                dropped += self.evict_in(range, want - dropped);
                if dropped >= want {
                    return dropped;
                }
            }
        }
        dropped
    }

    fn evict_in(&mut self, range: std::ops::RangeInclusive<u32>, want: usize) -> usize {
        let mut victims = Vec::new();
        for (lblk, page) in self.pages.range(range) {
            if victims.len() >= want {
                break;
            }
            self.hand = *lblk;
            let stays = page.writing || self.pinned.contains(lblk) || self.dirty.contains(lblk);
            if !stays && !page.used.swap(false, Ordering::Relaxed) {
                victims.push(*lblk);
            }
        }
        victims.iter().for_each(|l| drop(self.pages.remove(l)));
        victims.len()
    }
}

/// Asks about a range that may be empty.
fn some(range: Range<u32>, ask: impl FnOnce(Range<u32>) -> bool) -> bool {
    !range.is_empty() && ask(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(byte: u8) -> Arc<[u8]> {
        vec![byte; 16].into()
    }

    fn waiting(map: &mut PageMap, lblk: u32, cluster_bits: u32) {
        map.add(lblk, page(lblk as u8), false);
        map.set_reserved(lblk, cluster_bits);
        map.dirty(lblk).unwrap()[0] = 1;
    }

    #[test]
    fn taken_pages_are_snapshots() {
        let mut map = PageMap::default();
        (3..6).for_each(|l| waiting(&mut map, l, 0));
        let (taken, reserved) = map.take(0..100, 2, 0);
        assert_eq!((taken.len(), reserved), (2, 2));
        map.dirty(3).unwrap()[0] = 9;
        assert_eq!((taken[0].bytes[0], map.get(3).unwrap().bytes()[0]), (1, 9));
        assert_eq!(map.cover(3, 0), Cover::Covered);
        map.written([3, 4]);
        assert!(map.has_dirty(3..4) && !map.has_dirty(4..5) && map.has_dirty(5..6));
        assert_eq!((map.totals().dirty, map.waiting(), map.totals().writing), (2, 2, 0));
    }

    #[test]
    fn a_failed_page_goes_unless_it_was_changed_again() {
        let mut map = PageMap::default();
        (0..2).for_each(|l| waiting(&mut map, l, 0));
        let (taken, _) = map.take(0..2, 9, 0);
        map.dirty(1);
        map.failed(taken.iter().map(|t| t.lblk));
        assert!(map.get(0).is_none());
        assert_eq!(map.cover(1, 0), Cover::Unknown);
        assert!(map.busy());
    }

    #[test]
    fn a_cluster_is_reserved_once() {
        let mut map = PageMap::default();
        (0..4).for_each(|l| waiting(&mut map, l, 2));
        waiting(&mut map, 4, 2);
        assert!(map.cluster_reserved(7, 2));
        assert_eq!(map.remove(1..3, 2).reserved, 0);
        assert_eq!(map.remove(0..1, 2).reserved, 0);
        assert_eq!(map.remove(3..5, 2).reserved, 8);
        assert!(map.is_empty());
    }

    #[test]
    fn a_clusters_reservation_goes_with_the_first_page_taken() {
        let mut map = PageMap::default();
        (0..4).for_each(|l| waiting(&mut map, l, 2));
        let (taken, reserved) = map.take(0..1, 9, 2);
        assert_eq!((taken.len(), reserved), (1, 4));
        assert_eq!(map.cover(2, 2), Cover::Covered);
        assert_eq!(map.take(0..9, 9, 2).1, 0);
        assert_eq!(map.remove(0..9, 2).reserved, 0);
    }

    #[test]
    fn only_clean_pages_are_evicted_and_used_ones_last() {
        let mut map = PageMap::default();
        (0..8).for_each(|l| map.add(l, page(0), true));
        map.dirty(0);
        map.pin(1..2);
        assert_eq!(map.evict(2), 2);
        assert_eq!(map.evict(100), 4);
        assert!(map.get(0).is_some() && map.get(1).is_some());
        assert_eq!(map.evict(100), 0);
    }

    #[test]
    fn what_was_read_before_a_change_is_not_added() {
        let mut map = PageMap::default();
        let seen = map.generation();
        map.invalidate(0..1);
        map.add_read(0, page(1), seen);
        assert!(map.is_empty());
        map.add_read(0, page(1), map.generation());
        assert!(!map.is_empty());
    }

    #[test]
    fn busy_pages_are_found_in_order() {
        let mut map = PageMap::default();
        for lblk in [2, 5, 9] {
            waiting(&mut map, lblk, 0);
        }
        map.take(0..6, 9, 0);
        assert_eq!(map.next_busy(0..100), Some(2));
        assert_eq!(map.next_busy(3..100), Some(5));
        assert_eq!(map.next_busy(6..100), Some(9));
        assert_eq!(map.next_busy(10..100), None);
        assert!(map.busy_in(5..6) && !map.busy_in(6..9));
    }
}
