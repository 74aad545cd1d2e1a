//! Permission to search the directories of a path.
//!
//! # Locking
//! None where memory knows the directory: owner and mode are read as stat(2) reads them, and an ACL
//! is a value that is replaced as a whole. What memory does not know of an ACL is read under the
//! directory's lock, and kept; who changes one forgets it under the same lock. So what is kept was
//! never older than the last change.

use super::Vfs;
use super::walk::Place;
use crate::error::{Errno, Result};
use crate::inode::{Inode, Ownership};
use crate::xattr;
use extant_format::acl::Acl;
use extant_sync::epoch::Guard;

/// The permission that a walk needs of each directory that it looks into.
const SEARCH: u16 = 1;

/// What a mode permits the group, or where there is an ACL anybody in it but owner and others.
const GROUP: u16 = 0o070;

/// Who walks a path. Root (user 0) may search every directory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity<'a> {
    /// User.
    pub uid: u32,
    /// Main group.
    pub gid: u32,
    /// Further groups.
    pub groups: &'a [u32],
}

impl Identity<'_> {
    /// The identity if it is not allowed everything.
    pub fn bound(&self) -> Option<&Self> {
        (self.uid != 0).then_some(self)
    }

    fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    fn by_mode(&self, dir: &Ownership) -> bool {
        let class = match self.uid == dir.uid {
            true => dir.mode >> 6,
            false if self.is_in(dir.gid) => dir.mode >> 3,
            false => dir.mode,
        };
        class & SEARCH != 0
    }

    fn by_acl(&self, dir: &Ownership, acl: &Acl) -> bool {
        acl.allows(SEARCH, self.uid, dir.uid, dir.gid, |gid| self.is_in(gid))
    }

    fn by(&self, dir: &Ownership, acl: &Option<Acl>) -> bool {
        match acl {
            Some(acl) => self.by_acl(dir, acl),
            None => self.by_mode(dir),
        }
    }
}

/// Whether somebody may search a directory, or what that depends on.
enum Verdict {
    Known(bool),
    /// It has attributes, of which memory does not know whether an ACL is among them.
    Attributes,
}

#[inline]
fn judge(dir: &Inode, who: &Identity<'_>) -> Verdict {
    let owned = dir.ownership();
    // As Linux does: what is the owner's is in the mode, too, and a list whose mask forbids
    // everything is not asked.
    if who.uid == owned.uid || !owned.has_attributes || owned.mode & GROUP == 0 {
        return Verdict::Known(who.by_mode(&owned));
    }
    match dir.dir.get().and_then(|caches| caches.acl.load().get().map(|acl| who.by(&owned, acl))) {
        Some(may) => Verdict::Known(may),
        None => Verdict::Attributes,
    }
}

impl Vfs {
    /// Whether `who` may search the directory at a place, as far as memory knows. None if it does
    /// not.
    #[inline]
    pub(super) fn known_to_search(
        &self,
        pinned: &Guard,
        at: Place,
        who: Option<&Identity<'_>>,
    ) -> Option<bool> {
        let Some(who) = who else { return Some(true) };
        let dir = self.inodes.look(pinned, at.ino).filter(|dir| dir.generation == at.generation)?;
        match judge(dir, who) {
            Verdict::Known(may) => Some(may),
            Verdict::Attributes => None,
        }
    }

    /// EACCES unless `who` may search the directory at a place; ENOTDIR if it is none.
    pub(super) fn check_search(&self, at: Place, who: Option<&Identity<'_>>) -> Result<()> {
        let Some(who) = who else { return Ok(()) };
        let dir = self.current(at)?.ok_or(Errno::Stale)?;
        self.check_search_of(&dir, who)
    }

    /// As [`Self::check_search`], for callers that have the directory. No lock of it may be held.
    pub fn check_search_of(&self, dir: &Inode, who: &Identity<'_>) -> Result<()> {
        if !dir.is_dir() {
            return Err(Errno::NotDir.into());
        }
        let may = match judge(dir, who) {
            Verdict::Known(may) => may,
            Verdict::Attributes => {
                let acl = xattr::keep_access_acl(&self.st, dir)?;
                who.by(&dir.ownership(), &acl)
            }
        };
        if may { Ok(()) } else { Err(Errno::Acces.into()) }
    }
}
