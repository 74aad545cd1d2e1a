//! `extant apply`: a script of edits, made wholly or not at all.

use super::check::open_for_reading;
use super::repair::open_for_writing;
use super::{chmod, chown, ln, mkdir, mknod, mv, put, rm, setfattr, truncate, utimes};
use crate::context::Context;
use crate::copy::redo::RedoFile;
use crate::failure::{At, Failure, Result};
use crate::host_claim::while_claimed;
use crate::image::{Changes, ImageArgs};
use crate::interrupt::Interrupt;
use crate::json::put_bytes;
use crate::sandbox::command::Preparation;
use crate::script::{ScriptLine, cause_of, parse_script, read_script, shown_words};
use crate::spill::{self, SpillFile};
use crate::text::count;
use clap::{CommandFactory, FromArgMatches, Parser};
use extant_check::edit::{Edit, EditBase, EditError};
use extant_check::repair::{NoLargerLog, OfflineError};
use extant_engine::device::{BlockDevice, OverlayDevice, identify, image_spec};
use extant_engine::format::MAGIC_FIELD;
use extant_engine::{Errno, Error, Fs, HostClaim, OpenOptions};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Make all edits of a script, or none.
///
/// A script has one command a line, in words as a shell quotes them; # begins a comment. Commands
/// are put, rm, mkdir, mv, ln, symlink, mknod, chmod, chown, truncate, setfattr and utimes, with
/// the arguments of `extant COMMAND` behind IMAGE; `symlink TARGET PATH` is `ln -sT`. The edits are
/// made in memory, then written in one transaction of the journal, or of a larger one in free
/// blocks if they exceed it: a failure or a power cut leaves all of them or none. An image that
/// needs recovery is recovered before.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// File with the edits; - is standard input
    #[arg(default_value = "-")]
    script: PathBuf,
    /// Make the edits in memory only, and print them
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Allow a file system without a journal, where a power cut leaves a part of the changes
    #[arg(long)]
    in_place: bool,
    /// Of a file system without a journal, keep the changes in a new file until they are made, by
    /// which `recover --redo` completes them after a power cut
    #[arg(long, value_name = "FILE", conflicts_with_all = ["in_place", "dry_run"])]
    redo: Option<PathBuf>,
}

/// Most MiB of a script.
const MAX_SCRIPT: u64 = 64;

/// Bytes of changes in memory. Others are in a file without a name in the folder for temporary
/// files.
const MAX_HELD: usize = 256 << 20;

/// Files for changes beyond memory: of the recovery, of the edits, and of an external journal.
const SPILLS: usize = 3;

/// Unit in which changes of an external journal are stored, in bytes.
const JOURNAL_UNIT: usize = 4096;

type Device = Arc<dyn BlockDevice>;

/// A line of a script.
#[derive(Parser, Debug)]
#[command(no_binary_name = true, disable_help_flag = true, disable_help_subcommand = true)]
enum Line {
    #[command(disable_help_flag = true)]
    Put(put::Edit),
    #[command(disable_help_flag = true)]
    Rm(rm::Edit),
    #[command(disable_help_flag = true)]
    Mkdir(mkdir::Edit),
    #[command(disable_help_flag = true)]
    Mv(mv::Edit),
    #[command(disable_help_flag = true)]
    Ln(ln::Edit),
    #[command(disable_help_flag = true)]
    Symlink(ln::Symlink),
    #[command(disable_help_flag = true)]
    Mknod(mknod::Edit),
    #[command(disable_help_flag = true)]
    Chmod(chmod::Edit),
    #[command(disable_help_flag = true)]
    Chown(chown::Edit),
    #[command(disable_help_flag = true)]
    Truncate(truncate::Edit),
    #[command(disable_help_flag = true)]
    Setfattr(setfattr::Edit),
    #[command(disable_help_flag = true)]
    Utimes(utimes::Edit),
}

/// An edit, and its place in the script.
struct Step {
    number: usize,
    /// The line as words, for messages.
    text: String,
    edit: Line,
}

/// A script whose lines are known to be commands.
struct Script {
    name: String,
    steps: Vec<Step>,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let script = Script::read(args)?;
    let image = &args.image;
    spill::prepare(SPILLS);
    let redo =
        args.redo.as_deref().map(|path| RedoFile::begin(path, image, context)).transpose()?;
    let sandbox = script.sandbox(Preparation::writing(!args.dry_run));
    image.contain(context, sandbox)?;
    let open = if args.dry_run { open_for_reading } else { open_for_writing };
    let open = |place| open(image, &place).map_err(|failure| failure.with_exit_code(1));
    let device = open(image.spec())?;
    let journal = image.journal.as_deref().map(image_spec).map(open).transpose()?;
    let (redo, threads) = (redo.map(RefCell::new), context.thread_count());
    let work = Work { args, device, journal, claim: None, redo, threads, recovered: false };
    if args.dry_run {
        return work.carry_out(context, &script);
    }
    let interrupt = Interrupt::register().at("signals")?;
    let device = work.device.clone();
    while_claimed(image, &device, &interrupt.flag(), |claim| {
        if interrupt.restore_default() {
            return Err(image.refused(&Errno::Intr.into()));
        }
        Work { device: claim.device(), claim: Some(claim), ..work }.carry_out(context, &script)
    })
}

