//! Sparse files in their four forms: old GNU headers, and the PAX versions 0.0, 0.1 and 1.0.

use super::header::BLOCK;

/// Maximum number of digits of a number in a map.
const MAX_DIGITS: usize = 20;

/// A range of a file with data; bytes outside of all ranges are zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First byte in the file.
    pub start: u64,
    /// Bytes.
    pub len: u64,
}

/// Records `GNU.sparse.*`.
#[derive(Clone, Default, Debug)]
pub(super) struct PaxSparse {
    major: Option<u64>,
    minor: Option<u64>,
    pub name: Option<Vec<u8>>,
    size: Option<u64>,
    count: Option<u64>,
    /// Start of a range whose length follows in the next record.
    start: Option<u64>,
    map: Vec<Range>,
}

/// Place of the map of a sparse file.
pub(super) enum MapPlace {
    /// No sparse file.
    None,
    /// In the headers: size of the file, and its ranges.
    Header(u64, Vec<Range>),
    /// Before the data: size of the file.
    Data(u64),
}

impl PaxSparse {
    /// Sets one value; `None` if it is malformed.
    pub(super) fn set(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        match name {
            b"major" => self.major = Some(decimal(value)?),
            b"minor" => self.minor = Some(decimal(value)?),
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.size = Some(decimal(value)?),
            b"numblocks" => self.count = Some(decimal(value)?),
            b"offset" if self.start.is_none() => self.start = Some(decimal(value)?),
            b"numbytes" => self.map.push(Range { start: self.start.take()?, len: decimal(value)? }),
            b"map" => self.map = map(value)?,
            b"offset" => return None,
            _ => {}
        }
        Some(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.size.is_none() && self.map.is_empty() && self.major.is_none()
    }

    /// Returns the place of the map. `Err` has the cause.
    pub(super) fn place(self) -> Result<MapPlace, String> {
        if self.is_empty() {
            return Ok(MapPlace::None);
        }
        let size = self.size.ok_or("the sparse file has no GNU.sparse.size or .realsize")?;
        match (self.major.unwrap_or(0), self.minor.unwrap_or(0)) {
            (1, 0) => Ok(MapPlace::Data(size)),
            (0, _) => {
                let len = self.map.len() as u64;
                if self.start.is_some() || self.count.is_some_and(|count| count != len) {
                    return Err(format!(
                        "the map of the sparse file has {len} ranges, not as many as \
                         GNU.sparse.numblocks"
                    ));
                }
                Ok(MapPlace::Header(size, self.map))
            }
            (major, minor) => Err(format!("the sparse format {major}.{minor} is not known")),
        }
    }
}

/// Parses a map in a record: offsets and lengths with commas between.
fn map(value: &[u8]) -> Option<Vec<Range>> {
    if value.is_empty() {
        return Some(Vec::new());
    }
    let mut numbers = value.split(|byte| *byte == b',').map(decimal);
    let mut ranges = Vec::new();
    while let Some(start) = numbers.next() {
        ranges.push(Range { start: start?, len: numbers.next()?? });
    }
    Some(ranges)
}

/// Parses a decimal number without a sign.
pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0, |number: u64, digit| match digit {
        b'0'..=b'9' => number.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// Reads the map of version 1.0, which precedes the data: the number of ranges, then their starts
/// and lengths, each on a line of its own, padded to a whole block.
///
/// `next` returns the next block. `limit` is the maximum number of ranges. `Err` has the cause.
pub(super) fn read_map<E: From<String>>(
    limit: u64,
    mut next: impl FnMut() -> Result<[u8; BLOCK], E>,
) -> Result<Vec<Range>, E> {
    let (mut block, mut at) = (next()?, 0);
    let mut number = || -> Result<u64, E> {
        let mut digits = Vec::new();
        loop {
            if at == BLOCK {
                (block, at) = (next()?, 0);
            }
            let byte = block[at];
            at += 1;
            if byte == b'\n' {
                break;
            }
            digits.push(byte);
            if digits.len() > MAX_DIGITS {
                break;
            }
        }
        decimal(&digits)
            .ok_or_else(|| "the map of the sparse file has no number".to_string().into())
    };
    let count = number()?;
    if count > limit {
        return Err(
            format!("the sparse file has {count} ranges, more than its map has bytes").into()
        );
    }
    let mut ranges = Vec::new();
    for _ in 0..count {
        ranges.push(Range { start: number()?, len: number()? });
    }
    Ok(ranges)
}

/// Checks ranges against the size of the file, and against the bytes of data in the archive.
/// Removes empty ranges. `Err` has the cause.
pub(super) fn check(ranges: &mut Vec<Range>, size: u64, stored: u64) -> Result<(), String> {
    let (mut end, mut data) = (0, 0_u64);
    for range in ranges.iter() {
        // Readers disagree on the padding between ranges that do not fill their last block.
        if data % BLOCK as u64 != 0 && range.len > 0 {
            return Err(format!(
                "the range before byte {} of the sparse file does not fill its \
                 last block",
                range.start
            ));
        }
        if range.start < end {
            return Err(format!("the ranges of the sparse file overlap at byte {}", range.start));
        }
        end = range.start.checked_add(range.len).filter(|end| *end <= size).ok_or_else(|| {
            format!("the range at byte {} exceeds the {size} bytes of the sparse file", range.start)
        })?;
        data = data.saturating_add(range.len);
    }
    if data != stored {
        return Err(format!(
            "the ranges of the sparse file have {data} bytes, the archive {stored}"
        ));
    }
    ranges.retain(|range| range.len > 0);
    Ok(())
}
