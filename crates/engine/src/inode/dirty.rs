//! Inodes with table slots older than their state in memory.
//!
//! # Invariants
//! - The lists hold inodes of one transaction only: freeze drains them before its successor opens.
//! - An inode on a list has its table block joined to that transaction, so freeze needs no credits.
//! - A number that was freed and taken again within the transaction is listed once for each inode
//!   that had it. The slot gets the content of the one that is not freed, or of any if all are: a
//!   freed slot has no content. A freed inode is never listed again.
//! - An inode that was made and freed in one transaction leaves its list again: its slot on disk is
//!   still free. New inodes only get numbers with free slots on disk.
//! - A frozen inode stays in memory until its transaction is durable, and with it the number of the
//!   transaction that an fsync has to wait for.

use super::InodeTable;
use super::load::slot;
use super::{Body, Inode, Step};
use crate::error::{Errno, Result};
use extant_format::types::InodeNr;
use extant_journal::{Freezer, Handle, Seal, Tid};
use extant_sync::atomic::Ordering;
use extant_sync::{Level, Mutex, Sharded};
use std::sync::Arc;

/// A list of inodes; a removed one leaves a gap.
type List = Mutex<Vec<Option<Arc<Inode>>>>;

/// Dirty inodes of the running transaction.
#[derive(Debug)]
pub struct DirtyInodes {
    lists: Sharded<List>,
    /// Inodes of the transaction that is being committed.
    frozen: Mutex<Vec<Arc<Inode>>>,
    /// Those of them with zeroes to be written before it is durable.
    unzeroed: Mutex<Vec<Arc<Inode>>>,
}

impl Default for DirtyInodes {
    fn default() -> Self {
        let lists = Sharded::new(|_| Mutex::new(Level::Leaf, Vec::new()));
        let list = || Mutex::new(Level::Leaf, Vec::new());
        DirtyInodes { lists, frozen: list(), unzeroed: list() }
    }
}

/// Bits of a place that name the list: there are at most 128.
const LIST_BITS: u32 = 7;

/// A place on a list in one word, not 0; 0 if it does not fit.
fn pack(list: usize, at: usize) -> u32 {
    let at = u32::try_from(at + 1).ok().filter(|at| at.leading_zeros() >= LIST_BITS);
    at.map_or(0, |at| at << LIST_BITS | list as u32)
}

fn unpack(place: u32) -> Option<(usize, usize)> {
    let at = (place >> LIST_BITS).checked_sub(1)?;
    Some(((place & ((1 << LIST_BITS) - 1)) as usize, at as usize))
}

impl DirtyInodes {
    /// Marks `inode` dirty in the handle's transaction. Costs one credit at most. ESTALE if it has
    /// been freed. The handle counts no change: the caller does, when it makes one.
    pub(super) fn mark(
        &self,
        table: &InodeTable,
        h: &mut Handle<'_>,
        inode: &Arc<Inode>,
    ) -> Result<()> {
        let tid = h.tid().0;
        if inode.gone() {
            return Err(Errno::Stale.into());
        }
        if inode.dirty_tid.load(Ordering::Acquire) == tid {
            return Ok(());
        }
        join(table, h, inode)?;
        self.list(inode, tid);
        Ok(())
    }

    /// As [`Self::mark`], for an inode that was made in the handle's transaction and that no other
    /// thread knows yet.
    pub(super) fn mark_new(
        &self,
        table: &InodeTable,
        h: &mut Handle<'_>,
        inode: &Arc<Inode>,
    ) -> Result<()> {
        h.note_change();
        join(table, h, inode)?;
        inode.dirty_tid.store(h.tid().0, Ordering::Release);
        let index = self.lists.local_index();
        let mut list = self.lists.at(index).lock();
        inode.made_at.store(pack(index, list.len()), Ordering::Release);
        list.push(Some(inode.clone()));
        Ok(())
    }

