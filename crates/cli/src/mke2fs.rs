//! The program under the names mke2fs(8), mkfs.ext2(8), mkfs.ext3(8) and mkfs.ext4(8).
//!
//! `extant mkfs` has their options. With `-d DIRECTORY` or `-d ARCHIVE` the call is one of `extant
//! build`, whose image has the given size, or that of the existing file.

use crate::arguments::{Argument, arguments};
use extant_engine::mkfs::parse_size;
use std::ffi::OsString;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Letters with a value.
const WITH_VALUE: &[u8] = b"bCdeEgGiIJlLmMNoOrtTuUz";

/// Letters without a meaning for a new image: output, the directory of
/// a former mount, and the system of the maker.
const WITHOUT_EFFECT: &[u8] = b"vMo";

/// The unit of a size without unit if no block size is given, in bytes.
const SIZE_BLOCK: u64 = 1024;

/// Returns the call of `extant` for a call of mke2fs; `args` has the program's name first. `kind`
/// is the type that the name stands for.
pub fn command(args: &[OsString], kind: &str) -> Result<Vec<OsString>, String> {
    let given = arguments(args, WITH_VALUE)?;
    let value = |letter: u8| {
        given.iter().rev().find_map(|argument| match argument {
            Argument::Letter(found, Some(value)) if *found == letter => Some(value),
            _ => None,
        })
    };
    let mut call: Vec<OsString> = vec!["extant".into()];
    match value(b'd') {
        None => call.extend(["mkfs".into(), "--size-in-blocks".into()]),
        Some(_) => call.push("build".into()),
    }
    if value(b't').is_none() {
        call.extend(["-t".into(), kind.into()]);
    }
    let Some(source) = value(b'd') else {
        call.extend(args.iter().skip(1).cloned());
        return Ok(call);
    };
    let mut places = Vec::new();
    for argument in &given {
        match argument {
            Argument::Place(place) => places.push(place),
            Argument::Letter(b'd', _) => {}
            Argument::Letter(letter, _) if WITHOUT_EFFECT.contains(letter) => {}
            Argument::Letter(letter, value) => {
                call.push(format!("-{}", *letter as char).into());
                call.extend(value.clone());
            }
        }
    }
    let (image, size) = match places.as_slice() {
        [image] => (image, existing(image)?),
        [image, size] => (image, in_bytes(size, value(b'b'))?),
        _ => return Err("mke2fs takes an image and a size".into()),
    };
    let mut from = OsString::from(if Path::new(source).is_dir() { "dir:" } else { "tar:" });
    from.push(source);
    let from = if source == "-" { source.clone() } else { from };
    call.extend(["--size".into(), size.to_string().into(), "--".into(), image.into(), from]);
    Ok(call)
}

/// Returns the size of an existing image.
fn existing(image: &Path) -> Result<u64, String> {
    let found = std::fs::metadata(image).ok();
    // Only the descriptor of a device tells its length.
    let is_disk = found.as_ref().is_some_and(|found| found.file_type().is_block_device());
    let of_disk = || std::fs::File::open(image)?.seek(SeekFrom::End(0));
    let len = match found {
        Some(_) if is_disk => of_disk().unwrap_or(0),
        found => found.map_or(0, |found| found.len()),
    };
    let missing = || format!("{}: give a size: there is no image of one", image.display());
    (len > 0).then_some(len).ok_or_else(missing)
}

/// Returns a size in bytes; one without a unit counts blocks.
fn in_bytes(size: &Path, block: Option<&OsString>) -> Result<u64, String> {
    let wrong = || format!("{}: no size", size.display());
    let text = size.to_str().ok_or_else(wrong)?;
    let number = parse_size(text).map_err(|error| error.to_string())?;
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(number);
    }
    let block = block.and_then(|block| block.to_str()).map(parse_size);
    let block = block.transpose().map_err(|error| error.to_string())?.unwrap_or(SIZE_BLOCK);
    number.checked_mul(block).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    fn of(args: &[&str]) -> Result<String, String> {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        command(&args, "ext2").map(|call| call.join(OsStr::new(" ")).into_string().unwrap())
    }

    #[test]
    fn calls_with_a_source_are_builds() {
        assert_eq!(
            of(&["mke2fs", "-F", "-q", "-t", "ext4", "-d", "/", "-b", "4096", "a.img", "100"]),
            Ok("extant build -F -q -t ext4 -b 4096 --size 409600 -- a.img dir:/".into())
        );
        assert_eq!(
            of(&["mke2fs", "-d", "a.tar", "-Lname", "a.img", "10M"]),
            Ok("extant build -t ext2 -L name --size 10485760 -- a.img tar:a.tar".into())
        );
        assert!(of(&["mke2fs", "-d", "/", "/nonexistent"]).unwrap_err().contains("size"));
        assert!(of(&["mke2fs", "-d", "/", "a.img", "much"]).is_err());
    }

    #[test]
    fn other_calls_are_those_of_mkfs() {
        assert_eq!(
            of(&["mke2fs", "-F", "a.img", "100"]),
            Ok("extant mkfs --size-in-blocks -t ext2 -F a.img 100".into())
        );
        assert_eq!(
            of(&["mke2fs", "-t", "ext3", "a.img"]),
            Ok("extant mkfs --size-in-blocks -t ext3 a.img".into())
        );
    }
}
