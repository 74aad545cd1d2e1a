//! Rights to space: the blocks that are reserved for root, or for the user and group that the
//! superblock names, and exemption from quota limits. With them come the operations that take space
//! for a caller: writes of a client with a cache of its own (a FUSE mount) and fallocate(2).

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

    /// Writes content from a cache that keeps the file's times itself: those that are here stay.
    /// Content of a small file waits in pages for writeback, with its space reserved; a failure of
    /// that is told by [`Operations::check_errors`]. Other content is written as by
    /// [`Operations::write_direct`].
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
        let st = self.writable(node)?;
        self.ops.with_space(|| write_past(&st, node, offset, data, Note { strip, times: true }))
    }

    /// As [`Operations::write_kept`].
    pub fn write_kept(&self, node: &Node, offset: u64, data: &[u8], strip: bool) -> Result<usize> {
        let st = self.writable(node)?;
        let note = Note { strip, times: false };
        self.ops.with_space(|| match self.write_behind(node, offset, data, note)? {
            Some(done) => Ok(done),
            None => write_past(&st, node, offset, data, note),
        })
    }

    /// Writes into pages that wait for writeback. `None` if the file is not small, or if there is
    /// no space to reserve: a write past the pages needs no reservation for its map.
    fn write_behind(
        &self,
        node: &Node,
        offset: u64,
        data: &[u8],
        note: Note,
    ) -> Result<Option<usize>> {
        let end = offset.saturating_add(data.len() as u64);
        if !file::may_wait(&node.0, end) {
            return Ok(None);
        }
        let _lock = self.ops.lock_content(&node.0)?;
        // Again under the lock: the file may have grown or been cut.
        if !file::may_wait(&node.0, end) {
            return Ok(None);
        }
        node.0.pages.set_cached_elsewhere();
        match file::write(&self.st(), &node.0, offset, data, note) {
            Err(e) if e.is(Errno::NoSpc) => Ok(None),
            done => done.map(Some),
        }
    }

    /// The store, for a change of the node's content past the pages.
    fn writable(&self, node: &Node) -> Result<CallerStore<'_>> {
        self.ops.own(node)?;
        let st = self.st();
        st.writable()?;
        check_key(node)?;
        // Before the inode is locked: others may read it while the file system is frozen.
        st.mounted.wait_for_thaw();
        Ok(st)
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
            let _lock = self.ops.lock_thawed(|| self.ops.lock_content(inode))?;
            file::fallocate(&st, inode, how, offset, len)
        })
    }
}

/// Writes past the pages of a file whose content a client caches.
fn write_past(
    st: &CallerStore<'_>,
    node: &Node,
    offset: u64,
    data: &[u8],
    note: Note,
) -> Result<usize> {
    // Waiting pages first: the size on disk must not pass over bytes that a crash would lose. A
    // failure is noted for the file's descriptors, and is none of this write.
    let _ = file::write_waiting(st, &node.0);
    file::write_direct(st, &node.0, offset, data, note)
}
