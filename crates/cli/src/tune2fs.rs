//! The program under the names tune2fs(8) and resize2fs(8), whose options are those of `extant
//! tune` and `extant resize`, or translated here.

use crate::arguments::{Argument, arguments};
use crate::owner_names::OwnerNames;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Letters of tune2fs with a value, and the options that they stand for.
const TUNE: [(u8, &str); 19] = [
    (b'c', "max-mount-count"),
    (b'C', "mount-count"),
    (b'e', "errors"),
    (b'i', "check-interval"),
    (b'L', "label"),
    (b'm', "reserved-percent"),
    (b'M', "last-mounted"),
    (b'o', "default-mount-options"),
    (b'O', "features"),
    (b'Q', "quota"),
    (b'r', "reserved-blocks"),
    (b'T', "last-checked"),
    (b'u', "reserved-uid"),
    (b'g', "reserved-gid"),
    (b'U', "uuid"),
    (b'J', ""),
    (b'E', ""),
    (b'I', "inode-size"),
    (b'z', "undo"),
];

/// Letters of resize2fs with a value.
const RESIZE_WITH_VALUE: &[u8] = b"dSz";

/// Returns the call of `extant` for a call of tune2fs; `args` has the program's name first.
///
/// # Errors
/// Wrong usage, and options that are not available, with the remedy.
pub fn tune(args: &[OsString], owners: &OwnerNames) -> Result<Vec<OsString>, String> {
    if has_words(args) {
        return Ok(own(&["tune"], args));
    }
    let with_value: Vec<u8> = TUNE.iter().map(|(letter, _)| *letter).collect();
    let given = arguments(args, &with_value)?;
    if given.iter().any(|given| matches!(given, Argument::Letter(b'V', _))) {
        return Ok(["extant", "--version"].map(OsString::from).into());
    }
    let clears = given.iter().any(|given| match given {
        Argument::Letter(b'E', Some(list)) => {
            list.to_string_lossy().split(',').any(|word| word == "clear_mmp")
        }
        _ => false,
    });
    let mut words = ["extant", "tune"].map(OsString::from).to_vec();
    let mut places = Vec::new();
    for argument in given {
        match argument {
            Argument::Place(place) => places.push(place),
            Argument::Letter(letter, value) => {
                words.extend(tune_option(letter, value, clears, owners)?);
            }
        }
    }
    match <[PathBuf; 1]>::try_from(places) {
        Ok([image]) => words.extend(["--".into(), image.into()]),
        Err(_) => return Err("tune2fs takes one image".into()),
    }
    Ok(words)
}

/// Returns whether a call has options in words, which are those of `extant` alone.
fn has_words(args: &[OsString]) -> bool {
    args.iter().any(|arg| arg.len() > 2 && arg.as_bytes().starts_with(b"--"))
}

/// Returns the call of `extant` with the same arguments.
fn own(command: &[&str], args: &[OsString]) -> Vec<OsString> {
    let words = ["extant"].iter().chain(command).map(OsString::from);
    words.chain(args.iter().skip(1).cloned()).collect()
}

fn tune_option(
    letter: u8,
    value: Option<OsString>,
    clears: bool,
    owners: &OwnerNames,
) -> Result<Vec<OsString>, String> {
    let name = TUNE.iter().find(|(known, _)| *known == letter).map_or("", |(_, name)| *name);
    Ok(match (letter, value) {
        // Other uses of it only ask for less care.
        (b'f', _) if clears => vec!["--force".into()],
        (b'f', _) => Vec::new(),
        (b'j' | b'l', _) => vec![short(letter)],
        (b'u', Some(value)) => vec![assigned(name, &number(&value, |name| owners.user_id(name)))],
        (b'g', Some(value)) => vec![assigned(name, &number(&value, |name| owners.group_id(name)))],
        (b'J' | b'E', Some(value)) => vec![short(letter), value],
        (_, Some(value)) => vec![assigned(name, &value)],
        (letter, None) => return Err(format!("unknown option -{}", letter as char)),
    })
}

fn short(letter: u8) -> OsString {
    format!("-{}", letter as char).into()
}

/// Returns an option with its value, which may begin with a dash.
fn assigned(name: &str, value: &OsStr) -> OsString {
    let mut word = OsString::from(format!("--{name}="));
    word.push(value);
    word
}

