//! The inode table: slots on disk, and the inodes that are newer in memory.

use super::DirtyInodes;
use crate::error::Error;
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
    /// Inodes with slots older than their state in memory.
    pub dirty: DirtyInodes,
    /// All inodes in memory.
    #[cfg(feature = "designs")]
    pub all: Arc<super::designs::AllInodes>,
}

impl InodeTable {
    /// The table of a file system, before the first inode is loaded.
    pub fn new(vol: Arc<Volume>, groups: Arc<Groups>) -> InodeTable {
        InodeTable {
            vol,
            groups,
            dirty: DirtyInodes::default(),
            #[cfg(feature = "designs")]
            all: Arc::default(),
        }
    }

    /// The same with the list of all inodes that a sync of these pages walks.
    #[cfg(feature = "designs")]
    pub fn listed_by(self, pages: &super::PageBudget) -> InodeTable {
        InodeTable { all: pages.all_inodes().clone(), ..self }
    }

    /// Notes damage in the superblock, and obeys the error policy.
    pub fn note_damage(&self, why: &Error) {
        self.groups.note(why);
        self.obey_error_policy(why);
    }
}

impl Deref for InodeTable {
    type Target = Volume;
    fn deref(&self) -> &Volume {
        &self.vol
    }
}
