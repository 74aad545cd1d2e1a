//! The cached pages of one file: one page is one block of the file system.
//!
//! # Invariants
//! - A page that waits for writeback is `dirty`. A page under writeback is not, unless it was
//!   changed again.
//! - A dirty page is *covered*: its block is mapped, or being mapped by a writeback, or space is
//!   reserved for it. (After an error of the device it may not be; its writeback then takes any
//!   free space.)
//! - With clusters of several blocks, space is reserved once for a cluster with any number of dirty
//!   pages: `delayed` counts them.
//! - `pinned` pages are not evicted.
//! - A page is *remapped* from the moment that it becomes dirty over a block that is not written in
//!   the map, until it is written or dropped. `share` covers the blocks that the map may need for
//!   all such pages, less those that it took already: it grows before the pages are added, while
//!   they are pinned, and shrinks to the need by [`Remapped`] when some are gone.
//! - `totals` are the sums over all chunks, and no chunk is empty.

#[cfg(test)]
mod tests;

use super::chunk::{self, Chunk, States};
use super::content::Content;
use extant_sync::SlabPages;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Pages of a chunk that are a good part of it.
const CROWD: u32 = 8;

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

/// Where a page that becomes dirty has its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The map has it, and calls it written.
    Written,
    /// The file owns it; the map changes when it is written.
    Owned,
    /// Nowhere yet: space was set aside.
    Reserved,
}

/// Pages with a writeback that changes the file's map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remapped {
    /// How many there are.
    pub pages: u64,
    /// Leaves of the map that may be split, or made, for them, wherever they lie.
    pub leaves: u64,
    /// The end of the pinned ones among them, which may lie behind the end of the file.
    pub end: u64,
}

/// A page taken for being written.
#[derive(Debug)]
pub struct Taken {
    /// Its block within the file.
    pub lblk: u32,
    /// Its content, frozen.
    pub content: Content,
}

/// The reservations of removed pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Blocks of the reservation that are no longer needed.
    pub reserved: u32,
}

/// How many pages there are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Pages.
    pub pages: usize,
    /// Pages that wait for being written.
    pub dirty: usize,
    /// Pages that are being written.
    pub writing: usize,
    /// Pages that are counted in the inode's reservation.
    reserved: usize,
    /// Pages with a writeback that changes the map, and leaves that they may need.
    remapped: usize,
    leaves: usize,
}

impl Totals {
    fn shift(&mut self, before: States, after: States) {
        if before == after {
            return;
        }
        let moved = |sum: &mut usize, old: u64, new: u64| {
            if old != new {
                *sum = (*sum + new.count_ones() as usize).saturating_sub(old.count_ones() as usize);
            }
        };
        moved(&mut self.pages, before.present, after.present);
        moved(&mut self.dirty, before.dirty, after.dirty);
        moved(&mut self.writing, before.writing, after.writing);
        moved(&mut self.reserved, before.reserved, after.reserved);
        moved(&mut self.remapped, before.remapped, after.remapped);
        self.leaves = (self.leaves + after.leaves()).saturating_sub(before.leaves());
    }
}

/// Pages by their block within the file.
#[derive(Debug, Default)]
pub struct PageMap {
    /// Boxed: most files have one, and a node of the tree has room for several.
    chunks: BTreeMap<u32, Box<Chunk>>,
    totals: Totals,
    delayed: BTreeMap<u32, u32>,
    cluster_bits: u32,
    pinned: Range<u32>,
    share: u32,
    hand: u32,
    generation: u64,
    page_size: u64,
}

impl PageMap {
    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    /// Chunks with pages that may be in `range`, in order, and the bits of those blocks.
    fn within(&self, range: Range<u32>) -> impl Iterator<Item = (u32, &Chunk, u64)> {
        let chunks = (!range.is_empty()).then(|| self.chunks.range(keys(&range)));
        chunks
            .into_iter()
            .flatten()
            .map(move |(key, chunk)| (*key, &**chunk, chunk::mask(*key, &range)))
    }

