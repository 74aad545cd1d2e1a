//! Lines of a manifest: their keywords.

use super::vis;
use crate::digest::Digest;
use crate::error::{Error, Result};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use extant_format::{Printable, Timestamp};
use std::str::FromStr;

/// Type of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    File,
    Directory,
    Symlink,
    CharDevice,
    BlockDevice,
    Fifo,
    Socket,
}

/// Facts that lines have, or take from `/set`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Defaults {
    pub kind: Option<Kind>,
    pub mode: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mtime: Option<Timestamp>,
    pub links: Option<u64>,
    /// A user or a group is named.
    pub user: bool,
    pub group: bool,
}

/// All facts of an entry.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub common: Defaults,
    /// Path of the content on the host.
    pub content: Option<Vec<u8>>,
    /// Target of a symlink.
    pub target: Option<Vec<u8>>,
    pub device: Option<(u32, u32)>,
    pub size: Option<u64>,
    /// Digest of the content.
    pub digest: Option<Digest>,
    /// Device and inode number where the manifest was made, as they are written.
    pub inode: Option<Vec<u8>>,
    pub inode_device: Vec<u8>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether a missing content is no error.
    pub optional: bool,
}

/// Keywords without an effect on an image: other digests of the content, and flags of BSD systems.
const WITHOUT_EFFECT: [&[u8]; 18] = [
    b"cksum",
    b"md5",
    b"md5digest",
    b"rmd160",
    b"rmd160digest",
    b"ripemd160digest",
    b"sha1",
    b"sha1digest",
    b"sha384",
    b"sha384digest",
    b"sha512",
    b"sha512digest",
    b"sha512256",
    b"sha512256digest",
    b"flags",
    b"tags",
    b"ignore",
    b"nochange",
];

impl Defaults {
    /// Takes a keyword of `/set`; returns false for one that cannot hold for several entries.
    pub(super) fn set(&mut self, word: &[u8]) -> Result<bool> {
        let (key, value) = split(word);
        match key {
            b"type" => self.kind = Some(kind(value)?),
            b"mode" => self.mode = Some(mode(value)?),
            b"uid" => self.uid = Some(number(word, value)?),
            b"gid" => self.gid = Some(number(word, value)?),
            b"uname" => self.user = true,
            b"gname" => self.group = true,
            b"time" | b"tar_time" => self.mtime = Some(time(word, value)?),
            b"nlink" => self.links = Some(number(word, value)?),
            key if WITHOUT_EFFECT.contains(&key) => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Takes a keyword of `/unset`.
    pub(super) fn unset(&mut self, key: &[u8]) -> Result<()> {
        match key {
            b"all" => *self = Defaults::default(),
            b"type" => self.kind = None,
            b"mode" => self.mode = None,
            b"uid" => self.uid = None,
            b"gid" => self.gid = None,
            b"uname" => self.user = false,
            b"gname" => self.group = false,
            b"time" | b"tar_time" => self.mtime = None,
            b"nlink" => self.links = None,
            key if WITHOUT_EFFECT.contains(&key) => {}
            _ => return Err(bad(key, "is no keyword of /set")),
        }
        Ok(())
    }
}

impl Facts {
    /// Takes a keyword of an entry.
    pub(super) fn add(&mut self, word: &[u8]) -> Result<()> {
        if self.common.set(word)? {
            return Ok(());
        }
        let (key, value) = split(word);
        let decoded = || vis::decode(value).ok_or_else(|| bad(word, "has an unknown escape"));
        match key {
            b"contents" | b"content" => self.content = Some(decoded()?),
            b"link" => self.target = Some(decoded()?),
            b"device" => self.device = Some(device(word, value)?),
            b"size" => self.size = Some(number(word, value)?),
            b"sha256" | b"sha256digest" => self.digest = Some(digest(word, value)?),
            b"inode" => self.inode = Some(value.to_vec()),
            b"resdevice" => self.inode_device = value.to_vec(),
            b"optional" => self.optional = true,
            _ => match key.strip_prefix(b"xattr.").or_else(|| key.strip_prefix(b"xattrs.")) {
                Some(name) => self.xattrs.push(xattr(word, name, value)?),
                None => return Err(bad(key, "is no known keyword")),
            },
        }
        Ok(())
    }
}

/// Returns an error about a word.
pub(super) fn bad(word: &[u8], why: &str) -> Error {
    Error::new(format_args!("`{}` {why}", Printable(word)))
}

fn split(word: &[u8]) -> (&[u8], &[u8]) {
    match word.iter().position(|byte| *byte == b'=') {
        Some(at) => (&word[..at], &word[at + 1..]),
        None => (word, b""),
    }
}

fn number<N: FromStr>(word: &[u8], value: &[u8]) -> Result<N> {
    let digits = value.iter().all(u8::is_ascii_digit).then_some(value);
    let text = digits.and_then(|digits| std::str::from_utf8(digits).ok());
    text.and_then(|text| text.parse().ok()).ok_or_else(|| bad(word, "has no number in range"))
}

fn digest(word: &[u8], value: &[u8]) -> Result<Digest> {
    let digits = std::str::from_utf8(value).map(str::to_ascii_lowercase).unwrap_or_default();
    Digest::from_hex(&digits).ok_or_else(|| bad(word, "is not 64 hexadecimal digits"))
}

fn kind(value: &[u8]) -> Result<Kind> {
    Ok(match value {
        b"file" => Kind::File,
        b"dir" => Kind::Directory,
        b"link" => Kind::Symlink,
        b"char" => Kind::CharDevice,
        b"block" => Kind::BlockDevice,
        b"fifo" => Kind::Fifo,
        b"socket" => Kind::Socket,
        other => return Err(bad(other, "is no type of a file")),
    })
}

fn mode(value: &[u8]) -> Result<u16> {
    let text = std::str::from_utf8(value).ok().filter(|text| !text.starts_with('+'));
    let mode = text.and_then(|text| u16::from_str_radix(text, 8).ok());
    mode.filter(|mode| *mode <= 0o7777).ok_or_else(|| bad(value, "is no octal mode"))
}

/// Parses seconds since 1970, with a number of nanoseconds behind a point.
fn time(word: &[u8], value: &[u8]) -> Result<Timestamp> {
    let (negative, value) = match value.strip_prefix(b"-") {
        Some(value) => (true, value),
        None => (false, value),
    };
    let at = value.iter().position(|byte| *byte == b'.');
    let (seconds, nanoseconds) = match at {
        Some(at) => (&value[..at], number(word, &value[at + 1..])?),
        None => (value, 0),
    };
    let seconds: i64 = number(word, seconds)?;
    if nanoseconds > 999_999_999 {
        return Err(bad(word, "has too many nanoseconds"));
    }
    Ok(Timestamp::new(if negative { -seconds } else { seconds }, nanoseconds))
}

/// Parses `FORMAT,MAJOR,MINOR`.
fn device(word: &[u8], value: &[u8]) -> Result<(u32, u32)> {
    let parts: Vec<&[u8]> = value.split(|byte| *byte == b',').collect();
    match parts[..] {
        [_, major, minor] => Ok((number(word, major)?, number(word, minor)?)),
        _ => Err(bad(word, "must be device=native,MAJOR,MINOR")),
    }
}

fn xattr(word: &[u8], name: &[u8], value: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
    let name = vis::decode(name).ok_or_else(|| bad(word, "has an unknown escape"))?;
    let value = BASE64_STANDARD.decode(value).map_err(|_| bad(word, "has no value in base64"))?;
    Ok((name, value))
}
