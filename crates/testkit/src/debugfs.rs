//! `debugfs`: commands on an image, and the parsed output of `stat`.

use crate::tool::{arg, run};
use std::path::Path;

/// Runs one read-only debugfs command and returns its standard output. Bitmaps are not read, so
/// images before their recovery work, whose bitmaps and descriptors may be of different times;
/// commands that ask for them fail.
///
/// # Panics
/// If debugfs cannot open the image or prints an error.
#[track_caller]
pub fn read(image: &Path, command: &str) -> String {
    String::from_utf8_lossy(&read_bytes(image, command)).into_owned()
}

/// As [`read`], with the output as bytes: for `cat`.
#[track_caller]
pub fn read_bytes(image: &Path, command: &str) -> Vec<u8> {
    debugfs(image, &["-c", "-R", command])
}

/// Runs one command with the image open for writing.
#[track_caller]
pub fn write(image: &Path, command: &str) -> String {
    String::from_utf8_lossy(&debugfs(image, &["-w", "-R", command])).into_owned()
}

#[track_caller]
fn debugfs(image: &Path, args: &[&str]) -> Vec<u8> {
    let mut all: Vec<_> = args.iter().map(Into::into).collect();
    all.push(arg(image));
    let printed = run("debugfs", &all);
    let errors: Vec<&str> = std::str::from_utf8(&printed.stderr)
        .unwrap_or("?")
        .lines()
        .filter(|l| !l.starts_with("debugfs 1."))
        .collect();
    assert!(printed.code == 0 && errors.is_empty(), "{printed}");
    printed.stdout
}

/// Output of `debugfs stat` for an inode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stat {
    /// Inode number.
    pub ino: u32,
    /// `regular`, `directory`, `symlink`, `FIFO`, ...
    pub kind: String,
    /// Permission bits.
    pub mode: u32,
    /// Inode flags.
    pub flags: u32,
    /// Generation.
    pub generation: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Links.
    pub links: u32,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Times in seconds with the raw extra word: atime, ctime, mtime, crtime (0 where the inode has
    /// none).
    pub times: [(u32, u32); 4],
    /// The mapping after `EXTENTS:` or `BLOCKS:`, in one line, or empty.
    pub mapping: String,
    /// The whole output.
    pub text: String,
}

/// Parses `debugfs stat FILE`, where `file` is a path or `<inode>`.
#[track_caller]
pub fn stat(image: &Path, file: &str) -> Stat {
    let file = if file.starts_with('<') { file.to_owned() } else { format!("\"{file}\"") };
    parse_stat(&read(image, &format!("stat {file}")))
}

fn parse_stat(text: &str) -> Stat {
    let number = |key: &str| value(text, key).and_then(|v| v.parse().ok()).unwrap_or(0u64);
    Stat {
        ino: number("Inode:") as u32,
        kind: text
            .split_once("Type: ")
            .and_then(|(_, r)| r.split_once("  "))
            .map_or("", |(k, _)| k)
            .trim()
            .to_owned(),
        mode: value(text, "Mode:").and_then(|v| u32::from_str_radix(v, 8).ok()).unwrap_or(0),
        flags: hex(value(text, "Flags:")),
        generation: number("Generation:") as u32,
        uid: number("User:") as u32,
        gid: number("Group:") as u32,
        size: text
            .rsplit_once(" Size: ")
            .filter(|_| text.contains("User:"))
            .map_or(0, |_| size(text)),
        links: number("Links:") as u32,
        blocks: number("Blockcount:"),
        times: ["atime:", "ctime:", "mtime:", "crtime:"].map(|key| time(text, key)),
        mapping: mapping(text),
        text: text.to_owned(),
    }
}

/// Returns the word after the first `key` that starts a word.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.match_indices(key)
        .find(|(at, _)| text[..*at].chars().next_back().is_none_or(char::is_whitespace))
        .and_then(|(at, _)| text[at + key.len()..].split_whitespace().next())
}

/// Returns the size, from the line of the owner; another `Size:` belongs to the fragment.
fn size(text: &str) -> u64 {
    let line = text.lines().find(|line| line.contains("User:")).unwrap_or("");
    value(line, "Size:").and_then(|v| v.parse().ok()).unwrap_or(0)
}

fn hex(word: Option<&str>) -> u32 {
    word.and_then(|w| u32::from_str_radix(w.trim_start_matches("0x"), 16).ok()).unwrap_or(0)
}

fn time(text: &str, key: &str) -> (u32, u32) {
    let word = value(text, key).unwrap_or("0");
    let (seconds, extra) = word.split_once(':').unwrap_or((word, "0"));
    (hex(Some(seconds)), hex(Some(extra)))
}

fn mapping(text: &str) -> String {
    let body = text
        .split_once("EXTENTS:")
        .or_else(|| text.split_once("BLOCKS:"))
        .map_or("", |(_, rest)| rest);
    body.lines()
        .take_while(|line| !line.starts_with("TOTAL"))
        .collect::<Vec<_>>()
        .join(" ")
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Inode: 12   Type: regular    Mode:  0640   Flags: 0x80000\n\
        Generation: 77    Version: 0x00000000:00000000\n\
        User:     5   Group:     6   Project:     0   Size: 32768\n\
        File ACL: 0\nLinks: 1   Blockcount: 64\nFragment:  Address: 0    Number: 0    Size: 0\n \
        ctime: 0x6b01292f:00000004 -- Sat Nov 21 05:16:31 2026\n \
        atime: 0x6b01292e:00000000 -- Sat Nov 21 05:16:31 2026\n \
        mtime: 0x6b01292d:00000000 -- Sat Nov 21 05:16:31 2026\n\
        crtime: 0x6b01292c:00000000 -- Sat Nov 21 05:16:31 2026\n\
        Size of extra inode fields: 32\nInode checksum: 0x01888e94\nEXTENTS:\n(0-31):4385-4416\n";

    #[test]
    fn stat_is_parsed() {
        let stat = parse_stat(TEXT);
        assert_eq!(
            (stat.ino, stat.kind.as_str(), stat.mode, stat.flags),
            (12, "regular", 0o640, 0x80000)
        );
        assert_eq!((stat.uid, stat.gid, stat.size, stat.links, stat.blocks), (5, 6, 32768, 1, 64));
        assert_eq!((stat.generation, stat.mapping.as_str()), (77, "(0-31):4385-4416"));
        assert_eq!(
            stat.times,
            [(0x6b01_292e, 0), (0x6b01_292f, 4), (0x6b01_292d, 0), (0x6b01_292c, 0)]
        );
    }
}