    /// Returns the first page of `range` with a bit in the result of `which` for its chunk.
    fn find(&self, range: Range<u32>, which: impl Fn(&States) -> u64) -> Option<u32> {
        self.within(range).find_map(|(key, chunk, mask)| {
            let found = which(&chunk.states) & mask;
            (found != 0).then(|| chunk::first(key) + found.trailing_zeros())
        })
    }

    /// Changes the chunk of a block, if there is one, and keeps the sums true. A chunk does not
    /// lose pages here.
    fn edit<R>(&mut self, lblk: u32, f: impl FnOnce(&mut Chunk, u64) -> R) -> Option<R> {
        let (key, bit) = chunk::place(lblk);
        let chunk = self.chunks.get_mut(&key)?;
        let before = chunk.states;
        let result = f(chunk, bit);
        self.totals.shift(before, chunk.states);
        Some(result)
    }

    /// Changes all chunks that may have pages in `range`; those that are empty then go.
    fn edit_all(&mut self, range: &Range<u32>, mut f: impl FnMut(u32, &mut Chunk, u64)) {
        if range.is_empty() {
            return;
        }
        let mut empty = Vec::new();
        for (key, chunk) in self.chunks.range_mut(keys(range)) {
            let before = chunk.states;
            f(*key, chunk, chunk::mask(*key, range));
            self.totals.shift(before, chunk.states);
            if chunk.states.present == 0 {
                empty.push(*key);
            }
        }
        for key in empty {
            self.chunks.remove(&key);
        }
    }

    /// Whether no page is cached.
    pub fn is_empty(&self) -> bool {
        self.totals.pages == 0
    }

    /// Whether a page waits for being written or is being written.
    pub fn busy(&self) -> bool {
        self.totals.writing > 0 || self.totals.dirty > 0
    }

    /// How many pages wait for being written.
    pub fn waiting(&self) -> usize {
        self.totals.dirty
    }

    /// Whether a page of `range` waits or is being written.
    pub fn busy_in(&self, range: Range<u32>) -> bool {
        self.next_busy(range).is_some()
    }

    /// Whether a page of `range` waits for being written.
    pub fn has_dirty(&self, range: Range<u32>) -> bool {
        self.find(range, |states| states.dirty).is_some()
    }

    /// The first page of `range` that holds data not yet mapped on the device, or that is being
    /// written.
    pub fn next_busy(&self, range: Range<u32>) -> Option<u32> {
        if self.busy() { self.find(range, |states| states.dirty | states.writing) } else { None }
    }

    /// Whether the page of `lblk` is cached.
    pub fn has(&self, lblk: u32) -> bool {
        let (key, bit) = chunk::place(lblk);
        self.chunks.get(&key).is_some_and(|chunk| chunk.states.present & bit != 0)
    }

    /// Returns whether many neighbors of `lblk` are cached: their blocks will be written whole.
    pub fn is_crowded(&self, lblk: u32) -> bool {
        let chunk = self.chunks.get(&chunk::place(lblk).0);
        chunk.is_some_and(|chunk| chunk.states.present.count_ones() >= CROWD)
    }

    /// The content of the page of `lblk`.
    pub fn get(&self, lblk: u32) -> Option<&Content> {
        let (key, bit) = chunk::place(lblk);
        self.chunks.get(&key)?.get(bit)
    }

    /// The first cached page of `range`.
    pub fn first_in(&self, range: Range<u32>) -> Option<u32> {
        self.find(range, |states| states.present)
    }

    /// Changes whenever pages are dropped because the device has newer content.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// How the page of `lblk` stands towards space; `cluster_bits` as in the geometry.
    pub fn cover(&self, lblk: u32, cluster_bits: u32) -> Cover {
        let (key, bit) = chunk::place(lblk);
        let states = self.chunks.get(&key).map(|chunk| chunk.states).unwrap_or_default();
        if states.present & bit == 0 {
            return Cover::Absent;
        }
        if states.covered() & bit != 0
            || cluster_bits > 0 && self.cluster_reserved(lblk, cluster_bits)
        {
            Cover::Covered
        } else {
            Cover::Unknown
        }
    }

