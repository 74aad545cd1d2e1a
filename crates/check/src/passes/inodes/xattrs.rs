//! Extended attributes: in the inode, in blocks that inodes share, in inodes of their own.

use super::{GroupScan, InodePass, Subject};
use crate::claims::ClaimMap;
use crate::finding::{Finding, FindingCode, FindingList, FindingPlace};
use crate::parallel::Workers;
use crate::volume::Volume;
use extant_format::acl::Acl;
use extant_format::inode::{Inode, tail};
use extant_format::xattr::{
    Entry, NameIndex, Value, decode_block, decode_inode_area, entry_hash, entry_hash_signed,
    inode_entry_hash, verify_xattr_block,
};
use extant_format::{Compat, Incompat, InodeFlags, InodeNr};
use std::collections::{BTreeMap, BTreeSet};

/// Name of the attribute with the context of an encrypted inode, without its prefix.
const CONTEXT_NAME: &[u8] = b"c";

/// Versions of encryption contexts, with their lengths in bytes.
const CONTEXT_LENGTHS: [(u8, usize); 2] = [(1, 28), (2, 40)];

/// Blocks of attributes, with their owners.
#[derive(Debug, Default)]
pub struct SharedBlocks {
    /// The number of owners and the first of them, by block.
    owners: BTreeMap<u64, (u32, InodeNr)>,
}

impl SharedBlocks {
    /// Returns the blocks, in order.
    pub fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.owners.keys().copied()
    }

    pub(super) fn add(&mut self, block: u64, ino: InodeNr) {
        let (count, _) = self.owners.entry(block).or_insert((0, ino));
        *count = count.saturating_add(1);
    }
}

/// Returns whether the hash of an entry is right. Older programs hashed names as signed bytes.
fn has_hash(entry: &Entry, value: &[u8]) -> bool {
    let name = &entry.name;
    entry.hash == entry_hash(name, value) || entry.hash == entry_hash_signed(name, value)
}

/// Returns whether a value has the version and the length of an encryption context.
fn is_context_value(value: &Value) -> bool {
    let Value::Inline(bytes) = value else { return false };
    let of_version = CONTEXT_LENGTHS.iter().find(|(version, _)| bytes.first() == Some(version));
    of_version.is_some_and(|(_, len)| bytes.len() == *len)
}

fn is_acl(index: u8) -> bool {
    matches!(index, NameIndex::POSIX_ACL_ACCESS | NameIndex::POSIX_ACL_DEFAULT)
}

/// Checks an access control list. An empty value stands for none.
fn check_acl(entry: &Entry, place: FindingPlace, findings: &mut FindingList) {
    if let Value::Inline(bytes) = &entry.value
        && is_acl(entry.index)
        && let Err(error) = Acl::from_disk(bytes)
    {
        findings.push(Finding::corrupt(FindingCode::Acl, place, &error));
    }
}

/// Checks the inode with an entry's value.
fn check_value(
    volume: &Volume<'_>,
    entry: &Entry,
    place: FindingPlace,
    findings: &mut FindingList,
) {
    let Value::EaInode { ino, size } = entry.value else { return };
    let value = FindingPlace { logical: None, field: Some("value inode"), ..place };
    let finding = Finding::new(FindingCode::XattrValue, value).found(ino);
    let slot = volume.slot(InodeNr(ino)).unwrap_or_default();
    let inode = Inode::decode_unverified(&slot, &volume.reader.geometry, InodeNr(ino));
    let Ok(inode) = inode else { return findings.push(finding) };
    let valid = inode.flags.contains(InodeFlags::EA_INODE)
        && inode.links > 0
        && inode.size == u64::from(size)
        && volume.reader.geometry.incompat(Incompat::EA_INODE);
    if !valid {
        findings.push(finding);
    } else if entry.hash != inode_entry_hash(&entry.name, inode.ea_hash())
        && Some(inode.ea_parent()) != place.inode
    {
        findings.push(Finding { code: FindingCode::XattrHash, ..finding });
    }
}

/// Space of attributes that is charged to their inode.
#[derive(Clone, Copy, Debug, Default)]
pub struct Charge {
    /// Clusters of the block of attributes and of values in inodes.
    pub clusters: u64,
    /// Inodes with values.
    pub inodes: u64,
}

impl Charge {
    fn and(self, other: Charge) -> Charge {
        Charge {
            clusters: self.clusters.saturating_add(other.clusters),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }
}

/// Returns the space of values in inodes.
fn charge_of(volume: &Volume<'_>, entries: &[Entry]) -> Charge {
    let geometry = &volume.reader.geometry;
    let cluster = u64::from(geometry.block_size) << geometry.cluster_bits;
    let of_entry = |entry: &Entry| match entry.value {
        Value::EaInode { size, .. } => {
            Charge { clusters: u64::from(size).div_ceil(cluster), inodes: 1 }
        }
        Value::Inline(_) => Charge::default(),
    };
    entries.iter().map(of_entry).fold(Charge::default(), Charge::and)
}

fn value_inodes(entries: &[Entry]) -> impl Iterator<Item = u32> + '_ {
    entries.iter().filter_map(|entry| match entry.value {
        Value::EaInode { ino, .. } => Some(ino),
        Value::Inline(_) => None,
    })
}

