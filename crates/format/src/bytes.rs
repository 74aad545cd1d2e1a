//! Numbers at byte offsets, in both byte orders.
//!
//! # Invariants
//! Every function is total: a read past the end gives zero, a write past the end changes nothing.
//! Callers check sizes where a short buffer is an error; these helpers only make sure that a missed
//! check cannot panic.

macro_rules! number_access {
    ($get:ident, $put:ident, $ty:ty, $from:ident, $to:ident) => {
        pub(crate) fn $get(bytes: &[u8], offset: usize) -> $ty {
            bytes
                .get(offset..)
                .and_then(|tail| tail.first_chunk())
                .map_or(0, |chunk| <$ty>::$from(*chunk))
        }

        pub(crate) fn $put(bytes: &mut [u8], offset: usize, value: $ty) {
            if let Some(chunk) = bytes.get_mut(offset..).and_then(|tail| tail.first_chunk_mut()) {
                *chunk = value.$to();
            }
        }
    };
}

number_access!(le16, put_le16, u16, from_le_bytes, to_le_bytes);
number_access!(le32, put_le32, u32, from_le_bytes, to_le_bytes);
number_access!(le64, put_le64, u64, from_le_bytes, to_le_bytes);
number_access!(be16, put_be16, u16, from_be_bytes, to_be_bytes);
number_access!(be32, put_be32, u32, from_be_bytes, to_be_bytes);
number_access!(be64, put_be64, u64, from_be_bytes, to_be_bytes);

/// Copies what fits of `source` to `offset`.
pub(crate) fn put_bytes(bytes: &mut [u8], offset: usize, source: &[u8]) {
    let target = bytes.get_mut(offset..).unwrap_or_default();
    let len = target.len().min(source.len());
    if let (Some(target), Some(source)) = (target.get_mut(..len), source.get(..len)) {
        target.copy_from_slice(source);
    }
}

/// A byte, 0 past the end.
pub(crate) fn byte(bytes: &[u8], offset: usize) -> u8 {
    bytes.get(offset).copied().unwrap_or(0)
}

/// The part `start..end`, cut down to what exists.
pub(crate) fn part(bytes: &[u8], start: usize, end: usize) -> &[u8] {
    let end = end.min(bytes.len());
    bytes.get(start..end).unwrap_or(&[])
}

/// The mutable part `start..end`, cut down to what exists.
pub(crate) fn part_mut(bytes: &mut [u8], start: usize, end: usize) -> &mut [u8] {
    let end = end.min(bytes.len());
    bytes.get_mut(start..end).unwrap_or(&mut [])
}

/// A fixed array at `offset`, zero-filled where the bytes end.
pub(crate) fn array<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut out = [0; N];
    put_bytes(&mut out, 0, part(bytes, offset, offset.saturating_add(N)));
    out
}

/// Text in a fixed field: up to the first zero byte, invalid UTF-8 replaced.
pub(crate) fn text(field: &[u8]) -> String {
    let len = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    String::from_utf8_lossy(part(field, 0, len)).into_owned()
}

/// Stores text in a fixed field, cut to its size and padded with zeros.
pub(crate) fn put_text(field: &mut [u8], text: &[u8]) {
    field.fill(0);
    put_bytes(field, 0, text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_past_the_end_give_zero() {
        assert_eq!(le32(&[1, 2, 3], 0), 0);
        assert_eq!(le16(&[1, 2, 3], 1), 0x0302);
        assert_eq!(le16(&[1, 2, 3], usize::MAX), 0);
    }

    #[test]
    fn writes_past_the_end_do_nothing() {
        let mut bytes = [0u8; 3];
        put_be32(&mut bytes, 0, 7);
        put_be16(&mut bytes, 1, 0x0102);
        assert_eq!(bytes, [0, 1, 2]);
    }

    #[test]
    fn text_stops_at_zero() {
        let mut field = [0xFF; 4];
        put_text(&mut field, b"ab");
        assert_eq!(text(&field), "ab");
        put_text(&mut field, b"abcdef");
        assert_eq!(text(&field), "abcd");
    }
}
