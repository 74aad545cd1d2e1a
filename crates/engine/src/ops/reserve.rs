//! Rights to space: the blocks that are reserved for root, or for the user and group that the
//! superblock names, and exemption from quota limits. With them come the operations that take space
//! for a caller: writes past the page cache (all writes of a FUSE mount) and fallocate(2).

use super::handle::check_key;
use super::{Node, Operations};
use crate::error::{Errno, Result};
use crate::file::{self, Falloc, Note};
use crate::store::CallerStore;
use crate::volume::SpaceRights;
use extant_format::inode::InodeFlags;
use extant_sync::atomic::Ordering;

/// Changes of content on behalf of a caller with rights to space.
#[derive(Clone, Copy, Debug)]
pub struct Privileged<'a> {
    ops: &'a Operations,
    rights: SpaceRights,
}

impl Operations {
    /// Returns whether the superblock lets a caller use the reserved blocks: the user that it names
    /// (root by default), or a member of the group that it names, if that is not root's. Callers
    /// must check the capability `CAP_SYS_RESOURCE` themselves.
    pub fn reserve_is_for(&self, uid: u32, is_member: impl FnOnce(u32) -> bool) -> bool {
        let sb = self.st().groups.superblock();
        let group = u32::from(sb.def_resgid());
        u32::from(sb.def_resuid()) == uid || group != 0 && is_member(group)
    }

    /// Changes of content on behalf of a caller with these rights.
    pub fn with_rights(&self, rights: SpaceRights) -> Privileged<'_> {
        Privileged { ops: self, rights }
    }

    /// Sets whether file content of every caller may use the reserved blocks.
    pub fn set_use_reserve(&self, yes: bool) {
        self.st().policy.use_reserve.store(yes, Ordering::Relaxed);
    }

    /// Writes past the page cache; the data are on the device (not flushed) when this returns.
    /// `strip` takes set-user-id and set-group-id away. Does not ask [`Operations::check_write`].
    pub fn write_direct(
        &self,
        node: &Node,
        offset: u64,
        data: &[u8],
        strip: bool,
    ) -> Result<usize> {
        self.with_rights(SpaceRights::default()).write_direct(node, offset, data, strip)
    }

    /// As [`Operations::write_direct`], of content from a cache that keeps the file's times itself:
    /// those that are here stay.
    pub fn write_kept(&self, node: &Node, offset: u64, data: &[u8], strip: bool) -> Result<usize> {
        self.with_rights(SpaceRights::default()).write_kept(node, offset, data, strip)
    }

    /// fallocate(2).
    pub fn allocate(&self, node: &Node, how: Falloc, offset: u64, len: u64) -> Result<()> {
        self.with_rights(SpaceRights::default()).allocate(node, how, offset, len)
    }
}

impl Privileged<'_> {
    fn st(&self) -> CallerStore<'_> {
        self.ops.st().on_behalf(self.rights)
    }

    /// As [`Operations::write_direct`].
    pub fn write_direct(
        &self,
        node: &Node,
        offset: u64,
        data: &[u8],
        strip: bool,
    ) -> Result<usize> {
        self.write_past(node, offset, data, Note { strip, times: true })
    }

    /// As [`Operations::write_kept`].
    pub fn write_kept(&self, node: &Node, offset: u64, data: &[u8], strip: bool) -> Result<usize> {
        self.write_past(node, offset, data, Note { strip, times: false })
    }

    fn write_past(&self, node: &Node, offset: u64, data: &[u8], note: Note) -> Result<usize> {
        self.ops.own(node)?;
        let st = self.st();
        st.writable()?;
        check_key(node)?;
        // Before the inode is locked: others may read it while the file system is frozen.
        st.mounted.wait_for_thaw();
        self.ops.with_space(|| file::write_direct(&st, &node.0, offset, data, note))
    }

    /// As [`Operations::allocate`].
    pub fn allocate(&self, node: &Node, how: Falloc, offset: u64, len: u64) -> Result<()> {
        self.ops.own(node)?;
        let st = self.st();
        st.writable()?;
        let inode = &node.0;
        check_key(node)?;
        let own = inode.flags();
        let keeps = matches!(how, Falloc::Allocate | Falloc::KeepSize);
        let fixed = InodeFlags::IMMUTABLE | InodeFlags::VERITY;
        if own.intersects(fixed) || own.contains(InodeFlags::APPEND) && !keeps {
            return Err(Errno::Perm.into());
        }
        self.ops.with_space(|| {
            let _lock = self.ops.lock_content(inode)?;
            file::fallocate(&st, inode, how, offset, len)
        })
    }
}
