//! The program under the name e2image(8): images of the metadata of a file system.
//!
//! | option | here |
//! | --- | --- |
//! | `-r`, `-Q` | `extant debug IMAGE metadata`, raw or in the format qcow2 |
//! | `-s` | `--scramble` |
//! | `-f`, `-p`, `-c`, `-b`, `-B` | accepted without effect |
//! | `-V` | the version |
//! | neither `-r` nor `-Q`, `-a`, `-I`, `-o`, `-O` | refused |
//!
//! As by e2image, a file that is there is replaced.

use crate::arguments::{Argument, arguments};
use std::ffi::OsString;
use std::path::PathBuf;

/// Letters with a value.
const WITH_VALUE: &[u8] = b"bBoO";

/// Letters without a meaning here: a mounted source, progress, comparison with
/// an older image, and the place of the superblock, which is found.
const WITHOUT_EFFECT: &[u8] = b"fpcbB";

/// Returns the call of `extant` for a call of e2image; `args` has the program's name first.
///
/// # Errors
/// Wrong usage, and options that are not available, with the remedy.
pub fn command(args: &[OsString]) -> Result<Vec<OsString>, String> {
    let given = arguments(args, WITH_VALUE)?;
    let has =
        |wanted| given.iter().any(|one| matches!(one, Argument::Letter(l, _) if *l == wanted));
    if has(b'V') {
        return Ok(["extant", "--version"].map(OsString::from).into());
    }
    let mut options: Vec<&str> = vec!["--force"];
    let mut places = Vec::new();
    for argument in &given {
        match argument {
            Argument::Place(place) => places.push(place.clone()),
            Argument::Letter(b'r', _) => {}
            Argument::Letter(b'Q', _) => options.push("--qcow2"),
            Argument::Letter(b's', _) => options.push("--scramble"),
            Argument::Letter(letter, _) if WITHOUT_EFFECT.contains(letter) => {}
            Argument::Letter(b'a', _) => {
                return Err("-a: `extant clone` copies a file system with its content".into());
            }
            Argument::Letter(letter, _) => {
                return Err(format!(
                    "-{} is not available: -r and -Q make images of metadata",
                    *letter as char
                ));
            }
        }
    }
    if has(b'r') == has(b'Q') {
        return Err("e2image needs -r or -Q: other forms are not made".into());
    }
    let [image, out] = <[PathBuf; 2]>::try_from(places)
        .map_err(|_| "e2image takes a file system and a new file")?;
    let own = ["extant", "--quiet", "debug", "--in-use"].map(OsString::from).into_iter();
    let command = ["metadata"].iter().chain(&options).chain(&["--"]).map(OsString::from);
    Ok(own.chain([image.into()]).chain(command).chain([out.into()]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<String, String> {
        let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
        command(&words).map(|words| words.join(" ".as_ref()).into_string().expect("text"))
    }

    #[test]
    fn calls_of_e2image_are_calls_of_metadata() {
        let raw = "extant --quiet debug --in-use a.img metadata --force -- out";
        assert_eq!(of("e2image -r a.img out"), Ok(raw.into()));
        let packed =
            "extant --quiet debug --in-use a.img metadata --force --qcow2 --scramble -- out";
        assert_eq!(of("e2image -fQs -b 32768 a.img out"), Ok(packed.into()));
        assert_eq!(of("e2image -V"), Ok("extant --version".into()));
        for bad in ["e2image a.img out", "e2image -rQ a b", "e2image -r a", "e2image -ra a b"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
