//! The blocks that are reserved for root, or for the user and group that the superblock names.

use super::Operations;
use crate::volume::with_reserve;
use extant_sync::atomic::Ordering;

impl Operations {
    /// Returns whether the superblock lets a caller use the reserved blocks: the user that it names
    /// (root by default), or a member of the group that it names, if that is not root's. Callers
    /// must check the capability `CAP_SYS_RESOURCE` themselves.
    pub fn reserve_is_for(&self, uid: u32, is_member: impl FnOnce(u32) -> bool) -> bool {
        let sb = self.st().groups.superblock();
        let group = u32::from(sb.def_resgid());
        u32::from(sb.def_resuid()) == uid || group != 0 && is_member(group)
    }

    /// Runs `f`, in which file content that this thread writes may use the reserved blocks.
    pub fn with_reserve<T>(&self, f: impl FnOnce() -> T) -> T {
        with_reserve(f)
    }

    /// Whether file content may use the reserved blocks, whichever thread writes it.
    pub fn set_use_reserve(&self, yes: bool) {
        self.st().policy.use_reserve.store(yes, Ordering::Relaxed);
    }
}
