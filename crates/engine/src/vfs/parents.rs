//! Parents of directories: `..`, and walks upward.
//!
//! A directory in memory has a link to its parent ([`ParentLink`]). The first `..` reads the blocks
//! and sets it; a rename that gives the directory another parent changes it.
//!
//! # Invariants
//! - A link agrees with the `..` of the directory's blocks. It is set from unknown under the
//!   directory's `rw` lock for reading, and changed under that lock for writing, while
//!   [`Vfs::moves`] reports the move.
//! - A link names its parent by number and generation, and only directories.
//!
//! # Locking
//! A known parent is found without a lock. Otherwise the directory's lock is taken for reading.

use super::walk::Place;
use super::{InodeRef, Vfs};
use crate::dir;
use crate::error::Result;
use crate::inode::Inode;
use extant_format::types::InodeNr;
use extant_sync::epoch::{Guard, pin};
use std::sync::Arc;

impl Vfs {
    /// Returns the place of a directory's parent, if the directory is in memory and its parent is
    /// known. Takes no lock and no reference.
    pub(super) fn known_parent(&self, pinned: &Guard, at: Place) -> Option<Place> {
        let dir = self.inodes.look(pinned, at.ino)?;
        if dir.generation != at.generation || dir.freeing() {
            return None;
        }
        let (ino, generation) = dir.dir.get()?.parent.get()?;
        Some(Place { ino: InodeNr(ino), generation })
    }

    /// Returns the directory that a directory is in; the root is in itself. ESTALE if it was freed.
    /// The caller must not hold the directory's lock.
    pub fn parent(&self, dir: &Arc<Inode>) -> Result<InodeRef> {
        dir.check_not_freed()?;
        if let Some(caches) = dir.dir.get()
            && let Some(parent) = self.inodes.parent(&pin(), &caches.parent)
        {
            return Ok(parent);
        }
        let _lock = dir.read_lock()?;
        let parent = self.node(dir::parent(&self.st, dir)?)?;
        self.learn_parent(dir, &parent);
        Ok(parent)
    }

    /// Stores the parent that the directory's blocks name. The caller must hold the directory's
    /// lock.
    pub(super) fn learn_parent(&self, dir: &Inode, parent: &Inode) {
        // A damaged image may name another kind of inode.
        if parent.is_dir() {
            dir.dir.parent.set(parent.ino.0, parent.generation);
        }
    }

    /// Changes the stored parent of a directory. The caller must hold the directory's lock for
    /// writing, and must have begun a move ([`Vfs::moves`]).
    pub fn change_parent(&self, dir: &Inode, parent: &Inode) {
        // Without caches nothing is stored.
        if dir.dir.get().is_some() {
            self.learn_parent(dir, parent);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Follow, Fs, NodeKind, OpenOptions, RenameFlags};
    use extant_sync::levels::acquired;
    use extant_testkit::{FeatureSet, Memory};
    use std::sync::Arc;

    /// Asserts that a thread takes no lock in `f`.
    fn without_lock<R>(what: &str, f: impl FnOnce() -> R) -> R {
        let before = acquired();
        let result = f();
        assert_eq!(acquired() - before, 0, "{what}");
        result
    }

    #[test]
    fn a_known_parent_is_found_without_a_lock() {
        let device = Arc::new(Memory::from_bytes(&FeatureSet::named("default").make().bytes()));
        let fs = Fs::open_device(device, &OpenOptions::new()).unwrap();
        let root = fs.root().unwrap();
        let [a, b] = [b"a", b"b"].map(|name| fs.create(&root, name, 0o755, NodeKind::Dir).unwrap());
        let c = fs.create(&a, b"c", 0o755, NodeKind::Dir).unwrap();
        let path = "/a/c/../../a/./c/..";
        // The first walk stores names and parents.
        assert_eq!(fs.resolve(path, Follow::No).unwrap().ino(), a.ino());
        let found = without_lock("resolve", || fs.resolve(path, Follow::No)).unwrap();
        assert_eq!(found.ino(), a.ino());
        let attr = without_lock("stat", || fs.stat(path, Follow::No)).unwrap();
        assert_eq!(attr.ino, a.ino());
        let up = without_lock("lookup", || fs.lookup(&c, b"..")).unwrap();
        assert_eq!(up.ino(), a.ino());
        fs.rename((&a, b"c"), (&b, b"c"), RenameFlags::empty()).unwrap();
        assert_eq!(without_lock("parent", || fs.parent(&c)).unwrap().ino(), b.ino());
        drop((root, a, b, c, found, up));
        fs.unmount().unwrap();
    }
}
