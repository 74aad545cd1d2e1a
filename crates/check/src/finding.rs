//! Findings: typed descriptions of defects, complete enough to plan a repair.

pub use crate::codes::FindingCode;
pub use crate::planned::{PlannedRepair, Severity};
use extant_format::{Corrupt, GroupNr, InodeNr};
use std::fmt;

/// Coordinates of a finding; those that do not apply are `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub struct FindingPlace {
    /// The inode.
    pub inode: Option<u32>,
    /// The group.
    pub group: Option<u32>,
    /// The block of the device, in file-system blocks.
    pub block: Option<u64>,
    /// The block of the file, counted from its start.
    pub logical: Option<u64>,
    /// The field's name.
    pub field: Option<&'static str>,
}

impl FindingPlace {
    pub(crate) fn group(group: GroupNr) -> FindingPlace {
        FindingPlace { group: Some(group.0), ..FindingPlace::default() }
    }

    pub(crate) fn inode(ino: InodeNr) -> FindingPlace {
        FindingPlace { inode: Some(ino.0), ..FindingPlace::default() }
    }

    pub(crate) fn block(self, block: u64) -> FindingPlace {
        FindingPlace { block: Some(block), ..self }
    }

    pub(crate) fn logical(self, block: u64) -> FindingPlace {
        FindingPlace { logical: Some(block), ..self }
    }

    pub(crate) fn field(self, field: &'static str) -> FindingPlace {
        FindingPlace { field: Some(field), ..self }
    }
}

/// A defect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
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

    pub(crate) fn found(self, found: impl Into<u64>) -> Finding {
        Finding { found: Some(found.into()), ..self }
    }

    pub(crate) fn values(self, found: impl Into<u64>, expected: impl Into<u64>) -> Finding {
        Finding { found: Some(found.into()), expected: Some(expected.into()), ..self }
    }

    /// Makes the finding of a parser's error; coordinates in `place` win.
    pub(crate) fn corrupt(code: FindingCode, place: FindingPlace, error: &Corrupt) -> Finding {
        let place = FindingPlace {
            inode: place.inode.or(error.inode().map(InodeNr::get)),
            group: place.group.or(error.group().map(GroupNr::get)),
            block: place.block.or(error.block().map(|block| block.get())),
            field: place.field.or(error.field_name()),
            ..place
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
        let place = &self.place;
        if let Some(inode) = place.inode {
            write!(f, ", inode {inode}")?;
        }
        if let Some(group) = place.group {
            write!(f, ", group {group}")?;
        }
        if let Some(logical) = place.logical {
            write!(f, ", file block {logical}")?;
        }
        if let Some(block) = place.block {
            write!(f, ", block {block}")?;
        }
        if let Some(field) = place.field {
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
#[non_exhaustive]
pub struct CheckSummary {
    /// Notes.
    pub notes: u64,
    /// Damages.
    pub damages: u64,
    /// Damages that prevented further checks.
    pub fatal: u64,
    /// The check was interrupted, so that parts are unchecked.
    pub interrupted: bool,
}

impl CheckSummary {
    /// Returns whether the whole file system was checked and no damage was found.
    pub const fn is_clean(&self) -> bool {
        self.damages == 0 && self.fatal == 0 && !self.interrupted
    }
}

/// The findings of one part of a pass, at most [`FindingList::MAX`]; the others are counted.
#[derive(Debug, Default)]
pub(crate) struct FindingList {
    list: Vec<Finding>,
    more: u64,
}

impl FindingList {
    /// Maximum number of findings of one part of a pass.
    const MAX: usize = 1 << 12;

    pub(crate) fn push(&mut self, finding: Finding) {
        if self.list.len() < FindingList::MAX {
            self.list.push(finding);
        } else {
            self.more = self.more.saturating_add(1);
        }
    }

    pub(crate) fn add(&mut self, code: FindingCode, place: FindingPlace) {
        self.push(Finding::new(code, place));
    }

    /// Appends another list, whose findings come later.
    pub(crate) fn append(&mut self, other: FindingList) {
        self.more = self.more.saturating_add(other.more);
        other.list.into_iter().for_each(|finding| self.push(finding));
    }
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

    /// Reports a part's findings, and those that were only counted as one.
    pub(crate) fn report_all(&mut self, part: FindingList) {
        part.list.into_iter().for_each(|finding| self.report(finding));
        if part.more > 0 {
            let more = Finding::new(FindingCode::MoreFindings, FindingPlace::default());
            self.report(more.found(part.more));
        }
    }

    pub(crate) fn interrupt(&mut self) {
        self.summary.interrupted = true;
    }

    pub(crate) fn summary(&self) -> CheckSummary {
        self.summary
    }
}
