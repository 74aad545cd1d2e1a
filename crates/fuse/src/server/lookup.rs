//! Inodes by number and by name, and the entries that replies carry. Each entry that a reply hands
//! out counts one lookup, which holds the inode until the kernel sends FORGET.

use super::*;

impl Server {
    /// Finds the inode of a name; `None` if the name does not exist. Counts one lookup.
    pub(super) fn find(&self, parent: NodeId, name: &[u8]) -> Result<Option<Entry>, Error> {
        let dir = self.node(parent)?;
        // For file handles the kernel looks up `.`, the inode of the handle, which need not be a
        // directory, and `..`, its parent.
        let found = match name {
            b"." => Ok(dir),
            b".." => self.ops.parent(&dir),
            name => self.ops.lookup(&dir, name),
        };
        match found {
            Ok(node) => self.entry(&node).map(Some),
            Err(e) if e.is(Errno::NoEnt) => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(super) fn node(&self, ino: NodeId) -> Result<Node, Error> {
        self.ops.node(disk_ino(ino))
    }

    /// Returns the entry of an inode for a reply, without counting a lookup.
    pub(super) fn entry_of(&self, node: &Node) -> Entry {
        Entry { attr: self.file_attr(&node.attr()), generation: u64::from(node.generation()) }
    }

    /// Returns the entry of an inode for a reply, and counts a lookup.
    pub(super) fn entry(&self, node: &Node) -> Result<Entry, Error> {
        node.hold(1).map_err(|_| Errno::NoEnt)?;
        Ok(self.entry_of(node))
    }
}
