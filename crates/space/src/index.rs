//! An index that finds groups by a small number each, without visiting all of them.
//!
//! Every item has a value. Items are grouped into chunks, and each chunk has its largest value. A
//! search skips chunks whose largest value is too small. For example, with 640 groups and a free
//! inode only in group 639, a search reads the values of 10 chunks and of up to 64 items.
//!
//! # Invariants
//! Without concurrent changes, the value of a chunk is the largest of its items' values. During
//! changes it may be too large or too small for a moment. The result of a search is therefore a
//! hint, and a search that must find every item must read the items themselves.

use extant_sync::GrowingTable;
use extant_sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use std::ops::Range;

const CHUNK: usize = 64;

/// An index of items by value. See the module's documentation.
#[derive(Debug)]
pub struct Index {
    items: GrowingTable<AtomicU32>,
    chunks: GrowingTable<AtomicU32>,
}

impl Index {
    /// Makes an index of these values.
    pub fn new(values: impl IntoIterator<Item = u32>) -> Index {
        let items: Box<[AtomicU32]> = values.into_iter().map(AtomicU32::new).collect();
        let chunks =
            items.chunks(CHUNK).map(|chunk| AtomicU32::new(largest(chunk.iter()))).collect();
        Index { items: items.into_iter().collect(), chunks }
    }

    /// Appends items of value 0. No two threads may append at once.
    pub fn append_zeroes(&self, items: u32) {
        let zeroes = |count: usize| (0..count).map(|_| AtomicU32::new(0));
        let len = self.items.len().saturating_add(items as usize);
        // Before the items, which are then never without a chunk.
        self.chunks.append(zeroes(len.div_ceil(CHUNK).saturating_sub(self.chunks.len())));
        self.items.append(zeroes(items as usize));
    }

    /// Returns an item's value; 0 if the item does not exist.
    pub fn get(&self, item: u32) -> u32 {
        self.items.get(item as usize).map_or(0, |value| value.load(SeqCst))
    }

    /// Sets an item's value. The caller must order concurrent calls for one item.
    pub fn set(&self, item: u32, value: u32) {
        let Some(place) = self.items.get(item as usize) else { return };
        let old = place.swap(value, SeqCst);
        let Some(chunk) = self.chunks.get(item as usize / CHUNK) else { return };
        if value > old {
            chunk.fetch_max(value, SeqCst);
        } else if old > value && old >= chunk.load(SeqCst) {
            self.renew(item as usize / CHUNK, chunk);
        }
    }

    /// Computes the value of a chunk again. The second read sees a value that grew during the
    /// first.
    fn renew(&self, index: usize, chunk: &AtomicU32) {
        chunk.store(largest(self.chunk_items(index)), SeqCst);
        chunk.fetch_max(largest(self.chunk_items(index)), SeqCst);
    }

    fn chunk_items(&self, index: usize) -> impl Iterator<Item = &AtomicU32> {
        let start = index.saturating_mul(CHUNK);
        (start..start.saturating_add(CHUNK)).map_while(|item| self.items.get(item))
    }

    /// Returns the first item of `range` whose value is at least `least`, which must not be 0.
    pub fn find(&self, range: Range<u32>, least: u32) -> Option<u32> {
        let end = (range.end as usize).min(self.items.len());
        let mut at = range.start as usize;
        while at < end {
            let stop = ((at / CHUNK + 1) * CHUNK).min(end);
            if self.chunks.get(at / CHUNK)?.load(Relaxed) >= least {
                let is_hit = |item: &usize| {
                    self.items.get(*item).is_some_and(|value| value.load(Relaxed) >= least)
                };
                if let Some(hit) = (at..stop).find(is_hit) {
                    return Some(hit as u32);
                }
            }
            at = stop;
        }
        None
    }

    /// Returns the largest value of all items.
    pub fn largest(&self) -> u32 {
        largest(self.chunks.iter())
    }

    /// Returns the number of items.
    pub fn len(&self) -> u32 {
        self.items.len() as u32
    }

    /// Returns whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

fn largest<'a>(values: impl Iterator<Item = &'a AtomicU32>) -> u32 {
    values.map(|value| value.load(SeqCst)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_the_result_of_a_scan(
            values in prop::collection::vec(0u32..20, 0..300),
            changes in prop::collection::vec((0u32..320, 0u32..20), 0..100),
            from in 0u32..320, to in 0u32..320, least in 1u32..20, more in 0u32..200,
        ) {
            let index = Index::new(values.iter().copied());
            index.append_zeroes(more);
            let mut values = values;
            values.resize(values.len() + more as usize, 0);
            for (item, value) in changes {
                index.set(item, value);
                if let Some(place) = values.get_mut(item as usize) { *place = value; }
            }
            let scan =
                (from..to)
                    .find(|item| values.get(*item as usize).is_some_and(|value| *value >= least));
            prop_assert_eq!(index.find(from..to, least), scan);
            prop_assert_eq!(index.largest(), values.iter().copied().max().unwrap_or(0));
        }
    }
}
