//! Objects by number: found without a lock, counted while somebody has them, kept afterwards until memory is wanted.
//!
//! # Invariants
//! - An object is in the table at most once for a number; while it is, `core` points to the cache, and the count may be 0.
//!   It leaves the table under its shard's lock and its own. Whether it stays alive is then a matter of the count: with
//!   none it is dead, else the last reference frees it.
//! - An object is dead once its count is negative; then nobody gets a reference any more. Its value is taken out by the one who
//!   marked it dead, at once; its memory goes by epoch, since a lookup may be standing on it.
//! - An object in the table that nobody has a reference to is on the LRU lists, but for moments: between a last
//!   reference's going and its putting the object there, and while a walk that has isolated it decides.
//! - An object that was never put into the table needs neither its lock nor the lists'.
//!
//! # Locking
//! Shard of the table > the object's own lock (its count stands still) > a shard of the lists. A walk over the lists goes the
//! other way, so it only tries an object's lock, and evicts after the walk, from the table's shard on.
//!
//! # The last reference
//! It goes without the lock. What is in the table and on the lists needs nothing more: that was so at a moment after
//! the count became 0, and everybody who changes it afterwards looks at the count under the lock. Otherwise the lock is
//! taken, and if the count is 0 still, the object goes to the lists, or is freed. Looking at the object after its count
//! became 0 needs a pinned epoch.
#![expect(unsafe_code, reason = "references to objects are pointers that counts and epochs keep valid")]

use crate::Level;
use crate::atomic::{AtomicBool, AtomicPtr, Ordering};
use crate::epoch::{Guard, pin};
use crate::list_lru::{Answer, Cursor, Link, ListLru};
use crate::lockref::{Lockref, LockrefGuard};
use crate::table::Hashed;
use crate::table::raw::{Locked, Node, RawTable};
use core::cell::{Cell, UnsafeCell};
use core::fmt;
use core::ops::Deref;
use core::ptr::{self, NonNull};

/// An object's place: what lookups compare, what counts, and the value.
struct Slot<T: Send + Sync + 'static> {
    key: u32,
    /// On the LRU lists.
    link: Link,
    refs: Lockref,
    /// The cache whose table the object is in; null if in none. Changes under `refs`' lock, and the cache is not dropped as long as it
    /// is set: dropping it takes that lock, too.
    core: AtomicPtr<Core<T>>,
    /// Looked up since a walk came by.
    used: AtomicBool,
    /// There while the count is not negative.
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the value is reached through shared references by those who hold a count, and taken by the one who marked it
// dead; the rest is atomic.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

impl<T: Send + Sync + 'static> Hashed for Slot<T> {
    /// Numbers come in runs: multiplying spreads them over the high bits, which choose the shard, and the low ones keep a
    /// run's neighbours in neighbouring buckets.
    #[inline]
    fn hash(&self) -> u32 {
        hash(self.key)
    }
}

#[inline]
fn hash(key: u32) -> u32 {
    let spread = key.wrapping_mul(0x9e37_79b1);
    spread & 0xfc00_0000 | key & 0x03ff_ffff
}

struct Core<T: Send + Sync + 'static> {
    table: RawTable<Slot<T>>,
    lru: ListLru<u32>,
}

/// Objects by number.
pub struct Cache<T: Send + Sync + 'static> {
    /// From a box, so that slots can point to it.
    core: NonNull<Core<T>>,
}

// SAFETY: the core is the cache's own, and everything in it is shared by locks, atomics and counts.
unsafe impl<T: Send + Sync> Send for Cache<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Send + Sync> Sync for Cache<T> {}

/// A counted reference to an object, in the table or not.
pub struct Held<T: Send + Sync + 'static> {
    node: NonNull<Node<Slot<T>>>,
}

// SAFETY: as `Arc`: it gives shared references, and the last one's thread may drop the value.
unsafe impl<T: Send + Sync> Send for Held<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Send + Sync> Sync for Held<T> {}

/// A locked part of the table.
pub struct CacheShard<'a, T: Send + Sync + 'static> {
    core: NonNull<Core<T>>,
    locked: Locked<'a, Slot<T>>,
}

/// What a walk over objects that nobody has a reference to does with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may go.
    Evict,
    /// Something needs it: it becomes the newest.
    Keep,
}

