//! Changes of attributes, and the set-id bits and capabilities that such changes remove.

use super::convert::system_time;
use super::credentials::is_member;
use super::*;
use extant_engine::{FileType, SetAttr, TimeSet};

/// Set-group-id in a mode.
pub(super) const SET_GROUP: u16 = 0o2000;

/// Set-user-id in a mode.
const SET_USER: u16 = 0o4000;

/// Execution by the group in a mode.
const GROUP_EXECUTES: u16 = 0o010;

/// Returns whether a chown would remove set-id bits although the caller is not the owner. Only the
/// owner may remove them.
fn takes_set_id(credentials: Credentials, node: &Node) -> bool {
    let attr = node.attr();
    let is_kept = || attr.mode & GROUP_EXECUTES == 0 && keeps_group(credentials, attr.gid);
    let is_lost = attr.mode & SET_USER != 0 || attr.mode & SET_GROUP != 0 && !is_kept();
    let is_owner = || credentials.uid == attr.uid || is_capable(credentials, Capability::FileOwner);
    is_lost && node.file_type() != FileType::Directory && !is_owner()
}

/// Returns whether the set-group-id bit of a file of this group survives a change by the caller.
pub(super) fn keeps_group(credentials: Credentials, gid: u32) -> bool {
    is_member(credentials, gid) || is_capable(credentials, Capability::FileSetId)
}

impl Server {
    /// Converts attributes for a reply. The kernel trusts its copy and accepts cached writes, so an
    /// immutable file needs a notice: the kernel must then request attributes before the next
    /// write.
    pub(super) fn file_attr(&self, a: &Attr) -> FileAttr {
        if self.writeback && a.flags & ioctl::IMMUTABLE != 0 {
            let ino = protocol_ino(a.ino);
            if self.writers.any(ino) {
                self.notices.attributes(ino);
            }
        }
        let own = file_attr(a, self.block_size);
        FileAttr {
            uid: self.view.uid.unwrap_or(own.uid),
            gid: self.view.gid.unwrap_or(own.gid),
            perm: own.perm & !self.view.umask,
            ..own
        }
    }

    pub(super) fn change(
        &self,
        credentials: Credentials,
        ino: NodeId,
        change: Change,
    ) -> Result<(FileAttr, Duration), Error> {
        let node = self.node(ino)?;
        let mut set = change.set;
        let times = set.atime.is_some() || set.mtime.is_some();
        let others =
            set.mode.is_some() || set.size.is_some() || set.uid.is_some() || set.gid.is_some();
        set.kept = !others && Self::is_kept(&node, change);
        // A chown that changes neither owner nor group carries no attribute, and the kernel has not
        // checked the caller's permission. The kernel sends the same request, without a change
        // time, before a write by another user: the write itself then removes the bits.
        let names_nothing = !times && !others;
        let names_owner = set.uid.is_some() || set.gid.is_some();
        let is_forbidden = (names_nothing || names_owner) && takes_set_id(credentials, &node);
        if is_forbidden && (names_owner || set.ctime.is_some()) {
            return Err(Errno::Perm.into());
        }
        let owner = names_owner || names_nothing && !is_forbidden;
        if owner || set.size.is_some() && change.strip {
            self.drop_privileges(credentials, &node)?;
        }
        // The write changes the mode, but its reply does not carry the new mode.
        let ttl = if is_forbidden { Duration::ZERO } else { self.ttl };
        let by_caller =
            !set.kept || matches!(set.mtime, Some(TimeSet::At(t)) if self.predates(ino, t));
        if !by_caller {
            let attr = self.ops.set_attr(&node, &set)?;
            self.note_cut(ino, &set, &attr);
            return Ok((self.file_attr(&attr), ttl));
        }
        self.writers.blocks_unknown(ino);
        let mut attr = self.ops.set_attr(&node, &set)?;
        self.note_cut(ino, &set, &attr);
        // Read again under the lock of the shard: a thread that changes the number of blocks
        // afterwards finds a different number noted, and sends a notice.
        let blocks = || {
            attr = node.attr();
            attr.blocks
        };
        self.writers.tell_blocks(ino, blocks, || self.notices.blocks_told(ino));
        Ok((self.file_attr(&attr), ttl))
    }

    /// Returns whether a request carries times that the kernel cached for earlier changes. Such a
    /// request has a change time and names a file that is open for writing. Without an open file
    /// the kernel has cached a change time only, of a link or a rename.
    pub(super) fn is_kept(node: &Node, Change { set, open, .. }: Change) -> bool {
        let both = set.atime.is_none() && set.ctime.is_some();
        both && matches!(set.mtime, Some(TimeSet::At(t)) if open || t == node.attr().mtime)
    }

    /// Returns whether a time is older than any that the kernel may have cached for writes, as far
    /// as opens are known.
    pub(super) fn predates(&self, ino: NodeId, t: Timestamp) -> bool {
        !self.misses_opens() && self.writers.predates(ino, system_time(t))
    }

    /// Notes that the inode cannot hold a time as requested: the kernel caches the requested time.
    pub(super) fn note_cut(&self, ino: NodeId, set: &SetAttr, attr: &Attr) {
        if matches!(set.mtime, Some(TimeSet::At(asked)) if asked != attr.mtime) {
            self.kept_wrong(ino);
        }
    }

    /// Makes the kernel forget its times of the inode, which are wrong. With the writeback cache it
    /// trusts its own copy.
    pub(super) fn kept_wrong(&self, ino: NodeId) {
        if self.writeback {
            self.writers.wrong(ino);
            if self.misses_opens() {
                self.notices.forget_unseen(ino);
            } else {
                self.notices.forget(ino);
            }
        }
    }

    pub(super) fn drop_privileges(
        &self,
        credentials: Credentials,
        node: &Node,
    ) -> Result<(), Error> {
        self.ops.drop_privileges(node, |gid| keeps_group(credentials, gid))
    }

    /// Updates the kernel's cache after an ioctl changed attributes of an open file.
    pub(super) fn flags_changed(&self, ino: NodeId, node: &Node) {
        self.writers.set_floor(ino, self.ops.only_grows(node).then(|| node.attr().size));
        self.notices.attributes_now(ino);
        self.kept_wrong(ino);
    }

    /// Sets the access time by the policy of the mount. Returns whether it changed; a notice to the
    /// kernel is then queued.
    pub(super) fn note_access(&self, ino: NodeId, node: &Node) -> bool {
        let Some(which) = self.access_times else { return false };
        match self.ops.accessed(node, which) {
            Ok(noted) => {
                if noted {
                    self.notices.attributes(ino);
                }
                noted
            }
            Err(e) => {
                // The read succeeds nevertheless.
                tracing::debug!("failed to set an access time: {e}");
                false
            }
        }
    }
}
