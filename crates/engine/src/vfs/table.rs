//! Inodes by number: looked up without a lock, bounded, at most one in memory for a number.
//!
//! # Invariants
//! - An inode leaves the table only when nobody else refers to it: no [`InodeRef`], and no `Arc`
//!   but the table's. Whoever loads it again reads a slot that freeze has brought up to date: the
//!   dirty list holds an `Arc` until then. This holds for freed inodes, too: they stay, and are
//!   refused, until their slot says that they are free or another has their number.
//! - An `Arc` of an inode is made only from a reference or another `Arc` (pools keep weak ones,
//!   through which nothing but pages and claims that departure drops anyway is reached). So with no
//!   reference, which the cache's lock keeps so, and one `Arc`, nobody else has it or can get it.
//! - A load that overlaps with a removal in its shard is repeated, since it may have read an old
//!   slot.
//! - An inode without a name whose number nobody knows is in no table: [`TmpfileTable`] has a
//!   reference to it. It enters the table once, before it gets a name, or when somebody asks for
//!   that who will look it up by number. Until then a lookup of its number ends as one of a freed
//!   inode does; its slot may not have been written yet.
//! - Holds of an inode that is not in memory are parked: they go there when it leaves, and come
//!   back when it is loaded, both under its shard's lock. Only an inode with links leaves while
//!   somebody holds it: nothing is to be done when it is let go.
//!
//! # Locking
//! A lookup takes no lock. A shard's lock is held for a change only; slots are read outside of it.

use crate::error::{Errno, Result};
use crate::inode::Inode;
use crate::store::Store;
use crate::vfs::nameless::TmpfileTable;
use crate::vfs::parked::EvictedHolds;
use extant_format::error::Corrupt;
use extant_format::inode::InodeFlags;
use extant_format::types::{FileType, InodeNr};
use extant_sync::atomic::Ordering;
use extant_sync::cache::{Cache, Evicted, Held, OnEvict, Verdict};
use extant_sync::epoch::Guard;
use extant_sync::lockref::Lockref;
use extant_sync::{Level, ShardedCounter};
use std::sync::Arc;

const SHARDS: usize = 64;

/// Inodes looked at for each one that is too many.
const SHRINK_BATCH: usize = 16;

/// A counted reference to an inode: as long as it lives the inode stays in memory.
pub type InodeRef = Held<Arc<Inode>>;

/// The inode table.
#[derive(Debug)]
pub struct InodeTable {
    cache: Cache<Arc<Inode>>,
    limit: usize,
    evicted: ShardedCounter,
    parked: EvictedHolds,
    nameless: TmpfileTable,
}

impl OnEvict for Inode {
    fn refs(&self) -> &Lockref {
        self.refs()
    }

    fn depart(&self) {
        self.pages.let_go();
    }

    /// One without a name is freed by its last holder, and taken out then.
    fn is_worth_keeping(&self) -> bool {
        // A word that is read without a lock: none may be taken here.
        self.links() > 0
    }
}

impl InodeTable {
    /// A table that tries to stay within `memory` bytes, caches of the inodes' own not counted.
    pub fn new(memory: u64) -> Self {
        let limit = (memory / Inode::BYTES).max(16 * SHARDS as u64) as usize;
        InodeTable {
            cache: Cache::new(Level::InodeTableShard, SHARDS),
            limit,
            evicted: ShardedCounter::default(),
            parked: EvictedHolds::default(),
            nameless: TmpfileTable::default(),
        }
    }

    /// The inode if it is in memory.
    pub fn peek(&self, ino: InodeNr) -> Option<InodeRef> {
        self.cache.get(ino.0)
    }

    /// As [`InodeTable::peek`], for walks that have pinned the epoch.
    #[inline]
    pub fn peek_pinned(&self, pinned: &Guard, ino: InodeNr) -> Option<InodeRef> {
        self.cache.get_pinned(pinned, ino.0)
    }

