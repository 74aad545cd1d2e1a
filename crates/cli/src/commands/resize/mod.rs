//! `extant resize`: another size of a file system. One that nothing has open gets it by the writes
//! of this command; one on a live mount by its [server](live).
//!
//! The arguments are those of resize2fs(8), under whose name the program runs this command.

mod live;

use super::check::open_for_reading;
use super::repair::{open_for_writing, open_writable};
use crate::context::Context;
use crate::copy::redo::{RedoFile, SaveRedo};
use crate::copy::undo::UndoFile;
use crate::failure::{At, Failure, Result};
use crate::host_claim::while_claimed;
use crate::image::{ImageArgs, OfflineArgs};
use crate::interrupt::Interrupt;
use crate::json::put_bytes;
use crate::sandbox::command::Preparation;
use crate::text::size;
use extant_check::repair::OfflineError;
use extant_check::resize::{NewSize, Resize, ResizeError, ResizePlan};
use extant_engine::device::{BlockDevice, ImageSpec, identify, image_spec, is_in_store};
use extant_engine::format::{MAGIC_FIELD, Superblock};
use extant_engine::mkfs::parse_size;
use extant_engine::{Errno, Error};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Make a file system larger or smaller.
///
/// An image file grows and shrinks with its file system; a block device, or a partition, must have
/// a larger size before, and keeps its own. A crash leaves the old size or the new one, both valid.
/// A smaller size moves the files behind it, and needs a journal or --redo. An image that must be
/// recovered or repaired first is refused. IMAGE may be the directory of a live mount, or be
/// mounted by extant: its server makes it larger while programs go on to use it.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    on: OfflineArgs,
    /// New size in bytes, with k, M, G or T for powers of 1024; +SIZE adds to the present one
    /// [default: the size of the image or device]
    #[arg(conflicts_with_all = ["minimum", "estimate"])]
    size: Option<String>,
    /// Make the file system as small as its files allow
    #[arg(long, short = 'M')]
    minimum: bool,
    /// Print the size in bytes that --minimum would reach, and change nothing
    #[arg(long, short = 'P', conflicts_with = "minimum")]
    estimate: bool,
    /// Print the new size, and change nothing
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Where no journal makes the change whole, keep it in a new file until it is made, by which
    /// `recover --redo` completes it after a power cut
    #[arg(long, value_name = "FILE", conflicts_with_all = ["estimate", "dry_run"])]
    redo: Option<PathBuf>,
    /// Save the old content of all blocks that change, and of those in use behind a smaller size,
    /// in a new file first, for `repair --restore`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["estimate", "dry_run"])]
    undo: Option<PathBuf>,
    /// A SIZE without a unit counts blocks, as resize2fs has it
    #[arg(long, hide = true)]
    size_in_blocks: bool,
    /// Nothing: no check is needed before
    #[arg(short, hide = true)]
    force: bool,
    /// Nothing: the work takes no time that is worth a bar
    #[arg(short, hide = true)]
    progress: bool,
}

/// Bytes of the unit `s` of resize2fs.
const SECTOR: u64 = 512;

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    // The table of mounts is out of sight in the sandbox.
    if !args.on.waits()
        && let Some(mount) = live::mount_of(&args.on.image)?
    {
        return live::run(args, &mount, context);
    }
    let image = args.on.named();
    let redo = args.redo.as_deref().map(|path| RedoFile::begin(path, &image, context));
    let undo = args.undo.as_deref().map(|path| UndoFile::begin(path, context));
    let files = (redo.transpose()?, undo.transpose()?);
    let only_reads = args.estimate || args.dry_run;
    let is_stored = only_reads && is_in_store(&image.spec().path);
    match &files {
        (None, None) => image.contain_alone(context, Preparation::writing(!is_stored))?,
        _ => image.contain(context, Preparation::writing(!is_stored))?,
    }
    let open = |place: &ImageSpec| {
        if is_stored {
            open_for_reading(&image, place)
        } else if only_reads {
            open_for_writing(&image, place).map_err(|failure| failure.with_exit_code(1))
        } else {
            open_writable(&image, place)
        }
    };
    let device = open(&image.spec())?;
    let size = args.new_size(device.len())?;
    let journal = args.on.journal.as_ref().map(|path| open(&image_spec(path))).transpose()?;
    let interrupt = Interrupt::register().at("signals")?;
    let resize = |device: &Arc<dyn BlockDevice>| {
        let resize = Resize::new(device.clone()).threads(context.thread_count());
        let resize = resize.interrupt(interrupt.flag());
        match journal.clone() {
            Some(journal) => resize.journal(journal),
            None => resize,
        }
    };
    if only_reads {
        return args.carry_out((&image, &device), context, (&resize(&device), size), files);
    }
    while_claimed(&image, &device, &interrupt.flag(), |claim| {
        let device = claim.device();
        args.carry_out((&image, &device), context, (&resize(&device), size), files)
    })
}

