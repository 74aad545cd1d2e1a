//! A search for inodes that may not be opened like others.

use super::Operations;
use crate::bounds::check_interrupt;
use crate::error::{Error, Result};
use extant_format::inode::{self as disk, InodeFlags};
use extant_format::types::{GroupNr, InodeNr};

/// Flags for which an open, or an open for writing, may fail.
const RESTRICTING: InodeFlags = InodeFlags::IMMUTABLE
    .union(InodeFlags::APPEND)
    .union(InodeFlags::VERITY)
    .union(InodeFlags::ENCRYPT);

/// Blocks of an inode table that are read in one request.
const AHEAD: u32 = 64;

/// Largest number of slots of inode tables to look at.
const MAX_SLOTS: u64 = 1 << 24;

impl Operations {
    /// Returns the number of an inode with a name that is immutable, append-only, verified or
    /// encrypted, as the device has it. The file system's own inodes do not count, and neither do
    /// those that cannot be loaded. Reads all parts of the inode tables that were ever used.
    ///
    /// # Errors
    /// `Invalid` if the tables have more than 2^24 such slots; those of the device; EINTR if the
    /// caller is to stop ([`set_interrupt`]); ESTALE if the file system is closed.
    ///
    /// [`set_interrupt`]: crate::set_interrupt
    pub fn find_restricted(&self) -> Result<Option<u64>> {
        self.alive()?;
        let groups = || (0..self.st().groups.count()).map(GroupNr);
        let mut slots = 0;
        for group in groups() {
            slots += u64::from(self.st().alloc.used_slots(group)?);
        }
        if slots > MAX_SLOTS {
            let why = format!("{slots} slots of inodes are too many to look at each");
            return Err(Error::Invalid(why));
        }
        for group in groups() {
            check_interrupt()?;
            if let Some(found) = self.find_restricted_in(group)? {
                return Ok(Some(found.0.into()));
            }
        }
        Ok(None)
    }

    fn find_restricted_in(&self, group: GroupNr) -> Result<Option<InodeNr>> {
        let st = self.st();
        let geo = &st.geo;
        let per_block = geo.inodes_per_block().max(1);
        let blocks = st.alloc.used_slots(group)?.div_ceil(per_block);
        let first = st.groups.inode_table(group);
        for block in 0..blocks {
            let at = first + u64::from(block);
            if block % AHEAD == 0 {
                st.cache.read_ahead(at, AHEAD.min(blocks - block).into());
            }
            let buffer = st.cache.read::<Error>(at, |_| Ok(()))?;
            let bytes = buffer.read();
            // Inodes are counted from 1.
            let before = group.0 * geo.inodes_per_group + block * per_block + 1;
            let slots = bytes.chunks_exact(geo.inode_size.into());
            let mut numbered = (before..).map(InodeNr).zip(slots);
            if let Some((ino, _)) = numbered.find(|(ino, slot)| self.is_restricted(*ino, slot)) {
                return Ok(Some(ino));
            }
        }
        Ok(None)
    }

    /// Returns whether a slot of the inode table has a named inode with restricting flags.
    fn is_restricted(&self, ino: InodeNr, slot: &[u8]) -> bool {
        let st = self.st();
        let geo = &st.geo;
        let has_flags = |inode: disk::Inode| {
            inode.links > 0 && inode.flags.intersects(RESTRICTING) && !st.quota.is_hidden(ino)
        };
        // The checksum last, which costs most. A slot with a wrong one cannot be loaded.
        disk::Inode::decode_unverified(slot, geo, ino).is_ok_and(has_flags)
            && disk::Inode::decode(slot, geo, ino).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fs, NodeKind, OpenOptions};
    use extant_testkit::{FeatureSet, Memory};
    use std::sync::Arc;

    /// The quota files of the image are immutable, and do not count.
    #[test]
    fn an_inode_with_restricting_flags_is_found_once_it_is_stored() {
        let image = FeatureSet::named("quota").make();
        let device = Arc::new(Memory::from_bytes(&image.bytes()));
        let open = || Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
        for flag in [InodeFlags::IMMUTABLE, InodeFlags::APPEND] {
            let fs = open();
            assert_eq!(fs.find_restricted().unwrap(), None);
            let node = fs.create(&fs.root().unwrap(), b"file", 0o644, NodeKind::File).unwrap();
            fs.set_flags(&node, node.attr().flags | flag.bits()).unwrap();
            let ino = node.ino();
            drop(node);
            fs.unmount().unwrap();
            let fs = open();
            assert_eq!(fs.find_restricted().unwrap(), Some(ino));
            let (root, node) = (fs.root().unwrap(), fs.node(ino).unwrap());
            fs.set_flags(&node, node.attr().flags & !flag.bits()).unwrap();
            fs.unlink(&root, b"file").unwrap();
            drop((root, node));
            fs.unmount().unwrap();
        }
    }
}
