//! The inode table: slots on disk, and the inodes that are newer in memory.

use super::DirtyInodes;
use crate::groups::Groups;
use crate::volume::Volume;
use std::ops::Deref;
use std::sync::Arc;

/// Reads and writes the slots of inodes. Modules that change an inode and nothing else of its
/// file take this, and not all that stands above it.
#[derive(Debug)]
pub struct InodeTable {
    /// Device, cache, journal, time.
    pub vol: Arc<Volume>,
    /// Superblock, descriptors, counts.
    pub groups: Arc<Groups>,
    /// Inodes whose slot is older than memory.
    pub dirty: DirtyInodes,
}

impl InodeTable {
    /// The table of a file system, before the first inode is loaded.
    pub fn new(vol: Arc<Volume>, groups: Arc<Groups>) -> InodeTable {
        InodeTable { vol, groups, dirty: DirtyInodes::default() }
    }
}

impl Deref for InodeTable {
    type Target = Volume;
    fn deref(&self) -> &Volume {
        &self.vol
    }
}
