//! The program under the names e2fsck(8), fsck.ext4(8), fsck.ext3(8) and fsck.ext2(8).
//!
//! | option | here |
//! | --- | --- |
//! | `-n` | `extant check`; nothing is written |
//! | `-p`, `-a` | `extant repair` |
//! | `-y` | `extant repair --level lossy` |
//! | none of these | a check that names `-p` and `-y` if there is damage: no questions are asked |
//! | `-f`, `-b`, `-B` | a check of a clean file system, too; copies are found by themselves |
//! | `-j PATH`, `-z FILE` | `--journal PATH`, `--undo FILE` |
//! | `-E journal_only` | `extant recover` |
//! | `-E no_sandbox` | `--no-sandbox` |
//!
//! A file system that is marked clean is not looked at, unless a check is due by its counters.
//! Exit codes are those of fsck(8).

use crate::arguments::{Argument, arguments};
use crate::commands::repair;
use crate::context::{Context, complain};
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
    journal_only: bool,
    journal: Option<PathBuf>,
    undo: Option<PathBuf>,
    no_sandbox: bool,
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
            Ok([image]) => Ok(Call { image, ..call }),
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
            (b'D', _) => complain("-D: directories stay as they are"),
            (b'c' | b'k' | b'l' | b'L', _) => {
                return Err(
                    "there is no list of bad blocks: -c, -k, -l and -L are not available; \
                            replace a disk that loses blocks"
                        .into(),
                );
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
                "no_sandbox" => self.no_sandbox = true,
                name if EXTENDED_WITHOUT_EFFECT.contains(&name) => {}
                _ => return Err(format!("unknown value of -E: {word}")),
            }
        }
        Ok(())
    }

    fn run(&self) -> ExitCode {
        let journal = self.journal.as_deref().map(image_spec);
        let image = Images { journal, ..Images::of(&self.image) };
        let reads =
            self.answer == Answer::No || self.answer == Answer::Missing && !self.journal_only;
        let mut context = Context::helper(false);
        context.sandbox = !self.no_sandbox;
        if context.sandbox {
            leave_feigned_root();
        }
        self.undo.iter().for_each(|file| repair::begin_undo(file, &context));
        // In use: the command below tells it. If the image is free by then, that enters its own.
        let contained = Preparation::writing(!reads).enter(&context, &[image]).is_ok();
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
            Answer::Missing | Answer::No => self.command(&["check"]),
            Answer::Preen => self.command(&["repair"]),
            Answer::Yes => self.command(&["repair", "--level=lossy"]),
        };
        match self.answer {
            Answer::Missing if done == ExitCode::from(DAMAGED) => {
                complain("nothing was changed: -p repairs without a loss, -y at any price");
            }
            Answer::Preen | Answer::Yes
                if contained && [ExitCode::SUCCESS, ExitCode::from(REPAIRED)].contains(&done) =>
            {
                // A failure leaves the counters, which is no damage.
                let _ = self.command(&["--quiet", "tune", "--mount-count=0", "--last-checked=now"]);
            }
            _ => {}
        }
        done
    }

    /// Runs a command of `extant` on the image.
    fn command(&self, words: &[&str]) -> ExitCode {
        let mut command: Vec<OsString> =
            ["extant"].iter().chain(words).map(OsString::from).collect();
        command.extend(self.no_sandbox.then(|| "--no-sandbox".into()));
        if let Some(journal) = &self.journal {
            command.extend(["--journal".into(), journal.into()]);
        }
        if let Some(undo) = self.undo.as_ref().filter(|_| words.contains(&"repair")) {
            command.extend(["--undo".into(), undo.into()]);
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
