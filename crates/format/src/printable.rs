//! Names and paths of images in messages.

use std::fmt::{self, Write};
use std::ops::RangeInclusive;

/// Displays a name or path for a message or a terminal. Control characters, characters that change
/// the direction of text, and bytes that are no UTF-8 are escaped: an image cannot steer a terminal
/// or hide a part of a message.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a [u8]);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if steers(c) {
                    write!(f, "{}", c.escape_default())?;
                } else {
                    f.write_char(c)?;
                }
            }
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

/// Characters that change the direction of text, and separators of lines.
const DIRECTIONS: [RangeInclusive<char>; 4] = [
    '\u{61c}'..='\u{61c}',
    '\u{200e}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2066}'..='\u{2069}',
];

/// Returns whether a terminal obeys the character instead of showing it.
fn steers(c: char) -> bool {
    c.is_control() || DIRECTIONS.iter().any(|range| range.contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_steer_a_terminal() {
        let shown = |bytes| Printable(bytes).to_string();
        assert_eq!(shown("grün".as_bytes()), "grün");
        assert_eq!(shown(b"a\x1b[2J\n"), "a\\u{1b}[2J\\n");
        assert_eq!(shown(b"\xff\xfeb"), "\\xff\\xfeb");
        assert_eq!(shown("a\u{202e}gpj.exe\u{2069}".as_bytes()), "a\\u{202e}gpj.exe\\u{2069}");
        assert_eq!(shown("שלום".as_bytes()), "שלום");
    }
}
