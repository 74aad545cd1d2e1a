//! A table that only gets longer, and that threads read without locks.
//!
//! The items of the beginning lie in one slice, so that a table that never grew costs a search as
//! much as a slice does. Items that are appended lie in chunks, each twice as long as the one
//! before: 64 items, 128, 256. No item ever moves. For example, of a table of 10 items that grew by
//! 100, items 0 to 9 are the slice, 10 to 73 the first chunk, and 74 to 109 are in the second.
//!
//! # Invariants
//! - Items below the length are there, and stay as they are but for their own changes.
//! - The length is stored after the items that it counts: a thread that reads it sees them.

use crate::OnceLock;
use crate::atomic::{AtomicUsize, Ordering};
use std::fmt::{self, Debug, Formatter};

/// Items of the first chunk.
const CHUNK: usize = 64;

/// Chunks: more items than 32 bits number.
const CHUNKS: usize = 27;

/// A table that only gets longer. See the module's documentation.
pub struct GrowingTable<T> {
    first: Box<[T]>,
    later: OnceLock<Box<Later<T>>>,
}

/// The items behind the first slice.
struct Later<T> {
    len: AtomicUsize,
    chunks: [OnceLock<Chunk<T>>; CHUNKS],
}

type Chunk<T> = Box<[OnceLock<T>]>;

/// Returns the chunk of an item behind the first slice, and the item's place there.
fn place(item: usize) -> (usize, usize) {
    let chunk = (item / CHUNK + 1).ilog2() as usize;
    (chunk, item - CHUNK * ((1 << chunk) - 1))
}

impl<T> GrowingTable<T> {
    /// Returns the number of items.
    #[inline]
    pub fn len(&self) -> usize {
        // Acquire: the items that are counted are seen.
        let later = self.later.get().map_or(0, |later| later.len.load(Ordering::Acquire));
        self.first.len() + later
    }

    /// Returns whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns an item; `None` behind the last one.
    #[inline]
    pub fn get(&self, item: usize) -> Option<&T> {
        match self.first.get(item) {
            None => self.get_later(item),
            found => found,
        }
    }

    #[inline(never)]
    fn get_later(&self, item: usize) -> Option<&T> {
        let (chunk, at) = place(item.checked_sub(self.first.len())?);
        self.later.get()?.chunks.get(chunk)?.get()?.get(at)?.get()
    }

    /// Returns all items in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let later = (self.first.len()..self.len()).filter_map(move |item| self.get(item));
        self.first.iter().chain(later)
    }

    /// Appends items. No two threads may append to a table at once.
    pub fn append(&self, items: impl IntoIterator<Item = T>) {
        let mut items = items.into_iter().peekable();
        if items.peek().is_none() {
            return;
        }
        let later = self.later.get_or_init(|| {
            let chunks = std::array::from_fn(|_| OnceLock::new());
            Box::new(Later { len: AtomicUsize::new(0), chunks })
        });
        // Relaxed: only this thread changes it.
        let mut len = later.len.load(Ordering::Relaxed);
        for item in items {
            let (chunk, at) = place(len);
            let Some(chunk) = later.chunks.get(chunk).map(|slot| slot.get_or_init(|| new(chunk)))
            else {
                break;
            };
            let is_new = chunk.get(at).is_some_and(|slot| slot.set(item).is_ok());
            debug_assert!(is_new, "two threads append at once");
            len += 1;
        }
        later.len.store(len, Ordering::Release);
    }

    /// Returns the bytes of the items' memory.
    pub fn bytes(&self) -> usize {
        let of_chunk = |chunk: &Chunk<T>| size_of_val(&**chunk);
        let chunks = self.later.get().into_iter().flat_map(|later| &later.chunks);
        size_of_val(&*self.first) + chunks.filter_map(OnceLock::get).map(of_chunk).sum::<usize>()
    }
}

fn new<T>(chunk: usize) -> Chunk<T> {
    (0..CHUNK << chunk).map(|_| OnceLock::new()).collect()
}

impl<T> FromIterator<T> for GrowingTable<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        GrowingTable { first: items.into_iter().collect(), later: OnceLock::new() }
    }
}

impl<T> Default for GrowingTable<T> {
    fn default() -> Self {
        std::iter::empty().collect()
    }
}

impl<T: Debug> Debug for GrowingTable<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn appended_items_follow_the_first_ones() {
        for first in [0, 1, 10, 64] {
            let table: GrowingTable<usize> = (0..first).collect();
            let mut len = first;
            for more in [0, 1, 63, 64, 1, 500] {
                table.append(len..len + more);
                len += more;
                assert_eq!(table.len(), len);
                assert!(table.iter().copied().eq(0..len), "{first} and {more}");
                assert_eq!((table.get(len), table.get(usize::MAX)), (None, None));
            }
            assert_eq!(table.is_empty(), len == 0);
        }
    }

    #[test]
    fn places_are_apart_and_in_order() {
        let mut expected = (0, 0);
        for item in 0..10_000 {
            assert_eq!(place(item), expected, "item {item}");
            expected.1 += 1;
            if expected.1 == CHUNK << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(place(u32::MAX as usize).0 < CHUNKS);
    }

    /// Items stay at their addresses, so readers keep them while others are appended.
    #[test]
    fn readers_see_all_items_below_the_length() {
        let (table, done): (GrowingTable<Box<usize>>, _) =
            ((0..3).map(Box::new).collect(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let kept = table.get(2).unwrap();
                    while !done.load(Ordering::Acquire) {
                        let len = table.len();
                        assert_eq!(table.get(len - 1).map(|item| **item), Some(len - 1));
                    }
                    assert_eq!(**kept, 2);
                });
            }
            for start in (3..crate::times(3000) as usize).step_by(7) {
                table.append((start..start + 7).map(Box::new));
            }
            done.store(true, Ordering::Release);
        });
        assert!(table.iter().enumerate().all(|(at, item)| at == **item));
    }

    #[test]
    fn memory_is_counted() {
        let table: GrowingTable<u64> = (0..100).collect();
        assert_eq!(table.bytes(), 800);
        table.append([7]);
        assert!(table.bytes() >= 800 + CHUNK * 8);
    }
}