impl<T: Send + Sync + 'static> Slot<T> {
    fn new(key: u32, count: i32, core: *mut Core<T>, value: T) -> Self {
        let (core, value) = (AtomicPtr::new(core), UnsafeCell::new(Some(value)));
        Slot { key, link: Link::new(), refs: Lockref::new(count), core, used: AtomicBool::new(false), value }
    }

    /// # Safety
    /// The caller has a count, or the lock of an object that is not dead, for as long as it uses the value.
    unsafe fn value(&self) -> &T {
        // SAFETY: the value is taken only by who makes the count negative, which needs a count of 0 and the lock.
        match unsafe { &*self.value.get() } {
            Some(value) => value,
            None => unreachable!("an object that is not dead has its value"),
        }
    }

    /// The object dies. The caller holds the lock, and nobody has a count (but perhaps the caller, who gives it up).
    fn kill(&self, mut guard: LockrefGuard<'_>) -> Option<T> {
        debug_assert!(!guard.is_dead(), "an object dies once");
        guard.mark_dead();
        self.core.store(ptr::null_mut(), Ordering::Relaxed);
        drop(guard);
        // SAFETY: nobody has a count or gets one any more, and this is the only one who made it so.
        unsafe { (*self.value.get()).take() }
    }

    /// Whether an unused object has nothing to be done with it.
    fn is_settled(&self) -> bool {
        self.link.is_linked() && !self.core.load(Ordering::Relaxed).is_null()
    }
}

impl<T: Send + Sync + 'static> Held<T> {
    /// An object that no table has, since nobody looks it up by its number. It goes with its last reference.
    pub fn unlisted(key: u32, value: T) -> Self {
        let node = Box::into_raw(Node::new(Slot::new(key, 1, ptr::null_mut(), value)));
        // SAFETY: it came from a box.
        Held { node: unsafe { NonNull::new_unchecked(node) } }
    }

    #[inline]
    fn slot(&self) -> &Slot<T> {
        // SAFETY: memory goes only after the count, which this reference is part of, has become negative.
        unsafe { &self.node.as_ref().value }
    }

    /// The object's number.
    pub fn key(&self) -> u32 {
        self.slot().key
    }

    /// References to the object, a moment ago.
    pub fn count(&self) -> usize {
        usize::try_from(self.slot().refs.count()).unwrap_or(0)
    }

    /// Whether both refer to the same object.
    pub fn same(&self, other: &Self) -> bool {
        self.node == other.node
    }

    /// The count is 0 or is made so by the caller's reference, and the lock is held.
    #[cold]
    fn settle(slot: &Slot<T>, node: NonNull<Node<Slot<T>>>, pinned: &Guard, guard: LockrefGuard<'_>) {
        // SAFETY: set under the lock that is held, and the cache is not dropped before it was cleared.
        if let Some(core) = unsafe { slot.core.load(Ordering::Relaxed).as_ref() } {
            core.lru.add(&slot.link, slot.key);
            return;
        }
        let value = slot.kill(guard);
        // SAFETY: it is in no table, and only the one who killed it retires it.
        unsafe { pinned.retire(node.as_ptr()) };
        drop(value);
    }

    #[inline(never)]
    fn drop_last(&self) {
        let pinned = pin();
        let node = self.node;
        // SAFETY: the epoch is pinned from before the count is given up, so the memory stays.
        let slot = unsafe { &node.as_ref().value };
        let guard = match slot.refs.put_return() {
            0 if slot.is_settled() => return,
            0 => {
                let guard = slot.refs.lock();
                if guard.count() != 0 {
                    return;
                }
                guard
            }
            1.. => return,
            _ => {
                let mut guard = slot.refs.lock();
                let count = guard.count() - 1;
                guard.set_count(count);
                if count != 0 {
                    return;
                }
                guard
            }
        };
        Self::settle(slot, node, &pinned, guard);
    }
}

impl<T: Send + Sync + 'static> Clone for Held<T> {
    #[inline]
    fn clone(&self) -> Self {
        self.slot().refs.get();
        Held { node: self.node }
    }
}

impl<T: Send + Sync + 'static> Deref for Held<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this reference is a count.
        unsafe { self.slot().value() }
    }
}

impl<T: Send + Sync + 'static> Drop for Held<T> {
    #[inline]
    fn drop(&mut self) {
        let refs = &self.slot().refs;
        if refs.count() <= 1 || !refs.put_not_zero() {
            self.drop_last();
        }
    }
}

impl<T: Send + Sync + fmt::Debug + 'static> fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Send + Sync + 'static> Cache<T> {
    /// An empty cache. Its table's locks are of `level`; `shards` is how many threads may change it at once.
    pub fn new(level: Level, shards: usize) -> Self {
        let table = RawTable::new(level, shards, if cfg!(loom) { 1 } else { 16 });
        let core = Box::into_raw(Box::new(Core { table, lru: ListLru::new() }));
        // SAFETY: it came from a box.
        Cache { core: unsafe { NonNull::new_unchecked(core) } }
    }

