//! The requests by their names.

use super::{files, listing, log, path, stat, text, tree, volume};
use crate::commands::debug::{number, slot};
use crate::owner_names::OwnerNames;
use crate::tell::complain;
use crate::text::shown;
use extant_check::debug::{InodeSlot, Inspector};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A request that failed: its message.
pub type Answer = Result<(), Refusal>;

/// The reason why a request has no answer.
pub enum Refusal {
    /// It is told, and the next request follows.
    Message(String),
    /// Output cannot be written, which ends the program.
    Output(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Refusal::Output(error)
    }
}

impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Refusal::Message(message)
    }
}

/// A request with its words.
pub struct Request<'r> {
    pub inspector: &'r Inspector,
    pub image: &'r Path,
    /// Names of the host, for reserved blocks.
    pub owners: &'r OwnerNames,
    /// The name by which it was called.
    pub name: String,
    pub words: &'r [OsString],
    pub out: &'r mut dyn Write,
}

impl<'r> Request<'r> {
    /// Returns the error of wrong usage.
    pub fn usage(&self, arguments: &str) -> Refusal {
        Refusal::Message(format!("{}: Usage: {} {arguments}", self.name, self.name))
    }

    /// Returns the inode that a word names.
    pub fn slot(&self, word: &OsStr) -> Result<InodeSlot, Refusal> {
        slot(self.inspector, &named(word)).map_err(|_| not_found(word))
    }

    /// Returns the number of the inode that a word names.
    pub fn ino(&self, word: &OsStr) -> Result<u32, Refusal> {
        let ino = number(self.inspector, &named(word)).map_err(|_| not_found(word))?;
        self.inspector.slot_place(ino).map_err(|_| not_found(word))?;
        Ok(ino)
    }

    /// Returns a word as a number, also in hexadecimal or octal digits as in C.
    pub fn number(&self, kind: &str, word: &OsStr) -> Result<u64, Refusal> {
        let text = String::from_utf8_lossy(word.as_bytes()).into_owned();
        let parsed = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(&text, 8),
            None => text.parse(),
        };
        let bad = |_| Refusal::Message(format!("{}: Bad {kind} - {text}", self.name));
        parsed.map_err(bad)
    }

    /// Returns the letters of the options at the beginning, and the words behind them.
    pub fn options(&self, known: &str) -> Result<(String, &'r [OsString]), Refusal> {
        let is_option = |word: &&OsString| word.len() > 1 && word.as_bytes()[0] == b'-';
        let count = self.words.iter().take_while(is_option).count();
        let (options, rest) = self.words.split_at(count);
        let letters: String = options.iter().map(|word| text(word)[1..].to_owned()).collect();
        match letters.chars().find(|letter| !known.contains(*letter)) {
            Some(letter) => {
                Err(Refusal::Message(format!("{}: invalid option -- '{letter}'", self.name)))
            }
            None => Ok((letters, rest)),
        }
    }
}

/// Returns a word as a path; one of digits alone is the name of a file here.
fn named(word: &OsStr) -> OsString {
    let is_number = !word.is_empty() && word.as_bytes().iter().all(u8::is_ascii_digit);
    let mut path = OsString::from(if is_number { "/" } else { "" });
    path.push(word);
    path
}

fn not_found(word: &OsStr) -> Refusal {
    Refusal::Message(format!("{}: File not found by ext2_lookup ", shown(word.as_bytes())))
}

/// Returns the file that a request makes.
pub fn output(words: &[OsString]) -> Option<&Path> {
    match (words.first()?.to_str()?, words.last()) {
        ("dump" | "dump_inode", Some(dest)) if words.len() > 2 => Some(path(dest)),
        _ => None,
    }
}

/// Answers a request. Returns whether further ones are to be answered.
pub fn answer(
    (inspector, owners): (&Inspector, &OwnerNames),
    image: &Path,
    words: &[OsString],
    out: &mut dyn Write,
) -> io::Result<bool> {
    let Some((first, words)) = words.split_first() else { return Ok(true) };
    let name = text(first);
    let mut request = Request { inspector, image, owners, name: name.clone(), words, out };
    let answer = match name.as_str() {
        "stat" | "show_inode_info" => stat::stat(&mut request),
        "ls" | "list_directory" => listing::ls(&mut request),
        "dirsearch" => listing::dirsearch(&mut request),
        "cat" => files::cat(&mut request),
        "dump" | "dump_inode" => files::dump(&mut request),
        // It was answered before the sandbox.
        "rdump" => Ok(()),
        "blocks" => files::blocks(&mut request),
        "bmap" => files::bmap(&mut request),
        "icheck" => listing::icheck(&mut request),
        "ncheck" => listing::ncheck(&mut request),
        "stats" | "show_super_stats" => volume::stats(&mut request),
        "logdump" => log::logdump(&mut request),
        "htree_dump" | "htree" => tree::htree(&mut request),
        "ex" | "extents" | "dump_extents" => tree::extents(&mut request),
        "lsdel" | "list_deleted_inodes" => listing::lsdel(&mut request),
        "imap" => volume::imap(&mut request),
        "testi" => volume::testi(&mut request),
        "testb" => volume::testb(&mut request),
        "freefrag" | "e2freefrag" => volume::freefrag(&mut request),
        "quit" | "q" => return Ok(false),
        "close" | "close_filesys" | "params" | "show_debugfs_params" => Ok(()),
        _ => Err(Refusal::Message(format!("debugfs: Command not found {name}"))),
    };
    match answer {
        Ok(()) => Ok(true),
        Err(Refusal::Message(message)) => {
            request.out.flush()?;
            complain(message);
            Ok(true)
        }
        Err(Refusal::Output(error)) => Err(error),
    }
}
