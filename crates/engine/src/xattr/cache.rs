//! Attribute blocks and attribute inodes that are known in memory, for all inodes of a file system.
//! `xattr` maintains them.
//!
//! # Invariants
//! - `blocks` names only attribute blocks in use. The handle that frees a block removes it from
//!   `blocks` before the handle stops. A thread that looks one up has an open handle, so the block
//!   cannot have been reused meanwhile.
//! - An attribute inode has at most one [`Inode`] in memory, the one in `inodes`. A freed inode
//!   stays there until its number is free in the bitmap, so that its slot, which may be older than
//!   memory, is not loaded again.
//!
//! # Locking
//! `blocks` and `inodes` are innermost. `sharing` is taken within a handle, with no map lock held.

use crate::inode::Inode;
use extant_format::inode::InodeFlags;
use extant_format::types::InodeNr;
use extant_sync::atomic::AtomicBool;
use extant_sync::{Level, Mutex};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The cache of attribute blocks and attribute inodes, shared by all inodes of a file system.
#[derive(Debug)]
pub struct AttrCache {
    /// Maps the hash of an attribute block's entries to one block with that hash.
    pub blocks: Mutex<FxHashMap<u32, u64>>,
    /// Inodes that hold attribute values.
    pub inodes: Mutex<KnownValues>,
    /// Held while an inode takes its first reference to a block, and while a reference is dropped.
    /// A freed block must not join a transaction again, since that would cancel its revoke.
    pub sharing: Mutex<()>,
    /// Attribute inodes without references that are orphans, since their handles had no credits to
    /// free them. [`AttrCache::take_left`] hands them to the reaper.
    pub left: Mutex<Vec<Arc<Inode>>>,
    /// Whether the superblock has the feature `ext_attr`.
    pub announced: AtomicBool,
}

/// The attribute inodes in memory.
#[derive(Debug, Default)]
pub struct KnownValues {
    inodes: FxHashMap<InodeNr, Arc<Inode>>,
    departures: u64,
}

impl KnownValues {
    /// Returns the inode with this number.
    pub fn find(&self, ino: InodeNr) -> Option<Arc<Inode>> {
        self.inodes.get(&ino).cloned()
    }

    /// How often inodes have left.
    pub fn departures(&self) -> u64 {
        self.departures
    }

    /// Stores an inode that was loaded after [`Self::departures`] returned `departures`. Returns
    /// the one inode with its number; `None` if an inode has left since then: it may have been this
    /// one, with changes that the loaded one lacks.
    pub fn insert_loaded(&mut self, loaded: Arc<Inode>, departures: u64) -> Option<Arc<Inode>> {
        if self.departures != departures {
            return None;
        }
        Some(self.inodes.entry(loaded.ino).or_insert(loaded).clone())
    }

    /// Stores the inode of a new value.
    pub fn insert_new(&mut self, inode: Arc<Inode>) {
        self.inodes.insert(inode.ino, inode);
    }

    /// Drops inodes without another reference if there are more than `most`. None of them is dirty:
    /// their slots are as new as memory.
    pub fn shrink(&mut self, most: usize) {
        let before = self.inodes.len();
        if before > most {
            self.inodes.retain(|_, inode| Arc::strong_count(inode) > 1);
            self.departures += u64::from(self.inodes.len() < before);
        }
    }

    /// Another inode may have the number meanwhile.
    fn remove(&mut self, inode: &Inode) {
        let known = self.inodes.get(&inode.ino);
        if known.is_some_and(|known| std::ptr::eq(Arc::as_ptr(known), inode)) {
            self.inodes.remove(&inode.ino);
            self.departures += 1;
        }
    }
}

impl Default for AttrCache {
    fn default() -> Self {
        AttrCache {
            blocks: Mutex::new(Level::Leaf, FxHashMap::default()),
            inodes: Mutex::new(Level::Leaf, KnownValues::default()),
            sharing: Mutex::new(Level::Map, ()),
            left: Mutex::new(Level::Leaf, Vec::new()),
            announced: AtomicBool::new(false),
        }
    }
}

impl AttrCache {
    /// Removes an inode whose number was freed by the caller's handle.
    pub fn forget(&self, inode: &Inode) {
        if inode.flags().contains(InodeFlags::EA_INODE) {
            self.inodes.lock().remove(inode);
        }
    }

    /// Returns the attribute inodes that wait for the reaper.
    pub fn take_left(&self) -> Vec<Arc<Inode>> {
        std::mem::take(&mut *self.left.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fs, OpenOptions};
    use extant_testkit::{FeatureSet, Memory};

    /// A thread reads a slot. Meanwhile others change the inode, write it and drop it.
    #[test]
    fn an_inode_that_left_meanwhile_is_loaded_again() {
        const INO: InodeNr = InodeNr::ROOT;
        let device = Arc::new(Memory::from_bytes(&FeatureSet::named("default").make().bytes()));
        let fs = Fs::open_device(device, &OpenOptions::new()).unwrap();
        let load = || Inode::load(fs.st(), INO).unwrap();
        let mut values = KnownValues::default();
        let (departures, old) = (values.departures(), load());
        drop(values.insert_loaded(load(), departures).unwrap());
        values.shrink(0);
        assert!(values.find(INO).is_none());
        assert!(values.insert_loaded(old, departures).is_none());
        let departures = values.departures();
        let used = values.insert_loaded(load(), departures).unwrap();
        values.shrink(0);
        assert_eq!(values.departures(), departures);
        assert!(Arc::ptr_eq(&values.insert_loaded(load(), departures).unwrap(), &used));
        let new = load();
        values.insert_new(new.clone());
        values.remove(&used);
        assert!(values.find(INO).is_some_and(|known| Arc::ptr_eq(&known, &new)));
        values.remove(&new);
        assert!(values.find(INO).is_none() && values.departures() > departures);
        fs.unmount().unwrap();
    }
}
