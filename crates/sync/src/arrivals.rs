//! A sharded list of items in the order in which they came.
//!
//! An item comes to the shard of the thread that adds it, so threads that add do not meet. Its
//! [`Link`], kept with the item, tells where it is: taking it out searches nothing, and adding what
//! is there already takes no lock.
//!
//! # Invariants
//! - A link is not zero exactly if its item is on the list. It changes only under the lock of the
//!   shard that it names before, or afterwards if it was zero.
//! - An item that has to stay keeps its place.
//! - Within a shard numbers grow, so "came before" is a comparison of numbers: nothing has to be
//!   moved to a list of its own to tell what a walk began with from what came later.
//!
//! # Adding without a lock
//! Who finds a link that is not zero, and not [`CHECKED`], does nothing.
//! [`ShardedList::remove_unless`] therefore marks the link first and asks `keep` afterwards. Let
//! `keep` read, under a lock, what the adder wrote under that lock before it looked at the link. If
//! `keep` reads first, the mark happened before the adder's look, who waits for the remover's
//! verdict, and adds the item anew if it is gone. If it reads second, it sees what was written and
//! the item stays.

use crate::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::{Condvar, Level, Mutex, Sharded, shard_index};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bits of a link that name the shard: there are at most 128 shards.
const SHARD_BITS: u32 = 8;

/// Set in a link while its item is about to be taken out, perhaps.
const CHECKED: u64 = 1 << 63;

/// Where an item stands on an [`ShardedList`]. Belongs to one item and one list.
#[derive(Debug, Default)]
pub struct Link(AtomicU64);

impl Link {
    /// Whether the item is on the list.
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
    /// Changes under the lock.
    len: AtomicUsize,
    entries: Mutex<Entries<T>>,
    /// For those who wait for items to go.
    gone: Condvar,
}

#[derive(Debug)]
struct Entries<T> {
    /// The number of the next item, at least 1.
    next: u64,
    items: BTreeMap<u64, T>,
    waiting: usize,
}

/// What had come to a list when it was made.
#[derive(Debug)]
pub struct ListMark(Vec<u64>);

impl<T> ShardedList<T> {
    /// An empty list whose shards are locks of `level`.
    pub fn new(level: Level) -> Self {
        let entries = || Entries { next: 1, items: BTreeMap::new(), waiting: 0 };
        let shard = |_| Shard {
            len: AtomicUsize::new(0),
            entries: Mutex::new(level, entries()),
            gone: Condvar::new(),
        };
        ShardedList { shards: Sharded::new(shard) }
    }

    /// Whether no item is on the list. An item that was there before the call and was not taken out
    /// is seen.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.len.load(Ordering::Acquire) == 0)
    }

    /// The number of items, approximately.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.len.load(Ordering::Relaxed)).sum()
    }

    /// Adds an item unless it is there. True if it was added.
    pub fn add(&self, link: &Link, item: impl FnOnce() -> T) -> bool {
        !self.stays(link) && self.add_to(shard_index(), link, item)
    }

    /// Adds an item that seems not to be there to a shard.
    pub(crate) fn add_to(&self, index: usize, link: &Link, item: impl FnOnce() -> T) -> bool {
        let shard = self.shards.at(index);
        let mut entries = shard.entries.lock();
        let number = entries.next;
        let place = number << SHARD_BITS | (index & (crate::shard_count() - 1)) as u64;
        // AcqRel: of two who add, one succeeds, under the lock of the shard that it names.
        if link.0.compare_exchange(0, place, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return false;
        }
        entries.next += 1;
        entries.items.insert(number, item());
        shard.len.store(entries.items.len(), Ordering::Release);
        true
    }

    /// Whether an item is there and nobody is about to take it out.
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

    /// Takes an item out. `None` if it was not there. The item is to be dropped by the caller, who
    /// is under no lock of the list.
    pub fn remove(&self, link: &Link) -> Option<T> {
        self.remove_unless(link, || false)
    }

    /// Takes an item out unless `keep` says that it has to stay, which is asked under the shard's
    /// lock.
    pub fn remove_unless(&self, link: &Link, keep: impl Fn() -> bool) -> Option<T> {
        loop {
            let place = link.0.load(Ordering::Acquire) & !CHECKED;
            if place == 0 {
                return None;
            }
            let shard = self.shard(place);
            let mut entries = shard.entries.lock();
            if link.0.load(Ordering::Acquire) != place {
                continue;
            }
            link.0.store(place | CHECKED, Ordering::Release);
            let stays = keep();
            let item = if stays { None } else { shard.take(&mut entries, place >> SHARD_BITS) };
            link.0.store(if stays { place } else { 0 }, Ordering::Release);
            return item;
        }
    }

    /// What is on the list now, or was.
    pub fn arrived(&self) -> ListMark {
        ListMark(self.shards.iter().map(|shard| shard.entries.lock().next).collect())
    }

    /// Waits until everything that had arrived is gone, whatever comes meanwhile.
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

    /// A walk over what is on the list now, the caller's own shard first.
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

/// A walk over a list that others change: items that go meanwhile may or may not be met, those that
/// come are not.
#[derive(Debug)]
pub struct Walk<'a, T> {
    list: &'a ShardedList<T>,
    /// The shard that the walk begins with.
    first: usize,
    /// Shards that are done.
    done: usize,
    /// For each shard the numbers that are still to be met.
    parts: Vec<Range<u64>>,
}

impl<T: Clone> Walk<'_, T> {
    /// The next items, at most `most`; none at the end.
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
    fn a_walk_meets_what_was_there_in_order() {
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
    fn who_waits_waits_for_what_had_arrived_only() {
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

    /// Adders set a flag under a lock and add; the remover keeps what is flagged. So a flagged item
    /// is on the list.
    #[test]
    fn what_has_to_stay_is_never_lost() {
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
