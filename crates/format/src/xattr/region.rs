//! The layout that both kinds of regions share: entries from the start, values from the end.

use super::{ENTRY_HEADER, Entry, TERMINATOR, Value, header_len};
use crate::bytes::{byte, le16, le32, part, put_bytes, put_le16, put_le32};
use crate::error::{Corrupt, Result};
use std::ops::Range;

const NAME_LEN: usize = 0;
const NAME_INDEX: usize = 1;
const VALUE_OFFSET: usize = 2;
const VALUE_INODE: usize = 4;
const VALUE_SIZE: usize = 8;
const HASH: usize = 12;

#[cold]
fn bad(field: &'static str, found: usize, expected: usize) -> Corrupt {
    Corrupt::new("extended attribute").field(field).found(found as u64).expected(expected as u64)
}

/// The bytes of an entry's header and name, padded, and where they start; ends at the terminator.
struct Headers<'a> {
    region: &'a [u8],
    next: usize,
}

impl<'a> Headers<'a> {
    fn step(&mut self) -> Result<Option<&'a [u8]>> {
        let rest = part(self.region, self.next, self.region.len());
        if rest.len() < TERMINATOR {
            return Err(bad("list end", self.next, self.region.len()));
        }
        if le32(rest, 0) == 0 {
            return Ok(None);
        }
        // Written back without its value offset, an entry with empty name and index 0 would
        // terminate the list.
        if byte(rest, NAME_LEN) == 0 && byte(rest, NAME_INDEX) == 0 {
            return Err(bad("name", 0, 1));
        }
        let len = header_len(usize::from(byte(rest, NAME_LEN)));
        let header = rest.get(..len).ok_or_else(|| bad("name length", len, rest.len()))?;
        self.next = self.next.saturating_add(len);
        Ok(Some(header))
    }
}

/// Reads the entries of a region that starts at `first`. Offsets of values count from `base`.
pub(super) fn decode(region: &[u8], first: usize, base: usize) -> Result<Vec<Entry>> {
    let list_end = list_end(region, first)?;
    let mut headers = Headers { region, next: first };
    let mut entries = Vec::new();
    let mut left = region.len().saturating_sub(list_end);
    while let Some(header) = headers.step()? {
        let value = decode_value(region, header, list_end, base)?;
        left = left
            .checked_sub(value.room())
            .ok_or_else(|| bad("values overlap", value.len(), left))?;
        entries.push(decode_entry(header, value));
    }
    Ok(entries)
}

/// Returns the offset after the terminator of the list of entries.
fn list_end(region: &[u8], first: usize) -> Result<usize> {
    let mut headers = Headers { region, next: first };
    while headers.step()?.is_some() {}
    Ok(headers.next.saturating_add(TERMINATOR))
}

fn decode_entry(header: &[u8], value: Value) -> Entry {
    let name_end = ENTRY_HEADER + usize::from(byte(header, NAME_LEN));
    Entry {
        index: byte(header, NAME_INDEX),
        name: part(header, ENTRY_HEADER, name_end).to_vec(),
        value,
        hash: le32(header, HASH),
    }
}

fn decode_value(region: &[u8], header: &[u8], list_end: usize, base: usize) -> Result<Value> {
    let (ino, size) = (le32(header, VALUE_INODE), le32(header, VALUE_SIZE));
    if ino != 0 {
        return Ok(Value::EaInode { ino, size });
    }
    if size == 0 {
        return Ok(Value::Inline(Vec::new()));
    }
    let start = base.saturating_add(le16(header, VALUE_OFFSET).into());
    let end = start.saturating_add(size as usize);
    if start < list_end || end > region.len() {
        return Err(bad("value", end, region.len()));
    }
    Ok(Value::Inline(part(region, start, end).to_vec()))
}

/// Returns the bytes of the region that hold the value of the first entry with this name.
pub(super) fn value_range(
    region: &[u8],
    (first, base): (usize, usize),
    (index, name): (u8, &[u8]),
) -> Result<Option<Range<usize>>> {
    let list_end = list_end(region, first)?;
    let mut headers = Headers { region, next: first };
    while let Some(header) = headers.step()? {
        let Value::Inline(value) = decode_value(region, header, list_end, base)? else { continue };
        if decode_entry(header, Value::Inline(Vec::new())).is(index, name) {
            let start = base.saturating_add(le16(header, VALUE_OFFSET).into());
            return Ok(Some(start..start.saturating_add(value.len())));
        }
    }
    Ok(None)
}

/// Returns the number of bytes that entries and the list's end take.
pub(super) fn space<'e>(entries: impl IntoIterator<Item = &'e Entry>) -> usize {
    entries.into_iter().map(Entry::space).fold(TERMINATOR, usize::saturating_add)
}

/// Writes entries, each with its hash, into a region. The region must be zeroed from `first` on and
/// large enough.
pub(super) fn encode<'e>(
    region: &mut [u8],
    first: usize,
    base: usize,
    entries: impl IntoIterator<Item = (&'e Entry, u32)>,
) {
    let (mut next, mut value_start) = (first, region.len() & !3);
    for (entry, hash) in entries {
        value_start = value_start.saturating_sub(entry.value.room());
        encode_entry(region, next, entry, hash, value_start.saturating_sub(base));
        if let Value::Inline(value) = &entry.value {
            put_bytes(region, value_start, value);
        }
        next = next.saturating_add(header_len(entry.name.len()));
    }
}

fn encode_entry(region: &mut [u8], at: usize, entry: &Entry, hash: u32, value_offset: usize) {
    let bytes = region.get_mut(at..).unwrap_or_default();
    put_bytes(bytes, 0, &[entry.name.len() as u8, entry.index]);
    match &entry.value {
        Value::Inline(value) => {
            let offset = if value.is_empty() { 0 } else { value_offset };
            put_le16(bytes, VALUE_OFFSET, offset as u16);
            put_le32(bytes, VALUE_SIZE, value.len() as u32);
        }
        Value::EaInode { ino, size } => {
            put_le32(bytes, VALUE_INODE, *ino);
            put_le32(bytes, VALUE_SIZE, *size);
        }
    }
    put_le32(bytes, HASH, hash);
    put_bytes(bytes, ENTRY_HEADER, &entry.name);
}