    #[inline]
    fn core(&self) -> &Core<T> {
        // SAFETY: it lives as long as the cache.
        unsafe { self.core.as_ref() }
    }

    /// The object of a number. None if there is none, or it is just being evicted: under the lock that is settled.
    #[inline]
    pub fn get(&self, key: u32) -> Option<Held<T>> {
        self.get_pinned(&pin(), key)
    }

    /// As [`Cache::get`], for callers who have pinned the epoch.
    #[inline]
    pub fn get_pinned(&self, pinned: &Guard, key: u32) -> Option<Held<T>> {
        let node = self.core().table.find(pinned, hash(key), |slot| slot.key == key)?;
        hold(node)
    }

    /// Locks the part of the table that a number is in.
    pub fn lock(&self, key: u32) -> CacheShard<'_, T> {
        CacheShard { core: self.core, locked: self.core().table.lock(hash(key)) }
    }

    /// How many objects ever left the part of the table that a number is in.
    pub fn removals(&self, key: u32) -> u64 {
        self.core().table.lock(hash(key)).totals.removals
    }

    /// Objects in the table.
    pub fn len(&self) -> usize {
        let table = &self.core().table;
        (0..table.shard_count()).map(|shard| table.lock_shard(shard).totals.len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Objects on the LRU lists: about those that nobody has a reference to.
    pub fn unused(&self) -> usize {
        self.core().lru.count()
    }

    /// Parts of the table, each locked by itself.
    pub fn shard_count(&self) -> usize {
        self.core().table.shard_count()
    }

    /// References to all objects of one part. A walk over all parts meets every object that is in the table from its
    /// beginning to its end exactly once, whatever changes meanwhile, and holds no lock while it works on them.
    pub fn all_in_shard(&self, shard: usize) -> Vec<Held<T>> {
        let locked = self.core().table.lock_shard(shard);
        let mut all = Vec::with_capacity(locked.totals.len);
        locked.each(|node| {
            if node.value.refs.get_not_dead() {
                all.push(Held { node: NonNull::from(node) });
            }
        });
        all
    }

    /// Looks at up to `budget` objects that nobody uses, the oldest of each list first, starting with this thread's list, and evicts
    /// those that were not looked up since the last time and that `judge` lets go. Their values are to be dropped by the caller.
    pub fn shrink(&self, budget: usize, judge: impl Fn(&T) -> Verdict) -> Vec<T> {
        let lru = &self.core().lru;
        let (mut budget, mut dispose, first) = (budget, Vec::new(), crate::shard_index());
        for shard in 0..lru.shards() {
            lru.walk(first + shard, &mut budget, |key, cursor| self.isolate(key, cursor, &judge, &mut dispose));
        }
        dispose.into_iter().filter_map(|key| self.evict(key, &judge)).collect()
    }

    /// What a walk does with one object.
    fn isolate(
        &self,
        key: u32,
        cursor: &mut Cursor<'_, u32>,
        judge: &impl Fn(&T) -> Verdict,
        dispose: &mut Vec<u32>,
    ) -> Answer {
        let pinned = pin();
        let found = self.core().table.find(&pinned, hash(key), |slot| slot.key == key);
        let Some(slot) = found.map(|node| &node.value).filter(|slot| cursor.at(&slot.link)) else {
            cursor.isolate_lost();
            return Answer::Removed;
        };
        let Some(guard) = slot.refs.try_lock() else { return Answer::Skip };
        if guard.count() != 0 {
            // In use: its last reference puts it back.
            cursor.isolate(&slot.link);
            return Answer::Removed;
        }
        // SAFETY: the lock is held, and the object is not dead: its count is 0.
        let kept = slot.used.swap(false, Ordering::Relaxed) || judge(unsafe { slot.value() }) == Verdict::Keep;
        if kept {
            return Answer::Rotate;
        }
        cursor.isolate_move(&slot.link, dispose);
        Answer::Removed
    }

    /// Evicts an isolated object if nobody has come for it meanwhile. One in use is put back by its last reference.
    fn evict(&self, key: u32, judge: &impl Fn(&T) -> Verdict) -> Option<T> {
        let mut shard = self.lock(key);
        let spared = Cell::new(false);
        let evicted = shard.remove(key, |count, value| {
            spared.set(count == 0 && judge(value) == Verdict::Keep);
            count == 0 && !spared.get()
        });
        if spared.get()
            && let Some(held) = shard.get(key)
        {
            // Its last reference puts it back.
            drop(shard);
            drop(held);
        }
        evicted
    }
}

/// A reference to what a lookup found.
#[inline]
fn hold<T: Send + Sync + 'static>(node: &Node<Slot<T>>) -> Option<Held<T>> {
    let slot = &node.value;
    if !slot.refs.get_not_dead() {
        return None;
    }
    if !slot.used.load(Ordering::Relaxed) {
        // Relaxed: a hint for eviction.
        slot.used.store(true, Ordering::Relaxed);
    }
    Some(Held { node: NonNull::from(node) })
}

