//! A cache of objects by number. Lookups take no lock, references are counted, and unreferenced
//! objects stay until memory is needed.
//!
//! For example, inode 12 is loaded and inserted with one reference. When the reference is dropped,
//! the inode goes to the LRU lists. A lookup finds it there; two walks of [`Cache::shrink`] without
//! a lookup in between evict it.
//!
//! # Invariants
//! - The table has at most one object for a number. While an object is in the table, `core` points
//!   to the cache, and the count may be 0. The object leaves the table under its shard's lock and
//!   its own. The count then decides: an object without references is dead, otherwise the last
//!   reference frees it.
//! - An object is dead once its count is negative; from then on no reference is granted. The thread
//!   that marked it dead calls [`Object::depart`]. The value and memory are reclaimed by epoch,
//!   since a lookup may be looking at them.
//! - An unreferenced object in the table is on the LRU lists, except between the drop of the last
//!   reference and the addition to the lists, and while a walk that has isolated the object
//!   decides. An object that is not worth keeping may be off the lists.
//! - An object that was never in the table needs neither the table's lock nor the lists'. Any
//!   holder of a reference may put it into the table: while that reference exists, no other one can
//!   be the last.
//!
//! # Locking
//! Table shard > the object's own lock (its count is stable) > list shard. A walk over the lists
//! goes the other way, so it only tries an object's lock, and evicts after the walk, beginning with
//! the table's shard.
//!
//! # The last reference
//! The last reference is dropped without the lock. An object in the table and on the lists then
//! needs nothing more: it was so at a moment after the count became 0, and every thread that
//! changes that afterwards checks the count under the lock. In the other cases the lock is taken;
//! if the count is still 0, the object is added to the lists, or freed. Looking at an object after
//! its count became 0 requires a pinned epoch.
#![expect(
    unsafe_code,
    reason = "references to objects are pointers that counts and epochs keep valid"
)]

use crate::atomic::{AtomicBool, AtomicPtr, Ordering};
use crate::epoch::{Guard, pin};
use crate::list_lru::{Answer, Cursor, Link, ListLru};
use crate::lockref::{Lockref, LockrefGuard};
use crate::table::Hashed;
use crate::table::raw::{Found, Locked, Node, RawTable};
use crate::{Level, ShardedCounter};
use core::cell::Cell;
use core::fmt;
use core::ops::Deref;
use core::ptr::{self, NonNull};

/// An object of a cache, such as an `Arc`.
pub trait Object: Clone + Send + Sync + 'static {
    /// Data of the user that each shard's lock protects, too ([`CacheShard::side`]), so that a
    /// thread that changes both takes one lock.
    type Side: Default + Send;

    /// Returns the count of its references. It lies in the object, so that it can share a cache
    /// line with other data that the object's users write. It must start at 0, must be used by this
    /// cache only, and must be the same for all clones of an object.
    fn refs(&self) -> &Lockref;

    /// Releases the object's resources that must not wait for the reclamation of its memory. Called
    /// when no reference is left and none can be granted. Lookups without a reference may still
    /// read the object.
    fn depart(&self) {}

    /// Returns whether the object is worth keeping while unreferenced. If not, it is not added to
    /// the LRU lists, and the caller must remove it by its number later. Called under the object's
    /// lock: it must take no lock.
    fn is_worth_keeping(&self) -> bool {
        true
    }
}

/// The target of an `Arc` in a cache.
pub trait OnEvict: Send + Sync + 'static {
    /// See [`Object::Side`].
    type Side: Default + Send;

    /// See [`Object::refs`].
    fn refs(&self) -> &Lockref;

    /// See [`Object::depart`].
    fn depart(&self);

    /// See [`Object::is_worth_keeping`].
    fn is_worth_keeping(&self) -> bool {
        true
    }
}

impl<T: OnEvict> Object for std::sync::Arc<T> {
    type Side = T::Side;

    fn refs(&self) -> &Lockref {
        T::refs(self)
    }

