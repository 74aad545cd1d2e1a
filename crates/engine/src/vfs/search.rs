//! Permission to search the directories of a path.
//!
//! # Locking
//! A directory with known attributes is checked without a lock: owner and mode are read as stat(2)
//! reads them, and an ACL is an immutable value that is replaced as a whole. An unknown ACL is read
//! under the directory's lock and cached. A thread that changes an ACL drops the cached one under
//! the same lock, so the cached ACL is never older than the last change.

use super::walk::Place;
use super::{Caller, Vfs};
use crate::error::{Errno, Result};
use crate::inode::{Inode, Ownership};
use crate::xattr;
use extant_format::acl::{Acl, FileOwner};
use extant_sync::epoch::Guard;

/// The permission that a walk needs for each directory that it searches.
const SEARCH: u16 = 1;

/// Permission bits of the group, or, with an ACL, its mask: those of every class except owner and
/// others.
const GROUP: u16 = 0o070;

impl Caller<'_> {
    fn by_mode(&self, dir: &Ownership) -> bool {
        let class = match self.uid == dir.uid {
            true => dir.mode >> 6,
            false if self.is_in(dir.gid) => dir.mode >> 3,
            false => dir.mode,
        };
        class & SEARCH != 0
    }

    fn by_acl(&self, dir: &Ownership, acl: &Acl) -> bool {
        let owner = FileOwner { uid: dir.uid, gid: dir.gid };
        acl.allows(SEARCH, owner, self.uid, |gid| self.is_in(gid))
    }

    fn by(&self, dir: &Ownership, acl: &Option<Acl>) -> bool {
        match acl {
            Some(acl) => self.by_acl(dir, acl),
            None => self.by_mode(dir),
        }
    }
}

/// The result of a search check without the attributes.
enum Verdict {
    Known(bool),
    /// The directory has attributes, and memory does not know whether they include an ACL.
    Attributes,
}

#[inline]
fn judge(dir: &Inode, caller: &Caller<'_>) -> Verdict {
    let owned = dir.ownership();
    // As in Linux: the owner's permissions are in the mode, and an ACL whose mask forbids
    // everything is not read.
    if caller.uid == owned.uid || !owned.has_attributes || owned.mode & GROUP == 0 {
        return Verdict::Known(caller.by_mode(&owned));
    }
    match dir.dir.get().and_then(|caches| caches.acl.load().get().map(|acl| caller.by(&owned, acl)))
    {
        Some(may) => Verdict::Known(may),
        None => Verdict::Attributes,
    }
}

impl Vfs {
    /// Returns whether the caller may search the directory at a place, or `None` if memory lacks
    /// the inode or its ACL. Must run with the epoch pinned; takes no lock.
    #[inline]
    pub(super) fn known_to_search(
        &self,
        pinned: &Guard,
        at: Place,
        caller: Option<&Caller<'_>>,
    ) -> Option<bool> {
        let Some(caller) = caller else { return Some(true) };
        let dir = self.inodes.look(pinned, at.ino).filter(|dir| dir.generation == at.generation)?;
        match judge(dir, caller) {
            Verdict::Known(may) => Some(may),
            Verdict::Attributes => None,
        }
    }

    /// Verifies that the caller may search the directory at a place. Returns EACCES if not, and
    /// ENOTDIR for other files.
    pub(super) fn check_search(&self, at: Place, caller: Option<&Caller<'_>>) -> Result<()> {
        let Some(caller) = caller else { return Ok(()) };
        let dir = self.current(at)?.ok_or(Errno::Stale)?;
        self.check_search_of(&dir, caller)
    }

    /// Verifies the same as [`Self::check_search`], for callers that have the directory. The caller
    /// must not hold its lock.
    pub fn check_search_of(&self, dir: &Inode, caller: &Caller<'_>) -> Result<()> {
        if !dir.is_dir() {
            return Err(Errno::NotDir.into());
        }
        let may = match judge(dir, caller) {
            Verdict::Known(may) => may,
            Verdict::Attributes => {
                let acl = xattr::keep_access_acl(&self.st, dir)?;
                caller.by(&dir.ownership(), &acl)
            }
        };
        if may { Ok(()) } else { Err(Errno::Acces.into()) }
    }
}
