//! A sharded list of items in the order of their arrival.
//!
//! An item is added to the shard of the adding thread, so concurrent adds of different threads do
//! not contend. The item's [`Link`], stored with the item, holds the position: a removal searches
//! nothing, and adding an item that is already on the list takes no lock.
//!
//! For example, item 7 is added by a thread of shard 2 as that shard's number 31. Its link then
//! holds the pair (31, 2), and the entry of shard 2 has the key 31.
//!
//! # Invariants
//! - A link is nonzero if and only if its item is on the list. It changes only under the lock of
//!   the shard that it names before the change, or after the change if it was zero.
//! - An item that `keep` retains keeps its position.
//! - Numbers grow within a shard, so "arrived before" is a comparison of numbers. A walk needs no
//!   second list to tell the items of its beginning from later ones.
//!
//! # Adding without a lock
//! An adder that finds a nonzero link without [`CHECKED`] does nothing.
//! [`ShardedList::remove_unless`] therefore sets the mark in the link first and calls `keep`
//! afterwards. `keep` must read, under a lock, a value that the adder wrote under that lock before
//! it read the link. There are two cases:
//!
//! - `keep` takes the lock first. Then the mark happened before the adder's read of the link. The
//!   adder waits for the remover's decision, and adds the item again if it was removed.
//! - `keep` takes the lock second. Then it sees the value that the adder wrote, and the item stays.

use crate::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::{Condvar, Level, Mutex, Sharded, shard_index};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bits of a link that hold the shard's index. There are at most 128 shards.
const SHARD_BITS: u32 = 8;

/// Bit of a link: the removal of its item is being decided.
const CHECKED: u64 = 1 << 63;

/// The position of an item on a [`ShardedList`]. Belongs to one item and one list.
#[derive(Debug, Default)]
pub struct Link(AtomicU64);

impl Link {
    /// Returns whether the item is on the list.
    #[inline]
    pub fn is_linked(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }
}

/// Items in the order of their arrival, by shard.
#[derive(Debug)]
pub struct ShardedList<T> {
    shards: Sharded<Shard<T>>,
}

#[derive(Debug)]
struct Shard<T> {
    /// The number of items. Changes only under the lock of `entries`.
    len: AtomicUsize,
    entries: Mutex<Entries<T>>,
    /// Notified when an item is removed while threads wait for removals.
    gone: Condvar,
}

#[derive(Debug)]
struct Entries<T> {
    /// The number of the next item, at least 1.
    next: u64,
    items: BTreeMap<u64, T>,
    waiting: usize,
}

/// A mark of the items that a list had when the mark was made: the next number of each shard.
#[derive(Debug)]
pub struct ListMark(Vec<u64>);

impl<T> ShardedList<T> {
    /// Makes an empty list whose shards are locks of `level`.
    pub fn new(level: Level) -> Self {
        let entries = || Entries { next: 1, items: BTreeMap::new(), waiting: 0 };
        let shard = |_| Shard {
            len: AtomicUsize::new(0),
            entries: Mutex::new(level, entries()),
            gone: Condvar::new(),
        };
        ShardedList { shards: Sharded::new(shard) }
    }

    /// Returns whether the list is empty. An item that was added before the call and is not removed
    /// is always seen.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.len.load(Ordering::Acquire) == 0)
    }

    /// Returns the number of items, approximately.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.len.load(Ordering::Relaxed)).sum()
    }

    /// Adds an item unless it is on the list. Returns whether it was added.
    pub fn add(&self, link: &Link, item: impl FnOnce() -> T) -> bool {
        !self.stays(link) && self.add_to(shard_index(), link, item)
    }

    /// Adds an item to the shard `index`, unless another thread has added it since the caller
    /// looked.
    pub(crate) fn add_to(&self, index: usize, link: &Link, item: impl FnOnce() -> T) -> bool {
        let index = index & (self.shards.len() - 1);
        let shard = self.shards.at(index);
        let mut entries = shard.entries.lock();
        let number = entries.next;
        let place = number << SHARD_BITS | index as u64;
        // AcqRel: of two concurrent adders one succeeds, under the lock of the shard that the link
        // then names.
        if link.0.compare_exchange(0, place, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return false;
        }
        entries.next += 1;
        entries.items.insert(number, item());
        shard.len.store(entries.items.len(), Ordering::Release);
        true
    }

    /// Returns whether an item is on the list with no removal being decided. Waits for a pending
    /// decision by taking the shard's lock.
    pub(crate) fn stays(&self, link: &Link) -> bool {
        loop {
            let place = link.0.load(Ordering::Acquire);
            if place & CHECKED == 0 {
                return place != 0;
            }
            drop(self.shard(place).entries.lock());
        }
    }

    fn shard(&self, place: u64) -> &Shard<T> {
        self.shards.at((place & ((1 << SHARD_BITS) - 1)) as usize)
    }

    /// Removes an item. Returns `None` if it was not on the list. The item is returned so that the
    /// caller drops it outside of the list's locks.
    pub fn remove(&self, link: &Link) -> Option<T> {
        self.remove_unless(link, || false)
    }

    /// Removes an item unless `keep` returns true. `keep` runs under the shard's lock.
    pub fn remove_unless(&self, link: &Link, keep: impl Fn() -> bool) -> Option<T> {
        loop {
            let place = link.0.load(Ordering::Acquire) & !CHECKED;
            if place == 0 {
                return None;
            }
            let shard = self.shard(place);
            let mut entries = shard.entries.lock();
            // The item may have moved between the read of the link and the lock.
            if link.0.load(Ordering::Acquire) != place {
                continue;
            }
            // The mark must precede `keep`: see *Adding without a lock* in the module's
            // documentation.
            link.0.store(place | CHECKED, Ordering::Release);
            let stays = keep();
            let item = if stays { None } else { shard.take(&mut entries, place >> SHARD_BITS) };
            link.0.store(if stays { place } else { 0 }, Ordering::Release);
            return item;
        }
    }

    /// Returns a mark behind all items that have been added so far.
    pub fn arrived(&self) -> ListMark {
        ListMark(self.shards.iter().map(|shard| shard.entries.lock().next).collect())
    }

    /// Waits until all items before the mark `arrived` are removed. Items added later do not
    /// prolong the wait.
    pub fn wait_gone(&self, arrived: &ListMark) {
        for (shard, end) in self.shards.iter().zip(&arrived.0) {
            if shard.len.load(Ordering::Acquire) == 0 {
                continue;
            }
            let mut entries = shard.entries.lock();
            entries.waiting += 1;
            shard.gone.wait_while(&mut entries, |e| {
                e.items.first_key_value().is_some_and(|(first, _)| first < end)
            });
            entries.waiting -= 1;
        }
    }

    /// Begins a walk over the present items, with the caller's own shard first.
    pub fn walk(&self) -> Walk<'_, T> {
        let ends = self.arrived().0;
        Walk {
            list: self,
            first: shard_index(),
            done: 0,
            parts: ends.into_iter().map(|end| 0..end).collect(),
        }
    }
}

