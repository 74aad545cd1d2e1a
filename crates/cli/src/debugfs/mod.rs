//! The program under the name debugfs(8): the requests that read, with output in the same form.
//!
//! | option | here |
//! | --- | --- |
//! | `-R REQUEST` | one request |
//! | `-f FILE` | requests, one a line; `-` is standard input |
//! | neither | requests on standard input |
//! | `-b SIZE`, `-s BLOCK` | the superblock in this block |
//! | `-c`, `-D`, `-i`, `-n` | accepted without effect |
//! | `-V` | the version |
//! | `-w`, `-z` | refused: nothing is changed |
//!
//! As by debugfs, the exit code is 0 if a request fails: its message is on standard error. It is 1
//! for wrong usage, and if the image cannot be opened.

mod files;
mod listing;
mod log;
mod requests;
mod stat;
mod tree;
mod volume;

use crate::arguments::{Argument, arguments};
use crate::commands::debug::open;
use crate::context::{Context, complain};
use crate::failure::{Failure, Result};
use crate::image::ImageArgs;
use crate::owner_names::OwnerNames;
use crate::sandbox::FileCalls;
use crate::sandbox::command::Preparation;
use crate::script::parse_script;
use extant_check::debug::InspectOptions;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Letters with a value.
const WITH_VALUE: &[u8] = b"bdfRsz";

/// Letters without a meaning here.
const WITHOUT_EFFECT: &[u8] = b"bcDin";

/// Bytes of requests at most.
const MAX_REQUESTS: u64 = 64 << 20;

/// The arguments of a call.
#[derive(Debug, Default, PartialEq, Eq)]
struct Call {
    image: PathBuf,
    request: Option<OsString>,
    file: Option<PathBuf>,
    superblock: Option<u64>,
}

/// Runs a call; `args` has the program's name first.
pub fn run(args: &[OsString]) -> ExitCode {
    if args.iter().any(|arg| arg == "-V") {
        return crate::cli::run(["extant", "--version"].map(OsString::from).into());
    }
    let done = Call::parse(args).map_err(Failure::new).and_then(|call| call.run());
    match done {
        Ok(code) => code,
        Err(failure) => {
            if let Some(message) = failure.message() {
                complain(message);
            }
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
                Argument::Letter(b'R', Some(request)) => call.request = Some(request),
                Argument::Letter(b'f', Some(file)) => call.file = Some(file.into()),
                Argument::Letter(b's', Some(block)) => {
                    let number = block.to_str().and_then(|text| text.parse().ok());
                    let wrong = || format!("-s takes a block, not {}", block.display());
                    call.superblock = Some(number.ok_or_else(wrong)?);
                }
                Argument::Letter(b'w' | b'z', _) => {
                    return Err("nothing is changed under the name debugfs: -w and -z are not \
                                available, `extant apply` and other commands change images"
                        .into());
                }
                Argument::Letter(letter, _) if WITHOUT_EFFECT.contains(&letter) => {}
                Argument::Letter(letter, _) => {
                    return Err(format!("unknown option -{}", letter as char));
                }
            }
        }
        match <[PathBuf; 1]>::try_from(places) {
            Ok([image]) => Ok(Call { image, ..call }),
            Err(_) => Err("debugfs takes one image".into()),
        }
    }

    /// Returns the requests as lists of words.
    fn requests(&self) -> Result<Vec<Vec<OsString>>> {
        let text = match (&self.request, &self.file) {
            (Some(request), _) => request.clone().into_vec(),
            (None, Some(file)) if file.as_os_str() != "-" => std::fs::read(file)
                .map_err(|error| Failure::new(format_args!("{}: {error}", file.display())))?,
            (None, _) => {
                let mut text = Vec::new();
                std::io::stdin().take(MAX_REQUESTS).read_to_end(&mut text)?;
                text
            }
        };
        let lines = parse_script(&text);
        let bad = |line: crate::script::BadLine| {
            Failure::new(format_args!("request {}: {}", line.number, line.why))
        };
        Ok(lines.map_err(bad)?.into_iter().map(|line| line.words).collect())
    }

    fn run(&self) -> Result<ExitCode> {
        let requests = self.requests()?;
        let context = Context::helper(false);
        let image = ImageArgs::of(&self.image).read_although_in_use();
        let owners = OwnerNames::read();
        let mut sandbox = Preparation::default();
        for words in &requests {
            if let Some(dest) = requests::output(words) {
                sandbox = sandbox.beneath(folder(dest), FileCalls::Making);
            }
            if let Some((_, words)) = words.split_first().filter(|(name, _)| *name == "rdump") {
                files::rdump(&self.image, words)?;
            }
        }
        image.contain(&context, sandbox)?;
        let options = InspectOptions { as_is: image.in_use, superblock: self.superblock };
        let inspector = open(&image, &context, options)?;
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        for words in &requests {
            if !requests::answer((&inspector, &owners), &self.image, words, &mut out)? {
                break;
            }
            out.flush()?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the directory that has a file.
fn folder(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Returns a word as text, for numbers and options.
fn text(word: &OsStr) -> String {
    String::from_utf8_lossy(word.as_bytes()).into_owned()
}

/// Returns a word as a path of the machine.
fn path(word: &OsStr) -> &Path {
    Path::new(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_understood() {
        let of = |args: &[&str]| Call::parse(&args.iter().map(OsString::from).collect::<Vec<_>>());
        let call = of(&["debugfs", "-R", "stat <12>", "-b", "1024", "-s8193", "a.img"]).unwrap();
        assert_eq!((call.superblock, call.image), (Some(8193), "a.img".into()));
        assert_eq!(call.request, Some("stat <12>".into()));
        assert!(of(&["debugfs", "-w", "a.img"]).unwrap_err().contains("extant apply"));
        assert!(of(&["debugfs", "-R", "ls"]).is_err());
        assert!(of(&["debugfs", "-Z", "a.img"]).is_err());
    }
}
