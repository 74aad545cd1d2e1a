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
//! - The blocks of a removed directory are not read: another directory may have the number that
//!   they name.
//!
//! # Locking
//! A known parent is found without a lock. Otherwise the directory's lock is taken for reading.

use super::walk::Place;
use super::{InodeRef, Vfs};
use crate::dir;
use crate::error::{Errno, Result};
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

    /// Returns the directory that a directory is in; the root is in itself. ESTALE if it was freed,
    /// ENOENT if it was removed and memory does not have its parent. The caller must not hold the
    /// directory's lock.
    pub fn parent(&self, dir: &Arc<Inode>) -> Result<InodeRef> {
        dir.check_not_freed()?;
        if let Some(caches) = dir.dir.get()
            && let Some(parent) = self.inodes.parent(&pin(), &caches.parent)
        {
            return Ok(parent);
        }
        let _lock = dir.read_lock()?;
        if dir.links() == 0 {
            return Err(Errno::NoEnt.into());
        }
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
    use crate::{Errno, Follow, Fs, Node, NodeKind, OpenOptions, RenameFlags};
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

    #[test]
    fn a_removed_directory_is_in_no_directory_with_a_reused_number() {
        let device = Arc::new(Memory::from_bytes(&FeatureSet::named("default").make().bytes()));
        let fs = Fs::open_device(device, &OpenOptions::new()).unwrap();
        let root = fs.root().unwrap();
        let mkdir = |dir: &Node, name: &[u8]| fs.create(dir, name, 0o755, NodeKind::Dir).unwrap();
        let top = mkdir(&root, b"top");
        let outer = mkdir(&top, b"outer");
        let inner = mkdir(&outer, b"inner");
        let number = outer.ino();
        inner.hold(1).unwrap();
        assert_eq!(fs.parent(&inner).unwrap().ino(), number);
        fs.rmdir(&outer, b"inner").unwrap();
        assert_eq!(fs.parent(&inner).unwrap().ino(), number, "a parent that still exists");
        drop(outer);
        fs.rmdir(&top, b"outer").unwrap();
        let reused = (0..1000).map(|n| {
            // The number is free when the directory is freed and its transaction has ended.
            fs.sync().unwrap();
            mkdir(&top, format!("{n}").as_bytes())
        });
        let other = reused.into_iter().find(|dir| dir.ino() == number).expect("a reused number");
        let parent = fs.parent(&inner).map(|dir| dir.ino());
        assert!(parent.unwrap_err().is(Errno::NoEnt));
        assert!(fs.lookup(&inner, b"..").unwrap_err().is(Errno::NoEnt));
        assert_eq!(fs.parent(&other).unwrap().ino(), top.ino());
        drop((root, top, inner, other));
        fs.unmount().unwrap();
    }
}
