//! `extant trim`: unused blocks of an image given back to the host.

use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::host_claim::while_claimed;
use crate::image::{ImageArgs, OfflineArgs};
use crate::interrupt::Interrupt;
use crate::json;
use crate::remote;
use crate::sandbox::command::Preparation;
use crate::text::{count, size};
use extant_check::{Trim, TrimError, TrimPlan};
use extant_engine::device::{BlockDevice, ImageSpec, image_spec, is_remote};
use extant_engine::{Errno, Error, OpenOptions};
use serde_json::Map;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// Give the unused space of an image back to the host.
///
/// Free blocks, and all blocks of an empty journal but its superblock, become holes of the image
/// file; a block device discards them. The file system is checked first: one that needs recovery,
/// that is marked as having errors, or that is damaged is refused. Nothing is written, so an
/// interruption harms nothing.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    on: OfflineArgs,
    /// Print the result, and change nothing
    #[arg(long, short = 'n')]
    dry_run: bool,
}

/// Bytes that a trim finds and frees.
#[derive(Clone, Copy, Debug)]
struct Trimmed {
    /// In free blocks.
    free: u64,
    /// In unused blocks of the journal.
    journal: u64,
    /// On the host; `None` for block devices.
    freed: Option<u64>,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let image = args.on.named();
    image.contain_alone(context, Preparation::writing(!args.dry_run))?;
    let device = open(&image, &image.spec(), args.dry_run)?;
    if !args.dry_run && device.read_only() {
        let name = image.name();
        return Err(Failure::new(format_args!("{name} cannot be trimmed: it is write-protected")));
    }
    let journal = args.on.journal.as_ref().map(|path| open(&image, &image_spec(path), true));
    let journal = journal.transpose()?;
    let interrupt = Interrupt::register().at("signals")?;
    let trim = |device: Arc<dyn BlockDevice>| {
        let trim = Trim::new(device).threads(context.thread_count()).interrupt(interrupt.flag());
        let trim = journal.iter().fold(trim, |trim, journal| trim.journal(journal.clone()));
        let done = trim.plan().and_then(|plan| args.carry_out(context, &plan));
        done.map_err(|error| refuse(&image, error))
    };
    let trimmed = if args.dry_run {
        trim(device)?
    } else {
        while_claimed(&image, &device, &interrupt.flag(), |claim| trim(claim.device()))?
    };
    args.report(context, &image, trimmed)
}

fn open(image: &ImageArgs, place: &ImageSpec, read_only: bool) -> Result<Arc<dyn BlockDevice>> {
    let options = OpenOptions::new().read_only(read_only).wait(image.wait);
    let free = if read_only { Ok(()) } else { remote::refuse_mounted(&image.image) };
    let opened = free.and_then(|()| options.device_of(place));
    let device = opened.map_err(|error| image.refused(&error))?;
    #[cfg(debug_assertions)]
    crate::planted::strike_from(&*device);
    Ok(device)
}

impl Args {
    fn carry_out(&self, context: &Context, plan: &TrimPlan) -> Result<Trimmed, TrimError> {
        let sum = |sum: u64, len: u64| sum.saturating_add(len);
        let free = plan.free().map(|range| range.end - range.start).fold(0, sum);
        let journal = plan.log().iter().map(|range| range.end - range.start).fold(0, sum);
        let before = self.stored()?;
        if self.dry_run {
            let freed = before.map(|_| plan.stored_bytes()).transpose()?;
            return Ok(Trimmed { free, journal, freed });
        }
        let bar = context.progress(free.saturating_add(journal));
        let applied = plan.apply(&mut |len| bar.inc(len));
        bar.finish_and_clear();
        applied?;
        let after = self.stored()?;
        let freed = before.zip(after).map(|(before, after)| before.saturating_sub(after));
        Ok(Trimmed { free, journal, freed })
    }

    /// Returns the storage of the image file on the host, in bytes; `None` for block devices.
    fn stored(&self) -> std::io::Result<Option<u64>> {
        /// Unit of the host's count, in bytes.
        const SECTOR: u64 = 512;
        let path = image_spec(&self.on.image).path;
        if is_remote(&path) {
            return Ok(None);
        }
        let found = std::fs::metadata(path)?;
        Ok(found.is_file().then(|| found.blocks().saturating_mul(SECTOR)))
    }

    fn report(&self, context: &Context, image: &ImageArgs, trimmed: Trimmed) -> Result {
        let Trimmed { free, journal, freed } = trimmed;
        if context.json {
            let mut document = Map::new();
            json::put_bytes(&mut document, "image", self.on.image.as_os_str().as_bytes());
            document.insert("dry_run".into(), self.dry_run.into());
            document.insert("free_bytes".into(), free.into());
            document.insert("journal_bytes".into(), journal.into());
            document.insert("freed_bytes".into(), freed.into());
            return context.document(&document.into());
        }
        let name = image.name();
        let unused = format!("{} of free blocks and {} of the journal", size(free), size(journal));
        let would = if self.dry_run { "would have " } else { "" };
        match freed {
            Some(freed) => context.note(format_args!(
                "{name}: {would}freed {} on the host: {unused} are unused",
                size(freed)
            )),
            None => context.note(format_args!("{name}: {would}discarded {unused}")),
        }
        Ok(())
    }
}

/// Turns an error into a failure that names object, cause and remedy.
pub(super) fn refuse(image: &ImageArgs, error: TrimError) -> Failure {
    let name = image.name();
    let advice = match &error {
        TrimError::NoSuperblock => format!("; `extant check {name}` tells more"),
        TrimError::NeedsRecovery => format!("; run `extant recover {name}` first"),
        TrimError::HasErrors | TrimError::NotUnmounted => {
            format!("; run `extant repair {name}` first")
        }
        TrimError::NoJournal => "; name it with --journal".into(),
        TrimError::Damaged(found) => format!(
            " ({}), so that free blocks may be in use; run `extant repair {name}` first",
            count(found.damages.saturating_add(found.fatal), "finding")
        ),
        TrimError::Io(error) if error.kind() == std::io::ErrorKind::Unsupported => {
            "; the host cannot release a part of it, but `cp --sparse=always` makes a small copy"
                .into()
        }
        _ => String::new(),
    };
    let message = format!("{name}: {error}{advice}");
    let path = image.image.as_os_str().as_bytes();
    match error {
        TrimError::Io(error) => Failure::of(&Error::Io(error), path, message),
        TrimError::Interrupted => Failure::of(&Errno::Intr.into(), path, message),
        TrimError::InUse => Failure::of(&Errno::Busy.into(), path, message),
        _ => Failure::new(message),
    }
}
