//! All modules up to directories as one argument, for files and the modules above them.

mod dirty_files;
mod plugs;
mod set_aside;

pub use dirty_files::DirtyFiles;
pub use set_aside::Alone;

use crate::error::Result;
use crate::inode::{Inode, PageBudget, Tx};
use crate::volume::SpaceRights;
use crate::xattr::AttrEnv;
use std::ops::Deref;
use std::sync::Arc;

/// The contexts of the modules below, and the pages of files.
#[derive(Debug)]
pub struct Store {
    /// The context of attributes and directories.
    pub names: AttrEnv,
    /// Memory for cached file content.
    pub pages: PageBudget,
    /// Files whose cached content is to be written back.
    pub dirty_files: DirtyFiles,
}

/// The contents of the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes of all pages.
    pub bytes: u64,
    /// Bytes that wait for being written.
    pub dirty: u64,
    /// Files with bytes that wait for being written.
    pub dirty_files: usize,
    /// Files under writeback.
    pub writeback_files: usize,
    /// The bound.
    pub limit: u64,
}

impl Deref for Store {
    type Target = AttrEnv;
    fn deref(&self) -> &AttrEnv {
        &self.names
    }
}

/// The store on behalf of a caller, with its rights to space.
#[derive(Clone, Copy, Debug)]
pub struct CallerStore<'a> {
    store: &'a Store,
    /// The caller's rights.
    pub rights: SpaceRights,
}

impl Store {
    /// Notes that the inode has waiting pages.
    pub fn note_dirty(&self, inode: &Arc<Inode>) {
        self.dirty_files.note(inode);
        self.pages.note(inode);
    }

    /// Returns the contents of the page cache.
    pub fn page_stats(&self) -> PoolStats {
        PoolStats {
            bytes: self.pages.bytes(),
            dirty: self.pages.dirty_bytes(),
            dirty_files: self.dirty_files.len(),
            writeback_files: self.pages.writeback_files(),
            limit: self.pages.limit(),
        }
    }

    /// Returns whether no page is dirty or under writeback, and no loss is unreported. Reads one
    /// word of each list's shards, and no inode.
    pub fn is_clean(&self) -> bool {
        self.is_written() && !self.dirty_files.any_failed()
    }

    /// Whether nothing waits for being written and nothing is being written.
    pub fn is_written(&self) -> bool {
        // In this order: an inode under writeback has left the first list, or is about to.
        self.dirty_files.is_empty() && self.pages.no_writeback()
    }

    /// The store on behalf of a caller with these rights.
    pub fn on_behalf(&self, rights: SpaceRights) -> CallerStore<'_> {
        CallerStore { store: self, rights }
    }
}

impl<'a> CallerStore<'a> {
    /// As [`InodeTable::begin`](crate::inode::InodeTable::begin), with the caller's rights.
    ///
    /// # Errors
    /// As there.
    pub fn begin(&self, credits: u32) -> Result<Tx<'a>> {
        Ok(self.store.begin(credits)?.with_rights(self.rights))
    }

    /// Whether the caller's content may use the blocks that are reserved for root.
    pub fn may_use_reserve(&self) -> bool {
        self.policy.may_use_reserve(self.rights)
    }
}

impl Deref for CallerStore<'_> {
    type Target = Store;
    fn deref(&self) -> &Store {
        self.store
    }
}