impl Script {
    fn read(args: &Args) -> Result<Script> {
        let stdin = args.script == OsStr::new("-");
        let (name, text) = read_script(&args.script, MAX_SCRIPT)?;
        let lines = parse_script(&text).map_err(|bad| {
            let message = format!("{name}:{}: {}", bad.number, bad.why);
            Failure::usage(message).after(line_document(bad.number))
        })?;
        let mut command = Line::command();
        let steps = lines.into_iter().map(|line| step(&mut command, &name, line));
        let script = Script { steps: steps.collect::<Result<_>>()?, name };
        script.check_stdin(stdin)?;
        Ok(script)
    }

    /// Refuses a second reader of standard input, which would find nothing.
    fn check_stdin(&self, is_script: bool) -> Result {
        let reads = |step: &&Step| matches!(&step.edit, Line::Put(edit) if edit.reads_stdin());
        let mut readers = self.steps.iter().filter(reads).skip(usize::from(!is_script));
        let Some(step) = readers.next() else { return Ok(()) };
        let message = format!(
            "{}: standard input is read by {} already; put the content in a file",
            self.place(step),
            if is_script { "the script" } else { "another line" }
        );
        Err(Failure::usage(message).after(line_document(step.number)))
    }

    /// Adds the sources of the script to a sandbox.
    fn sandbox(&self, sandbox: Preparation) -> Preparation {
        self.steps.iter().fold(sandbox, |sandbox, step| match &step.edit {
            Line::Put(edit) => edit.sandbox(sandbox),
            _ => sandbox,
        })
    }

    fn place(&self, step: &Step) -> String {
        format!("{}:{}: {}", self.name, step.number, step.text)
    }
}

/// Returns the member of a failure's document that names its line.
fn line_document(number: usize) -> Map<String, Value> {
    Map::from_iter([("line".to_owned(), number.into())])
}

/// Parses the words of a line.
fn step(command: &mut clap::Command, name: &str, line: ScriptLine) -> Result<Step> {
    let text = shown_words(&line.words);
    let fail = |why: &str| {
        let failure = Failure::usage(format_args!("{name}:{}: {text}: {why}", line.number));
        failure.after(line_document(line.number))
    };
    let parsed = command.try_get_matches_from_mut(&line.words);
    let edit = parsed
        .and_then(|matches| Line::from_arg_matches(&matches))
        .map_err(|error| fail(&cause_of(&error)))?;
    let checked = match &edit {
        Line::Ln(edit) => edit.check(),
        Line::Mknod(edit) => edit.kind().map(drop),
        _ => Ok(()),
    };
    checked.map_err(|failure| fail(failure.message().unwrap_or_default()))?;
    Ok(Step { number: line.number, text, edit })
}

/// An image, and the script's work on it.
struct Work<'a> {
    args: &'a Args,
    device: Device,
    journal: Option<Device>,
    /// The claim against other hosts, from the recovery until everything is written.
    claim: Option<&'a HostClaim>,
    redo: Option<RefCell<RedoFile>>,
    /// Threads for a survey.
    threads: usize,
    /// A recovery was written to the image.
    recovered: bool,
}

/// The edits that were made: documents with their line, command and paths.
type Done = Vec<Value>;

impl<'a> Work<'a> {
    /// Makes the edits, writes them, and prints the result.
    fn carry_out(mut self, context: &Context, script: &Script) -> Result {
        self.recover(context)?;
        let (done, edit) = if script.steps.is_empty() {
            (Vec::new(), None)
        } else {
            let (overlay, journal) = self.overlays()?;
            let (fs, over) = (self.open_fs(&overlay, journal)?, overlay);
            self.edit(context, (fs, over), script)?
        };
        self.tell(context, (script, done), edit.as_ref())
    }

