//! The program under the names mke2fs(8), mkfs.ext2(8), mkfs.ext3(8) and mkfs.ext4(8).
//!
//! `extant mkfs` has most of their options; the others are translated here. With `-d DIRECTORY` or
//! `-d ARCHIVE` the call is one of `extant build`, whose image has the given size, or that of the
//! existing file.

use crate::arguments::{Argument, arguments};
use extant_engine::mkfs::{default_block_size, parse_size};
use std::ffi::OsString;
use std::fs::Metadata;
use std::io::{Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Letters with a value.
const WITH_VALUE: &[u8] = b"bCdeEgGiIJlLmMNoOrRtTuUz";

/// Letters without a meaning for a new image: output, the directory of a former mount, the system
/// of the maker, and direct access.
const WITHOUT_EFFECT: &[u8] = b"vMoD";

/// Letters that are refused, and why.
const REFUSED: [(u8, &str); 2] = [
    (b'S', "`extant repair` restores superblock and descriptors of a damaged file system"),
    (b'z', "there is no undo file of a new file system: keep a copy (`extant clone`)"),
];

/// Kinds of file systems, which `-T` names, too.
const KINDS: [&str; 3] = ["ext2", "ext3", "ext4"];

/// Uses (`-T`) as mke2fs's own configuration has them: block size, bytes for each inode, and inode
/// size. Configurations of a system are not read, so that images are the same everywhere.
const USES: [(&str, &str, &str, Option<&str>); 9] = [
    ("default", "4096", "16384", None),
    ("small", "1024", "4096", None),
    ("floppy", "1024", "8192", None),
    ("big", "4096", "32768", None),
    ("huge", "4096", "65536", None),
    ("news", "4096", "4096", None),
    ("largefile", "4096", "1048576", None),
    ("largefile4", "4096", "4194304", None),
    ("hurd", "4096", "16384", Some("128")),
];

/// The unit of a size without unit if no block size is given, in bytes.
const SIZE_BLOCK: u64 = 1024;

/// A call of mke2fs.
struct Call {
    given: Vec<Argument>,
}

/// Returns the call of `extant` for a call of mke2fs; `args` has the program's name first. `kind`
/// is the type that the name stands for.
pub fn command(args: &[OsString], kind: &str) -> Result<Vec<OsString>, String> {
    // Such options are those of `extant mkfs`.
    if args.iter().any(|arg| arg.len() > 2 && arg.as_bytes().starts_with(b"--")) {
        let has_type = args.iter().any(|arg| arg.as_bytes().starts_with(b"-t"));
        let kind: &[&str] = if has_type { &[] } else { &["-t", kind] };
        let own = ["extant", "mkfs"].iter().chain(kind).map(OsString::from);
        return Ok(own.chain(args.iter().skip(1).cloned()).collect());
    }
    let call = Call { given: arguments(args, WITH_VALUE)? };
    if call.has(b'V') {
        return Ok(vec!["extant".into(), "--version".into()]);
    }
    let mut words: Vec<OsString> = vec!["extant".into()];
    words.push(if call.has(b'd') { "build".into() } else { "mkfs".into() });
    let named = call.kind()?;
    if !call.has(b't') {
        words.extend(["-t".into(), named.as_deref().unwrap_or(kind).into()]);
    }
    words.extend(call.options()?);
    words.extend(if call.has(b'd') { call.build()? } else { call.mkfs()? });
    Ok(words)
}

impl Call {
    fn has(&self, letter: u8) -> bool {
        self.given.iter().any(|given| matches!(given, Argument::Letter(l, _) if *l == letter))
    }

    fn count(&self, letter: u8) -> usize {
        let is_letter = |given: &&Argument| matches!(given, Argument::Letter(l, _) if *l == letter);
        self.given.iter().filter(is_letter).count()
    }

    /// Returns the last value of an option.
    fn value(&self, letter: u8) -> Option<&OsString> {
        self.given.iter().rev().find_map(|argument| match argument {
            Argument::Letter(found, Some(value)) if *found == letter => Some(value),
            _ => None,
        })
    }

    fn places(&self) -> Vec<&PathBuf> {
        let places = self.given.iter().filter_map(|argument| match argument {
            Argument::Place(place) => Some(place),
            Argument::Letter(..) => None,
        });
        places.collect()
    }

    /// Returns the options that `mkfs` and `build` have, too.
    fn options(&self) -> Result<Vec<OsString>, String> {
        let mut words = Vec::new();
        for argument in &self.given {
            if let Argument::Letter(letter, value) = argument {
                words.extend(self.option(*letter, value.as_ref())?);
            }
        }
        Ok(words)
    }

    fn option(&self, letter: u8, value: Option<&OsString>) -> Result<Vec<OsString>, String> {
        if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == letter) {
            return Err(format!("-{}: {why}", letter as char));
        }
        match (letter, value.and_then(|value| value.to_str())) {
            (b'c' | b'l', _) if self.has(b'd') => {
                let letter = letter as char;
                Err(format!("-{letter} with -d: a built image has no list of bad blocks"))
            }
            (b'c', _) if self.count(b'c') > 1 => {
                Err("a second -c is not available: give -l FILE with a list of `badblocks -w -o \
                     FILE`"
                    .into())
            }
            (b'c', _) => Ok(vec!["--read-test".into()]),
            (b'l', Some(file)) => Ok(vec!["--bad-blocks".into(), file.into()]),
            (b'd', _) => Ok(Vec::new()),
            (b'n', _) if self.has(b'd') => Ok(vec!["--estimate".into()]),
            (b'r', Some("1")) => Ok(Vec::new()),
            // Builders give an inode size with each revision, and revision 0 has its own.
            (b'I', _) if self.value(b'r').is_some_and(|revision| revision == "0") => Ok(Vec::new()),
            (b'T', Some(uses)) => self.uses(uses),
            (b'E' | b'R', Some(list)) => Ok(extended(list)),
            (letter, _) if WITHOUT_EFFECT.contains(&letter) => Ok(Vec::new()),
            (letter, _) => {
                let letter = OsString::from(format!("-{}", letter as char));
                Ok([letter].into_iter().chain(value.cloned()).collect())
            }
        }
    }

    /// Returns the kind that a use names.
    fn kind(&self) -> Result<Option<String>, String> {
        let uses = self.value(b'T').and_then(|uses| uses.to_str()).unwrap_or("");
        let Some(kind) = uses.split(',').rfind(|name| KINDS.contains(name)) else {
            return Ok(None);
        };
        match self.value(b't') {
            Some(other) if *other != *kind => {
                Err(format!("-T {kind} and -t {}: give one kind", other.display()))
            }
            _ => Ok(Some(kind.into())),
        }
    }

    /// Returns the options that uses stand for, unless they are given themselves.
    fn uses(&self, uses: &str) -> Result<Vec<OsString>, String> {
        let mut found = (Some(USES[0].1), Some(USES[0].2), None);
        for name in uses.split(',').filter(|name| !KINDS.contains(name)) {
            let known = USES.iter().find(|(known, ..)| *known == name).ok_or_else(|| {
                let uses = USES.iter().map(|(known, ..)| *known);
                let known: Vec<&str> = uses.chain(KINDS).collect();
                format!("-T: {name} is not known, but {}", known.join(", "))
            })?;
            found = (Some(known.1), Some(known.2), known.3.or(found.2));
        }
        let options = [(b'b', found.0), (b'i', found.1), (b'I', found.2)];
        let missing = options.into_iter().filter(|(letter, _)| !self.has(*letter));
        let words = missing.filter_map(|(letter, value)| Some((letter, value?)));
        Ok(words.flat_map(|(l, value)| [format!("-{}", l as char).into(), value.into()]).collect())
    }

    /// Returns the place of the file system in its file, by `-E offset=`.
    fn offset(&self) -> Result<Option<u64>, String> {
        let lists = self.given.iter().filter_map(|argument| match argument {
            Argument::Letter(b'E' | b'R', Some(list)) => list.to_str(),
            _ => None,
        });
        let offsets = lists.flat_map(extended_words).filter_map(|word| word.strip_prefix(OFFSET));
        offsets.last().map(|text| parse_size(text).map_err(|error| error.to_string())).transpose()
    }

    fn mkfs(&self) -> Result<Vec<OsString>, String> {
        let mut words: Vec<OsString> = vec!["--".into()];
        let places = self.places();
        let (image, sizes) = places.split_first().ok_or("mke2fs takes an image")?;
        let mut image = image.as_os_str().to_owned();
        if let Some(bytes) = self.offset()? {
            image.push(format!("@{bytes}"));
        }
        words.push(image);
        for size in sizes {
            words.push(in_bytes(size, self.value(b'b'))?.to_string().into());
        }
        Ok(words)
    }

    fn build(&self) -> Result<Vec<OsString>, String> {
        let Some(source) = self.value(b'd') else { return Ok(Vec::new()) };
        if self.offset()?.is_some() {
            return Err("-E offset= and -d: make the file system without -d, mount it, and fill \
                        the mount"
                .into());
        }
        let (image, size) = match self.places().as_slice() {
            [image] => (*image, existing(image)?),
            [image, size] => (*image, in_bytes(size, self.value(b'b'))?),
            _ => return Err("mke2fs takes an image and a size".into()),
        };
        let mut words: Vec<OsString> = vec!["--size".into(), size.to_string().into()];
        if !self.has(b'b') && !self.has(b'T') {
            words.extend(["-b".into(), default_block_size(size).to_string().into()]);
        }
        // A file that is longer than its file system stays so.
        let len = std::fs::metadata(image).ok().filter(Metadata::is_file).map_or(0, |f| f.len());
        if len > size {
            words.extend(["--file-length".into(), len.to_string().into()]);
        }
        let mut from = OsString::from(if Path::new(source).is_dir() { "dir:" } else { "tar:" });
        from.push(source);
        let from = if source == "-" { source.clone() } else { from };
        words.extend(["--".into(), image.into(), from]);
        Ok(words)
    }
}

