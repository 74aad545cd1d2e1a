//! Extended attributes: those that are damaged are removed.

use super::RepairError;
use super::draft::Round;
use crate::finding::{Finding, FindingCode as Code};
use extant_format::acl::Acl;
use extant_format::inode::{RawInode, tail};
use extant_format::xattr::{
    Entry, NameIndex, Value, decode_block, decode_inode_area, encode_block, encode_inode_area,
    inode_entry_hash, seal_xattr_block,
};
use extant_format::{Inode, InodeFlags, InodeNr};
use std::collections::BTreeSet;

impl Round<'_> {
    /// Repairs the attributes in an inode, and its reference to a block.
    pub fn repair_own_xattrs(&self, ino: InodeNr, list: &[Finding]) -> Result<(), RepairError> {
        let file_acl = self.inode(ino)?.file_acl;
        for finding in list {
            let own = finding.place.block.is_none();
            match finding.code {
                Code::XattrHash if finding.place.field == Some("value") => {
                    let hash = finding.expected.unwrap_or(0) as u32;
                    self.edit_inode(ino, |inode| inode.set_ea_hash(hash))?;
                }
                Code::XattrInInode => self.write_area(ino, &[])?,
                Code::Acl | Code::XattrValue | Code::XattrHash if own => self.filter_area(ino)?,
                Code::XattrBlock if own => self.edit_inode(ino, |inode| inode.file_acl = 0)?,
                Code::BlockInMetadata if finding.place.block == Some(file_acl) => {
                    self.edit_inode(ino, |inode| inode.file_acl = 0)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn write_area(&self, ino: InodeNr, entries: &[Entry]) -> Result<(), RepairError> {
        let geometry = self.geometry();
        let area = self.inode(ino)?.xattr_area(geometry);
        self.edit_slot(ino, |slot| {
            if let Some(area) = slot.get_mut(area)
                && !encode_inode_area(entries, area)
            {
                area.fill(0);
            }
            Ok(())
        })
    }

    /// Removes damaged attributes from an inode.
    fn filter_area(&self, ino: InodeNr) -> Result<(), RepairError> {
        let (slot, inode) = (self.slot(ino)?, self.inode(ino)?);
        let entries = decode_inode_area(tail(&slot, self.geometry(), &inode)).unwrap_or_default();
        self.write_area(ino, &self.valid(entries))
    }

    /// Returns the attributes that can be kept, with right hashes.
    fn valid(&self, entries: Vec<Entry>) -> Vec<Entry> {
        entries.into_iter().filter_map(|entry| self.valid_entry(entry)).collect()
    }

    fn valid_entry(&self, mut entry: Entry) -> Option<Entry> {
        let is_acl =
            matches!(entry.index, NameIndex::POSIX_ACL_ACCESS | NameIndex::POSIX_ACL_DEFAULT);
        match &entry.value {
            Value::Inline(bytes) => (!is_acl || Acl::from_disk(bytes).is_ok()).then_some(entry),
            Value::EaInode { ino, size } => {
                let inode = self.inode(InodeNr(*ino)).ok()?;
                let valid = inode.flags.contains(InodeFlags::EA_INODE)
                    && inode.links > 0
                    && inode.size == u64::from(*size);
                entry.hash = inode_entry_hash(&entry.name, inode.ea_hash());
                valid.then_some(entry)
            }
        }
    }

    /// Repairs blocks of attributes, which inodes share.
    pub fn repair_shared(&self, found: &[Finding]) -> Result<(), RepairError> {
        let mut dropped = BTreeSet::new();
        for finding in found {
            let Some(nr) = finding.place.block else { continue };
            match finding.code {
                Code::XattrBlock => {
                    dropped.insert(nr);
                }
                Code::XattrChecksum | Code::XattrHash | Code::Acl | Code::XattrValue => {
                    self.repair_shared_block(nr)?;
                }
                _ => {}
            }
        }
        if dropped.is_empty() { Ok(()) } else { self.drop_blocks(&dropped) }
    }

    fn repair_shared_block(&self, nr: u64) -> Result<(), RepairError> {
        let mut bytes = self.block(nr)?;
        if let Ok((header, entries)) = decode_block(&bytes) {
            let valid = self.valid(entries.clone());
            // Without a change of an attribute its bytes stay, in whatever order they are.
            let hashes = valid != entries || !encode_matches(&entries, header.refcount, &bytes);
            if hashes && !encode_block(&valid, header.refcount, &mut bytes) {
                return Err(RepairError::Unsupported("a block of attributes"));
            }
        }
        if self.geometry().metadata_csum {
            seal_xattr_block(&mut bytes, nr, self.geometry().csum_seed);
        }
        self.put(nr, &bytes)
    }

    /// Removes references to blocks of attributes.
    fn drop_blocks(&self, blocks: &BTreeSet<u64>) -> Result<(), RepairError> {
        let volume = &self.survey.volume;
        let geometry = self.geometry();
        let mut owners = Vec::new();
        for group in volume.reader.groups() {
            volume.each_slot(group, &mut |ino, slot| {
                let links = RawInode::read(slot).links.get();
                let inode = Inode::decode_unverified(slot, geometry, ino);
                if inode.is_ok_and(|inode| blocks.contains(&inode.file_acl)) && links > 0 {
                    owners.push(ino);
                }
            });
        }
        owners.into_iter().try_for_each(|ino| self.edit_inode(ino, |inode| inode.file_acl = 0))
    }
}

/// Returns whether a block has these entries in the way in which they are written.
fn encode_matches(entries: &[Entry], refcount: u32, bytes: &[u8]) -> bool {
    let mut again = bytes.to_vec();
    // The checksum is written later.
    encode_block(entries, refcount, &mut again)
        && again.get(..16) == bytes.get(..16)
        && again.get(20..) == bytes.get(20..)
}