    fn depart(&self) {
        T::depart(self);
    }

    fn is_worth_keeping(&self) -> bool {
        T::is_worth_keeping(self)
    }
}

/// An object's entry: the key for lookups, the state for the cache, and the value.
struct Slot<T: Object> {
    key: u32,
    /// The position on the LRU lists.
    link: Link,
    /// The cache whose table has the object; null if none. Changes under the lock of the object's
    /// count. The cache is not dropped while this is set: dropping it takes that lock, too.
    core: AtomicPtr<Core<T>>,
    /// Looked up since the last walk.
    used: AtomicBool,
    value: T,
}

impl<T: Object> Hashed for Slot<T> {
    /// Hashes the number. Numbers come in runs. The multiplication spreads the runs over the high
    /// bits, which choose the shard. The low bits keep the neighbors of a run in neighboring
    /// buckets of one shard, so that a thread that follows a run uses the same cache lines.
    #[inline]
    fn hash(&self) -> u32 {
        hash(self.key)
    }
}

/// Logarithm of the number of neighbors in one shard: the usual number of inodes in a block of the
/// inode table.
const RUN_BITS: u32 = 4;

#[inline]
fn hash(key: u32) -> u32 {
    let spread = (key >> RUN_BITS).wrapping_mul(0x9e37_79b1);
    spread & 0xfc00_0000 | key & 0x03ff_ffff
}

struct Core<T: Object> {
    table: RawTable<Slot<T>, T::Side>,
    lru: ListLru<u32>,
    len: ShardedCounter,
}

/// A cache of objects by number.
pub struct Cache<T: Object> {
    /// From a box, so that slots can point to it.
    core: NonNull<Core<T>>,
}

// SAFETY: the cache owns the core, and everything in it is shared by locks, atomics and counts.
unsafe impl<T: Object> Send for Cache<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Object> Sync for Cache<T> {}

/// A counted reference to an object, which may be in the table or not.
pub struct Held<T: Object> {
    node: NonNull<Node<Slot<T>>>,
}

// SAFETY: as for `Arc`: it gives shared references, and the thread of the last one may drop the
// value.
unsafe impl<T: Object> Send for Held<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Object> Sync for Held<T> {}

/// A locked shard of the table.
pub struct CacheShard<'a, T: Object> {
    core: NonNull<Core<T>>,
    locked: Locked<'a, Slot<T>, T::Side>,
}

/// The decision of a walk about an unreferenced object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may be evicted.
    Evict,
    /// It is needed: it becomes the newest.
    Keep,
}

impl<T: Object> Slot<T> {
    /// Makes an entry with one reference, the caller's.
    fn new(key: u32, core: *mut Core<T>, value: T) -> Self {
        value.refs().get();
        let core = AtomicPtr::new(core);
        Slot { key, link: Link::new(), core, used: AtomicBool::new(false), value }
    }

    /// Marks the object dead. The caller must hold the lock, and the count must be 0.
    fn kill(&self, mut guard: LockrefGuard<'_>) {
        debug_assert_eq!(guard.count(), 0, "an object dies once, and unused");
        guard.mark_dead();
        self.core.store(ptr::null_mut(), Ordering::Relaxed);
    }

    #[inline]
    fn mark_used(&self) {
        // Relaxed: a hint for eviction. Stored only if it changes, since other threads read the
        // line, too.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether an unreferenced object is in its final place: in the table and on the lists.
    fn is_settled(&self) -> bool {
        self.link.is_linked() && !self.core.load(Ordering::Relaxed).is_null()
    }
}

impl<T: Object> Held<T> {
    /// Makes an object outside of any table, which no lookup finds. It is freed with its last
    /// reference, unless it was put into a table meanwhile ([`CacheShard::enter`]).
    pub fn unlisted(key: u32, value: T) -> Self {
        let node = Box::into_raw(Node::new(Slot::new(key, ptr::null_mut(), value)));
        // SAFETY: the pointer came from a box.
        Held { node: unsafe { NonNull::new_unchecked(node) } }
    }

