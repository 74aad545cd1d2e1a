//! The primary superblock and its copies.

use crate::finding::{Finding, FindingCode, FindingPlace, Findings};
use crate::reader::Reader;
use extant_blocks::BlockDevice;
use extant_format::{
    Corrupt, Features, Geometry, GroupNr, Incompat, InodeNr, RoCompat, Superblock,
};
use std::time::{SystemTime, UNIX_EPOCH};

/// Byte of the primary superblock on the device, and its length.
const SUPERBLOCK_OFFSET: u64 = 1024;
const SUPERBLOCK_LEN: usize = 1024;

/// Bytes of an inode that every revision has, and the first ordinary inode of the oldest.
const OLD_INODE_SIZE: u16 = 128;
const OLD_FIRST_INO: u32 = 11;

/// Maximum number of bytes of a descriptor.
const MAX_DESC_SIZE: u16 = 1024;

/// Seconds that a time may be ahead of this computer's clock.
const CLOCK_SLACK: u64 = 24 * 3600;

/// Features that exist as numbers only.
const NO_INCOMPAT: Incompat = Incompat::COMPRESSION.union(Incompat::DIRDATA);
const NO_RO_COMPAT: RoCompat =
    RoCompat::BTREE_DIR.union(RoCompat::HAS_SNAPSHOT).union(RoCompat::REPLICA);

/// A usable primary superblock.
pub struct Primary {
    pub superblock: Superblock,
    pub geometry: Geometry,
}

/// Reads the primary superblock. A wrong checksum is damage; a wrong magic, unknown features, or a
/// contradiction between its numbers is fatal, and the result is `None`.
pub fn read_primary(device: &dyn BlockDevice, findings: &mut Findings<'_>) -> Option<Primary> {
    let mut bytes = [0; SUPERBLOCK_LEN];
    let place = FindingPlace::default();
    if device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET).is_err() {
        findings.report(Finding::new(FindingCode::SuperblockInvalid, place));
        return None;
    }
    let parsed = Superblock::parse_unverified(&bytes).and_then(|superblock| {
        if superblock.rev_level() > 1 {
            let error = Corrupt::new("superblock").field("revision");
            return Err(error.found(superblock.rev_level()));
        }
        Ok((Geometry::new(&superblock)?, superblock))
    });
    let (geometry, superblock) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            let finding = Finding::corrupt(FindingCode::SuperblockInvalid, place, &error);
            findings.report(finding);
            return None;
        }
    };
    if let Some(bits) = unknown_features(&superblock.features()) {
        findings.report(Finding::new(FindingCode::UnknownFeatures, place).found(bits));
        return None;
    }
    if let Err(error) = superblock.verify_checksum() {
        findings.report(Finding::corrupt(FindingCode::SuperblockChecksum, place, &error));
    }
    let blocks = device.len() >> geometry.block_bits;
    if blocks < geometry.blocks_count {
        let finding = Finding::new(FindingCode::DeviceTooShort, place);
        findings.report(finding.values(blocks, geometry.blocks_count));
    }
    Some(Primary { superblock, geometry })
}

/// Returns the bits of features that cannot be checked, if there are any.
pub fn unknown_features(features: &Features) -> Option<u32> {
    let incompat = features.incompat.unknown()
        | features.incompat.intersection(NO_INCOMPAT | Incompat::JOURNAL_DEV).bits();
    let ro_compat =
        features.ro_compat.unknown() | features.ro_compat.intersection(NO_RO_COMPAT).bits();
    [incompat, ro_compat, features.compat.unknown()].into_iter().find(|bits| *bits != 0)
}

/// Checks fields that the layout does not depend on.
pub fn check_fields(primary: &Primary, as_is: bool, findings: &mut Findings<'_>) {
    let sb = &primary.superblock;
    let mut bad = |field, found: u64, expected: u64| {
        let place = FindingPlace::default().field(field);
        findings.report(Finding::new(FindingCode::SuperblockField, place).values(found, expected));
    };
    for (field, size) in [
        ("required extra inode size", sb.min_extra_isize()),
        ("wanted extra inode size", sb.want_extra_isize()),
    ] {
        let room = primary.geometry.inode_size.saturating_sub(OLD_INODE_SIZE);
        let valid = size == 0 || (4..=room).contains(&size) && size.is_multiple_of(4);
        if room > 0 && !valid {
            bad(field, size.into(), room.into());
        }
    }
    let first = sb.first_ino();
    if !(OLD_FIRST_INO..=sb.inodes_count()).contains(&first) {
        bad("first inode", first.into(), OLD_FIRST_INO.into());
    }
    let half = sb.blocks_count() / 2;
    if sb.r_blocks_count() > half {
        bad("reserved blocks", sb.r_blocks_count(), half);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    for (field, time) in [("last mount", sb.mtime()), ("last write", sb.wtime())] {
        if time > now.saturating_add(CLOCK_SLACK) {
            bad(field, time, now);
        }
    }
    if !primary.geometry.has_bigalloc() && sb.clusters_per_group() != sb.blocks_per_group() {
        bad("clusters per group", sb.clusters_per_group().into(), sb.blocks_per_group().into());
    }
    for (field, found) in [
        ("user quota inode", sb.usr_quota_inum()),
        ("group quota inode", sb.grp_quota_inum()),
        ("project quota inode", sb.prj_quota_inum()),
    ] {
        let has_own = [InodeNr::NONE, InodeNr::USER_QUOTA, InodeNr::GROUP_QUOTA].contains(&found);
        if !has_own && !(first..=sb.inodes_count()).contains(&found.0) {
            bad(field, found.0.into(), sb.inodes_count().into());
        }
    }
    let size = sb.desc_size();
    if size != 0 && (!size.is_power_of_two() || size > MAX_DESC_SIZE) {
        bad("descriptor size", size.into(), 0);
    }
    let has_seed = sb.incompat().contains(Incompat::CSUM_SEED);
    if has_seed && !sb.ro_compat().contains(RoCompat::METADATA_CSUM) {
        bad("metadata_csum_seed", 1, 0);
    }
    // Pointers have 32 bits.
    if sb.incompat().contains(Incompat::BIT64) && !sb.incompat().contains(Incompat::EXTENTS) {
        bad("extent", 0, 1);
    }
    if as_is && sb.ro_compat().contains(RoCompat::ORPHAN_PRESENT) {
        let place = FindingPlace::default().field("orphan_present");
        findings.report(Finding::new(FindingCode::OrphanRecord, place));
    }
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