/// The extended option that says where in its file the file system begins.
const OFFSET: &str = "offset=";

fn extended_words(list: &str) -> impl Iterator<Item = &str> {
    list.split([',', ' ']).filter(|word| !word.is_empty())
}

/// Returns the extended options but for the offset.
fn extended(list: &str) -> Vec<OsString> {
    let words: Vec<&str> = extended_words(list).filter(|word| !word.starts_with(OFFSET)).collect();
    if words.is_empty() { Vec::new() } else { vec!["-E".into(), words.join(",").into()] }
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
            Ok("extant build -t ext2 -L name --size 10485760 -b 1024 -- a.img tar:a.tar".into())
        );
        // Uses have a block size, and larger images have 4096 bytes.
        for (size, block) in [("600M", " -b 4096"), ("60M", " -b 1024")] {
            let call = of(&["mke2fs", "-d", "/", "a.img", size]).unwrap();
            assert!(call.contains(block), "{call}");
        }
        let call = of(&["mke2fs", "-T", "default", "-d", "/", "a.img", "60M"]).unwrap();
        assert!(call.matches(" -b ").count() == 1 && call.contains(" -b 4096"), "{call}");
        assert!(of(&["mke2fs", "-d", "/", "/nonexistent"]).unwrap_err().contains("size"));
        assert!(of(&["mke2fs", "-d", "/", "a.img", "much"]).is_err());
    }

    #[test]
    fn other_calls_are_those_of_mkfs() {
        let mkfs = |options: &str| Ok(format!("extant mkfs {options}"));
        for (call, words) in [
            (vec!["-F", "a", "100"], "-t ext2 -F -- a 102400"),
            (vec!["-vDn", "-t", "ext3", "a"], "-n -t ext3 -- a"),
            (vec!["-g512", "-r", "1", "a"], "-t ext2 -g 512 -- a"),
            (vec!["-Tnews", "a"], "-t ext2 -b 4096 -i 4096 -- a"),
            (vec!["-T", "small,hurd", "-i1", "a"], "-t ext2 -b 4096 -I 128 -i 1 -- a"),
            (vec!["-T", "ext4", "a"], "-t ext4 -b 4096 -i 16384 -- a"),
            (vec!["-text4", "-Text4,largefile", "a"], "-t ext4 -b 4096 -i 1048576 -- a"),
            (vec!["-E", "offset=1M,stride=2", "a"], "-t ext2 -E stride=2 -- a@1048576"),
            (vec!["-E", "offset=512", "a", "9"], "-t ext2 -- a@512 9216"),
            (vec!["-R", "offset=512,stride=2", "a"], "-t ext2 -E stride=2 -- a@512"),
            (vec!["-r", "0", "-I", "256", "-N0", "a"], "-t ext2 -r 0 -N 0 -- a"),
        ] {
            assert_eq!(of(&[vec!["mke2fs"], call].concat()), mkfs(words));
        }
        assert_eq!(of(&["mke2fs", "--seed", "1", "a"]), mkfs("-t ext2 --seed 1 a"));
        assert_eq!(of(&["mke2fs", "-V"]), Ok("extant --version".into()));
        for refused in
            [vec!["-S"], vec!["-z", "f"], vec!["-cc"], vec!["-T", "what"], vec!["-text4", "-Text3"]]
        {
            assert!(
                of(&[vec!["mke2fs"], refused.clone(), vec!["a"]].concat()).is_err(),
                "{refused:?}"
            );
        }
    }
}
