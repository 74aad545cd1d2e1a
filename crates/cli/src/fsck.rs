//! The program under the names e2fsck(8), fsck.ext4(8), fsck.ext3(8) and fsck.ext2(8).
//!
//! | option | here |
//! | --- | --- |
//! | `-n` | `extant check`; nothing is written, also of a file system in use |
//! | `-p`, `-a` | `extant repair` |
//! | `-y` | `extant repair --level lossy` |
//! | none of these | a check that names `-p` and `-y` if there is damage: no questions are asked |
//! | `-f`, `-b`, `-B` | a check of a clean file system, too; copies are found by themselves |
//! | `-j PATH`, `-z FILE` | `--journal PATH`, `--undo FILE` |
//! | `-c` | `--read-test`, and without `-k` `--forget-bad-blocks`; a check reads, too |
//! | `-l FILE`, `-L FILE` | `--bad-blocks FILE`; with `-L` also `--forget-bad-blocks` |
//! | `-D` | with `-p` or `-y`: `extant tune --compact-directories` |
//! | `-E bmap2extent` | with `-p` or `-y`: `extant tune --features extent` |
//! | `-E journal_only` | `extant recover` |
//! | `-E no_sandbox` | `--no-sandbox` |
//!
//! A file system that is marked clean is not looked at, unless a check is due by its counters.
//! Exit codes are those of fsck(8).

use crate::arguments::{Argument, arguments};
use crate::commands::repair;
use crate::context::{Context, complain};
use crate::image::ImageArgs;
use crate::mounting::serve::was_in_use;
use crate::sandbox::command::{Images, Preparation, leave_feigned_root};
use extant_engine::device::image_spec;
use extant_engine::format::{State, Superblock};
use extant_engine::{Error, Fs, OpenOptions};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// Exit codes of fsck(8).
const REPAIRED: u8 = 1;
const DAMAGED: u8 = 4;
const FAILED: u8 = 8;
const USAGE: u8 = 16;

/// Letters with a value.
const WITH_VALUE: &[u8] = b"bBlLCjEzI";

/// Letters without a meaning here: output, speed, and requests that only other programs obey.
const WITHOUT_EFFECT: &[u8] = b"vtrdFSsCBI";

/// Values of `-E` without a meaning here.
const EXTENDED_WITHOUT_EFFECT: [&str; 8] = [
    "fixes_only",
    "discard",
    "nodiscard",
    "readahead_kb",
    "inode_count_fullmap",
    "no_inode_count_fullmap",
    "no_optimize_extents",
    "optimize_extents",
];

/// The answer to all questions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Answer {
    /// None is given: damage is printed.
    #[default]
    Missing,
    No,
    /// Yes to repairs that lose nothing.
    Preen,
    Yes,
}

/// The arguments of a call.
#[derive(Debug, Default, PartialEq, Eq)]
struct Call {
    image: PathBuf,
    answer: Answer,
    force: bool,
    bad_blocks: BadBlocks,
    journal_only: bool,
    journal: Option<PathBuf>,
    undo: Option<PathBuf>,
    /// Directories are written anew.
    compacts: bool,
    /// Files with pointers get extents.
    to_extents: bool,
    no_sandbox: bool,
}

/// Changes of the list of bad blocks.
#[derive(Debug, Default, PartialEq, Eq)]
struct BadBlocks {
    /// All blocks are read.
    reads_all: bool,
    /// The blocks that are listed stay so.
    keeps: bool,
    file: Option<PathBuf>,
    /// The file takes the place of the list.
    replaces: bool,
}

impl BadBlocks {
    fn option(&mut self, letter: u8, value: Option<OsString>) -> Result<(), String> {
        match (letter, value) {
            (b'c', _) if self.reads_all => {
                return Err("a second -c writes over each block for its test, which a power cut \
                            makes a loss: give -l FILE with a list of `badblocks -n -o FILE`"
                    .into());
            }
            (b'c', _) => self.reads_all = true,
            (b'k', _) => self.keeps = true,
            (b'l' | b'L', Some(file)) if self.file.is_none() => {
                (self.file, self.replaces) = (Some(file.into()), letter == b'L');
            }
            _ => return Err("only one list of bad blocks may be given".into()),
        }
        Ok(())
    }

