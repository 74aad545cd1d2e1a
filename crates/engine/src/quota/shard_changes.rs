//! Changes of usage that threads keep, so that an owner of many files is no line that all
//! processors write.

use super::owner::{Change, Dquot, Grace};
use crate::error::Result;
use extant_format::quota::QuotaKind;
use extant_sync::atomic::Ordering;
use extant_sync::{Level, Mutex, MutexGuard, Sharded};
use std::sync::Arc;

/// Owners kept by each shard of threads. A transfer needs six.
const KEPT: usize = 16;

/// The changes that the shards of all threads keep.
#[derive(Debug)]
pub(super) struct ShardChanges(Sharded<Mutex<LocalChanges>>);

/// The changes that the threads of a shard keep, the owner added last at the end.
#[derive(Debug, Default)]
pub(super) struct LocalChanges(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    kind: QuotaKind,
    owner: Arc<Dquot>,
    change: Change,
}

impl Default for ShardChanges {
    fn default() -> Self {
        ShardChanges(Sharded::new(|_| Mutex::new(Level::Quota, LocalChanges::default())))
    }
}

impl ShardChanges {
    /// Locks this thread's shard.
    pub fn local(&self) -> MutexGuard<'_, LocalChanges> {
        self.0.local().lock()
    }

    /// Adds an owner to this thread's shard. If that evicts another one, `add` gets the changes
    /// that were kept for it.
    pub fn bring(&self, kind: QuotaKind, owner: Arc<Dquot>, add: impl FnOnce(&Dquot, Change)) {
        let mut local = self.local();
        if local.find(kind, owner.id).is_some() {
            return;
        }
        if local.0.len() >= KEPT {
            let old = local.0.remove(0);
            // Before the owner may be found without it.
            add(&old.owner, old.change);
        }
        local.0.push(Entry { kind, owner, change: Change::default() });
    }

    /// Gives all that is kept to `add`.
    pub fn settle(&self, mut add: impl FnMut(QuotaKind, &Dquot, Change)) {
        for shard in self.0.iter() {
            for entry in &mut shard.lock().0 {
                let change = std::mem::take(&mut entry.change);
                if !change.is_none() {
                    add(entry.kind, &entry.owner, change);
                }
            }
        }
    }
}

impl LocalChanges {
    fn find(&mut self, kind: QuotaKind, id: u32) -> Option<&mut Entry> {
        self.0.iter_mut().find(|entry| entry.kind == kind && entry.owner.id == id)
    }

    /// Whether an owner is at hand, and marked dirty in the transaction.
    pub fn has(&self, kind: QuotaKind, id: u32, tid: Option<u64>) -> bool {
        let entry = self.0.iter().find(|entry| entry.kind == kind && entry.owner.id == id);
        entry.is_some_and(|entry| {
            tid.is_none_or(|tid| entry.owner.dirty_tid.load(Ordering::Acquire) == tid)
        })
    }

    /// Changes the usage of an owner that is at hand, beyond its limits if need be: at once if it
    /// has limits.
    pub fn add(
        &mut self,
        kind: QuotaKind,
        id: u32,
        change: Change,
        clock: impl FnOnce() -> (u64, Grace),
    ) {
        let Some(entry) = self.find(kind, id) else { return };
        match entry.limited() {
            Some(owner) => owner.add(change, clock()),
            None => entry.change.add(change),
        }
    }

    /// As [`Self::add`], within the limits.
    ///
    /// # Errors
    /// EDQUOT if limits are exceeded; nothing is changed then.
    pub fn add_within(
        &mut self,
        kind: QuotaKind,
        id: u32,
        change: Change,
        clock: impl FnOnce() -> (u64, Grace),
    ) -> Result<()> {
        let Some(entry) = self.find(kind, id) else { return Ok(()) };
        match entry.limited() {
            Some(owner) => owner.add_within(change, clock()),
            None => {
                entry.change.add(change);
                Ok(())
            }
        }
    }
}

impl Entry {
    /// The owner, if it has limits.
    fn limited(&self) -> Option<&Dquot> {
        self.owner.limited.load(Ordering::Acquire).then_some(&*self.owner)
    }
}