    #[inline]
    fn slot(&self) -> &Slot<T> {
        // SAFETY: the memory is freed only after the count, which includes this reference, has
        // become negative.
        unsafe { &self.node.as_ref().value }
    }

    /// Returns the object's number.
    pub fn key(&self) -> u32 {
        self.slot().key
    }

    /// Returns the number of references at some recent moment.
    pub fn count(&self) -> usize {
        usize::try_from(self.slot().value.refs().count()).unwrap_or(0)
    }

    /// Returns whether both references are to the same object.
    pub fn same(&self, other: &Self) -> bool {
        self.node == other.node
    }

    /// Lists or frees an object whose count is 0 under the held lock.
    #[cold]
    fn settle(
        slot: &Slot<T>,
        node: NonNull<Node<Slot<T>>>,
        pinned: &Guard,
        guard: LockrefGuard<'_>,
    ) {
        // SAFETY: `core` is set under the held lock, and the cache is not dropped before it is
        // cleared.
        if let Some(core) = unsafe { slot.core.load(Ordering::Relaxed).as_ref() } {
            if slot.value.is_worth_keeping() {
                core.lru.add(&slot.link, slot.key);
            }
            return;
        }
        slot.kill(guard);
        slot.value.depart();
        // SAFETY: the object is in no table, and only the thread that killed it retires it.
        unsafe { pinned.retire(node.as_ptr()) };
    }

