//! Walks on behalf of a caller, who must have search permission for each directory of the path.

use super::{Attr, Node, Operations};
use crate::error::Result;
use crate::vfs::{Follow, Identity};

impl Operations {
    /// As [`Operations::resolve`].
    ///
    /// # Errors
    /// Also EACCES where `who` may not search a directory.
    pub fn resolve_as(
        &self,
        who: &Identity<'_>,
        path: impl AsRef<[u8]>,
        follow: Follow,
    ) -> Result<Node> {
        self.resolve_by(who.bound(), path.as_ref(), follow)
    }

    /// As [`Operations::stat`]. If the whole path and its ACLs are cached, this takes no lock and
    /// writes no shared memory, either.
    ///
    /// # Errors
    /// Also EACCES where `who` may not search a directory.
    pub fn stat_as(
        &self,
        who: &Identity<'_>,
        path: impl AsRef<[u8]>,
        follow: Follow,
    ) -> Result<Attr> {
        self.stat_by(who.bound(), path.as_ref(), follow)
    }

    /// As [`Operations::resolve_parent`].
    ///
    /// # Errors
    /// Also EACCES where `who` may not search a directory, that one included.
    pub fn resolve_parent_as<'p>(
        &self,
        who: &Identity<'_>,
        path: &'p [u8],
    ) -> Result<(Node, &'p [u8])> {
        self.parent_by(who.bound(), path)
    }

    /// As [`Operations::lookup`].
    ///
    /// # Errors
    /// Also EACCES if `who` may not search the directory.
    pub fn lookup_as(&self, who: &Identity<'_>, dir: &Node, name: &[u8]) -> Result<Node> {
        self.own(dir)?;
        if let Some(who) = who.bound() {
            self.record_corruption(self.vfs.check_search_of(&dir.0, who))?;
        }
        self.lookup(dir, name)
    }
}
