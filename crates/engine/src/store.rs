//! All modules up to directories as one argument, for files and the modules above them.

use crate::error::Result;
use crate::inode::{PagePool, Tx};
use crate::volume::SpaceRights;
use crate::xattr::AttrEnv;
use std::ops::Deref;

/// The contexts of the modules below, and the pages of files.
#[derive(Debug)]
pub struct Store {
    /// The context of attributes and directories.
    pub names: AttrEnv,
    /// All cached file content.
    pub pool: PagePool,
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