/// Returns the number of an owner that may be given by name.
fn number(value: &OsStr, find: impl Fn(&str) -> Option<u32>) -> OsString {
    let found = value.to_str().and_then(find);
    found.map_or_else(|| value.to_owned(), |id| id.to_string().into())
}

/// Returns the call of `extant` for a call of resize2fs; `args` has the program's name first.
///
/// # Errors
/// As [`tune`].
pub fn resize(args: &[OsString]) -> Result<Vec<OsString>, String> {
    if has_words(args) {
        return Ok(own(&["resize", "--size-in-blocks"], args));
    }
    let mut words = ["extant", "resize", "--size-in-blocks"].map(OsString::from).to_vec();
    let (mut places, mut width, mut undo) = (Vec::new(), None, None);
    for argument in arguments(args, RESIZE_WITH_VALUE)? {
        match argument {
            Argument::Place(place) => places.push(place.into()),
            Argument::Letter(letter @ (b'M' | b'P'), _) => words.push(short(letter)),
            // Debugging, no care, a flushed cache, progress, and the place of new bitmaps.
            Argument::Letter(b'd' | b'f' | b'F' | b'p' | b'S', _) => {}
            Argument::Letter(b'z', Some(file)) => undo = Some(assigned("undo", &file)),
            Argument::Letter(b'b', _) => width = Some("--features=64bit"),
            Argument::Letter(b's', _) => width = Some("--features=^64bit"),
            Argument::Letter(letter, _) => {
                return Err(format!("unknown option -{}", letter as char));
            }
        }
    }
    if let Some(feature) = width {
        if places.len() > 1 || words.len() > 3 {
            return Err("-b and -s change the length of descriptors, and no size".into());
        }
        words = ["extant", "tune", feature].map(OsString::from).to_vec();
    }
    words.extend(undo);
    words.push("--".into());
    words.extend::<Vec<OsString>>(places);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    fn text(call: Result<Vec<OsString>, String>) -> Result<String, String> {
        call.map(|words| words.join(OsStr::new(" ")).into_string().unwrap())
    }

    #[test]
    fn calls_of_tune2fs_are_calls_of_tune() {
        let of = |call: &str| text(tune(&words(call), &OwnerNames::default()));
        assert_eq!(of("tune2fs -l a.img"), Ok("extant tune -l -- a.img".into()));
        assert_eq!(
            of("tune2fs a.img -f -L -x -c-1 -u 7 -T now -M /x -jJ size=4"),
            Ok("extant tune --label=-x --max-mount-count=-1 --reserved-uid=7 --last-checked=now \
                --last-mounted=/x -j -J size=4 -- a.img"
                .into())
        );
        assert_eq!(
            of("tune2fs -f -E clear_mmp a.img"),
            Ok("extant tune --force -E clear_mmp -- a.img".into())
        );
        assert_eq!(of("tune2fs -z u -j a.img"), Ok("extant tune --undo=u -j -- a.img".into()));
        assert_eq!(of("tune2fs -I 256 a.img"), Ok("extant tune --inode-size=256 -- a.img".into()));
        for bad in ["tune2fs -l", "tune2fs -y a.img"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn calls_of_resize2fs_are_calls_of_resize() {
        let of = |call: &str| text(resize(&words(call)));
        assert_eq!(
            of("resize2fs -fpM -d 14 -S 4 a.img"),
            Ok("extant resize --size-in-blocks -M -- a.img".into())
        );
        assert_eq!(
            of("resize2fs a.img 8192s"),
            Ok("extant resize --size-in-blocks -- a.img 8192s".into())
        );
        assert_eq!(
            of("resize2fs -z u a.img 8M"),
            Ok("extant resize --size-in-blocks --undo=u -- a.img 8M".into())
        );
        assert_eq!(
            of("resize2fs -b -z u a.img"),
            Ok("extant tune --features=64bit --undo=u -- a.img".into())
        );
        assert_eq!(of("resize2fs -b a.img"), Ok("extant tune --features=64bit -- a.img".into()));
        for bad in ["resize2fs -b a.img 1G", "resize2fs -s -M a.img", "resize2fs -q a.img"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
