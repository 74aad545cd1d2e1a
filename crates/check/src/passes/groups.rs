//! Group descriptors: checksums, places and counts.

use super::bitmaps;
use crate::finding::{Finding, FindingCode, FindingPlace, Findings};
use crate::reader::Reader;
use extant_format::{GroupDesc, GroupNr};

/// Checks the descriptors of all groups that begin on the device, and their bitmaps.
pub fn check(reader: &Reader<'_>, findings: &mut Findings<'_>) {
    let mut descriptors = reader.buffer();
    let mut bits = reader.buffer();
    let mut loaded = None;
    for group in reader.groups() {
        let (index, offset) = reader.geometry.desc_location(group);
        if loaded.is_none_or(|(block, _)| block != index) {
            let block = reader.geometry.gdt_block(index).0;
            let ok = reader.read(block, &mut descriptors);
            loaded = Some((index, ok));
            if !ok {
                let place = FindingPlace::group(group).block(block);
                findings.report(Finding::new(FindingCode::Unreadable, place));
            }
        }
        let end = offset.saturating_add(reader.geometry.desc_size.into());
        let bytes = descriptors.get(offset..end);
        if let (Some((_, true)), Some(bytes)) = (loaded, bytes) {
            check_group(reader, group, bytes, &mut bits, findings);
        }
    }
}

/// Checks one descriptor, and its bitmaps if the descriptor's values are possible.
fn check_group(
    reader: &Reader<'_>,
    group: GroupNr,
    bytes: &[u8],
    bits: &mut [u8],
    findings: &mut Findings<'_>,
) {
    let place = FindingPlace::group(group);
    if let Err(error) = GroupDesc::verify_checksum(bytes, &reader.geometry, group) {
        findings.report(Finding::corrupt(FindingCode::DescriptorChecksum, place, &error));
    }
    let desc = GroupDesc::decode_unverified(bytes, &reader.geometry);
    match desc.check(&reader.geometry) {
        Ok(()) => bitmaps::check(reader, group, &desc, bits, findings),
        Err(error) => {
            findings.report(Finding::corrupt(FindingCode::DescriptorField, place, &error));
        }
    }
}
