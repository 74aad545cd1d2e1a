//! Inodes without a name that no caller looks up by number, such as those of `O_TMPFILE`.
//!
//! # Invariants
//! - An inode is in this table from its creation until it is freed or enters the inode cache. The
//!   table's reference keeps it in memory, independently of other references.
//! - The table has at most one inode for a number. A freed inode may be replaced by the next inode
//!   of its number before it is removed.
//!
//! # Locking
//! Each shard of the inode cache has a table for its numbers, under the shard's lock. No reference
//! is dropped under it.

use crate::inode::Inode;
use crate::vfs::InodeRef;
use extant_format::types::InodeNr;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The inodes without a name of one shard; see the module's description.
#[derive(Debug, Default)]
pub struct TmpfileTable(FxHashMap<u32, InodeRef>);

impl TmpfileTable {
    /// Returns whether the table has an inode with this number.
    pub fn has(&self, ino: InodeNr) -> bool {
        self.0.contains_key(&ino.0)
    }

    /// Adds a new inode. Returns the freed inode that had its number before, which must be dropped
    /// without the lock.
    pub fn insert(&mut self, inode: InodeRef) -> Option<InodeRef> {
        self.0.insert(inode.ino.0, inode)
    }

    /// Removes an inode. Returns `None` if it is absent; another inode with its number stays.
    pub fn remove(&mut self, inode: &Inode) -> Option<InodeRef> {
        match self.0.get(&inode.ino.0) {
            Some(known) if std::ptr::eq(&***known, inode) => self.0.remove(&inode.ino.0),
            _ => None,
        }
    }

    /// Returns all inodes of the table.
    pub fn all(&self) -> impl Iterator<Item = Arc<Inode>> + '_ {
        self.0.values().map(|inode| Arc::clone(inode))
    }

    /// Returns the number of inodes in the table.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}
