//! The primary superblock and its copies.

use crate::finding::{Finding, FindingCode, FindingPlace, Findings};
use crate::reader::Reader;
use extant_blocks::BlockDevice;
use extant_format::{Corrupt, Geometry, GroupNr, Incompat, Superblock};

/// Byte of the primary superblock on the device, and its length.
const SUPERBLOCK_OFFSET: u64 = 1024;
const SUPERBLOCK_LEN: usize = 1024;

/// A usable primary superblock.
pub struct Primary {
    pub superblock: Superblock,
    pub geometry: Geometry,
}

/// Reads the primary superblock. A wrong checksum is damage; a wrong magic or a contradiction
/// between its numbers is fatal, and the result is `None`.
pub fn read_primary(device: &dyn BlockDevice, findings: &mut Findings<'_>) -> Option<Primary> {
    let mut bytes = [0; SUPERBLOCK_LEN];
    let place = FindingPlace::default();
    if device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET).is_err() {
        findings.report(Finding::new(FindingCode::SuperblockInvalid, place));
        return None;
    }
    let parsed = Superblock::parse_unverified(&bytes)
        .and_then(|superblock| Ok((Geometry::new(&superblock)?, superblock)));
    let (geometry, superblock) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            let finding = Finding::corrupt(FindingCode::SuperblockInvalid, place, &error);
            findings.report(finding);
            return None;
        }
    };
    if let Err(error) = superblock.verify_checksum() {
        findings.report(Finding::corrupt(FindingCode::SuperblockChecksum, place, &error));
    }
    if superblock.incompat().contains(Incompat::RECOVER) {
        findings.report(Finding::new(FindingCode::JournalNotReplayed, place));
    }
    let blocks = device.len() >> geometry.block_bits;
    if blocks < geometry.blocks_count {
        let finding = Finding::new(FindingCode::DeviceTooShort, place);
        findings.report(finding.values(blocks, geometry.blocks_count));
    }
    Some(Primary { superblock, geometry })
}

/// Compares the copies in other groups with the primary superblock.
pub fn check_copies(reader: &Reader<'_>, primary: &Superblock, findings: &mut Findings<'_>) {
    let groups = reader.geometry.super_groups().skip(1);
    for group in groups.take_while(|group| reader.begins_on_device(*group)) {
        let Some(block) = reader.geometry.super_block_of(group) else { continue };
        let place = FindingPlace::group(group).block(block.0);
        let mut bytes = [0; SUPERBLOCK_LEN];
        if !reader.read(block.0, &mut bytes) {
            findings.report(Finding::new(FindingCode::Unreadable, place));
        } else if let Err(error) = check_copy(&bytes, primary, group) {
            findings.report(Finding::corrupt(FindingCode::BackupSuperblock, place, &error));
        }
    }
}

/// Compares the numbers that determine the layout; counts, times and states of a copy are old.
fn check_copy(bytes: &[u8], primary: &Superblock, group: GroupNr) -> Result<(), Corrupt> {
    let copy = Superblock::parse_unverified(bytes)?;
    copy.verify_checksum()?;
    let layout = |sb: &Superblock| -> [(&'static str, u64); 5] {
        [
            ("block size", sb.log_block_size().into()),
            ("blocks count", sb.blocks_count()),
            ("blocks per group", sb.blocks_per_group().into()),
            ("inodes per group", sb.inodes_per_group().into()),
            ("inode size", sb.inode_size().into()),
        ]
    };
    for ((field, expected), (_, found)) in layout(primary).into_iter().zip(layout(&copy)) {
        if found != expected {
            let error = Corrupt::new("superblock copy").field(field);
            return Err(error.found(found).expected(expected).at_group(group));
        }
    }
    Ok(())
}