impl<T> Shard<T> {
    fn take(&self, entries: &mut Entries<T>, number: u64) -> Option<T> {
        let item = entries.items.remove(&number);
        self.len.store(entries.items.len(), Ordering::Release);
        if entries.waiting > 0 {
            self.gone.notify_all();
        }
        item
    }
}

/// A walk over a list that other threads change. Items that are removed meanwhile may or may not be
/// returned; items that are added meanwhile are not.
#[derive(Debug)]
pub struct Walk<'a, T> {
    list: &'a ShardedList<T>,
    /// The shard that the walk begins with.
    first: usize,
    /// The number of finished shards.
    done: usize,
    /// For each shard, the numbers that remain to be visited.
    parts: Vec<Range<u64>>,
}

impl<T: Clone> Walk<'_, T> {
    /// Returns the next items, at most `most`. An empty result is the end.
    pub fn next(&mut self, most: usize) -> Vec<T> {
        let mut found = Vec::new();
        while found.len() < most && self.done < self.parts.len() {
            let index = (self.first + self.done) & (self.parts.len() - 1);
            let (shard, Some(part)) = (self.list.shards.at(index), self.parts.get_mut(index))
            else {
                break;
            };
            let wanted = most - found.len();
            if shard.len.load(Ordering::Acquire) > 0 {
                let entries = shard.entries.lock();
                for (number, item) in entries.items.range(part.clone()).take(wanted) {
                    part.start = number + 1;
                    found.push(item.clone());
                }
            }
            self.done += usize::from(found.len() < most);
        }
        found
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Arc;
    use crate::atomic::AtomicBool;

    fn list() -> ShardedList<u32> {
        ShardedList::new(Level::Lru)
    }

    #[test]
    fn an_item_is_there_once() {
        let (list, link) = (list(), Link::default());
        assert!(list.add(&link, || 7) && !list.add(&link, || 8));
        assert!(link.is_linked() && list.len() == 1);
        assert_eq!(list.remove_unless(&link, || true), None);
        assert_eq!(list.remove(&link), Some(7));
        assert_eq!(list.remove(&link), None);
        assert!(list.is_empty() && !link.is_linked());
    }

    #[test]
    fn a_walk_returns_the_present_items_in_order() {
        let list = list();
        let links: Vec<Link> = (0..10).map(|_| Link::default()).collect();
        (0..8).for_each(|n| assert!(list.add(&links[n], || n as u32)));
        let mut walk = list.walk();
        assert_eq!(walk.next(3), [0, 1, 2]);
        list.add(&links[8], || 8);
        list.remove(&links[4]);
        assert_eq!(walk.next(3), [3, 5, 6]);
        assert_eq!(walk.next(3), [7]);
        assert!(walk.next(3).is_empty());
    }

    #[test]
    fn waiting_is_for_earlier_items_only() {
        let list = list();
        let (early, late) = (Link::default(), Link::default());
        list.add(&early, || 1);
        let arrived = list.arrived();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| list.wait_gone(&arrived));
            list.add(&late, || 2);
            list.remove(&early);
            waits.join().unwrap();
        });
        assert!(late.is_linked());
        list.wait_gone(&arrived);
    }

    /// Two adders set a flag under a lock and add the item; the remover keeps a flagged item. So a
    /// flagged item is on the list.
    #[test]
    fn a_kept_item_is_never_lost() {
        let list = Arc::new(list());
        let (link, flag) = (Link::default(), Mutex::new(Level::Leaf, false));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let adder = || {
                for n in 0..20_000 {
                    *flag.lock() = true;
                    list.add(&link, || n);
                }
            };
            let adders = [scope.spawn(adder), scope.spawn(adder)];
            let remover = scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    *flag.lock() = false;
                    let _ = list.remove_unless(&link, || *flag.lock());
                }
            });
            adders.into_iter().for_each(|t| t.join().unwrap());
            done.store(true, Ordering::Release);
            remover.join().unwrap();
        });
        assert_eq!(list.len(), usize::from(link.is_linked()));
        assert!(link.is_linked() || !*flag.lock());
    }
}
