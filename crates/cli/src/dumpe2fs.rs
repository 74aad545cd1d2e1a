//! The program under the name dumpe2fs(8): the values of the superblock, and the groups.
//!
//! | option | here |
//! | --- | --- |
//! | `-h` | superblock, journal and block of multi-mount protection, without the groups |
//! | `-g` | a line for each group |
//! | `-x` | hexadecimal numbers of blocks and inodes of groups |
//! | `-o superblock=BLOCK` | the superblock in this block |
//! | `-f`, `-o blocksize=BYTES` | accepted without effect |
//! | `-b` | the blocks that are listed as bad |
//! | `-V` | the version |
//! | `-i`, `-m` | refused |

use crate::arguments::{Argument, arguments};
use crate::commands::debug::open;
use crate::context::{Context, complain};
use crate::failure::{At, Failure, Result};
use crate::group_list::{GroupList, GroupListForm};
use crate::image::ImageArgs;
use crate::owner_names::OwnerNames;
use crate::sandbox::command::Preparation;
use crate::superblock_list;
use extant_check::debug::{InspectOptions, Inspector};
use extant_engine::device::BlockDevice;
use extant_engine::format::Superblock;
use extant_format::Incompat;
use extant_format::jbd2::{JOURNAL_SUPERBLOCK_SIZE, JournalSuperblock, external_journal_block};
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// Letters with a value.
const WITH_VALUE: &[u8] = b"o";

/// The arguments of a call.
#[derive(Debug, Default, PartialEq, Eq)]
struct Call {
    image: PathBuf,
    has_header: bool,
    has_bad_blocks: bool,
    form: GroupListForm,
    superblock: Option<u64>,
}

/// Runs a call; `args` has the program's name first.
pub fn run(args: &[OsString]) -> ExitCode {
    if args.iter().any(|arg| arg == "-V") {
        return crate::cli::run(["extant", "--version"].map(OsString::from).into());
    }
    match Call::parse(args).map_err(Failure::new).and_then(|call| call.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain(failure.message().unwrap_or("failed"));
            ExitCode::FAILURE
        }
    }
}

impl Call {
    fn parse(args: &[OsString]) -> Result<Call, String> {
        let mut call = Call::default();
        let mut places = Vec::new();
        for argument in arguments(args, WITH_VALUE)? {
            match argument {
                Argument::Place(place) => places.push(place),
                Argument::Letter(b'h', _) => call.has_header = true,
                Argument::Letter(b'b', _) => call.has_bad_blocks = true,
                Argument::Letter(b'x', _) => call.form.is_hex = true,
                Argument::Letter(b'g', _) => call.form.is_short = true,
                Argument::Letter(b'f', _) => {}
                Argument::Letter(b'o', Some(option)) => call.option(&option.to_string_lossy())?,
                Argument::Letter(letter, _) => {
                    let letter = letter as char;
                    return Err(format!(
                        "-{letter} is not available: `extant debug IMAGE metadata` makes images of \
                         metadata, which are read like others, and -h shows the block of \
                         multi-mount protection"
                    ));
                }
            }
        }
        match <[PathBuf; 1]>::try_from(places) {
            Ok([image]) => Ok(Call { image, ..call }),
            Err(_) => Err("dumpe2fs takes one image".into()),
        }
    }

    fn option(&mut self, option: &str) -> Result<(), String> {
        let wrong = || format!("-o takes superblock=BLOCK and blocksize=BYTES, not {option}");
        let (name, value) = option.split_once('=').ok_or_else(wrong)?;
        let number: u64 = value.parse().map_err(|_| wrong())?;
        match name {
            "superblock" => self.superblock = Some(number),
            "blocksize" => {}
            _ => return Err(wrong()),
        }
        Ok(())
    }

    fn run(&self) -> Result {
        let context = Context::helper(false);
        let image = ImageArgs::of(&self.image).read_although_in_use();
        let owners = OwnerNames::read();
        image.contain(&context, Preparation::default())?;
        let mut out = BufWriter::new(std::io::stdout().lock());
        let is_header = !self.has_bad_blocks && !self.form.is_short;
        if is_header
            && self.superblock.is_none()
            && self.journal_device(&image, (&owners, &mut out))?
        {
            return Ok(out.flush()?);
        }
        let options = InspectOptions { as_is: true, superblock: self.superblock };
        let inspector = open(&image, &context, options)?;
        let listed = inspector.bad_blocks();
        if self.has_bad_blocks {
            let failed = |error| Failure::new(format_args!("{}: {error}", image.name()));
            listed.map_err(failed)?.iter().try_for_each(|block| writeln!(out, "{block}"))?;
            return Ok(out.flush()?);
        }
        if is_header {
            superblock_list::write_all(&inspector, &owners, &mut out)?;
            let listed: Vec<String> =
                listed.unwrap_or_default().iter().map(ToString::to_string).collect();
            match listed.as_slice() {
                [] => writeln!(out)?,
                listed => writeln!(out, "Bad blocks: {}", listed.join(", "))?,
            }
        }
        let is_all = self.has_header && is_header;
        let problems = if is_all { Vec::new() } else { self.groups(&inspector, &mut out)? };
        out.flush()?;
        match problems.as_slice() {
            [] => Ok(()),
            problems => {
                let text = problems.join("; ");
                Err(Failure::new(format_args!("{}: {text}", image.name())))
            }
        }
    }

    /// Prints the groups. Returns descriptions of bitmaps of no use.
    fn groups(&self, inspector: &Inspector, out: &mut dyn Write) -> Result<Vec<String>> {
        let mut list = GroupList { inspector, form: self.form, problems: Vec::new() };
        list.write(out)?;
        Ok(list.problems)
    }

    /// Prints the values of a device with a journal and nothing else. Returns whether it is one.
    fn journal_device(
        &self,
        image: &ImageArgs,
        (owners, out): (&OwnerNames, &mut dyn Write),
    ) -> Result<bool> {
        let device = image.reader(&image.spec()).map_err(|error| image.refused(&error))?;
        let mut bytes = [0; SUPERBLOCK_SIZE];
        if device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET).is_err() {
            return Ok(false);
        }
        let found = Superblock::parse(&bytes).ok();
        let Some(sb) = found.filter(|sb| sb.incompat().contains(Incompat::JOURNAL_DEV)) else {
            return Ok(false);
        };
        superblock_list::write_superblock(&sb, owners, out)?;
        let size = sb.block_size();
        let place = external_journal_block(size).saturating_mul(size.into());
        let mut bytes = [0; JOURNAL_SUPERBLOCK_SIZE];
        let path = self.image.as_os_str().as_bytes();
        device.read_exact_at(&mut bytes, place).at_path(path)?;
        let journal = JournalSuperblock::parse_unverified(&bytes);
        superblock_list::write_journal(journal.map_err(Into::into), (true, out))?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_understood() {
        let of = |args: &[&str]| Call::parse(&args.iter().map(OsString::from).collect::<Vec<_>>());
        let call = of(&["dumpe2fs", "-xhf", "-o", "superblock=8193", "a.img"]).unwrap();
        assert_eq!((call.superblock, call.image), (Some(8193), "a.img".into()));
        assert!(of(&["dumpe2fs", "-g", "a"]).unwrap().form.is_short);
        for bad in [&["dumpe2fs"][..], &["dumpe2fs", "-h"], &["dumpe2fs", "-hi", "a"]] {
            assert!(of(bad).is_err(), "{bad:?}");
        }
        assert!(of(&["dumpe2fs", "-h", "-o", "what=1", "a"]).is_err());
    }
}
