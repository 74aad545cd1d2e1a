//! Findings: typed descriptions of defects, complete enough to plan a repair.

use extant_format::{Corrupt, GroupNr};
use std::fmt;

/// The kind of a defect. [`FindingCode::name`] is stable, for scripts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum FindingCode {
    /// The primary superblock is unreadable or contradicts itself.
    SuperblockInvalid,
    /// The primary superblock's checksum is wrong.
    SuperblockChecksum,
    /// The file system is longer than the device.
    DeviceTooShort,
    /// The journal has transactions that are not on their home blocks.
    JournalNotReplayed,
    /// A superblock copy is unreadable, has a wrong checksum, or describes another layout.
    BackupSuperblock,
    /// A block cannot be read.
    Unreadable,
    /// A group descriptor's checksum is wrong.
    DescriptorChecksum,
    /// A group descriptor has an impossible value.
    DescriptorField,
    /// The block bitmap's checksum is wrong.
    BlockBitmapChecksum,
    /// The inode bitmap's checksum is wrong.
    InodeBitmapChecksum,
    /// Bits past the last cluster of a group are clear.
    BlockBitmapPadding,
    /// Bits past the last inode of a group are clear.
    InodeBitmapPadding,
    /// The block bitmap marks metadata of its group as free.
    MetadataMarkedFree,
    /// A group's count of free clusters contradicts its bitmap.
    FreeClusters,
    /// A group's count of free inodes contradicts its bitmap.
    FreeInodes,
}

impl FindingCode {
    /// Returns the stable name, in lower case with hyphens.
    pub const fn name(self) -> &'static str {
        match self {
            FindingCode::SuperblockInvalid => "superblock-invalid",
            FindingCode::SuperblockChecksum => "superblock-checksum",
            FindingCode::DeviceTooShort => "device-too-short",
            FindingCode::JournalNotReplayed => "journal-not-replayed",
            FindingCode::BackupSuperblock => "backup-superblock",
            FindingCode::Unreadable => "unreadable",
            FindingCode::DescriptorChecksum => "descriptor-checksum",
            FindingCode::DescriptorField => "descriptor-field",
            FindingCode::BlockBitmapChecksum => "block-bitmap-checksum",
            FindingCode::InodeBitmapChecksum => "inode-bitmap-checksum",
            FindingCode::BlockBitmapPadding => "block-bitmap-padding",
            FindingCode::InodeBitmapPadding => "inode-bitmap-padding",
            FindingCode::MetadataMarkedFree => "metadata-marked-free",
            FindingCode::FreeClusters => "free-clusters",
            FindingCode::FreeInodes => "free-inodes",
        }
    }

    /// Returns the severity of all findings with this code.
    pub const fn severity(self) -> Severity {
        match self {
            FindingCode::SuperblockInvalid => Severity::Fatal,
            FindingCode::JournalNotReplayed | FindingCode::BackupSuperblock => Severity::Note,
            _ => Severity::Damage,
        }
    }

    /// Returns the repair that removes the defect.
    pub const fn repair(self) -> PlannedRepair {
        match self {
            FindingCode::SuperblockInvalid => PlannedRepair::RestoreSuperblock,
            FindingCode::SuperblockChecksum => PlannedRepair::SealSuperblock,
            FindingCode::JournalNotReplayed => PlannedRepair::ReplayJournal,
            FindingCode::BackupSuperblock => PlannedRepair::RewriteBackup,
            FindingCode::DeviceTooShort | FindingCode::Unreadable => PlannedRepair::None,
            FindingCode::DescriptorChecksum | FindingCode::DescriptorField => {
                PlannedRepair::RestoreDescriptor
            }
            FindingCode::BlockBitmapChecksum
            | FindingCode::BlockBitmapPadding
            | FindingCode::MetadataMarkedFree => PlannedRepair::RebuildBlockBitmap,
            FindingCode::InodeBitmapChecksum | FindingCode::InodeBitmapPadding => {
                PlannedRepair::RebuildInodeBitmap
            }
            FindingCode::FreeClusters | FindingCode::FreeInodes => PlannedRepair::Recount,
        }
    }
}

