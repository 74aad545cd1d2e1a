//! `extant repair`: damage removed, wholly or not at all.

use super::check::{is_disk, object, open_for_reading, open_for_test};
use crate::bad_blocks::{BadBlockArgs, tell_unlisted};
use crate::context::Context;
use crate::copy::redo::{RedoFile, SaveRedo};
use crate::copy::undo::UndoFile;
use crate::failure::{At, Failure, Result};
use crate::host_claim::while_checked;
use crate::image::{ImageArgs, OfflineArgs};
use crate::interrupt::Interrupt;
use crate::remote;
use crate::sandbox::command::Preparation;
use crate::text::{count, shown};
use extant_check::Finding;
use extant_check::repair::{Repair, RepairError, RepairLevel, RepairPlan, restore};
use extant_engine::OpenOptions;
use extant_engine::device::{BlockDevice, ImageSpec, image_spec};
use serde_json::json;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Repair a file system.
///
/// The repair is planned in memory. It is written only if a check of its result finds nothing, in
/// one transaction of the journal, or of a larger one in free blocks if it exceeds that: a failure
/// or a power cut leaves the old state or the new one.
/// Without a journal a power cut may leave a part of it, which another run completes, or `recover`
/// with the file of --redo. Prints a line
/// for each finding that is repaired. Exit codes are those of fsck(8): 0 nothing to repair, 1
/// repaired, 4 damage is left and nothing was changed, 8 the image cannot be opened or written, 32
/// interrupted.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    on: OfflineArgs,
    /// Price of the repair: `safe` changes only facts that follow from undamaged structures;
    /// `lossy` removes damaged entries, extents, attributes and inodes, too
    #[arg(long, value_enum, default_value_t = Level::Safe)]
    level: Level,
    /// Plan the repair in memory only, and print it
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Save the old content of all changed blocks in a new file first
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    undo: Option<PathBuf>,
    /// Of a file system without a journal, keep the changes in a new file until they are made, by
    /// which `recover --redo` completes them after a power cut
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    redo: Option<PathBuf>,
    #[command(flatten)]
    bad: BadBlockArgs,
    /// Empty the list of bad blocks first
    #[arg(long)]
    forget_bad_blocks: bool,
    /// Take a repair back: write the blocks of its undo file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dry_run", "undo", "redo", "level"])]
    #[arg(conflicts_with_all = ["read_test", "bad_blocks", "forget_bad_blocks"])]
    restore: Option<PathBuf>,
}

/// The price of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Level {
    Safe,
    Lossy,
}

/// Exit codes of fsck(8).
const REPAIRED: u8 = 1;
const DAMAGED: u8 = 4;
const OPERATIONAL: u8 = 8;
const CANCELED: u8 = 32;

/// Runs the command. Its failures have no code that says "repaired".
pub fn run(args: &Args, context: &Context) -> Result {
    repair(args, context)?.map_or(Ok(()), |code| Err(Failure::told().with_exit_code(code)))
}

/// Repairs. Returns the exit code of a repair that is none of a failure.
fn repair(args: &Args, context: &Context) -> Result<Option<u8>> {
    attempt(args, context).map_err(|failure| match failure.exit_code() {
        DAMAGED | CANCELED => failure,
        _ => failure.with_exit_code(OPERATIONAL),
    })
}

