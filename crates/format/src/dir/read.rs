//! Reading entries.

use super::{DirFormat, HEADER_SIZE, MIN_REC_LEN, entry_len};
use crate::bytes::{le16, le32};
use crate::error::{Corrupt, Result};
use crate::types::{FileType, InodeNr};

/// A record of an area; unused if its inode is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirEntry<'a> {
    /// Where the record starts in the area, in bytes.
    pub offset: usize,
    /// Bytes of the record.
    pub rec_len: usize,
    /// The inode, 0 for an unused record.
    pub ino: InodeNr,
    /// The file's type; unknown where entries carry none.
    pub file_type: FileType,
    /// The name, 1 to 255 bytes where the record is used.
    pub name: &'a [u8],
}

impl DirEntry<'_> {
    /// Whether the record names a file.
    pub const fn is_used(&self) -> bool {
        self.ino.0 != 0
    }

    /// Bytes of the record that its own name needs; 0 for an unused record.
    pub const fn needed(&self) -> usize {
        if self.is_used() { entry_len(self.name.len()) } else { 0 }
    }

    /// Bytes of the record that another entry could take.
    pub const fn gap(&self) -> usize {
        self.rec_len.saturating_sub(self.needed())
    }

    /// Whether the name is `.` or `..`.
    pub fn is_dot_or_dot_dot(&self) -> bool {
        self.name == b"." || self.name == b".."
    }
}

/// The records of an area, unused ones included. Ends after an error.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    area: &'a [u8],
    next: usize,
    format: DirFormat,
}

/// The records of an area, unused ones included.
pub fn entries<'a>(area: &'a [u8], format: &DirFormat) -> Entries<'a> {
    Entries { area, next: 0, format: *format }
}

#[cold]
fn bad(field: &'static str, found: usize, expected: usize) -> Corrupt {
    Corrupt::new("directory entry").field(field).found(found as u64).expected(expected as u64)
}

impl<'a> Entries<'a> {
    /// Passes good records that surely have another name; most of a search is spent here. `false` at the area's end. What it
    /// stops at may be bad.
    fn skip_others(&mut self, name: &[u8]) -> bool {
        let last = name.last().copied();
        while let Some(rest) = self.area.get(self.next..)
            && let Some(header) = rest.first_chunk::<HEADER_SIZE>()
        {
            let len = usize::from(header[6]);
            let rec_len = self.format.decode_rec_len(le16(header, 4));
            let good =
                rec_len >= MIN_REC_LEN.max(HEADER_SIZE + len) && rec_len.is_multiple_of(4) && rec_len <= rest.len();
            let other = len != name.len() || rest.get(HEADER_SIZE + len - 1).copied() != last;
            if !good || !other || len == 0 && le32(header, 0) != 0 {
                return true;
            }
            self.next += rec_len;
        }
        self.next < self.area.len()
    }

    /// The header of the next record, where a record stands there that can be right: its length, its name's, whether it is used.
    #[inline]
    fn peek(&self) -> Option<(usize, usize, bool)> {
        let rest = self.area.get(self.next..)?;
        let header = rest.first_chunk::<HEADER_SIZE>()?;
        let (len, used) = (usize::from(header[6]), le32(header, 0) != 0);
        let rec_len = self.format.decode_rec_len(le16(header, 4));
        let good = rec_len >= MIN_REC_LEN.max(HEADER_SIZE + len)
            && rec_len.is_multiple_of(4)
            && rec_len <= rest.len()
            && (len != 0 || !used);
        good.then_some((rec_len, len, used))
    }

    /// Passes good records whose ends have no room for `wanted` bytes. What it stops at may be bad.
    fn skip_full(&mut self, wanted: usize) {
        while let Some((rec_len, len, used)) = self.peek() {
            let needed = if used { entry_len(len) } else { 0 };
            if rec_len - needed.min(rec_len) >= wanted {
                return;
            }
            self.next += rec_len;
        }
    }

