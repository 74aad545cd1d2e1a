//! Read-only and mutable views of hash-tree nodes.

use super::{
    BLOCK_MASK, ENTRY_SIZE, HashVersion, Kind, STRUCTURE, after_entries, is_interior, max_levels,
};
use crate::bytes::{le16, le32, part, part_mut, put_bytes, put_le16, put_le32};
use crate::dir::{DirFormat, Dots, dot_dot, set_rec_len};
use crate::error::{Corrupt, Result};

const INFO_ZERO: usize = 0x18;
const INFO_HASH: usize = 0x1C;
const INFO_LEN: usize = 0x1D;
const INFO_LEVELS: usize = 0x1E;
const INFO_FLAGS: usize = 0x1F;
const INFO_SIZE: u8 = 8;

/// Properties of a tree, as stored in its root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootInfo {
    /// The hash of names.
    pub hash_version: HashVersion,
    /// Levels of interior nodes between the root and the leaves.
    pub levels: u8,
}

impl RootInfo {
    /// Reads and verifies the properties in the root.
    ///
    /// # Errors
    /// [`Corrupt`] with the invalid field.
    pub fn parse(block: &[u8], format: &DirFormat) -> Result<RootInfo> {
        let fail = |field, found: u32| Err(Corrupt::new(STRUCTURE).field(field).found(found));
        dot_dot(block, format)?;
        let byte = |offset: usize| block.get(offset).copied().unwrap_or(0xFF);
        if le32(block, INFO_ZERO) != 0 {
            return fail("reserved", le32(block, INFO_ZERO));
        }
        if byte(INFO_LEN) != INFO_SIZE {
            return fail("info length", byte(INFO_LEN).into());
        }
        if byte(INFO_FLAGS) & 1 != 0 {
            return fail("flags", byte(INFO_FLAGS).into());
        }
        if byte(INFO_LEVELS) > max_levels(format) {
            return fail("levels", byte(INFO_LEVELS).into());
        }
        Ok(RootInfo {
            hash_version: HashVersion::from_raw(byte(INFO_HASH))?,
            levels: byte(INFO_LEVELS),
        })
    }
}

fn parse_counts(block: &[u8], kind: Kind, format: &DirFormat) -> Result<u16> {
    let (limit, count) = (le16(block, kind.entries()), le16(block, kind.count()));
    let error = |field| Corrupt::new(STRUCTURE).field(field);
    if block.len() != format.block_size as usize || limit != kind.limit(format) {
        return Err(error("limit").found(limit).expected(kind.limit(format)));
    }
    if count == 0 || count > limit {
        return Err(error("count").found(count).expected(limit));
    }
    if kind == Kind::Interior && !is_interior(block, format) {
        return Err(error("first record").found(le16(block, 4)));
    }
    Ok(count)
}

fn decode(entry: &[u8], n: usize) -> (u32, u32) {
    (if n == 0 { 0 } else { le32(entry, 0) }, le32(entry, 4) & BLOCK_MASK)
}

/// A read-only view of a root or interior node.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    entries: &'a [u8],
    limit: u16,
}

impl<'a> Node<'a> {
    /// Opens a node; verifies limit and count. For a root, see [`RootInfo::parse`] too.
    ///
    /// # Errors
    /// [`Corrupt`] with the invalid field.
    pub fn open(block: &'a [u8], kind: Kind, format: &DirFormat) -> Result<Node<'a>> {
        let count = usize::from(parse_counts(block, kind, format)?);
        let entries = part(block, kind.entries(), after_entries(kind.entries(), count));
        Ok(Node { entries, limit: kind.limit(format) })
    }

    /// Returns the number of entries in use, entry 0 included; never 0.
    pub const fn len(&self) -> usize {
        self.entries.len() / ENTRY_SIZE
    }

    /// Always `false`: entry 0 is there.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Returns whether the node has no free entry slot.
    pub const fn is_full(&self) -> bool {
        self.len() >= self.limit as usize
    }

    /// Hash and block of entry `n`; the hash of entry 0 is 0.
    pub fn get(&self, n: usize) -> Option<(u32, u32)> {
        let start = n.checked_mul(ENTRY_SIZE)?;
        let entry = self.entries.get(start..start.checked_add(ENTRY_SIZE)?)?;
        Some(decode(entry, n))
    }

    /// Hash and block of every entry.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (u32, u32)> + use<'a> {
        self.entries.chunks_exact(ENTRY_SIZE).enumerate().map(|(n, entry)| decode(entry, n))
    }

    /// Returns the position of the entry to follow for a hash: the last one whose hash is not above
    /// it.
    pub fn find(&self, hash: u32) -> usize {
        let (mut low, mut high) = (1, self.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.get(middle).is_some_and(|(key, _)| key <= hash) {
                low = middle.saturating_add(1);
            } else {
                high = middle;
            }
        }
        low.saturating_sub(1)
    }

    /// Verifies that hashes do not descend.
    ///
    /// # Errors
    /// [`Corrupt`] with the first hash that does.
    pub fn check_order(&self) -> Result<()> {
        let mut before = 0;
        for (hash, _) in self.entries() {
            if hash < before {
                return Err(Corrupt::new(STRUCTURE).field("hash").found(hash).expected(before));
            }
            before = hash;
        }
        Ok(())
    }
}

/// A mutable view of a root or interior node. The caller must keep hashes in order and must seal
/// the block afterwards.
#[derive(Debug)]
pub struct NodeMut<'a> {
    block: &'a mut [u8],
    kind: Kind,
    format: DirFormat,
}