impl<T: Send + Sync + 'static> CacheShard<'_, T> {
    fn node(&self, key: u32) -> Option<NonNull<Node<Slot<T>>>> {
        self.locked.find(hash(key), |slot| slot.key == key).map(NonNull::from)
    }

    /// How many objects ever left this part of the table.
    pub fn removals(&self) -> u64 {
        self.locked.totals.removals
    }

    /// The object of a number that is in this part.
    pub fn get(&self, key: u32) -> Option<Held<T>> {
        hold(self.locked.find(hash(key), |slot| slot.key == key)?)
    }

    /// Puts an object into the table. What had its number before leaves the table; its value comes back if nobody has it.
    pub fn insert(&mut self, key: u32, value: T) -> (Held<T>, Option<T>) {
        let before = self.remove(key, |_, _| true);
        let node = self.locked.insert(Node::new(Slot::new(key, 1, self.core.as_ptr(), value)));
        (Held { node }, before)
    }

    /// Takes out an object that only the table refers to, and that `is` accepts; its value.
    pub fn retire(&mut self, key: u32, is: impl Fn(&T) -> bool) -> Option<T> {
        self.remove(key, |count, value| count == 0 && is(value))
    }

    /// Takes an object out of the table if its count and value are accepted; its value comes back if nobody has it.
    fn remove(&mut self, key: u32, accepts: impl Fn(i32, &T) -> bool) -> Option<T> {
        let node = self.node(key)?;
        let pinned = pin();
        // SAFETY: it is in the table, and the epoch is pinned.
        let slot = unsafe { &node.as_ref().value };
        let guard = slot.refs.lock();
        // SAFETY: the lock is held, and what is in the table is not dead.
        if !accepts(guard.count(), unsafe { slot.value() }) {
            return None;
        }
        // SAFETY: a slot in the table points to its cache.
        unsafe { self.core.as_ref() }.lru.del(&slot.link);
        // Before the lock is given back: a last reference that comes then retires the memory.
        self.locked.unlink(hash(key), |slot| slot.key == key);
        if guard.count() > 0 {
            slot.core.store(ptr::null_mut(), Ordering::Relaxed);
            return None;
        }
        let value = slot.kill(guard);
        // SAFETY: off its chain, and dead: nobody has a count, so nobody else retires it.
        unsafe { pinned.retire(node.as_ptr()) };
        value
    }
}