    /// The inode if it is in memory, to be looked at while the epoch is pinned. It may be evicted
    /// meanwhile: what it says was right when it was found.
    #[inline]
    pub fn look<'g>(&'g self, pinned: &'g Guard, ino: InodeNr) -> Option<&'g Arc<Inode>> {
        self.cache.look(pinned, ino.0)
    }

    /// The inode, loaded if it is not in memory. ESTALE if it is being freed or was; and for a slot
    /// without links, which only orphan processing (`unlinked`) may see.
    pub fn get(&self, st: &Store, ino: InodeNr, unlinked: bool) -> Result<InodeRef> {
        loop {
            if let Some(inode) = self.peek(ino) {
                return alive(inode);
            }
            if self.nameless.has(ino) {
                return Err(Errno::Stale.into());
            }
            let before = self.cache.removals(ino.0);
            if let Some(inode) = self.peek(ino) {
                // It was nameless when it was not found.
                return alive(inode);
            }
            let loaded = Inode::load(st, ino)?;
            if !unlinked && !reachable(&loaded) {
                return Err(Errno::Stale.into());
            }
            if st.quota.is_hidden(ino) {
                // The journal and its like: the file system's own.
                return Err(Corrupt::new("directory entry").field("inode").found(ino.0).into());
            }
            let mut shard = self.cache.lock(ino.0);
            if let Some(inode) = shard.get(ino.0) {
                drop(shard);
                return alive(inode);
            }
            if shard.removals() == before {
                let holds = self.parked.take(ino);
                if holds > 0 {
                    loaded.hold(holds)?;
                }
                let (inode, _) = shard.insert(ino.0, loaded);
                drop(shard);
                self.bound();
                return Ok(inode);
            }
        }
    }

    /// Adds a new inode; one that had the number before is gone.
    pub fn insert(&self, inode: Arc<Inode>) -> InodeRef {
        let mut shard = self.cache.lock(inode.ino.0);
        if let Some(known) = shard.get(inode.ino.0).filter(|known| Arc::ptr_eq(known, &inode)) {
            return known;
        }
        // Held by nobody yet: what is parked was of another inode.
        self.parked.take(inode.ino);
        let (inode, before) = shard.insert(inode.ino.0, inode);
        drop(shard);
        drop(before);
        self.bound();
        inode
    }

    /// Keeps a new inode without a name out of the table.
    pub fn insert_nameless(&self, inode: Arc<Inode>) -> InodeRef {
        inode.unlisted.store(true, Ordering::Release);
        let inode = InodeRef::unlisted(inode.ino.0, inode);
        self.nameless.insert(inode.clone());
        inode
    }

    /// An inode gets its first name, or is to be looked up by number: from now on it is in the
    /// table. The caller has locked its content, so that it is not freed meanwhile.
    pub fn enter(&self, inode: &InodeRef) {
        if !inode.unlisted.load(Ordering::Acquire) {
            return;
        }
        self.parked.take(inode.ino);
        let before = self.cache.lock(inode.ino.0).enter(inode);
        drop(before);
        // Whoever looks for it in both places, here first, meets it.
        self.nameless.remove(inode);
        inode.unlisted.store(false, Ordering::Release);
        self.bound();
    }

    /// Whether the table has the inode, or had it.
    pub fn knows(&self, inode: &Inode) -> bool {
        !inode.unlisted.load(Ordering::Acquire)
    }

    /// Lets go of an inode that is being freed, if it never entered the table. No lock of a room
    /// below should be held when what this gives is dropped.
    pub fn let_go(&self, inode: &Inode) -> Option<InodeRef> {
        if self.knows(inode) { None } else { self.nameless.remove(inode) }
    }

    /// Gives `n` holds of an inode back that is not in memory. The inode if it is, and nothing was
    /// done; ESTALE if nobody holds it.
    pub fn release_parked(&self, ino: InodeNr, n: u64) -> Result<Option<InodeRef>> {
        let shard = self.cache.lock(ino.0);
        if let Some(inode) = shard.get(ino.0) {
            return Ok(Some(inode));
        }
        if self.parked.release(ino, n) { Ok(None) } else { Err(Errno::Stale.into()) }
    }