impl<'a> NodeMut<'a> {
    /// Opens a node; verifies limit and count.
    ///
    /// # Errors
    /// [`Corrupt`] with the invalid field.
    pub fn open(block: &'a mut [u8], kind: Kind, format: &DirFormat) -> Result<NodeMut<'a>> {
        parse_counts(block, kind, format)?;
        Ok(NodeMut { block, kind, format: *format })
    }

    /// Initializes a root in a directory's block 0, with one entry that points to block `first`.
    pub fn init_root(
        block: &'a mut [u8],
        format: &DirFormat,
        info: RootInfo,
        dots: Dots,
        first: u32,
    ) -> NodeMut<'a> {
        block.fill(0);
        dots.put(block, format);
        put_bytes(block, INFO_HASH, &[info.hash_version.to_raw(), INFO_SIZE, info.levels, 0]);
        NodeMut::finish_init(block, Kind::Root, format, first)
    }

    /// Initializes an interior node with one entry that points to block `first`.
    pub fn init_interior(block: &'a mut [u8], format: &DirFormat, first: u32) -> NodeMut<'a> {
        block.fill(0);
        let len = block.len();
        set_rec_len(block, format, 0, len);
        NodeMut::finish_init(block, Kind::Interior, format, first)
    }

    fn finish_init(block: &'a mut [u8], kind: Kind, format: &DirFormat, first: u32) -> NodeMut<'a> {
        put_le16(block, kind.entries(), kind.limit(format));
        let mut node = NodeMut { block, kind, format: *format };
        node.set_count(1);
        node.set_block(0, first);
        node
    }

    /// Returns the number of entries in use, entry 0 included.
    pub fn len(&self) -> usize {
        usize::from(le16(self.block, self.kind.count()))
    }

    /// Always `false`: entry 0 is there.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Returns whether the node has no free entry slot.
    pub fn is_full(&self) -> bool {
        self.len() >= usize::from(self.kind.limit(&self.format))
    }

    /// Returns all entries: hash and block.
    pub fn entries(&self) -> Vec<(u32, u32)> {
        let first = self.kind.entries();
        let bytes = part(self.block, first, after_entries(first, self.len()));
        bytes.chunks_exact(ENTRY_SIZE).enumerate().map(|(n, entry)| decode(entry, n)).collect()
    }

    fn set_count(&mut self, count: usize) {
        put_le16(self.block, self.kind.count(), count as u16);
    }

    fn slots(&mut self, from: usize, to: usize) -> &mut [u8] {
        let first = self.kind.entries();
        part_mut(self.block, after_entries(first, from), after_entries(first, to))
    }

    fn slot(&mut self, n: usize) -> &mut [u8] {
        self.slots(n, n.saturating_add(1))
    }

    fn write(&mut self, n: usize, hash: u32, block: u32) {
        let entry = self.slot(n);
        // Limit and count take the place of entry 0's hash.
        if n > 0 {
            put_le32(entry, 0, hash);
        }
        put_le32(entry, 4, block & BLOCK_MASK);
    }

    /// Sets the block of entry `n`; `false` if there is no such entry.
    pub fn set_block(&mut self, n: usize, block: u32) -> bool {
        let exists = n < self.len();
        if exists {
            put_le32(self.slot(n), 4, block & BLOCK_MASK);
        }
        exists
    }

    /// Sets the hash of entry `n`, which must not be 0; returns `false` if there is no such entry.
    pub fn set_hash(&mut self, n: usize, hash: u32) -> bool {
        let exists = n > 0 && n < self.len();
        if exists {
            put_le32(self.slot(n), 0, hash);
        }
        exists
    }

    /// Inserts an entry before entry `n`, which must be 1 or more; returns `false` if the node is
    /// full.
    #[must_use]
    pub fn insert(&mut self, n: usize, hash: u32, block: u32) -> bool {
        let len = self.len();
        if n == 0 || n > len || self.is_full() {
            return false;
        }
        let moved = len.saturating_sub(n).saturating_mul(ENTRY_SIZE);
        let longer = len.saturating_add(1);
        self.slots(n, longer).copy_within(..moved, ENTRY_SIZE);
        self.set_count(longer);
        self.write(n, hash, block);
        true
    }

    /// Removes entry `n`, which must be 1 or more; returns `false` if there is no such entry.
    pub fn remove(&mut self, n: usize) -> bool {
        let len = self.len();
        if n == 0 || n >= len {
            return false;
        }
        self.slots(n, len).copy_within(ENTRY_SIZE.., 0);
        let shorter = len.saturating_sub(1);
        self.slots(shorter, len).fill(0);
        self.set_count(shorter);
        true
    }

    /// Replaces all entries; the hash of the first is not stored. `false` if there are none or too
    /// many.
    #[must_use]
    pub fn set_entries(&mut self, list: &[(u32, u32)]) -> bool {
        let limit = usize::from(self.kind.limit(&self.format));
        if list.is_empty() || list.len() > limit {
            return false;
        }
        self.slots(1, limit).fill(0);
        self.set_count(list.len());
        for (n, (hash, block)) in list.iter().enumerate() {
            self.write(n, *hash, *block);
        }
        true
    }

    /// Sets the number of interior levels in a root.
    pub fn set_levels(&mut self, levels: u8) {
        if self.kind == Kind::Root {
            put_bytes(self.block, INFO_LEVELS, &[levels]);
        }
    }
}
