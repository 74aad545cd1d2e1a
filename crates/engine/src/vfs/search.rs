//! Permission to search the directories of a path.
//!
//! # Locking
//! A directory with known attributes is checked without a lock: owner and mode are read as stat(2)
//! reads them, and an ACL is an immutable value that is replaced as a whole. An unknown ACL is read
//! under the directory's lock and cached. A thread that changes an ACL drops the cached one under
//! the same lock, so the cached ACL is never older than the last change.
//!
//! # Directories that everyone may search
//! Nearly all directories of a path have mode 0755 or the like. A walk notes with the name of such
//! a directory, or with the root, the number of restrictions so far ([`Restrictions`]); the next
//! walk finds that number there and need not look at the inode, as long as no directory was
//! restricted since.
//!
//! For example, `/usr` is noted at 7 restrictions. `chmod 0700 /home/a` first publishes the mode
//! and then counts restriction 8: walks that begin afterwards look at the inodes again, and note
//! `/usr` at 8. A walk that read the number 7 before may have seen `/home/a` with its old mode, and
//! then notes it at 7, which no later walk takes for valid.

use super::walk::Place;
use super::{Caller, Vfs};
use crate::error::{Errno, Result};
use crate::inode::{Inode, Ownership};
use crate::xattr;
use extant_format::acl::{Acl, FileOwner};
use extant_sync::atomic::{AtomicU32, Ordering};
use extant_sync::epoch::Guard;

/// The permission that a walk needs for each directory that it searches.
const SEARCH: u16 = 1;

/// Permission bits of the group, or, with an ACL, its mask: those of every class except owner and
/// others.
const GROUP: u16 = 0o070;

/// Permissions of all classes to search.
const EVERYONE: u16 = 0o111;

/// The number of times that a directory lost the permission of everyone to search it.
#[derive(Debug)]
pub struct Restrictions(AtomicU32);

impl Default for Restrictions {
    fn default() -> Self {
        Restrictions(AtomicU32::new(1))
    }
}

impl Restrictions {
    /// The number stays there, and no note is valid any more: it must not come around to an old
    /// one. Notes have 31 bits for it.
    const FULL: u32 = u32::MAX >> 1;

    /// Returns the present number, not 0; [`Self::FULL`], which no note has, once it can no longer
    /// be counted.
    #[inline]
    pub fn now(&self) -> u32 {
        // Acquire pairs with `count`: modes read afterwards are those of this number or later ones.
        self.0.load(Ordering::Acquire)
    }

    fn count(&self) {
        // Release: the restriction was published before. The result is not needed.
        let next = |number: u32| (number < Self::FULL).then(|| number + 1);
        let _ = self.0.fetch_update(Ordering::Release, Ordering::Relaxed, next);
    }
}

/// Counts a restriction when it is dropped, if the directory has become one that not everyone may
/// search.
#[must_use]
#[derive(Debug)]
pub struct Restricting<'a> {
    vfs: &'a Vfs,
    dir: &'a Inode,
}

impl Drop for Restricting<'_> {
    fn drop(&mut self) {
        if !everyone_may(self.dir) {
            self.vfs.restrictions.count();
        }
    }
}

/// Returns whether memory knows that everyone may search the directory.
#[inline]
fn everyone_may(dir: &Inode) -> bool {
    let owned = dir.ownership();
    let without_acl = || {
        let caches = dir.dir.get();
        caches.is_some_and(|caches| caches.acl.load().get().is_some_and(Option::is_none))
    };
    owned.mode & EVERYONE == EVERYONE && (!owned.has_attributes || without_acl())
}

