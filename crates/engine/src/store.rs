//! The lower rooms as one thing, so that the rooms above (extent, xattr, dir, file, ops) take one
//! argument.

use crate::{
    alloc::Alloc,
    error::Error,
    inode::{AttrCache, InodeTable, PagePool},
    orphan::Orphans,
    quota::Quotas,
};
use std::ops::Deref;
use std::sync::Arc;

/// Everything below the maps of files.
#[derive(Debug)]
pub struct Store {
    /// Slots of inodes; the volume and its groups.
    pub table: InodeTable,
    /// Blocks and inodes.
    pub alloc: Arc<Alloc>,
    /// Orphan records.
    pub orphans: Orphans,
    /// Usage of owners, and its limits.
    pub quota: Quotas,
    /// Attribute blocks and inodes.
    pub attrs: AttrCache,
    /// All cached file content.
    pub pool: PagePool,
}

impl Store {
    /// Notes damage in the superblock, and obeys the error policy.
    pub fn note_damage(&self, why: &Error) {
        self.groups.note(why);
        self.obey_error_policy(why);
    }
}

impl Deref for Store {
    type Target = InodeTable;
    fn deref(&self) -> &InodeTable {
        &self.table
    }
}