    /// Refuses calls without a meaning, as e2fsck does.
    fn check(&self, answer: Answer) -> Result<(), String> {
        let why = match (self.reads_all, self.file.is_some(), answer) {
            (true, true, _) => "-c and a file of bad blocks (-l, -L) exclude each other",
            (true, _, Answer::No) | (_, true, Answer::No) => "-n excludes -c, -l and -L",
            (_, true, Answer::Missing) => "-l and -L need -p or -y: no question is asked",
            _ => return Ok(()),
        };
        Err(why.into())
    }

    /// Returns the options of `extant repair`.
    fn options(&self) -> Vec<OsString> {
        let mut options = Vec::new();
        options.extend(self.reads_all.then(|| "--read-test".into()));
        let forgets = self.reads_all && !self.keeps || self.replaces;
        options.extend(forgets.then(|| "--forget-bad-blocks".into()));
        options.extend(self.file.iter().flat_map(|file| ["--bad-blocks".into(), file.into()]));
        options
    }
}

/// Runs a call; `args` has the program's name first.
pub fn run(args: &[OsString]) -> ExitCode {
    if args.iter().any(|arg| arg == "-V") {
        return crate::cli::run(["extant", "--version"].map(OsString::from).into());
    }
    match Call::parse(args) {
        Ok(call) => call.run(),
        Err(message) => {
            complain(message);
            ExitCode::from(USAGE)
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
                Argument::Letter(letter, value) => call.letter(letter, value)?,
            }
        }
        match <[PathBuf; 1]>::try_from(places) {
            Ok([image]) => {
                call.bad_blocks.check(call.answer)?;
                Ok(Call { image, ..call })
            }
            Err(_) => Err("e2fsck takes one image".into()),
        }
    }

    fn letter(&mut self, letter: u8, value: Option<OsString>) -> Result<(), String> {
        match (letter, value) {
            (b'n', _) => self.answer(Answer::No)?,
            (b'p' | b'a', _) => self.answer(Answer::Preen)?,
            (b'y', _) => self.answer(Answer::Yes)?,
            (b'f', _) | (b'b', Some(_)) => self.force = true,
            (b'j', Some(path)) => self.journal = Some(path.into()),
            (b'z', Some(path)) => self.undo = Some(path.into()),
            (b'E', Some(list)) => self.extended(&list.to_string_lossy())?,
            (b'D', _) => (self.compacts, self.force) = (true, true),
            (b'c' | b'k' | b'l' | b'L', file) => {
                self.force = true;
                self.bad_blocks.option(letter, file)?;
            }
            (letter, _) if WITHOUT_EFFECT.contains(&letter) => {}
            (letter, _) => return Err(format!("unknown option -{}", letter as char)),
        }
        Ok(())
    }

    fn answer(&mut self, answer: Answer) -> Result<(), String> {
        if self.answer != Answer::Missing && self.answer != answer {
            return Err("only one of -p (or -a), -n and -y may be given".into());
        }
        self.answer = answer;
        Ok(())
    }

    fn extended(&mut self, list: &str) -> Result<(), String> {
        for word in list.split(',') {
            let name = word.split_once('=').map_or(word, |(name, _)| name);
            match name {
                "journal_only" => self.journal_only = true,
                "bmap2extent" => (self.to_extents, self.force) = (true, true),
                "no_sandbox" => self.no_sandbox = true,
                name if EXTENDED_WITHOUT_EFFECT.contains(&name) => {}
                _ => return Err(format!("unknown value of -E: {word}")),
            }
        }
        Ok(())
    }

    fn run(&self) -> ExitCode {
        let journal = self.journal.as_deref().map(image_spec);
        let reads =
            self.answer == Answer::No || self.answer == Answer::Missing && !self.journal_only;
        let in_use =
            self.answer == Answer::No && ImageArgs::of(&self.image).read_although_in_use().in_use;
        let image = Images { journal, in_use, ..Images::of(&self.image) };
        let mut context = Context::helper(false);
        context.sandbox = !self.no_sandbox;
        if context.sandbox {
            leave_feigned_root();
        }
        self.undo.iter().for_each(|file| repair::begin_undo(file, &context));
        // In use: the command below tells it. If the image is free by then, that enters its own.
        let list = self.bad_blocks.file.iter();
        let prepared = list.fold(Preparation::writing(!reads), |all, file| all.reading(file));
        let contained = prepared.enter(&context, &[image]).is_ok();
        if self.journal_only && self.answer == Answer::No {
            return self.command(&["recover", "--dry-run"]);
        }
        if self.journal_only {
            return self.command(&["recover"]);
        }
        if contained
            && !self.force
            && let Ok(Some(clean)) = self.clean()
        {
            println!("{clean}");
            return ExitCode::SUCCESS;
        }
        let done = match self.answer {
            Answer::Missing if self.bad_blocks.reads_all => self.command(&["check", "--read-test"]),
            Answer::Missing => self.command(&["check"]),
            Answer::No => self.command(&["check", "--in-use"]),
            Answer::Preen => self.command(&["repair"]),
            Answer::Yes => self.command(&["repair", "--level=lossy"]),
        };
        let is_fine = [ExitCode::SUCCESS, ExitCode::from(REPAIRED)].contains(&done);
        if is_fine && self.changes_forms() && self.command(&self.forms()) != ExitCode::SUCCESS {
            return ExitCode::from(FAILED);
        }
        match self.answer {
            Answer::Missing if done == ExitCode::from(DAMAGED) => {
                complain("nothing was changed: -p repairs without a loss, -y at any price");
            }
            Answer::Preen | Answer::Yes if contained && is_fine => {
                // A failure leaves the counters, which is no damage.
                let _ = self.command(&["--quiet", "tune", "--mount-count=0", "--last-checked=now"]);
            }
            _ => {}
        }
        done
    }

    /// Returns whether directories or files are written in another form.
    fn changes_forms(&self) -> bool {
        let writes = matches!(self.answer, Answer::Preen | Answer::Yes);
        writes && (self.compacts || self.to_extents)
    }

    /// Returns the command for it.
    fn forms(&self) -> Vec<&'static str> {
        let compacts = self.compacts.then_some("--compact-directories");
        let extents = self.to_extents.then_some("--features=extent");
        ["--quiet", "tune"].into_iter().chain(compacts).chain(extents).collect()
    }

    /// Runs a command of `extant` on the image.
    fn command(&self, words: &[&str]) -> ExitCode {
        let mut command: Vec<OsString> =
            ["extant"].iter().chain(words).map(OsString::from).collect();
        command.extend(self.no_sandbox.then(|| "--no-sandbox".into()));
        if let Some(journal) = &self.journal {
            command.extend(["--journal".into(), journal.into()]);
        }
        if words.contains(&"repair") {
            command.extend(self.undo.iter().flat_map(|undo| ["--undo".into(), undo.into()]));
            command.extend(self.bad_blocks.options());
        }
        command.extend(["--".into(), self.image.clone().into()]);
        crate::cli::run(command)
    }

    /// Returns the line for a file system that needs no check. Replays the journal first for calls
    /// that repair, unless all changes are to be undone.
    fn clean(&self) -> Result<Option<String>, Error> {
        let spec = image_spec(&self.image);
        let options = |options: OpenOptions| match &self.journal {
            Some(journal) => options.journal_image(image_spec(journal)),
            None => options,
        };
        let reading = options(OpenOptions::new().read_only(true).no_recovery(true));
        let mut fs = Fs::open_image(&spec, &reading)?;
        if self.answer != Answer::No && was_in_use(&fs.superblock()) {
            if self.answer == Answer::Missing || self.undo.is_some() {
                return Ok(None);
            }
            drop(fs);
            println!("{}: recovering journal", self.image.display());
            Fs::open_image(&spec, &options(OpenOptions::new().count_mount(false)))?.unmount()?;
            fs = Fs::open_image(&spec, &reading)?;
        }
        let sb = fs.superblock();
        Ok((!is_due(&sb)).then(|| line(&self.image, &sb)))
    }
}

/// Returns whether a file system is to be checked: it is marked as unclean or damaged, was mounted
/// often enough, or was not checked for long enough.
fn is_due(sb: &Superblock) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let (limit, interval) = (sb.max_mnt_count(), u64::from(sb.checkinterval()));
    let by_mounts = (1..=i16::MAX as u16).contains(&limit) && sb.mnt_count() >= limit;
    let by_time = interval > 0 && now.saturating_sub(sb.lastcheck()) >= interval;
    !sb.state().contains(State::VALID) || sb.state().contains(State::ERROR) || by_mounts || by_time
}

fn line(image: &Path, sb: &Superblock) -> String {
    let files = sb.inodes_count().saturating_sub(sb.free_inodes_count());
    let blocks = sb.blocks_count().saturating_sub(sb.free_blocks_count());
    format!(
        "{}: clean, {files}/{} files, {blocks}/{} blocks",
        image.display(),
        sb.inodes_count(),
        sb.blocks_count()
    )
}
