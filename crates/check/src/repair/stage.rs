//! The order of repairs, and their price.
//!
//! A round repairs the findings of the first stage that has any. The next survey then sees the
//! stages after it without the consequences of the repaired damage.

use super::RepairLevel;
use crate::finding::{Finding, FindingCode as Code};
use crate::planned::Severity;
use std::collections::BTreeMap;

/// A step of the repair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// Fields of the superblock.
    Superblock,
    /// Descriptors of groups.
    Groups,
    Journal,
    Orphans,
    /// Inodes with their maps and attributes.
    Inodes,
    /// Blocks with several owners.
    Clones,
    /// Sizes and counts of blocks, which follow from maps.
    Sizes,
    Directories,
    /// Paths from the root.
    Names,
    /// Counts of links and of references.
    Links,
    /// Bitmaps, counts, quota files, copies.
    Counts,
}

/// Returns the stage of a finding; `None` if nothing repairs it.
pub fn stage(finding: &Finding) -> Option<Stage> {
    Some(match finding.code {
        Code::SuperblockChecksum | Code::SuperblockField => Stage::Superblock,
        Code::DescriptorChecksum | Code::DescriptorField | Code::MetadataOverlap => Stage::Groups,
        Code::JournalInvalid => Stage::Journal,
        Code::OrphanRecord => Stage::Orphans,
        Code::InodeSize | Code::InodeBlocks => Stage::Sizes,
        Code::MultiplyClaimed => Stage::Clones,
        Code::DotEntries if finding.place.block.is_none() && finding.expected.is_some() => {
            Stage::Names
        }
        Code::DirectoryHole
        | Code::DirectoryBlock
        | Code::DirectoryChecksum
        | Code::DirectoryIndex
        | Code::DotEntries
        | Code::EntryInode
        | Code::EntryName
        | Code::EntryDuplicate
        | Code::EntryType
        | Code::DirectoryLinked => Stage::Directories,
        Code::Unattached | Code::Disconnected => Stage::Names,
        Code::LinkCount | Code::XattrReferences => Stage::Links,
        Code::XattrValue if finding.place.field == Some("references") => Stage::Links,
        Code::BlockBitmapChecksum
        | Code::InodeBitmapChecksum
        | Code::BlockBitmapPadding
        | Code::InodeBitmapPadding
        | Code::BlockMarkedFree
        | Code::BlockMarkedUsed
        | Code::InodeMarkedFree
        | Code::InodeMarkedUsed
        | Code::FreeClusters
        | Code::FreeInodes
        | Code::UsedDirs
        | Code::SuperblockCount
        | Code::StaleCount
        | Code::QuotaFile
        | Code::QuotaUsage
        | Code::Mmp
        | Code::ErrorsRecorded
        | Code::BackupSuperblock => Stage::Counts,
        Code::Unreadable
        | Code::DeviceTooShort
        | Code::UnknownFeatures
        | Code::SuperblockInvalid
        | Code::SuperblockReplaced
        | Code::JournalDeviceMissing
        | Code::JournalNotReplayed
        | Code::JournalReplayed
        | Code::FastCommitsNotReplayed
        | Code::Orphan
        | Code::MoreFindings => return None,
        _ => Stage::Inodes,
    })
}

/// Returns the findings of a stage that can be repaired at the price of data only.
pub fn lossy(found: &[Finding], of: Stage) -> Vec<Finding> {
    let mut damages: BTreeMap<u32, usize> = BTreeMap::new();
    let in_stage = || found.iter().filter(|finding| stage(finding) == Some(of));
    for ino in in_stage().filter_map(|finding| finding.place.inode) {
        let count = damages.entry(ino).or_default();
        *count = count.saturating_add(1);
    }
    let alone = |finding: &Finding| {
        let count = finding.place.inode.and_then(|ino| damages.get(&ino)).copied();
        count.unwrap_or(1) == 1
    };
    in_stage()
        .filter(|finding| level(finding, alone(finding)) == RepairLevel::Lossy)
        .copied()
        .collect()
}

/// Returns whether the repair of a finding, alone in its inode, loses data.
pub fn is_lossy(finding: &Finding) -> bool {
    level(finding, true) == RepairLevel::Lossy
}

/// Returns the price of a repair. A wrong checksum is no proof of other damage: if it is `alone`,
/// the content of its structure is valid.
fn level(finding: &Finding, alone: bool) -> RepairLevel {
    let safe = match finding.code {
        Code::InodeChecksum | Code::DirectoryChecksum | Code::ExtentChecksum => alone,
        Code::InodeFlag => finding.found.is_some_and(is_meaningless),
        // Its transactions were replayed, or their loss was agreed to. Only a journal without a map
        // is dropped.
        Code::JournalInvalid => {
            !matches!(finding.place.field, Some("mode" | "map" | "logical block"))
        }
        Code::DotEntries => finding.expected.is_some() && finding.place.block.is_none(),
        Code::SuperblockChecksum
        | Code::SuperblockField
        | Code::DescriptorChecksum
        | Code::DescriptorField
        | Code::MetadataOverlap
        | Code::OrphanRecord
        | Code::InodeField
        | Code::InodeSize
        | Code::InodeBlocks
        | Code::DeletionTime
        | Code::ResizeInode
        | Code::XattrChecksum
        | Code::XattrHash
        | Code::XattrReferences
        | Code::DirectoryIndex
        | Code::EntryType
        | Code::Unattached
        | Code::LinkCount => true,
        Code::XattrValue => finding.place.field == Some("references"),
        _ => stage(finding) == Some(Stage::Counts),
    };
    if safe { RepairLevel::Safe } else { RepairLevel::Lossy }
}

/// Returns whether flags of an inode say nothing about the place of its data.
fn is_meaningless(flags: u64) -> bool {
    use extant_format::InodeFlags;
    let place = InodeFlags::EXTENTS | InodeFlags::INLINE_DATA | InodeFlags::ENCRYPT;
    flags & u64::from(place.bits()) == 0
}

/// Returns whether a finding remains after the repair.
pub fn is_open(finding: &Finding) -> bool {
    finding.severity() != Severity::Note || stage(finding).is_some()
}