    /// Whether space is set aside for the cluster of `lblk`.
    pub fn cluster_reserved(&self, lblk: u32, cluster_bits: u32) -> bool {
        self.delayed.contains_key(&(lblk >> cluster_bits))
    }

    /// Bytes set aside for pages without a place.
    pub fn reserved_bytes(&self) -> u64 {
        let blocks = match self.cluster_bits {
            0 => self.totals.reserved as u64,
            bits => (self.delayed.len() as u64) << bits,
        };
        blocks * self.page_size
    }

    /// Keeps the pages of `range` from being evicted; an empty range ends that.
    pub fn pin(&mut self, range: Range<u32>) {
        self.pinned = range;
    }

    /// Adds a block read from the device, unless the page is cached or content has changed since
    /// `generation`.
    pub fn add_read(&mut self, lblk: u32, bytes: Arc<[u8]>, generation: u64) {
        if generation == self.generation {
            self.add(lblk, Content::whole(bytes), true);
        }
    }

    /// Adds a page for a write that is about to change it, unless it is cached.
    pub fn add(&mut self, lblk: u32, content: Content, mapped: bool) {
        self.insert(lblk, content, |states, bit| states.mapped |= if mapped { bit } else { 0 });
    }

    /// Adds a page that waits for being written. It is not cached. For one without a place, the
    /// caller has set space aside.
    pub fn add_dirty(&mut self, lblk: u32, content: Content, place: Place, cluster_bits: u32) {
        let reserved = self.insert(lblk, content, |states, bit| {
            states.dirty |= bit;
            states.set_place(bit, place)
        });
        debug_assert!(reserved.is_some(), "a page that is cached");
        if reserved == Some(true) {
            self.delay(lblk, cluster_bits);
        }
    }

    /// Notes where a page has its block. For one without, the caller has set space aside.
    pub fn set_place(&mut self, lblk: u32, place: Place, cluster_bits: u32) {
        let set =
            |chunk: &mut Chunk, bit| chunk.states.set_place(bit & chunk.states.present, place);
        if self.edit(lblk, set) == Some(true) {
            self.delay(lblk, cluster_bits);
        }
    }

    /// Counts a page in the reservation of its cluster.
    fn delay(&mut self, lblk: u32, cluster_bits: u32) {
        self.cluster_bits = cluster_bits;
        if cluster_bits > 0 {
            *self.delayed.entry(lblk >> cluster_bits).or_insert(0) += 1;
        }
    }

    /// Returns the pages with a writeback that changes the map. All pinned pages count as such.
    fn remapped(&self) -> Remapped {
        Remapped {
            pages: (self.totals.remapped + self.pinned.len()) as u64,
            leaves: (self.totals.leaves + chunk::leaves(&self.pinned)) as u64,
            end: self.pinned.end.into(),
        }
    }

    /// Blocks of the map that are to be set aside before the pinned pages become dirty; `need`
    /// gives how many pages need.
    pub fn share_missing(&self, need: impl FnOnce(Remapped) -> u32) -> u32 {
        need(self.remapped()).saturating_sub(self.share)
    }

    /// Takes from the share those blocks that no page needs any more.
    pub fn share_left(&mut self, need: impl FnOnce(Remapped) -> u32) -> u32 {
        let needed = need(self.remapped()).min(self.share);
        std::mem::replace(&mut self.share, needed) - needed
    }

    /// Blocks that are set aside for the map, to be changed.
    pub fn share(&mut self) -> &mut u32 {
        &mut self.share
    }

    /// Adds a page unless it is cached, and changes its states. Returns the result of `set`.
    fn insert<R>(
        &mut self,
        lblk: u32,
        content: Content,
        set: impl FnOnce(&mut States, u64) -> R,
    ) -> Option<R> {
        self.page_size = content.size() as u64;
        let (key, bit) = chunk::place(lblk);
        let chunk = self.chunks.entry(key).or_default();
        if chunk.states.present & bit != 0 {
            return None;
        }
        let before = chunk.states;
        chunk.add(bit, content);
        let result = set(&mut chunk.states, bit);
        self.totals.shift(before, chunk.states);
        Some(result)
    }

