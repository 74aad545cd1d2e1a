//! `extant check`: all damage of a file system, without a change.

use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::image::{ImageArgs, OfflineArgs};
use crate::interrupt::Interrupt;
use crate::json::Array;
use crate::sandbox::command::Preparation;
use crate::text::count;
use extant_check::{Check, CheckStage, CheckSummary, Finding};
use extant_engine::OpenOptions;
use extant_engine::device::{BlockDevice, ImageSpec, image_spec};
use serde_json::{Value, json};
use std::io::{self, BufWriter, StdoutLock, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

/// Check a file system without changing it.
///
/// The journal is replayed in memory first. Prints a line for each finding: code, place, found and
/// expected value, planned repair. Exit codes are those of fsck(8): 0 no damage, 4 damage, 8 the
/// image cannot be opened, 32 interrupted.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    on: OfflineArgs,
    /// Check the image as it is, without the changes in its journal
    #[arg(long)]
    as_is: bool,
    /// Check an image that another program uses, as `e2fsck -n` does
    #[arg(long, hide = true)]
    in_use: bool,
    /// Read every block of the file system, too, and print those that cannot be read and are not
    /// listed as bad
    #[arg(long)]
    read_test: bool,
}

/// Exit codes of fsck(8).
const DAMAGED: u8 = 4;
const OPERATIONAL: u8 = 8;
const CANCELED: u8 = 32;

/// The form in which findings are printed.
enum Out {
    Text(BufWriter<StdoutLock<'static>>),
    Json(Array<BufWriter<StdoutLock<'static>>>),
}

impl Out {
    fn new(context: &Context) -> Out {
        let out = BufWriter::new(io::stdout().lock());
        if context.json { Out::Json(context.array(out)) } else { Out::Text(out) }
    }

    fn finding(&mut self, finding: &Finding) -> io::Result<()> {
        match self {
            Out::Text(out) => writeln!(out, "{finding}; repair: {}", finding.repair().name()),
            Out::Json(array) => array.push(&object(finding)),
        }
    }

    fn finish(self, summary: CheckSummary) -> io::Result<()> {
        match self {
            Out::Text(mut out) => out.flush(),
            Out::Json(mut array) => {
                array.push(&json!({ "summary": {
                    "clean": summary.is_clean(),
                    "notes": summary.notes,
                    "damages": summary.damages,
                    "fatal": summary.fatal,
                    "interrupted": summary.interrupted,
                } }))?;
                array.finish()
            }
        }
    }
}

/// Returns a finding as an object of JSON.
pub(super) fn object(finding: &Finding) -> Value {
    let place = &finding.place;
    json!({
        "code": finding.code.name(),
        "severity": finding.severity().name(),
        "place": {
            "inode": place.inode,
            "group": place.group,
            "block": place.block,
            "file_block": place.logical,
            "field": place.field,
        },
        "found": finding.found,
        "expected": finding.expected,
        "repair": finding.repair().name(),
    })
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let image = args.on.named();
    let image = if args.in_use { image.read_although_in_use() } else { image };
    if image.in_use {
        let name = image.name();
        context.note(format_args!(
            "{name} is in use: it is checked without its journal, and changes meanwhile may count \
             as damage"
        ));
    }
    let contained = image.contain(context, Preparation::default());
    contained.map_err(|failure| failure.with_exit_code(OPERATIONAL))?;
    let open = if args.read_test { open_for_test } else { open_for_reading };
    let device = open(&image, &image.spec())?;
    let journal = args
        .on
        .journal
        .as_ref()
        .map(|path| open_for_reading(&image, &image_spec(path)))
        .transpose()?;
    // Only now: until here, a signal ends the process, also while it waits.
    let interrupt = Interrupt::register().at("signals")?;
    let bar = context.parts();
    let mut show = |progress: extant_check::CheckProgress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
        bar.set_message(match progress.stage {
            CheckStage::Inodes => "groups of inodes",
            CheckStage::Blocks => "parts of 4 MiB read",
            _ => "directories",
        });
    };
    let mut check = Check::new(device).as_is(args.as_is).in_use(image.in_use);
    check = check.read_test(args.read_test).threads(context.thread_count());
    check = check.interrupt(interrupt.flag()).progress(&mut show);
    if let Some(journal) = journal {
        check = check.journal(journal);
    }
    let (mut out, mut written) = (Out::new(context), Ok(()));
    let summary = check.run(&mut |finding| {
        if written.is_ok() {
            written = out.finding(&finding);
        }
    });
    bar.finish_and_clear();
    written.and_then(|()| out.finish(summary))?;
    tell(&image, context, summary)
}

/// Opens a device for reading.
pub fn open_for_reading(image: &ImageArgs, place: &ImageSpec) -> Result<Arc<dyn BlockDevice>> {
    open_by(OpenOptions::new().read_only(true), image, place)
}

/// As [`open_for_reading`], past the page cache of a disk, which may hold blocks that are lost.
pub(super) fn open_for_test(image: &ImageArgs, place: &ImageSpec) -> Result<Arc<dyn BlockDevice>> {
    let options = OpenOptions::new().read_only(true);
    open_by(options.direct_io(is_disk(&place.path)), image, place)
}

/// Returns whether a path leads to a block device.
pub(super) fn is_disk(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

fn open_by(
    options: OpenOptions,
    image: &ImageArgs,
    place: &ImageSpec,
) -> Result<Arc<dyn BlockDevice>> {
    let opened =
        if image.in_use { image.reader(place) } else { options.wait(image.wait).device_of(place) };
    let device = opened.map_err(|error| image.refused(&error).with_exit_code(OPERATIONAL))?;
    #[cfg(debug_assertions)]
    crate::planted::strike_from(&*device);
    Ok(device)
}

fn tell(image: &ImageArgs, context: &Context, summary: CheckSummary) -> Result {
    let name = image.name();
    let damages = count(summary.damages.saturating_add(summary.fatal), "damage");
    let notes = count(summary.notes, "note");
    if summary.interrupted {
        context.note(format_args!("{name}: interrupted after {damages} and {notes}"));
        return Err(Failure::told().with_exit_code(CANCELED));
    }
    if summary.is_clean() {
        context.note(format_args!("{name}: clean, {notes}"));
        return Ok(());
    }
    let advice = match summary.fatal {
        0 => "`extant repair` repairs them",
        _ => "the rest cannot be checked",
    };
    context.note(format_args!("{name}: {damages} and {notes}; {advice}"));
    Err(Failure::told().with_exit_code(DAMAGED))
}