/// Weight of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Severity {
    /// No damage of the file system in use, such as an old superblock copy.
    Note,
    /// Damage.
    Damage,
    /// Damage that prevents any further check.
    Fatal,
}

/// The repair that removes a defect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum PlannedRepair {
    /// None is known.
    None,
    /// Take the superblock from a copy.
    RestoreSuperblock,
    /// Compute the superblock's checksum again.
    SealSuperblock,
    /// Replay the journal.
    ReplayJournal,
    /// Write the superblock copy again.
    RewriteBackup,
    /// Take the descriptor from a copy, or derive it from the layout.
    RestoreDescriptor,
    /// Build the block bitmap from the blocks in use.
    RebuildBlockBitmap,
    /// Build the inode bitmap from the inodes in use.
    RebuildInodeBitmap,
    /// Count again.
    Recount,
}

/// Coordinates of a finding; those that do not apply are `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct FindingPlace {
    /// The group.
    pub group: Option<u32>,
    /// The block of the device, in file-system blocks.
    pub block: Option<u64>,
    /// The field's name.
    pub field: Option<&'static str>,
}

impl FindingPlace {
    pub(crate) fn group(group: GroupNr) -> FindingPlace {
        FindingPlace { group: Some(group.0), ..FindingPlace::default() }
    }

    pub(crate) fn block(self, block: u64) -> FindingPlace {
        FindingPlace { block: Some(block), ..self }
    }
}

/// A defect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The kind.
    pub code: FindingCode,
    /// The place.
    pub place: FindingPlace,
    /// The value on the device.
    pub found: Option<u64>,
    /// The value that would be right, or its bound.
    pub expected: Option<u64>,
}

impl Finding {
    pub(crate) fn new(code: FindingCode, place: FindingPlace) -> Finding {
        Finding { code, place, found: None, expected: None }
    }

    pub(crate) fn values(self, found: u64, expected: u64) -> Finding {
        Finding { found: Some(found), expected: Some(expected), ..self }
    }

    /// Makes the finding of a parser's error; coordinates in `place` win.
    pub(crate) fn corrupt(code: FindingCode, place: FindingPlace, error: &Corrupt) -> Finding {
        let place = FindingPlace {
            group: place.group.or(error.group().map(GroupNr::get)),
            block: place.block.or(error.block().map(|block| block.get())),
            field: place.field.or(error.field_name()),
        };
        let (found, expected) = (error.found_value(), error.expected_value());
        Finding { code, place, found, expected }
    }

    /// Returns the weight.
    pub const fn severity(&self) -> Severity {
        self.code.severity()
    }

    /// Returns the planned repair.
    pub const fn repair(&self) -> PlannedRepair {
        self.code.repair()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code.name())?;
        if let Some(group) = self.place.group {
            write!(f, ", group {group}")?;
        }
        if let Some(block) = self.place.block {
            write!(f, ", block {block}")?;
        }
        if let Some(field) = self.place.field {
            write!(f, ", {field}")?;
        }
        if let Some(found) = self.found {
            write!(f, ": {found}")?;
        }
        match self.expected {
            Some(expected) => write!(f, " (expected {expected})"),
            None => Ok(()),
        }
    }
}

/// Numbers of findings, by severity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckSummary {
    /// Notes.
    pub notes: u64,
    /// Damages.
    pub damages: u64,
    /// Damages that prevented further checks.
    pub fatal: u64,
}

/// Counts findings on their way to the caller's sink.
pub(crate) struct Findings<'a> {
    sink: &'a mut dyn FnMut(Finding),
    summary: CheckSummary,
}

impl<'a> Findings<'a> {
    pub(crate) fn new(sink: &'a mut dyn FnMut(Finding)) -> Findings<'a> {
        Findings { sink, summary: CheckSummary::default() }
    }

    pub(crate) fn report(&mut self, finding: Finding) {
        let count = match finding.severity() {
            Severity::Note => &mut self.summary.notes,
            Severity::Damage => &mut self.summary.damages,
            Severity::Fatal => &mut self.summary.fatal,
        };
        *count = count.saturating_add(1);
        (self.sink)(finding);
    }

    pub(crate) fn summary(&self) -> CheckSummary {
        self.summary
    }
}
