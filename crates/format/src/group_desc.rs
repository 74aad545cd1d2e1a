//! Block group descriptors, their checksums and those of the bitmaps.
//!
//! # Invariants
//! Free blocks are counted in clusters. Descriptors of 32 bytes have no high halves and hold 16
//! bits of a bitmap's checksum. Encoding preserves the bytes without a named field.

use crate::bitmap;
use crate::checksum::{crc16, crc32c_le32, crc32c_raw, crc32c_with_hole};
use crate::error::{Corrupt, Result};
use crate::features::Incompat;
use crate::geometry::Geometry;
use crate::types::{BlockNr, GroupNr};
use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

bitflags! {
    /// Flags of a group; they hold only where descriptors have checksums.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct GroupFlags: u16 {
        /// The inode bitmap and table were never written: no inode is in use.
        const INODE_UNINIT = 0x1;
        /// The block bitmap was never written: only metadata is in use.
        const BLOCK_UNINIT = 0x2;
        /// The unused part of the inode table is zeroed.
        const INODE_ZEROED = 0x4;
    }
}

/// The first 64 bytes of a descriptor; the short form ends after the first half.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the fields have the names that the format's documentation gives them"
)]
pub struct RawGroupDesc {
    pub block_bitmap_lo: U32,
    pub inode_bitmap_lo: U32,
    pub inode_table_lo: U32,
    pub free_clusters_lo: U16,
    pub free_inodes_lo: U16,
    pub used_dirs_lo: U16,
    pub flags: U16,
    pub exclude_bitmap_lo: U32,
    pub block_bitmap_csum_lo: U16,
    pub inode_bitmap_csum_lo: U16,
    pub itable_unused_lo: U16,
    pub checksum: U16,
    pub block_bitmap_hi: U32,
    pub inode_bitmap_hi: U32,
    pub inode_table_hi: U32,
    pub free_clusters_hi: U16,
    pub free_inodes_hi: U16,
    pub used_dirs_hi: U16,
    pub itable_unused_hi: U16,
    pub exclude_bitmap_hi: U32,
    pub block_bitmap_csum_hi: U16,
    pub inode_bitmap_csum_hi: U16,
    pub reserved: U32,
}

const LONG_SIZE: usize = 64;
const SHORT_SIZE: usize = 32;
const EXCLUSION_OFFSET: usize = 0x14;
const CHECKSUM_OFFSET: usize = 0x1E;
const _: () = assert!(size_of::<RawGroupDesc>() == LONG_SIZE);

const STRUCTURE: &str = "group descriptor";

/// A group descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupDesc {
    /// Block of the block bitmap.
    pub block_bitmap: u64,
    /// Block of the inode bitmap.
    pub inode_bitmap: u64,
    /// First block of the inode table.
    pub inode_table: u64,
    /// Free clusters.
    pub free_clusters: u32,
    /// Free inodes.
    pub free_inodes: u32,
    /// Directories.
    pub used_dirs: u32,
    /// Flags.
    pub flags: GroupFlags,
    /// Inodes at the end of the table that were never used.
    pub itable_unused: u32,
    /// Checksum of the block bitmap.
    pub block_bitmap_csum: u32,
    /// Checksum of the inode bitmap.
    pub inode_bitmap_csum: u32,
}

fn join32(lo: U32, hi: U32) -> u64 {
    u64::from(hi.get()) << 32 | u64::from(lo.get())
}

fn join16(lo: U16, hi: U16) -> u32 {
    u32::from(hi.get()) << 16 | u32::from(lo.get())
}

fn split32(value: u64, lo: &mut U32, hi: &mut U32) {
    lo.set(value as u32);
    hi.set((value >> 32) as u32);
}

fn split16(value: u32, lo: &mut U16, hi: &mut U16) {
    lo.set(value as u16);
    hi.set((value >> 16) as u16);
}

/// Returns the raw descriptor; high halves that it does not have are zero.
fn read_raw(bytes: &[u8], geo: &Geometry) -> RawGroupDesc {
    let size = if geo.desc_size as usize >= LONG_SIZE { LONG_SIZE } else { SHORT_SIZE };
    let mut raw = RawGroupDesc::new_zeroed();
    crate::bytes::put_bytes(raw.as_mut_bytes(), 0, crate::bytes::part(bytes, 0, size));
    raw
}

