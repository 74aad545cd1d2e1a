//! Lists of the least recently used items, one for each shard, with few lock acquisitions on the
//! hot paths.
//!
//! An item has a [`Link`] that holds its position on the lists. The lists hold the item's key, by
//! which a walk finds the item. Lists and items thus do not refer to each other's memory.
//!
//! For example, inode 12 is on the list of shard 3 as entry 5. The inode's link holds (3, 5); the
//! entry holds the key 12.
//!
//! # Invariants
//! - A nonzero link names the one entry that has its item's key. It is set by compare-and-swap, and
//!   cleared under the shard's lock together with the entry.
//! - An item that is dropped while linked leaves an entry whose key leads to no item, or to an item
//!   with another link. Walks recognize such entries by [`Cursor::at`] and remove them.
//!
//! # Locking
//! Each shard has one lock. Adding a linked item and deleting an unlinked one take none: two
//! threads that add and delete the same item at the same time have no order, so the result is that
//! of one of the two orders. A walk calls back under the shard's lock, which is inside the items'
//! locks: the callback may only try the items' locks.

use crate::atomic::{AtomicU32, AtomicUsize, Ordering};
use crate::{CachePadded, Level, Mutex, MutexGuard, shard_count, shard_index};
use core::fmt;

/// Bits of a link that hold the shard's index.
const SHARD_BITS: u32 = 7;
const SHARDS: usize = 1 << SHARD_BITS;

/// The most entries of a shard, which the remaining bits of a link can hold.
const MAX_ENTRIES: u32 = (1 << (u32::BITS - SHARD_BITS)) - 2;

/// No entry.
const NIL: u32 = u32::MAX;

/// The position of an item on the lists.
#[derive(Debug, Default)]
pub struct Link(AtomicU32);

impl Link {
    /// Makes the link of an item that is on no list.
    pub fn new() -> Self {
        Link(AtomicU32::new(0))
    }

    /// Returns whether the item is on a list. Relaxed: a caller that needs an order with changes of
    /// the link must get it from the item's lock.
    #[inline]
    pub fn is_linked(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

fn link_of(shard: usize, entry: u32) -> u32 {
    (entry + 1) << SHARD_BITS | shard as u32
}

fn place_of(link: u32) -> (usize, u32) {
    (link as usize % SHARDS, (link >> SHARD_BITS).wrapping_sub(1))
}

#[derive(Debug)]
struct Entry<K> {
    key: K,
    prev: u32,
    next: u32,
}

/// The entries of a shard. Free entries are linked by `next`.
#[derive(Debug)]
struct List<K> {
    entries: Vec<Entry<K>>,
    head: u32,
    tail: u32,
    free: u32,
}

#[derive(Debug)]
struct Shard<K> {
    list: Mutex<List<K>>,
    count: AtomicUsize,
}

/// Sharded lists of the least recently used items.
pub struct ListLru<K> {
    shards: Box<[CachePadded<Shard<K>>]>,
}

/// The effect of a walk's callback on an item, which determines the next step of the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The callback isolated the item; the walk continues.
    Removed,
    /// The callback isolated the item and dropped the lock meanwhile; the walk restarts from the
    /// oldest item.
    RemovedRetry,
    /// The item was used: it becomes the newest.
    Rotate,
    /// The item is busy and stays where it is.
    Skip,
    /// The callback dropped the lock, and the item stays; the walk restarts from the oldest item.
    Retry,
}

/// The position of a walk, by which a callback can isolate the item.
pub struct Cursor<'a, K> {
    shard: &'a Shard<K>,
    /// `None` only while the lock is dropped.
    list: Option<MutexGuard<'a, List<K>>>,
    index: usize,
    entry: u32,
}

impl<K: Copy> List<K> {
    const fn new() -> Self {
        List { entries: Vec::new(), head: NIL, tail: NIL, free: NIL }
    }

    fn at(&mut self, entry: u32) -> Option<&mut Entry<K>> {
        self.entries.get_mut(entry as usize)
    }

