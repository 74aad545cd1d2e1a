//! Changes that wait for the thaw of a frozen file system with no lock held, so that readers go on
//! ([`FreezeLock`]).
//!
//! Writes into pages take no part: they need a handle only if they change the inode itself, and
//! wait in memory otherwise. Jobs and the reaper do not either: no reader waits for their locks.
//!
//! [`FreezeLock`]: extant_sync::FreezeLock

use super::Operations;
use extant_sync::HaltedChanges;

impl Operations {
    /// Begins a freeze: lets changes wait, and returns when none holds a lock of an inode that it
    /// took before.
    pub(crate) fn halt_changes(&self) -> HaltedChanges<'_> {
        self.freezing
            .halt_changes(|| self.vfs.inodes.each_in_memory(|inode| drop(inode.rw.write())))
    }

    /// Takes the first locks of a change by `lock`. While the file system is frozen, waits without
    /// them. The caller must hold no lock.
    #[inline]
    pub(crate) fn lock_thawed<G>(&self, lock: impl Fn() -> G) -> G {
        self.freezing.lock_change(lock)
    }
}