    /// Overwrites bytes of a cached page that is covered, with clusters of one block; the page then
    /// waits for being written. False if there is no such page.
    pub fn overwrite(&mut self, frames: &SlabPages, lblk: u32, from: usize, part: &[u8]) -> bool {
        let written = self.edit(lblk, |chunk, bit| {
            if chunk.states.covered() & bit == 0 {
                return None;
            }
            chunk.states.dirty |= bit;
            chunk.edit(bit, |content| content.write(frames, from, part))
        });
        written.flatten().is_some()
    }

    /// Changes a cached page; it then waits for being written. Snapshots keep the old bytes. False
    /// if it is not cached.
    pub fn dirty(&mut self, lblk: u32, change: impl FnOnce(&mut Content)) -> bool {
        let changed = self.edit(lblk, |chunk, bit| {
            chunk.states.dirty |= bit & chunk.states.present;
            chunk.edit(bit, change)
        });
        changed.flatten().is_some()
    }

    /// Changes a cached page to the content of the device, or, for a dirty page, to the content
    /// that its writeback gives the device. Does not make the page dirty. Snapshots keep the old
    /// bytes.
    pub fn amend(&mut self, lblk: u32, change: impl FnOnce(&mut Content)) {
        self.edit(lblk, |chunk, bit| chunk.edit(bit, change));
    }

    /// Takes up to `max` waiting pages of `range` for being written, in order, and the reservation
    /// that goes with them, in blocks.
    pub fn take(&mut self, range: Range<u32>, max: usize, cluster_bits: u32) -> (Vec<Taken>, u32) {
        let (mut taken, mut reserved) = (Vec::with_capacity(max.min(self.totals.dirty)), 0);
        if range.is_empty() {
            return (taken, 0);
        }
        for (key, chunk) in self.chunks.range_mut(keys(&range)) {
            if taken.len() >= max {
                break;
            }
            let before = chunk.states;
            let wanted = before.dirty & chunk::mask(*key, &range);
            for bit in chunk::each(wanted).take(max - taken.len()) {
                // The writeback reads shared bytes. A write to the page meanwhile copies them.
                let content = chunk.edit(bit, Content::share);
                chunk.states.dirty &= !bit;
                chunk.states.writing |= bit;
                let lblk = chunk::first(*key) + bit.trailing_zeros();
                taken.extend(content.map(|content| Taken { lblk, content }));
                if cluster_bits == 0 {
                    reserved += u32::from(chunk.states.reserved & bit != 0);
                    chunk.states.reserved &= !bit;
                }
            }
            self.totals.shift(before, chunk.states);
        }
        if cluster_bits > 0 {
            reserved =
                taken.iter().map(|page| self.take_reservation(page.lblk, cluster_bits)).sum();
        }
        (taken, reserved)
    }

    /// The whole cluster's reservation goes with the first of its pages: the others will find the
    /// cluster mapped.
    fn take_reservation(&mut self, lblk: u32, cluster_bits: u32) -> u32 {
        let cluster = lblk >> cluster_bits;
        if self.delayed.remove(&cluster).is_none() {
            return 0;
        }
        let first = cluster << cluster_bits;
        self.edit_all(&(first..first.saturating_add(1 << cluster_bits)), |_, chunk, mask| {
            let owned = chunk.states.reserved & mask;
            chunk.states.reserved &= !owned;
            chunk.states.mapped |= owned;
        });
        1 << cluster_bits
    }

    /// The pages are on the device and mapped. Those of one chunk had best follow each other.
    pub fn written(&mut self, lblks: impl IntoIterator<Item = u32>) {
        let mut lblks = lblks.into_iter().peekable();
        while let Some(lblk) = lblks.next() {
            let (key, mut bits) = chunk::place(lblk);
            while let Some(next) = lblks.next_if(|next| chunk::place(*next).0 == key) {
                bits |= chunk::place(next).1;
            }
            self.edit(lblk, |chunk, _| {
                let done = chunk.states.writing & bits;
                chunk.states.writing &= !done;
                chunk.states.mapped |= done;
                chunk.states.remapped &= !done;
            });
        }
    }

