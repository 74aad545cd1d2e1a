//! The inode cache: at most one inode in memory for each number, bounded. Lookups take no lock.
//!
//! # Invariants
//! - An inode leaves the cache only when it has no other user: no [`InodeRef`], and no `Arc` except
//!   that of the cache. A thread that loads it again reads a slot that the freeze of a transaction
//!   has updated, since the dirty list holds an `Arc` until then. This applies to freed inodes,
//!   too: they stay in the cache, and lookups refuse them, until their slot says that they are free
//!   or another inode has their number.
//! - An `Arc` of an inode is created only from a reference or another `Arc`. (Page pools keep weak
//!   ones, which give access only to pages and claims. Eviction drops those anyway.) So while the
//!   cache's lock keeps the count of references at 0 and there is one `Arc`, no other thread has
//!   the inode or can get it.
//! - A load that overlaps with a removal in its shard is repeated, since it may have read an old
//!   slot.
//! - An inode without a name whose number no caller knows is not in the cache: the [`TmpfileTable`]
//!   of its shard has a reference to it. It enters the cache once, before it gets a name, or when
//!   its number is given to a caller that may look it up. Until then a lookup of its number fails
//!   as that of a freed inode does.
//! - The holds of an inode that is not in memory are in [`EvictedHolds`] of its shard. They move
//!   there when the inode leaves, and back when it is loaded. A held inode leaves only while it has
//!   links: the release of its last hold then requires no action.
//!
//! # Locking
//! A lookup takes no lock. A shard's lock is held for a change only; slots are read without it. It
//! protects the shard's part of the cache, its inodes without a name and its holds, so a miss, and
//! an inode that comes or goes, take one lock.
//!
//! # The slot of an inode without a name
//! A miss reads the slot before it knows, under the lock, whether the number belongs to an inode
//! without a name. Such a slot may not have been written yet. It then says that it is free, or
//! fails its check if it never was in use, so a failure counts only if the shard has neither the
//! inode nor an inode without a name. A slot without links is believed without the lock: at the
//! moment of the first look, no named inode of this number was in memory, so the slot was up to
//! date, and no caller could know the number of a new one.
//!
//! # The slot of an inode that was freed by the transaction that made it
//! It is never written, and the inode leaves memory at once. A walk that knew the number before may
//! still look it up, and then meets a slot that fails its check. The number is free by then, or the
//! next inode with it is about to enter the cache.

use crate::error::{Errno, Error, Result};
use crate::inode::Inode;
use crate::store::Store;
#[cfg(feature = "designs")]
use crate::vfs::designs::Cache;
use crate::vfs::evicted_holds::EvictedHolds;
use crate::vfs::tmpfiles::TmpfileTable;
use extant_format::error::Corrupt;
use extant_format::inode::InodeFlags;
use extant_format::types::{FileType, InodeNr};
use extant_sync::atomic::{AtomicUsize, Ordering};
#[cfg(not(feature = "designs"))]
use extant_sync::cache::Cache;
use extant_sync::cache::{Evicted, Held, OnEvict, Verdict};
use extant_sync::epoch::Guard;
use extant_sync::lockref::Lockref;
use extant_sync::parents::ParentLink;
use extant_sync::{Level, ShardedCounter};
use std::sync::Arc;

const SHARDS: usize = 64;

/// Looks at a slot that fails its check, while its number may be that of an inode in the making.
const MAX_LOOKS: u32 = 8;

/// Inodes examined for each inode above the limit.
const SHRINK_BATCH: usize = 16;

/// A counted reference to an inode, which keeps the inode in memory.
pub type InodeRef = Held<Arc<Inode>>;

/// The inode cache.
#[derive(Debug)]
pub struct InodeCache {
    cache: Cache<Arc<Inode>>,
    limit: AtomicUsize,
    evicted: ShardedCounter,
}

/// The data of a shard beside its inodes in the cache.
#[derive(Debug, Default)]
pub struct Absent {
    holds: EvictedHolds,
    tmpfiles: TmpfileTable,
}

impl OnEvict for Inode {
    type Side = Absent;

    fn refs(&self) -> &Lockref {
        self.refs()
    }

    fn depart(&self) {
        self.pages.discard();
    }

