//! What memory knows of extended attributes across inodes: plain data; `xattr` keeps it.
//!
//! # Invariants
//! - `blocks` names only attribute blocks that are in use: the handle that frees one takes it out
//!   before it stops, and who looks one up has a handle open, so that the block cannot have become
//!   something else meanwhile.
//! - An attribute inode has at most one [`Inode`] in memory, the one in `inodes`.
//!
//! # Locking
//! `blocks` and `inodes` are innermost. `sharing` is taken within a handle, with no map locked.

use crate::inode::Inode;
use extant_format::types::InodeNr;
use extant_sync::atomic::AtomicBool;
use extant_sync::{Level, Mutex};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Shared by all inodes of a file system.
#[derive(Debug)]
pub struct AttrCache {
    /// From the hash of an attribute block's entries to one block with that hash.
    pub blocks: Mutex<FxHashMap<u32, u64>>,
    /// Inodes that hold attribute values.
    pub inodes: Mutex<FxHashMap<InodeNr, Arc<Inode>>>,
    /// Held while a block gets another reference from who has none on it, and while a reference is
    /// given back: a block that is freed must not join a transaction again, for then its revoke
    /// would be taken back.
    pub sharing: Mutex<()>,
    /// The superblock says that there are attributes.
    pub announced: AtomicBool,
}

impl Default for AttrCache {
    fn default() -> Self {
        AttrCache {
            blocks: Mutex::new(Level::Leaf, FxHashMap::default()),
            inodes: Mutex::new(Level::Leaf, FxHashMap::default()),
            sharing: Mutex::new(Level::Map, ()),
            announced: AtomicBool::new(false),
        }
    }
}
