//! New entries of a directory, and the positions of entries within one area.

use super::Found;
use super::blocks::Dir;
use super::fold::FoldedName;
use extant_format::dir::{DirEntry, DirFormat, NewEntry, entries, entry_len};
use extant_format::error::Corrupt;
use extant_format::types::{FileType, InodeNr};

/// A name with the inode that it leads to: the content of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedInode<'a> {
    pub name: &'a [u8],
    pub ino: InodeNr,
    pub ftype: FileType,
}

impl<'a> NamedInode<'a> {
    /// Returns the length of the entry in bytes.
    pub fn len(&self) -> usize {
        entry_len(self.name.len())
    }

    /// Returns the entry to be written.
    pub fn entry(self) -> NewEntry<'a> {
        NewEntry { ino: self.ino, file_type: self.ftype, name: self.name }
    }

    /// Returns the inode, the type and the name.
    pub fn parts(self) -> (InodeNr, FileType, &'a [u8]) {
        (self.ino, self.ftype, self.name)
    }
}

/// The position of an entry within its area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hit {
    /// Offset in bytes.
    pub offset: usize,
    /// Offset of the preceding record, if the search passed it.
    pub before: Option<usize>,
    /// The inode and the type in the entry.
    pub found: Found,
}

/// Finds a name in an area.
pub(super) fn find(area: &[u8], d: &Dir<'_>, name: &[u8]) -> Result<Option<Hit>, Corrupt> {
    Ok(look(area, d, name)?.ok())
}

/// Finds a name as [`find`] does. If the name is absent, returns where the area has space for it.
pub(super) fn look(area: &[u8], d: &Dir<'_>, name: &[u8]) -> Result<Result<Hit, Room>, Corrupt> {
    let (entry, before, room) = if d.folds && !d.exact {
        (find_folded(area, &d.format, &FoldedName::new(name))?, None, Room::Unknown)
    } else {
        let search = extant_format::dir::search(area, &d.format, name, entry_len(name.len()))?;
        (search.found, search.before, search.room.map_or(Room::None, Room::At))
    };
    Ok(entry
        .map(|e| Hit { offset: e.offset, before, found: Found { ino: e.ino, ftype: e.file_type } })
        .ok_or(room))
}

/// Knowledge about free space for a name in a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Room {
    /// Not known.
    #[default]
    Unknown,
    /// The leaf has too little space.
    None,
    /// The record at this offset has enough space.
    At(usize),
}

fn find_folded<'a>(
    area: &'a [u8],
    format: &DirFormat,
    name: &FoldedName<'_>,
) -> Result<Option<DirEntry<'a>>, Corrupt> {
    for entry in entries(area, format) {
        let entry = entry?;
        if entry.is_used() && name.is(entry.name) {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// Returns the used entries of an area except `.` and `..`.
pub(super) fn names<'a>(
    area: &'a [u8],
    format: &DirFormat,
) -> impl Iterator<Item = Result<NamedInode<'a>, Corrupt>> + use<'a> {
    entries(area, format).filter_map(|entry| match entry {
        Ok(e) if !e.is_used() || e.is_dot_or_dot_dot() => None,
        Ok(e) => Some(Ok(NamedInode { name: e.name, ino: e.ino, ftype: e.file_type })),
        Err(e) => Some(Err(e)),
    })
}
