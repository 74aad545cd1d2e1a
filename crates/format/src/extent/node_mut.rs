//! Changing nodes. The caller keeps the order of entries and seals the block.

use super::{ENTRY_SIZE, HEADER_SIZE, Header, Index, Leaf, Node, capacity};
use crate::bytes::{part_mut, put_le16};
use crate::error::Result;
use std::ops::Range;

/// A node, to be changed.
#[derive(Debug)]
pub struct NodeMut<'a> {
    bytes: &'a mut [u8],
    header: Header,
}

impl<'a> NodeMut<'a> {
    /// Makes an empty node of this depth: the root in 60 bytes, or a block. The bytes are zeroed.
    pub fn init(bytes: &'a mut [u8], depth: u16) -> NodeMut<'a> {
        bytes.fill(0);
        let header = Header { entries: 0, max: capacity(bytes.len()), depth, generation: 0 };
        header.encode(bytes);
        NodeMut { bytes, header }
    }

    /// Takes a node that exists; verifies its header.
    ///
    /// # Errors
    /// What is wrong with the header.
    pub fn open(bytes: &'a mut [u8]) -> Result<NodeMut<'a>> {
        let header = Header::parse(bytes)?;
        Ok(NodeMut { bytes, header })
    }

    /// The node, to be read.
    pub fn as_node(&self) -> Node<'_> {
        let end = HEADER_SIZE + ENTRY_SIZE * usize::from(self.header.entries);
        Node::from_parts(self.header, crate::bytes::part(self.bytes, HEADER_SIZE, end))
    }

    /// The header.
    pub const fn header(&self) -> Header {
        self.header
    }

    /// Entries in use.
    pub const fn len(&self) -> usize {
        self.header.entries as usize
    }

    /// Whether there is no entry.
    pub const fn is_empty(&self) -> bool {
        self.header.entries == 0
    }

    /// Entries that may still be added.
    pub const fn room(&self) -> usize {
        (self.header.max - self.header.entries) as usize
    }

    /// Sets how many levels are below.
    pub fn set_depth(&mut self, depth: u16) {
        self.header.depth = depth;
        self.header.encode(self.bytes);
    }

    /// Sets how many entries are in use; what they hold is the caller's matter. More than there is
    /// room for is cut.
    pub fn set_entries(&mut self, entries: u16) {
        self.header.entries = entries.min(self.header.max);
        put_le16(self.bytes, 2, self.header.entries);
    }

    fn slots(&mut self, range: Range<usize>) -> &mut [u8] {
        let place = |n: usize| n.saturating_mul(ENTRY_SIZE).saturating_add(HEADER_SIZE);
        part_mut(self.bytes, place(range.start), place(range.end))
    }

    /// Makes room for one entry at `pos`; `None` if the node is full or `pos` is past the end.
    fn open_slot(&mut self, pos: usize) -> Option<&mut [u8]> {
        let len = self.len();
        if pos > len || self.room() == 0 {
            return None;
        }
        let moved = (len - pos) * ENTRY_SIZE;
        self.slots(pos..len + 1).copy_within(..moved, ENTRY_SIZE);
        self.set_entries(self.header.entries + 1);
        Some(self.slots(pos..pos + 1))
    }

    /// Inserts an extent before entry `pos`; `false` if there is no room.
    #[must_use]
    pub fn insert_leaf(&mut self, pos: usize, leaf: &Leaf) -> bool {
        self.open_slot(pos).map(|slot| leaf.encode(slot)).is_some()
    }

    /// Inserts an index entry before entry `pos`; `false` if there is no room.
    #[must_use]
    pub fn insert_index(&mut self, pos: usize, index: &Index) -> bool {
        self.open_slot(pos).map(|slot| index.encode(slot)).is_some()
    }

    /// Replaces extent `pos`; `false` if there is none.
    pub fn set_leaf(&mut self, pos: usize, leaf: &Leaf) -> bool {
        let exists = pos < self.len();
        if exists {
            leaf.encode(self.slots(pos..pos + 1));
        }
        exists
    }

    /// Replaces index entry `pos`; `false` if there is none.
    pub fn set_index(&mut self, pos: usize, index: &Index) -> bool {
        let exists = pos < self.len();
        if exists {
            index.encode(self.slots(pos..pos + 1));
        }
        exists
    }

    /// Removes the entries of the range, cut to those that exist, and zeroes the slots that become
    /// free.
    pub fn remove(&mut self, range: Range<usize>) {
        let len = self.len();
        let end = range.end.min(len);
        let start = range.start.min(end);
        let count = end - start;
        self.slots(start..len).copy_within(count * ENTRY_SIZE.., 0);
        self.slots(len - count..len).fill(0);
        self.set_entries((len - count) as u16);
    }

    /// Replaces all entries by these extents; `false` if there are too many, and then nothing
    /// changes.
    #[must_use]
    pub fn set_leaves(&mut self, leaves: &[Leaf]) -> bool {
        let fits = self.resize(leaves.len());
        if fits {
            for (n, leaf) in leaves.iter().enumerate() {
                leaf.encode(self.slots(n..n + 1));
            }
        }
        fits
    }

    /// Replaces all entries by these index entries; `false` if there are too many, and then nothing
    /// changes.
    #[must_use]
    pub fn set_indexes(&mut self, indexes: &[Index]) -> bool {
        let fits = self.resize(indexes.len());
        if fits {
            for (n, index) in indexes.iter().enumerate() {
                index.encode(self.slots(n..n + 1));
            }
        }
        fits
    }

    fn resize(&mut self, count: usize) -> bool {
        let fits = count <= usize::from(self.header.max);
        if fits {
            let max = usize::from(self.header.max);
            self.slots(0..max).fill(0);
            self.set_entries(count as u16);
        }
        fits
    }

    /// Copies all entries, of whatever kind, from another node of the same depth or the one below;
    /// `false` if there are too many.
    #[must_use]
    pub fn copy_entries(&mut self, from: &Node<'_>) -> bool {
        let fits = self.resize(from.len());
        if fits {
            let source = from.raw_entries();
            let count = from.len();
            crate::bytes::put_bytes(self.slots(0..count), 0, source);
        }
        fits
    }
}