    #[inline(never)]
    fn drop_last(&self) {
        let pinned = pin();
        let node = self.node;
        // SAFETY: the epoch was pinned before the reference is given up, so the memory stays.
        let slot = unsafe { &node.as_ref().value };
        let guard = match slot.value.refs().put_return() {
            // 0: this was the last reference, and the lock was free. Positive: other references are
            // left. Negative: the lock is held, and nothing has changed yet.
            0 if slot.is_settled() => return,
            0 => {
                let guard = slot.value.refs().lock();
                if guard.count() != 0 {
                    return;
                }
                guard
            }
            1.. => return,
            _ => {
                let mut guard = slot.value.refs().lock();
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

impl<T: Object> Clone for Held<T> {
    #[inline]
    fn clone(&self) -> Self {
        self.slot().value.refs().get();
        Held { node: self.node }
    }
}

impl<T: Object> Deref for Held<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.slot().value
    }
}

impl<T: Object> Drop for Held<T> {
    #[inline]
    fn drop(&mut self) {
        let refs = self.slot().value.refs();
        if refs.count() <= 1 || !refs.put_not_zero() {
            self.drop_last();
        }
    }
}

impl<T: Object + fmt::Debug> fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Object> Cache<T> {
    /// Makes an empty cache. The locks of its table are of `level`; `shards` is the number of
    /// threads that can change it at once.
    pub fn new(level: Level, shards: usize) -> Self {
        let table = RawTable::new(level, shards, if cfg!(loom) { 1 } else { 16 });
        let core = Box::into_raw(Box::new(Core {
            table,
            lru: ListLru::new(),
            len: ShardedCounter::new(0),
        }));
        // SAFETY: the pointer came from a box.
        Cache { core: unsafe { NonNull::new_unchecked(core) } }
    }

    #[inline]
    fn core(&self) -> &Core<T> {
        // SAFETY: the core lives as long as the cache.
        unsafe { self.core.as_ref() }
    }

    /// Returns a reference to the object of a number. Returns `None` if there is none, or if it is
    /// being evicted; the caller can settle that under the lock.
    #[inline]
    pub fn get(&self, key: u32) -> Option<Held<T>> {
        self.get_pinned(&pin(), key)
    }

    /// As [`Cache::get`], for callers that have pinned the epoch.
    #[inline]
    pub fn get_pinned(&self, pinned: &Guard, key: u32) -> Option<Held<T>> {
        let node = self.core().table.find(pinned, hash(key), |slot| slot.key == key)?;
        hold(node)
    }

    /// Returns the object of a number for inspection while the epoch is pinned, without a
    /// reference. The object may meanwhile leave the table and die.
    #[inline]
    pub fn look<'g>(&'g self, pinned: &'g Guard, key: u32) -> Option<&'g T> {
        let slot = &self.core().table.find(pinned, hash(key), |slot| slot.key == key)?.get().value;
        slot.mark_used();
        Some(&slot.value)
    }

    /// Takes an object that is no longer worth keeping off the LRU lists. It returns to them only
    /// if it is worth keeping when a last reference is dropped.
    pub fn unlist(&self, key: u32) {
        let pinned = pin();
        let Some(found) = self.core().table.find(&pinned, hash(key), |slot| slot.key == key) else {
            return;
        };
        let slot = &found.get().value;
        if slot.link.is_linked() {
            // A last reference that has just found the object worth keeping adds it under this
            // lock.
            let _guard = slot.value.refs().lock();
            if !slot.value.is_worth_keeping() {
                self.core().lru.del(&slot.link);
            }
        }
    }

    /// Locks the shard of a number.
    pub fn lock(&self, key: u32) -> CacheShard<'_, T> {
        CacheShard { core: self.core, locked: self.core().table.lock(hash(key)) }
    }

    /// Returns how many objects ever left the shard of a number, without a lock. A caller that
    /// reads this, then the source of an object, and finds the same number under the lock
    /// ([`CacheShard::removals`]), has read a source that is not older than the last object that
    /// left.
    pub fn removals(&self, key: u32) -> u64 {
        self.core().table.removals(hash(key))
    }

    /// Returns the number of objects in the table. Concurrent insertions and removals may or may
    /// not be counted.
    pub fn len(&self) -> usize {
        usize::try_from(self.core().len.sum()).unwrap_or(0)
    }

    /// Returns whether the table has more than `bound` objects. Cheap enough for frequent calls.
    pub fn exceeds(&self, bound: usize) -> bool {
        self.core().len.at_least(i64::try_from(bound).unwrap_or(i64::MAX).saturating_add(1))
    }

    /// Returns whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of objects on the LRU lists: approximately the unreferenced ones.
    pub fn unused(&self) -> usize {
        self.core().lru.count()
    }

    /// Returns the number of shards, each with a lock of its own.
    pub fn shard_count(&self) -> usize {
        self.core().table.shard_count()
    }

    /// Calls `f` for the side data of each shard, under its lock.
    pub fn each_side(&self, mut f: impl FnMut(&T::Side)) {
        (0..self.shard_count()).for_each(|n| f(&self.core().table.lock_shard(n).totals.side));
    }

    /// Returns references to all objects of a shard. A walk over all shards returns every object
    /// that is in the table from the beginning of the walk to its end exactly once, whatever
    /// changes meanwhile, and holds no lock while the caller works on the objects.
    pub fn all_in_shard(&self, shard: usize) -> Vec<Held<T>> {
        let locked = self.core().table.lock_shard(shard);
        let mut all = Vec::with_capacity(locked.totals.len);
        locked.each(|found| {
            let node = found.pointer();
            if found.get().value.value.refs().get_not_dead() {
                all.push(Held { node });
            }
        });
        all
    }

    /// Examines up to `budget` unreferenced objects, the oldest of each list first, starting with
    /// this thread's list. Evicts those that were not looked up since the last walk and for which
    /// `judge` returns [`Verdict::Evict`].
    pub fn shrink(&self, budget: usize, judge: impl Fn(&T) -> Verdict) -> Vec<Evicted<T>> {
        self.shrink_with(budget, judge, |_, _| ())
    }

    /// As [`Cache::shrink`]. Calls `leave` with the side data of its shard for each evicted object
    /// while that shard is locked, before any lookup can miss it.
    pub fn shrink_with(
        &self,
        budget: usize,
        judge: impl Fn(&T) -> Verdict,
        leave: impl Fn(&mut T::Side, &T),
    ) -> Vec<Evicted<T>> {
        let lru = &self.core().lru;
        let (mut budget, mut dispose, first) = (budget, Vec::new(), crate::shard_index());
        for shard in 0..lru.shards() {
            lru.walk(first + shard, &mut budget, |key, cursor| {
                self.isolate(key, cursor, &judge, &mut dispose)
            });
        }
        dispose.into_iter().filter_map(|key| self.evict(key, &judge, &leave)).collect()
    }

    /// Examines one object of a walk, under the lock of its list.
    fn isolate(
        &self,
        key: u32,
        cursor: &mut Cursor<'_, u32>,
        judge: &impl Fn(&T) -> Verdict,
        dispose: &mut Vec<u32>,
    ) -> Answer {
        let pinned = pin();
        // Threads add to the list under the table's lock, so this must not wait for that lock.
        let Some(found) = self.core().table.try_find(&pinned, hash(key), |slot| slot.key == key)
        else {
            return Answer::Skip;
        };
        let Some(slot) = found.map(|node| &node.get().value).filter(|slot| cursor.at(&slot.link))
        else {
            cursor.isolate_lost();
            return Answer::Removed;
        };
        let Some(guard) = slot.value.refs().try_lock() else { return Answer::Skip };
        if guard.count() != 0 {
            // In use: its last reference adds it again.
            cursor.isolate(&slot.link);
            return Answer::Removed;
        }
        let kept = slot.used.swap(false, Ordering::Relaxed) || judge(&slot.value) == Verdict::Keep;
        if kept {
            return Answer::Rotate;
        }
        cursor.isolate_move(&slot.link, dispose);
        Answer::Removed
    }

    /// Evicts an isolated object unless it was referenced meanwhile. Its last reference adds a
    /// referenced one to the lists again.
    fn evict(
        &self,
        key: u32,
        judge: &impl Fn(&T) -> Verdict,
        leave: &impl Fn(&mut T::Side, &T),
    ) -> Option<Evicted<T>> {
        let mut shard = self.lock(key);
        let spared = Cell::new(false);
        let evicted = shard.remove_with(key, |side, count, value| {
            spared.set(count == 0 && judge(value) == Verdict::Keep);
            let goes = count == 0 && !spared.get();
            if goes {
                leave(side, value);
            }
            goes
        });
        if spared.get()
            && let Some(held) = shard.get(key)
        {
            // This reference, as the last one, adds the object to the lists again.
            drop(shard);
            drop(held);
        }
        evicted
    }
}

/// Makes a reference to the result of a lookup. Returns `None` if the object is dead.
#[inline]
fn hold<T: Object>(found: Found<'_, Slot<T>>) -> Option<Held<T>> {
    let node = found.pointer();
    let slot = &found.get().value;
    if !slot.value.refs().get_not_dead() {
        return None;
    }
    slot.mark_used();
    Some(Held { node })
}

impl<T: Object> CacheShard<'_, T> {
    /// Returns how many objects ever left this shard.
    pub fn removals(&self) -> u64 {
        self.locked.removals()
    }