impl Args {
    /// Plans the change, makes it if it is to be made, and prints it.
    fn carry_out(
        &self,
        (image, device): (&ImageArgs, &Arc<dyn BlockDevice>),
        context: &Context,
        (resize, size): (&Resize, Option<NewSize>),
        (redo, undo): (Option<RedoFile>, Option<UndoFile>),
    ) -> Result {
        let refuse = |error| refused(image, &**device, error);
        let plan = match size {
            Some(size) => resize.plan(size),
            None => resize.plan_minimum(),
        };
        let plan = plan.map_err(refuse)?;
        if self.estimate {
            return tell_minimum(self, image, context, &plan);
        }
        if self.dry_run || plan.is_done() {
            return tell(image, context, &plan, plan.planned(), self.dry_run);
        }
        if let Some(undo) = undo {
            undo.save(|out: &mut dyn Write| plan.save_undo(out), refuse)?;
        }
        let Some(redo) = redo else {
            return tell(image, context, &plan, &plan.apply().map_err(refuse)?, false);
        };
        let change = |save: &mut SaveRedo<'_>| plan.apply_with_redo(save);
        let superblock = redo.make((image, context), change, |error, remedy| match error {
            ResizeError::Partly(_) => {
                Failure::new(format_args!("{}: {error}; {remedy}", image.name()))
            }
            error => refuse(error),
        })?;
        tell(image, context, &plan, &superblock, false)
    }

    /// Returns the size; `None` for the smallest one.
    fn new_size(&self, present: u64) -> Result<Option<NewSize>> {
        if self.minimum || self.estimate {
            return Ok(None);
        }
        Ok(Some(self.wanted()?.unwrap_or(NewSize::Bytes(present))))
    }

    /// Returns the size that the command line names.
    fn wanted(&self) -> Result<Option<NewSize>> {
        self.size.as_ref().map(|text| self.parsed(text)).transpose()
    }

    fn parsed(&self, text: &str) -> Result<NewSize> {
        let usage = |error: String| Failure::usage(error);
        let parse = |text: &str| parse_size(text).map_err(|error| usage(error.to_string()));
        if let Some(more) = text.strip_prefix('+') {
            return parse(more).map(NewSize::MoreBytes);
        }
        if !self.size_in_blocks {
            return parse(text).map(NewSize::Bytes);
        }
        if let Some(sectors) = text.strip_suffix('s') {
            let bytes = parse(sectors)?.checked_mul(SECTOR);
            let bytes = bytes.ok_or_else(|| usage(format!("size out of range: {text}")))?;
            return Ok(NewSize::Bytes(bytes));
        }
        let number = parse(text)?;
        let in_blocks = text.bytes().all(|byte| byte.is_ascii_digit());
        Ok(if in_blocks { NewSize::Blocks(number) } else { NewSize::Bytes(number) })
    }
}

/// A size of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    bytes: u64,
    blocks: u64,
    inodes: u64,
}

impl Size {
    fn of(superblock: &Superblock) -> Size {
        let (bytes, blocks) = (bytes(superblock), superblock.blocks_count());
        Size { bytes, blocks, inodes: superblock.inodes_count().into() }
    }

    fn document(&self) -> Value {
        json!({ "bytes": self.bytes, "blocks": self.blocks, "inodes": self.inodes })
    }
}

/// A change that was made, or would be.
#[derive(Debug)]
struct Resized<'a> {
    image: &'a Path,
    /// The mount whose server made it.
    dir: Option<&'a Path>,
    before: Size,
    after: Size,
    dry_run: bool,
}

