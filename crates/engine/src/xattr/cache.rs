//! Attribute blocks and attribute inodes that are known in memory, for all inodes of a file system.
//! `xattr` maintains them.
//!
//! # Invariants
//! - `blocks` names only attribute blocks in use. The handle that frees a block removes it from
//!   `blocks` before the handle stops. A thread that looks one up has an open handle, so the block
//!   cannot have been reused meanwhile.
//! - An attribute inode has at most one [`Inode`] in memory, the one in `inodes`.
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
    pub inodes: Mutex<FxHashMap<InodeNr, Arc<Inode>>>,
    /// Held while an inode takes its first reference to a block, and while a reference is dropped.
    /// A freed block must not join a transaction again, since that would cancel its revoke.
    pub sharing: Mutex<()>,
    /// Attribute inodes without references that are orphans, since their handles had no credits to
    /// free them. [`AttrCache::take_left`] hands them to the reaper.
    pub left: Mutex<Vec<Arc<Inode>>>,
    /// Whether the superblock has the feature `ext_attr`.
    pub announced: AtomicBool,
}

impl Default for AttrCache {
    fn default() -> Self {
        AttrCache {
            blocks: Mutex::new(Level::Leaf, FxHashMap::default()),
            inodes: Mutex::new(Level::Leaf, FxHashMap::default()),
            sharing: Mutex::new(Level::Map, ()),
            left: Mutex::new(Level::Leaf, Vec::new()),
            announced: AtomicBool::new(false),
        }
    }
}

impl AttrCache {
    /// Removes an inode that is freed.
    pub fn forget(&self, inode: &Inode) {
        if inode.flags().contains(InodeFlags::EA_INODE) {
            self.inodes.lock().remove(&inode.ino);
        }
    }

    /// Returns the attribute inodes that wait for the reaper.
    pub fn take_left(&self) -> Vec<Arc<Inode>> {
        std::mem::take(&mut *self.left.lock())
    }
}
