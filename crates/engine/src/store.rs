//! All modules up to directories as one argument, for files and the modules above them.

use crate::inode::PagePool;
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
