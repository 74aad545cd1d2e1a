//! Objects by number: found without a lock, counted while somebody has them, kept afterwards until
//! memory is wanted.
//!
//! # Invariants
//! - An object is in the table at most once for a number; while it is, `core` points to the cache,
//!   and the count may be 0. It leaves the table under its shard's lock and its own. Whether it
//!   stays alive is then a matter of the count: with none it is dead, else the last reference frees
//!   it.
//! - An object is dead once its count is negative; then nobody gets a reference any more. The one
//!   who marked it dead tells it so ([`Object::depart`]); its value and memory go by epoch, since a
//!   lookup may be looking at it.
//! - An object in the table that nobody has a reference to is on the LRU lists, but for moments:
//!   between a last reference's going and its putting the object there, and while a walk that has
//!   isolated it decides. One that is not worth keeping need not be on them.
//! - An object that was never put into the table needs neither its lock nor the lists'. Whoever has
//!   a reference to it may put it there: as long as he has that, it cannot be the last one that
//!   goes.
//!
//! # Locking
//! Shard of the table > the object's own lock (its count stands still) > a shard of the lists. A
//! walk over the lists goes the other way, so it only tries an object's lock, and evicts after the
//! walk, from the table's shard on.
//!
//! # The last reference
//! It goes without the lock. What is in the table and on the lists needs nothing more: that was so
//! at a moment after the count became 0, and everybody who changes it afterwards looks at the count
//! under the lock. Otherwise the lock is taken, and if the count is 0 still, the object goes to the
//! lists, or is freed. Looking at the object after its count became 0 needs a pinned epoch.
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

/// What a cache keeps, such as an `Arc`.
pub trait Object: Clone + Send + Sync + 'static {
    /// The count of its references: with the object, so that what else users of it write can lie on
    /// the same line of a cache. It starts at 0, is this cache's, and is of one object however
    /// often that is cloned.
    fn refs(&self) -> &Lockref;

    /// Nobody has a reference or gets one any more: what should not wait for the memory to go is
    /// given back. Whoever looks at the object without a reference may still do so.
    fn depart(&self) {}

    /// Whether it is worth keeping when nobody has a reference. If not, it is not put on the LRU
    /// lists: somebody takes it out by its number before long. Asked under the object's lock: it
    /// must take none.
    fn is_worth_keeping(&self) -> bool {
        true
    }
}

/// What an `Arc` in a cache points to.
pub trait OnEvict: Send + Sync + 'static {
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

/// An object's place: what lookups compare, what counts, and the value.
struct Slot<T: Object> {
    key: u32,
    /// On the LRU lists.
    link: Link,
    /// The cache whose table the object is in; null if in none. Changes under its count's lock, and
    /// the cache is not dropped as long as it is set: dropping it takes that lock, too.
    core: AtomicPtr<Core<T>>,
    /// Looked up since a walk came by.
    used: AtomicBool,
    value: T,
}

impl<T: Object> Hashed for Slot<T> {
    /// Numbers come in runs: multiplying spreads them over the high bits, which choose the shard,
    /// and the low ones keep a run's neighbours in neighbouring buckets of one shard, so that who
    /// goes along a run meets the same lines of a cache.
    #[inline]
    fn hash(&self) -> u32 {
        hash(self.key)
    }
}

/// Neighbours in one shard, by powers of two: as many inodes as a block of a table usually holds.
const RUN_BITS: u32 = 4;

#[inline]
fn hash(key: u32) -> u32 {
    let spread = (key >> RUN_BITS).wrapping_mul(0x9e37_79b1);
    spread & 0xfc00_0000 | key & 0x03ff_ffff
}

struct Core<T: Object> {
    table: RawTable<Slot<T>>,
    lru: ListLru<u32>,
    len: ShardedCounter,
}

/// Objects by number.
pub struct Cache<T: Object> {
    /// From a box, so that slots can point to it.
    core: NonNull<Core<T>>,
}

