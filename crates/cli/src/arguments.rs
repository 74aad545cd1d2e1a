//! Arguments whose options are letters, as other programs have them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// An argument of a call that has its options as letters.
#[derive(Debug, PartialEq, Eq)]
pub enum Argument {
    /// A word that is no option.
    Place(PathBuf),
    /// An option and its value, if options of this letter have one.
    Letter(u8, Option<OsString>),
}

/// Splits arguments, the first of which is the program's name. Options of the letters `with_value`
/// take the rest of their word, or the next one: `-nv -oro -t ext4` has the options `n`, `v`, `o`
/// with `ro`, and `t` with `ext4`.
pub fn arguments(args: &[OsString], with_value: &[u8]) -> Result<Vec<Argument>, String> {
    let (mut found, mut args) = (Vec::new(), args.iter().skip(1));
    while let Some(arg) = args.next() {
        let letters = arg.as_bytes().strip_prefix(b"-").filter(|letters| !letters.is_empty());
        match letters {
            None => found.push(Argument::Place(arg.into())),
            Some(b"-") => found.extend(args.by_ref().map(|place| Argument::Place(place.into()))),
            Some(letters) => split_letters(letters, with_value, &mut args, &mut found)?,
        }
    }
    Ok(found)
}

fn split_letters<'a>(
    letters: &[u8],
    with_value: &[u8],
    next: &mut impl Iterator<Item = &'a OsString>,
    found: &mut Vec<Argument>,
) -> Result<(), String> {
    for (at, letter) in letters.iter().enumerate() {
        if !with_value.contains(letter) {
            found.push(Argument::Letter(*letter, None));
            continue;
        }
        let rest = letters.get(at + 1..).filter(|rest| !rest.is_empty());
        let value =
            rest.map(|rest| OsStr::from_bytes(rest).to_owned()).or_else(|| next.next().cloned());
        let value = value.ok_or_else(|| format!("-{} lacks its value", *letter as char))?;
        found.push(Argument::Letter(*letter, Some(value)));
        break;
    }
    Ok(())
}
