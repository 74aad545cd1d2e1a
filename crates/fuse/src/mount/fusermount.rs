//! Mounts of users other than root. The set-uid program `fusermount3` mounts, passes the connection
//! over a socket, and unmounts.

use crate::messages::receive_message;
use crate::options::MountOptions;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAM: &str = "fusermount3";

/// Environment variable with the number of the socket that carries the connection: the program's
/// standard input, which it does not read.
const CHANNEL: (&str, &str) = ("_FUSE_COMMFD", "0");

/// Mounts a connection on `dir` and returns its descriptor.
pub fn mount(dir: &Path, options: &MountOptions, read_only: bool) -> io::Result<OwnedFd> {
    let (own, its) = UnixStream::pair()?;
    let words = words(options, read_only);
    run(
        &[OsStr::new("-o"), &words, OsStr::new("--"), dir.as_os_str()],
        Stdio::from(OwnedFd::from(its)),
    )?;
    // The program has ended: its message has arrived, and no other follows.
    own.set_nonblocking(true)?;
    receive(&own)
}

/// Unmounts the user's mount on `dir`.
pub fn unmount(dir: &Path, lazy: bool) -> io::Result<()> {
    let how = if lazy { "-uz" } else { "-u" };
    run(&[OsStr::new(how), OsStr::new("--"), dir.as_os_str()], Stdio::null())
}

/// Runs the program. Its standard error is the text of the error.
fn run(args: &[&OsStr], stdin: Stdio) -> io::Result<()> {
    let mut command = Command::new(PROGRAM);
    let done =
        command.args(args).env(CHANNEL.0, CHANNEL.1).stdin(stdin).output().map_err(|e| match e
            .kind()
        {
            ErrorKind::NotFound => io::Error::new(
                e.kind(),
                format!("users mount by `{PROGRAM}` (package fuse3), which is not there"),
            ),
            kind => io::Error::new(kind, format!("{PROGRAM}: {e}")),
        })?;
    let told = String::from_utf8_lossy(done.stderr.trim_ascii()).into_owned();
    match done.status.success() {
        true => Ok(()),
        false if told.is_empty() => Err(io::Error::other(format!("{PROGRAM}: {}", done.status))),
        false => Err(io::Error::new(kind_of(&told), told)),
    }
}

/// Returns the kind of error from the text of the program, whose exit code is the same for all
/// failures. Callers must recognize a mount in use.
fn kind_of(told: &str) -> ErrorKind {
    match told {
        busy if busy.ends_with("Device or resource busy") => ErrorKind::ResourceBusy,
        denied if denied.ends_with("Permission denied") || denied.ends_with("not permitted") => {
            ErrorKind::PermissionDenied
        }
        _ => ErrorKind::Other,
    }
}

/// Receives the descriptor of the connection.
fn receive(channel: &UnixStream) -> io::Result<OwnedFd> {
    let (_, connection) = receive_message(channel, &mut [0])?;
    connection.ok_or_else(|| io::Error::other(format!("{PROGRAM} mounted, but gave no connection")))
}

/// Formats the options for the program.
fn words(options: &MountOptions, read_only: bool) -> OsString {
    let mut words = b"fsname=".to_vec();
    words.extend(escaped(options.source.as_bytes()));
    words.extend(b",subtype=");
    words.extend(escaped(options.subtype.as_bytes()));
    let protected = if read_only { "ro" } else { "rw" };
    let flags = options.permissions().into_iter().chain([protected]);
    let flags = flags.chain(options.allow_other.then_some("allow_other"));
    for word in flags.chain(options.kernel.iter().map(String::as_str)) {
        words.push(b',');
        words.extend(escaped(word.as_bytes()));
    }
    OsString::from_vec(words)
}

/// Escapes the commas of a value, since commas separate options.
fn escaped(word: &[u8]) -> Vec<u8> {
    word.iter()
        .flat_map(|byte| {
            let escape = matches!(byte, b'\\' | b',').then_some(b'\\');
            escape.into_iter().chain([*byte])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_keep_their_commas() {
        let options = MountOptions {
            source: "/tmp/a,b\\c.img".into(),
            allow_other: true,
            kernel: vec!["noatime".into()],
            ..MountOptions::default()
        };
        let expected =
            "fsname=/tmp/a\\,b\\\\c.img,subtype=extant,default_permissions,ro,allow_other,noatime";
        assert_eq!(words(&options, true), expected);
    }

    #[test]
    fn a_mount_in_use_is_told_from_others() {
        assert_eq!(
            kind_of("fusermount3: failed to unmount /mnt: Device or resource busy"),
            ErrorKind::ResourceBusy
        );
        assert_eq!(kind_of("fusermount3: entry for /mnt not found in /etc/mtab"), ErrorKind::Other);
    }

    #[test]
    fn a_channel_without_a_descriptor_is_an_error() {
        let (own, its) = UnixStream::pair().unwrap();
        drop(its);
        assert!(receive(&own).unwrap_err().to_string().contains("no connection"));
    }
}
