//! Mutable views of extent nodes. The caller must keep entries in order and must seal the block
//! afterwards.

use super::{ENTRY_SIZE, HEADER_SIZE, Header, Index, Leaf, Node, capacity, entries_end};
use crate::bytes::{part_mut, put_le16};
use crate::error::Result;
use std::ops::Range;

/// A mutable view of a node.
#[derive(Debug)]
pub struct NodeMut<'a> {
    bytes: &'a mut [u8],
    header: Header,
}

impl<'a> NodeMut<'a> {
    /// Initializes an empty node of this depth: the root in 60 bytes, or a block. Zeroes the bytes.
    pub fn init(bytes: &'a mut [u8], depth: u16) -> NodeMut<'a> {
        bytes.fill(0);
        let header = Header { entries: 0, max: capacity(bytes.len()), depth, generation: 0 };
        header.encode(bytes);
        NodeMut { bytes, header }
    }

    /// Opens an existing node and verifies its header.
    ///
    /// # Errors
    /// [`Corrupt`](crate::Corrupt) with the invalid field of the header.
    pub fn open(bytes: &'a mut [u8]) -> Result<NodeMut<'a>> {
        let header = Header::parse(bytes)?;
        Ok(NodeMut { bytes, header })
    }

    /// Returns a read-only view of the node.
    pub fn as_node(&self) -> Node<'_> {
        let end = entries_end(self.len());
        Node::from_parts(self.header, crate::bytes::part(self.bytes, HEADER_SIZE, end))
    }

    /// Returns the header.
    pub const fn header(&self) -> Header {
        self.header
    }

    /// Returns the number of entries in use.
    pub const fn len(&self) -> usize {
        self.header.entries as usize
    }

    /// Returns whether there is no entry.
    pub const fn is_empty(&self) -> bool {
        self.header.entries == 0
    }

    /// Returns the number of free entry slots.
    pub const fn room(&self) -> usize {
        self.header.max.saturating_sub(self.header.entries) as usize
    }

    /// Sets the number of levels below the node.
    pub fn set_depth(&mut self, depth: u16) {
        self.header.depth = depth;
        self.header.encode(self.bytes);
    }

    /// Sets the number of entries in use, limited to the node's capacity. The caller must fill the
    /// entries.
    pub fn set_entries(&mut self, entries: u16) {
        self.header.entries = entries.min(self.header.max);
        put_le16(self.bytes, 2, self.header.entries);
    }

    fn slots(&mut self, range: Range<usize>) -> &mut [u8] {
        part_mut(self.bytes, entries_end(range.start), entries_end(range.end))
    }

    fn slot(&mut self, pos: usize) -> &mut [u8] {
        self.slots(pos..pos.saturating_add(1))
    }

    /// Shifts entries to free the slot at `pos` and returns its bytes; `None` if the node is full
    /// or `pos` is past the end.
    fn open_slot(&mut self, pos: usize) -> Option<&mut [u8]> {
        let len = self.len();
        if pos > len || self.room() == 0 {
            return None;
        }
        let moved = len.saturating_sub(pos).saturating_mul(ENTRY_SIZE);
        self.slots(pos..len.saturating_add(1)).copy_within(..moved, ENTRY_SIZE);
        self.set_entries(self.header.entries.saturating_add(1));
        Some(self.slot(pos))
    }

    /// Inserts an extent before entry `pos`; returns `false` if the node is full.
    #[must_use]
    pub fn insert_leaf(&mut self, pos: usize, leaf: &Leaf) -> bool {
        self.open_slot(pos).map(|slot| leaf.encode(slot)).is_some()
    }

    /// Inserts an index entry before entry `pos`; returns `false` if the node is full.
    #[must_use]
    pub fn insert_index(&mut self, pos: usize, index: &Index) -> bool {
        self.open_slot(pos).map(|slot| index.encode(slot)).is_some()
    }

    /// Replaces extent `pos`; `false` if there is none.
    pub fn set_leaf(&mut self, pos: usize, leaf: &Leaf) -> bool {
        let exists = pos < self.len();
        if exists {
            leaf.encode(self.slot(pos));
        }
        exists
    }

    /// Replaces index entry `pos`; `false` if there is none.
    pub fn set_index(&mut self, pos: usize, index: &Index) -> bool {
        let exists = pos < self.len();
        if exists {
            index.encode(self.slot(pos));
        }
        exists
    }

    /// Removes the entries of the range, cut to those that exist, and zeroes the slots that become
    /// free.
    pub fn remove(&mut self, range: Range<usize>) {
        let len = self.len();
        let end = range.end.min(len);
        let start = range.start.min(end);
        let count = end.saturating_sub(start);
        self.slots(start..len).copy_within(count.saturating_mul(ENTRY_SIZE).., 0);
        let left = len.saturating_sub(count);
        self.slots(left..len).fill(0);
        self.set_entries(left as u16);
    }

    /// Replaces all entries by these extents; returns `false` if they do not fit, and then
    /// leaves the node unchanged.
    #[must_use]
    pub fn set_leaves(&mut self, leaves: &[Leaf]) -> bool {
        let fits = self.resize(leaves.len());
        if fits {
            for (n, leaf) in leaves.iter().enumerate() {
                leaf.encode(self.slot(n));
            }
        }
        fits
    }

    /// Replaces all entries by these index entries; returns `false` if they do not fit, and then
    /// leaves the node unchanged.
    #[must_use]
    pub fn set_indexes(&mut self, indexes: &[Index]) -> bool {
        let fits = self.resize(indexes.len());
        if fits {
            for (n, index) in indexes.iter().enumerate() {
                index.encode(self.slot(n));
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

    /// Copies all entries (extents or index entries) from another node of the same depth or the
    /// depth below; returns `false` if they do not fit.
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