    /// Removes an inode that has just been freed from its list, if it was made in the handle's
    /// transaction and needs no write. Returns whether it was. No other thread may call this for
    /// the same inode.
    pub fn forget_new(&self, step: &Step<'_>, inode: &Arc<Inode>) -> bool {
        if inode.dirty_tid.load(Ordering::Acquire) != step.tid().0 {
            return false;
        }
        let Some((index, at)) = unpack(inode.made_at.load(Ordering::Acquire)) else { return false };
        let mut list = self.lists.at(index).lock();
        let listed = list.get_mut(at).and_then(Option::take);
        while let Some(None) = list.last() {
            list.pop();
        }
        drop(list);
        debug_assert!(
            listed.as_ref().is_some_and(|listed| Arc::ptr_eq(listed, inode)),
            "another inode's place"
        );
        listed.is_some()
    }

    fn list(&self, inode: &Arc<Inode>, tid: u64) {
        // Both racers hold a handle of `tid`, so freeze cannot run between the swap and the push.
        if inode.dirty_tid.swap(tid, Ordering::AcqRel) != tid {
            inode.made_at.store(0, Ordering::Release);
            self.lists.local().lock().push(Some(inode.clone()));
        }
    }

    /// Changes an inode in the transaction that is being frozen. No handle is open, and
    /// [`Self::freeze`] is yet to come.
    pub fn edit_frozen(&self, inode: &Arc<Inode>, tid: Tid, change: impl FnOnce(&mut Body)) {
        change(&mut inode.body.lock());
        self.list(inode, tid.0);
    }

    /// Writes all dirty inodes into their table blocks. No handle is open.
    pub fn freeze(&self, table: &InodeTable, out: &mut Freezer<'_>) -> Result<()> {
        let listed = self.lists.iter().flat_map(|list| std::mem::take(&mut *list.lock()));
        let mut list: Vec<Arc<Inode>> = listed.flatten().collect();
        list.sort_unstable_by_key(|inode| (inode.ino, !inode.gone()));
        for (at, inode) in list.iter().enumerate() {
            let superseded = list.get(at + 1).is_some_and(|next| next.ino == inode.ino);
            if !superseded {
                write_slot(table, out, inode)?;
            }
        }
        let unzeroed = list.iter().filter(|inode| inode.pages.may_lack_zeroes());
        self.unzeroed.lock().extend(unzeroed.cloned());
        self.frozen.lock().append(&mut list);
        Ok(())
    }

    /// Takes the frozen inodes with zeroes that must be written before the transaction is durable.
    pub fn take_unzeroed(&self) -> Vec<Arc<Inode>> {
        std::mem::take(&mut *self.unzeroed.lock())
    }

    /// Returns inodes whose zeroes could not be written.
    pub fn return_unzeroed(&self, inodes: Vec<Arc<Inode>>) {
        self.unzeroed.lock().extend(inodes);
    }

    /// Records that the frozen inodes are durable.
    pub fn committed(&self) {
        let durable = std::mem::take(&mut *self.frozen.lock());
        // Outside of the lock: dropping an inode's last reference returns its claims.
        drop(durable);
    }
}

/// Makes the inode's slot part of the handle's transaction.
fn join(table: &InodeTable, h: &mut Handle<'_>, inode: &Inode) -> Result<()> {
    let (buf, _) = slot(table, inode.ino)?;
    h.enlist(&buf)?;
    inode.sync_tid.fetch_max(h.tid().0, Ordering::AcqRel);
    Ok(())
}

fn write_slot(table: &InodeTable, out: &mut Freezer<'_>, inode: &Inode) -> Result<()> {
    let (buf, range) = slot(table, inode.ino)?;
    let body = inode.body().clone();
    let mut block = out.write(&buf, Seal::NONE)?;
    let raw: &mut [u8] = &mut block[range];
    body.disk.encode_with_tail(raw, &body.tail, &table.geo, InodeNr(inode.ino.0))?;
    Ok(())
}
