//! Iteration over directory records, and searches for names and for free bytes.

use super::{DirFormat, HEADER_SIZE, MIN_REC_LEN, entry_len};
use crate::bytes::{le16, le32, part};
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
    /// Returns whether the record names a file.
    pub const fn is_used(&self) -> bool {
        self.ino.0 != 0
    }

    /// Returns the number of bytes of the record that its own name needs; 0 for an unused record.
    pub const fn needed(&self) -> usize {
        if self.is_used() { entry_len(self.name.len()) } else { 0 }
    }

    /// Returns the number of bytes of the record that another entry could take.
    pub const fn gap(&self) -> usize {
        self.rec_len.saturating_sub(self.needed())
    }

    /// Returns the major and minor hash stored after the name, as in directories that are both
    /// encrypted and case-folded; zeros if the record is too short. `area` must be the area that
    /// the record was read from.
    pub fn kept_hash(&self, area: &[u8]) -> [u8; 8] {
        let at = self.offset.saturating_add(self.needed());
        let record = area.get(at..self.offset.saturating_add(self.rec_len));
        record.and_then(|rest| rest.first_chunk()).copied().unwrap_or_default()
    }

    /// Returns the byte of the type as it is. `area` must be the area that the record was read
    /// from.
    pub fn type_byte(&self, area: &[u8]) -> u8 {
        let at = self.offset.saturating_add(HEADER_SIZE - 1);
        area.get(at).copied().unwrap_or(0)
    }

    /// Returns whether a zero follows the name, as after `.` and `..`. `area` must be the area that
    /// the record was read from.
    pub fn is_terminated(&self, area: &[u8]) -> bool {
        let end = self.offset.saturating_add(HEADER_SIZE).saturating_add(self.name.len());
        area.get(end) == Some(&0)
    }

    /// Returns whether the name is `.` or `..`.
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

/// Returns the records of an area, unused ones included.
pub fn entries<'a>(area: &'a [u8], format: &DirFormat) -> Entries<'a> {
    Entries { area, next: 0, format: *format }
}

#[cold]
fn bad(field: &'static str, found: usize, expected: usize) -> Corrupt {
    Corrupt::new("directory entry").field(field).found(found as u64).expected(expected as u64)
}

/// The header of a plain record: used, valid, and with a length that does not use the encoding of
/// 64 KiB blocks. Nearly all records are plain.
struct Plain {
    rec_len: usize,
    /// Bytes of the name.
    len: usize,
    /// Bytes at the record's end that another entry could take.
    gap: usize,
}

const _: () = assert!(entry_len(5) == (5 + 11) & !3 && entry_len(255) == (255 + 11) & !3);

impl Plain {
    /// Interprets a header. The record may end beyond the area.
    #[inline(always)]
    fn new(header: u64) -> Option<Plain> {
        let (rec_len, len) = (u32::from((header >> 32) as u16), u32::from((header >> 48) as u8));
        // `entry_len`, which a length of eight bits cannot overflow.
        let needed = len.wrapping_add(11) & !3;
        if header as u32 == 0 || len == 0 {
            return None;
        }
        // Most records have no free bytes, so that one comparison shows their length to be valid.
        if rec_len != needed && (rec_len < needed || !rec_len.is_multiple_of(4)) {
            return None;
        }
        let gap = rec_len.wrapping_sub(needed);
        Some(Plain { rec_len: rec_len as usize, len: len as usize, gap: gap as usize })
    }
}

impl<'a> Entries<'a> {
    /// Skips valid records whose name certainly differs. Returns `false` at the end of the area.
    /// The record where it stops may be bad.
    ///
    /// This is the hot loop of a search.
    fn skip_others(&mut self, name: &Sought, met: &mut Met) -> bool {
        let Some(mut rest) = self.area.get(self.next..) else { return false };
        let offset = |rest: &[u8]| self.area.len().saturating_sub(rest.len());
        loop {
            let behind = name.skip_alike(rest);
            if behind.len() < rest.len() {
                met.before = Some(offset(behind).saturating_sub(name.needed));
                rest = behind;
            }
            let Some(header) = rest.first_chunk::<HEADER_SIZE>() else { break };
            let Some(plain) = Plain::new(u64::from_le_bytes(*header)) else { break };
            let Some(next) = rest.get(plain.rec_len..) else { break };
            if plain.len == name.len && name.may_end(rest) {
                break;
            }
            met.pass(offset(rest), plain.gap);
            rest = next;
        }
        self.next = offset(rest);
        self.next < self.area.len()
    }

