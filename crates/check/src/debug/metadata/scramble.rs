//! Other names of the same length.
//!
//! A name is a row of symbols. Each symbol belongs to an alphabet, such as the printable
//! characters, and becomes another one of the same alphabet: a Feistel network adds bytes that
//! follow from a secret key, the directory and the other half of the name. So different names of a
//! directory stay different, and equal ones equal, without a list of them. For example, `notes.txt`
//! may become `=c}Vk0u2[`.
//!
//! Names beyond ASCII in directories that ignore case consist of characters instead ([`wide`]).
//!
//! [`wide`]: super::wide
//!
//! # Invariants
//! - A zero and `/` stay where they are: a name that has one is damage, and stays the same damage.
//! - `.`, `..` and `lost+found` stay, and no other name becomes one of them.

use super::wide::WideName;
use sha2::{Digest, Sha256};

/// Rounds of the network: two for each half make all symbols depend on all others.
pub const ROUNDS: u8 = 6;

/// Names with a meaning of their own.
const KEPT: [&[u8]; 3] = [b".", b"..", b"lost+found"];

/// First and last printable character.
const PRINTABLE: (u8, u8) = (b' ', b'~');

/// A number of a symbol in an alphabet, and the number of symbols of that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Symbol {
    alphabet: Alphabet,
    number: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Alphabet {
    /// All printable characters but `/`.
    Printable,
    /// Letters, whose case stays.
    Upper,
    Lower,
    /// Printable characters but letters and `/`.
    Others,
    Control,
    /// Bytes of characters beyond ASCII.
    High,
}

impl Alphabet {
    /// Returns the symbols in order.
    fn symbols(self) -> impl Iterator<Item = u8> {
        (0..=u8::MAX).filter(move |byte| {
            let is_printable = (PRINTABLE.0..=PRINTABLE.1).contains(byte) && *byte != b'/';
            match self {
                Alphabet::Printable => is_printable,
                Alphabet::Upper => byte.is_ascii_uppercase(),
                Alphabet::Lower => byte.is_ascii_lowercase(),
                Alphabet::Others => is_printable && !byte.is_ascii_alphabetic(),
                Alphabet::Control => *byte != 0 && byte.is_ascii_control(),
                Alphabet::High => !byte.is_ascii(),
            }
        })
    }

    const ALL: [Alphabet; 6] = [
        Alphabet::Printable,
        Alphabet::Upper,
        Alphabet::Lower,
        Alphabet::Others,
        Alphabet::Control,
        Alphabet::High,
    ];
}

/// The alphabets of all bytes, looked up once.
#[derive(Debug)]
struct Tables {
    symbols: [Vec<u8>; 6],
    /// Alphabet and number of each byte; in directories that ignore case, too.
    of_byte: [[Option<Symbol>; 256]; 2],
}

impl Tables {
    fn new() -> Tables {
        let symbols = Alphabet::ALL.map(|alphabet| alphabet.symbols().collect::<Vec<u8>>());
        let mut of_byte = [[None; 256]; 2];
        for (table, folds) in of_byte.iter_mut().zip([false, true]) {
            let is_used = |alphabet: &Alphabet| match alphabet {
                Alphabet::Printable => !folds,
                Alphabet::Upper | Alphabet::Lower | Alphabet::Others => folds,
                Alphabet::Control | Alphabet::High => true,
            };
            for (alphabet, list) in Alphabet::ALL.into_iter().zip(&symbols) {
                for (number, byte) in (0u8..).zip(list).filter(|_| is_used(&alphabet)) {
                    if let Some(place) = table.get_mut(usize::from(*byte)) {
                        *place = Some(Symbol { alphabet, number });
                    }
                }
            }
        }
        Tables { symbols, of_byte }
    }

    fn symbol(&self, byte: u8, folds: bool) -> Option<Symbol> {
        let [exact, folded] = &self.of_byte;
        let table = if folds { folded } else { exact };
        table.get(usize::from(byte)).copied().flatten()
    }

    fn list(&self, alphabet: Alphabet) -> &[u8] {
        self.symbols.get(alphabet as usize).map_or(&[], Vec::as_slice)
    }
}

/// A directory, as far as its names depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NameSpace {
    /// The inode of the directory, or of a symbolic link.
    pub ino: u32,
    /// Case does not matter.
    pub folds: bool,
}

/// A secret order of names.
#[derive(Debug)]
pub struct Scrambler {
    key: [u8; 16],
    tables: Tables,
}

impl Scrambler {
    pub fn new(key: [u8; 16]) -> Scrambler {
        Scrambler { key, tables: Tables::new() }
    }

    /// Returns whether a name stays as it is.
    pub fn keeps(name: &[u8]) -> bool {
        KEPT.contains(&name)
    }

    /// Replaces a name by the one that stands for it.
    pub fn scramble(&self, space: NameSpace, name: &mut [u8]) {
        if Scrambler::keeps(name) {
            return;
        }
        // The next name of the cycle in place of one that stays: its own place is free.
        loop {
            self.permute(space, name);
            if !Scrambler::keeps(name) {
                return;
            }
        }
    }

    /// Replaces the names in the target of a symbolic link.
    pub fn scramble_path(&self, space: NameSpace, path: &mut [u8]) {
        path.split_mut(|byte| *byte == b'/').for_each(|name| self.scramble(space, name));
    }

