//! The memory management of a hash table that is read without a lock and grows.
//!
//! # Invariants
//! - A node is on at most one chain. It is added, moved and removed only under its shard's lock.
//! - A removed node keeps its `next`, so that a reader at the node can continue. The node is
//!   retired by epoch. The node that `next` points to was not retired before the reader at the
//!   removed node was pinned.
//! - While a shard grows, `moves` is odd. A reader whose node is moved may continue on another
//!   chain. A value that it finds there is still correct, since keys are compared. After finding
//!   nothing, it searches again under the lock. Chains never have cycles: a moved node points to
//!   nodes moved before it.
//!
//! For example, a reader stands on node 8 and looks for node 4 behind it. A growth moves node 8 to
//! another chain, so the reader reaches the end of that chain. It sees that `moves` has changed,
//! and searches again under the lock.
//!
//! # Memory order
//! Every pointer to a node is stored with release and loaded with acquire, so a reader sees the
//! node whole. A reader that followed a pointer stored by a growth sees `moves` odd or later,
//! because the growth stores the counter before the pointer.
#![expect(unsafe_code, reason = "nodes are reached by pointers that locks and epochs keep valid")]

use super::Hashed;
use crate::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use crate::epoch::{Guard, pin};
use crate::{CachePadded, Level, Mutex, MutexGuard};
use core::marker::PhantomData;
use core::ptr;

/// A value on a chain.
#[derive(Debug)]
pub(crate) struct Node<T> {
    next: AtomicPtr<Node<T>>,
    pub(crate) value: T,
}

impl<T> Node<T> {
    pub(crate) fn new(value: T) -> Box<Self> {
        Box::new(Node { next: AtomicPtr::new(ptr::null_mut()), value })
    }
}

/// A node found by a lookup, as the chain's own pointer: the thread that retires the node later may
/// write through this pointer, but not through one derived from a reference.
#[derive(Debug)]
pub(crate) struct Found<'g, T> {
    node: ptr::NonNull<Node<T>>,
    /// For the lifetime of the node.
    stays: PhantomData<&'g Node<T>>,
}

impl<'g, T> Found<'g, T> {
    pub(crate) fn pointer(&self) -> ptr::NonNull<Node<T>> {
        self.node
    }

    #[inline(always)]
    pub(crate) fn get(self) -> &'g Node<T> {
        // SAFETY: the maker of this value ensured that the node stays for `'g`.
        unsafe { self.node.as_ref() }
    }
}

type Head<T> = AtomicPtr<Node<T>>;

#[derive(Debug)]
struct Buckets<T> {
    /// The length is a power of two.
    heads: Box<[Head<T>]>,
}

impl<T> Buckets<T> {
    fn new(count: usize) -> Self {
        Buckets {
            heads: (0..count.next_power_of_two())
                .map(|_| AtomicPtr::new(ptr::null_mut()))
                .collect(),
        }
    }

    #[inline]
    fn head(&self, hash: u32) -> &Head<T> {
        &self.heads[hash as usize & (self.heads.len() - 1)]
    }
}

/// The data that a shard's lock protects besides the chains.
#[derive(Debug, Default)]
pub(crate) struct Totals<S> {
    pub(crate) len: usize,
    /// The user's own.
    pub(crate) side: S,
}

/// The parts of a shard that changes write.
#[derive(Debug)]
struct Changed<S> {
    totals: Mutex<Totals<S>>,
    /// Number of nodes ever removed. Changed under the lock, after the node has left its chain, and
    /// read without it.
    removals: AtomicU64,
}

#[derive(Debug)]
struct Shard<T, S> {
    /// On cache lines of their own, since lookups read the fields below.
    changed: CachePadded<Changed<S>>,
    moves: AtomicU32,
    buckets: AtomicPtr<Buckets<T>>,
}

/// Chains of nodes by hash. The table owns the nodes on its chains.
#[derive(Debug)]
pub(crate) struct RawTable<T: Send + Sync + 'static, S = ()> {
    /// The length is a power of two.
    shards: Box<[Shard<T, S>]>,
    /// Number of bits of a hash below those of the shard.
    shift: u32,
}

/// A locked shard.
pub(crate) struct Locked<'a, T: Send + Sync + 'static, S = ()> {
    shard: &'a Shard<T, S>,
    pub(crate) totals: MutexGuard<'a, Totals<S>>,
}

