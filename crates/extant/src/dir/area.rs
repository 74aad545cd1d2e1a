//! A name to be put into a directory, and where one was found.

use super::Found;
use super::blocks::Dir;
use super::fold::Sought;
use extant_format::dir::{DirEntry, DirFormat, entries, entry_len};
use extant_format::error::Corrupt;
use extant_format::types::{FileType, InodeNr};

/// A name and what it leads to.
#[derive(Clone, Copy, Debug)]
pub(super) struct New<'a> {
    pub name: &'a [u8],
    pub ino: InodeNr,
    pub ftype: FileType,
}

impl<'a> New<'a> {
    /// Bytes that the entry needs.
    pub fn len(&self) -> usize {
        entry_len(self.name.len())
    }

    /// As the parts of an entry.
    pub fn parts(self) -> (InodeNr, FileType, &'a [u8]) {
        (self.ino, self.ftype, self.name)
    }
}

/// Where an entry is in its area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hit {
    /// Offset in bytes.
    pub offset: usize,
    /// What it says.
    pub found: Found,
}

/// Finds a name.
pub(super) fn find(area: &[u8], d: &Dir<'_>, name: &[u8]) -> Result<Option<Hit>, Corrupt> {
    let entry = match d.folds && !d.exact {
        false => extant_format::dir::find(area, &d.format, name)?,
        true => find_folded(area, &d.format, &Sought::new(name))?,
    };
    Ok(entry.map(|e| Hit { offset: e.offset, found: Found { ino: e.ino, ftype: e.file_type } }))
}

fn find_folded<'a>(area: &'a [u8], format: &DirFormat, name: &Sought<'_>) -> Result<Option<DirEntry<'a>>, Corrupt> {
    for entry in entries(area, format) {
        let entry = entry?;
        if entry.is_used() && name.is(entry.name) {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// The used entries of an area but `.` and `..`.
pub(super) fn names<'a>(
    area: &'a [u8],
    format: &DirFormat,
) -> impl Iterator<Item = Result<New<'a>, Corrupt>> + use<'a> {
    entries(area, format).filter_map(|entry| match entry {
        Ok(e) if !e.is_used() || e.is_dot_or_dot_dot() => None,
        Ok(e) => Some(Ok(New { name: e.name, ino: e.ino, ftype: e.file_type })),
        Err(e) => Some(Err(e)),
    })
}