    /// Inodes that are held and not in memory.
    pub fn parked(&self) -> usize {
        self.parked.len()
    }

    /// Takes out a freed inode whose slot says so: nobody refers to it but the table and the
    /// caller, who gets it back otherwise.
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

    /// An inode lost its last name.
    pub fn lost_name(&self, inode: &Inode) {
        self.cache.unlist(inode.ino.0);
    }

    /// Inodes in memory without a link, for unmount: their holders are gone with the mount.
    pub fn unlinked(&self) -> Vec<Arc<Inode>> {
        // Before the table: what gets a name meanwhile enters that first.
        let mut found = self.nameless.all();
        found.retain(|inode| !inode.freeing());
        self.each(|inode| {
            if inode.links() == 0 && !inode.freeing() {
                found.push(inode.clone());
            }
        });
        found
    }

    /// Calls `f` for every inode that is in memory throughout, and for some that come or go
    /// meanwhile. No lock is held.
    pub fn each(&self, mut f: impl FnMut(&Arc<Inode>)) {
        for shard in 0..self.cache.shard_count() {
            self.cache.all_in_shard(shard).iter().for_each(|inode| f(inode));
        }
    }

    /// Calls `f` for every regular file that is in memory throughout, with or without a name. No
    /// lock is held.
    pub fn each_file(&self, mut f: impl FnMut(&Arc<Inode>)) {
        // Before the table: what gets a name meanwhile enters that first.
        let nameless = self.nameless.all();
        nameless.iter().for_each(&mut f);
        self.each(|inode| {
            if inode.ftype == FileType::Regular {
                f(inode);
            }
        });
    }

    /// Inodes in memory that have no name and never entered the table.
    pub fn nameless(&self) -> usize {
        self.nameless.len()
    }

    /// Inodes in the table.
    pub fn len(&self) -> usize {
        self.cache.len()
    }

    /// Inodes in memory that nobody uses, about.
    pub fn unused(&self) -> usize {
        self.cache.unused()
    }

    /// Inodes that left memory to stay within the bound.
    pub fn evicted(&self) -> u64 {
        u64::try_from(self.evicted.sum()).unwrap_or(0)
    }

    fn bound(&self) {
        if self.cache.exceeds(self.limit) {
            self.shrink(SHRINK_BATCH);
        }
    }

    /// Looks at up to `budget` inodes that nobody uses, the oldest first, and drops those that were
    /// not looked up since the last time; how many.
    pub fn shrink(&self, budget: usize) -> usize {
        let park = |inode: &Arc<Inode>| self.parked.put(inode.ino, inode.holds());
        let gone: Vec<Evicted<_>> = self.cache.shrink_with(budget, verdict, park);
        self.evicted.add(gone.len() as i64);
        gone.len()
    }
}

/// Whether an inode without a reference may go: nobody has an `Arc` of it (dirty lists, writeback,
/// freezing), and if it is held, then neither for want of links nor by writers, who keep space with
/// it.
fn verdict(inode: &Arc<Inode>) -> Verdict {
    let may_leave = || !inode.held() || inode.links() > 0 && !inode.pages.has_writers();
    match Arc::strong_count(inode) == 1 && may_leave() {
        true => Verdict::Evict,
        false => Verdict::Keep,
    }
}

/// Whether names may lead to an inode: it has links, and does not hold an attribute's value (those
/// `xattr` keeps itself).
fn reachable(inode: &Inode) -> bool {
    let body = inode.body();
    body.links > 0 && !body.flags.contains(InodeFlags::EA_INODE)
}

/// The inode, or ESTALE if it is being freed or was.
pub fn alive(inode: InodeRef) -> Result<InodeRef> {
    inode.check_not_freed().map(|()| inode)
}