    /// An inode without a name is freed and removed by its last user, so the LRU lists need not
    /// keep it.
    fn is_worth_keeping(&self) -> bool {
        // Reads one word without a lock: no lock may be taken here.
        self.links() > 0
    }
}

/// Returns the number of inodes that fit in `memory` bytes.
fn limit_of(memory: u64) -> usize {
    usize::try_from(memory / Inode::BYTES).unwrap_or(usize::MAX).max(16 * SHARDS)
}

impl InodeCache {
    /// Creates a cache that tries to stay within `memory` bytes, without the inodes' own caches.
    pub fn new(memory: u64) -> Self {
        InodeCache {
            cache: Cache::new(Level::InodeCacheShard, SHARDS),
            limit: AtomicUsize::new(limit_of(memory)),
            evicted: ShardedCounter::default(),
        }
    }

    /// Returns the inode if it is in memory.
    pub fn peek(&self, ino: InodeNr) -> Option<InodeRef> {
        self.cache.get(ino.0)
    }

    /// Returns the inode as [`InodeCache::peek`] does, for walks that have pinned the epoch.
    #[inline]
    pub fn peek_pinned(&self, pinned: &Guard, ino: InodeNr) -> Option<InodeRef> {
        self.cache.get_pinned(pinned, ino.0)
    }

    /// Returns a reference to the directory that a link names, if it is in memory.
    pub fn parent(&self, pinned: &Guard, link: &ParentLink) -> Option<InodeRef> {
        let is = |inode: &Arc<Inode>, generation| {
            inode.generation == generation && inode.check_not_freed().is_ok()
        };
        self.cache.get_parent(pinned, link, is)
    }

    /// Returns the inode if it is in memory, without a reference, for inspection while the epoch is
    /// pinned. The inode may be evicted meanwhile: its fields were valid when it was found.
    #[inline]
    pub fn look<'g>(&'g self, pinned: &'g Guard, ino: InodeNr) -> Option<&'g Arc<Inode>> {
        self.cache.look(pinned, ino.0)
    }

