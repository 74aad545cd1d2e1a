//! Walks on behalf of a caller, which must have search permission for each directory of the path.

use super::{Attr, Node, Operations};
use crate::error::Result;
use crate::vfs::{Caller, Follow};

impl Operations {
    /// As [`Operations::resolve`].
    ///
    /// # Errors
    /// Also EACCES where the caller may not search a directory.
    pub fn resolve_as(
        &self,
        caller: &Caller<'_>,
        path: impl AsRef<[u8]>,
        follow: Follow,
    ) -> Result<Node> {
        self.resolve_by(caller.bound(), path.as_ref(), follow)
    }

    /// As [`Operations::stat`]. If the whole path and its ACLs are cached, this takes no lock and
    /// writes no shared memory, either; except that the first walk after any directory lost the
    /// permission of everyone to search it notes the directories of its path anew.
    ///
    /// # Errors
    /// Also EACCES where the caller may not search a directory.
    pub fn stat_as(
        &self,
        caller: &Caller<'_>,
        path: impl AsRef<[u8]>,
        follow: Follow,
    ) -> Result<Attr> {
        self.stat_by(caller.bound(), path.as_ref(), follow)
    }

    /// As [`Operations::resolve_parent`].
    ///
    /// # Errors
    /// Also EACCES where the caller may not search a directory, that one included.
    pub fn resolve_parent_as<'p>(
        &self,
        caller: &Caller<'_>,
        path: &'p [u8],
    ) -> Result<(Node, &'p [u8])> {
        self.parent_by(caller.bound(), path)
    }

    /// As [`Operations::lookup`].
    ///
    /// # Errors
    /// Also EACCES if the caller may not search the directory.
    pub fn lookup_as(&self, caller: &Caller<'_>, dir: &Node, name: &[u8]) -> Result<Node> {
        self.own(dir)?;
        if let Some(caller) = caller.bound() {
            self.record_corruption(self.vfs.check_search_of(&dir.0, caller))?;
        }
        self.lookup(dir, name)
    }
}