    /// Replaces a name by the next one of the same length. Returns false at the last one, which is
    /// followed by the first.
    pub fn advance(&self, space: NameSpace, name: &mut [u8]) -> bool {
        if let Some(mut wide) = self.wide(space, name) {
            let is_next = wide.advance();
            wide.put(name);
            return is_next;
        }
        for byte in name.iter_mut().rev() {
            let Some(symbol) = self.tables.symbol(*byte, space.folds) else { continue };
            let list = self.tables.list(symbol.alphabet);
            match list.get(usize::from(symbol.number).saturating_add(1)) {
                Some(next) => {
                    *byte = *next;
                    return true;
                }
                None => *byte = list.first().copied().unwrap_or(*byte),
            }
        }
        false
    }

    /// Returns a name beyond ASCII in a directory that ignores case.
    fn wide(&self, space: NameSpace, name: &[u8]) -> Option<WideName> {
        if space.folds { WideName::of(name, &self.key, space) } else { None }
    }

    fn permute(&self, space: NameSpace, name: &mut [u8]) {
        if let Some(mut wide) = self.wide(space, name) {
            wide.permute(&self.key, space);
            return wide.put(name);
        }
        let middle = name.len() / 2;
        for round in 0..ROUNDS {
            let (left, right) = name.split_at_mut(middle);
            match round % 2 {
                0 => self.add(space, round, left, right),
                _ => self.add(space, round, right, left),
            }
        }
    }

    /// Adds the bytes that follow from one half to the symbols of the other one.
    fn add(&self, space: NameSpace, round: u8, half: &[u8], other: &mut [u8]) {
        let mut hash = Sha256::new_with_prefix(self.key);
        hash.update(space.ino.to_le_bytes());
        hash.update([round, half.len() as u8, other.len() as u8]);
        if space.folds {
            hash.update(half.to_ascii_lowercase());
        } else {
            hash.update(half);
        }
        for (part, chunk) in (0u8..).zip(other.chunks_mut(32)) {
            let stream = hash.clone().chain_update([part]).finalize();
            for (byte, sum) in chunk.iter_mut().zip(stream) {
                let Some(symbol) = self.tables.symbol(*byte, space.folds) else { continue };
                let list = self.tables.list(symbol.alphabet);
                let number = usize::from(symbol.number).saturating_add(sum.into());
                let number = number.checked_rem(list.len()).unwrap_or(0);
                *byte = list.get(number).copied().unwrap_or(*byte);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const SPACE: NameSpace = NameSpace { ino: 12, folds: false };

    fn scrambled(space: NameSpace, name: &[u8]) -> Vec<u8> {
        let mut name = name.to_vec();
        Scrambler::new([7; 16]).scramble(space, &mut name);
        name
    }

    #[test]
    fn names_stay_different_and_as_long() {
        let all: Vec<Vec<u8>> = (1..=255u8)
            .map(|byte| vec![byte])
            .chain((0..20_000u32).map(|n| n.to_le_bytes()[..2].to_vec()))
            .chain((0..2000).map(|n| format!("name {n}").into_bytes()))
            .collect::<HashSet<_>>()
            .into_iter()
            .collect();
        for space in [SPACE, NameSpace { folds: true, ..SPACE }] {
            let found: HashSet<Vec<u8>> = all.iter().map(|name| scrambled(space, name)).collect();
            assert_eq!(found.len(), all.len());
        }
        for name in &all {
            let other = scrambled(SPACE, name);
            assert_eq!(other.len(), name.len());
            let kept = |byte: u8| byte == 0 || byte == b'/';
            assert!(name.iter().zip(&other).all(|(a, b)| kept(*a) == kept(*b)), "{name:?}");
            assert!(!Scrambler::keeps(&other) || Scrambler::keeps(name), "{name:?}");
        }
    }

    #[test]
    fn names_follow_from_key_and_directory() {
        let long = b"a name with a secret in it";
        let one = scrambled(SPACE, long);
        assert_eq!(one, scrambled(SPACE, long));
        assert_ne!(one, scrambled(NameSpace { ino: 13, ..SPACE }, long));
        assert!(!one.windows(4).any(|part| part == b"name" || part == b"secr"));
        for name in KEPT {
            assert_eq!(scrambled(SPACE, name), name);
        }
        let mut path = b"../lost+found/other/./x".to_vec();
        Scrambler::new([7; 16]).scramble_path(SPACE, &mut path);
        assert!(path.starts_with(b"../lost+found/"));
        assert_eq!((&path[19..22], path.len()), (&b"/./"[..], 23));
    }

    #[test]
    fn letters_keep_their_case_where_it_does_not_matter() {
        let space = NameSpace { folds: true, ..SPACE };
        let (lower, mixed) = (scrambled(space, b"readme"), scrambled(space, b"README"));
        assert!(mixed.iter().all(u8::is_ascii_uppercase));
        assert_eq!(mixed.to_ascii_lowercase(), lower);
    }

    #[test]
    fn names_follow_each_other() {
        let scrambler = Scrambler::new([7; 16]);
        let mut name = b"/a".to_vec();
        let mut seen = HashSet::new();
        while seen.insert(name.clone()) {
            scrambler.advance(SPACE, &mut name);
        }
        assert_eq!((seen.len(), &name[..]), (94, &b"/a"[..]));
    }
}