    /// Returns the data beside this shard's objects. No reference to an object of the cache may be
    /// dropped while the shard is locked.
    pub fn side(&mut self) -> &mut T::Side {
        &mut self.locked.totals.side
    }

    /// Returns a reference to the object of a number. The number must belong to this shard.
    pub fn get(&self, key: u32) -> Option<Held<T>> {
        hold(self.locked.find(hash(key), |slot| slot.key == key)?)
    }

    /// Puts an object into the table and returns a reference to it. An object that had the number
    /// before leaves the table; it is returned if it had no references.
    pub fn insert(&mut self, key: u32, value: T) -> (Held<T>, Option<Evicted<T>>) {
        let before = self.remove_if(key, |_, _| true);
        let node = self.locked.insert(Node::new(Slot::new(key, self.core.as_ptr(), value)));
        // SAFETY: a cache's shard borrows the cache.
        unsafe { self.core.as_ref() }.len.add(1);
        (Held { node }, before)
    }

    /// Puts an object that was made outside of the table ([`Held::unlisted`]) into it, unless it is
    /// there already. An object that had the number before leaves the table, as with
    /// [`CacheShard::insert`]. An object that was removed from a table should not be put back: a
    /// lookup in progress might miss other objects.
    pub fn enter(&mut self, held: &Held<T>) -> Option<Evicted<T>> {
        let slot = held.slot();
        // Relaxed: all threads that put the object into the table or remove it lock this shard.
        if !slot.core.load(Ordering::Relaxed).is_null() {
            return None;
        }
        let before = self.remove_if(slot.key, |_, _| true);
        {
            // A thread that drops the last reference afterwards finds the cache under this lock.
            let _guard = slot.value.refs().lock();
            slot.core.store(self.core.as_ptr(), Ordering::Relaxed);
        }
        // SAFETY: the node is in no table, and the reference keeps it alive. From here on, the last
        // reference leaves it to the cache.
        unsafe { self.locked.put(held.node) };
        // SAFETY: a cache's shard borrows the cache.
        unsafe { self.core.as_ref() }.len.add(1);
        before
    }