impl GroupDesc {
    /// Reads a descriptor and verifies its size, checksum and block numbers.
    ///
    /// # Errors
    /// [`Corrupt`] with the invalid field.
    pub fn decode(bytes: &[u8], geo: &Geometry, group: GroupNr) -> Result<GroupDesc> {
        GroupDesc::verify_checksum(bytes, geo, group)?;
        let desc = GroupDesc::decode_unverified(bytes, geo);
        desc.check(geo).map_err(|error| error.at_group(group))?;
        Ok(desc)
    }

    /// Reads a descriptor without verification.
    pub fn decode_unverified(bytes: &[u8], geo: &Geometry) -> GroupDesc {
        let raw = read_raw(bytes, geo);
        GroupDesc {
            block_bitmap: join32(raw.block_bitmap_lo, raw.block_bitmap_hi),
            inode_bitmap: join32(raw.inode_bitmap_lo, raw.inode_bitmap_hi),
            inode_table: join32(raw.inode_table_lo, raw.inode_table_hi),
            free_clusters: join16(raw.free_clusters_lo, raw.free_clusters_hi),
            free_inodes: join16(raw.free_inodes_lo, raw.free_inodes_hi),
            used_dirs: join16(raw.used_dirs_lo, raw.used_dirs_hi),
            flags: GroupFlags::from_bits_retain(raw.flags.get()),
            itable_unused: join16(raw.itable_unused_lo, raw.itable_unused_hi),
            block_bitmap_csum: join16(raw.block_bitmap_csum_lo, raw.block_bitmap_csum_hi),
            inode_bitmap_csum: join16(raw.inode_bitmap_csum_lo, raw.inode_bitmap_csum_hi),
        }
    }

    /// Verifies that bitmaps and table lie in the file system and that counts are possible.
    ///
    /// # Errors
    /// [`Corrupt`] with the invalid field.
    pub fn check(&self, geo: &Geometry) -> Result<()> {
        let fail = |field, found: u64| Err(Corrupt::new(STRUCTURE).field(field).found(found));
        if !geo.data_range_valid(BlockNr(self.block_bitmap), 1) {
            return fail("block bitmap", self.block_bitmap);
        }
        if !geo.data_range_valid(BlockNr(self.inode_bitmap), 1) {
            return fail("inode bitmap", self.inode_bitmap);
        }
        if !geo.data_range_valid(BlockNr(self.inode_table), geo.inode_table_blocks().into()) {
            return fail("inode table", self.inode_table);
        }
        if self.free_inodes > geo.inodes_per_group {
            return fail("free inodes", self.free_inodes.into());
        }
        if self.free_clusters > geo.clusters_per_group {
            return fail("free clusters", self.free_clusters.into());
        }
        if geo.has_group_checksums() && self.itable_unused > geo.inodes_per_group {
            return fail("unused inodes", self.itable_unused.into());
        }
        Ok(())
    }

    /// Writes the descriptor with its checksum; bytes without a named field stay unchanged.
    pub fn encode(&self, bytes: &mut [u8], geo: &Geometry, group: GroupNr) {
        let mut raw = read_raw(bytes, geo);
        split32(self.block_bitmap, &mut raw.block_bitmap_lo, &mut raw.block_bitmap_hi);
        split32(self.inode_bitmap, &mut raw.inode_bitmap_lo, &mut raw.inode_bitmap_hi);
        split32(self.inode_table, &mut raw.inode_table_lo, &mut raw.inode_table_hi);
        split16(self.free_clusters, &mut raw.free_clusters_lo, &mut raw.free_clusters_hi);
        split16(self.free_inodes, &mut raw.free_inodes_lo, &mut raw.free_inodes_hi);
        split16(self.used_dirs, &mut raw.used_dirs_lo, &mut raw.used_dirs_hi);
        raw.flags.set(self.flags.bits());
        split16(self.itable_unused, &mut raw.itable_unused_lo, &mut raw.itable_unused_hi);
        split16(
            self.block_bitmap_csum,
            &mut raw.block_bitmap_csum_lo,
            &mut raw.block_bitmap_csum_hi,
        );
        split16(
            self.inode_bitmap_csum,
            &mut raw.inode_bitmap_csum_lo,
            &mut raw.inode_bitmap_csum_hi,
        );
        let size = if geo.desc_size as usize >= LONG_SIZE { LONG_SIZE } else { SHORT_SIZE };
        crate::bytes::put_bytes(bytes, 0, crate::bytes::part(raw.as_bytes(), 0, size));
        if let Some(checksum) = checksum(bytes, geo, group) {
            crate::bytes::put_le16(bytes, CHECKSUM_OFFSET, checksum);
        }
    }

