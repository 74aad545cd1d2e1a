//! Words and columns of comments and Markdown, and the comments themselves.

use std::ops::AddAssign;

/// Longest line, in columns.
const COLUMNS: usize = 100;

#[derive(Default, Clone, Debug)]
pub struct Prose {
    pub words: u64,
    /// Uses of the relative pronoun for things.
    pub what: u64,
    /// Uses of pronouns for persons.
    pub who: u64,
    /// Lines above the longest length.
    pub long_lines: u64,
}

impl AddAssign for Prose {
    fn add_assign(&mut self, other: Self) {
        self.words += other.words;
        self.what += other.what;
        self.who += other.who;
        self.long_lines += other.long_lines;
    }
}

impl Prose {
    /// Words of the comments and lines of the whole text of a source file.
    pub fn of_source(text: &str) -> Self {
        let mut prose = Self::default();
        comments(text).iter().for_each(|comment| prose.count_words(comment));
        prose.long_lines = text.lines().filter(|line| is_long(line)).count() as u64;
        prose
    }

    /// Words and lines of a Markdown page outside of tables and code.
    pub fn of_page(text: &str) -> Self {
        let mut prose = Self::default();
        for (_, line) in prose_lines(text) {
            prose.count_words(line);
            prose.long_lines += u64::from(is_long(line));
        }
        prose
    }

    /// Uses per 10,000 words.
    pub fn rate(&self, uses: u64) -> f64 {
        uses as f64 * 10_000.0 / self.words.max(1) as f64
    }

    fn count_words(&mut self, text: &str) {
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        for word in words.filter(|word| word.starts_with(char::is_alphabetic)) {
            self.words += 1;
            match word.to_ascii_lowercase().as_str() {
                "what" => self.what += 1,
                "who" | "whoever" | "nobody" | "somebody" => self.who += 1,
                _ => {}
            }
        }
    }
}

fn is_long(line: &str) -> bool {
    line.chars().count() > COLUMNS
}

/// Lines of a Markdown page outside of tables and code.
fn prose_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    outside_code(text).filter(|(_, line)| !line.trim_start().starts_with('|'))
}

/// Lines of a Markdown page outside of code fences, with their numbers from 1.
pub fn outside_code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// The comments of a source file, in order. Text like a comment inside literals is skipped.
pub fn comments(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let len = match rest {
            [b'/', b'/', ..] => {
                let len = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
                found.push(&text[at..at + len]);
                len
            }
            [b'/', b'*', ..] => {
                let len = block_comment(rest);
                found.push(&text[at..at + len]);
                len
            }
            [b'"', ..] => quoted(rest),
            [b'r', b'"' | b'#', ..] if !is_name(bytes, at) => raw_string(rest),
            [b'b' | b'c', b'r', b'"' | b'#', ..] if !is_name(bytes, at) => {
                1 + raw_string(&rest[1..])
            }
            [b'\'', ..] => character(rest),
            _ => 1,
        };
        at += len;
    }
    found
}

/// Whether the byte before `at` belongs to a name.
fn is_name(bytes: &[u8], at: usize) -> bool {
    at.checked_sub(1)
        .is_some_and(|before| bytes[before].is_ascii_alphanumeric() || bytes[before] == b'_')
}

/// The length of a block comment; they nest.
fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(rest.len())
}

/// The length of a literal in quotes of the kind of its first byte.
fn quoted(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != rest[0] {
        at += 1 + usize::from(rest[at] == b'\\');
    }
    (at + 1).min(rest.len())
}

/// The length of `r"…"` or `r#"…"#`; of the `r` alone for a raw identifier.
fn raw_string(rest: &[u8]) -> usize {
    let hashes = rest[1..].iter().take_while(|b| **b == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return 1;
    }
    let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    let body = &rest[2 + hashes..];
    let len = body.windows(close.len()).position(|window| window == close);
    2 + hashes + len.map_or(body.len(), |len| len + close.len())
}

/// The length of a character literal, or of the quote alone of a lifetime.
fn character(rest: &[u8]) -> usize {
    let Some(second) = rest.get(1) else { return 1 };
    if *second == b'\\' {
        return quoted(rest);
    }
    let width = match *second {
        0..0x80 => 1,
        0x80..0xE0 => 2,
        0xE0..0xF0 => 3,
        _ => 4,
    };
    if rest.get(1 + width) == Some(&b'\'') { width + 2 } else { 1 }
}