/// A directory on the way of a walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passed<'p> {
    pub at: Place,
    /// The directory and the name by which the walk came; `None` for the root and after `..`.
    pub came: Option<(Place, &'p [u8])>,
    /// The number that was stored with that name.
    pub noted: u32,
}

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
    /// Announces a change of the mode or the access ACL of an inode, which must be published before
    /// the result is dropped.
    pub fn restricting<'a>(&'a self, inode: &'a Inode) -> Option<Restricting<'a>> {
        let could = inode.is_dir() && inode.mode() & EVERYONE == EVERYONE;
        could.then_some(Restricting { vfs: self, dir: inode })
    }

    /// Returns whether the caller may search a directory, or `None` if memory lacks the inode or
    /// its ACL. `number` is that of the restrictions when the walk began. Must run with the epoch
    /// pinned; takes a lock only to note a directory.
    #[inline]
    pub(super) fn known_to_search(
        &self,
        pinned: &Guard,
        dir: &Passed<'_>,
        (caller, number): (Option<&Caller<'_>>, u32),
    ) -> Option<bool> {
        match caller {
            Some(caller) if number != dir.noted => {
                self.look_to_search(pinned, dir, (caller, number))
            }
            _ => Some(true),
        }
    }

    fn look_to_search(
        &self,
        pinned: &Guard,
        dir: &Passed<'_>,
        (caller, number): (&Caller<'_>, u32),
    ) -> Option<bool> {
        let at = dir.at;
        let inode = self.inodes.look(pinned, at.ino)?;
        if inode.generation != at.generation {
            return None;
        }
        let Verdict::Known(may) = judge(inode, caller) else { return None };
        if number != Restrictions::FULL && everyone_may(inode) {
            match dir.came {
                Some((parent, name)) => {
                    let key = (parent.ino, parent.generation, name);
                    self.dentries.set_searchable(key, (at.ino, at.generation), number);
                }
                // Relaxed: as with a name, the number is valid as long as it is the present one.
                None if self.root.get() == Some(&at) => {
                    self.root_noted.store(number, Ordering::Relaxed);
                }
                None => {}
            }
        }
        Some(may)
    }

    /// Returns the number that a walk noted with the root, to which no name leads; 0 for none.
    #[inline]
    pub(super) fn noted_of_root(&self) -> u32 {
        self.root_noted.load(Ordering::Relaxed)
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

#[cfg(test)]
mod tests {
    use crate::{Caller, Errno, Follow, Fs, NodeKind, OpenOptions, SetAttr};
    use extant_sync::levels::acquired;
    use extant_testkit::{FeatureSet, Memory};
    use std::sync::Arc;

    #[test]
    fn a_user_walks_without_locks_once_directories_are_noted() {
        let device = Arc::new(Memory::from_bytes(&FeatureSet::named("default").make().bytes()));
        let fs = Fs::open_device(device, &OpenOptions::new()).unwrap();
        let user = Caller { uid: 1000, gid: 1000, ..Caller::default() };
        let root = fs.root().unwrap();
        let mode = |mode| SetAttr { mode: Some(mode), ..Default::default() };
        fs.set_attr(&root, &mode(0o755)).unwrap();
        let [open, own] = [(b"a", 0o755), (b"b", 0o751)].map(|(name, mode)| {
            let dir = fs.create(&root, name, mode, NodeKind::Dir).unwrap();
            fs.create(&dir, b"c", mode & !0o010, NodeKind::Dir).unwrap();
            fs.create(&fs.lookup(&dir, b"c").unwrap(), b"f", 0o644, NodeKind::File).unwrap();
            dir
        });
        let locks = |path| {
            let before = acquired();
            fs.stat_as(&user, path, Follow::No).unwrap();
            fs.resolve_as(&user, path, Follow::No).unwrap();
            acquired() - before
        };
        let walk = || ["/a/c/f", "/b/c/f", "/b/../a/./c/f"].map(&locks);
        // Pinning the epoch may free an object of another test, which takes a lock: the least of
        // several walks counts.
        let walks = || {
            let all = [(); 8].map(|()| walk());
            [0, 1, 2].map(|path| all.iter().map(|locks| locks[path]).min())
        };
        walks();
        assert_eq!(walks(), [Some(0); 3]);
        fs.set_attr(&own, &mode(0o700)).unwrap();
        fs.set_attr(&own, &mode(0o751)).unwrap();
        assert!(walk()[0] > 0, "each directory is noted again");
        assert_eq!(walks(), [Some(0); 3]);
        drop((root, open, own));
        fs.unmount().unwrap();
    }

    #[test]
    fn a_note_of_the_root_ends_with_its_permission() {
        let device = Arc::new(Memory::from_bytes(&FeatureSet::named("default").make().bytes()));
        let fs = Fs::open_device(device, &OpenOptions::new()).unwrap();
        let user = Caller { uid: 1000, gid: 1000, ..Caller::default() };
        let root = fs.root().unwrap();
        fs.create(&root, b"f", 0o644, NodeKind::File).unwrap();
        for mode in [0o755, 0o700, 0o755, 0o751, 0o710, 0o711] {
            fs.set_attr(&root, &SetAttr { mode: Some(mode), ..Default::default() }).unwrap();
            for path in ["/f", "/f", "/../f"] {
                match fs.stat_as(&user, path, Follow::No) {
                    Ok(_) => assert_eq!(mode & 1, 1, "{mode:o}"),
                    Err(e) => assert!(e.is(Errno::Acces) && mode & 1 == 0, "{mode:o} {e}"),
                }
            }
        }
        assert_ne!(fs.operations().vfs.noted_of_root(), 0);
        drop(root);
        fs.unmount().unwrap();
    }
}
