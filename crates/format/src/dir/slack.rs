//! Removed entries that are still readable: in the free bytes of records, and in unused records.

use super::{DirEntry, DirFormat, HEADER_SIZE, MIN_REC_LEN, entry_len};
use crate::bytes::{le16, le32, part};
use crate::types::{FileType, InodeNr};

/// The multiple, in bytes, at which each record begins.
const ALIGNMENT: usize = 4;

/// Highest type byte of an entry.
const LAST_TYPE: u8 = 7;

/// Returns the entries that were removed from a record and whose bytes are not overwritten yet.
/// `area` must be the area that the record was read from.
///
/// A removed entry becomes a part of the record before it. The first record of a block keeps its
/// name and loses its inode, so that its entry has the inode 0. The bytes prove nothing: any file
/// name may have been there at any time.
pub fn removed<'a>(
    area: &'a [u8],
    format: &DirFormat,
    record: &DirEntry<'a>,
) -> impl Iterator<Item = DirEntry<'a>> + use<'a> {
    let end = record.offset.saturating_add(record.rec_len).min(area.len());
    let own = (!record.is_used() && is_name(record.name)).then_some(*record);
    let own_len = entry_len(record.name.len());
    let start = if record.is_used() || own.is_some() { own_len } else { 0 };
    let mut next = record.offset.saturating_add(start);
    let format = *format;
    let rest = std::iter::from_fn(move || {
        while next < end {
            let found = read(area, &format, next, end);
            let len = found.map_or(ALIGNMENT, |found| entry_len(found.name.len()));
            next = next.saturating_add(len);
            if found.is_some() {
                return found;
            }
        }
        None
    });
    own.into_iter().chain(rest)
}

/// Returns whether bytes can be the name of a file.
fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Returns the entry at an offset, if the bytes up to `end` hold one.
fn read<'a>(area: &'a [u8], format: &DirFormat, offset: usize, end: usize) -> Option<DirEntry<'a>> {
    let rest = part(area, offset, end);
    let header = rest.first_chunk::<HEADER_SIZE>()?;
    let (ino, len, kind) = (le32(header, 0), usize::from(header[6]), header[7]);
    let rec_len = format.decode_rec_len(le16(header, 4));
    let name = rest.get(HEADER_SIZE..HEADER_SIZE.saturating_add(len))?;
    let is_kind = if format.filetype { (1..=LAST_TYPE).contains(&kind) } else { kind == 0 };
    let is_record = rec_len >= MIN_REC_LEN.max(entry_len(len)) && rec_len.is_multiple_of(ALIGNMENT);
    if ino == 0 || !is_kind || !is_record || !is_name(name) {
        return None;
    }
    let file_type = if format.filetype { FileType::from_dir_byte(kind) } else { FileType::Unknown };
    Some(DirEntry { offset, rec_len, ino: InodeNr(ino), file_type, name })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::{NewEntry, entries, put_entry, set_rec_len, set_target};

    fn names(area: &[u8], format: &DirFormat) -> Vec<(u32, String)> {
        let records = entries(area, format).map(Result::unwrap);
        let found = records.flat_map(|record| removed(area, format, &record).collect::<Vec<_>>());
        found.map(|entry| (entry.ino.0, String::from_utf8_lossy(entry.name).into_owned())).collect()
    }

    #[test]
    fn removed_entries_are_found() {
        let format =
            DirFormat { block_size: 1024, filetype: true, metadata_csum: false, largedir: false };
        let mut area = vec![0; 64];
        for (ino, offset, name) in [(12, 0, "first"), (13, 16, "second one"), (14, 36, "third")] {
            let len = entry_len(name.len());
            put_entry(
                &mut area,
                &format,
                offset,
                len,
                NewEntry::directory(InodeNr(ino), name.as_bytes()),
            );
        }
        set_rec_len(&mut area, &format, 36, 28);
        assert!(names(&area, &format).is_empty());
        // Others than this crate only extend the record before.
        set_rec_len(&mut area, &format, 0, 64);
        assert_eq!(names(&area, &format), [(13, "second one".into()), (14, "third".into())]);
        set_target(&mut area, &format, 0, InodeNr(0), FileType::Unknown);
        assert_eq!(names(&area, &format)[0], (0, "first".into()));
        assert_eq!(names(&area, &format).len(), 3);
    }

    #[test]
    fn noise_is_total() {
        let format =
            DirFormat { block_size: 1024, filetype: false, metadata_csum: true, largedir: false };
        let noise: Vec<u8> = (0..1024u32).map(|n| (n.wrapping_mul(n) >> 3) as u8).collect();
        let record = DirEntry {
            offset: 1000,
            rec_len: usize::MAX,
            ino: InodeNr(0),
            file_type: FileType::Unknown,
            name: &[],
        };
        assert!(removed(&noise, &format, &record).count() <= 1024);
    }
}
