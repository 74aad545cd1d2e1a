//! The legacy list: its head is in the superblock, and each inode's `dtime` names the next one.
//!
//! In memory the list has several parts, each a doubly linked chain with its own lock. On the
//! device it is one chain: at freeze the last inode of each part is linked to the first one of the
//! next, and the superblock to the first of all. An addition or removal therefore takes one part's
//! lock and touches one neighbor at most, for any length of the list.
//!
//! # Invariants
//! - Within a part each inode's `dtime` names its successor, at any time. The `dtime` of the last
//!   one is corrected at freeze.
//! - `unread` follows the last part: the rest of the chain on the device at open that is not in
//!   memory yet. Nothing is added to it later.
//! - A thread that changes a part's first or last inode has joined the superblock to its
//!   transaction, and the inodes of which it changes `dtime`. The last inode of another part joins
//!   at freeze; there are few parts.
//!
//! # Locking
//! A part's lock (Orphan) is held over a whole change, since it touches a neighbour: its `dtime`,
//! in its body.

use crate::error::Result;
use crate::inode::{Inode, InodeTable, OrphanAt, Step};

use extant_format::types::InodeNr;
use extant_journal::Freezer;
use extant_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use extant_sync::{CachePadded, Level, Mutex, shard_count, shard_index};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Most parts: as many blocks may join a transaction at freeze.
const MAX_PARTS: usize = 8;

#[derive(Debug)]
pub(super) struct OrphanList {
    parts: Box<[CachePadded<Part>]>,
    /// Head of the chain on the device that is not in memory.
    unread: AtomicU32,
}

#[derive(Debug)]
struct Part {
    chain: Mutex<Chain>,
    /// Its ends have changed since the last freeze. Written under the lock.
    changed: AtomicBool,
}

#[derive(Debug, Default)]
struct Chain {
    links: FxHashMap<InodeNr, Link>,
    first: InodeNr,
    last: InodeNr,
}

/// An inode of the list and its neighbours within the part.
#[derive(Debug)]
struct Link {
    inode: Arc<Inode>,
    previous: InodeNr,
    next: InodeNr,
}

impl Chain {
    fn inode(&self, ino: InodeNr) -> Option<Arc<Inode>> {
        self.links.get(&ino).map(|link| link.inode.clone())
    }

    fn push(&mut self, inode: &Arc<Inode>) {
        let next = std::mem::replace(&mut self.first, inode.ino);
        match self.links.get_mut(&next) {
            Some(old) => old.previous = inode.ino,
            None => self.last = inode.ino,
        }
        self.links.insert(inode.ino, Link { inode: inode.clone(), previous: InodeNr::NONE, next });
    }

    fn append(&mut self, inode: &Arc<Inode>) {
        let previous = std::mem::replace(&mut self.last, inode.ino);
        match self.links.get_mut(&previous) {
            Some(old) => old.next = inode.ino,
            None => self.first = inode.ino,
        }
        self.links.insert(inode.ino, Link { inode: inode.clone(), previous, next: InodeNr::NONE });
    }

    fn take(&mut self, ino: InodeNr) {
        let Some(Link { previous, next, .. }) = self.links.remove(&ino) else { return };
        match self.links.get_mut(&previous) {
            Some(link) => link.next = next,
            None => self.first = next,
        }
        match self.links.get_mut(&next) {
            Some(link) => link.previous = previous,
            None => self.last = previous,
        }
    }
}

impl OrphanList {
    /// The list as the superblock has its head.
    pub fn new(head: InodeNr) -> OrphanList {
        OrphanList::in_parts(head, shard_count().min(MAX_PARTS))
    }

    /// The list in so many parts.
    pub fn in_parts(head: InodeNr, parts: usize) -> OrphanList {
        let part = || Part {
            chain: Mutex::new(Level::Orphan, Chain::default()),
            changed: AtomicBool::new(false),
        };
        let parts = parts.clamp(1, MAX_PARTS);
        OrphanList {
            parts: (0..parts).map(|_| CachePadded::new(part())).collect(),
            unread: AtomicU32::new(head.0),
        }
    }

    /// Puts `inode` first in this thread's part.
    pub fn add(&self, step: &mut Step<'_>, inode: &Arc<Inode>) -> Result<OrphanAt> {
        let index = shard_index() % self.parts.len();
        let part = &self.parts[index];
        let mut chain = part.chain.lock();
        step.table().groups.join_superblock(step.handle())?;
        step.edit(inode)?.dtime = chain.first.0;
        chain.push(inode);
        part.changed.store(true, Ordering::Relaxed);
        Ok(OrphanAt::List { part: index as u16 })
    }

    /// Removes `inode`: its predecessor is linked to its successor.
    pub fn remove(&self, step: &mut Step<'_>, inode: &Arc<Inode>, part: u16) -> Result<()> {
        let Some(part) = self.parts.get(usize::from(part)) else { return Ok(()) };
        let mut chain = part.chain.lock();
        let Some(link) = chain.links.get(&inode.ino) else { return Ok(()) };
        let (previous, next) = (link.previous, link.next);
        step.touch(inode)?;
        match chain.inode(previous) {
            Some(previous) => step.edit(&previous)?.dtime = next.0,
            None => step.table().groups.join_superblock(step.handle())?,
        }
        step.edit(inode)?.dtime = 0;
        if previous == InodeNr::NONE || next == InodeNr::NONE {
            part.changed.store(true, Ordering::Relaxed);
        }
        chain.take(inode.ino);
        Ok(())
    }

    /// Links the parts on the device. No handle is open.
    pub fn freeze(&self, table: &InodeTable, out: &mut Freezer<'_>) -> Result<()> {
        // Relaxed: no handle is open, and the changes of earlier ones are visible here.
        if !self.parts.iter().any(|part| part.changed.load(Ordering::Relaxed)) {
            return Ok(());
        }
        let mut next = self.unread();
        for part in self.parts.iter().rev() {
            part.changed.store(false, Ordering::Relaxed);
            let chain = part.chain.lock();
            let Some(last) = chain.inode(chain.last) else { continue };
            if last.body().dtime != next.0 {
                table.dirty.edit_frozen(&last, out.tid(), |body| body.dtime = next.0);
            }
            next = chain.first;
        }
        table.groups.set_last_orphan(next);
        Ok(())
    }

    /// Records the head of the unread chain, at open. It becomes the last inode of the last part,
    /// as on the device: its predecessor, if that is still recorded, names it already.
    pub fn adopt(&self, inode: &Arc<Inode>) -> OrphanAt {
        let part = self.parts.len() - 1;
        let mut chain = self.parts[part].chain.lock();
        let next = inode.body().dtime;
        chain.append(inode);
        self.unread.store(next, Ordering::Relaxed);
        OrphanAt::List { part: part as u16 }
    }

    /// Cuts the unread chain off, because its head is invalid.
    pub fn cut(&self, step: &mut Step<'_>) -> Result<()> {
        step.table().groups.join_superblock(step.handle())?;
        self.unread.store(InodeNr::NONE.0, Ordering::Relaxed);
        self.parts[0].changed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the head of the chain that is on the device and not in memory.
    pub fn unread(&self) -> InodeNr {
        InodeNr(self.unread.load(Ordering::Relaxed))
    }

    pub fn is_empty(&self) -> bool {
        self.unread() == InodeNr::NONE
            && self.parts.iter().all(|part| part.chain.lock().links.is_empty())
    }
}
