//! Makes inode bitmaps and the counts of inodes from memory, once for each transaction.

use super::{Group, Inodes};
use crate::alloc::Alloc;
use crate::error::Result;
use extant_format::types::GroupNr;
use extant_journal::{Freezer, Seal};
use extant_sync::atomic::Ordering;

/// Groups that stay in memory however idle they are.
const KEPT: usize = 64;

impl Alloc {
    /// Books frees of blocks that were only noted; writes the inode bitmaps that the transaction
    /// changed, and books their counts in the descriptors. Runs before these are written; no handle
    /// is open.
    ///
    /// # Errors
    /// Those of the journal; `Io`.
    pub fn freeze(&self, out: &mut Freezer<'_>) -> Result<()> {
        self.space.freeze_batches(out)?;
        self.inodes.freeze(out)
    }
}

impl Inodes {
    fn freeze(&self, out: &mut Freezer<'_>) -> Result<()> {
        let mut changed: Vec<GroupNr> =
            self.changed.iter().flat_map(|list| std::mem::take(&mut *list.lock())).collect();
        changed.sort_unstable();
        changed.dedup();
        changed.into_iter().try_for_each(|g| self.freeze_group(g, out))?;
        self.drop_idle(out.tid().0);
        Ok(())
    }

    fn freeze_group(&self, g: GroupNr, out: &mut Freezer<'_>) -> Result<()> {
        let place = self.place(g)?;
        let memory = place.bits.load();
        let Some(bits) = memory.get() else { return Ok(()) };
        let settled = bits.settle();
        bits.write(&mut out.write(&bits.buffer, Seal::NONE)?);
        self.going.sub(settled.gone.into());
        let left = self.groups.book_inodes(g, settled.freed, settled.behind);
        if !place.lock.lock().bad {
            self.free.set(g.0, left);
        }
        Ok(())
    }

    /// Drops groups that the transaction did not change, if there are many in memory.
    fn drop_idle(&self, tid: u64) {
        let mut loaded = self.loaded.lock();
        if loaded.len() <= KEPT {
            return;
        }
        let mut idle = Vec::new();
        loaded.retain(|g| {
            let stays = self.place(*g).is_ok_and(|place| {
                place.bits.load().get().is_some_and(|bits| bits.tid.load(Ordering::Acquire) == tid)
            });
            if !stays {
                idle.push(*g);
            }
            stays
        });
        drop(loaded);
        for place in idle.into_iter().filter_map(|g| self.place(g).ok()) {
            let group: &mut Group = &mut place.lock.lock();
            group.owners = Vec::new();
            place.bits.store(None);
        }
    }
}
