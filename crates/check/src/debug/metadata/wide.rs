//! Other names of the same length where case does not matter, for those beyond ASCII.
//!
//! Such a name must stay valid UTF-8, since a directory may refuse others, and its hash must be
//! known without tables of Unicode. So its characters become *stable* ones, of which a program that
//! folds case and decomposes characters makes themselves: some scripts without case or in lower
//! case, for each number of bytes. For example, `Straße.txt` may become `Gkvqaжi-o7"`.
//!
//! A stable character has a number among those of its length, and the names of stable characters
//! are permuted as those of bytes are ([`Scrambler`](super::scramble::Scrambler)). A character with
//! a stable lower case counts as that. Any other one, such as a letter with an accent, becomes a
//! stable one that follows from a hash first; two names of a directory might become equal by that,
//! which the caller must look for.

use super::scramble::{NameSpace, ROUNDS};
use sha2::{Digest, Sha256};

/// Ranges of stable characters of two bytes: Greek, Cyrillic, Armenian, Hebrew, Arabic, Syriac,
/// Thaana, N'Ko.
const OF_TWO: &[(u32, u32)] = &[
    (0x3B1, 0x3C1),
    (0x3C3, 0x3C9),
    (0x430, 0x438),
    (0x43A, 0x44F),
    (0x561, 0x586),
    (0x5D0, 0x5EA),
    (0x627, 0x63A),
    (0x641, 0x64A),
    (0x712, 0x72F),
    (0x780, 0x7A5),
    (0x7CA, 0x7EA),
];

/// Ideographs.
const OF_THREE: &[(u32, u32)] = &[(0x4E00, 0x9FEF)];
const OF_FOUR: &[(u32, u32)] = &[(0x20000, 0x2A6D6)];

fn ranges(len: usize) -> &'static [(u32, u32)] {
    match len {
        2 => OF_TWO,
        3 => OF_THREE,
        _ => OF_FOUR,
    }
}

fn count(len: usize) -> u32 {
    ranges(len).iter().map(|(first, last)| last.saturating_sub(*first).saturating_add(1)).sum()
}

/// Returns the number of a stable character.
fn number(c: char) -> Option<u32> {
    let (code, mut before) = (u32::from(c), 0u32);
    for (first, last) in ranges(c.len_utf8()) {
        if (*first..=*last).contains(&code) {
            return Some(before.saturating_add(code.saturating_sub(*first)));
        }
        before = before.saturating_add(last.saturating_sub(*first)).saturating_add(1);
    }
    None
}

fn stable(len: usize, number: u32) -> Option<char> {
    let mut left = number;
    for (first, last) in ranges(len) {
        let size = last.saturating_sub(*first).saturating_add(1);
        if left < size {
            return char::from_u32(first.saturating_add(left));
        }
        left = left.saturating_sub(size);
    }
    None
}

/// Returns whether a program that folds case makes the text itself, but for ASCII.
pub fn is_stable(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii() || number(c).is_some())
}

/// A character with others in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Symbol {
    /// A zero or `/`.
    Kept(char),
    /// A number of so many, from this character on.
    Ascii { first: u8, count: u8, number: u8 },
    /// The number of a stable character of so many bytes.
    Wide { len: usize, number: u32 },
}

/// Printable characters of ASCII but letters and `/`, in ranges: first and last.
const OTHERS: [(u8, u8); 5] = [(b' ', b'.'), (b'0', b'@'), (b'[', b'`'), (b'{', b'~'), (1, 0x1F)];

impl Symbol {
    fn ascii(byte: u8) -> Symbol {
        let letters = [(b'A', b'Z'), (b'a', b'z')];
        let found = letters.into_iter().chain(OTHERS).find(|(a, z)| (*a..=*z).contains(&byte));
        match found {
            Some((first, last)) => Symbol::Ascii {
                first,
                count: last.saturating_sub(first).saturating_add(1),
                number: byte.saturating_sub(first),
            },
            None => Symbol::Kept(char::from(byte)),
        }
    }

    fn count(self) -> u32 {
        match self {
            Symbol::Kept(_) => 1,
            Symbol::Ascii { count, .. } => count.into(),
            Symbol::Wide { len, .. } => count(len),
        }
    }

    fn number(self) -> u32 {
        match self {
            Symbol::Kept(_) => 0,
            Symbol::Ascii { number, .. } => number.into(),
            Symbol::Wide { number, .. } => number,
        }
    }

    fn with(self, value: u32) -> Symbol {
        match self {
            Symbol::Kept(_) => self,
            Symbol::Ascii { first, count, .. } => {
                Symbol::Ascii { first, count, number: u8::try_from(value).unwrap_or(0) }
            }
            Symbol::Wide { len, .. } => Symbol::Wide { len, number: value },
        }
    }

    fn character(self) -> char {
        match self {
            Symbol::Kept(c) => c,
            Symbol::Ascii { first, number, .. } => char::from(first.saturating_add(number)),
            Symbol::Wide { len, number } => stable(len, number).unwrap_or('\u{430}'),
        }
    }
}