impl Resized<'_> {
    /// Prints both sizes of the object `name`.
    fn tell(&self, context: &Context, name: &str) -> Result {
        let (before, after) = (self.before, self.after);
        if context.json {
            let mut document = Map::new();
            put_bytes(&mut document, "image", self.image.as_os_str().as_bytes());
            if let Some(dir) = self.dir {
                put_bytes(&mut document, "dir", dir.as_os_str().as_bytes());
            }
            document.insert("dry_run".into(), self.dry_run.into());
            document.insert("before".into(), before.document());
            document.insert("after".into(), after.document());
            return context.document(&document.into());
        }
        let old = size(before.bytes);
        if before.blocks == after.blocks {
            context.note(format_args!("{name}: has {old} already"));
            return Ok(());
        }
        let verb = match (after.blocks < before.blocks, self.dry_run) {
            (false, false) => "grew",
            (false, true) => "would grow",
            (true, false) => "shrank",
            (true, true) => "would shrink",
        };
        context.note(format_args!("{name}: {verb} from {old} to {}", size(after.bytes)));
        Ok(())
    }
}

/// Prints both sizes of an image that nothing has open.
fn tell(
    image: &ImageArgs,
    context: &Context,
    plan: &ResizePlan,
    after: &Superblock,
    dry_run: bool,
) -> Result {
    let (before, after) = (Size::of(plan.before()), Size::of(after));
    let resized = Resized { image: &image.image, dir: None, before, after, dry_run };
    resized.tell(context, &image.name())
}

/// Prints the smallest size: as resize2fs does under its name.
fn tell_minimum(args: &Args, image: &ImageArgs, context: &Context, plan: &ResizePlan) -> Result {
    let least = plan.planned();
    if context.json {
        return tell(image, context, plan, least, true);
    }
    let mut out = std::io::stdout().lock();
    if args.size_in_blocks {
        let blocks = least.blocks_count();
        writeln!(out, "Estimated minimum size of the filesystem: {blocks}")?;
    } else {
        writeln!(out, "{}", bytes(least))?;
    }
    Ok(())
}

fn bytes(superblock: &Superblock) -> u64 {
    superblock.blocks_count().saturating_mul(superblock.block_size().into())
}

/// Turns an error into a failure that names object, cause and remedy.
fn refused(image: &ImageArgs, device: &dyn BlockDevice, error: ResizeError) -> Failure {
    let name = image.name();
    let advice = match error {
        ResizeError::Corrupt(corrupt) if corrupt.field_name() == Some(MAGIC_FIELD) => {
            let foreign = identify(device).map(Error::Foreign);
            return image.refused(&foreign.unwrap_or(Error::Corrupt(corrupt)));
        }
        ResizeError::Corrupt(corrupt) => return image.refused(&Error::Corrupt(corrupt)),
        ResizeError::Io(error) if error.kind() == std::io::ErrorKind::Unsupported => {
            let has = size(device.len());
            return Failure::new(format_args!(
                "{name} has only {has}; make the device or partition larger first"
            ));
        }
        ResizeError::Io(error) => return image.refused(&Error::Io(error)),
        ResizeError::Interrupted => return image.refused(&Errno::Intr.into()),
        ResizeError::InUse => return image.refused(&Errno::Busy.into()),
        ResizeError::Unsupported(why) => return image.refused(&Error::Unsupported(why)),
        ResizeError::NeedsRecovery => format!("; run `extant recover {name}` first"),
        ResizeError::HasErrors => format!("; run `extant repair {name}` first"),
        ResizeError::Partly(_) => format!("; run `extant repair {name}`"),
        ResizeError::Full(_) => {
            format!("; `extant resize --estimate {name}` prints the smallest size")
        }
        ResizeError::NoJournal => {
            format!(
                "; nothing was changed; --redo FILE makes the change whole, and `extant build NEW \
                 {name}` makes a smaller image of its files"
            )
        }
        ResizeError::Apply(OfflineError::InLog(_)) => {
            format!("; `extant recover {name}` completes them")
        }
        _ => String::new(),
    };
    Failure::new(format_args!("{name}: {error}{advice}"))
}
