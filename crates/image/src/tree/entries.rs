//! Names of the tree: a table of entries, found by directory and name.
//!
//! A million names take some 45 MB and the bytes of the names: an entry has 32-bit numbers only,
//! and the table maps a 32-bit hash to the first entry with this hash. Entries of one hash form a
//! list, so equal hashes of different names are harmless; the hash is keyed, so an archive cannot
//! be made of names with one hash.
//!
//! # Invariants
//! An entry is never removed from the table. Removal clears its node, and a new entry of the same
//! name uses it again; so lists of children and of equal hashes never change but at their heads.

use super::NodeId;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};

/// Number of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct EntryId(pub u32);

impl EntryId {
    /// No entry; also the entry of the root.
    pub(crate) const NONE: EntryId = EntryId(u32::MAX);
}

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Directory.
    pub parent: NodeId,
    name_start: u32,
    name_len: u8,
    /// Layer that added the entry last.
    pub layer: u16,
    /// Node, or [`NodeId::NONE`] after a removal.
    pub node: NodeId,
    next_sibling: EntryId,
    next_same_hash: EntryId,
}

/// Hashes of the table are hashes already.
#[derive(Debug, Default, Clone)]
struct Unchanged(u64);

impl Hasher for Unchanged {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u32(&mut self, hash: u32) {
        // The table takes its control bits from the upper end, its bucket from the lower.
        self.0 = u64::from(hash) << 32 | u64::from(hash);
    }
}

/// All entries.
#[derive(Debug, Default)]
pub(super) struct Entries {
    list: Vec<Entry>,
    names: Vec<u8>,
    first_of_hash: HashMap<u32, EntryId, BuildHasherDefault<Unchanged>>,
    keys: RandomState,
}

impl Entries {
    /// Returns the entry of a name, removed or not.
    pub(super) fn find(&self, parent: NodeId, name: &[u8]) -> Option<EntryId> {
        let mut id = *self.first_of_hash.get(&self.hash(parent, name))?;
        while id != EntryId::NONE {
            let entry = self.get(id);
            if entry.parent == parent && self.name(id) == name {
                return Some(id);
            }
            id = entry.next_same_hash;
        }
        None
    }

    fn hash(&self, parent: NodeId, name: &[u8]) -> u32 {
        self.keys.hash_one((parent, name)) as u32
    }

    /// Adds an entry before `sibling` in the list of a directory's entries; `None` if numbers are
    /// exhausted. The name must be new to the directory, and not longer than 255 bytes.
    pub(super) fn push(
        &mut self,
        (parent, name): (NodeId, &[u8]),
        node: NodeId,
        layer: u16,
        sibling: EntryId,
    ) -> Option<EntryId> {
        let id = EntryId(u32::try_from(self.list.len()).ok().filter(|n| *n < u32::MAX)?);
        let name_start = u32::try_from(self.names.len()).ok()?;
        let name_len = u8::try_from(name.len()).ok()?;
        let first = self.first_of_hash.insert(self.hash(parent, name), id);
        self.names.extend_from_slice(name);
        self.list.push(Entry {
            parent,
            name_start,
            name_len,
            layer,
            node,
            next_sibling: sibling,
            next_same_hash: first.unwrap_or(EntryId::NONE),
        });
        Some(id)
    }

    pub(super) fn get(&self, id: EntryId) -> &Entry {
        &self.list[id.0 as usize]
    }

    pub(super) fn get_mut(&mut self, id: EntryId) -> &mut Entry {
        &mut self.list[id.0 as usize]
    }

    /// Returns an entry of a node.
    pub(super) fn of_node(&self, node: NodeId) -> EntryId {
        let at = self.list.iter().position(|entry| entry.node == node);
        at.map_or(EntryId::NONE, |at| EntryId(at as u32))
    }

    pub(super) fn name(&self, id: EntryId) -> &[u8] {
        let entry = self.get(id);
        let start = entry.name_start as usize;
        self.names.get(start..start + usize::from(entry.name_len)).unwrap_or_default()
    }

    /// Returns the entries of a directory, from `first` on, that are not removed.
    pub(super) fn siblings(&self, first: EntryId) -> impl Iterator<Item = EntryId> + '_ {
        let there = |id: EntryId| (id != EntryId::NONE).then_some(id);
        std::iter::successors(there(first), move |id| there(self.get(*id).next_sibling))
            .filter(|id| self.get(*id).node != NodeId::NONE)
    }
}