    /// Returns the record length, the name length and whether the record is used, for the next
    /// record if its header is plausible.
    #[inline]
    fn peek(&self) -> Option<(usize, usize, bool)> {
        let rest = self.area.get(self.next..)?;
        let header = rest.first_chunk::<HEADER_SIZE>()?;
        let (len, used) = (usize::from(header[6]), le32(header, 0) != 0);
        let rec_len = self.format.decode_rec_len(le16(header, 4));
        let good = rec_len >= MIN_REC_LEN.max(HEADER_SIZE.saturating_add(len))
            && rec_len.is_multiple_of(4)
            && rec_len <= rest.len()
            && (len != 0 || !used);
        good.then_some((rec_len, len, used))
    }

    /// Skips valid records with fewer than `wanted` free bytes at their end. The record where the
    /// loop stops may be bad.
    fn skip_full(&mut self, wanted: usize) {
        let Some(mut rest) = self.area.get(self.next..) else { return };
        while let Some(header) = rest.first_chunk::<HEADER_SIZE>()
            && let Some(plain) = Plain::new(u64::from_le_bytes(*header))
            && plain.gap < wanted
            && let Some(next) = rest.get(plain.rec_len..)
        {
            rest = next;
        }
        self.next = self.area.len().saturating_sub(rest.len());
    }

    /// Skips valid records before `offset` and returns offset and length of the last one. `from` is
    /// a hint: the presumed offset of that last record. The record where the loop stops may be bad.
    pub(super) fn skip_to(&mut self, offset: usize, from: Option<usize>) -> Option<(usize, usize)> {
        if let Some(from) = from {
            let last = Entries { next: from, ..self.clone() };
            if let Some((rec_len, ..)) =
                last.peek().filter(|(rec_len, ..)| from.saturating_add(*rec_len) == offset)
            {
                self.next = offset;
                return Some((from, rec_len));
            }
        }
        let mut before = None;
        while self.next < offset
            && let Some((rec_len, ..)) = self.peek()
        {
            before = Some((self.next, rec_len));
            self.next = self.next.saturating_add(rec_len);
        }
        before
    }

    #[inline]
    fn read(&self) -> Result<DirEntry<'a>> {
        let rest = self.area.get(self.next..).unwrap_or(&[]);
        let Some(header) = rest.first_chunk::<MIN_REC_LEN>() else {
            return Err(bad("room", rest.len(), MIN_REC_LEN));
        };
        let rec_len = self.format.decode_rec_len(le16(header, 4));
        if rec_len < MIN_REC_LEN || !rec_len.is_multiple_of(4) || rec_len > rest.len() {
            return Err(bad("record length", rec_len, rest.len()));
        }
        let (ino, name_len) = (le32(header, 0), usize::from(header[6]));
        if entry_len(name_len) > rec_len {
            return Err(bad("name length", name_len, rec_len.saturating_sub(HEADER_SIZE)));
        }
        if ino != 0 && name_len == 0 {
            return Err(bad("name length", 0, 1));
        }
        let file_type = if self.format.filetype {
            FileType::from_dir_byte(header[7])
        } else {
            FileType::Unknown
        };
        let name = part(rest, HEADER_SIZE, HEADER_SIZE.saturating_add(name_len));
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
            Ok(entry) => entry.offset.saturating_add(entry.rec_len),
            Err(_) => self.area.len(),
        };
        Some(entry)
    }
}

/// The name of a search: its length and its last four bytes. Names with a number at the end, as
/// programs generate them, differ in these bytes first.
struct Sought {
    len: usize,
    /// Bytes of a record up to the end of the name, and without free bytes.
    end: usize,
    needed: usize,
    /// The lengths of such a record as [`Sought::is_as_long`] compares them; for the longest names
    /// a value that no record has.
    lengths: u32,
    tail: u32,
    /// Mask of the bytes of `tail` that belong to the name; partial for names shorter than four
    /// bytes.
    mask: u32,
}

impl Sought {
    fn new(name: &[u8]) -> Sought {
        let missing = 4usize.saturating_sub(name.len());
        let mut tail = [0; 4];
        tail.iter_mut().rev().zip(name.iter().rev()).for_each(|(to, from)| *to = *from);
        let mask = u32::MAX.checked_shl((missing as u32).saturating_mul(8)).unwrap_or(0);
        let (len, needed) = (name.len(), entry_len(name.len()));
        // Modulo 256, an invalid name of no bytes is as long as one of 253 and more.
        let lengths =
            if len < 253 { (needed as u32) << 24 | (needed as u32) << 8 } else { u32::MAX };
        Sought {
            len,
            end: len.saturating_add(HEADER_SIZE),
            needed,
            lengths,
            tail: u32::from_le_bytes(tail),
            mask,
        }
    }

    /// Returns whether a record is used, valid, without free bytes, and as long as one with the
    /// sought name.
    #[inline(always)]
    fn is_as_long(&self, header: &[u8; HEADER_SIZE]) -> bool {
        // The shift drops the type. The length of the name, now the high byte, is rounded as in
        // `entry_len`, modulo 256.
        let lengths = (le32(header, 4) << 8).wrapping_add(11 << 24) & !(3 << 24);
        lengths == self.lengths && le32(header, 0) != 0
    }