impl<T: Hashed + Send + Sync + 'static, S: Default> RawTable<T, S> {
    pub(crate) fn new(level: Level, shards: usize, buckets: usize) -> Self {
        let shards = shards.clamp(1, 1 << 16).next_power_of_two();
        let shard = |_| {
            let buckets = AtomicPtr::new(Box::into_raw(Box::new(Buckets::new(buckets))));
            let totals = Mutex::new(level, Totals::default());
            Shard {
                changed: CachePadded::new(Changed { totals, removals: AtomicU64::new(0) }),
                moves: AtomicU32::new(0),
                buckets,
            }
        };
        RawTable {
            shards: (0..shards).map(shard).collect(),
            shift: u32::BITS - shards.trailing_zeros(),
        }
    }

    pub(crate) fn shard_count(&self) -> usize {
        self.shards.len()
    }

    #[inline]
    pub(crate) fn shard_of(&self, hash: u32) -> usize {
        (u64::from(hash) >> self.shift) as usize
    }

    fn shard(&self, hash: u32) -> &Shard<T, S> {
        &self.shards[self.shard_of(hash)]
    }

    /// Returns the first node with this hash for which `is` returns true.
    #[inline(always)]
    pub(crate) fn find<'g>(
        &'g self,
        _pinned: &'g Guard,
        hash: u32,
        mut is: impl FnMut(&T) -> bool,
    ) -> Option<Found<'g, T>> {
        let shard = self.shard(hash);
        let moves = shard.moves.load(Ordering::Acquire);
        // SAFETY: buckets and nodes that are reachable while the thread is pinned stay until it
        // unpins.
        let found = unsafe { shard.look(hash, &mut is) };
        if found.is_some() {
            return found;
        }
        fence(Ordering::Acquire);
        if moves & 1 == 0 && shard.moves.load(Ordering::Relaxed) == moves {
            None
        } else {
            self.find_locked(hash, is)
        }
    }

    /// As [`RawTable::find`], for callers that must not wait for the shard. The outer `None` means
    /// that the shard is growing.
    pub(crate) fn try_find<'g>(
        &'g self,
        _pinned: &'g Guard,
        hash: u32,
        mut is: impl FnMut(&T) -> bool,
    ) -> Option<Option<Found<'g, T>>> {
        let shard = self.shard(hash);
        let moves = shard.moves.load(Ordering::Acquire);
        // SAFETY: as in `find`.
        let found = unsafe { shard.look(hash, &mut is) };
        fence(Ordering::Acquire);
        let sure =
            found.is_some() || (moves & 1 == 0 && shard.moves.load(Ordering::Relaxed) == moves);
        sure.then_some(found)
    }

    #[cold]
    fn find_locked(&self, hash: u32, mut is: impl FnMut(&T) -> bool) -> Option<Found<'_, T>> {
        let shard = self.shard(hash);
        let _locked = shard.changed.totals.lock();
        // SAFETY: the caller is pinned, see `find`.
        unsafe { shard.look(hash, &mut is) }
    }

    /// Returns how many nodes ever left the shard of a hash, without a lock. Acquire: a caller that
    /// sees the number also sees all that happened before these removals.
    pub(crate) fn removals(&self, hash: u32) -> u64 {
        self.shard(hash).changed.removals.load(Ordering::Acquire)
    }

    pub(crate) fn lock(&self, hash: u32) -> Locked<'_, T, S> {
        let shard = self.shard(hash);
        Locked { shard, totals: shard.changed.totals.lock() }
    }

    pub(crate) fn try_lock(&self, hash: u32) -> Option<Locked<'_, T, S>> {
        let shard = self.shard(hash);
        shard.changed.totals.try_lock().map(|totals| Locked { shard, totals })
    }

    pub(crate) fn lock_shard(&self, index: usize) -> Locked<'_, T, S> {
        let shard = &self.shards[index & (self.shards.len() - 1)];
        Locked { shard, totals: shard.changed.totals.lock() }
    }
}

impl<T: Hashed, S> Shard<T, S> {
    /// Searches the chain of `hash`.
    ///
    /// # Safety
    /// The thread must be pinned for `'g`, or must hold the shard's lock for `'g`.
    #[inline(always)]
    unsafe fn look<'g>(&self, hash: u32, is: &mut impl FnMut(&T) -> bool) -> Option<Found<'g, T>> {
        // SAFETY: buckets are never null and are retired by epoch.
        let buckets = unsafe { &*self.buckets.load(Ordering::Acquire) };
        let mut at = buckets.head(hash).load(Ordering::Acquire);
        while let Some(found) = ptr::NonNull::new(at) {
            // SAFETY: nodes reached through a chain are alive, see the invariants.
            let node = unsafe { found.as_ref() };
            if node.value.hash() == hash && is(&node.value) {
                return Some(Found { node: found, stays: PhantomData });
            }
            at = node.next.load(Ordering::Acquire);
        }
        None
    }
}

impl<T: Hashed + Send + Sync + 'static, S> Locked<'_, T, S> {
    /// Returns how many nodes ever left this shard.
    pub(crate) fn removals(&self) -> u64 {
        self.shard.changed.removals.load(Ordering::Relaxed)
    }