/// A name beyond ASCII.
pub struct WideName(Vec<Symbol>);

impl WideName {
    /// Returns the symbols of a name; `None` for one in ASCII, and one that is not UTF-8.
    pub fn of(name: &[u8], key: &[u8], space: NameSpace) -> Option<WideName> {
        let text = std::str::from_utf8(name).ok().filter(|text| !text.is_ascii())?;
        let symbol = |(at, c): (usize, char)| {
            let len = c.len_utf8();
            if len == 1 {
                return Symbol::ascii(name.get(at).copied().unwrap_or(0));
            }
            let mut lower = c.to_lowercase();
            let lower = lower.next().filter(|lower| lower.len_utf8() == len && c != *lower);
            let number = number(c).or_else(|| number(lower?)).unwrap_or_else(|| {
                let hash = Sha256::new_with_prefix(key).chain_update(space.ino.to_le_bytes());
                let hash = hash.chain_update((at as u32).to_le_bytes()).chain_update(text);
                first_number(&hash.finalize()).checked_rem(count(len)).unwrap_or(0)
            });
            Symbol::Wide { len, number }
        };
        Some(WideName(text.char_indices().map(symbol).collect()))
    }

    /// Writes the name in place of one of the same length.
    pub fn put(&self, name: &mut [u8]) {
        let text: String = self.0.iter().map(|symbol| symbol.character()).collect();
        if text.len() == name.len() {
            name.copy_from_slice(text.as_bytes());
        }
    }

    /// Replaces the name by the one that stands for it.
    pub fn permute(&mut self, key: &[u8], space: NameSpace) {
        let middle = self.0.len() / 2;
        for round in 0..ROUNDS {
            let (left, right) = self.0.split_at_mut(middle);
            match round % 2 {
                0 => add(key, space, round, left, right),
                _ => add(key, space, round, right, left),
            }
        }
    }

    /// Replaces the name by the next one. Returns false at the last one.
    pub fn advance(&mut self) -> bool {
        for symbol in self.0.iter_mut().rev() {
            let next = symbol.number().saturating_add(1);
            if next < symbol.count() {
                *symbol = symbol.with(next);
                return true;
            }
            *symbol = symbol.with(0);
        }
        false
    }
}

/// Adds the numbers that follow from one half to the symbols of the other one.
fn add(key: &[u8], space: NameSpace, round: u8, half: &[Symbol], other: &mut [Symbol]) {
    let text: String = half.iter().map(|symbol| symbol.character().to_ascii_lowercase()).collect();
    let hash = Sha256::new_with_prefix(key).chain_update(space.ino.to_le_bytes());
    let hash = hash.chain_update([round, half.len() as u8, other.len() as u8]).chain_update(text);
    for (part, symbol) in (0u8..).zip(other) {
        let stream = hash.clone().chain_update([part]).finalize();
        let sum = u64::from(symbol.number()).saturating_add(first_number(&stream).into());
        let number = sum.checked_rem(symbol.count().into()).unwrap_or(0);
        *symbol = symbol.with(number as u32);
    }
}

fn first_number(hash: &[u8]) -> u32 {
    hash.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const SPACE: NameSpace = NameSpace { ino: 12, folds: true };

    fn scrambled(name: &str) -> String {
        let mut wide = WideName::of(name.as_bytes(), b"key", SPACE).expect("no ASCII");
        wide.permute(b"key", SPACE);
        let mut bytes = name.as_bytes().to_vec();
        wide.put(&mut bytes);
        String::from_utf8(bytes).expect("UTF-8")
    }

    #[test]
    fn names_become_stable_ones_of_the_same_length() {
        let names = ["Größe.txt", "файл 7", "ФАЙЛ 8", "文件", "한국어", "🙂 a", "e\u{301}", "/é"];
        for name in names {
            let new = scrambled(name);
            assert_eq!(new.len(), name.len(), "{name}");
            assert!(is_stable(&new) && new != name, "{name}: {new}");
            assert_eq!(new.contains('/'), name.contains('/'), "{name}: {new}");
        }
        assert!(!is_stable("é") && is_stable("a文"));
    }

    #[test]
    fn names_of_stable_characters_stay_different() {
        let names = (0..3000u32).map(|n| {
            let c = stable(2, n % count(2)).expect("a character");
            format!("{c}{n}")
        });
        let found: HashSet<String> = names.map(|name| scrambled(&name)).collect();
        assert_eq!(found.len(), 3000);
    }

    #[test]
    fn all_names_follow_each_other() {
        let mut wide = WideName::of("дA".as_bytes(), b"key", SPACE).expect("no ASCII");
        let mut seen = 1;
        while wide.advance() {
            seen += 1;
        }
        wide.advance();
        assert!(seen < count(2) * 26);
        let mut all = 0;
        while wide.advance() {
            all += 1;
        }
        assert_eq!(all + 2, count(2) * 26);
    }
}
