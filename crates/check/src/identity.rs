//! A new UUID for a copy of a file system.
//!
//! With `metadata_csum` the seed of all checksums is that of the UUID, unless the superblock stores
//! one (`metadata_csum_seed`). The old seed is therefore stored before the UUID changes, and no
//! other checksum does. Checksums of descriptors by `uninit_bg` depend on the UUID itself, and are
//! computed again.

use crate::view::is_in_use;
use extant_blocks::BlockDevice;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_format::{
    BlockNr, Compat, Corrupt, Geometry, GroupDesc, GroupNr, Incompat, InodeNr, Superblock,
};
use std::io;

/// The reason why a file system does not get a new UUID.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UuidError {
    /// The log has a superblock that a recovery would write.
    #[error("the journal needs recovery")]
    NeedsRecovery,
    /// The external journal knows the file system by its UUID.
    #[error("its journal is on another device, which knows it by its UUID")]
    ExternalJournal,
    /// Encrypted files depend on the UUID.
    #[error("its encrypted files may depend on the UUID (stable_inodes)")]
    StableInodes,
    /// Without `metadata_csum` the hashes of large attributes depend on the UUID.
    #[error("the hashes of its large attributes depend on the UUID (ea_inode)")]
    AttributeInodes,
    /// Another host uses the file system, or did when it failed.
    #[error("another host uses the file system, or did when it failed (MMP)")]
    InUse,
    /// Superblock or descriptors are damaged.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The device failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Changes the UUID of the file system on a device that nothing else has open, in all copies of the
/// superblock. The change is not atomic: the device must be a copy that is not in use yet.
///
/// # Errors
/// A file system whose UUID cannot change, which stays the same; those of the device, after which a
/// part may be changed.
pub fn set_uuid(device: &dyn BlockDevice, uuid: [u8; 16]) -> Result<(), UuidError> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)?;
    let mut superblock = Superblock::parse(&bytes)?;
    let old = Geometry::new(&superblock)?;
    check(device, &superblock, &old)?;
    superblock.replace_uuid(uuid);
    let new = Geometry::new(&superblock)?;
    if old.gdt_csum && !old.metadata_csum {
        for index in 0..old.desc_blocks {
            write_descriptors(device, (&old, &new), index, old.gdt_block(index))?;
            for copy in old.gdt_backups(index) {
                write_descriptors(device, (&old, &new), index, copy)?;
            }
        }
    }
    for group in old.super_groups().skip(1) {
        let Some(block) = old.super_block_of(group) else { continue };
        let offset = block.0.saturating_mul(old.block_size.into());
        device.read_exact_at(&mut bytes, offset)?;
        // A damaged copy is left to a repair.
        if let Ok(mut copy) = Superblock::parse(&bytes) {
            copy.replace_uuid(uuid);
            device.write_all_at(&copy.seal(), offset)?;
        }
    }
    device.write_all_at(&superblock.seal(), SUPERBLOCK_OFFSET)?;
    Ok(device.flush()?)
}

fn check(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    geometry: &Geometry,
) -> Result<(), UuidError> {
    let compat = superblock.compat();
    if superblock.incompat().contains(Incompat::RECOVER) {
        Err(UuidError::NeedsRecovery)
    } else if compat.contains(Compat::HAS_JOURNAL) && superblock.journal_inum() == InodeNr::NONE {
        Err(UuidError::ExternalJournal)
    } else if compat.contains(Compat::STABLE_INODES) {
        Err(UuidError::StableInodes)
    } else if superblock.incompat().contains(Incompat::EA_INODE) && !superblock.has_checksum() {
        Err(UuidError::AttributeInodes)
    } else if is_in_use(device, superblock, geometry)? {
        Err(UuidError::InUse)
    } else {
        Ok(())
    }
}

/// Writes the descriptors of a block, or of a copy of it, with checksums of the new UUID.
fn write_descriptors(
    device: &dyn BlockDevice,
    (old, new): (&Geometry, &Geometry),
    index: u32,
    block: BlockNr,
) -> Result<(), UuidError> {
    let offset = block.0.saturating_mul(old.block_size.into());
    let mut bytes = vec![0; old.block_size as usize];
    device.read_exact_at(&mut bytes, offset)?;
    let first = index.saturating_mul(old.descs_per_block());
    let slots = bytes.chunks_exact_mut(old.desc_size.into());
    for (slot, n) in slots.zip(0..old.descs_in_block(index)) {
        let group = GroupNr(first.saturating_add(n));
        // A wrong checksum stays wrong: a check must find the damage in the copy, too.
        if GroupDesc::verify_checksum(slot, old, group).is_ok() {
            GroupDesc::decode_unverified(slot, old).encode(slot, new, group);
        }
    }
    Ok(device.write_all_at(&bytes, offset)?)
}
