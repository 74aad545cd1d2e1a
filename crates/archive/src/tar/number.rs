//! Numbers in headers: octal digits, or base 256 for numbers beyond them.

/// Parses a numeric field. A field of spaces and NUL bytes is 0. `None` for other characters, for
/// digits after the end, and for numbers beyond 64 bits.
pub(super) fn parse(field: &[u8]) -> Option<i64> {
    match field.first() {
        Some(first @ (0x80 | 0xff)) => base_256(*first, field.get(1..)?),
        _ => octal(field),
    }
}

/// Parses a field that has no negative numbers.
pub(super) fn parse_unsigned(field: &[u8]) -> Option<u64> {
    parse(field).and_then(|number| u64::try_from(number).ok())
}

/// Parses a big-endian number in two's complement, whose first byte has the sign.
fn base_256(first: u8, rest: &[u8]) -> Option<i64> {
    let start = if first == 0xff { -1 } else { 0 };
    rest.iter().try_fold(start, |number: i64, byte| {
        number.checked_mul(256).map(|number| number | i64::from(*byte))
    })
}

fn octal(field: &[u8]) -> Option<i64> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | 0);
    let start = field.iter().position(|byte| !is_blank(byte)).unwrap_or(field.len());
    let digits = field.get(start..)?;
    let end = digits.iter().position(is_blank).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    // Digits after the end would be a second number: other readers may see another value.
    if !rest.iter().all(is_blank) {
        return None;
    }
    digits.iter().try_fold(0, |number: i64, digit| match digit {
        b'0'..=b'7' => number.checked_mul(8)?.checked_add(i64::from(digit - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octal_digits_stand_between_spaces_and_nul_bytes() {
        for (field, number) in [
            (&b"0000644\0"[..], 0o644),
            (b"  1750 \0", 0o1750),
            (b"77777777777\0", 0o77_777_777_777),
            (b"777777777777", 0o777_777_777_777),
            (b"\0\0\0\0\0\0\0\0", 0),
            (b"        ", 0),
        ] {
            assert_eq!(parse(field), Some(number), "{field:?}");
        }
        for field in [&b"0000648\0"[..], b"-000001\0", b"12 34 \0\0", b"0x10\0\0\0\0"] {
            assert_eq!(parse(field), None, "{field:?}");
        }
    }

    #[test]
    fn base_256_has_a_sign() {
        let field = |first: u8, last: [u8; 8]| [&[first, 0, 0, 0][..], &last].concat();
        assert_eq!(parse(&field(0x80, (1_u64 << 40).to_be_bytes())), Some(1 << 40));
        let negative = [&[0xff; 4][..], &(-7_i64).to_be_bytes()].concat();
        assert_eq!(parse(&negative), Some(-7));
        assert_eq!(parse_unsigned(&negative), None);
        assert_eq!(parse(&[&[0x80, 1][..], &[0; 10]].concat()), None);
        assert_eq!(parse(&[0x80, 0, 0, 0, 0, 0x20, 0, 0]), Some(1 << 21));
    }
}
