//! Read-only views of extent nodes.

use super::{ENTRY_SIZE, EXTENT_MAGIC, HEADER_SIZE, Index, Leaf, MAX_DEPTH, capacity, entries_end};
use crate::bytes::{le16, le32, part, put_le16, put_le32};
use crate::error::{Corrupt, Result};
use crate::geometry::Geometry;

/// The header of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Entries in use.
    pub entries: u16,
    /// Capacity of the node in entries.
    pub max: u16,
    /// Levels below; 0 in a leaf.
    pub depth: u16,
    /// Generation (not used).
    pub generation: u32,
}

impl Header {
    /// Reads a header and verifies it against the size of the node.
    ///
    /// # Errors
    /// [`Corrupt`] with the invalid field.
    pub fn parse(bytes: &[u8]) -> Result<Header> {
        let fail = |field, found: u16, expected: u16| {
            Err(Corrupt::new("extent header").field(field).found(found).expected(expected))
        };
        let magic = le16(bytes, 0);
        if magic != EXTENT_MAGIC {
            return fail("magic", magic, EXTENT_MAGIC);
        }
        let header = Header {
            entries: le16(bytes, 2),
            max: le16(bytes, 4),
            depth: le16(bytes, 6),
            generation: le32(bytes, 8),
        };
        let room = capacity(bytes.len());
        if header.max == 0 || header.max > room {
            return fail("max", header.max, room);
        }
        if header.entries > header.max {
            return fail("entries", header.entries, header.max);
        }
        if header.depth > MAX_DEPTH {
            return fail("depth", header.depth, MAX_DEPTH);
        }
        if header.depth > 0 && header.entries == 0 {
            return fail("entries", 0, 1);
        }
        Ok(header)
    }

    /// Writes a header.
    pub fn encode(&self, bytes: &mut [u8]) {
        put_le16(bytes, 0, EXTENT_MAGIC);
        put_le16(bytes, 2, self.entries);
        put_le16(bytes, 4, self.max);
        put_le16(bytes, 6, self.depth);
        put_le32(bytes, 8, self.generation);
    }
}

/// A read-only view of a node.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    header: Header,
    entries: &'a [u8],
}

impl<'a> Node<'a> {
    /// Reads and verifies a node: header, depth, order and lengths of entries. `depth` is the depth
    /// that the parent requires; `None` for the root.
    ///
    /// # Errors
    /// [`Corrupt`] with the invalid field.
    pub fn parse(bytes: &'a [u8], depth: Option<u16>) -> Result<Node<'a>> {
        let node = Node::open(bytes)?;
        match depth {
            Some(expected) if expected != node.header.depth => {
                let error = Corrupt::new("extent header").field("depth");
                Err(error.found(node.header.depth).expected(expected))
            }
            _ => node.check_entries().map(|()| node),
        }
    }

    /// Reads a node and verifies its header only. The bytes must have been verified by
    /// [`Self::parse`] before.
    ///
    /// # Errors
    /// [`Corrupt`] with the invalid field of the header.
    pub fn open(bytes: &'a [u8]) -> Result<Node<'a>> {
        let header = Header::parse(bytes)?;
        let end = entries_end(usize::from(header.entries));
        Ok(Node { header, entries: part(bytes, HEADER_SIZE, end) })
    }

    pub(super) const fn from_parts(header: Header, entries: &'a [u8]) -> Node<'a> {
        Node { header, entries }
    }

    pub(super) const fn raw_entries(&self) -> &'a [u8] {
        self.entries
    }

    fn check_entries(&self) -> Result<()> {
        if self.is_leaf() { self.check_leaves() } else { self.check_indexes() }
    }

    fn check_leaves(&self) -> Result<()> {
        let mut next = 0u64;
        for leaf in self.leaves() {
            leaf.check()?;
            if u64::from(leaf.lblk) < next {
                let error = Corrupt::new("extent").field("logical block");
                return Err(error.found(leaf.lblk).expected(next));
            }
            next = leaf.end();
        }
        Ok(())
    }

    fn check_indexes(&self) -> Result<()> {
        let mut next = 0u64;
        for index in self.indexes() {
            if u64::from(index.lblk) < next {
                let error = Corrupt::new("extent index").field("logical block");
                return Err(error.found(index.lblk).expected(next));
            }
            next = u64::from(index.lblk) + 1;
        }
        Ok(())
    }

    /// Verifies that all physical blocks of the entries lie in the file system.
    ///
    /// # Errors
    /// [`Corrupt`] for the first entry with a block outside.
    pub fn check_physical(&self, geo: &Geometry) -> Result<()> {
        if self.is_leaf() {
            self.leaves().try_for_each(|leaf| leaf.check_physical(geo))
        } else {
            self.indexes().try_for_each(|index| index.check_physical(geo))
        }
    }

    /// Returns the header.
    pub const fn header(&self) -> Header {
        self.header
    }

    /// Returns the number of levels below; 0 in a leaf.
    pub const fn depth(&self) -> u16 {
        self.header.depth
    }

    /// Returns whether the entries are extents.
    pub const fn is_leaf(&self) -> bool {
        self.header.depth == 0
    }

    /// Returns the number of entries in use.
    pub const fn len(&self) -> usize {
        self.header.entries as usize
    }

    /// Returns whether there is no entry.
    pub const fn is_empty(&self) -> bool {
        self.header.entries == 0
    }

    /// Returns whether the node has no free entry slot.
    pub const fn is_full(&self) -> bool {
        self.header.entries >= self.header.max
    }

    fn entry(&self, n: usize) -> Option<&'a [u8]> {
        let start = n.checked_mul(ENTRY_SIZE)?;
        self.entries.get(start..start.checked_add(ENTRY_SIZE)?)
    }

    /// Returns extent `n` of a leaf.
    pub fn leaf(&self, n: usize) -> Option<Leaf> {
        self.entry(n).filter(|_| self.is_leaf()).map(Leaf::decode)
    }

    /// Returns entry `n` of an index node.
    pub fn index(&self, n: usize) -> Option<Index> {
        self.entry(n).filter(|_| !self.is_leaf()).map(Index::decode)
    }

    /// Returns the first logical block of entry `n`.
    pub fn key(&self, n: usize) -> Option<u32> {
        self.entry(n).map(|entry| le32(entry, 0))
    }

    /// Returns the extents of a leaf; empty for an index node.
    pub fn leaves(&self) -> impl DoubleEndedIterator<Item = Leaf> + ExactSizeIterator + use<'a> {
        let bytes = if self.is_leaf() { self.entries } else { &[] };
        bytes.chunks_exact(ENTRY_SIZE).map(Leaf::decode)
    }

    /// Returns the entries of an index node; empty for a leaf.
    pub fn indexes(&self) -> impl DoubleEndedIterator<Item = Index> + ExactSizeIterator + use<'a> {
        let bytes = if self.is_leaf() { &[] } else { self.entries };
        bytes.chunks_exact(ENTRY_SIZE).map(Index::decode)
    }

    /// Returns the number of entries that begin at or before the logical block.
    fn upper_bound(&self, lblk: u32) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.key(middle).is_some_and(|key| key <= lblk) {
                low = middle.saturating_add(1);
            } else {
                high = middle;
            }
        }
        low
    }

    /// Returns the position of the last entry that begins at or before the logical block; `None` if
    /// all begin later.
    pub fn search(&self, lblk: u32) -> Option<usize> {
        self.upper_bound(lblk).checked_sub(1)
    }
}
