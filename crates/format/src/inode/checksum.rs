//! The checksum of an inode: its slot with both halves of the checksum as zero.

use super::raw::{GOOD_OLD_SIZE, field_end};
use super::sized_slot;
use crate::bytes::{array, le16, le32, part, put_le16};
use crate::checksum::{crc32c_raw, inode_seed};
use crate::error::{Corrupt, Result};
use crate::geometry::Geometry;
use crate::types::InodeNr;

const GENERATION_OFFSET: usize = 0x64;
const CHECKSUM_LO_OFFSET: usize = 0x7C;
const EXTRA_ISIZE_OFFSET: usize = 0x80;
const CHECKSUM_HI_OFFSET: usize = 0x82;

/// Whether the slot has the high half of the checksum.
fn has_high(slot: &[u8]) -> bool {
    slot.len() > GOOD_OLD_SIZE
        && GOOD_OLD_SIZE + usize::from(le16(slot, EXTRA_ISIZE_OFFSET)) >= field_end::CHECKSUM_HI
}

/// The bytes around the two halves are gathered, since a checksum of few bytes costs as much as one
/// of a hundred.
fn compute(slot: &[u8], geo: &Geometry, ino: InodeNr) -> u32 {
    let seed = inode_seed(geo.csum_seed, ino, le32(slot, GENERATION_OFFSET));
    let seed = crc32c_raw(seed, part(slot, 0, CHECKSUM_LO_OFFSET));
    let mut middle: [u8; field_end::CHECKSUM_HI - CHECKSUM_LO_OFFSET] =
        array(slot, CHECKSUM_LO_OFFSET);
    put_le16(&mut middle, 0, 0);
    if has_high(slot) {
        put_le16(&mut middle, CHECKSUM_HI_OFFSET - CHECKSUM_LO_OFFSET, 0);
    }
    let len = middle.len().min(slot.len().saturating_sub(CHECKSUM_LO_OFFSET));
    let seed = crc32c_raw(seed, part(&middle, 0, len));
    match slot.get(field_end::CHECKSUM_HI..) {
        Some(rest) if !rest.is_empty() => crc32c_raw(seed, rest),
        _ => seed,
    }
}

/// Verifies the checksum of an inode's slot, where inodes have any.
///
/// # Errors
/// A mismatch, or too few bytes.
pub fn verify_inode(slot: &[u8], geo: &Geometry, ino: InodeNr) -> Result<()> {
    let slot = sized_slot(slot, geo, ino)?;
    if !geo.metadata_csum {
        return Ok(());
    }
    let low = u32::from(le16(slot, CHECKSUM_LO_OFFSET));
    let (found, mask) = if has_high(slot) {
        (u32::from(le16(slot, CHECKSUM_HI_OFFSET)) << 16 | low, u32::MAX)
    } else {
        (low, 0xFFFF)
    };
    let expected = compute(slot, geo, ino) & mask;
    if found == expected {
        return Ok(());
    }
    let error = Corrupt::new("inode").field("checksum").at_inode(ino);
    Err(error.found(found).expected(expected))
}

/// Writes the checksum of an inode's slot, where inodes have any.
pub fn seal_inode(slot: &mut [u8], geo: &Geometry, ino: InodeNr) {
    if !geo.metadata_csum {
        return;
    }
    let size = usize::from(geo.inode_size).min(slot.len());
    let checksum = compute(part(slot, 0, size), geo, ino);
    put_le16(slot, CHECKSUM_LO_OFFSET, checksum as u16);
    if has_high(part(slot, 0, size)) {
        put_le16(slot, CHECKSUM_HI_OFFSET, (checksum >> 16) as u16);
    }
}