    /// Verifies a descriptor's checksum, where there is one.
    ///
    /// # Errors
    /// A mismatch, or too few bytes.
    pub fn verify_checksum(bytes: &[u8], geo: &Geometry, group: GroupNr) -> Result<()> {
        if bytes.len() < usize::from(geo.desc_size) {
            return Err(Corrupt::new(STRUCTURE)
                .field("size")
                .found(bytes.len() as u64)
                .at_group(group));
        }
        let found = crate::bytes::le16(bytes, CHECKSUM_OFFSET);
        match checksum(bytes, geo, group) {
            Some(expected) if expected != found => {
                let error = Corrupt::new(STRUCTURE).field("checksum").at_group(group);
                Err(error.found(found).expected(expected))
            }
            _ => Ok(()),
        }
    }

    /// Returns the checksum that a descriptor has, whether it is right or not.
    pub fn stored_checksum(bytes: &[u8]) -> u16 {
        crate::bytes::le16(bytes, CHECKSUM_OFFSET)
    }

    /// Clears the block of a snapshot's bitmap, which no file system has.
    pub fn clear_exclusion(bytes: &mut [u8]) {
        crate::bytes::put_le32(bytes, EXCLUSION_OFFSET, 0);
    }

    /// Gives a descriptor the checksum that is valid under two geometries, by a value of the field
    /// for a snapshot's bitmap. Returns `false` if there is none: for two checksums of the same
    /// kind.
    #[must_use]
    pub fn seal_for_both(bytes: &mut [u8], both: [&Geometry; 2], group: GroupNr) -> bool {
        let differ = |bytes: &[u8]| match both.map(|geometry| checksum(bytes, geometry, group)) {
            [Some(one), Some(other)] => one ^ other,
            _ => 0,
        };
        Self::clear_exclusion(bytes);
        let target = differ(bytes);
        // A CRC is linear: each bit of the field flips the same bits of it.
        let mut flips = [0; 32];
        for (bit, flip) in flips.iter_mut().enumerate() {
            crate::bytes::put_le32(bytes, EXCLUSION_OFFSET, 1 << bit);
            *flip = differ(bytes) ^ target;
        }
        let value = solve(&flips, target);
        crate::bytes::put_le32(bytes, EXCLUSION_OFFSET, value.unwrap_or(0));
        if let Some(sum) = both.into_iter().find_map(|geometry| checksum(bytes, geometry, group)) {
            crate::bytes::put_le16(bytes, CHECKSUM_OFFSET, sum);
        }
        value.is_some()
    }

    /// Returns whether the flag is set and flags hold in this file system.
    pub fn has_flag(&self, geo: &Geometry, flag: GroupFlags) -> bool {
        geo.has_group_checksums() && self.flags.contains(flag)
    }

    /// Verifies the block bitmap of this group against the descriptor.
    ///
    /// # Errors
    /// A mismatch.
    pub fn verify_block_bitmap(&self, bits: &[u8], geo: &Geometry) -> Result<()> {
        compare_bitmap(
            "block bitmap",
            self.block_bitmap_csum,
            block_bitmap_checksum(bits, geo),
            self.block_bitmap,
        )
    }