    /// Returns the inode, loaded if it is not in memory. Returns ESTALE if it is being freed or was
    /// freed, and for a slot without links, unless `unlinked` is set for orphan processing.
    pub fn get(&self, st: &Store, ino: InodeNr, unlinked: bool) -> Result<InodeRef> {
        let mut looks = 0;
        loop {
            if let Some(inode) = self.peek(ino) {
                return alive(inode);
            }
            // Read before the slot, and compared under the shard's lock below: if an inode left the
            // shard in between, the slot may be older than that inode.
            let before = self.cache.removals(ino.0);
            let loaded = Inode::load(st, ino);
            if let Ok(loaded) = &loaded {
                if !unlinked && !reachable(loaded) {
                    return Err(Errno::Stale.into());
                }
                if st.quota.is_hidden(ino) {
                    // An inode of the file system itself, such as the journal.
                    let corrupt = Corrupt::new("directory entry").field("inode");
                    return Err(corrupt.found(ino.0).into());
                }
            }
            match self.settle(ino, loaded, before) {
                Ok(Some(inode)) => {
                    self.bound();
                    return Ok(inode);
                }
                Ok(None) => {}
                Err(error @ Error::Corrupt(_)) => {
                    looks += 1;
                    check_written(st, ino, (error, looks))?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends a miss: enters a loaded inode, unless memory has one of its number by now. Returns
    /// `None` if the slot may be older than an inode that left the shard, of which `before` had
    /// left before the slot was read.
    fn settle(
        &self,
        ino: InodeNr,
        loaded: Result<Arc<Inode>>,
        before: u64,
    ) -> Result<Option<InodeRef>> {
        let mut shard = self.cache.lock(ino.0);
        // Another thread loaded the inode meanwhile, or it got its first name.
        if let Some(inode) = shard.get(ino.0) {
            drop(shard);
            return alive(inode).map(Some);
        }
        if shard.side().tmpfiles.has(ino) {
            return Err(Errno::Stale.into());
        }
        if shard.removals() != before {
            return Ok(None);
        }
        let loaded = loaded?;
        let holds = shard.side().holds.take(ino);
        if holds > 0
            && let Err(error) = loaded.hold(holds)
        {
            // Before the inode is dropped, which may take other locks.
            drop(shard);
            return Err(error);
        }
        Ok(Some(shard.insert(ino.0, loaded).0))
    }

    /// Adds a new inode. An inode that had the number before leaves the cache.
    pub fn insert(&self, inode: Arc<Inode>) -> InodeRef {
        let mut shard = self.cache.lock(inode.ino.0);
        if let Some(known) = shard.get(inode.ino.0).filter(|known| Arc::ptr_eq(known, &inode)) {
            return known;
        }
        // A new inode has no holds: the stored ones belong to a previous inode of its number.
        shard.side().holds.take(inode.ino);
        let (inode, before) = shard.insert(inode.ino.0, inode);
        // Dropped after the lock: the drop of an inode may take other locks.
        drop(shard);
        drop(before);
        self.bound();
        inode
    }

    /// Stores a new inode without a name outside of the cache.
    pub fn insert_nameless(&self, inode: Arc<Inode>) -> InodeRef {
        inode.unlisted.store(true, Ordering::Release);
        let inode = InodeRef::unlisted(inode.ino.0, inode);
        let own = inode.clone();
        let before = self.cache.lock(inode.ino.0).side().tmpfiles.insert(own);
        drop(before);
        inode
    }

    /// Moves an inode from the table of nameless inodes into the cache, when it gets its first name
    /// or its number is given to a caller. The caller must hold the lock of the inode's content, so
    /// that the inode is not freed meanwhile.
    pub fn enter(&self, inode: &InodeRef) {
        if !inode.unlisted.load(Ordering::Acquire) {
            return;
        }
        let mut shard = self.cache.lock(inode.ino.0);
        shard.side().holds.take(inode.ino);
        let before = shard.enter(inode);
        let own = shard.side().tmpfiles.remove(inode);
        drop(shard);
        // After the lock: their drop may take other locks.
        drop((before, own));
        inode.unlisted.store(false, Ordering::Release);
        self.bound();
    }

    /// Returns whether the inode is in the cache or was in it.
    pub fn knows(&self, inode: &Inode) -> bool {
        !inode.unlisted.load(Ordering::Acquire)
    }

    /// Removes an inode that is being freed from the table of nameless inodes, if it never entered
    /// the cache. The caller should drop the result without a lock of a lower module.
    pub fn remove_nameless(&self, inode: &Inode) -> Option<InodeRef> {
        if self.knows(inode) {
            return None;
        }
        self.cache.lock(inode.ino.0).side().tmpfiles.remove(inode)
    }

    /// Releases `n` holds of an inode that is not in memory. If it is in memory, returns the inode
    /// and releases nothing. Returns ESTALE if the inode has no holds.
    pub fn release_evicted(&self, ino: InodeNr, n: u64) -> Result<Option<InodeRef>> {
        let mut shard = self.cache.lock(ino.0);
        if let Some(inode) = shard.get(ino.0) {
            return Ok(Some(inode));
        }
        if shard.side().holds.release(ino, n) { Ok(None) } else { Err(Errno::Stale.into()) }
    }

    /// Adds holds of an inode that is not in memory: it gets them when it is loaded.
    pub fn add_holds(&self, ino: InodeNr, holds: u64) {
        self.cache.lock(ino.0).side().holds.add(ino, holds);
    }

    /// Returns the holds of all inodes that have some, in memory or not. No other thread may load
    /// inodes, or evict some, meanwhile.
    pub fn all_holds(&self) -> Vec<(InodeNr, u64)> {
        let mut all = Vec::new();
        self.cache.each_side(|absent| all.extend(absent.holds.all()));
        self.each_in_memory(|inode| {
            all.extend(Some((inode.ino, inode.holds())).filter(|(_, holds)| *holds > 0));
        });
        all
    }

    /// Returns the number of inodes with holds that are not in memory.
    pub fn evicted_holds(&self) -> usize {
        self.sum(|absent| absent.holds.len())
    }

    fn sum(&self, count: impl Fn(&Absent) -> usize) -> usize {
        let mut sum = 0;
        self.cache.each_side(|absent| sum += count(absent));
        sum
    }

    /// Returns the inodes without a name that are not in the cache.
    fn tmpfiles(&self) -> Vec<Arc<Inode>> {
        let mut all = Vec::new();
        self.cache.each_side(|absent| all.extend(absent.tmpfiles.all()));
        all
    }

    /// Removes a freed inode whose slot says that it is free. Returns the inode, unchanged, if it
    /// has users other than the cache and the caller.
    pub fn retire(&self, inode: Arc<Inode>) -> Option<Arc<Inode>> {
        let mut busy = false;
        let mut shard = self.cache.lock(inode.ino.0);
        let gone = shard.remove_if(inode.ino.0, |references, own| {
            let same = Arc::ptr_eq(own, &inode);
            busy = same && (references > 0 || Arc::strong_count(own) > 2);
            same && !busy
        });
        drop(shard);
        drop(gone);
        busy.then_some(inode)
    }

    /// Takes an inode that lost its last name off the LRU lists. This only saves the work of walks:
    /// they do not evict it while it is held, or while the reaper has it.
    pub fn lost_name(&self, inode: &Inode) {
        self.cache.unlist(inode.ino.0);
    }

    /// Returns the inodes in memory without links, for unmount, which ends the use by their
    /// holders.
    pub fn unlinked(&self) -> Vec<Arc<Inode>> {
        // Before the cache: an inode that gets a name meanwhile enters the cache before it leaves
        // the nameless table.
        let mut found = self.tmpfiles();
        found.retain(|inode| !inode.freeing());
        self.each(|inode| {
            if inode.links() == 0 && !inode.freeing() {
                found.push(inode.clone());
            }
        });
        found
    }

    /// Calls `f` for each inode that is in memory during the whole call, and for some others. Calls
    /// it without a lock.
    pub fn each(&self, mut f: impl FnMut(&Arc<Inode>)) {
        for shard in 0..self.cache.shard_count() {
            self.cache.all_in_shard(shard).iter().for_each(|inode| f(inode));
        }
    }

    /// Calls `f` for each inode that is in memory during the whole call, with or without a name.
    /// Calls it without a lock.
    pub fn each_in_memory(&self, mut f: impl FnMut(&Arc<Inode>)) {
        // Before the cache: an inode that gets a name meanwhile enters the cache before it leaves
        // the nameless table.
        self.tmpfiles().iter().for_each(&mut f);
        self.each(f);
    }

    /// As [`InodeCache::each_in_memory`], for regular files.
    pub fn each_file(&self, mut f: impl FnMut(&Arc<Inode>)) {
        self.each_in_memory(|inode| {
            if inode.ftype == FileType::Regular {
                f(inode);
            }
        });
    }

    /// Returns the number of inodes in memory without a name that never entered the cache.
    pub fn nameless(&self) -> usize {
        self.sum(|absent| absent.tmpfiles.len())
    }

    /// Returns the number of inodes in the cache.
    pub fn len(&self) -> usize {
        self.cache.len()
    }

    /// Returns the approximate number of unreferenced inodes in the cache.
    pub fn unused(&self) -> usize {
        self.cache.unused()
    }

    /// Returns the number of inodes that were evicted to stay within the limit.
    pub fn evicted(&self) -> u64 {
        u64::try_from(self.evicted.sum()).unwrap_or(0)
    }

    /// Changes the bound, in bytes, and evicts inodes beyond it.
    pub fn set_memory(&self, memory: u64) {
        let limit = limit_of(memory);
        self.limit.store(limit, Ordering::Relaxed);
        // The first pass may only clear marks of use.
        let mut passes = self.cache.len().saturating_mul(2) / SHRINK_BATCH;
        while passes > 0 && self.cache.exceeds(limit) {
            self.shrink(SHRINK_BATCH);
            passes -= 1;
        }
    }

    fn bound(&self) {
        if self.cache.exceeds(self.limit.load(Ordering::Relaxed)) {
            self.shrink(SHRINK_BATCH);
        }
    }

    /// Examines up to `budget` unreferenced inodes, the oldest first. Evicts those that were not
    /// looked up since the last examination, and returns their number.
    pub fn shrink(&self, budget: usize) -> usize {
        let park =
            |absent: &mut Absent, inode: &Arc<Inode>| absent.holds.put(inode.ino, inode.holds());
        let gone: Vec<Evicted<_>> = self.cache.shrink_with(budget, verdict, park);
        self.evicted.add(gone.len() as i64);
        gone.len()
    }
}

/// Decides whether an inode without a reference may be evicted. It must have no other `Arc` (of
/// dirty lists, writeback, freezes). A held inode must have links, and no writers, since the inode
/// keeps their reservations.
fn verdict(inode: &Arc<Inode>) -> Verdict {
    let may_leave = || !inode.held() || inode.links() > 0 && !inode.pages.has_writers();
    if Arc::strong_count(inode) == 1 && may_leave() { Verdict::Evict } else { Verdict::Keep }
}

/// Judges a slot that failed its check: ESTALE if its number is free. Returns if it may be that of
/// an inode in the making, so that another look is worth it.
#[cold]
fn check_written(st: &Store, ino: InodeNr, (error, looks): (Error, u32)) -> Result<()> {
    match st.alloc.inode_in_use(ino) {
        // A number that the file system does not have is damage of a name.
        Ok(false) if st.geo.inode_location(ino).is_ok() => Err(Errno::Stale.into()),
        Ok(true) if looks < MAX_LOOKS => {
            std::thread::yield_now();
            Ok(())
        }
        _ => Err(error),
    }
}

/// Returns whether names may lead to an inode: it has links, and does not hold an attribute's value
/// (`xattr` keeps those itself).
fn reachable(inode: &Inode) -> bool {
    inode.links() > 0 && !inode.flags().contains(InodeFlags::EA_INODE)
}

/// Returns the inode, or ESTALE if it is being freed or was freed.
pub fn alive(inode: InodeRef) -> Result<InodeRef> {
    inode.check_not_freed().map(|()| inode)
}

#[cfg(test)]
mod tests {
    use crate::inode::Inode;
    use crate::{Caller, Fs, NodeKind, OpenOptions};
    use extant_format::types::InodeNr;
    use extant_sync::levels::acquired;
    use extant_testkit::{FeatureSet, Memory};
    use std::sync::Arc;

    /// Runs `f` and returns the number of locks that it took, too.
    fn locks<R>(f: impl FnOnce() -> R) -> (u64, R) {
        let before = acquired();
        let result = f();
        (acquired() - before, result)
    }

    fn opened() -> Fs {
        let device = Arc::new(Memory::from_bytes(&FeatureSet::named("default").make().bytes()));
        Fs::open_device(device, &OpenOptions::new()).unwrap()
    }

    #[test]
    fn a_miss_takes_one_lock_beside_the_load() {
        let fs = opened();
        let root = fs.root().unwrap();
        let ino = fs.create(&root, b"f", 0o644, NodeKind::File).unwrap().0.ino;
        fs.sync().unwrap();
        let (st, inodes) = (fs.st(), &fs.vfs.inodes);
        // The first pass clears marks of use.
        (0..3).for_each(|_| assert!(fs.shrink(1000) < 1000));
        assert!(inodes.peek(ino).is_none());
        // Its block is in the cache from now on.
        drop(Inode::load(st, ino).unwrap());
        let (load, loaded) = locks(|| Inode::load(st, ino));
        drop(loaded.unwrap());
        let (miss, inode) = locks(|| inodes.get(st, ino, false));
        assert_eq!(miss, load + 1, "{load} locks of the load");
        let (hit, again) = locks(|| inodes.get(st, ino, false));
        assert!(again.unwrap().same(&inode.unwrap()) && hit == 0);
        fs.unmount().unwrap();
    }

    #[test]
    fn an_inode_without_a_name_comes_and_goes_by_one_lock() {
        let fs = opened();
        let (st, inodes) = (fs.st(), &fs.vfs.inodes);
        // A copy that nothing else refers to, and which no caller can find.
        let copy = Inode::load(st, InodeNr::ROOT).unwrap();
        let (insertion, held) = locks(|| inodes.insert_nameless(copy));
        assert_eq!((insertion, inodes.nameless()), (1, 1));
        let (removal, own) = locks(|| inodes.remove_nameless(&held));
        assert!(removal == 1 && own.is_some_and(|own| own.same(&held)));
        drop(held);
        let root = fs.root().unwrap();
        let node = fs.create_nameless(&Caller::default(), &root, 0o600).unwrap();
        assert!(fs.node(u64::from(node.0.ino.0)).is_err(), "no caller knows its number");
        let (entry, ()) = locks(|| inodes.enter(&node.0));
        assert_eq!((entry, inodes.nameless()), (1, 0));
        assert!(inodes.peek(node.0.ino).is_some_and(|found| found.same(&node.0)));
        fs.release(&node, 1);
        fs.unmount().unwrap();
    }
}
