//! Insertion, removal and replacement of directory entries.

use super::read::{entries, find_room};
use super::{DirFormat, HEADER_SIZE, NAME_MAX, entry_len};
use crate::bytes::{part, part_mut, put_bytes, put_le16, put_le32};
use crate::error::{Corrupt, Result};
use crate::types::{FileType, InodeNr};

/// Initializes the area with one unused record.
pub fn init_area(area: &mut [u8], format: &DirFormat) {
    area.fill(0);
    let len = area.len();
    set_rec_len(area, format, 0, len);
}

/// Sets the length of the record at `offset`.
pub fn set_rec_len(area: &mut [u8], format: &DirFormat, offset: usize, rec_len: usize) {
    put_le16(area, offset.saturating_add(4), format.encode_rec_len(rec_len));
}

fn type_byte(format: &DirFormat, file_type: FileType) -> u8 {
    if format.filetype { file_type.to_dir_byte() } else { 0 }
}

/// Sets inode and type of the entry at `offset`; its name stays.
pub fn set_target(
    area: &mut [u8],
    format: &DirFormat,
    offset: usize,
    ino: InodeNr,
    file_type: FileType,
) {
    put_le32(area, offset, ino.0);
    put_bytes(area, offset.saturating_add(7), &[type_byte(format, file_type)]);
}

/// An entry to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewEntry<'a> {
    /// Number of the inode.
    pub ino: InodeNr,
    /// Type of the inode.
    pub file_type: FileType,
    /// Name.
    pub name: &'a [u8],
}

impl<'a> NewEntry<'a> {
    /// Returns the entry of a directory.
    pub(crate) const fn directory(ino: InodeNr, name: &'a [u8]) -> NewEntry<'a> {
        NewEntry { ino, file_type: FileType::Directory, name }
    }
}

/// Writes a whole record at `offset`; a name longer than 255 bytes is cut.
pub fn put_entry(
    area: &mut [u8],
    format: &DirFormat,
    offset: usize,
    rec_len: usize,
    entry: NewEntry<'_>,
) {
    let NewEntry { ino, file_type, name } = entry;
    let name = part(name, 0, NAME_MAX);
    let end = offset.saturating_add(rec_len).min(offset.saturating_add(entry_len(name.len())));
    part_mut(area, offset, end).fill(0);
    put_le32(area, offset, ino.0);
    set_rec_len(area, format, offset, rec_len);
    let kind = [name.len() as u8, type_byte(format, file_type)];
    put_bytes(area, offset.saturating_add(6), &kind);
    put_bytes(area, offset.saturating_add(HEADER_SIZE), name);
}

/// Inserts an entry into the first record with enough free bytes and returns the entry's offset, or
/// `None` if no record has enough. The caller must check that the name is absent.
///
/// # Errors
/// [`Corrupt`] for a bad record before the insertion point.
pub fn insert(area: &mut [u8], format: &DirFormat, entry: NewEntry<'_>) -> Result<Option<usize>> {
    if entry.name.is_empty() || entry.name.len() > NAME_MAX {
        return Ok(None);
    }
    let Some(record) = find_room(area, format, entry_len(entry.name.len()))? else {
        return Ok(None);
    };
    let (offset, needed, rec_len) = (record.offset, record.needed(), record.rec_len);
    if needed > 0 {
        set_rec_len(area, format, offset, needed);
    }
    let offset = offset.saturating_add(needed);
    put_entry(area, format, offset, rec_len.saturating_sub(needed), entry);
    Ok(Some(offset))
}

/// Removes the entry at `offset`: merges its record into the previous one, or marks it unused if it
/// is the first. Inode, type and name are zeroed. `before` is a hint: the offset of the previous
/// record, if known.
///
/// # Errors
/// [`Corrupt`] for a bad record before the entry, or if no record begins at
/// `offset`.
pub fn remove(
    area: &mut [u8],
    format: &DirFormat,
    offset: usize,
    before: Option<usize>,
) -> Result<()> {
    let mut records = entries(area, format);
    let before = records.skip_to(offset, before);
    let none = || Corrupt::new("directory entry").field("offset").found(offset as u64);
    let entry =
        records.next().transpose()?.filter(|entry| entry.offset == offset).ok_or_else(none)?;
    // Bytes of the record past the name are unused: removals zeroed the entries that were there.
    let rec_len = entry.rec_len;
    let end = offset.saturating_add(entry.needed().max(HEADER_SIZE));
    part_mut(area, offset, end).fill(0);
    match before {
        Some((previous, len)) => set_rec_len(area, format, previous, len.saturating_add(rec_len)),
        None => set_rec_len(area, format, offset, rec_len),
    }
    Ok(())
}

/// Fills the area with exactly these entries, without gaps; the last record takes the rest. Returns
/// `false` if they do not fit, and then leaves the area empty.
#[must_use]
pub fn fill<'n>(
    area: &mut [u8],
    format: &DirFormat,
    list: impl IntoIterator<Item = (InodeNr, FileType, &'n [u8])>,
) -> bool {
    init_area(area, format);
    let (mut next, mut last) = (0usize, None);
    for (ino, file_type, name) in list {
        let len = entry_len(name.len());
        if next.saturating_add(len) > area.len() {
            init_area(area, format);
            return false;
        }
        put_entry(area, format, next, len, NewEntry { ino, file_type, name });
        last = Some(next);
        next = next.saturating_add(len);
    }
    if let Some(last) = last {
        let len = area.len().saturating_sub(last);
        set_rec_len(area, format, last, len);
    }
    true
}