    /// Verifies the inode bitmap of this group against the descriptor.
    ///
    /// # Errors
    /// A mismatch.
    pub fn verify_inode_bitmap(&self, bits: &[u8], geo: &Geometry) -> Result<()> {
        compare_bitmap(
            "inode bitmap",
            self.inode_bitmap_csum,
            inode_bitmap_checksum(bits, geo),
            self.inode_bitmap,
        )
    }

    /// Stores the checksum of the group's block bitmap in the descriptor, if bitmaps have
    /// checksums.
    pub fn seal_block_bitmap(&mut self, bits: &[u8], geo: &Geometry) {
        if let Some(checksum) = block_bitmap_checksum(bits, geo) {
            self.block_bitmap_csum = checksum;
        }
    }

    /// Stores the checksum of the group's inode bitmap in the descriptor, if bitmaps have
    /// checksums.
    pub fn seal_inode_bitmap(&mut self, bits: &[u8], geo: &Geometry) {
        if let Some(checksum) = inode_bitmap_checksum(bits, geo) {
            self.inode_bitmap_csum = checksum;
        }
    }
}

fn compare_bitmap(what: &'static str, found: u32, expected: Option<u32>, block: u64) -> Result<()> {
    match expected {
        Some(expected) if expected != found => {
            let error = Corrupt::new(what).field("checksum").at_block(block);
            Err(error.found(found).expected(expected))
        }
        _ => Ok(()),
    }
}

/// Returns the bits whose flips together make `target`.
fn solve(flips: &[u16; 32], target: u16) -> Option<u32> {
    // Rows of an elimination by their highest bit: the flips, and the bits that make them.
    let mut rows = [(0u16, 0u32); 16];
    let reduce = |rows: &[(u16, u32); 16], mut row: (u16, u32)| {
        for (bit, known) in rows.iter().enumerate().rev() {
            if row.0 >> bit & 1 != 0 {
                row = (row.0 ^ known.0, row.1 ^ known.1);
            }
        }
        row
    };
    for (bit, flip) in flips.iter().enumerate() {
        let row = reduce(&rows, (*flip, 1 << bit));
        if let Some(place) = row.0.checked_ilog2().and_then(|at| rows.get_mut(at as usize)) {
            *place = row;
        }
    }
    let (left, value) = reduce(&rows, (target, 0));
    (left == 0).then_some(value)
}

/// Returns the checksum that a descriptor should have, if descriptors have any.
fn checksum(bytes: &[u8], geo: &Geometry, group: GroupNr) -> Option<u16> {
    let bytes = crate::bytes::part(bytes, 0, geo.desc_size.into());
    if geo.metadata_csum {
        let seed = crc32c_le32(geo.csum_seed, group.0);
        return Some(crc32c_with_hole(seed, bytes, CHECKSUM_OFFSET, 2) as u16);
    }
    geo.gdt_csum.then(|| {
        let seed = crc16(crc16(0xFFFF, &geo.uuid), &group.0.to_le_bytes());
        let before = crc16(seed, crate::bytes::part(bytes, 0, CHECKSUM_OFFSET));
        let rest = if geo.incompat(Incompat::BIT64) {
            crate::bytes::part(bytes, SHORT_SIZE, bytes.len())
        } else {
            &[]
        };
        crc16(before, rest)
    })
}

fn bitmap_checksum(bits: &[u8], count: u32, geo: &Geometry) -> Option<u32> {
    if !geo.metadata_csum {
        return None;
    }
    let full = crc32c_raw(geo.csum_seed, crate::bytes::part(bits, 0, count as usize / 8));
    let mask = if geo.desc_size as usize >= LONG_SIZE { u32::MAX } else { 0xFFFF };
    Some(full & mask)
}

/// Returns the checksum of a block bitmap as a descriptor of this file system holds it, if bitmaps
/// have any.
pub fn block_bitmap_checksum(bits: &[u8], geo: &Geometry) -> Option<u32> {
    bitmap_checksum(bits, geo.clusters_per_group, geo)
}

/// Returns the checksum of an inode bitmap as a descriptor of this file system holds it, if bitmaps
/// have any.
pub fn inode_bitmap_checksum(bits: &[u8], geo: &Geometry) -> Option<u32> {
    bitmap_checksum(bits, geo.inodes_per_group, geo)
}