impl InodePass<'_> {
    /// Checks the attributes. Returns the space that is charged for them.
    pub(super) fn check_xattrs(&self, subject: &Subject<'_>, scan: &mut GroupScan) -> Charge {
        let charge = self.check_inode_area(subject, scan);
        self.check_encryption(subject, scan);
        let block = subject.inode.file_acl;
        if block == 0 {
            return charge;
        }
        let geometry = &self.volume.reader.geometry;
        if !geometry.compat(Compat::EXT_ATTR) || !self.volume.is_block(block) {
            let finding = Finding::new(FindingCode::XattrBlock, subject.place());
            scan.findings.push(finding.found(block));
            return charge;
        }
        scan.shared.push((block, subject.ino));
        let mut values = Charge { clusters: 1, inodes: 0 };
        if geometry.incompat(Incompat::EA_INODE) {
            let entries = self.volume.reader.block(block);
            let entries = entries.and_then(|bytes| decode_block(&bytes).ok());
            values =
                entries.map_or(values, |(_, entries)| values.and(charge_of(self.volume, &entries)));
        }
        charge.and(values)
    }

    /// An encrypted inode must have its context, in an attribute.
    fn check_encryption(&self, subject: &Subject<'_>, scan: &mut GroupScan) {
        let (inode, reader) = (subject.inode, &self.volume.reader);
        if !inode.flags.contains(InodeFlags::ENCRYPT) {
            return;
        }
        let is_context = |entry: &Entry| {
            entry.is(NameIndex::ENCRYPTION, CONTEXT_NAME) && is_context_value(&entry.value)
        };
        let area = decode_inode_area(tail(subject.slot, &reader.geometry, inode));
        let block =
            || reader.block(inode.file_acl).filter(|_| self.volume.is_block(inode.file_acl));
        let in_block = || decode_block(&block()?).ok().map(|(_, entries)| entries);
        let found = area.is_ok_and(|entries| entries.iter().any(is_context))
            || in_block().is_some_and(|entries| entries.iter().any(is_context));
        if !found {
            let finding = Finding::new(FindingCode::InodeFlag, subject.place());
            scan.findings.push(finding.found(InodeFlags::ENCRYPT.bits()));
        }
    }

    fn check_inode_area(&self, subject: &Subject<'_>, scan: &mut GroupScan) -> Charge {
        let geometry = &self.volume.reader.geometry;
        let entries = match decode_inode_area(tail(subject.slot, geometry, subject.inode)) {
            Ok(entries) => entries,
            Err(error) => {
                let place = subject.place();
                scan.findings.push(Finding::corrupt(FindingCode::XattrInInode, place, &error));
                return Charge::default();
            }
        };
        for entry in &entries {
            check_acl(entry, subject.place(), &mut scan.findings);
            check_value(self.volume, entry, subject.place(), &mut scan.findings);
            // Newer programs store no hash for values in the inode.
            if let Value::Inline(value) = &entry.value
                && entry.hash != 0
                && !has_hash(entry, value)
            {
                scan.findings.add(FindingCode::XattrHash, subject.place());
            }
        }
        scan.value_refs.extend(value_inodes(&entries));
        charge_of(self.volume, &entries)
    }
}

/// Results for one block of attributes.
type SharedScan = (FindingList, Vec<u32>);

/// Checks the blocks of attributes, and claims them. Returns the inodes with values that they
/// refer to.
pub fn check_shared(
    volume: &Volume<'_>,
    workers: Workers<'_>,
    shared: &SharedBlocks,
    claims: &ClaimMap,
) -> (FindingList, Vec<u32>, BTreeSet<u64>) {
    let blocks: Vec<_> = shared.owners.iter().collect();
    let (mut findings, mut refs, mut contested) =
        (FindingList::default(), Vec::new(), BTreeSet::new());
    let check = |part: usize| match blocks.get(part) {
        Some((block, (count, ino))) => check_block(volume, **block, *count, *ino),
        None => SharedScan::default(),
    };
    workers.run(blocks.len(), check, |part, (found, inodes)| {
        findings.append(found);
        refs.extend(inodes);
        let Some((block, (_, ino))) = blocks.get(part) else { return };
        let (block, place) = (**block, FindingPlace::inode(*ino).block(**block));
        let range = block..block.saturating_add(1);
        if volume.metadata.first_claimed(range.clone()).is_some() {
            findings.add(FindingCode::BlockInMetadata, place);
        } else if claims.claim(range).is_some() {
            findings.add(FindingCode::MultiplyClaimed, place);
            contested.insert(block);
        }
    });
    (findings, refs, contested)
}

fn check_block(volume: &Volume<'_>, block: u64, owners: u32, first: InodeNr) -> SharedScan {
    let mut findings = FindingList::default();
    let place = FindingPlace::inode(first).block(block);
    let Some(bytes) = volume.reader.block(block) else {
        findings.add(FindingCode::Unreadable, place);
        return (findings, Vec::new());
    };
    let geometry = &volume.reader.geometry;
    if geometry.metadata_csum
        && let Err(error) = verify_xattr_block(&bytes, block, geometry.csum_seed)
    {
        findings.push(Finding::corrupt(FindingCode::XattrChecksum, place, &error));
    }
    let (header, entries) = match decode_block(&bytes) {
        Ok(decoded) => decoded,
        Err(error) => {
            findings.push(Finding::corrupt(FindingCode::XattrBlock, place, &error));
            return (findings, Vec::new());
        }
    };
    if header.refcount != owners {
        let finding = Finding::new(FindingCode::XattrReferences, place);
        findings.push(finding.values(header.refcount, owners));
    }
    for entry in &entries {
        check_acl(entry, place, &mut findings);
        check_value(volume, entry, place, &mut findings);
        if let Value::Inline(value) = &entry.value
            && !has_hash(entry, value)
        {
            findings.add(FindingCode::XattrHash, place);
        }
    }
    let inodes = value_inodes(&entries).collect();
    (findings, inodes)
}