impl<T: Send + Sync + 'static> Drop for Cache<T> {
    fn drop(&mut self) {
        let mut values = Vec::new();
        for shard in 0..self.shard_count() {
            let mut keys = Vec::new();
            self.core().table.lock_shard(shard).each(|node| keys.push(node.value.key));
            values.extend(keys.into_iter().filter_map(|key| self.lock(key).remove(key, |_, _| true)));
        }
        // SAFETY: the table is empty: no slot points to the core any more, and nobody else has the cache.
        drop(unsafe { Box::from_raw(self.core.as_ptr()) });
        drop(values);
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Cache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("len", &self.len()).field("unused", &self.unused()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    /// A value that says whether it was dropped.
    type Value = Arc<AtomicU64>;

    fn cache() -> Cache<Value> {
        Cache::new(Level::InodeTableShard, 4)
    }

    fn all(_: &Value) -> Verdict {
        Verdict::Evict
    }

    #[test]
    fn the_unused_are_evicted_and_the_held_are_not() {
        let cache = cache();
        let kept = Value::default();
        let (held, _) = cache.lock(1).insert(1, kept.clone());
        let (other, _) = cache.lock(2).insert(2, Value::default());
        assert!(cache.get(2).is_some_and(|found| found.same(&other)));
        drop(other);
        assert_eq!((cache.len(), cache.unused()), (2, 1));
        // The first walk takes the mark of the lookup.
        assert_eq!(cache.shrink(10, all).len(), 0);
        assert_eq!(cache.shrink(10, all).len(), 1);
        assert_eq!((cache.len(), cache.unused()), (1, 0));
        assert!(cache.get(2).is_none());
        assert_eq!(Arc::strong_count(&kept), 2);
        drop(held);
        assert_eq!(cache.unused(), 1);
        assert_eq!(cache.shrink(10, |_| Verdict::Keep).len(), 0);
        assert_eq!(cache.shrink(10, all).len(), 1);
        assert_eq!((cache.len(), Arc::strong_count(&kept)), (0, 1));
    }

    #[test]
    fn one_in_use_leaves_the_lists_and_comes_back() {
        let cache = cache();
        drop(cache.lock(1).insert(1, Value::default()));
        let held = cache.get(1).unwrap();
        assert_eq!(cache.unused(), 1, "still there from before");
        assert_eq!(cache.shrink(10, all).len(), 0);
        assert_eq!(cache.unused(), 0);
        drop(held);
        assert_eq!(cache.unused(), 1);
    }

    #[test]
    fn a_number_has_one_object() {
        let cache = cache();
        let first = Value::default();
        let (held, _) = cache.lock(7).insert(7, first.clone());
        let (second, before) = cache.lock(7).insert(7, Value::default());
        assert!(before.is_none() && !held.same(&second));
        assert!(cache.get(7).is_some_and(|found| found.same(&second)));
        assert_eq!(cache.removals(7), 1);
        // What was displaced goes with its last reference.
        let again = held.clone();
        drop(held);
        assert_eq!(Arc::strong_count(&first), 2);
        drop(again);
        assert_eq!(Arc::strong_count(&first), 1);
        drop(second);
        let (_third, before) = cache.lock(7).insert(7, Value::default());
        assert!(before.is_some(), "nobody had it");
    }

    #[test]
    fn only_the_table_may_have_what_retires() {
        let cache = cache();
        let (held, _) = cache.lock(7).insert(7, Value::default());
        assert!(cache.lock(7).retire(7, |_| true).is_none());
        drop(held);
        assert!(cache.lock(7).retire(7, |_| false).is_none());
        assert!(cache.lock(7).retire(7, |_| true).is_some());
        assert!(cache.get(7).is_none() && cache.unused() == 0);
    }

    #[test]
    fn references_outlive_the_cache() {
        let cache = cache();
        let (first, second) = (Value::default(), Value::default());
        let (held, _) = cache.lock(1).insert(1, first.clone());
        drop(cache.lock(2).insert(2, second.clone()));
        let unlisted = Held::unlisted(3, first.clone());
        drop(cache);
        assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (3, 1));
        drop((held, unlisted));
        assert_eq!(Arc::strong_count(&first), 1);
    }

    #[test]
    fn a_walk_meets_all() {
        let cache = cache();
        let held: Vec<_> = (0..100).map(|key| cache.lock(key).insert(key, Value::default()).0).collect();
        let mut seen: Vec<_> =
            (0..cache.shard_count()).flat_map(|s| cache.all_in_shard(s)).map(|found| found.key()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        assert!(held.iter().all(|held| held.count() == 1));
    }

    /// Lookups, loads, evictions and displacements at once: a number's object is one, and none is lost.
    #[test]
    fn threads_see_one_object_for_a_number() {
        const KEYS: u32 = 40;
        let (cache, alive) = (Cache::new(Level::InodeTableShard, 2), Arc::new(()));
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let (cache, alive) = (&cache, &alive);
                scope.spawn(move || {
                    for n in 0..30_000u32 {
                        let key = (n.wrapping_mul(31) + thread * 7) % KEYS;
                        match n % 16 {
                            0 => drop(cache.shrink(8, |_| Verdict::Evict)),
                            1 if n % 3 == 0 => drop(cache.lock(key).insert(key, (key, alive.clone()))),
                            _ => {
                                let found = cache.get(key).unwrap_or_else(|| {
                                    let mut shard = cache.lock(key);
                                    shard.get(key).unwrap_or_else(|| shard.insert(key, (key, alive.clone())).0)
                                });
                                assert_eq!((found.0, found.key()), (key, key));
                                let again = found.clone();
                                drop(found);
                                assert_eq!(again.0, key);
                            }
                        }
                    }
                });
            }
        });
        assert!(cache.len() <= KEYS as usize);
        assert_eq!(cache.unused(), cache.len(), "who is not in use is on the lists");
        assert_eq!(Arc::strong_count(&alive), cache.len() + 1);
        while !cache.is_empty() {
            cache.shrink(100, |_| Verdict::Evict);
        }
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
