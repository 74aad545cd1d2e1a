//! Scripts of edits: one command a line, in words as a shell quotes them.
//!
//! For example, `put 'my file' /srv/"a b"` has the words `put`, `my file` and `/srv/a b`. Names are
//! bytes. Nothing is expanded: `$`, `*`, `~` and `;` stand for themselves.

use crate::failure::{At, Failure, Result as Done};
use crate::text::shown;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// A command of a script.
#[derive(Debug, PartialEq, Eq)]
pub struct ScriptLine {
    /// The line on which the command begins, from 1 on.
    pub number: usize,
    /// Its words, at least one.
    pub words: Vec<OsString>,
}

/// A line that cannot be read as words.
#[derive(Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Its number, from 1 on.
    pub number: usize,
    /// Cause and remedy.
    pub why: &'static str,
}

const UNMATCHED: &str = "a quote has no end; a \\ before it makes it a part of the name";
const NUL: &str = "a byte 0 is in no name and no value; is this a script?";
const LAST: &str = "a \\ is the end of the script; a second one makes it a part of the name";

/// Characters of a line in a message.
const MAX_SHOWN: usize = 200;

/// Reads a script of at most `most` MiB; `-` is standard input. Returns its name for messages, and
/// the text.
pub fn read_script(path: &Path, most: u64) -> Done<(String, Vec<u8>)> {
    let stdin = path == OsStr::new("-");
    let bytes = path.as_os_str().as_bytes();
    let name = if stdin { "standard input".to_owned() } else { shown(bytes) };
    let (limit, mut text) = (most << 20, Vec::new());
    let read = if stdin {
        std::io::stdin().lock().take(limit + 1).read_to_end(&mut text)
    } else {
        File::open(path).at_path(bytes)?.take(limit + 1).read_to_end(&mut text)
    };
    read.at(&name)?;
    if text.len() as u64 > limit {
        return Err(Failure::usage(format_args!("{name}: has more than {most} MiB; divide it")));
    }
    Ok((name, text))
}

/// Returns the words of a line for messages. Names may be long, and put none of their own lines
/// before the cause.
pub fn shown_words(words: &[OsString]) -> String {
    let words: Vec<String> = words.iter().map(|word| shown(word.as_bytes())).collect();
    words.join(" ").chars().take(MAX_SHOWN).collect()
}

/// Returns the cause of an error of usage on one line.
pub fn cause_of(error: &clap::Error) -> String {
    let message = error.to_string();
    let cause = message.split("\n\n").next().unwrap_or_default();
    let words = cause.trim_start_matches("error: ").split_whitespace();
    words.collect::<Vec<_>>().join(" ")
}

/// Splits a script into its commands.
pub fn parse_script(text: &[u8]) -> Result<Vec<ScriptLine>, BadLine> {
    let mut reader = Reader { text, at: 0, line: 1 };
    let mut lines = Vec::new();
    while reader.at < text.len() {
        let number = reader.line;
        let words = reader.command()?;
        if !words.is_empty() {
            lines.push(ScriptLine { number, words });
        }
    }
    Ok(lines)
}

struct Reader<'t> {
    text: &'t [u8],
    at: usize,
    /// The number of the current line.
    line: usize,
}