// SAFETY: the core is the cache's own, and everything in it is shared by locks, atomics and counts.
unsafe impl<T: Object> Send for Cache<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Object> Sync for Cache<T> {}

/// A counted reference to an object, in the table or not.
pub struct Held<T: Object> {
    node: NonNull<Node<Slot<T>>>,
}

// SAFETY: as `Arc`: it gives shared references, and the last one's thread may drop the value.
unsafe impl<T: Object> Send for Held<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Object> Sync for Held<T> {}

/// A locked part of the table.
pub struct CacheShard<'a, T: Object> {
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

impl<T: Object> Slot<T> {
    /// With one reference, the maker's.
    fn new(key: u32, core: *mut Core<T>, value: T) -> Self {
        value.refs().get();
        let core = AtomicPtr::new(core);
        Slot { key, link: Link::new(), core, used: AtomicBool::new(false), value }
    }

    /// The object dies. The caller holds the lock, and nobody has a count.
    fn kill(&self, mut guard: LockrefGuard<'_>) {
        debug_assert_eq!(guard.count(), 0, "an object dies once, and unused");
        guard.mark_dead();
        self.core.store(ptr::null_mut(), Ordering::Relaxed);
    }

    #[inline]
    fn mark_used(&self) {
        // Relaxed: a hint for eviction. Stored only where it changes something, since others look
        // here, too.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether an unused object has nothing to be done with it.
    fn is_settled(&self) -> bool {
        self.link.is_linked() && !self.core.load(Ordering::Relaxed).is_null()
    }
}

impl<T: Object> Held<T> {
    /// An object that no table has, since nobody looks it up by its number. It goes with its last
    /// reference, unless it was put into a table meanwhile ([`CacheShard::enter`]).
    pub fn unlisted(key: u32, value: T) -> Self {
        let node = Box::into_raw(Node::new(Slot::new(key, ptr::null_mut(), value)));
        // SAFETY: it came from a box.
        Held { node: unsafe { NonNull::new_unchecked(node) } }
    }

    #[inline]
    fn slot(&self) -> &Slot<T> {
        // SAFETY: memory goes only after the count, which this reference is part of, has become
        // negative.
        unsafe { &self.node.as_ref().value }
    }

    /// The object's number.
    pub fn key(&self) -> u32 {
        self.slot().key
    }

    /// References to the object, a moment ago.
    pub fn count(&self) -> usize {
        usize::try_from(self.slot().value.refs().count()).unwrap_or(0)
    }

    /// Whether both refer to the same object.
    pub fn same(&self, other: &Self) -> bool {
        self.node == other.node
    }

    /// The count is 0 or is made so by the caller's reference, and the lock is held.
    #[cold]
    fn settle(
        slot: &Slot<T>,
        node: NonNull<Node<Slot<T>>>,
        pinned: &Guard,
        guard: LockrefGuard<'_>,
    ) {
        // SAFETY: set under the lock that is held, and the cache is not dropped before it was
        // cleared.
        if let Some(core) = unsafe { slot.core.load(Ordering::Relaxed).as_ref() } {
            if slot.value.is_worth_keeping() {
                core.lru.add(&slot.link, slot.key);
            }
            return;
        }
        slot.kill(guard);
        slot.value.depart();
        // SAFETY: it is in no table, and only the one who killed it retires it.
        unsafe { pinned.retire(node.as_ptr()) };
    }