fn attempt(args: &Args, context: &Context) -> Result<Option<u8>> {
    let image = args.on.named();
    let open = |place: &ImageSpec| {
        if args.dry_run { open_for_reading(&image, place) } else { open_for_writing(&image, place) }
    };
    let begun = args
        .undo
        .as_deref()
        .map(|path| take_begun().unwrap_or_else(|| UndoFile::begin(path, context)));
    let redo =
        args.redo.as_deref().map(|path| RedoFile::begin(path, &image, context)).transpose()?;
    let sandbox = Preparation::writing(!args.dry_run);
    let files = args.restore.as_deref().into_iter().chain(args.bad.file());
    let sandbox = files.fold(sandbox, |all, file| all.reading(file));
    image.contain(context, sandbox)?;
    let spec = image.spec();
    let device = if !(args.bad.reads_all() && is_disk(&spec.path)) {
        open(&spec)?
    } else if args.dry_run {
        open_for_test(&image, &spec)?
    } else {
        open_for_writing_by(OpenOptions::new().direct_io(true), &image, &spec)?
    };
    let interrupt = Interrupt::register().at("signals")?;
    let journal = args.on.journal.as_ref().map(|path| open(&image_spec(path))).transpose()?;
    let work = |device: Arc<dyn BlockDevice>| {
        if let Some(file) = &args.restore {
            return take_back(&image, context, &*device, file).map(|()| None);
        }
        let level = match args.level {
            Level::Safe => RepairLevel::Safe,
            Level::Lossy => RepairLevel::Lossy,
        };
        let stop = interrupt.flag();
        let bad_blocks =
            args.bad.wanted(args.forget_bad_blocks, (&image, context), (&*device, &stop))?;
        let mut repair = Repair::new(device).level(level).threads(context.thread_count());
        if let Some(blocks) = bad_blocks {
            repair = repair.bad_blocks(blocks);
        }
        repair = repair.interrupt(interrupt.flag());
        if let Some(journal) = journal {
            repair = repair.journal(journal);
        }
        let mut found = Vec::new();
        match repair.plan(&mut |finding| found.push(finding)) {
            Ok(plan) => carry_out(args, (&image, begun, redo), context, (&plan, &found)),
            Err(error) => Err(refuse(&image, context, &error)),
        }
    };
    if args.dry_run {
        return work(device);
    }
    let flag = interrupt.flag();
    let done = while_checked(&image, &device, &flag, |claim| work(claim.device()));
    // A wait for other hosts that was ended has the code of a plan that was.
    done.map_err(
        |failure| {
            if failure.is_interruption() { failure.with_exit_code(CANCELED) } else { failure }
        },
    )
}

/// Opens a device for writing.
pub(super) fn open_for_writing(
    image: &ImageArgs,
    place: &ImageSpec,
) -> Result<Arc<dyn BlockDevice>> {
    open_for_writing_by(OpenOptions::new(), image, place)
}

fn open_for_writing_by(
    options: OpenOptions,
    image: &ImageArgs,
    place: &ImageSpec,
) -> Result<Arc<dyn BlockDevice>> {
    let free = remote::refuse_mounted(&image.image);
    let opened = free.and_then(|()| options.wait(image.wait).device_of(place));
    let device = opened.map_err(|error| image.refused(&error).with_exit_code(OPERATIONAL))?;
    #[cfg(debug_assertions)]
    crate::planted::strike_from(&*device);
    Ok(device)
}

/// As [`open_for_writing`], for a command that always writes.
///
/// # Errors
/// As there; a device that is write-protected.
pub fn open_writable(image: &ImageArgs, place: &ImageSpec) -> Result<Arc<dyn BlockDevice>> {
    let device = open_for_writing(image, place).map_err(|failure| failure.with_exit_code(1))?;
    if device.read_only() {
        return Err(Failure::new(format_args!(
            "{}: {} is write-protected, or on a file system that is mounted read-only; nothing \
             was changed",
            image.name(),
            shown(place.to_string().as_bytes())
        )));
    }
    Ok(device)
}

/// Prints the plan, and makes the repair unless it is a dry run.
fn carry_out(
    args: &Args,
    (image, undo, redo): (&ImageArgs, Option<Result<UndoFile>>, Option<RedoFile>),
    context: &Context,
    (plan, found): (&RepairPlan, &[Finding]),
) -> Result<Option<u8>> {
    let name = image.name();
    let blocks = plan.changed_blocks().map_err(|error| failure(image, &error))?;
    if !args.dry_run && blocks > 0 {
        if let Some(undo) = undo {
            let save = |out: &mut dyn Write| plan.save_undo(out);
            undo?.save(save, |error| failure(image, &error))?;
        }
        write(plan, redo, image, context)?;
    }
    print(
        context,
        found,
        json!({
            "repaired": blocks > 0 && !args.dry_run,
            "dry_run": args.dry_run,
            "findings": found.len(),
            "blocks": blocks,
        }),
    )?;
    let left = if tell_unlisted(plan, image) { DAMAGED } else { 0 };
    if blocks == 0 {
        context.note(format_args!("{name}: nothing to repair"));
        return Ok((left > 0).then_some(left));
    }
    let would = if args.dry_run { "would have repaired" } else { "repaired" };
    let (findings, changed) = (count(found.len() as u64, "finding"), count(blocks, "block"));
    context.note(format_args!("{name}: {would} {findings}, {changed} changed"));
    Ok(Some(if args.dry_run { DAMAGED } else { REPAIRED | left }))
}

