//! Attributes in the inode's slot. Offsets of values count from the first entry; entries are not
//! sorted.

use super::region::{decode, encode, space, value_range};
use super::{Entry, Value, XATTR_MAGIC, XATTR_NAME_MAX};
use crate::bytes::{le32, put_le32};
use crate::error::Result;
use std::ops::Range;

const HEADER: usize = 4;

/// Reads the attributes of an inode from the bytes after its fields; none if the area was never
/// used.
///
/// # Errors
/// An entry that does not lie in the area.
pub fn decode_inode_area(area: &[u8]) -> Result<Vec<Entry>> {
    if le32(area, 0) != XATTR_MAGIC {
        return Ok(Vec::new());
    }
    decode(area, HEADER, HEADER)
}

/// Returns the bytes of an inode's area that hold the value of an attribute; `None` if the area has
/// no such attribute, or its value is in an inode.
///
/// # Errors
/// An entry before it that does not lie in the area.
pub fn inode_value_range(area: &[u8], index: u8, name: &[u8]) -> Result<Option<Range<usize>>> {
    if le32(area, 0) != XATTR_MAGIC {
        return Ok(None);
    }
    value_range(area, (HEADER, HEADER), (index, name))
}

/// Returns the number of bytes that these attributes take in an inode's area.
pub fn inode_area_space(entries: &[Entry]) -> usize {
    space(entries).saturating_add(HEADER)
}

/// Writes the attributes over the whole area; without attributes the area is zeroed. Returns
/// `false` if they do not fit, and then leaves the area unchanged.
#[must_use]
pub fn encode_inode_area(entries: &[Entry], area: &mut [u8]) -> bool {
    if entries.is_empty() {
        area.fill(0);
        return true;
    }
    let names_fit = entries.iter().all(|entry| entry.name.len() <= XATTR_NAME_MAX);
    if !names_fit || inode_area_space(entries) > area.len() & !3 {
        return false;
    }
    area.fill(0);
    put_le32(area, 0, XATTR_MAGIC);
    encode(area, HEADER, HEADER, entries.iter().map(|entry| (entry, hash_in_inode(entry))));
    true
}

/// Values in the area have no hash.
fn hash_in_inode(entry: &Entry) -> u32 {
    match entry.value {
        Value::Inline(_) => 0,
        Value::EaInode { .. } => entry.hash,
    }
}
