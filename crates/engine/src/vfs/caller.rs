//! The caller of an operation, on whose behalf the file system is used.

use crate::volume::SpaceRights;

/// The caller of an operation; root by default. Root (user 0) may search every directory, and is
/// not bound by the limits of quotas.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller<'a> {
    /// User, and the owner of new inodes.
    pub uid: u32,
    /// Main group, and the group of new inodes, unless their directory is set-group-id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'a [u32],
    /// Permissions that new inodes do not get, where the directory has no default ACL.
    pub umask: u16,
}

impl Caller<'_> {
    /// Returns the caller, or `None` for root.
    pub fn bound(&self) -> Option<&Self> {
        (self.uid != 0).then_some(self)
    }

    /// Returns whether the caller is a member of a group.
    pub(crate) fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Returns whether the caller may make programs that run with the rights of a group.
    pub(crate) fn may_act_for(&self, gid: u32) -> bool {
        self.uid == 0 || self.is_in(gid)
    }

    /// Returns the rights to space.
    pub(crate) fn rights(&self) -> SpaceRights {
        SpaceRights { ignore_limits: self.uid == 0, use_reserve: false }
    }
}
