//! Changes that wait for the thaw of a frozen file system with no lock held, so that readers go on.
//!
//! # Mechanism
//! A freeze sets a flag, and then takes and releases the lock of each inode in memory. A change
//! takes its first locks and then looks at the flag. If the flag is set, it releases them, waits
//! for the end of the freeze, and begins again.
//!
//! For example, a create that locked its directory before the freeze came there sees no flag, opens
//! its handle and ends, and the freeze waits for that lock. One that comes later sees the flag. So
//! when the freeze stops handles, no change holds the lock of an inode while it waits for one.
//!
//! Writes into pages take no part: they need a handle only if they change the inode itself, and
//! wait in memory otherwise. Jobs and the reaper do not either: no reader waits for their locks.

use super::Operations;
use extant_sync::atomic::Ordering::SeqCst;

/// The time in which changes wait, until this is dropped.
#[derive(Debug)]
pub(crate) struct HaltedChanges<'a>(&'a Operations);

impl Drop for HaltedChanges<'_> {
    fn drop(&mut self) {
        self.0.changes_wait.store(false, SeqCst);
    }
}

impl Operations {
    /// Lets changes wait, and returns when none holds a lock of an inode that it took before. The
    /// caller must hold the lock of freezing, and keep it longer than the result: changes wait for
    /// that lock.
    pub(crate) fn halt_changes(&self) -> HaltedChanges<'_> {
        // The order of the flag and of each lock is the same for all threads.
        self.changes_wait.store(true, SeqCst);
        let halted = HaltedChanges(self);
        self.vfs.inodes.each_in_memory(|inode| drop(inode.rw.write()));
        halted
    }

    /// Takes the first locks of a change by `lock`. While the file system is frozen, waits without
    /// them. The caller must hold no lock.
    #[inline]
    pub(crate) fn lock_thawed<G>(&self, lock: impl Fn() -> G) -> G {
        loop {
            let guard = lock();
            if !self.changes_wait.load(SeqCst) {
                return guard;
            }
            drop(guard);
            self.wait_for_thaw();
        }
    }

    /// Returns whether changes are to release their locks and wait.
    pub(crate) fn changes_wait(&self) -> bool {
        self.changes_wait.load(SeqCst)
    }

    /// Waits until a freeze has ended. The caller must hold no lock.
    #[cold]
    pub(crate) fn wait_for_thaw(&self) {
        drop(self.freezing.lock());
    }
}