    /// Recovers the image if it must be; in memory if nothing is to be changed.
    fn recover(&mut self, context: &Context) -> Result {
        if !self.base().needs_recovery().map_err(|error| self.refused(error))? {
            return Ok(());
        }
        if self.args.dry_run {
            let overlay = |device, unit| OverlayDevice::new(device, unit, MAX_HELD);
            let trial = self.base().overlay(MAX_HELD).map_err(|error| self.refused(error))?;
            self.device = Arc::new(trial.with_spill(Arc::new(SpillFile::new(&*self.device))));
            let journal = self.journal.take();
            self.journal = journal.map(|journal| Arc::new(overlay(journal, JOURNAL_UNIT)) as _);
        }
        self.recovered = !self.args.dry_run;
        let image = &self.args.image;
        let options = OpenOptions::new().count_mount(false);
        let fs = image.open_by(&options, |options| {
            Fs::open_device(self.device.clone(), &self.on(options, self.journal.clone()))
        })?;
        image.opened(context, &fs)?;
        image.close(fs)
    }

    /// Returns options with the device of an external journal, and the claim.
    fn on(&self, options: &OpenOptions, journal: Option<Device>) -> OpenOptions {
        let options = options.clone();
        let options = self.claim.into_iter().fold(options, OpenOptions::under_claim);
        journal.into_iter().fold(options, OpenOptions::journal_on)
    }