impl Reader<'_> {
    /// Reads the words up to the end of a line that is not within quotes.
    fn command(&mut self) -> Result<Vec<OsString>, BadLine> {
        let (mut words, mut word) = (Vec::new(), None::<Vec<u8>>);
        while let Some(byte) = self.next()? {
            match byte {
                b'\n' => break,
                b'\r' if self.text.get(self.at) == Some(&b'\n') => {}
                b' ' | b'\t' => words.extend(word.take()),
                b'#' if word.is_none() => self.skip_comment(),
                b'\'' | b'"' => self.quoted(byte, word.get_or_insert_default())?,
                b'\\' => match self.next()? {
                    Some(b'\n') => {}
                    Some(byte) => word.get_or_insert_default().push(byte),
                    None => return Err(BadLine { number: self.line, why: LAST }),
                },
                byte => word.get_or_insert_default().push(byte),
            }
        }
        words.extend(word);
        Ok(words.into_iter().map(OsString::from_vec).collect())
    }

    fn next(&mut self) -> Result<Option<u8>, BadLine> {
        let Some(byte) = self.text.get(self.at).copied() else { return Ok(None) };
        if byte == 0 {
            return Err(BadLine { number: self.line, why: NUL });
        }
        self.at += 1;
        self.line += usize::from(byte == b'\n');
        Ok(Some(byte))
    }

    fn skip_comment(&mut self) {
        let rest = self.text.get(self.at..).unwrap_or_default();
        self.at += rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    }

    /// Reads up to the closing quote. In double quotes a `\` takes the special meaning from `"`,
    /// `\`, `$` and a backquote, and joins lines.
    fn quoted(&mut self, quote: u8, word: &mut Vec<u8>) -> Result<(), BadLine> {
        let unmatched = BadLine { number: self.line, why: UNMATCHED };
        while let Some(byte) = self.next()? {
            match byte {
                byte if byte == quote => return Ok(()),
                b'\\' if quote == b'"' => match self.next()? {
                    Some(b'\n') => {}
                    Some(byte @ (b'"' | b'\\' | b'$' | b'`')) => word.push(byte),
                    Some(byte) => word.extend([b'\\', byte]),
                    None => break,
                },
                byte => word.push(byte),
            }
        }
        Err(unmatched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    fn words(text: &[u8]) -> Vec<(usize, Vec<Vec<u8>>)> {
        let lines = parse_script(text).unwrap_or_else(|error| panic!("{error:?}"));
        let bytes = |line: &ScriptLine| line.words.iter().map(|w| w.as_bytes().to_vec()).collect();
        lines.iter().map(|line| (line.number, bytes(line))).collect()
    }

    #[test]
    fn words_are_quoted_as_in_a_shell() {
        for (text, expected) in [
            (&b"put a b"[..], &[&b"put"[..], b"a", b"b"][..]),
            (b"  rm\t'a b'\"c d\"e\\ f # g", &[b"rm", b"a bc de f"]),
            (b"rm a#b '' \"\"", &[b"rm", b"a#b", b"", b""]),
            (b"rm '\\' \"\\\\\\\"\\$\\n\" \\'", &[b"rm", b"\\", b"\\\"$\\n", b"'"]),
            (b"rm 'a\nb' \"c\\\nd\" e\\\nf", &[b"rm", b"a\nb", b"cd", b"ef"]),
            (b"rm \xff$HOME*;~\r\n", &[b"rm", b"\xff$HOME*;~"]),
            (b"rm a\rb", &[b"rm", b"a\rb"]),
        ] {
            let expected = expected.iter().map(|word| word.to_vec()).collect();
            assert_eq!(words(text), [(1, expected)], "{}", text.escape_ascii());
        }
    }

    #[test]
    fn commands_have_the_number_of_their_first_line() {
        let found = words(b"# comment\n\n a 'x\ny'\r\n\nb # 'c\n#\nd");
        let numbers: Vec<usize> = found.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [3, 6, 8]);
        for text in [&b""[..], b"\n\n", b"# only", b" \t\r\n"] {
            assert!(words(text).is_empty());
        }
    }

    #[test]
    fn text_that_is_no_script_is_refused_with_its_line() {
        for (text, number, why) in [
            (&b"a\nb 'c\nd\n"[..], 2, UNMATCHED),
            (b"a \"b\\", 1, UNMATCHED),
            (b"a\n\n\\", 3, LAST),
            (b"a\nb\0", 2, NUL),
        ] {
            assert_eq!(parse_script(text), Err(BadLine { number, why }));
        }
        let mut rng = extant_testkit::rng::Rng::new(1);
        for _ in 0..2000 {
            let text: Vec<u8> =
                (0..rng.below(40)).map(|_| b" '\"\\#\n\ra\xff\0"[rng.below(10) as usize]).collect();
            let _ = parse_script(&text);
        }
    }
}