/// Builds the block bitmap that [`GroupFlags::BLOCK_UNINIT`] stands for: only metadata is in use.
/// Set bits are the group's base metadata, its own bitmaps and table if they lie in the group, and
/// the padding at the end.
pub fn init_block_bitmap(bits: &mut [u8], geo: &Geometry, group: GroupNr, desc: &GroupDesc) {
    bits.fill(0);
    mark_blocks(
        bits,
        geo,
        group,
        geo.first_block_of_group(group).0,
        geo.base_meta_blocks(group).into(),
    );
    mark_blocks(bits, geo, group, desc.block_bitmap, 1);
    mark_blocks(bits, geo, group, desc.inode_bitmap, 1);
    mark_blocks(bits, geo, group, desc.inode_table, geo.inode_table_blocks().into());
    let end = bits.len().saturating_mul(8);
    bitmap::set_range(bits, geo.clusters_in_group(group) as usize..end);
}

/// Sets the bits of the clusters of `count` blocks from `start` on; blocks outside the group are
/// ignored.
pub fn mark_blocks(bits: &mut [u8], geo: &Geometry, group: GroupNr, start: u64, count: u64) {
    let first = geo.first_block_of_group(group).0;
    let end = first.saturating_add(geo.blocks_in_group(group).into());
    let (from, to) = (start.max(first), start.saturating_add(count).min(end));
    if from < to {
        let bit = |block: u64| (block.saturating_sub(first) >> geo.cluster_bits) as usize;
        bitmap::set_range(bits, bit(from)..bit(to.saturating_sub(1)).saturating_add(1));
    }
}

/// Builds the inode bitmap of a group without inodes: clear, with the padding set.
pub fn init_inode_bitmap(bits: &mut [u8], geo: &Geometry) {
    bits.fill(0);
    let end = bits.len().saturating_mul(8);
    bitmap::set_range(bits, geo.inodes_per_group as usize..end);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::RoCompat;
    use crate::superblock::Superblock;

    fn geometry(feature: RoCompat, desc_size: u16) -> Geometry {
        let mut sb = Superblock::empty();
        sb.set_rev_level(1);
        sb.set_inode_size(256);
        sb.set_first_ino(11);
        sb.set_blocks_count(8193);
        sb.set_first_data_block(1);
        sb.set_blocks_per_group(8192);
        sb.set_clusters_per_group(8192);
        sb.set_inodes_per_group(1024);
        sb.set_inodes_count(1024);
        sb.set_uuid(*b"0123456789abcdef");
        let mut features = sb.features();
        features.ro_compat.insert(feature);
        features.incompat.set(Incompat::BIT64, desc_size == 64);
        sb.set_features(features);
        sb.set_desc_size(desc_size);
        sb.set_checksum_type(1);
        Geometry::new(&sb).expect("a geometry")
    }

    #[test]
    fn a_descriptor_is_valid_under_both_kinds_of_checksums() {
        for size in [32, 64] {
            let old = geometry(RoCompat::GDT_CSUM, size);
            let new = geometry(RoCompat::METADATA_CSUM, size);
            for n in 0..200u32 {
                let mut bytes: Vec<u8> =
                    (0..u32::from(size)).map(|at| (n.wrapping_mul(at).pow(2) >> 5) as u8).collect();
                let before = GroupDesc::decode_unverified(&bytes, &old);
                let group = GroupNr(n);
                assert!(GroupDesc::seal_for_both(&mut bytes, [&old, &new], group), "{n}");
                assert!(GroupDesc::verify_checksum(&bytes, &old, group).is_ok(), "{n}");
                assert!(GroupDesc::verify_checksum(&bytes, &new, group).is_ok(), "{n}");
                assert_eq!(GroupDesc::decode_unverified(&bytes, &old), before);
            }
            let mut bytes = vec![7; size.into()];
            let mut other = new;
            other.csum_seed ^= 1;
            assert!(!GroupDesc::seal_for_both(&mut bytes, [&new, &other], GroupNr(0)));
        }
    }
}
