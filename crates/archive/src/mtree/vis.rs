//! Words of a manifest, encoded by vis(3): octal numbers, and the letters of C.

/// Decodes a word; `None` if an escape is unknown or incomplete.
pub(super) fn decode(word: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, after @ ..] = rest {
        rest = after;
        if *first == b'\\' {
            let (byte, after) = escape(rest)?;
            bytes.push(byte);
            rest = after;
        } else {
            bytes.push(*first);
        }
    }
    Some(bytes)
}

/// Decodes the characters behind a backslash; returns the rest, too.
fn escape(text: &[u8]) -> Option<(u8, &[u8])> {
    if let [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', rest @ ..] = text {
        return Some(((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), rest));
    }
    let (first, rest) = text.split_first()?;
    let byte = match first {
        b'0' => 0,
        b'a' => 7,
        b'b' => 8,
        b't' => b'\t',
        b'n' => b'\n',
        b'v' => 11,
        b'f' => 12,
        b'r' => b'\r',
        b's' => b' ',
        b'^' => return control(rest),
        b'M' => return meta(rest),
        mark if mark.is_ascii_punctuation() => *mark,
        _ => return None,
    };
    Some((byte, rest))
}

/// Decodes `^C`, a control character.
fn control(text: &[u8]) -> Option<(u8, &[u8])> {
    match text {
        [b'?', rest @ ..] => Some((0x7f, rest)),
        [letter @ b'@'..=b'_', rest @ ..] => Some((letter & 0x1f, rest)),
        _ => None,
    }
}

/// Decodes `M-C` and `M^C`, characters with the highest bit.
fn meta(text: &[u8]) -> Option<(u8, &[u8])> {
    let (byte, rest) = match text {
        [b'-', byte @ 0x20..=0x7e, rest @ ..] => (*byte, rest),
        [b'^', rest @ ..] => control(rest)?,
        _ => return None,
    };
    Some((byte | 0x80, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_decoded() {
        for (word, bytes) in [
            (&b"plain"[..], &b"plain"[..]),
            (br"a\040b\s", b"a b "),
            (br"\\\#\134", b"\\#\\"),
            (br"\303\244\n\t", b"\xc3\xa4\n\t"),
            (br"\M-d\M^A\^A\^?", b"\xe4\x81\x01\x7f"),
            (br"\0x", b"\0x"),
        ] {
            assert_eq!(decode(word).as_deref(), Some(bytes), "{}", word.escape_ascii());
        }
        for bad in [&br"\"[..], br"\q", br"\M", br"\M-", br"\^a", br"\8"] {
            assert_eq!(decode(bad), None, "{}", bad.escape_ascii());
        }
    }
}
