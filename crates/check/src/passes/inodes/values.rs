//! Values of attributes in inodes of their own: their content has a hash.

use super::{GroupScan, InodePass, Subject};
use crate::finding::{Finding, FindingCode};
use crate::maps::Runs;
use extant_format::xattr::value_crc;
use extant_format::{Incompat, Inode, InodeNr};

/// Maximum number of bytes of a value.
const MAX_VALUE: u64 = 1 << 16;

impl InodePass<'_> {
    /// Compares the hash of a value with its content. Values of the old form have none.
    pub(super) fn check_content(&self, subject: &Subject<'_>, scan: &mut GroupScan) {
        let geometry = &self.volume.reader.geometry;
        let is_short = subject.inode.size <= MAX_VALUE;
        if !geometry.incompat(Incompat::EA_INODE) || !is_short || self.has_owner(subject.inode) {
            return;
        }
        let Some(value) = self.content(subject) else { return };
        let crc = value_crc(geometry.csum_seed, &value);
        if crc != subject.inode.ea_hash() {
            let finding = Finding::new(FindingCode::XattrHash, subject.place().field("value"));
            scan.findings.push(finding.values(subject.inode.ea_hash(), crc));
        }
    }

    /// Returns whether the value is of the old form, which names its owner.
    fn has_owner(&self, inode: &Inode) -> bool {
        let owner = InodeNr(inode.ea_parent());
        let slot = self.volume.slot(owner).unwrap_or_default();
        let owner = Inode::decode_unverified(&slot, &self.volume.reader.geometry, owner);
        owner.is_ok_and(|owner| owner.links > 0 && owner.generation == inode.generation)
    }

    /// Reads the whole value; `None` if it has holes or cannot be read.
    fn content(&self, subject: &Subject<'_>) -> Option<Vec<u8>> {
        let (reader, size) = (&self.volume.reader, subject.inode.size);
        let runs = Runs::of(reader, subject.ino, subject.inode);
        let count = size.div_ceil(reader.geometry.block_size.into());
        let mut value = Vec::new();
        for block in runs.blocks(count).filter(|_| !runs.damaged)? {
            value.extend(reader.block(block)?);
        }
        value.truncate(size as usize);
        (value.len() as u64 == size).then_some(value)
    }
}
