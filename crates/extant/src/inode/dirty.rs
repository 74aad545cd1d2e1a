//! Inodes whose table slot is older than memory.
//!
//! # Invariants
//! - The lists hold inodes of one transaction only: freeze drains them before its successor opens.
//! - An inode on a list has its table block joined to that transaction, so freeze needs no credits.
//! - A number that was freed and taken again within the transaction is listed once for each life; the slot is that of the
//!   one that is not gone, or if all are, of any: a freed slot has no content. A freed inode is never listed again.
//! - A frozen inode stays in memory until its transaction is durable, and with it the number of the transaction that an
//!   fsync has to wait for.

use super::load::slot;
use super::{Body, Inode};
use crate::error::{Errno, Result};
use crate::store::Store;
use extant_format::types::InodeNr;
use extant_journal::{Freezer, Handle, Seal, Tid};
use extant_sync::atomic::Ordering;
use extant_sync::{Level, Mutex, Sharded};
use std::sync::Arc;

/// Dirty inodes of the running transaction.
#[derive(Debug)]
pub struct DirtyInodes {
    lists: Sharded<Mutex<Vec<Arc<Inode>>>>,
    /// Inodes of the transaction that is being committed.
    frozen: Mutex<Vec<Arc<Inode>>>,
}

impl Default for DirtyInodes {
    fn default() -> Self {
        let list = || Mutex::new(Level::Leaf, Vec::new());
        DirtyInodes { lists: Sharded::new(|_| list()), frozen: list() }
    }
}

impl DirtyInodes {
    /// Marks `inode` dirty in the handle's transaction. Costs one credit at most. ESTALE if it has been freed.
    pub fn mark(&self, st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
        let tid = h.tid().0;
        if inode.gone() {
            return Err(Errno::Stale.into());
        }
        if inode.dirty_tid.load(Ordering::Acquire) == tid {
            h.note_change();
            return Ok(());
        }
        let (buf, _) = slot(st, inode.ino)?;
        h.join(&buf)?;
        inode.sync_tid.fetch_max(tid, Ordering::AcqRel);
        self.list(inode, tid);
        Ok(())
    }

    fn list(&self, inode: &Arc<Inode>, tid: u64) {
        // Both racers hold a handle of `tid`, so freeze cannot run between the swap and the push.
        if inode.dirty_tid.swap(tid, Ordering::AcqRel) != tid {
            self.lists.local().lock().push(inode.clone());
        }
    }

    /// Changes an inode in the transaction that is being frozen. No handle is open, and [`Self::freeze`] is yet to come.
    pub fn edit_frozen(&self, inode: &Arc<Inode>, tid: Tid, change: impl FnOnce(&mut Body)) {
        change(&mut inode.body.lock());
        self.list(inode, tid.0);
    }

    /// Writes all dirty inodes into their table blocks. No handle is open.
    pub fn freeze(&self, st: &Store, out: &mut Freezer<'_>) -> Result<()> {
        let mut list: Vec<Arc<Inode>> = self.lists.iter().flat_map(|list| std::mem::take(&mut *list.lock())).collect();
        list.sort_unstable_by_key(|inode| (inode.ino, !inode.gone()));
        for (at, inode) in list.iter().enumerate() {
            let superseded = list.get(at + 1).is_some_and(|next| next.ino == inode.ino);
            if !superseded {
                write_slot(st, out, inode)?;
            }
        }
        self.frozen.lock().append(&mut list);
        Ok(())
    }

    /// What was frozen is durable.
    pub fn committed(&self) {
        let durable = std::mem::take(&mut *self.frozen.lock());
        // Outside of the lock: an inode's last reference gives back what it has claimed.
        drop(durable);
    }
}

fn write_slot(st: &Store, out: &mut Freezer<'_>, inode: &Inode) -> Result<()> {
    let (buf, range) = slot(st, inode.ino)?;
    let body = inode.body().clone();
    let mut block = out.write(&buf, Seal::NONE)?;
    let raw: &mut [u8] = &mut block[range];
    body.disk.encode_with_tail(raw, &body.tail, &st.geo, InodeNr(inode.ino.0))?;
    Ok(())
}
