//! The lower rooms as one thing, so that the rooms above (extent, xattr, dir, file, ops) take one
//! argument.

use crate::{
    alloc::Alloc,
    error::Error,
    groups::Groups,
    inode::{AttrCache, DirtyInodes, PagePool},
    orphan::Orphans,
    quota::Quotas,
    volume::Volume,
};
use std::ops::Deref;
use std::sync::Arc;

/// Everything below the maps of files.
#[derive(Debug)]
pub struct Store {
    /// Device, cache, journal, time.
    pub vol: Arc<Volume>,
    /// Superblock, descriptors, counts.
    pub groups: Arc<Groups>,
    /// Blocks and inodes.
    pub alloc: Arc<Alloc>,
    /// Orphan records.
    pub orphans: Orphans,
    /// Usage of owners, and its limits.
    pub quota: Quotas,
    /// Inodes whose table slot is older than memory.
    pub dirty: DirtyInodes,
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
    type Target = Volume;
    fn deref(&self) -> &Volume {
        &self.vol
    }
}
