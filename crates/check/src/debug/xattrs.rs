//! Extended attributes of an inode.

use super::{ChecksumState, ContentPiece, InodeSlot, Inspector};
use crate::claims::ClaimMap;
use extant_format::inode;
use extant_format::xattr::{
    Entry, Value, XATTR_VALUE_MAX, decode_block, decode_inode_area, verify_xattr_block,
};
use std::collections::BTreeMap;

/// Bound on the bytes of all values of an inode.
const MAX_VALUES: usize = 32 << 20;

/// The place of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrPlace {
    /// In the slot of the inode.
    Inode,
    /// In the block of attributes.
    Block,
}

/// The attributes of an inode.
#[derive(Clone, Debug)]
pub struct InodeXattrs {
    /// The attributes in their order, with their values, those of other inodes included.
    pub entries: Vec<(XattrPlace, Entry, Vec<u8>)>,
    /// The block of attributes: number, count of references, hash and verdict on the checksum. The
    /// numbers are 0 if the header is damaged.
    pub block: Option<(u64, u32, u32, ChecksumState)>,
    /// Damage, in words.
    pub problems: Vec<String>,
}

impl Inspector {
    /// Returns the attributes of an inode, as far as they can be read.
    pub fn xattrs(&self, slot: &InodeSlot) -> InodeXattrs {
        let mut found = InodeXattrs { entries: Vec::new(), block: None, problems: Vec::new() };
        let area = inode::tail(&slot.bytes, &self.geometry, &slot.inode);
        let mut all = Vec::new();
        match decode_inode_area(area) {
            Ok(entries) => all.extend(entries.into_iter().map(|entry| (XattrPlace::Inode, entry))),
            Err(error) => found.problems.push(format!("in the inode: {error}")),
        }
        let nr = slot.inode.file_acl;
        match self.block(nr) {
            _ if nr == 0 => {}
            Err(error) => found.problems.push(error.to_string()),
            Ok(bytes) => {
                let right = || verify_xattr_block(&bytes, nr, self.geometry.csum_seed).is_ok();
                let checksum = ChecksumState::of(self.has_checksums(), right);
                found.block = Some((nr, 0, 0, checksum));
                match decode_block(&bytes) {
                    Ok((header, entries)) => {
                        found.block = Some((nr, header.refcount, header.hash, checksum));
                        let entries = entries.into_iter();
                        all.extend(entries.map(|entry| (XattrPlace::Block, entry)));
                    }
                    Err(error) => found.problems.push(error.at_block(nr).to_string()),
                }
            }
        }
        self.read_values(all, &mut found);
        found
    }

    /// Adds attributes with their values. Each inode with a value is read once.
    fn read_values(&self, all: Vec<(XattrPlace, Entry)>, found: &mut InodeXattrs) {
        let (mut values, nodes) = (BTreeMap::<u32, Vec<u8>>::new(), self.no_claims());
        let mut total = 0usize;
        for (place, entry) in all {
            if total > MAX_VALUES {
                let message =
                    format!("values of more than {MAX_VALUES} bytes: the rest is left out");
                found.problems.push(message);
                break;
            }
            let value = match &entry.value {
                Value::Inline(bytes) => bytes.clone(),
                Value::EaInode { ino, .. } => {
                    let read = || self.read_value(*ino, &nodes, &mut found.problems);
                    values.entry(*ino).or_insert_with(read).clone()
                }
            };
            total = total.saturating_add(value.len());
            found.entries.push((place, entry, value));
        }
    }

    /// Returns the content of an inode with a value.
    fn read_value(&self, ino: u32, nodes: &ClaimMap, problems: &mut Vec<String>) -> Vec<u8> {
        let slot = match self.inode(ino) {
            Ok(slot) => slot,
            Err(error) => {
                problems.push(error.to_string());
                return Vec::new();
            }
        };
        let mut value = Vec::new();
        let too_long = || std::io::Error::other("the value is too long");
        let read = self.content_within(&slot, nodes, &mut |piece| {
            let ContentPiece::Data(bytes) = piece else { return Err(too_long()) };
            value.extend_from_slice(bytes);
            if value.len() > XATTR_VALUE_MAX { Err(too_long()) } else { Ok(()) }
        });
        match read {
            Ok(more) => problems.extend(more),
            Err(error) => problems.push(format!("inode {ino}: {error}")),
        }
        value.truncate(XATTR_VALUE_MAX);
        value
    }
}
