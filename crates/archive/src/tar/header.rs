//! Header blocks of the formats v7, ustar and GNU.

use super::number;
use super::sparse::Range;

/// Bytes of a header, and the unit of all offsets.
pub(crate) const BLOCK: usize = 512;

/// Ranges in a header of an old GNU sparse file, and in each block that continues it.
const RANGES: (usize, usize) = (4, 21);

/// Bytes of a range there: offset and length of 12 bytes each.
const RANGE: usize = 24;

/// Format of a header, by its magic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    V7,
    Ustar,
    Gnu,
}

/// A header block with a correct checksum.
pub(super) struct Header<'a> {
    block: &'a [u8; BLOCK],
    format: Format,
}

/// Returns the bytes of a field before its first NUL byte.
fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

impl<'a> Header<'a> {
    /// Parses a block. `Err` has the cause.
    pub(super) fn parse(block: &'a [u8; BLOCK]) -> Result<Header<'a>, String> {
        let header = Header { block, format: Format::V7 };
        let stored = number::parse_unsigned(header.field(148, 8));
        let sum = |value: fn(u8) -> i64| -> i64 {
            let spaces = 8 * i64::from(b' ');
            let other = block[..148].iter().chain(&block[156..]);
            other.map(|byte| value(*byte)).sum::<i64>() + spaces
        };
        // Some old programs added the bytes as signed numbers.
        let sums = [sum(i64::from), sum(|byte| i64::from(byte as i8))];
        if !stored.is_some_and(|stored| sums.contains(&(stored as i64))) {
            return Err(match stored {
                Some(stored) => format!("the checksum is {:#o}, not {stored:#o}", sums[0]),
                None => "no header: the checksum is no number".to_string(),
            });
        }
        let format = match header.field(257, 8) {
            b"ustar  \0" => Format::Gnu,
            magic if magic.starts_with(b"ustar") => Format::Ustar,
            _ => Format::V7,
        };
        Ok(Header { block, format })
    }

    fn field(&self, at: usize, len: usize) -> &'a [u8] {
        self.block.get(at..at + len).unwrap_or_default()
    }

    fn number(&self, name: &str, at: usize, len: usize) -> Result<i64, String> {
        number::parse(self.field(at, len)).ok_or_else(|| format!("the field {name} is no number"))
    }

    fn unsigned(&self, name: &str, at: usize, len: usize) -> Result<u64, String> {
        let value = self.number(name, at, len)?;
        u64::try_from(value).map_err(|_| format!("the field {name} is negative: {value}"))
    }

    /// Returns the type of the member.
    pub(super) fn type_flag(&self) -> u8 {
        self.block[156]
    }

    /// Returns the name; the prefix of the ustar format is a part of it.
    pub(super) fn path(&self) -> Vec<u8> {
        let name = text(self.field(0, 100));
        let prefix = if self.format == Format::Ustar { text(self.field(345, 155)) } else { &[] };
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }

    pub(super) fn link_path(&self) -> Vec<u8> {
        text(self.field(157, 100)).to_vec()
    }

    pub(super) fn mode(&self) -> Result<u16, String> {
        Ok((self.unsigned("mode", 100, 8)? & 0o7777) as u16)
    }

    pub(super) fn uid(&self) -> Result<u64, String> {
        self.unsigned("uid", 108, 8)
    }

    pub(super) fn gid(&self) -> Result<u64, String> {
        self.unsigned("gid", 116, 8)
    }

    /// Returns the bytes of content in the archive.
    pub(super) fn size(&self) -> Result<u64, String> {
        self.unsigned("size", 124, 12)
    }

    /// Returns whether the size field says that the size does not fit.
    pub(super) fn size_is_full(&self) -> bool {
        let digits = text(self.field(124, 12)).strip_suffix(b" ");
        digits.unwrap_or(text(self.field(124, 12))).iter().all(|digit| *digit == b'7')
    }

    /// Returns the seconds of the last change.
    pub(super) fn mtime(&self) -> Result<i64, String> {
        self.number("mtime", 136, 12)
    }

    pub(super) fn user(&self) -> &'a [u8] {
        if self.format == Format::V7 { &[] } else { text(self.field(265, 32)) }
    }

    pub(super) fn group(&self) -> &'a [u8] {
        if self.format == Format::V7 { &[] } else { text(self.field(297, 32)) }
    }

    /// Returns major and minor number of a device.
    pub(super) fn device(&self) -> Result<(u64, u64), String> {
        if self.format == Format::V7 {
            return Ok((0, 0));
        }
        Ok((self.unsigned("devmajor", 329, 8)?, self.unsigned("devminor", 337, 8)?))
    }

    pub(super) fn is_gnu(&self) -> bool {
        self.format == Format::Gnu
    }

    /// Returns the first ranges of an old GNU sparse file, whether a block of further ones
    /// follows, and the size of the file.
    pub(super) fn sparse(&self) -> Result<(Vec<Range>, bool, u64), String> {
        let ranges = ranges(self.field(386, RANGES.0 * RANGE))?;
        Ok((ranges, self.block[482] != 0, self.unsigned("realsize", 483, 12)?))
    }
}

/// Returns the ranges of a block that continues a sparse header, and whether another follows.
pub(super) fn sparse_block(block: &[u8; BLOCK]) -> Result<(Vec<Range>, bool), String> {
    Ok((ranges(block.get(..RANGES.1 * RANGE).unwrap_or_default())?, block[504] != 0))
}

/// Parses ranges until one is empty: without any digit.
fn ranges(bytes: &[u8]) -> Result<Vec<Range>, String> {
    let used = |range: &&[u8]| range.iter().any(|byte| *byte != 0);
    let parse = |range: &[u8]| {
        let (start, len) = range.split_at_checked(RANGE / 2)?;
        Some(Range { start: number::parse_unsigned(start)?, len: number::parse_unsigned(len)? })
    };
    bytes
        .chunks_exact(RANGE)
        .take_while(used)
        .map(|range| parse(range).ok_or_else(|| "a range of the sparse file is no number".into()))
        .collect()
}