    /// Skips records at the start of `rest` that are as long as one with this name, and certainly
    /// have another one. Names that a program generates are such a run.
    #[inline(always)]
    fn skip_alike<'a>(&self, mut rest: &'a [u8]) -> &'a [u8] {
        while let Some((record, behind)) = rest.split_at_checked(self.needed)
            && let Some(header) = record.first_chunk::<HEADER_SIZE>()
            && self.is_as_long(header)
            && !self.may_end(record)
        {
            rest = behind;
        }
        rest
    }

    /// Returns whether the record at the start of `rest`, which is long enough, may have this name.
    #[inline(always)]
    fn may_end(&self, rest: &[u8]) -> bool {
        let end = rest.get(..self.end).and_then(|end| end.last_chunk::<4>());
        end.is_none_or(|end| u32::from_le_bytes(*end) & self.mask == self.tail)
    }
}

/// Results gathered from the records that a search skips.
struct Met {
    wanted: usize,
    before: Option<usize>,
    room: Option<usize>,
}

impl Met {
    #[inline]
    fn pass(&mut self, offset: usize, gap: usize) {
        if gap >= self.wanted && self.room.is_none() {
            self.room = Some(offset);
        }
        self.before = Some(offset);
    }
}

/// Result of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Search<'a> {
    /// The entry with the name, if present.
    pub found: Option<DirEntry<'a>>,
    /// Offset of the record before the entry.
    pub before: Option<usize>,
    /// Offset of the first skipped record with the wanted number of free bytes at its end.
    pub room: Option<usize>,
}

/// Searches for a name, and on the way for a record with `wanted` free bytes at its end; `wanted`
/// must not be 0.
///
/// # Errors
/// [`Corrupt`] for a bad record before the entry.
pub fn search<'a>(
    area: &'a [u8],
    format: &DirFormat,
    name: &[u8],
    wanted: usize,
) -> Result<Search<'a>> {
    let (mut records, sought) = (entries(area, format), Sought::new(name));
    let mut met = Met { wanted, before: None, room: None };
    let mut found = None;
    while records.skip_others(&sought, &mut met) {
        match records.next().transpose()? {
            Some(entry) if entry.is_used() && entry.name == name => {
                found = Some(entry);
                break;
            }
            Some(entry) => met.pass(entry.offset, entry.gap()),
            None => break,
        }
    }
    Ok(Search { found, before: met.before, room: met.room })
}

/// Returns the entry with this name, if the area has one.
///
/// # Errors
/// [`Corrupt`] for a bad record before the entry.
pub fn find<'a>(area: &'a [u8], format: &DirFormat, name: &[u8]) -> Result<Option<DirEntry<'a>>> {
    Ok(search(area, format, name, usize::MAX)?.found)
}

/// Returns the record at `offset`, if it has `wanted` free bytes at its end.
///
/// # Errors
/// [`Corrupt`] for a bad record at `offset`.
pub fn room_at<'a>(
    area: &'a [u8],
    format: &DirFormat,
    offset: usize,
    wanted: usize,
) -> Result<Option<DirEntry<'a>>> {
    let record = Entries { area, next: offset, format: *format }.next().transpose()?;
    Ok(record.filter(|record| record.gap() >= wanted))
}

/// Returns the first record with `wanted` free bytes at its end, if any.
///
/// # Errors
/// [`Corrupt`] for a bad record before it.
pub fn find_room<'a>(
    area: &'a [u8],
    format: &DirFormat,
    wanted: usize,
) -> Result<Option<DirEntry<'a>>> {
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

/// Returns the entry `..` of a directory's first block: the second record, in linear directories
/// and hash trees.
///
/// # Errors
/// [`Corrupt`] for a bad record, or if the first two entries are not `.` and `..`.
pub fn dot_dot<'a>(block: &'a [u8], format: &DirFormat) -> Result<DirEntry<'a>> {
    let mut records = entries(block, format);
    let (first, second) = (records.next().transpose()?, records.next().transpose()?);
    match (first, second) {
        (Some(dot), Some(dot_dot)) if dot.name == b"." && dot_dot.name == b".." => Ok(dot_dot),
        _ => Err(Corrupt::new("directory").field("first entries")),
    }
}

/// Returns the length of the longest record that could still be inserted, in bytes.
///
/// # Errors
/// [`Corrupt`] for a bad record.
pub fn largest_gap(area: &[u8], format: &DirFormat) -> Result<usize> {
    entries(area, format).try_fold(0, |most, entry| Ok(most.max(entry?.gap())))
}