    fn base(&self) -> EditBase<'_> {
        let journal = self.journal.as_ref();
        EditBase { device: &self.device, journal, threads: self.threads }
    }

    /// Makes overlays of the file system and of its external journal.
    fn overlays(&self) -> Result<(Arc<OverlayDevice>, Option<Device>)> {
        let overlay = self.base().overlay(MAX_HELD).map_err(|error| self.refused(error))?;
        let overlay = overlay.with_spill(Arc::new(SpillFile::new(&*self.device)));
        let journal = self.journal.clone().map(|journal| -> Device {
            let spill = Arc::new(SpillFile::new(&*journal));
            Arc::new(OverlayDevice::new(journal, JOURNAL_UNIT, MAX_HELD).with_spill(spill))
        });
        Ok((Arc::new(overlay), journal))
    }

    /// Opens the file system over the overlay.
    fn open_fs(&self, overlay: &Arc<OverlayDevice>, journal: Option<Device>) -> Result<Fs> {
        self.args.image.open_by(&OpenOptions::new(), |options| {
            Fs::open_device(overlay.clone(), &self.on(options, journal.clone()))
        })
    }

    /// Makes the edits over the overlay, and writes the result.
    fn edit(
        &self,
        context: &Context,
        (fs, overlay): (Fs, Arc<OverlayDevice>),
        script: &Script,
    ) -> Result<(Done, Option<Edit>)> {
        let image = &self.args.image;
        image.opened(context, &fs)?;
        let done = self.make(context, &fs, script);
        let closed = image.close(fs).map_err(|failure| self.unchanged(failure, ""));
        let done = done.and_then(|done| closed.map(|()| done))?;
        let edit = Edit::plan(self.base(), overlay).map_err(|error| self.refused(error))?;
        let in_place = self.args.in_place || self.args.dry_run || self.redo.is_some();
        edit.check(in_place).map_err(|error| self.refused(error))?;
        if let Some(blocks) = edit.larger_log() {
            context.detail(format_args!(
                "{}: the changes exceed the journal, and go through one of {} in free space",
                image.name(),
                count(blocks, "block")
            ));
        }
        if !self.args.dry_run {
            let owned = self.claim.map_or(Ok(()), HostClaim::check);
            owned.map_err(|error| image.refused(&error))?;
            self.write(&edit, context)?;
        }
        Ok((done, Some(edit)))
    }

    /// Writes the changes, with a redo file if one is asked for and there is no journal.
    fn write(&self, edit: &Edit, context: &Context) -> Result {
        let Some(redo) = &self.redo else {
            return edit.apply(self.args.in_place).map_err(|error| self.refused(error));
        };
        let mut file = redo.borrow_mut();
        let image = &self.args.image;
        let done = edit.apply_with_redo(&mut |record| file.save(record, (image, context)));
        if let Some(failure) = file.failure() {
            return Err(self.unchanged(failure, ""));
        }
        drop(file);
        done.map_err(|error| self.refused(error))?;
        redo.borrow_mut().end(context);
        Ok(())
    }

    fn make(&self, context: &Context, fs: &Fs, script: &Script) -> Result<Done> {
        let mut done = Done::new();
        for step in &script.steps {
            let mut changes = Changes::of_one();
            let made = step.edit.make(context, (fs, &self.args.image), &mut changes);
            made.map_err(|failure| {
                let failure = self.unchanged(failure, &script.place(step));
                failure.after(line_document(step.number))
            })?;
            done.push(json!({
                "line": step.number,
                "command": step.text,
                "changed": changes.into_changed(),
            }));
        }
        Ok(done)
    }

    /// Adds the place in the script, and the state of the image, to a failure.
    fn unchanged(&self, failure: Failure, place: &str) -> Failure {
        let name = self.args.image.name();
        let cause = failure.message().unwrap_or("failed, for the reasons above").to_owned();
        let before = if place.is_empty() { String::new() } else { format!("{place}: ") };
        let state = if self.recovered { "was recovered, and is otherwise" } else { "is" };
        failure.with_message(format!("{before}{cause}; {name} {state} unchanged"))
    }

    /// Turns an error of the writes into a failure that names object, cause and remedy.
    fn refused(&self, error: EditError) -> Failure {
        let image = &self.args.image;
        let name = image.name();
        let advice = match error {
            EditError::Corrupt(corrupt) if corrupt.field_name() == Some(MAGIC_FIELD) => {
                let foreign = identify(&*self.device).map(Error::Foreign);
                return image.refused(&foreign.unwrap_or(Error::Corrupt(corrupt)));
            }
            EditError::Corrupt(corrupt) => return image.refused(&Error::Corrupt(corrupt)),
            EditError::Io(error) => return image.refused(&Error::Io(error)),
            EditError::NeedsRecovery => format!("; run `extant recover {name}` first"),
            EditError::JournalMissing => "; --journal names it".into(),
            EditError::Journal(_) => format!("; run `extant repair {name}` first"),
            EditError::NoJournal => {
                "; nothing was changed; --redo FILE makes them whole, --in-place allows that, and \
                 `extant tune --features has_journal` makes a journal"
                    .into()
            }
            EditError::TooLarge { why: Some(NoLargerLog::Damage(_)), .. } => {
                format!("; nothing was changed; run `extant repair {name}` first")
            }
            EditError::TooLarge { .. } => {
                "; nothing was changed; apply the script in parts, since blocks that are free \
                 before a part need no place in the journal"
                    .into()
            }
            EditError::JournalStays(_) => format!("; run `extant recover {name}`"),
            EditError::Apply(OfflineError::InLog(_)) => {
                format!("; `extant recover {name}` completes them")
            }
            EditError::Partly(_) => match &self.redo {
                Some(redo) => format!("; {}", redo.borrow().remedy(image)),
                None => format!("; run `extant repair {name}`"),
            },
            _ => String::new(),
        };
        Failure::new(format_args!("{name}: {error}{advice}"))
    }

    fn tell(
        &self,
        context: &Context,
        (script, done): (&Script, Done),
        edit: Option<&Edit>,
    ) -> Result {
        let (image, dry_run) = (&self.args.image, self.args.dry_run);
        let [new, used] = edit.map_or([0; 2], Edit::changed_blocks);
        if context.json {
            let mut document = Map::new();
            put_bytes(&mut document, "image", image.image.as_os_str().as_bytes());
            put_bytes(&mut document, "script", self.args.script.as_os_str().as_bytes());
            document.insert("dry_run".into(), dry_run.into());
            document.insert("edits".into(), done.into());
            document.insert("blocks".into(), json!({ "new": new, "in_use": used }));
            return context.document(&document.into());
        }
        if dry_run {
            let mut out = BufWriter::new(std::io::stdout().lock());
            script.steps.iter().try_for_each(|step| writeln!(out, "{}", script.place(step)))?;
            out.flush()?;
        }
        let would = if dry_run { "would make" } else { "made" };
        context.note(format_args!(
            "{}: {would} {}: {} in use and {} changed",
            image.name(),
            count(script.steps.len() as u64, "edit"),
            count(used, "block"),
            count(new, "free block"),
        ));
        if edit.is_some_and(|edit| dry_run && !self.args.in_place && !edit.has_journal()) {
            let name = image.name();
            context
                .note(format_args!("{name}: has no journal, so this needs --redo or --in-place"));
        }
        Ok(())
    }
}

impl Line {
    fn make(
        &self,
        context: &Context,
        (fs, image): (&Fs, &ImageArgs),
        changes: &mut Changes,
    ) -> Result {
        match self {
            Line::Put(edit) => edit.make(context, (fs, &image.image), changes),
            Line::Rm(edit) => edit.make(context, fs, changes),
            Line::Mkdir(edit) => edit.make(fs, changes),
            Line::Mv(edit) => edit.make(fs, changes),
            Line::Ln(edit) => edit.make(fs, changes),
            Line::Symlink(edit) => edit.make(fs, changes),
            Line::Mknod(edit) => edit.make(fs, changes),
            Line::Chmod(edit) => edit.make(fs, changes),
            Line::Chown(edit) => edit.make(fs, changes),
            Line::Truncate(edit) => edit.make(fs, changes),
            Line::Setfattr(edit) => edit.make(fs, changes),
            Line::Utimes(edit) => edit.make(fs, changes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_scripts_are_consistent() {
        Line::command().debug_assert();
    }
}
