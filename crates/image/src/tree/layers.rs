//! Removal of entries, of one layer or of all lower ones.

use super::entries::EntryId;
use super::{Body, NodeId, Tree};
use crate::error::Result;

impl Tree {
    /// Begins the next layer. Entries that exist belong to lower layers from now on.
    pub fn begin_layer(&mut self) {
        self.layer = self.layer.saturating_add(1);
        self.opaque.clear();
    }

    /// Removes an entry with everything below it. Returns whether it was there. A symlink is
    /// removed itself. The root stays, and only its entries are removed.
    ///
    /// # Errors
    /// [`Error::Entry`](crate::Error::Entry) for a path that no image can hold.
    pub fn remove(&mut self, path: &[u8]) -> Result<bool> {
        let (there, list) = self.at_and_below(path, |_, _| true, |tree, node| tree.below(node))?;
        self.prune(list, |_, _| true);
        Ok(there)
    }

    /// Removes the entries at and below a path that lower layers made. Entries of the current layer
    /// stay, with the directories that lead to them, so the order of a layer's entries is of no
    /// importance. Returns whether a lower entry was at the path.
    ///
    /// # Errors
    /// As [`Tree::remove`].
    pub fn whiteout(&mut self, path: &[u8]) -> Result<bool> {
        let (there, list) = self.at_and_below(path, is_lower, Tree::take_below)?;
        self.prune(list, is_lower);
        Ok(there)
    }

    /// Removes the entries below a directory that lower layers made. The directory itself stays. A
    /// path that leads to no directory is ignored; a symlink leads to its target.
    ///
    /// # Errors
    /// As [`Tree::remove`].
    pub fn make_opaque(&mut self, path: &[u8]) -> Result<()> {
        let directory = self.directory_at(path)?;
        if let Some(directory) = directory {
            let below = self.take_below(directory);
            self.prune(below, is_lower);
        }
        Ok(())
    }

    /// Returns whether an entry that `goes` names is at the path, and if so, it with those that
    /// `below` finds below it.
    fn at_and_below(
        &mut self,
        path: &[u8],
        goes: fn(u16, u16) -> bool,
        below: impl FnOnce(&mut Tree, NodeId) -> Vec<EntryId>,
    ) -> Result<(bool, Vec<EntryId>)> {
        let (mut list, node) = match self.place(path)? {
            Some((parent, name)) => match self.live_entry(parent, name) {
                Some(entry) if goes(self.entries.get(entry).layer, self.layer) => {
                    (vec![entry], self.entries.get(entry).node)
                }
                _ => return Ok((false, Vec::new())),
            },
            None if super::path::is_root(path) => (Vec::new(), NodeId::ROOT),
            None => return Ok((false, Vec::new())),
        };
        list.extend(below(self, node));
        Ok((true, list))
    }

    /// Returns the entries below a node that are not below a directory that is opaque already, and
    /// makes all directories there opaque: the caller must remove the lower layers' entries.
    ///
    /// So a layer visits each directory once, whatever the number of its whiteouts.
    pub(super) fn take_below(&mut self, node: NodeId) -> Vec<EntryId> {
        let mut list = Vec::new();
        let (mut directory, mut next) = (node, 0);
        loop {
            if self.node(directory).is_directory() && self.opaque.insert(directory) {
                list.extend(self.children(directory));
            }
            let Some(entry) = list.get(next) else { return list };
            directory = self.entries.get(*entry).node;
            next += 1;
        }
    }

    /// Returns all entries below a node, each directory before its own entries.
    fn below(&self, node: NodeId) -> Vec<EntryId> {
        let mut list: Vec<EntryId> = self.children(node).collect();
        let mut next = 0;
        while let Some(entry) = list.get(next) {
            let children = self.children(self.entries.get(*entry).node);
            list.extend(children);
            next += 1;
        }
        list
    }

    /// Removes those entries of the list that `goes` names, by the entry's layer and the current
    /// one, except for directories with entries that stay.
    fn prune(&mut self, list: Vec<EntryId>, goes: fn(u16, u16) -> bool) {
        for entry in list.into_iter().rev() {
            let stays = !goes(self.entries.get(entry).layer, self.layer);
            if !stays && self.children(self.entries.get(entry).node).next().is_none() {
                self.detach(entry);
            }
        }
    }

    /// Removes everything below a node, which is replaced.
    pub(super) fn clear(&mut self, node: NodeId) {
        self.prune(self.below(node), |_, _| true);
    }

    /// Takes an entry without children out of its directory.
    fn detach(&mut self, entry: EntryId) {
        let node = std::mem::replace(&mut self.entries.get_mut(entry).node, NodeId::NONE);
        let node = self.node_mut(node);
        node.links = node.links.saturating_sub(1);
        self.live -= 1;
    }

    /// Returns the entries of a directory; none for other nodes.
    pub(super) fn children(&self, node: NodeId) -> impl Iterator<Item = EntryId> + '_ {
        let first = match self.node(node).body {
            Body::Directory { first, .. } => first,
            _ => EntryId::NONE,
        };
        self.entries.siblings(first)
    }
}

/// Returns whether an entry of a layer is lower than the current layer.
fn is_lower(entry: u16, current: u16) -> bool {
    entry < current
}