    /// Handles a failed write of pages. Pages that were not changed again are dropped, so that
    /// readers see the content of the device.
    pub fn failed(&mut self, lblks: impl IntoIterator<Item = u32>) {
        let pinned = self.pinned.clone();
        for lblk in lblks {
            self.edit_all(&(lblk..lblk.saturating_add(1)), |_, chunk, bit| {
                let failed = chunk.states.writing & bit;
                chunk.states.writing &= !failed;
                chunk.states.mapped &= !failed;
                if !pinned.contains(&lblk) {
                    chunk.drop_pages(failed & !chunk.states.dirty);
                }
            });
        }
    }

    /// Drops the pages of `range`, waiting ones too. None of them is being written.
    pub fn remove(&mut self, range: Range<u32>, cluster_bits: u32) -> Removed {
        self.generation += 1;
        let mut reserved = Vec::new();
        self.edit_all(&range, |key, chunk, mask| {
            let bits = chunk::each(chunk.states.reserved & mask);
            reserved.extend(bits.map(|bit| chunk::first(key) + bit.trailing_zeros()));
            chunk.drop_pages(mask);
        });
        Removed {
            reserved: reserved.into_iter().map(|lblk| self.undelay(lblk, cluster_bits)).sum(),
        }
    }

    /// One page less waits for its cluster; the reservation, in blocks, that the last one gives
    /// back.
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
        self.edit_all(&range, |_, chunk, mask| {
            chunk.drop_pages(mask & !chunk.states.writing & !chunk.states.dirty)
        });
    }

    /// Drops clean pages of `range`, except pinned ones. The device has the same content, so
    /// readers may still cache it, and the generation stays.
    pub fn drop_clean(&mut self, range: Range<u32>) {
        let pinned = self.pinned.clone();
        self.edit_all(&range, |key, chunk, mask| {
            let stays = chunk.states.writing | chunk.states.dirty | chunk::mask(key, &pinned);
            chunk.drop_pages(mask & !stays);
        });
    }

    /// Drops up to `want` clean pages that were not used since the hand last passed; looks at each
    /// page at most twice. Gives the number dropped.
    pub fn evict(&mut self, want: usize) -> usize {
        let before = self.totals.pages;
        for _ in 0..2 {
            for range in [self.hand..u32::MAX, 0..self.hand] {
                self.evict_in(&range, want - (before - self.totals.pages));
                if before - self.totals.pages >= want {
                    return want;
                }
            }
        }
        before - self.totals.pages
    }

    fn evict_in(&mut self, range: &Range<u32>, want: usize) {
        let (mut left, mut hand, pinned) = (want, self.hand, self.pinned.clone());
        let mut empty = Vec::new();
        for (key, chunk) in self.chunks.range_mut(keys(range)) {
            if left == 0 {
                break;
            }
            let before = chunk.states;
            // Bytes that the device lacks stay, and those that a writer is about to change.
            let stays = before.dirty | before.writing | chunk::mask(*key, &pinned);
            for bit in chunk::each(before.present & !stays & chunk::mask(*key, range)) {
                if left == 0 {
                    break;
                }
                hand = chunk::first(*key) + bit.trailing_zeros() + 1;
                let gone = chunk.unused(bit);
                chunk.drop_pages(gone);
                left -= usize::from(gone != 0);
            }
            self.totals.shift(before, chunk.states);
            if chunk.states.present == 0 {
                empty.push(*key);
            }
        }
        self.hand = hand;
        for key in empty {
            self.chunks.remove(&key);
        }
    }
}

/// The chunks that the blocks of a range that is not empty belong to.
fn keys(range: &Range<u32>) -> std::ops::RangeInclusive<u32> {
    let last = range.end.saturating_sub(1).max(range.start);
    chunk::place(range.start).0..=chunk::place(last).0
}