    /// Takes an entry that is on no list. Returns `None` at the greatest number of entries.
    fn take(&mut self, key: K) -> Option<u32> {
        let new = Entry { key, prev: NIL, next: NIL };
        let entry = self.free;
        if let Some(free) = self.at(entry) {
            let next = free.next;
            *free = new;
            self.free = next;
            return Some(entry);
        }
        let entry = u32::try_from(self.entries.len()).ok().filter(|at| *at <= MAX_ENTRIES)?;
        self.entries.push(new);
        Some(entry)
    }

    fn give_back(&mut self, entry: u32) {
        let free = self.free;
        if let Some(e) = self.at(entry) {
            (e.prev, e.next) = (entry, free);
            self.free = entry;
        }
    }

    fn append(&mut self, entry: u32) {
        let tail = self.tail;
        if let Some(e) = self.at(entry) {
            (e.prev, e.next) = (tail, NIL);
        }
        match self.at(tail) {
            Some(last) => last.next = entry,
            None => self.head = entry,
        }
        self.tail = entry;
    }

    fn detach(&mut self, entry: u32) {
        let Some(&mut Entry { prev, next, .. }) = self.at(entry) else { return };
        match self.at(prev) {
            Some(before) => before.next = next,
            None => self.head = next,
        }
        match self.at(next) {
            Some(after) => after.prev = prev,
            None => self.tail = prev,
        }
    }
}

impl<K: Copy> ListLru<K> {
    /// Makes empty lists, one for each of the process's shards.
    pub fn new() -> Self {
        Self::with_shards(shard_count())
    }