    /// Passes good records before `offset`, and gives the last one's place and length. What it stops at may be bad.
    pub(super) fn skip_to(&mut self, offset: usize) -> Option<(usize, usize)> {
        let mut before = None;
        while self.next < offset
            && let Some((rec_len, ..)) = self.peek()
        {
            before = Some((self.next, rec_len));
            self.next += rec_len;
        }
        before
    }

    #[inline]
    fn read(&self) -> Result<DirEntry<'a>> {
        let rest = self.area.get(self.next..).unwrap_or(&[]);
        if rest.len() < MIN_REC_LEN {
            return Err(bad("room", rest.len(), MIN_REC_LEN));
        }
        let rec_len = self.format.decode_rec_len(le16(rest, 4));
        if rec_len < MIN_REC_LEN || !rec_len.is_multiple_of(4) || rec_len > rest.len() {
            return Err(bad("record length", rec_len, rest.len()));
        }
        let (ino, name_len) = (le32(rest, 0), usize::from(rest[6]));
        if entry_len(name_len) > rec_len {
            return Err(bad("name length", name_len, rec_len - HEADER_SIZE));
        }
        if ino != 0 && name_len == 0 {
            return Err(bad("name length", 0, 1));
        }
        let file_type = if self.format.filetype { FileType::from_dir_byte(rest[7]) } else { FileType::Unknown };
        let name = &rest[HEADER_SIZE..HEADER_SIZE + name_len];
        Ok(DirEntry { offset: self.next, rec_len, ino: InodeNr(ino), file_type, name })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<DirEntry<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Result<DirEntry<'a>>> {
        if self.next >= self.area.len() {
            return None;
        }
        let entry = self.read();
        self.next = match &entry {
            Ok(entry) => entry.offset + entry.rec_len,
            Err(_) => self.area.len(),
        };
        Some(entry)
    }
}

/// The entry of this name, if the area has it.
///
/// # Errors
/// A bad record before the entry.
pub fn find<'a>(area: &'a [u8], format: &DirFormat, name: &[u8]) -> Result<Option<DirEntry<'a>>> {
    let mut records = entries(area, format);
    while records.skip_others(name) {
        match records.next().transpose()? {
            Some(entry) if entry.is_used() && entry.name == name => return Ok(Some(entry)),
            Some(_) => {}
            None => return Ok(None),
        }
    }
    Ok(None)
}

/// The first record whose end has room for `wanted` bytes, if any has.
///
/// # Errors
/// A bad record before it.
pub fn find_room<'a>(area: &'a [u8], format: &DirFormat, wanted: usize) -> Result<Option<DirEntry<'a>>> {
    let mut records = entries(area, format);
    loop {
        records.skip_full(wanted);
        match records.next().transpose()? {
            Some(entry) if entry.gap() >= wanted => return Ok(Some(entry)),
            Some(_) => {}
            None => return Ok(None),
        }
    }
}

/// The entry `..` of a directory's first block; it is the second record, in linear directories and hash trees.
///
/// # Errors
/// A bad record, or others than `.` and `..` at the start.
pub fn dot_dot<'a>(block: &'a [u8], format: &DirFormat) -> Result<DirEntry<'a>> {
    let mut records = entries(block, format);
    let (first, second) = (records.next().transpose()?, records.next().transpose()?);
    match (first, second) {
        (Some(dot), Some(dot_dot)) if dot.name == b"." && dot_dot.name == b".." => Ok(dot_dot),
        _ => Err(Corrupt::new("directory").field("first entries")),
    }
}

/// The longest record that could still be inserted, in bytes.
///
/// # Errors
/// A bad record.
pub fn largest_gap(area: &[u8], format: &DirFormat) -> Result<usize> {
    entries(area, format).try_fold(0, |most, entry| Ok(most.max(entry?.gap())))
}