/// Writes the repair, with a redo file if one is asked for and there is no journal of use.
fn write(
    plan: &RepairPlan,
    redo: Option<RedoFile>,
    image: &ImageArgs,
    context: &Context,
) -> Result {
    let Some(redo) = redo else {
        return plan.apply().map_err(|error| failure(image, &error));
    };
    let change = |save: &mut SaveRedo<'_>| plan.apply_with_redo(save);
    redo.make((image, context), change, |error, remedy| match error {
        RepairError::Partly(_) => Failure::new(format_args!("{}: {error}; {remedy}", image.name()))
            .with_exit_code(OPERATIONAL),
        error => failure(image, &error),
    })
}

/// Prints findings as lines or as a JSON document, which ends with a summary.
fn print(context: &Context, found: &[Finding], summary: serde_json::Value) -> Result {
    let mut out = BufWriter::new(io::stdout().lock());
    if context.json {
        let mut array = context.array(out);
        found.iter().try_for_each(|finding| array.push(&object(finding)))?;
        array.push(&json!({ "summary": summary }))?;
        return Ok(array.finish()?);
    }
    for finding in found {
        writeln!(out, "{finding}; repair: {}", finding.repair().name())?;
    }
    Ok(out.flush()?)
}

/// The undo file of the repair that follows in this process, from before its sandbox.
static BEGUN: Mutex<Option<Result<UndoFile>>> = Mutex::new(None);

fn take_begun() -> Option<Result<UndoFile>> {
    BEGUN.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Begins the undo file of the repair that follows in this process, which enters a sandbox before.
pub fn begin_undo(path: &Path, context: &Context) {
    *BEGUN.lock().unwrap_or_else(PoisonError::into_inner) = Some(UndoFile::begin(path, context));
}

fn take_back(
    image: &ImageArgs,
    context: &Context,
    device: &dyn BlockDevice,
    path: &Path,
) -> Result {
    let mut file = BufReader::new(File::open(path).at(path.display().to_string())?);
    let blocks = restore(device, &mut file).map_err(|error| failure(image, &error))?;
    context.note(format_args!("{}: took back {}", image.name(), count(blocks, "block")));
    Ok(())
}

/// A failure of the device, or of the writes.
fn failure(image: &ImageArgs, error: &RepairError) -> Failure {
    let name = image.name();
    let advice = match error {
        RepairError::Apply(extant_check::repair::OfflineError::InLog(_)) => {
            format!("; `extant recover {name}` completes it")
        }
        RepairError::JournalStays(_) => format!("; run `extant recover {name}`"),
        RepairError::Partly(_) => "; run it again".into(),
        _ => String::new(),
    };
    Failure::new(format_args!("{name}: {error}{advice}")).with_exit_code(OPERATIONAL)
}

/// Turns an error of planning into a failure that names object, cause and remedy.
fn refuse(image: &ImageArgs, context: &Context, error: &RepairError) -> Failure {
    let name = image.name();
    let (left, advice) = match error {
        RepairError::NeedsLossy(found) => (
            found.as_slice(),
            "; `--level lossy --undo FILE` repairs them at the price of damaged parts",
        ),
        RepairError::Remaining(found) => (found.as_slice(), "; `e2fsck -fy` may repair a copy"),
        RepairError::FastCommits => (&[][..], "; run `extant recover` first"),
        RepairError::Journal(_) => (&[][..], "; `--level lossy` drops its changes"),
        RepairError::NoSpace | RepairError::TooLarge { .. } => {
            (&[][..], "; make the image larger, or repair a copy of it")
        }
        _ => (&[][..], ""),
    };
    let summary = json!({ "repaired": false, "findings": left.len(), "blocks": 0 });
    if let Err(failure) = print(context, left, summary) {
        return failure;
    }
    let code = match error {
        RepairError::Interrupted => CANCELED,
        RepairError::Io(_) | RepairError::InUse => OPERATIONAL,
        _ => DAMAGED,
    };
    let message = format!("{name}: nothing was changed: {error}{advice}");
    Failure::new(message).with_exit_code(code)
}
