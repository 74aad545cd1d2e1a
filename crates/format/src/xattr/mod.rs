//! Extended attributes: in the inode's slot behind its fields, and in a block of their own.
//!
//! Callers read a whole region into a list of [`Entry`], change the list, and write the whole
//! region.
//!
//! # Invariants
//! Reading is total, and the values that it copies have together no more bytes than the region. A
//! block's entries are written sorted by name index, name length and name.

mod block;
mod hash;
mod inode_area;
mod name;
mod region;
#[cfg(test)]
mod tests;

pub use block::{
    BlockHeader, block_space, decode_block, encode_block, is_xattr_block, refcount,
    seal_xattr_block, set_refcount, verify_xattr_block,
};
pub use hash::{block_hash, entry_hash, entry_hash_signed, inode_entry_hash, value_crc};
pub use inode_area::{decode_inode_area, encode_inode_area, inode_area_space, inode_value_range};
pub use name::{NameIndex, full_name, split_name};

/// The magic number of both kinds of regions.
pub const XATTR_MAGIC: u32 = 0xEA02_0000;

/// Maximum number of inodes that share a block of attributes.
pub const REFCOUNT_MAX: u32 = 1024;

/// Bytes of a name at most, its prefix not counted.
pub const XATTR_NAME_MAX: usize = 255;

/// Bytes of a value at most, as system calls have them.
pub const XATTR_VALUE_MAX: usize = 65536;

const ENTRY_HEADER: usize = 16;
const TERMINATOR: usize = 4;

/// The value of an attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// It lies in the region.
    Inline(Vec<u8>),
    /// It is the data of an inode.
    EaInode {
        /// The inode.
        ino: u32,
        /// Bytes of the value.
        size: u32,
    },
}

impl Value {
    /// Returns the number of bytes of the value.
    pub fn len(&self) -> usize {
        match self {
            Value::Inline(bytes) => bytes.len(),
            Value::EaInode { size, .. } => *size as usize,
        }
    }

    /// Returns whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes that the value takes in the region.
    fn room(&self) -> usize {
        match self {
            Value::Inline(bytes) => padded(bytes.len()),
            Value::EaInode { .. } => 0,
        }
    }
}

/// An attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Which prefix the name has; see [`NameIndex`].
    pub index: u8,
    /// The name without its prefix.
    pub name: Vec<u8>,
    /// The value.
    pub value: Value,
    /// The hash as it was read. Writing a block computes it for values in the region; for values in
    /// inodes it is written as it is here, from [`inode_entry_hash`].
    pub hash: u32,
}

impl Entry {
    /// An attribute whose value lies in the region.
    pub fn new(index: u8, name: &[u8], value: &[u8]) -> Entry {
        Entry { index, name: name.to_vec(), value: Value::Inline(value.to_vec()), hash: 0 }
    }

    /// An attribute whose value lies in an inode; `crc` is the value's, see [`value_crc`].
    pub fn in_inode(index: u8, name: &[u8], ino: u32, size: u32, crc: u32) -> Entry {
        let hash = inode_entry_hash(name, crc);
        Entry { index, name: name.to_vec(), value: Value::EaInode { ino, size }, hash }
    }

    /// Returns whether it is the attribute of this name.
    pub fn is(&self, index: u8, name: &[u8]) -> bool {
        self.index == index && self.name == name
    }

    /// Returns the number of bytes that the attribute takes in a region.
    pub fn space(&self) -> usize {
        header_len(self.name.len()).saturating_add(self.value.room())
    }

    /// Returns the sort key of entries in a block.
    fn key(&self) -> (u8, usize, &[u8]) {
        (self.index, self.name.len(), &self.name)
    }
}

/// Returns the number of bytes of an entry's header and its name, padded.
const fn header_len(name_len: usize) -> usize {
    padded(name_len.saturating_add(ENTRY_HEADER))
}

const fn padded(len: usize) -> usize {
    len.next_multiple_of(4)
}