    #[inline(never)]
    fn drop_last(&self) {
        let pinned = pin();
        let node = self.node;
        // SAFETY: the epoch is pinned from before the count is given up, so the memory stays.
        let slot = unsafe { &node.as_ref().value };
        let guard = match slot.value.refs().put_return() {
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
    /// An empty cache. Its table's locks are of `level`; `shards` is how many threads may change it
    /// at once.
    pub fn new(level: Level, shards: usize) -> Self {
        let table = RawTable::new(level, shards, if cfg!(loom) { 1 } else { 16 });
        let core = Box::into_raw(Box::new(Core {
            table,
            lru: ListLru::new(),
            len: ShardedCounter::new(0),
        }));
        // SAFETY: it came from a box.
        Cache { core: unsafe { NonNull::new_unchecked(core) } }
    }

    #[inline]
    fn core(&self) -> &Core<T> {
        // SAFETY: it lives as long as the cache.
        unsafe { self.core.as_ref() }
    }

    /// The object of a number. None if there is none, or it is just being evicted: under the lock
    /// that is settled.
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

    /// The object of a number, to be looked at while the epoch is pinned. It may leave the table
    /// meanwhile, and die.
    #[inline]
    pub fn look<'g>(&'g self, pinned: &'g Guard, key: u32) -> Option<&'g T> {
        let slot = &self.core().table.find(pinned, hash(key), |slot| slot.key == key)?.get().value;
        slot.mark_used();
        Some(&slot.value)
    }

    /// An object is not worth keeping any more: it leaves the LRU lists, and comes back to them
    /// only if it is again when a last reference goes.
    pub fn unlist(&self, key: u32) {
        let pinned = pin();
        let Some(found) = self.core().table.find(&pinned, hash(key), |slot| slot.key == key) else {
            return;
        };
        let slot = &found.get().value;
        if slot.link.is_linked() {
            // The last reference that has just found it worth keeping puts it there under this
            // lock.
            let _guard = slot.value.refs().lock();
            if !slot.value.is_worth_keeping() {
                self.core().lru.del(&slot.link);
            }
        }
    }

    /// Locks the part of the table that a number is in.
    pub fn lock(&self, key: u32) -> CacheShard<'_, T> {
        CacheShard { core: self.core, locked: self.core().table.lock(hash(key)) }
    }

    /// How many objects ever left the part of the table that a number is in.
    pub fn removals(&self, key: u32) -> u64 {
        self.core().table.lock(hash(key)).totals.removals
    }

    /// Objects in the table; those that come and go meanwhile may or may not be counted.
    pub fn len(&self) -> usize {
        usize::try_from(self.core().len.sum()).unwrap_or(0)
    }

    /// Whether more than `bound` objects are in the table, to be asked often.
    pub fn exceeds(&self, bound: usize) -> bool {
        self.core().len.at_least(i64::try_from(bound).unwrap_or(i64::MAX).saturating_add(1))
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

    /// References to all objects of one part. A walk over all parts meets every object that is in
    /// the table from its beginning to its end exactly once, whatever changes meanwhile, and holds
    /// no lock while it works on them.
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

    /// Looks at up to `budget` objects that nobody uses, the oldest of each list first, starting
    /// with this thread's list, and evicts those that were not looked up since the last time and
    /// that `judge` lets go.
    pub fn shrink(&self, budget: usize, judge: impl Fn(&T) -> Verdict) -> Vec<Evicted<T>> {
        self.shrink_with(budget, judge, |_| ())
    }

    /// As [`Cache::shrink`]. What goes is shown to `leave` before anybody can miss it: while its
    /// part of the table is locked.
    pub fn shrink_with(
        &self,
        budget: usize,
        judge: impl Fn(&T) -> Verdict,
        leave: impl Fn(&T),
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

    /// What a walk does with one object.
    fn isolate(
        &self,
        key: u32,
        cursor: &mut Cursor<'_, u32>,
        judge: &impl Fn(&T) -> Verdict,
        dispose: &mut Vec<u32>,
    ) -> Answer {
        let pinned = pin();
        // Others add to the list under the table's lock: not waited for here.
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
            // In use: its last reference puts it back.
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

    /// Evicts an isolated object if nobody has come for it meanwhile. One in use is put back by its
    /// last reference.
    fn evict(
        &self,
        key: u32,
        judge: &impl Fn(&T) -> Verdict,
        leave: &impl Fn(&T),
    ) -> Option<Evicted<T>> {
        let mut shard = self.lock(key);
        let spared = Cell::new(false);
        let evicted = shard.remove_if(key, |count, value| {
            spared.set(count == 0 && judge(value) == Verdict::Keep);
            let goes = count == 0 && !spared.get();
            if goes {
                leave(value);
            }
            goes
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
    /// How many objects ever left this part of the table.
    pub fn removals(&self) -> u64 {
        self.locked.totals.removals
    }

    /// The object of a number that is in this part.
    pub fn get(&self, key: u32) -> Option<Held<T>> {
        hold(self.locked.find(hash(key), |slot| slot.key == key)?)
    }

    /// Puts an object into the table. What had its number before leaves the table; it comes back if
    /// nobody has it.
    pub fn insert(&mut self, key: u32, value: T) -> (Held<T>, Option<Evicted<T>>) {
        let before = self.remove_if(key, |_, _| true);
        let node = self.locked.insert(Node::new(Slot::new(key, self.core.as_ptr(), value)));
        // SAFETY: a cache's shard borrows the cache.
        unsafe { self.core.as_ref() }.len.add(1);
        (Held { node }, before)
    }

    /// Puts an object into the table that was made outside of it ([`Held::unlisted`]), unless that
    /// was done already. What had its number before leaves the table, as with
    /// [`CacheShard::insert`]. One that was taken out of a table should not come back: a lookup
    /// under way might miss others.
    pub fn enter(&mut self, held: &Held<T>) -> Option<Evicted<T>> {
        let slot = held.slot();
        // Relaxed: who puts it into the table or takes it out has locked this shard.
        if !slot.core.load(Ordering::Relaxed).is_null() {
            return None;
        }
        let before = self.remove_if(slot.key, |_, _| true);
        {
            // Whoever gives the last reference up afterwards finds the cache under this lock.
            let _guard = slot.value.refs().lock();
            slot.core.store(self.core.as_ptr(), Ordering::Relaxed);
        }
        // SAFETY: it is in no table, and the reference keeps it; from here on the last one leaves
        // it to the cache.
        unsafe { self.locked.put(held.node) };
        // SAFETY: a cache's shard borrows the cache.
        unsafe { self.core.as_ref() }.len.add(1);
        before
    }

    /// Takes an object out of the table if `accepts` says so of its references and itself; it comes
    /// back if nobody has a reference.
    pub fn remove_if(
        &mut self,
        key: u32,
        mut accepts: impl FnMut(usize, &T) -> bool,
    ) -> Option<Evicted<T>> {
        let node = self.locked.find(hash(key), |slot| slot.key == key)?.pointer();
        let pinned = pin();
        // SAFETY: it is in the table, and the epoch is pinned.
        let slot = unsafe { &node.as_ref().value };
        let guard = slot.value.refs().lock();
        if !accepts(usize::try_from(guard.count()).unwrap_or(0), &slot.value) {
            return None;
        }
        // SAFETY: a cache's shard borrows the cache.
        let core = unsafe { self.core.as_ref() };
        core.lru.del(&slot.link);
        core.len.sub(1);
        // Before the lock is given back: a last reference that comes then retires the memory.
        self.locked.unlink(hash(key), |slot| slot.key == key);
        if guard.count() > 0 {
            slot.core.store(ptr::null_mut(), Ordering::Relaxed);
            return None;
        }
        slot.kill(guard);
        let value = slot.value.clone();
        // SAFETY: off its chain, and dead: nobody has a count, so nobody else retires it.
        unsafe { pinned.retire(node.as_ptr()) };
        Some(Evicted(value))
    }
}

/// An object that has left a cache for good. Dropping this tells it so; no lock should be held
/// then.
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
        // SAFETY: the table is empty: no slot points to the core any more, and nobody else has the
        // cache.
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