    /// Makes `count` empty lists, at most 128.
    pub fn with_shards(count: usize) -> Self {
        let shard = |_| {
            let list = Mutex::new(Level::Lru, List::new());
            CachePadded::new(Shard { list, count: AtomicUsize::new(0) })
        };
        ListLru { shards: (0..count.clamp(1, SHARDS)).map(shard).collect() }
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Appends an item to this thread's list unless it is on a list. Returns whether it did. The
    /// key must lead back to the item.
    #[inline]
    pub fn add(&self, link: &Link, key: K) -> bool {
        !link.is_linked() && self.add_to(shard_index(), link, key)
    }

    /// As [`ListLru::add`], to the list of a shard.
    pub fn add_to(&self, shard: usize, link: &Link, key: K) -> bool {
        if link.is_linked() {
            return false;
        }
        let index = shard % self.shards.len();
        let shard = &self.shards[index];
        let mut list = shard.list.lock();
        let Some(entry) = list.take(key) else { return false };
        // Relaxed: the entry is read only under the lock.
        if link
            .0
            .compare_exchange(0, link_of(index, entry), Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
        {
            list.give_back(entry);
            return false;
        }
        list.append(entry);
        shard.count.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Removes an item from its list. Returns whether it was on one.
    #[inline]
    pub fn del(&self, link: &Link) -> bool {
        link.is_linked() && self.del_linked(link)
    }

    fn del_linked(&self, link: &Link) -> bool {
        loop {
            let seen = link.0.load(Ordering::Relaxed);
            if seen == 0 {
                return false;
            }
            let (index, entry) = place_of(seen);
            let Some(shard) = self.shards.get(index) else { return false };
            let mut list = shard.list.lock();
            if link.0.load(Ordering::Relaxed) == seen {
                shard.remove(&mut list, entry);
                link.0.store(0, Ordering::Relaxed);
                return true;
            }
        }
    }

    /// Returns the number of items on all lists, approximately.
    pub fn count(&self) -> usize {
        (0..self.shards.len()).map(|shard| self.count_in(shard)).sum()
    }

    /// Returns the number of items on one list, approximately.
    #[inline]
    pub fn count_in(&self, shard: usize) -> usize {
        self.shards[shard % self.shards.len()].count.load(Ordering::Relaxed)
    }

    /// Calls `visit` for the items of a shard, oldest first, each once unless the callback requests
    /// a restart, until `budget` calls were made. The budget is counted down before each call, so
    /// that items that request a restart again and again do not keep the walk busy for ever.
    /// Returns the number of items that left the list.
    pub fn walk<F>(&self, shard: usize, budget: &mut usize, mut visit: F) -> usize
    where
        F: FnMut(K, &mut Cursor<'_, K>) -> Answer,
    {
        let index = shard % self.shards.len();
        let shard = &self.shards[index];
        let mut cursor = Cursor { shard, list: Some(shard.list.lock()), index, entry: NIL };
        let (mut entry, mut last) = cursor.ends();
        let mut removed = 0;
        while *budget > 0 {
            let Some((key, next)) = cursor.go_to(entry) else { break };
            *budget -= 1;
            let answer = visit(key, &mut cursor);
            match answer {
                Answer::Removed | Answer::RemovedRetry => removed += 1,
                Answer::Rotate => cursor.rotate(),
                Answer::Skip | Answer::Retry => {}
            }
            entry = match answer {
                Answer::RemovedRetry | Answer::Retry => {
                    let (head, tail) = cursor.ends();
                    last = tail;
                    head
                }
                // The newest entry at the start of the walk is the last: rotated items follow it.
                _ if entry == last => break,
                _ => next,
            };
        }
        removed
    }
}

impl<K: Copy> Shard<K> {
    fn remove(&self, list: &mut List<K>, entry: u32) {
        list.detach(entry);
        list.give_back(entry);
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<K: Copy> Cursor<'_, K> {
    fn ends(&self) -> (u32, u32) {
        self.list.as_ref().map_or((NIL, NIL), |list| (list.head, list.tail))
    }

    /// Moves to an entry. Returns its key and the entry behind it.
    fn go_to(&mut self, entry: u32) -> Option<(K, u32)> {
        self.entry = entry;
        let e = self.list.as_mut()?.at(entry)?;
        Some((e.key, e.next))
    }

    fn rotate(&mut self) {
        if let Some(list) = &mut self.list {
            list.detach(self.entry);
            list.append(self.entry);
        }
    }

    /// Returns whether `link` names this position. If not, the item that was added here is gone.
    pub fn at(&self, link: &Link) -> bool {
        link.0.load(Ordering::Relaxed) == link_of(self.index, self.entry)
    }

    /// Removes the item from the list. The callback must return [`Answer::Removed`] or
    /// [`Answer::RemovedRetry`].
    pub fn isolate(&mut self, link: &Link) {
        debug_assert!(self.at(link), "another item's link");
        link.0.store(0, Ordering::Relaxed);
        self.isolate_lost();
    }

    /// Removes the item from the list and pushes its key to `dispose`. The callback must return
    /// [`Answer::Removed`] or [`Answer::RemovedRetry`].
    pub fn isolate_move(&mut self, link: &Link, dispose: &mut Vec<K>) {
        if let Some((key, _)) = self.go_to(self.entry) {
            dispose.push(key);
        }
        self.isolate(link);
    }

    /// Removes the entry that a dropped item left behind.
    pub fn isolate_lost(&mut self) {
        if let Some(list) = &mut self.list {
            self.shard.remove(list, self.entry);
        }
    }

    /// Drops the lock while `f` runs. The callback must then request a restart, and must not
    /// isolate the item any more, since it may have moved.
    pub fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R {
        self.list = None;
        let result = f();
        self.list = Some(self.shard.list.lock());
        result
    }
}

impl<K: Copy> Default for ListLru<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Copy> fmt::Debug for ListLru<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListLru").field("count", &self.count()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const ITEMS: usize = 12;

    fn answers() -> impl Strategy<Value = Answer> {
        use Answer::*;
        prop::sample::select(vec![Removed, RemovedRetry, Rotate, Skip, Retry])
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(usize),
        Del(usize),
        /// The callback's answer for each item, and the budget.
        Walk(Vec<Answer>, usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..ITEMS).prop_map(Step::Add),
            1 => (0..ITEMS).prop_map(Step::Del),
            1 => (
                prop::collection::vec(answers(), ITEMS),
                0..3 * ITEMS,
            ).prop_map(|(a, b)| Step::Walk(a, b)),
        ];
        prop::collection::vec(step, 0..80)
    }

    /// The model: a queue, and the walk as its contract defines it.
    fn walk_model(
        model: &mut VecDeque<usize>,
        answers: &[Answer],
        mut budget: usize,
    ) -> (Vec<usize>, Vec<usize>) {
        let (mut seen, mut disposed) = (Vec::new(), Vec::new());
        let (mut at, mut left) = (0, model.len());
        while budget > 0 && left > 0 {
            (budget, left) = (budget - 1, left - 1);
            let item = model[at];
            seen.push(item);
            match answers[item] {
                Answer::Removed | Answer::RemovedRetry => disposed.extend(model.remove(at)),
                Answer::Rotate => {
                    let item = model.remove(at);
                    model.extend(item);
                }
                Answer::Skip => at += 1,
                Answer::Retry => {}
            }
            if matches!(answers[item], Answer::RemovedRetry | Answer::Retry) {
                (at, left) = (0, model.len());
            }
        }
        (seen, disposed)
    }

    proptest! {
        #[test]
        fn is_a_queue_with_walks(steps in steps()) {
            let (lru, mut model) = (ListLru::with_shards(1), VecDeque::new());
            let links: Vec<Link> = (0..ITEMS).map(|_| Link::new()).collect();
            for step in steps {
                match step {
                    Step::Add(i) => {
                        let new = !model.contains(&i);
                        prop_assert_eq!(lru.add_to(0, &links[i], i), new);
                        if new { model.push_back(i) }
                    }
                    Step::Del(i) => {
                        let had = model.contains(&i);
                        prop_assert_eq!(lru.del(&links[i]), had);
                        model.retain(|x| *x != i);
                    }
                    Step::Walk(answers, budget) => {
                        let (mut seen, mut disposed, mut left) = (Vec::new(), Vec::new(), budget);
                        let removed = lru.walk(0, &mut left, |i, cursor| {
                            seen.push(i);
                            match answers[i] {
                                Answer::Removed => cursor.isolate_move(&links[i], &mut disposed),
                                Answer::RemovedRetry => {
                                    cursor.isolate_move(&links[i], &mut disposed);
                                    cursor.unlocked(|| ());
                                }
                                Answer::Retry => cursor.unlocked(|| ()),
                                _ => {}
                            }
                            answers[i]
                        });
                        let expected = walk_model(&mut model, &answers, budget);
                        prop_assert_eq!(removed, disposed.len());
                        prop_assert_eq!(budget - left, seen.len());
                        prop_assert_eq!((seen, disposed), expected);
                    }
                }
                prop_assert_eq!(lru.count(), model.len());
                for (i, link) in links.iter().enumerate() {
                    prop_assert_eq!(link.is_linked(), model.contains(&i));
                }
            }
        }
    }

    #[test]
    fn places_come_back_out_of_links() {
        for (shard, entry) in [(0, 0), (127, 0), (3, 77), (127, MAX_ENTRIES)] {
            let link = link_of(shard, entry);
            assert_ne!(link, 0);
            assert_eq!(place_of(link), (shard, entry));
        }
    }

    #[test]
    fn threads_lose_no_item() {
        let lru = ListLru::with_shards(4);
        let links: Vec<Link> = (0..64).map(|_| Link::new()).collect();
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let (lru, links) = (&lru, &links);
                scope.spawn(move || {
                    for n in 0..crate::times(20_000) as usize {
                        let i = (n * 7 + thread * 13) % links.len();
                        match n % 3 {
                            0 => drop(lru.add_to(thread, &links[i], i)),
                            1 => drop(lru.del(&links[i])),
                            _ => drop(lru.walk(n, &mut 3, |key, cursor| {
                                assert!(cursor.at(&links[key]));
                                match n % 2 {
                                    0 => Answer::Rotate,
                                    _ => {
                                        cursor.isolate(&links[key]);
                                        Answer::Removed
                                    }
                                }
                            })),
                        }
                    }
                });
            }
        });
        assert_eq!(lru.count(), links.iter().filter(|link| link.is_linked()).count());
        let mut seen = Vec::new();
        (0..4).for_each(|shard| {
            lru.walk(shard, &mut 1000, |key, _| {
                seen.push(key);
                Answer::Skip
            });
        });
        assert_eq!(seen.len(), lru.count());
    }
}