    pub(crate) fn find(&self, hash: u32, mut is: impl FnMut(&T) -> bool) -> Option<Found<'_, T>> {
        // SAFETY: the shard is locked, and nodes are removed only through `&mut self`.
        unsafe { self.shard.look(hash, &mut is) }
    }

    fn buckets(&self) -> &Buckets<T> {
        // SAFETY: never null, and replaced only under the lock.
        unsafe { &*self.shard.buckets.load(Ordering::Relaxed) }
    }

    pub(crate) fn insert(&mut self, node: Box<Node<T>>) -> ptr::NonNull<Node<T>> {
        // SAFETY: the node comes from a box, so this is the only access to it.
        unsafe {
            let node = ptr::NonNull::new_unchecked(Box::into_raw(node));
            self.put(node);
            node
        }
    }

    /// Puts a node that is already referenced onto its chain. It should never have been on a chain:
    /// a reader at a node that returns continues along another chain, and misses the rest of its
    /// own.
    ///
    /// # Safety
    /// The node must come from a box, must be on no chain, and must not be retired while it is on
    /// this one.
    pub(crate) unsafe fn put(&mut self, node: ptr::NonNull<Node<T>>) {
        if self.totals.len >= self.buckets().heads.len() {
            self.grow();
        }
        self.totals.len += 1;
        // SAFETY: by the caller's promise, the node is alive.
        let own = unsafe { node.as_ref() };
        let head = self.buckets().head(own.value.hash());
        own.next.store(head.load(Ordering::Relaxed), Ordering::Relaxed);
        head.store(node.as_ptr(), Ordering::Release);
    }

    /// Removes a node from its chain and passes it to the caller, which must retire it.
    pub(crate) fn unlink(
        &mut self,
        hash: u32,
        mut is: impl FnMut(&T) -> bool,
    ) -> Option<ptr::NonNull<Node<T>>> {
        let mut link = self.buckets().head(hash);
        let found = loop {
            let at = ptr::NonNull::new(link.load(Ordering::Relaxed))?;
            // SAFETY: the shard is locked, so nodes on its chains stay.
            let node = unsafe { at.as_ref() };
            if node.value.hash() == hash && is(&node.value) {
                link.store(node.next.load(Ordering::Relaxed), Ordering::Release);
                break at;
            }
            link = &node.next;
        };
        self.totals.len -= 1;
        // Release: see `RawTable::removals`. The lock excludes other writers.
        self.shard.changed.removals.store(self.removals().wrapping_add(1), Ordering::Release);
        Some(found)
    }

    pub(crate) fn each(&self, mut f: impl FnMut(Found<'_, T>)) {
        for head in &self.buckets().heads {
            let mut at = head.load(Ordering::Relaxed);
            while let Some(node) = ptr::NonNull::new(at) {
                f(Found { node, stays: PhantomData });
                // SAFETY: the shard is locked.
                at = unsafe { node.as_ref() }.next.load(Ordering::Relaxed);
            }
        }
    }

    /// Multiplies the number of buckets by four. Moving a node requires a read of it; with this
    /// factor each node is moved a third of a time on average.
    #[cold]
    fn grow(&mut self) {
        let moves = self.shard.moves.load(Ordering::Relaxed);
        self.shard.moves.store(moves.wrapping_add(1), Ordering::Relaxed);
        let old = self.shard.buckets.load(Ordering::Relaxed);
        // Readers may follow the old chains while their nodes are moved to the new ones.
        let new = Buckets::new(self.buckets().heads.len() * 4);
        for head in &self.buckets().heads {
            let mut at = head.load(Ordering::Relaxed);
            // SAFETY: the shard is locked.
            while let Some(node) = unsafe { at.as_ref() } {
                let next = node.next.load(Ordering::Relaxed);
                let head = new.head(node.value.hash());
                // Release: a reader that follows this pointer sees `moves` odd.
                node.next.store(head.load(Ordering::Relaxed), Ordering::Release);
                head.store(at, Ordering::Relaxed);
                at = next;
            }
        }
        self.shard.buckets.store(Box::into_raw(Box::new(new)), Ordering::Release);
        self.shard.moves.store(moves.wrapping_add(2), Ordering::Release);
        // SAFETY: the array came from a box and is not reachable any more.
        unsafe { pin().retire(old) };
    }
}

// SAFETY: the table owns the nodes that its pointers lead to: any thread with the table shares and
// drops them.
unsafe impl<T: Send + Sync, S: Send> Send for RawTable<T, S> {}
// SAFETY: as for `Send`; `S` is reached under a lock only.
unsafe impl<T: Send + Sync, S: Send> Sync for RawTable<T, S> {}
// SAFETY: as for the table: any thread may drop a retired node or array of heads.
unsafe impl<T: Send + Sync> Send for Node<T> {}

impl<T: Send + Sync + 'static, S> Drop for RawTable<T, S> {
    fn drop(&mut self) {
        for shard in &self.shards {
            let buckets = shard.buckets.load(Ordering::Relaxed);
            // SAFETY: this is the only access to the table. Each allocation came from a box and is
            // freed once.
            unsafe {
                for head in &(*buckets).heads {
                    let mut at = head.load(Ordering::Relaxed);
                    while !at.is_null() {
                        let node = Box::from_raw(at);
                        at = node.next.load(Ordering::Relaxed);
                    }
                }
                drop(Box::from_raw(buckets));
            }
        }
    }
}