    /// Removes an object from the table if `accepts` returns true for its number of references and
    /// its value. Returns the object if it had no references.
    pub fn remove_if(
        &mut self,
        key: u32,
        mut accepts: impl FnMut(usize, &T) -> bool,
    ) -> Option<Evicted<T>> {
        self.remove_with(key, |_, count, value| accepts(count, value))
    }

    fn remove_with(
        &mut self,
        key: u32,
        mut accepts: impl FnMut(&mut T::Side, usize, &T) -> bool,
    ) -> Option<Evicted<T>> {
        let node = self.locked.find(hash(key), |slot| slot.key == key)?.pointer();
        let pinned = pin();
        // SAFETY: the node is in the table, and the epoch is pinned.
        let slot = unsafe { &node.as_ref().value };
        let guard = slot.value.refs().lock();
        let count = usize::try_from(guard.count()).unwrap_or(0);
        if !accepts(self.side(), count, &slot.value) {
            return None;
        }
        // SAFETY: a cache's shard borrows the cache.
        let core = unsafe { self.core.as_ref() };
        core.lru.del(&slot.link);
        core.len.sub(1);
        // Before the lock is released: a last reference that is dropped afterwards retires the
        // memory.
        self.locked.unlink(hash(key), |slot| slot.key == key);
        if guard.count() > 0 {
            slot.core.store(ptr::null_mut(), Ordering::Relaxed);
            return None;
        }
        slot.kill(guard);
        let value = slot.value.clone();
        // SAFETY: the node is off its chain, and dead: there are no references, so no other thread
        // retires it.
        unsafe { pinned.retire(node.as_ptr()) };
        Some(Evicted(value))
    }
}

/// An object that has left a cache for good. Dropping it calls [`Object::depart`]; the caller
/// should hold no lock then.
#[derive(Debug)]
pub struct Evicted<T: Object>(T);

impl<T: Object> Drop for Evicted<T> {
    fn drop(&mut self) {
        self.0.depart();
    }
}

impl<T: Object> Drop for Cache<T> {
    fn drop(&mut self) {
        let mut values = Vec::new();
        for shard in 0..self.shard_count() {
            let mut keys = Vec::new();
            self.core().table.lock_shard(shard).each(|node| keys.push(node.get().value.key));
            values.extend(
                keys.into_iter().filter_map(|key| self.lock(key).remove_if(key, |_, _| true)),
            );
        }
        // SAFETY: the table is empty, so no slot points to the core any more, and this is the only
        // access to the cache.
        drop(unsafe { Box::from_raw(self.core.as_ptr()) });
        drop(values);
    }
}

impl<T: Object> fmt::Debug for Cache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("len", &self.len()).field("unused", &self.unused()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
