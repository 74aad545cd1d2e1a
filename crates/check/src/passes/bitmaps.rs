//! Bitmaps of blocks and inodes: checksums, padding, and the counts of their descriptor.
//!
//! A bitmap that was never written is not read: its descriptor's flag stands for known bits.

use crate::finding::{Finding, FindingCode, FindingPlace, Findings};
use crate::reader::Reader;
use extant_format::group_desc::{GroupFlags, init_block_bitmap, init_inode_bitmap};
use extant_format::{GroupDesc, GroupNr, bitmap};

/// Checks both bitmaps of a group, by a buffer of one block.
pub fn check(
    reader: &Reader<'_>,
    group: GroupNr,
    desc: &GroupDesc,
    bits: &mut [u8],
    findings: &mut Findings<'_>,
) {
    if load_block_bitmap(reader, group, desc, bits, findings) {
        let clusters = reader.geometry.clusters_in_group(group) as usize;
        let place = FindingPlace::group(group).block(desc.block_bitmap);
        let code = FindingCode::BlockBitmapPadding;
        check_padding(bits, clusters, Finding::new(code, place), findings);
        let free = bitmap::count_zeros(bits, 0..clusters) as u64;
        let count = Finding::new(FindingCode::FreeClusters, place);
        check_count(count, desc.free_clusters, free, findings);
        check_metadata(reader, group, desc, bits, findings);
    }
    if load_inode_bitmap(reader, group, desc, bits, findings) {
        let inodes = reader.geometry.inodes_per_group as usize;
        let place = FindingPlace::group(group).block(desc.inode_bitmap);
        let code = FindingCode::InodeBitmapPadding;
        check_padding(bits, inodes, Finding::new(code, place), findings);
        let free = bitmap::count_zeros(bits, 0..inodes) as u64;
        let count = Finding::new(FindingCode::FreeInodes, place);
        check_count(count, desc.free_inodes, free, findings);
    }
}

/// Fills `bits` with the group's block bitmap. Returns whether its bits are known.
fn load_block_bitmap(
    reader: &Reader<'_>,
    group: GroupNr,
    desc: &GroupDesc,
    bits: &mut [u8],
    findings: &mut Findings<'_>,
) -> bool {
    if desc.has_flag(&reader.geometry, GroupFlags::BLOCK_UNINIT) {
        init_block_bitmap(bits, &reader.geometry, group, desc);
        return true;
    }
    let place = FindingPlace::group(group).block(desc.block_bitmap);
    if !reader.read(desc.block_bitmap, bits) {
        findings.report(Finding::new(FindingCode::Unreadable, place));
        return false;
    }
    if let Err(error) = desc.verify_block_bitmap(bits, &reader.geometry) {
        findings.report(Finding::corrupt(FindingCode::BlockBitmapChecksum, place, &error));
    }
    true
}

/// Fills `bits` with the group's inode bitmap. Returns whether its bits are known.
fn load_inode_bitmap(
    reader: &Reader<'_>,
    group: GroupNr,
    desc: &GroupDesc,
    bits: &mut [u8],
    findings: &mut Findings<'_>,
) -> bool {
    if desc.has_flag(&reader.geometry, GroupFlags::INODE_UNINIT) {
        init_inode_bitmap(bits, &reader.geometry);
        return true;
    }
    let place = FindingPlace::group(group).block(desc.inode_bitmap);
    if !reader.read(desc.inode_bitmap, bits) {
        findings.report(Finding::new(FindingCode::Unreadable, place));
        return false;
    }
    if let Err(error) = desc.verify_inode_bitmap(bits, &reader.geometry) {
        findings.report(Finding::corrupt(FindingCode::InodeBitmapChecksum, place, &error));
    }
    true
}

/// Reports clear bits from `used` to the end of the bitmap's block.
fn check_padding(bits: &[u8], used: usize, finding: Finding, findings: &mut Findings<'_>) {
    let end = bits.len().saturating_mul(8);
    if let Some(clear) = bitmap::find_next_zero(bits, used, end) {
        findings.report(Finding { found: Some(clear as u64), ..finding });
    }
}

fn check_count(finding: Finding, found: u32, expected: u64, findings: &mut Findings<'_>) {
    if u64::from(found) != expected {
        findings.report(finding.values(found.into(), expected));
    }
}

/// Reports the first cluster of the group's own metadata that its bitmap marks as free.
fn check_metadata(
    reader: &Reader<'_>,
    group: GroupNr,
    desc: &GroupDesc,
    bits: &[u8],
    findings: &mut Findings<'_>,
) {
    let mut metadata = reader.buffer();
    init_block_bitmap(&mut metadata, &reader.geometry, group, desc);
    let clusters = reader.geometry.clusters_in_group(group) as usize;
    let free = (0..clusters).find(|bit| bitmap::test(&metadata, *bit) && !bitmap::test(bits, *bit));
    if let Some(bit) = free {
        let bit = u32::try_from(bit).unwrap_or(u32::MAX);
        let place = FindingPlace::group(group).block(reader.geometry.block_of_bit(group, bit).0);
        findings.report(Finding::new(FindingCode::MetadataMarkedFree, place));
    }
}
